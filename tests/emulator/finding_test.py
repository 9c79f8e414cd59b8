# SPDX-License-Identifier: Apache-2.0
"""What checked runs report: synchronisation that was taken out, and mistakes of programs at their source line."""

import inspect
import pathlib
import re

import cases
import kiln.language as T
import numpy as np
import pytest
from data import MAKERS, random_array

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


# Kinds that are about two statements, and kinds that are about memory or registers.
TWO = {"race", "not waited for", "no proxy fence", "mbarrier", "registers in flight"}
PLACED = TWO | {"uninitialised read", "out of bounds", "misaligned"}


def missing(found):
    """What a finding of a compiled program does not name though it could."""
    fields = [] if found["statement"] > 0 else ["its statement"]
    alone = re.search(r"\bend(s|ed)\b|none was initialised", found["message"])  # nothing stands against it
    if found["kind"] in TWO and not alone and found["other"] == 0:
        fields.append("the other statement")
    if found["kind"] in PLACED and not (found["buffer"] and found["buffer"] in found["message"]):
        fields.append("the buffer")
    if not re.search(r"in thread \d+ of block \(\d+, \d+, \d+\)", found["message"]):
        fields.append("the thread")
    return fields


def prepare(emulator, case):
    inputs, output, _ = MAKERS[case[2]](np.random.default_rng(7), **case[3])
    return emulator.module(case[1].serialized), inputs, output


def test_missing_synchronisation_is_reported(emulator, record_property):
    """Each barrier and wait of each kernel is left out alone, each wait also made one group weaker.

    A mutant counts as reported where one of two seeds finds something.
    """
    reported, survivors, equivalent = 0, [], 0
    for target in TARGETS:
        for case in cases.mutated() + (cases.rings() + cases.pairs() if target == "emu:sm_90a" else []):
            module, inputs, output = prepare(emulator, case)
            keys = {"check": 1, "stream_k": 1 if case[0].startswith("pair") else 0}  # never, where blocks would rather share tiles
            clean = emulator.run(module, target, inputs, output, **keys)
            assert clean["mutants"] > 0 and not clean["findings"]
            for mutant in range(clean["mutants"]):
                answer = emulator.run(module, target, inputs, output, seeds=2, mutant=mutant, **keys)
                for found in answer["findings"]:
                    assert not missing(found), (missing(found), found)
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
    kernels = [cases.product("gemm", (64, 64, 128), "float16", "float16"), cases.attention_case(1, 128, 1, 64), cases.mutated()[7]]
    hopper = [cases.rings()[0], cases.attention_case(1, 256, 1, 64, causal=True)]
    for case in kernels + (hopper if target == "emu:sm_90a" else []):
        module, inputs, output = prepare(emulator, case)
        answer = emulator.run(module, target, inputs, output, check=1, seed=0, seeds=SEEDS)
        assert answer["finished"] and not answer["findings"], (case[0], answer["findings"])
        assert case not in hopper or answer["tensor_loads"] > 0, f"{case[0]}: the loads stayed with the threads that compute"
        assert answer["different"] == 1, f"{case[0]}: the result depends on the order of the threads"


def overlapping_rows():
    """Under a condition that no compiler can settle: what certainly meets is refused."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A, tile)
            for i, j in T.Parallel(64, 64):
                if A[i, j] < 1e6:
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
                if A[0, 0] < 1e6:
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


def into_the_neighbour():
    """Both tiles are as large, so that one of the two reads leaves its tile for the other."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            first, second = T.alloc_shared((64, 64), "float32"), T.alloc_shared((64, 64), "float32")
            T.copy(A, first)
            T.copy(A, second)
            for i, j in T.Parallel(64, 64):
                if A[0, 0] < 1e6:
                    C[i, j] = first[i + 1, j]  # planted
            for i, j in T.Parallel(64, 64):
                C[i, j] = second[i, j]

    return program.with_outputs(-1)


