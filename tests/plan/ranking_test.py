# SPDX-License-Identifier: Apache-2.0
"""Whether the planner's ranking, made anew, finds the candidates that were measured to be fast."""

import pathlib

import pytest
from ranking import geomean, measurements, worth
from workloads import WORKLOADS, by_name

FILES = sorted(pathlib.Path(__file__).parent.glob("*.json"))
# Parts of the fastest's speed, of the best of the first ten and of the first: a change that ranks worse is seen. The aim is 0.92 for both.
BARS = {"odd_bf16": (0.96, 0.88),  # whose first choice falls short of it
        # Measured before indices by quotients and remainders took vectors: its candidates are other code now, and have to be measured again.
        "convolution_bf16": (0.96, 0.85),
        # Measured while reductions of a loop shared bytes: its candidates have half the barriers now, and have to be measured again.
        "softmax_bf16": (0.94, 0.92)}
AIM = (0.96, 0.92)
WHOLE = {"top": 0.99, "first": 0.965}  # geometric means of all workloads; 0.97 without the convolution


@pytest.fixture(scope="module")
def worths(tmp_path_factory):
    """{workload: (the best of the first ten, the first)}."""
    from daemon import Daemon, socket_folder

    found = {}
    with socket_folder() as sockets:
        daemon = Daemon(tmp_path_factory.mktemp("plan"), sockets)
        daemon.start()
        try:
            for path in FILES:
                data = measurements(path)
                programs = [by_name(data["workload"]).build(sizes) for sizes, _us in data["rows"]]
                ranked = daemon.client().rank(programs, data["target"], board=data["device"])
                expected = {one.index: one.microseconds for one in ranked}
                found[data["workload"]] = worth(data["rows"], [expected[index] for index in range(len(programs))])
        finally:
            daemon.end()
    for name, (top, first) in found.items():
        print(f"{name:20} best of the first ten {top:.3f}, the first {first:.3f}")
    return found


def test_every_workload_was_measured():
    assert [path.stem for path in FILES] == sorted(workload.name for workload in WORKLOADS)
    for path in FILES:
        data = measurements(path)
        assert data["columns"][: len(by_name(path.stem).space)] == list(by_name(path.stem).space)
        assert len(data["candidates"]) >= 200


@pytest.mark.parametrize("name", [workload.name for workload in WORKLOADS])
def test_the_ranking_finds_fast_candidates(worths, name):
    top, first = worths[name]
    bars = BARS.get(name, AIM)
    assert top >= bars[0] and first >= bars[1], f"best of the first ten {top:.3f} (bar {bars[0]}), the first {first:.3f} (bar {bars[1]})"


def test_the_ranking_as_a_whole(worths):
    top, first = geomean(top for top, _first in worths.values()), geomean(first for _top, first in worths.values())
    assert top >= WHOLE["top"] and first >= WHOLE["first"], f"best of the first ten {top:.3f}, the first {first:.3f}"
