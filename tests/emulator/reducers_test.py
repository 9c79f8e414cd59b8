# SPDX-License-Identifier: Apache-2.0
"""Reducers: what loops contribute, in both forms of the language, against numpy."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
OPS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor}
COMBINE = {"sum": lambda a, b: a + b, "max": T.max, "min": T.min, "bitand": T.bitwise_and, "bitor": T.bitwise_or, "bitxor": T.bitwise_xor}


def numbers(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op, dtype", [("sum", "float32"), ("max", "float16"), ("min", "int32"), ("bitand", "int32"), ("bitor", "int32"),
                                       ("bitxor", "int32")])
@pytest.mark.parametrize("plain", [False, True])
def test_rows_over_several_tiles(call, target, op, dtype, plain):
    """Each contribution counts once, however the loop's iterations are spread over threads."""
    rows, columns, block = 12, 80, 40

    @T.prim_func
    def program(A: T.Tensor((rows, columns), dtype), B: T.Tensor((rows,), dtype)):
        with T.Kernel(1, threads=128):
            acc = T.alloc_reducer((rows,), dtype, op=op)
            if plain:
                T.fill(acc, A[0, 0])
            else:
                T.reducer_init(acc, A[0, 0])
            tile = T.alloc_fragment((rows, block), dtype)
            for k in T.serial(columns // block):
                T.copy(A[0, k * block], tile)
                for i, j in T.Parallel(rows, block):
                    if plain:
                        acc[i] = COMBINE[op](acc[i], tile[i, j])
                    else:
                        T.reducer_update(acc[i], tile[i, j])
            result = T.alloc_fragment((rows,), dtype)
            if plain:
                T.finalize_reducer(acc)
                T.copy(acc, result)
            else:
                T.finalize_reducer(acc, result)
            T.copy(result, B)

    a = numbers((rows, columns), dtype)
    _, b = call(program, target, a, np.zeros(rows, dtype))
    np.testing.assert_array_equal(b, OPS[op](OPS[op].reduce(a, axis=1), a[0, 0]))


@pytest.mark.parametrize("target", TARGETS)
def test_a_scalar_of_few_iterations(call, target):
    """Iterations have copies in several threads; two loops of other lengths add to one element."""

    @T.prim_func
    def program(A: T.Tensor((8,), "float32"), B: T.Tensor((16,), "float32"), C: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_fragment((8,), "float32"), T.alloc_fragment((16,), "float32")
            T.copy(A, a)
            T.copy(B, b)
            acc = T.alloc_reducer((1,), "float32", op="sum")
            T.reducer_init(acc, 100.0)
            for i in T.Parallel(8):
                T.reducer_update(acc[0], a[i])
            for j in T.Parallel(16):
                T.reducer_update(acc[0], b[j])
            result = T.alloc_fragment((1,), "float32")
            T.finalize_reducer(acc, result)
            if T.get_thread_binding() == 0:
                C[0] = result[0]

    a, b = np.arange(1, 9, dtype=np.float32), np.arange(1, 17, dtype=np.float32)
    assert call(program, target, a, b, np.zeros(1, np.float32))[2][0] == 36 + 136 + 100


@pytest.mark.parametrize("target", TARGETS)
def test_indices_in_another_order_and_loops_within(call, target):
    """acc[j, i] without any reduction; a serial loop within, whose variable is an index; a condition."""

    @T.prim_func
    def program(A: T.Tensor((6, 10), "int32"), B: T.Tensor((10, 6), "int32"), C: T.Tensor((1, 10), "int32"), D: T.Tensor((6,), "int32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((6, 10), "int32")
            T.copy(A, tile)
            turned, columns, few = (T.alloc_reducer(s, "int32") for s in ((10, 6), (1, 10), (6,)))
            for acc in (turned, columns, few):
                T.reducer_init(acc)
            for i, j in T.Parallel(6, 10):
                T.reducer_update(turned[j, i], tile[i, j])
                if j > 3:
                    T.reducer_update(few[i], tile[i, j])
            for i in T.Parallel(6):
                for j in T.serial(10):
                    T.reducer_update(columns[0, j], A[i, j])
            b, c, d = (T.alloc_fragment(s, "int32") for s in ((10, 6), (1, 10), (6,)))
            for acc, out, to in ((turned, b, B), (columns, c, C), (few, d, D)):
                T.finalize_reducer(acc, out)
                T.copy(out, to)

    a = numbers((6, 10), np.int32)
    _, b, c, d = call(program, target, a, np.zeros((10, 6), np.int32), np.zeros((1, 10), np.int32), np.zeros(6, np.int32))
    np.testing.assert_array_equal(b, a.T)
    np.testing.assert_array_equal(c, a.sum(axis=0, keepdims=True))
    np.testing.assert_array_equal(d, a[:, 4:].sum(axis=1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("loop", [T.serial, lambda n: T.Pipelined(n, num_stages=2)])
def test_softmax_online(call, target, loop):
    """A reducer is begun and finalized in each step, from what the last step left."""
    length, block = 256, 64

    @T.prim_func
    def program(A: T.Tensor((length,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=64):
            shared, tile = T.alloc_shared((block,), "float32"), T.alloc_fragment((block,), "float32")
            largest, total = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            largest[0] = -T.infinity("float32")
            total[0] = 0.0
            for k in loop(length // block):
                T.copy(A[k * block], shared)
                T.copy(shared, tile)
                new = T.alloc_reducer((1,), "float32", op="max")
                T.reducer_init(new, largest[0])
                for i in T.Parallel(block):
                    T.reducer_update(new[0], tile[i])
                found = T.alloc_fragment((1,), "float32")
                T.finalize_reducer(new, found)
                part = T.alloc_reducer((1,), "float32", replication="all")
                T.clear(part)
                for i in T.Parallel(block):
                    part[0] += T.exp(tile[i] - found[0])
                T.finalize_reducer(part)
                total[0] = T.exp(largest[0] - found[0]) * total[0] + part[0]
                largest[0] = found[0]
            if T.get_thread_binding() == 0:
                B[0] = T.log(total[0]) + largest[0]

    a = np.random.default_rng(1).standard_normal(length).astype(np.float32)
    _, b = call(program, target, a, np.zeros(1, np.float32))
    assert abs(b[0] - np.log(np.exp(a.astype(np.float64)).sum())) < 1e-5


@pytest.mark.parametrize("target", TARGETS)
def test_finalized_in_one_branch(call, target):
    @T.prim_func
    def program(A: T.Tensor((8,), "int32"), S: T.Tensor((2,), "int32"), B: T.Tensor((2,), "int32")):
        with T.Kernel(2, threads=128) as bx:
            acc = T.alloc_reducer((1,), "int32")
            T.reducer_init(acc)
            if S[bx] < 0:
                if T.get_thread_binding() == 0:
                    B[bx] = 7
            else:
                for i in T.Parallel(8):
                    T.reducer_update(acc[0], A[i])
                result = T.alloc_fragment((1,), "int32")
                T.finalize_reducer(acc, result)
                if T.get_thread_binding() == 0:
                    B[bx] = result[0]

    b = call(program, target, np.arange(8, dtype=np.int32), np.array([-1, 1], np.int32), np.zeros(2, np.int32))[2]
    assert b.tolist() == [7, 28]