def race_in_a_pinned_pipeline():
    """A row that all threads write, used through a pipeline whose stages the user chose."""
    @T.prim_func
    def program(A: T.Tensor((256, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile, row = T.alloc_shared((64, 64), "float32"), T.alloc_shared((64,), "float32")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            for k in T.Pipelined(4, num_stages=3):
                T.copy(A[k * 64, 0], tile)
                for i, j in T.Parallel(64, 64):
                    if tile[i, j] < 1e6:
                        row[j] = tile[i, j]  # planted
                for i, j in T.Parallel(64, 64):
                    total[i, j] += row[j]
            T.copy(total, C)

    return program.with_outputs(-1)


def one_column_too_far():
    """Inside of the tile's bytes: the next row's first element."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A, tile)
            for i, j in T.Parallel(63, 64):
                if A[0, 0] < 1e6:
                    C[i, j] = tile[i, j + 1]  # planted

    return program.with_outputs(-1)


def columns_written_too_far():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            for i, j in T.Parallel(63, 64):
                if A[0, 0] < 1e6:
                    tile[i, j + 4] = A[i, j]  # planted
            T.copy(tile, C)

    return program.with_outputs(-1)


def part_of_a_tile_too_far():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(4, threads=128) as bx:
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A, tile)
            if A[0, 0] < 1e6:
                T.copy(tile[0:16, bx * 20 : bx * 20 + 16], C[bx * 16 : bx * 16 + 16, 0:16])  # planted

    return program.with_outputs(-1)


def operand_too_far():
    """A product that takes its operand from beyond the tile's last column."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(4, threads=128) as bx:
            tile, total = T.alloc_shared((64, 64), "float16"), T.alloc_fragment((64, 64), "float32")
            T.copy(A, tile)
            T.clear(total)
            for k in T.serial(2):
                if A[0, 0] < 1e6:
                    T.gemm(tile[0:64, (bx + k) * 16 : (bx + k) * 16 + 16], tile[0:16, 0:64], total)  # planted
            for i, j in T.Parallel(16, 64):
                C[bx * 16 + i, j] = 1.0

    return program.with_outputs(-1)


def local_too_far():
    """Far beyond the thread's own memory."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            few = T.alloc_local((4,), "float32")
            for i in T.serial(8):
                if A[0, 0] < 1e6:
                    few[i * 1000000] = A[i, 0]  # planted
            C[0, 0] = few[0]

    return program.with_outputs(-1)


def local_read_too_far():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            few = T.alloc_local((4,), "float32")
            for i in T.serial(4):
                few[i] = A[i, 0]
            for i, j in T.Parallel(64, 64):
                if A[0, 0] < 1e6:
                    C[i, j] = few[i]  # planted

    return program.with_outputs(-1)


def left_by_another_tile():
    """The second tile lies where the first did, whose values are still there."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            first, second = T.alloc_shared((64, 64), "float32"), T.alloc_shared((64, 64), "float32")
            values = T.alloc_fragment((64, 64), "float32")
            T.copy(A, first)
            T.copy(first, values)
            for i, j in T.Parallel(32, 64):
                second[i, j] = values[i, j]
            T.copy(second, C)  # planted

    return program.with_outputs(-1)


def left_by_an_earlier_iteration():
    """Each iteration has a tile of its own, and only the first writes all of it."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            for k in T.serial(2):
                tile = T.alloc_shared((32, 64), "float32")
                if k == 0:
                    T.copy(A[0:32, :], tile)
                else:
                    T.copy(A[32:48, :], tile[0:16, :])
                T.copy(tile, C[k * 32 : k * 32 + 32, :])  # planted

    return program.with_outputs(-1)


def blocks_share_a_workspace():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        W = T.alloc_global((4, 64), "float32")
        with T.Kernel(2, threads=128) as bx:
            for j in T.Parallel(64):
                W[2, j] = A[bx, j]  # planted
        with T.Kernel(1, threads=128):
            for i, j in T.Parallel(64, 64):
                C[i, j] = W[2, j]

    return program.with_outputs(-1)


def blocks_write_what_others_read():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(4, threads=128) as bx:
            row = T.alloc_fragment((64,), "float32")
            for j in T.Parallel(64):
                row[j] = C[63, j]
            for j in T.Parallel(64):
                C[bx, j] = row[j] + A[bx, j]
            if bx == 3:
                for j in T.Parallel(64):
                    C[63, j] = row[j] + 1.0  # planted

    return program.with_outputs(-1)


def blocks_write_one_value():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(4, threads=128) as bx:
            for i, j in T.Parallel(64, 64):
                C[i, j] = 1.0  # planted

    return program.with_outputs(-1)


def local_never_written():
    """One element of a thread's array is left out, by some threads."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            few = T.alloc_local((2, 4), "float32")
            for i in T.serial(8):
                if i != 6 or tx % 2 == 0:
                    few[i // 4, i % 4] = A[i, 0]
            for i, j in T.Parallel(64, 64):
                C[i, j] = few[1, j % 4]  # planted

    return program.with_outputs(-1)


# The kind, what the message speaks of, and the buffer.
PLANTED = [(overlapping_rows, "race", "tile[0, ", "tile"), (one_row_too_far, "out of bounds", "reads tile[64, ", "tile"),
           (blocks_share_an_output, "race", "of block (", "tensor 1"), (never_written, "uninitialised read", "tile[", "tile"),
           (into_the_neighbour, "out of bounds", "reads first[64, ", "first"), (race_in_a_pinned_pipeline, "race", "row[", "row"),
           (one_column_too_far, "out of bounds", "reads tile[", "tile"), (columns_written_too_far, "out of bounds", "writes tile[0, 64]", "tile"),
           (part_of_a_tile_too_far, "out of bounds", "index 6", "tile"), (operand_too_far, "out of bounds", "of dimension 1, which has 64", "tile"),
           (local_too_far, "out of bounds", "writes few[1000000]", "few"),
           (local_read_too_far, "out of bounds", "of dimension 0, which has 4", "few"),
           (local_never_written, "uninitialised read", "of few[1, 2], which nobody wrote", "few"),
           (left_by_another_tile, "uninitialised read", "(second[", "second"),
           (left_by_an_earlier_iteration, "uninitialised read", "(tile[", "tile"),
           (blocks_share_a_workspace, "race", "of workspace 0[2, ", "workspace 0"), (blocks_write_what_others_read, "race", "of block (", "tensor 1"),
           (blocks_write_one_value, "race", "of block (", "tensor 1")]
# What is known of an index without its memory being watched.
# Their indices are under a condition that only the data decide: what certainly is outside, the compiler refuses.
BEYOND = [one_row_too_far, into_the_neighbour, one_column_too_far, columns_written_too_far, part_of_a_tile_too_far, operand_too_far, local_too_far,
          local_read_too_far]


def planted_inputs(build):
    rows = 256 if "pipeline" in build.__name__ else 64
    return [(random_array(np.random.default_rng(1), (rows, 64), "float32"), "float32")]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("check", [0, 1], ids=["plain", "checked"])
@pytest.mark.parametrize("build", [planted[0] for planted in PLANTED if planted[0] not in BEYOND], ids=lambda build: build.__name__)
def test_the_same_seed_is_the_same_run(emulator, target, build, check):
    """Results and reports, whatever runs the blocks."""
    module = emulator.module(build().serialized)
    for seed in (0, 1, 6):
        runs = []
        for threads in (1, 2, 4):
            for _ in range(2):
                answer = emulator.run(module, target, planted_inputs(build), ((64, 64), "float32"), check=check, seed=seed, threads=threads)
                runs.append((answer["finished"], answer["findings"], answer["result"].tobytes() if answer["finished"] else b""))
        assert all(run == runs[0] for run in runs[1:]), f"seed {seed}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("check", [0, 1], ids=["plain", "checked"])
def test_registers_that_nobody_set_show(emulator, target, check):
    """A sum that starts from what its accumulators hold, a local array and a variable: NaN, not zeros by chance."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32"), D: T.Tensor((2, 64), "float32")):
        with T.Kernel(1, threads=128):
            a, c = T.alloc_shared((64, 64), "float16"), T.alloc_fragment((64, 64), "float32")
            few, one = T.alloc_local((4,), "float32"), T.alloc_var("float32")
            T.copy(A, a)
            T.gemm(a, a, c)
            T.copy(c, C)
            for i in T.Parallel(64):
                D[0, i] = few[i % 4]
                D[1, i] = one

    given = [(np.ones((64, 64), np.float16), "float16"), (np.zeros((64, 64), np.float32), "float32"), (np.zeros((2, 64), np.float32), "float32")]
    (_, product, others), answer = emulator.call(emulator.module(program.serialized), target, given, check=check)
    assert answer["finished"] and np.isnan(product).all() and np.isnan(others).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("check", [0, 1], ids=["plain", "checked"])
def test_atomics_of_two_kinds_are_the_same_run(emulator, target, check):
    """Of integers too, a sum and a maximum in another order give another result."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "int32"), C: T.Tensor((64, 64), "int32")):
        with T.Kernel(64, threads=64) as bx:
            for i, j in T.Parallel(64, 64):
                if (A[i, j] + bx) % 2 == 0:
                    T.atomic_add(C[i, j], bx)
                else:
                    T.atomic_max(C[i, j], 1000 + bx * (j % 7))

    module, numbers = emulator.module(program.serialized), np.arange(4096, dtype=np.int32).reshape(64, 64)
    for seed in (0, 3):
        results = set()
        for threads in (1, 2, 4, 4, 4):
            (_, after), answer = emulator.call(module, target, [(numbers, "int32"), (np.zeros_like(numbers), "int32")], check=check, seed=seed,
                                               threads=threads)
            assert answer["finished"] and not answer["findings"]
            results.add(after.tobytes())
        assert len(results) == 1, f"seed {seed}"


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_of_a_loop_that_is_written_in_each_iteration_is_clean(emulator, target):
    """One that the loop allocates, and one from before it that iterations fill together."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            whole = T.alloc_shared((64, 64), "float32")
            for k in T.serial(4):
                tile = T.alloc_shared((16, 64), "float32")
                T.copy(A[k * 16, 0], tile)
                for i, j in T.Parallel(16, 64):
                    whole[k * 16 + i, j] = tile[15 - i, j]
            T.copy(whole, C)

    data = random_array(np.random.default_rng(1), (64, 64), "float32")
    answer = emulator.run(emulator.module(program.with_outputs(-1).serialized), target, [(data, "float32")], ((64, 64), "float32"), check=1, seeds=2)
    assert answer["finished"] and not answer["findings"], answer["findings"]
    assert np.array_equal(answer["result"], data.reshape(4, 16, 64)[:, ::-1].reshape(64, 64))


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_of_a_loop_that_conditions_write_is_clean(emulator, target):
    """What a pass makes of the two copies is of neither."""
    @T.prim_func
    def program(A: T.Tensor((64, 128), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            n = T.alloc_var("int32", 0)
            while n < 2:
                a, c = T.alloc_shared((64, 64), "float16"), T.alloc_fragment((64, 64), "float32")
                T.clear(c)
                for k in T.serial(2):
                    if k == 0:
                        T.copy(A[0, k * 64], a)
                    else:
                        T.copy(A[0, k * 64], a)
                    T.gemm(a, a, c)
                T.copy(c, C)
                n += 1

    data = random_array(np.random.default_rng(1), (64, 128), "float16")
    answer = emulator.run(emulator.module(program.with_outputs(-1).serialized), target, [(data, "float16")], ((64, 64), "float32"), check=1, seeds=2)
    assert answer["finished"] and not answer["findings"], answer["findings"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("build,kind,what,buffer", PLANTED, ids=[planted[0].__name__ for planted in PLANTED])
def test_planted_mistake_is_found_at_its_line(emulator, target, build, kind, what, buffer):
    lines, first = inspect.getsourcelines(build)
    line = first + next(i for i, text in enumerate(lines) if "# planted" in text)
    answer = emulator.run(emulator.module(build().serialized), target, planted_inputs(build), ((64, 64), "float32"), check=1)
    assert answer.get("findings"), answer.get("error", "nothing was found")
    found = answer["findings"][0]
    assert found["kind"] == kind, found
    assert what in found["message"] and re.search(r"in thread \d+ of block \(\d, 0, 0\)", found["message"]), found
    assert buffer in (None, found["buffer"]) and found["address"] + found["element"] > 0, found
    assert not missing(found), (missing(found), found)
    assert re.search(rf"{re.escape(pathlib.Path(__file__).name)}:{line}\b", found["message"]), (line, found)


@pytest.mark.parametrize("check", [0, 1])
@pytest.mark.parametrize("target", TARGETS)
def test_what_a_condition_leaves_out_is_not_read(emulator, target, check):
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile, few = T.alloc_shared((64, 64), "float32"), T.alloc_local((4,), "float32")
            T.copy(A, tile)
            for i in T.serial(4):
                few[i] = A[i, 0]
            for i, j in T.Parallel(64, 64):
                if j > 0 and tile[i, j - 1] > 0.0:
                    C[i, j] = T.if_then_else(j < 63, tile[i, j + 1], 0.0)
                else:
                    C[i, j] = T.if_then_else(i < 4, few[i], 2.0)

    data = random_array(np.random.default_rng(1), (64, 64), "float32")
    answer = emulator.run(emulator.module(program.with_outputs(-1).serialized), target, [(data, "float32")], ((64, 64), "float32"), check=check)
    assert answer["finished"] and not answer["findings"], answer["findings"]
    positive = np.pad(data, ((0, 0), (1, 0)))[:, :64] > 0
    few = np.where(np.arange(64) < 4, data[:, 0], 2.0)[:, None]
    assert np.array_equal(answer["result"], np.where(positive, np.pad(data, ((0, 0), (0, 1)))[:, 1:], few))


def test_a_threads_own_memory_may_be_large(emulator):
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=32):
            many = T.alloc_local((100000,), "float32")
            for i in T.serial(100000):
                many[i] = A[i % 64, 1]
            C[0, 0] = many[99999]

    data = random_array(np.random.default_rng(1), (64, 64), "float32")
    answer = emulator.run(emulator.module(program.with_outputs(-1).serialized), "emu:sm_80", [(data, "float32")], ((64, 64), "float32"))
    assert answer["finished"] and answer["result"][0, 0] == data[99999 % 64, 1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("build", BEYOND, ids=lambda build: build.__name__)
def test_an_index_beyond_its_buffer_is_found_in_plain_runs(emulator, target, build):
    module = emulator.module(build().serialized)
    plain, checked = (emulator.run(module, target, planted_inputs(build), ((64, 64), "float32"), check=check, threads=1)["findings"]
                      for check in (0, 1))
    assert plain and plain == checked
