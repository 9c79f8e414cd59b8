# SPDX-License-Identifier: Apache-2.0
"""What can be checked of the GPU run without a GPU: its plan, and that a lost worker costs one case."""

import os
import pathlib
import sys
import textwrap
import time
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import plan  # noqa: E402
import programs  # noqa: E402
import runner  # noqa: E402
from main import sweep_result  # noqa: E402

WORKER = textwrap.dedent("""
    import json, os, sys, time
    print(json.dumps({"ready": "stub"}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        do = case["do"]
        if do == "crash":
            os.abort()
        if do == "hang":
            time.sleep(60)
        print(json.dumps({"name": case["name"], "ok": do == "pass", "pid": os.getpid()}), flush=True)
        if do == "poison":
            os._exit(3)
""")


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(runner, "HERE", tmp_path)

    def start(actions, budget=60, case_timeout=2):
        options = types.SimpleNamespace(seed=1, case_timeout=case_timeout)
        place = types.SimpleNamespace(scratch=tmp_path, environment=dict(os.environ))
        cases = [{"name": f"{i}.{action}", "do": action} for i, action in enumerate(actions)]
        return [result for _, result in runner.Runner(options, place, time.monotonic() + budget).run(cases)]

    return start


def test_cases_share_a_worker(run):
    results = run(["pass"] * 5)
    assert all(r["ok"] for r in results) and len({r["pid"] for r in results}) == 1


@pytest.mark.parametrize("fault, says", [("crash", "status -6"), ("hang", "not done after 2 s")])
def test_a_lost_worker_costs_its_case(run, fault, says):
    results = run(["pass", fault, "pass", fault, "pass"])
    assert [r["ok"] for r in results] == [True, False, True, False, True]
    assert says in results[1]["note"] and says in results[3]["note"]
    assert len({r["pid"] for r in results if r["ok"]}) == 3


def test_after_a_poisoned_context_the_next_case_runs_elsewhere(run):
    results = run(["pass", "poison", "pass", "poison", "poison", "pass"])
    assert [r["ok"] for r in results] == [True, False, True, False, False, True]
    assert results[0]["pid"] == results[1]["pid"] != results[2]["pid"]


def test_when_the_time_is_over_cases_fail(run):
    results = run(["pass", "pass"], budget=-1)
    assert [r["note"] for r in results] == ["not run: the time was over"] * 2 and not any(r["ok"] for r in results)


def test_the_plan_follows_its_seed():
    first, again, other = plan.plan(5, 40), plan.plan(5, 40), plan.plan(6, 40)
    assert first == again != other
    assert len({c["name"] for c in first}) == len(first)


def test_the_plan_has_what_is_asked_of_it():
    cases = plan.plan(7, 40)
    for family in (*plan.GEMM_FAMILIES, "attention"):
        mine = [c for c in cases if c["family"] == family]
        assert len(mine) == 40
        if family in plan.GEMM_FAMILIES:
            shapes = [(c["data"]["M"], c["data"]["N"], c["data"]["K"]) for c in mine]
            assert plan.ODD in shapes and any(0 in shape for shape in shapes)
            chosen = {"gemm_chosen"} if family in ("gemm_f16", "gemm_bf16") else set()
            assert {c["builder"] for c in mine} == {"gemm", "gemm_strided", *chosen}
            assert any(c["data"].get("offset") for c in mine) and any(c["data"].get("trans_b") for c in mine)
    bars = {(c["data"]["kind"], c["dtype"]): c["bar"] for c in cases if c["family"] in plan.GEMM_FAMILIES}
    assert bars["gemm", "float16"] == 2e-3 and bars["gemm", "bfloat16"] == 1e-2 and bars["gemm", "int8"] == 0


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80"])
def test_tiles_that_may_be_chosen_are_programs(target, monkeypatch):
    monkeypatch.setenv("KILN_TARGET", target)  # which build changes
    built = [(c["arguments"], programs.build(c["builder"], c["arguments"], target)) for c in plan.plan(7, 20) if c["builder"] == "gemm_chosen"]
    assert len({func.serialized for _, func in built}) == len(built) > 8


def test_selection():
    case = {"name": "gemm_f16.3", "family": "gemm_f16"}
    assert plan.selected(case, "*") and plan.selected(case, "gemm_*") and plan.selected(case, "f16.3")
    assert not plan.selected(case, "attention")


def test_bytes_of_two_hosts():
    case = {"name": "bytes.x@t"}
    compiled = {"ok": True, "bytes": 5, "digest": "a" * 64, "reproducible": True}
    assert sweep_result(case, compiled, {})["ok"]
    assert sweep_result(case, compiled, {"bytes.x@t": "a" * 64})["ok"]
    assert not sweep_result(case, compiled, {"bytes.x@t": "b" * 64})["ok"]
    assert not sweep_result(case, {**compiled, "reproducible": False}, {})["ok"]
    assert sweep_result(case, {"ok": False, "error": "no fp8", "unsupported": True}, {})["ok"]
    assert not sweep_result(case, {"ok": False, "error": "crash"}, {})["ok"]
