# SPDX-License-Identifier: Apache-2.0
"""The script that measures, with a clock that makes times up."""

import json
import os
import subprocess
import sys

import pytest
from daemon import BUILD
from measure_main import summary
from ranking import worth
from workloads import CANDIDATES, WORKLOADS


def test_each_workload_has_enough_candidates():
    assert len(WORKLOADS) >= 14
    for workload in WORKLOADS:
        candidates = workload.candidates()
        assert 200 <= len(candidates) <= CANDIDATES
        assert len({tuple(sizes.items()) for sizes in candidates}) == len(candidates)
        assert candidates == workload.candidates(), "they are the same in each run"


def test_a_row_says_what_was_found_or_why_not():
    sizes = {"block_m": 64, "threads": 128}
    measured = {"times": [3.0, 1.0, 2.0], "registers": 32, "local": 0}
    assert summary(sizes, {"seconds": 1}, measured) == [64, 128, 2.0, 2.0, 32, 0]
    assert summary(sizes, {"problem": "refused"}, {}) == [64, 128, "refused"]
    assert summary(sizes, {"seconds": 1}, {"problem": "wrong", **measured}) == [64, 128, "wrong"]
    assert summary(sizes, {"seconds": 1}, {}) == [64, 128, "not measured in time"]


def test_the_worth_of_a_ranking():
    rows = [({}, 10.0), ({}, 20.0), *[({}, 40.0)] * 10]
    assert worth(rows, list(range(12))) == (1, 1)
    assert worth(rows, [1, 0, *range(2, 12)]) == (1, 0.5)
    assert worth(rows, [12, 11, *range(10)]) == (0.25, 0.25)


def test_the_script_writes_a_file_for_each_workload(tmp_path):
    if not (BUILD / "bin" / "kiln-worker").exists():
        pytest.skip("build kiln-worker")
    script = [sys.executable, "-B", os.path.join(os.path.dirname(__file__), "measure_main.py"), "--build", str(BUILD), "--target", "cuda:sm_90a",
              "--fake-clock", "--only", "few_rows|distances", "--limit", "3", "--jobs", "1", "--seconds", "300", "--out", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("few_rows_bf16", "distances_f32"):
        data = json.loads((tmp_path / f"{name}.json").read_text())
        assert data["workload"] == name and data["device"] == "fake" and data["columns"][-4:] == ["us", "spread", "registers", "local"]
        assert [row[:-4] for row in data["candidates"]] == [list(s.values()) for s in next(w for w in WORKLOADS if w.name == name).candidates()[:3]]
