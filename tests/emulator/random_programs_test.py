# SPDX-License-Identifier: Apache-2.0
"""Random tile programs against numpy, and the seeds that once failed. The programs are the same in each run, so that a change answers
for its own faults; ``KILN_SEED`` chooses others. A failure prints its seed: with it, ``tests/emulator/random_programs --seed …
--generator … --show`` runs the same program. That script also runs thousands of them."""

import os
import time

import pytest
from random_run import GENERATORS, Trial, options_of, target_of

SEED = int(os.environ.get("KILN_SEED", "1"))
PROGRAMS = int(os.environ.get("KILN_RANDOM_PROGRAMS", "60"))  # of each generator
SECONDS, LEAST = 60.0, 5  # after which no further one is begun, unless the machine is so slow that there were fewer

# What a seed makes depends on the generator: regression_test.py has what was found by itself.
FAILED_ONCE = [
    ("tiles", 149, "emu:sm_90a"), ("tiles", 1477, "emu:gfx90a"), ("tiles", 1805, "emu:gfx1100"),  # tiles allocated in pipelined loops
]


def outcome_of(generator, seed, target, emulator, place):
    trial = Trial(generator, seed, place)
    outcome = trial.run(emulator, target, trial.expected(), **options_of(seed))
    assert outcome.good, f"{generator} {seed} {target} {options_of(seed)}: {outcome.kind}: {outcome.text}\n{trial.source}"
    return outcome.kind


@pytest.mark.parametrize("generator, seed, target", FAILED_ONCE)
def test_what_failed_once(emulator, tmp_path, generator, seed, target):
    outcome_of(generator, seed, target, emulator, tmp_path)


@pytest.mark.parametrize("generator", GENERATORS)
def test_random_programs(emulator, tmp_path, record_property, generator):
    kinds, end = [], time.monotonic() + SECONDS
    for seed in range(SEED, SEED + PROGRAMS):
        if len(kinds) >= LEAST and time.monotonic() > end:
            break
        kinds.append(outcome_of(generator, seed, target_of(seed), emulator, tmp_path))
    record_property("programs", len(kinds))
    print(f"{generator}: {len(kinds)} programs from seed {SEED}, {kinds.count('refused')} beyond a target's limits")
    assert kinds.count("right") > len(kinds) // 2


def test_a_wrong_result_shows(emulator, tmp_path):
    """The comparison can fail: another program's expected tensors do not pass."""
    trial = Trial("tiles", 1, tmp_path)
    expected = trial.expected()
    expected[-1] = expected[-1] + 1
    assert trial.run(emulator, "emu:sm_80", expected).kind == "wrong"
