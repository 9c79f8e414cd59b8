# SPDX-License-Identifier: Apache-2.0
"""What can be checked of tests/gpu/kernels and tests/gpu/inductor without torch, a GPU and the four repositories."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import inductor_main  # noqa: E402
import kernels_main  # noqa: E402
from kernels_corpora import HERE, REPOSITORIES  # noqa: E402
from workers import Pool  # noqa: E402

KERNELS = '''
import triton
@triton.jit
def helper(x): return x
@triton.autotune(configs=[], key=[])
@triton.jit(do_not_specialize=["n"])
def tuned(X, n): helper(X)
@triton.jit
def plain(X): helper(X)
def not_a_kernel(X): plain[(1,)](X)
'''


@pytest.fixture
def corpora(tmp_path):
    for name, repository in REPOSITORIES.items():
        path = tmp_path / name / repository.package / "a" / "b.py"
        path.parent.mkdir(parents=True)
        path.write_text(KERNELS if name in ("fla", "liger") else "x = 1\n")
    return tmp_path


def test_kernels_are_those_that_are_launched(corpora):
    assert REPOSITORIES["fla"].kernels(corpora) == ["fla.a.b:tuned", "fla.a.b:plain"]
    assert REPOSITORIES["liger"].kernels(corpora) == ["liger_kernel.ops.a.b:tuned", "liger_kernel.ops.a.b:plain"]
    assert REPOSITORIES["vllm"].kernels(corpora) == []


def test_a_draw_takes_what_tests_reach(corpora):
    written = [{"corpus": "fla", "function": "t.py::test", "sizes": [["t.py::test[2]", 2.0], ["t.py::test[9]", 9.0]]},
               {"corpus": "fla", "id": "t.py::test[2]", "kernels": ["fla.a.b:plain"]},
               {"corpus": "fla", "id": "t.py::other", "kernels": ["fla.a.b:tuned", "elsewhere:x"]},
               {"corpus": "fla", "id": "t.py::long", "kernels": ["fla.a.b:plain"]}]
    written.append({"corpus": "fla", "function": "t.py::long", "sizes": [["t.py::long", 99.0]]})
    found = kernels_main.drawn(argparse.Namespace(draw=1, corpora=corpora), written)
    assert found["found"] == {"fla": 2, "liger": 2} and found["reached"] == {"fla": 2}
    assert found["kernels"] == [{"corpus": "fla", "kernel": "fla.a.b:plain", "small": "t.py::test[2]", "large": "t.py::test[9]"},
                                {"corpus": "fla", "kernel": "fla.a.b:tuned", "small": "t.py::other", "large": "t.py::other"}]


def test_the_list():
    rows = json.loads((HERE / "kernels.json").read_text())["kernels"]
    assert len(rows) == len({(row["corpus"], row["kernel"]) for row in rows}) == kernels_main.COUNT
    assert {row["corpus"] for row in rows} <= set(REPOSITORIES)
    for row in rows:
        if not REPOSITORIES[row["corpus"]].own:
            name = row["small"].split("::")[1].split("[")[0]
            assert f"def {name}(" in (HERE / "kernel_cases" / row["small"].split("::")[0]).read_text()


def test_a_report_counts_and_needs_enough(capsys):
    right = {"outcome": "passed", "error": "", "kiln_ms": 1.0, "triton_ms": 2.0, "ratio": 2.0}
    rows = [{"corpus": "fla", "kernel": f"m:k{i}", **right} for i in range(150)]
    for row in rows[:10]:
        row.update(outcome="failed", error="AssertionError: 1", ratio=None)
    assert kernels_main.show({"kernels": rows}, False)
    assert "# 140 of 150 kernels are right, 140 timed, geomean 2.000 × Triton, least 2.000" in capsys.readouterr().out
    rows[11]["outcome"] = "failed"
    assert not kernels_main.show({"kernels": rows}, False)


def test_other_builds_stand_beside(capsys):
    row = {"corpus": "fla", "outcome": "skipped", "error": "", "kiln_ms": 1.0, "triton_ms": 2.0, "ratio": 2.0}
    rows = [{**row, "kernel": "m:a", "beside_ms": {"/older": 1.5}}, {**row, "kernel": "m:b", "beside_ms": {"/older": None}}]
    assert kernels_main.show({"kernels": rows}, False, True)
    shown = capsys.readouterr().out
    assert "beside    1500.0 µs" in shown and "beside         -" in shown
    assert "geomean 2.000 × Triton, least 2.000; 1.500 × /older in 1" in shown
    with pytest.raises(SystemExit):
        kernels_main.parse(["--corpora", ".", "--emulate", "--beside", "/older"])


WORKER = '''
import json, os, sys, time
print(json.dumps({"ready": "a package"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["name"] == "dies":
        os._exit(9)
    if asked["name"] == "hangs":
        time.sleep(60)
    print(json.dumps({**asked, "ok": True, "note": "", "pid": os.getpid()}), flush=True)
'''


def test_a_lost_worker_costs_its_case(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "logs").mkdir()
    pool = Pool([tmp_path / "worker.py"], dict(os.environ), tmp_path / "logs", jobs=2, limit=3, deadline=float("inf"))
    names = ["MLP mixer", "a", "dies", "b", "hangs", "c"]
    pool.start([{"kind": "model" if name in inductor_main.MODELS else "case", "name": name} for name in names])
    while pool.busy():
        pool.step()
    outcomes = {row["name"]: row["ok"] for row in pool.results}
    assert outcomes == {"MLP mixer": True, "a": True, "b": True, "c": True, "dies": False, "hangs": False} and pool.package == "a package"
    notes = {row["name"]: row["note"] for row in pool.results}
    assert notes["dies"] == "the process ended with status 9" and notes["hangs"] == "not done after 3 s"
    timed, others = inductor_main.timed("MLP mixer", pool), {row["pid"] for row in pool.results if row["name"] == "a"}
    assert timed["kind"] == "time" and timed["pid"] not in others
    pool.end()


def test_one_after_the_other_a_pool_starts_again_where_a_worker_was_lost(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "logs").mkdir()
    pool = Pool([tmp_path / "worker.py"], dict(os.environ), tmp_path / "logs", jobs=1, limit=3, deadline=float("inf"))
    found = [pool.one({"kind": "case", "name": name}) for name in ("a", "dies", "b", "c")]
    assert [row["ok"] for row in found] == [True, False, True, True] and found[2]["pid"] == found[3]["pid"] != found[0]["pid"]
    pool.end()


def test_cases_are_found_in_their_text():
    names = inductor_main.names()
    assert len(names) > 60 and len(set(names)) == len(names) and {"random", "softmax", "flex attention"} <= set(names)


MODULES = {"torch/__init__.py": '''
import copy, pickle
class Tensor:
    def __init__(self, values): self.values = values
    def detach(self): return self
    def clone(self): return copy.deepcopy(self)
class dtype: pass
def save(x, path): pickle.dump(x, open(path, "wb"))
def load(path, weights_only): return pickle.load(open(path, "rb"))
''', "triton/__init__.py": "", "triton/language/__init__.py": '''
class constexpr:
    def __init__(self, value): self.value = value
class element: pass
bfloat16 = element()
''', "some/__init__.py": "", "some/kernels.py": '''
import torch
import triton.language as tl
launches = []
class Kernel:
    def __init__(self, fn): self.fn = fn
    def __getitem__(self, grid): return lambda *args, **kwargs: launches.append((grid({"BLOCK": 4}), args, kwargs))
def half(n): return n // 2
def plain(x, n, kind, BLOCK): pass
tuned = Kernel(Kernel(plain))
def launched(record):
    x = torch.Tensor([1, 2])
    def grid(meta, least=1): return (max(half(len(x.values) * meta["BLOCK"]), least), tl.bfloat16)
    record(tuned, grid, (x, 7, tl.bfloat16), {"BLOCK": tl.constexpr(4), "some": (x, None)})
    return x
'''}


def test_a_recorded_launch_is_made_by_another_process(tmp_path):
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE)])}
    write = "import functools, kernels_record, some.kernels as k; k.launched(functools.partial(kernels_record.write, 'record'))"
    read = """
import kernels_record, some.kernels as k, triton.language as tl
launch, tensors = kernels_record.read("record")
launch()
(grid, args, kwargs), = k.launches
assert grid == (4, tl.bfloat16) and args[0].values == [1, 2] and args[1:] == (7, tl.bfloat16), (grid, args)
assert kwargs["BLOCK"] == 4 and kwargs["some"] == (args[0], None) and args[0] in tensors and kernels_record.name_of(k.tuned) == "some.kernels:plain"
"""
    refuse = """
import kernels_record, some.kernels as k
try:
    kernels_record.write("other", k.tuned, (1,), [object()], {})
    assert False
except TypeError as problem:
    assert "an object among" not in str(problem) and "object" in str(problem)
"""
    for text in (write, read, refuse):
        subprocess.run([sys.executable, "-B", "-c", text], cwd=tmp_path, env=environment, check=True)
