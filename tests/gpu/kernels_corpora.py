# SPDX-License-Identifier: Apache-2.0
"""The four repositories of kernels_main.py: their kernels, found in their text, and their tests."""

import ast
import json
import os
import pathlib

from corpus import Corpus, Job

HERE = pathlib.Path(__file__).resolve().parent
CASES = HERE / "kernel_cases"  # tests of kernels whose repositories have none that run by themselves


class Repository:
    """``package``: the folder with the kernels. ``tests``: globs; of a repository without tests of its own they are in CASES. ``path``: what goes
    onto PYTHONPATH."""

    def __init__(self, name, package, tests, path, own=True):
        self.name, self.package, self.tests, self.path, self.own = name, package, tests, path, own

    def root(self, corpora) -> pathlib.Path:
        """Of its tests."""
        return pathlib.Path(corpora) / self.name if self.own else CASES

    def paths(self, corpora) -> list:
        return [str(pathlib.Path(corpora) / self.name / part) for part in self.path]

    def kernels(self, corpora) -> list:
        """"module:function" of each kernel that is launched and not only called by others."""
        folder = pathlib.Path(corpora) / self.name
        found, called = [], set()
        for path in sorted((folder / self.package).rglob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            if ".jit" not in text and "@jit" not in text:
                continue
            module = ".".join(path.relative_to(folder / self.path[0]).with_suffix("").parts)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef) and any(_is_jit(d) for d in node.decorator_list):
                    found.append((module, node.name))
                    called |= {c.func.id for c in ast.walk(node) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)}
        return [f"{module}:{name}" for module, name in found if name not in called]


def _is_jit(decorator) -> bool:
    decorator = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(decorator) in ("triton.jit", "jit")


REPOSITORIES = {r.name: r for r in (
    Repository("liger", "src/liger_kernel/ops", ["test/transformers/test_*.py"], ["src", "."]),
    Repository("fla", "fla", ["tests/ops/**/test_*.py", "tests/modules/test_*.py"], ["."]),
    Repository("unsloth", "unsloth/kernels", ["test_unsloth.py"], ["."], own=False),
    Repository("vllm", "vllm", ["test_vllm.py"], ["."], own=False))}


class _NothingExpected:
    passed: set = set()

    @staticmethod
    def not_applicable(case):
        return None


class KernelTests(Corpus):
    """Tests of one repository. ``chosen``: their names, or None for the smallest of each function. ``lines``: where kernels_plugin.py writes.
    ``together``: one process for all of them, as its start takes longer than a test."""

    def __init__(self, repository, corpora, environment, scratch, lines, *, chosen=None, together=False, **options):
        path = os.pathsep.join(filter(None, [environment["PYTHONPATH"], *repository.paths(corpora), os.environ.get("KILN_KERNELS_PACKAGES", "")]))
        environment = {**environment, "PYTHONPATH": path, "KILN_CORPUS_PACKAGE": "triton", "KILN_KERNELS_LINES": str(lines),
                       "KILN_KERNELS_CORPORA": str(pathlib.Path(corpora).resolve()), "PYTEST_ADDOPTS": "-p kernels_plugin",
                       "NUMEXPR_MAX_THREADS": "1", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if "KILN_CORPUS_DEVICE" in environment:
            environment["TORCHDYNAMO_DISABLE"] = "1"  # on the CPU's tensors, what torch.compile would make of a test's reference is as it stands
        super().__init__(repository.root(corpora), environment, scratch, _NothingExpected(), **options)
        self.repository, self.chosen, self.together = repository, chosen, together

    def files(self) -> list:
        if self.chosen is not None:
            files = sorted({self.root / case.split("::")[0] for case in self.chosen})
            return files[:1] if self.together else files
        return sorted({path for pattern in self.repository.tests for path in self.root.glob(pattern)})

    def jobs(self, path, reasons) -> list:
        if self.chosen is None:
            return [Job(self.root, path)]
        if self.together:
            return [Job(self.root, path, only=list(self.chosen))]
        name = str(path.relative_to(self.root))
        return [Job(self.root, path, only=[case for case in self.chosen if case.split("::")[0] == name])]


def read_lines(path) -> list:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
