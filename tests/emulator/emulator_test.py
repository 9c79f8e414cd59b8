# SPDX-License-Identifier: Apache-2.0
"""Programs on every emulated target agree with float64 references on fresh data; checked runs find nothing."""

import os
import secrets

import cases
import numpy as np
import pytest
from data import MAKERS, relative_error

SEED = int(os.environ.get("KILN_SEED", secrets.randbelow(1 << 31)))  # a failure prints it


def run(emulator, case, target, **keys):
    name, program, maker, arguments, bar = case
    inputs, output, reference = MAKERS[maker](np.random.default_rng(SEED), **arguments)
    answer = emulator.run(emulator.module(program.serialized), target, inputs, output, seed=SEED % 1000, **keys)
    where = f"{name} on {target}, KILN_SEED={SEED}"
    assert "error" not in answer, f"{where}: {answer['error']}"
    assert answer["finished"] and not answer["findings"], f"{where}: {[f['message'] for f in answer['findings']]}"
    error = relative_error(answer["result"], reference)
    if answer["wgmma"] and "float8" in arguments["dtype"]:
        bar = max(bar, cases.FLOAT8_SUMS)
    assert error <= bar, f"{where}: error {error:.2e}, bar {bar:.0e}"
    assert answer["intact"], f"{where}: wrote outside of its output"
    return answer


def ids(pairs):
    return [f"{case[0]} {target}" for case, target in pairs]


PLAIN = [(case, target) for target in cases.TARGETS for case in cases.products() + cases.shapes() + cases.others()]
PLAIN += [(case, target) for target in cases.OTHERS for case in cases.small()]
PLAIN += [(case, target) for target in cases.TARGETS for case in cases.random_cases(SEED, 4)]
WARPS = cases.products() + cases.small()
CHECKED = [(case, target) for target in cases.TARGETS for case in cases.small()]


@pytest.mark.parametrize("case,target", PLAIN, ids=ids(PLAIN))
def test_agrees_with_its_reference(emulator, case, target):
    run(emulator, case, target)


@pytest.mark.parametrize("case", WARPS, ids=[case[0] for case in WARPS])
def test_products_by_warps_of_sm_90a(emulator, case):
    """disable_wgmma: what sm_80 does, with this target's further types."""
    assert run(emulator, case, "emu:sm_90a", wgmma=0)["wgmma"] == 0


@pytest.mark.parametrize("case,target", CHECKED, ids=ids(CHECKED))
def test_checked_run_is_clean(emulator, case, target):
    run(emulator, case, target, check=1)
    run(emulator, case, target, check=1)


@pytest.mark.parametrize("case", cases.wgmma(), ids=[case[0] for case in cases.wgmma()])
def test_wgmma(emulator, case):
    """Early and late landing; the checked run is the same kernel."""
    for seeds in (2, 1):
        answer = run(emulator, case, "emu:sm_90a", check=1, seeds=seeds)
        assert answer["wgmma"] > 0, "another instruction was chosen"


def test_sums_of_8_bit_floats_keep_their_precision_over_a_long_k(emulator):
    """Of one group of warps with several instructions, and of two; wgmma's own sums lose what the promoted ones keep."""
    for tile in ((128, 128, 128, 128), (128, 256, 128, 256), (64, 24, 128, 128)):
        case = cases.product("long k", (64, 64, 4096), "float8_e4m3fn", "float32", "nt", tile=tile)
        _, _, maker, arguments, _ = case
        inputs, output, reference = MAKERS[maker](np.random.default_rng(SEED), **arguments)
        errors = [relative_error(emulator.run(emulator.module(case[1].serialized), "emu:sm_90a", inputs, output, fast_accumulation=fast)["result"],
                                 reference)
                  for fast in (0, 1)]
        assert errors[0] <= cases.FLOAT8_SUMS and errors[1] > 3 * errors[0], f"{tile}, KILN_SEED={SEED}: {errors}"


@pytest.mark.parametrize("case", cases.roles(), ids=[case[0] for case in cases.roles()])
def test_roles(emulator, case):
    """Threads that fill rings and threads that compute, early and late landing, in any order."""
    for seeds in (3, 1):
        answer = run(emulator, case, "emu:sm_90a", check=1, seeds=seeds)
        assert answer["tensor_loads"] > 0, "the loads stayed with the threads that compute"


@pytest.mark.parametrize("target", cases.TARGETS)
def test_same_seed_same_bytes(emulator, target):
    """Order and landing of copies change nothing that a correct kernel computes: not even rounding."""
    case = cases.attention_case(1, 133, 2, 64)
    inputs, output, _ = MAKERS[case[2]](np.random.default_rng(SEED), **case[3])
    module = emulator.module(case[1].serialized)
    assert emulator.run(module, target, inputs, output, seeds=6)["different"] == 1
