# SPDX-License-Identifier: Apache-2.0
"""Random tile programs against numpy, and the seeds that once failed. The programs are the same in each run, so that a change answers
for its own faults; ``KILN_SEED`` chooses others. A failure prints its seed: with it, ``tests/emulator/random_programs --seed …
--generator … --show`` runs the same program. That script also runs thousands of them."""

import collections
import os
import time

import pytest
from random_run import GENERATORS, PTX, Trial, options_of, target_of
from random_tally import Tally, refusal

SEED = int(os.environ.get("KILN_SEED", "1"))
PROGRAMS = int(os.environ.get("KILN_RANDOM_PROGRAMS", "40"))  # of each generator
AS_PTX = 12  # of them
SECONDS, LEAST = 45.0, 5  # after which no further one is begun, unless the machine is so slow that there were fewer

TEXTS = 1000  # programs of each generator of which the forms are counted
OFTEN = 10  # times that each form comes in so many, at least

# What a seed makes depends on the generator: regression_test.py has what was found by itself.
FAILED_ONCE = [
    ("products", 8000441, "emu:sm_90a"),  # a ring whose tile threads load: the release asks for a proxy fence
    ("products", 8400985, "emu:sm_90a"),  # allocs of a nested loop, put at the begin of the body that was being walked
    ("ranges", 3003177, "emu:gfx942"),  # partial results of a range of threads, in shared memory that other threads still read
    ("ranges", 3003506, "emu:sm_75"),  # a tile of 64 rows, taken for a buffer of 64 versions
    ("ranges", 3332037, "emu:gfx1100"),  # a byte that a buffer of a loop's body shares with others
    ("ranges", 8430056, "cuda:sm_90a"),  # right here: ptxas made it wrong (compiler/llvm/faults/spins.h)
    ("threads", 9350211, "cuda:sm_90a"),  # the same, in global memory
    ("ranges", 9460959, "cuda:sm_90a"),  # right here: ptxas made it wrong (compiler/llvm/faults/complements.h)
    ("tiles", 9441439, "emu:sm_90a"),  # continue between a fill and the product that took the fill's place
    ("tiles", 149, "emu:sm_90a"), ("tiles", 1477, "emu:gfx90a"), ("tiles", 1805, "emu:gfx1100"),  # tiles allocated in pipelined loops
]


def outcome_of(generator, seed, target, emulator, place):
    trial = Trial(generator, seed, place)
    outcome = trial.run(emulator, target, trial.expected(), **options_of(seed))
    assert outcome.good, f"{generator} {seed} {target} {options_of(seed)}: {outcome.kind}: {outcome.text}\n{trial.source}"
    return outcome, trial.text.forms


@pytest.mark.parametrize("generator, seed, target", FAILED_ONCE)
def test_what_failed_once(emulator, tmp_path, generator, seed, target):
    outcome_of(generator, seed, target, emulator, tmp_path)


@pytest.mark.parametrize("generator", GENERATORS)
def test_random_programs(emulator, tmp_path, record_property, generator):
    tally, end = Tally(), time.monotonic() + SECONDS
    for seed in range(SEED, SEED + PROGRAMS):
        if tally.total >= LEAST and time.monotonic() > end:
            break
        outcome, forms = outcome_of(generator, seed, target_of(seed), emulator, tmp_path)
        tally.add(generator, outcome.target, outcome.kind, outcome.reason, forms)
    record_property("programs", tally.total)
    print("\n".join(tally.lines()))
    assert not list(tally.problems())


@pytest.mark.parametrize("generator", GENERATORS)
def test_random_programs_as_ptx(emulator, tmp_path, generator):
    """What LLVM emits for NVIDIA's GPUs gives what the emulator's code gives."""
    kinds, end = collections.Counter(), time.monotonic() + SECONDS
    for seed in range(SEED, SEED + AS_PTX):
        if sum(kinds.values()) >= LEAST and time.monotonic() > end:
            break
        kinds[outcome_of(generator, seed, target_of(seed, PTX), emulator, tmp_path)[0].kind] += 1
    assert kinds["right"] > sum(kinds.values()) / 2


@pytest.mark.parametrize("generator", [name for name, made in GENERATORS.items() if made.FORMS])
def test_every_form_is_made(generator):
    made = collections.Counter()
    for seed in range(TEXTS):
        text = GENERATORS[generator](seed)
        text.build()
        made.update(set(text.forms))
    assert {form: made[form] for form in text.FORMS if made[form] < OFTEN} == {}


def test_the_tally_finds_what_should_not_be():
    good, few = Tally(), Tally()
    for number in range(100):
        good.add("tiles", "emu:sm_80", "right" if number % 10 else "refused", None if number % 10 else "registers", ["a form"])
        few.add("threads", "emu:sm_80", "right", None, ["a form"] if number % 2 else [])
    assert list(good.problems()) == [] and good.total == 100
    for _ in range(60):
        few.add("threads", "emu:sm_80", "refused", "registers", ["a form"])
    assert list(few.problems()) == ["form threads: a form: only 50 of 110 programs ran"]
    few.merge(good)
    few.add("tiles", "emu:sm_80", "wrong", None, [])
    again = Tally(few.pairs())
    assert again.total == 261 and "tiles: 1 wrong" in list(again.problems()) and list(again.lines()) == list(few.lines())


def test_only_some_refusals_are_expected():
    assert refusal("100 threads are too many") is None
    assert refusal("unsupported: kernel 'program' needs 300000 bytes of shared memory; sm_80 has 166912 for a block:") == "shared memory"
    assert refusal("internal: registers of 'C' have no halves along dimension 1") is None


def test_a_wrong_result_shows(emulator, tmp_path):
    """The comparison can fail: another program's expected tensors do not pass."""
    trial = Trial("tiles", 1, tmp_path)
    expected = trial.expected()
    expected[-1] = expected[-1] + 1
    assert trial.run(emulator, "emu:sm_80", expected).kind == "wrong"
