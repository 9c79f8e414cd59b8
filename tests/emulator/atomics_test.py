# SPDX-License-Identifier: Apache-2.0
"""What atomic operations give back, what they order, and those that TileLang lacks: against numpy."""

import kiln.language as T
import numpy as np
import pytest
from interpreter import Interpreter

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
DTYPES = ["int32", "uint32", "int64", "float32", "float64", "float16", "int16"]
N = 96
ORDERS = ["relaxed", "acquire", "release", "acq_rel", "seq_cst"]
CHANGES = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def of_each(change, dtype, space):
    """Each iteration changes an element of its own and stores what that was."""
    @T.prim_func
    def program(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), Old: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((N,), dtype)
            T.copy(A, s)
            for i in T.Parallel(N):
                Old[i] = change((A if space == "global" else s)[i], B[i])
            if space == "shared":
                T.copy(s, A)

    return program


def inputs(dtype):
    rng = np.random.default_rng(3)
    return rng.integers(1, 60, N).astype(dtype), rng.integers(1, 60, N).astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_the_value_from_before(call, target, dtype, space):
    a, b = inputs(dtype)
    for k, (name, becomes) in enumerate(CHANGES.items()):
        if np.dtype(dtype).kind == "f" and name in ("and", "or", "xor"):
            continue
        program = of_each(lambda x, y: getattr(T, f"atomic_{name}")(x, y, memory_order=ORDERS[k % 5], return_prev=True), dtype, space)
        after, _, old = call(program, target, a, b, np.zeros_like(a))
        np.testing.assert_array_equal(old, a)
        np.testing.assert_array_equal(after, becomes(a, b))
    after, _, old = call(of_each(lambda x, y: T.atomic_exch(x, y, "acq_rel"), dtype, space), target, a, b, np.zeros_like(a))
    assert np.array_equal(old, a) and np.array_equal(after, b)
    equal = np.where(np.arange(N) % 2, a, b)
    after, _, old = call(of_each(lambda x, y: T.atomic_cas(x, y, y + y), dtype, space), target, a, equal, np.zeros_like(a))
    assert np.array_equal(old, a) and np.array_equal(after, np.where(a == equal, equal + equal, a))
    for order in ("relaxed", "acquire", "seq_cst", "consume"):
        after, _, old = call(of_each(lambda x, y: T.atomic_load(x, order), dtype, space), target, a, b, np.zeros_like(a))
        assert np.array_equal(old, a) and np.array_equal(after, a)


