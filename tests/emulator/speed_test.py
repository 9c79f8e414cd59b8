# SPDX-License-Identifier: Apache-2.0
"""What emulation costs, in processor time of all threads, shortest of three. The times are printed (`pytest -s`) beside what they should be
on an idle machine; asserted is only what checking adds, for that is a ratio within one run."""

import cases
import numpy as np
import pytest
from data import MAKERS
from emulated import BINARY

SANITIZED = "sanitize" in str(BINARY) or "asan" in str(BINARY)
CORES = 2
pytestmark = pytest.mark.skipif(SANITIZED, reason="code with sanitizers says nothing about speed")


def seconds(emulator, case, target, times=3, **keys):
    inputs, output, _ = MAKERS[case[2]](np.random.default_rng(5), **case[3])
    module, spent = emulator.module(case[1].serialized), []
    for _ in range(times):
        answer = emulator.run(module, target, inputs, output, threads=CORES, **keys)
        assert answer.get("finished"), answer
        spent.append(answer["cpu_ms"] / 1000)
    return min(spent)


@pytest.mark.parametrize("target,keys", [("emu:sm_80", {}), ("emu:sm_90a", {}), ("emu:sm_90a", {"wgmma": 0}), 
                                         ("emu:gfx942", {}), ("emu:gfx1100", {})])
def test_a_tile_step_of_gemm(emulator, record_property, target, keys):
    """128 x 128 x 64 of float16 by one block: 2 ms a step; checked runs at most ten times as long."""
    def steps(count, **more):
        case = cases.product("step", (128, 128, 64 * count), "float16", "float16", "nt", tile=(128, 128, 64, 128))
        return seconds(emulator, case, target, **keys, **more)

    plain = (steps(34) - steps(2)) / 32
    checked = (steps(18, check=1) - steps(2, check=1)) / 16
    record_property("milliseconds", plain * 1000)
    record_property("checked", checked / plain)
    print(f"{target} {keys}: {plain * 1000:.2f} ms a step (2), checked {checked / plain:.1f} x")
    assert checked <= 10 * plain


@pytest.mark.parametrize("keys", [{}, {"wgmma": 0}])
def test_attention(emulator, record_property, keys):
    """B = 1, H = 2, N = 512, D = 64: 5 s on two cores, 60 s checked; at most ten times as long."""
    case = cases.attention_case(1, 512, 2, 64)
    plain, checked = (seconds(emulator, case, "emu:sm_90a", **keys, check=check) for check in (0, 1))
    record_property("seconds", plain / CORES)
    record_property("checked", checked / plain)
    print(f"{keys}: {plain / CORES:.2f} s on two cores (5), checked {checked / CORES:.2f} s (60), {checked / plain:.1f} x")
    assert checked <= 10 * plain
