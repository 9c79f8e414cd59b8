# SPDX-License-Identifier: Apache-2.0
"""What checked runs report: synchronisation that was taken out, and mistakes of programs at their source line."""

import inspect
import os
import pathlib
import re

import cases
import kiln.language as T
import numpy as np
import pytest
from data import MAKERS, random_array
from emulated import Emulator

BINARY = pathlib.Path(os.environ.get("KILN_BUILD", "build")) / "bin" / "kiln_emulate_jobs"
TARGETS = ["emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
SEEDS = 200
# Mutants that mean the same as the program: (kernel, what was left out, its statement).
REDUNDANT = [
    ("attention", "wait", "copy %Q"),  # the queries' group is older than the loop's first, whose wait covers it
    # What was stored is seen when the kernel has ended.
    ("", "wait for stores to be seen", "copy"),
    # The result takes the queries' place: it matters where the loop over the keys is empty.
    ("attention", "wait", "copy %output"), ("attention", "fence", "copy %output"), ("attention", "named barrier", "copy %output"),
]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    emulator = Emulator(BINARY, tmp_path_factory.mktemp("findings"))
    yield emulator
    emulator.close()


def prepare(emulator, case):
    inputs, output, _ = MAKERS[case[2]](np.random.default_rng(7), **case[3])
    return emulator.module(case[1].serialized), inputs, output


def test_missing_synchronisation_is_reported(emulator, record_property):
    """Each barrier and wait of each kernel is left out alone, each wait also made one group weaker; a mutant counts as reported where one of two seeds finds something."""
    reported, survivors, equivalent = 0, [], 0
    for target in TARGETS:
        for case in cases.mutated() + (cases.rings() if target == "emu:sm_90a" else []):
            module, inputs, output = prepare(emulator, case)
            clean = emulator.run(module, target, inputs, output, check=1)
            assert clean["mutants"] > 0 and not clean["findings"]
            for mutant in range(clean["mutants"]):
                answer = emulator.run(module, target, inputs, output, seeds=2, mutant=mutant, check=1)
                if answer["findings"]:
                    reported += 1
                elif any(case[0].startswith(kernel) and what in answer["mutated"] and text in answer["mutated"]
                         for kernel, what, text in REDUNDANT):
                    equivalent += 1
                else:
                    survivors.append(f"{case[0]} {target}: {answer['mutated']}")
    total = reported + len(survivors)
    record_property("mutants", total)
    record_property("reported", reported)
    record_property("equivalent", equivalent)
    print(f"{reported} of {total} mutants reported, {equivalent} mean the same; not: {survivors}")
    assert total >= 50 and reported >= 0.95 * total, survivors


@pytest.mark.parametrize("target", TARGETS)
def test_correct_kernels_are_clean_under_many_seeds(emulator, target):
    for case in (cases.product("gemm", (64, 64, 128), "float16", "float16"), cases.attention_case(1, 128, 1, 64), cases.mutated()[7]):
        module, inputs, output = prepare(emulator, case)
        answer = emulator.run(module, target, inputs, output, check=1, seed=0, seeds=SEEDS)
        assert answer["finished"] and not answer["findings"], (case[0], answer["findings"])
        assert answer["different"] == 1, f"{case[0]}: the result depends on the order of the threads"


def overlapping_rows():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A, tile)
            for i, j in T.Parallel(64, 64):
                tile[0, j] = A[i, j]  # planted
            T.copy(tile, C)

    return program.with_outputs(-1)


def one_row_too_far():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A, tile)
            for i, j in T.Parallel(64, 64):
                C[i, j] = tile[i + 1, j]  # planted

    return program.with_outputs(-1)


def blocks_share_an_output():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(4, threads=128) as bx:
            tile = T.alloc_fragment((64, 64), "float32")
            T.copy(A, tile)
            for i, j in T.Parallel(64, 64):
                tile[i, j] += T.cast(bx, "float32")
            T.copy(tile, C)  # planted

    return program.with_outputs(-1)


def never_written():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            for i, j in T.Parallel(32, 64):
                tile[i, j] = A[i, j]
            T.copy(tile, C)  # planted

    return program.with_outputs(-1)


PLANTED = [(overlapping_rows, "race", "tile"), (one_row_too_far, "out of bounds", "shared memory"),
           (blocks_share_an_output, "race", "block (1, 0, 0)"), (never_written, "uninitialised read", "tile")]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("build,kind,what", PLANTED, ids=[build.__name__ for build, _, _ in PLANTED])
def test_planted_mistake_is_found_at_its_line(emulator, target, build, kind, what):
    lines, first = inspect.getsourcelines(build)
    line = first + next(i for i, text in enumerate(lines) if "# planted" in text)
    inputs = [(random_array(np.random.default_rng(1), (64, 64), "float32"), "float32")]
    answer = emulator.run(emulator.module(build().serialized), target, inputs, ((64, 64), "float32"), check=1)
    assert answer.get("findings"), answer.get("error", "nothing was found")
    found = answer["findings"][0]
    assert found["kind"] == kind, found
    assert what in found["message"], found
    assert re.search(rf"{re.escape(pathlib.Path(__file__).name)}:{line}\b", found["message"]), (line, found)