@pytest.mark.parametrize("target", TARGETS)
def test_stores(call, target):
    for order in ("relaxed", "release", "seq_cst"):
        @T.prim_func
        def program(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32")):
            with T.Kernel(2, threads=64) as bx:
                for i in T.Parallel(N // 2):
                    T.atomic_store(A[bx * (N // 2) + i], B[bx * (N // 2) + i], memory_order=order)

        a, b = inputs("int32")
        assert np.array_equal(call(program, target, a, b)[0], b)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_each_thread_gets_a_number_of_its_own(call, target, space):
    @T.prim_func
    def program(Count: T.Tensor((4,), "int32"), Seen: T.Tensor((4, 256), "int32")):
        with T.Kernel(4, threads=128) as bx:
            tx = T.get_thread_binding()
            s = T.alloc_shared((1,), "int32")
            T.clear(s)
            place = T.atomic_add(Count[bx % 2] if space == "global" else s[0], 1, return_prev=True)
            Seen[bx if space == "shared" else bx % 2, place] = 1 + tx

    counts, seen = call(program, target, np.zeros(4, "int32"), np.zeros((4, 256), "int32"))
    rows = seen[:2] if space == "global" else seen[:, :128]
    assert (rows > 0).all() and all(np.array_equal(np.sort(row), np.sort(np.tile(np.arange(1, 129), len(row) // 128))) for row in rows)
    assert counts.sum() == (512 if space == "global" else 0)


@pytest.mark.parametrize("target", TARGETS)
def test_values_from_before_go_to_fragments_and_to_vectors(call, target):
    @T.prim_func
    def program(A: T.Tensor((8, 8), "float32"), B: T.Tensor((8, 8), "float32"), Old: T.Tensor((8, 8), "float32"), Sum: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=128):
            old, total = T.alloc_fragment((8, 8), "float32"), T.alloc_fragment((8,), "float32")
            for i, j in T.Parallel(8, 8):
                old[i, j] = T.atomic_add(A[i, j], B[i, j], return_prev=True)
            T.reduce_sum(old, total, dim=1)
            T.copy(total, Sum)
            for i, j in T.Parallel(8, 4):
                first, second = T.atomic_addx2(A[i, j * 2], B[i, j * 2], return_prev=True)
                Old[i, j * 2] = first
                Old[i, j * 2 + 1] = second

    a, b = np.random.default_rng(1).integers(0, 50, (2, 8, 8)).astype("float32")
    after, _, old, total = call(program, target, a, b, np.zeros_like(a), np.zeros(8, "float32"))
    np.testing.assert_array_equal(after, a + 2 * b)
    np.testing.assert_array_equal(old, a + b)
    np.testing.assert_array_equal(total, a.sum(1))


@pytest.mark.parametrize("target", TARGETS)
def test_outside_of_a_tensor_there_is_nothing(call, target):
    @T.prim_func
    def program(A: T.Tensor((40,), "int32"), Old: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                Old[i] = T.atomic_add(A[i], 1, return_prev=True) + 5

    after, old = call(program, target, np.full(40, 7, "int32"), np.zeros(64, "int32"))
    assert (after == 8).all() and np.array_equal(old, np.where(np.arange(64) < 40, 12, 5))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("blocks", [2, 5])
def test_a_block_waits_for_another(call, target, blocks):
    """Each block adds to what the block before it released, of which all its threads then see all."""
    @T.prim_func
    def program(Flag: T.Tensor((blocks + 1,), "int32"), Data: T.Tensor((blocks + 1, 200), "int32")):
        with T.Kernel(blocks, threads=128) as bx:
            tx = T.get_thread_binding()
            if tx == 0:
                while T.atomic_load(Flag[bx], "acquire") == 0:
                    pass
            for i in T.Parallel(200):
                Data[bx + 1, i] = Data[bx, 199 - i] + 1
            if tx == 0:
                T.atomic_store(Flag[bx + 1], 1, "release")

    flags, data = np.zeros(blocks + 1, "int32"), np.zeros((blocks + 1, 200), "int32")
    flags[0], data[0] = 1, np.arange(200)
    expected = data.copy()
    for k in range(blocks):
        expected[k + 1] = expected[k][::-1] + 1
    after, found = call(program, target, flags, data)
    assert (after == 1).all() and np.array_equal(found, expected)


@pytest.mark.parametrize("target", ["emu:sm_90a", "emu:gfx942"])
def test_without_an_order_it_is_a_race(emulator, target):
    @T.prim_func
    def program(Flag: T.Tensor((2,), "int32"), Data: T.Tensor((2, 64), "int32")):
        with T.Kernel(2, threads=64) as bx:
            tx = T.get_thread_binding()
            if bx == 1:
                if tx == 0:
                    while T.atomic_load(Flag[0], "relaxed") == 0:
                        pass
                for i in T.Parallel(64):
                    Data[1, i] = Data[0, i]
            else:
                for i in T.Parallel(64):
                    Data[0, i] = i
                if tx == 0:
                    T.atomic_store(Flag[0], 1, "relaxed")

    tensors = [(np.zeros(2, "int32"), "int32"), (np.zeros((2, 64), "int32"), "int32")]
    _, answer = emulator.call(emulator.module(program.serialized), target, tensors, check=1)
    assert "error" not in answer and answer["findings"], answer


@pytest.mark.parametrize("target", ["emu:sm_90a", "emu:gfx942", "emu:gfx1100"])
def test_a_lock(call, target):
    @T.prim_func
    def program(Lock: T.Tensor((1,), "int32"), Total: T.Tensor((1,), "int32")):
        with T.Kernel(8, threads=64) as bx:
            tx = T.get_thread_binding()
            if tx == 0:
                while T.atomic_cas(Lock[0], 0, 1, "acquire") != 0:
                    pass
                Total[0] = Total[0] + 1
                T.atomic_store(Lock[0], 0, "release")

    lock, total = call(program, target, np.zeros(1, "int32"), np.zeros(1, "int32"))
    assert lock[0] == 0 and total[0] == 8


@pytest.mark.parametrize("target", ["emu:sm_90a"])
def test_the_last_block_sums_up(call, target):
    """A counter says which block is the last; it sees what all others stored."""
    @T.prim_func
    def program(A: T.Tensor((6, 128), "float32"), Parts: T.Tensor((6, 128), "float32"), Count: T.Tensor((1,), "int32"),
                Out: T.Tensor((128,), "float32")):
        with T.Kernel(6, threads=128) as bx:
            tx = T.get_thread_binding()
            last = T.alloc_shared((1,), "int32")
            total = T.alloc_fragment((128,), "float32")
            for i in T.Parallel(128):
                Parts[bx, i] = A[bx, i] * 2.0
            if tx == 0:
                last[0] = T.atomic_add(Count[0], 1, "acq_rel", return_prev=True)
            if last[0] == 5:
                T.clear(total)
                for k in T.serial(6):
                    for i in T.Parallel(128):
                        total[i] += Parts[k, i]
                T.copy(total, Out)

    a = np.random.default_rng(2).integers(0, 9, (6, 128)).astype("float32")
    after = call(program, target, a, np.zeros_like(a), np.zeros(1, "int32"), np.zeros(128, "float32"))
    np.testing.assert_array_equal(after[3], 2 * a.sum(0))


@pytest.mark.parametrize("target", TARGETS)
def test_a_buffer_of_one_element_is_a_tile(call, target):
    """It is changed once; an element that is named is changed by each thread."""
    @T.prim_func
    def program(A: T.Tensor((1,), "int32"), B: T.Tensor((1,), "int32")):
        with T.Kernel(2, threads=64):
            T.atomic_add(A, 1)
            T.atomic_add(B[0], 1)

    assert [int(x[0]) for x in call(program, target, np.zeros(1, "int32"), np.zeros(1, "int32"))] == [2, 128]


def test_the_interpreter_agrees():
    a, b = inputs("int32")
    program = of_each(lambda x, y: T.atomic_xor(x, y, return_prev=True), "int32", "global")
    done = Interpreter(program, (a, b, np.zeros_like(a)), (), None)
    done.run()
    after, _, old = (done.memory[param.buffer] for param in program.params)
    assert np.array_equal(after, a ^ b) and np.array_equal(old, a)


@pytest.mark.parametrize("refused, words", [
    (lambda A, s: T.atomic_add(A[0], 1, memory_order="strong"), "it may be relaxed, consume"),
    (lambda A, s: T.atomic_load(A[0], memory_order="release"), "it may be relaxed, consume, acquire, seq_cst"),
    (lambda A, s: T.atomic_max(A, s, return_prev=True), "of a tile"), (lambda A, s: T.atomic_exch(A, 1), "index it"),
])
def test_refusals(refused, words):
    with pytest.raises((RuntimeError, TypeError), match=words):
        @T.prim_func
        def program(A: T.Tensor((8,), "int32")):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((8,), "int32")
                T.clear(s)
                refused(A, s)
