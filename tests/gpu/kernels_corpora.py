# SPDX-License-Identifier: Apache-2.0
"""The four repositories of kernels_main.py: their kernels, found in their text, and their tests."""

import ast
import json
import os
import pathlib

from corpus import Corpus, Job

HERE = pathlib.Path(__file__).resolve().parent
TESTS_TOGETHER = 4  # in one process
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


class NothingExpected:
    passed: set = set()

    @staticmethod
    def not_applicable(case):
        return None


def environment_path(repository, corpora, environment: dict) -> str:
    """PYTHONPATH of a process that imports the repository's kernels."""
    return os.pathsep.join(filter(None, [environment["PYTHONPATH"], *repository.paths(corpora), os.environ.get("KILN_KERNELS_PACKAGES", "")]))


def environment_of(corpora) -> dict:
    """What else such a process needs."""
    return {"KILN_KERNELS_CORPORA": str(pathlib.Path(corpora).resolve()), "NUMEXPR_MAX_THREADS": "1", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false"}


class KernelTests(Corpus):
    """Tests of one repository. ``chosen``: their names, or None for the smallest of each function. ``lines``: where kernels_plugin.py writes."""

    def __init__(self, repository, corpora, environment, scratch, lines, *, chosen=None, **options):
        environment = {**environment, **environment_of(corpora), "PYTHONPATH": environment_path(repository, corpora, environment),
                       "KILN_CORPUS_PACKAGE": "triton", "KILN_KERNELS_LINES": str(lines), "PYTEST_ADDOPTS": "-p kernels_plugin"}
        if "KILN_CORPUS_DEVICE" in environment:
            environment["TORCHDYNAMO_DISABLE"] = "1"  # on the CPU's tensors, what torch.compile would make of a test's reference is as it stands
        super().__init__(repository.root(corpora), environment, scratch, NothingExpected(), **options)
        self.repository, self.chosen = repository, chosen

    def files(self) -> list:
        if self.chosen is not None:
            return sorted({self.root / case.split("::")[0] for case in self.chosen})
        return sorted({path for pattern in self.repository.tests for path in self.root.glob(pattern)})

    def jobs(self, path, reasons) -> list:
        if self.chosen is None:
            return [Job(self.root, path)]
        name = str(path.relative_to(self.root))
        cases = [case for case in self.chosen if case.split("::")[0] == name]
        return [Job(self.root, path, only=cases[i:i + TESTS_TOGETHER]) for i in range(0, len(cases), TESTS_TOGETHER)]


def read_lines(path) -> list:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
