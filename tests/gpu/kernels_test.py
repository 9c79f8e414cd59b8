# SPDX-License-Identifier: Apache-2.0
"""What can be checked of tests/gpu/kernels and tests/gpu/inductor without torch, a GPU and the four repositories."""

import argparse
import json
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import inductor_main  # noqa: E402
import kernels_main  # noqa: E402
from kernels_corpora import HERE, REPOSITORIES  # noqa: E402

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
               {"corpus": "fla", "id": "t.py::test[2]", "kernels": {"fla.a.b:plain": None}},
               {"corpus": "fla", "id": "t.py::other", "kernels": {"fla.a.b:tuned": None, "elsewhere:x": None}},
               {"corpus": "fla", "id": "t.py::long", "kernels": {"fla.a.b:plain": None}}]
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
    right = {"outcome": "passed", "error": "", "triton": "passed", "kiln_ms": 1.0, "triton_ms": 2.0, "ratio": 2.0}
    rows = [{"corpus": "fla", "kernel": f"m:k{i}", **right} for i in range(150)]
    for row in rows[:10]:
        row.update(outcome="failed", error="AssertionError: 1", ratio=None)
    assert kernels_main.show({"kernels": rows}, False)
    assert "# 140 of 150 kernels are right, 150 on Triton; 140 timed, geomean 2.000 × Triton, least 2.000" in capsys.readouterr().out
    rows[11]["outcome"] = "failed"
    assert not kernels_main.show({"kernels": rows}, False)


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


def test_a_lost_worker_costs_its_case(tmp_path, monkeypatch):
    (tmp_path / "inductor_worker.py").write_text(WORKER)
    monkeypatch.setattr(inductor_main, "HERE", tmp_path)
    (tmp_path / "logs").mkdir()
    options = argparse.Namespace(jobs=2, case_timeout=3)
    pool = inductor_main.Pool(dict(os.environ), "cpu", tmp_path / "logs", options, float("inf"))
    names = ["MLP mixer", "a", "dies", "b", "hangs", "c"]
    pool.start([{"kind": "model" if name in inductor_main.MODELS else "case", "name": name} for name in names])
    while pool.busy():
        pool.step()
    outcomes = {row["name"]: row["ok"] for row in pool.results}
    assert outcomes == {"MLP mixer": True, "a": True, "b": True, "c": True, "dies": False, "hangs": False} and pool.package == "a package"
    notes = {row["name"]: row["note"] for row in pool.results}
    assert notes["dies"] == "the process ended with status 9" and notes["hangs"] == "not done after 3 s"
    timed, others = pool.timed("MLP mixer"), {row["pid"] for row in pool.results if row["name"] == "a"}
    assert timed["kind"] == "time" and timed["pid"] not in others
    for worker in pool.workers:
        worker.end()


def test_cases_are_found_in_their_text():
    names = inductor_main.names()
    assert len(names) > 60 and len(set(names)) == len(names) and {"random", "softmax", "flex attention"} <= set(names)
