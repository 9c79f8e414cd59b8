# SPDX-License-Identifier: Apache-2.0
"""Triton's own tutorials and tests, unchanged, through the package that takes its name. Each test function has a process of its own, and of its
parameters a sample: test_core.py has more than ten thousand. triton_expected.json says what is not applicable, and what passed before."""

import collections
import os
import pathlib

from corpus import HERE, Corpus, Job

EXPECTED = HERE / "triton_expected.json"
_MODULES = ("_internal_testing", "tools.mxfp")  # of Triton's package, which its tests import


def emulated(environment: dict, packages: str) -> dict:
    """For kernels on the emulator: tensors are the CPU's. ``packages``: folders with torch and what else tests import, behind ours."""
    path = os.pathsep.join(filter(None, (environment["PYTHONPATH"], packages)))
    return {**environment, "PYTHONPATH": path, "KILN_TARGET": "emu:sm_90a", "KILN_CORPUS_DEVICE": "cpu"}


class TritonCorpus(Corpus):
    """``most``: cases of each test function, chosen by ``seed``. ``python/tutorials/*.py`` are programs; the tests are those of
    ``python/test/unit/language``. ``together``: all functions of a file in one process, as collecting them takes longer than running a few."""

    def __init__(self, root, environment, scratch, expected, *, most=24, seed=0, together=False, **options):
        root = pathlib.Path(root).resolve()
        modules = os.pathsep.join(f"triton.{name}={root}/python/triton/{name.replace('.', '/')}.py" for name in _MODULES)
        environment = {**environment, "KILN_CORPUS_PACKAGE": "triton", "KILN_CORPUS_MODULES": modules,
                       "KILN_CORPUS_MOST": str(most), "KILN_CORPUS_SEED": str(seed), "NUMEXPR_MAX_THREADS": "1", "OMP_NUM_THREADS": "2"}
        super().__init__(root, environment, scratch, expected, **options)
        self.together = together

    def files(self) -> list:
        return [*sorted(self.root.glob("python/tutorials/*.py")), *sorted(self.root.glob("python/test/unit/language/test_*.py"))]

    def jobs(self, path, reasons: dict) -> list:
        if not path.name.startswith("test_"):
            return [Job(self.root, path)]
        for case, reason in reasons.items():
            if reason:
                self._add(case, "not_applicable", reason)
        chosen = [case for case, reason in reasons.items() if not reason and self._selected(case)]
        return [Job(self.root, path, only=chosen)] if self.together else [Job(self.root, path, only=[case]) for case in chosen]

    def _outcome(self, case, outcome, error, seconds):
        if self.together and outcome == "failed" and error.startswith("KeyError") and "asm[" in error:
            outcome, error = "not_applicable", "reads the code of a GPU"
        super()._outcome(case, outcome, error, seconds)

    def report(self) -> dict:
        """With the test functions all of whose cases passed, as Triton counts its tests by function."""
        functions = collections.defaultdict(set)
        for row in self.rows.values():
            if "::" in row["case"]:
                functions[row["case"].split("[")[0]].add(row["outcome"])
        whole = collections.Counter("not applicable" if kinds <= {"not_applicable", "skipped"} else
                                    "passed" if kinds <= {"passed", "skipped", "not_applicable"} else "failed" for kinds in functions.values())
        report = super().report()
        if self.together:  # of other cases than those that ran on a GPU
            report["regressions"] = [case for case in report["regressions"] if case in self.rows]
        return {**report, "functions": dict(whole)}
