# SPDX-License-Identifier: Apache-2.0
"""FlagGems' own tests, unchanged, through the package that takes Triton's name. They compare its operators with torch's. Of each test function a
sample of its cases runs."""

import collections
import os
import pathlib
import re

from corpus import Corpus, Job

TOGETHER = 10  # functions in one process: its start takes longer than a test


class FlagGemsCorpus(Corpus):
    """``most``: cases of each test function, chosen by ``seed``."""

    def __init__(self, root, environment, scratch, expected, *, most=6, seed=0, **options):
        path = os.pathsep.join([environment["PYTHONPATH"], str(pathlib.Path(root).resolve() / "src")])
        environment = {**environment, "PYTHONPATH": path, "KILN_CORPUS_PACKAGE": "triton", "KILN_CORPUS_MOST": str(most),
                       "KILN_CORPUS_SEED": str(seed), "NUMEXPR_MAX_THREADS": "1", "OMP_NUM_THREADS": "2",
                       "FLAGGEMS_CACHE_DIR": str(scratch / "flaggems")}
        super().__init__(root, environment, scratch, expected, **options)

    def files(self) -> list:
        return sorted(self.root.glob("tests/test_*.py"))

    def jobs(self, path, reasons: dict) -> list:
        chosen = [case for case in reasons if self._selected(case)]
        return [Job(self.root, path, only=chosen[i:i + TOGETHER]) for i in range(0, len(chosen), TOGETHER)]

    def report(self) -> dict:
        """With the test functions none of whose cases failed."""
        functions = collections.defaultdict(set)
        for case, row in self.rows.items():
            functions[re.sub(r"\[.*", "", case)].add(row["outcome"])
        whole = collections.Counter("skipped" if kinds == {"skipped"} else "passed" if kinds <= {"passed", "skipped"} else "failed"
                                    for kinds in functions.values())
        return {**super().report(), "functions": dict(whole)}
