# SPDX-License-Identifier: Apache-2.0
"""Blocks whose threads are no whole number of warps: just so many threads run each statement, and tile operations are as ever."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
THREADS = [1, 4, 8, 16, 24, 48, 100, (4, 2), (3, 7, 5)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", THREADS)
def test_each_thread_once(call, target, threads):
    count = int(np.prod(threads))

    @T.prim_func
    def program(A: T.Tensor((2, 1024), "int32"), Sum: T.Tensor((1,), "int32"), Shared: T.Tensor((2, count), "int32")):
        with T.Kernel(2, threads=threads) as bx:
            tx, ty, tz = T.get_thread_bindings()
            x, y, z = T.get_thread_extents()
            assert x * y * z == count
            thread = tx + x * (ty + y * tz)
            A[bx, thread] = thread + 1
            T.atomic_add(Sum[0], thread + 1)
            tile = T.alloc_shared((count,), "int32")
            tile[thread] = thread
            Shared[bx, thread] = tile[count - 1 - thread]

    a, total, shared = call(program, target, np.zeros((2, 1024), np.int32), np.zeros(1, np.int32), np.zeros((2, count), np.int32))
    assert total[0] == count * (count + 1)
    np.testing.assert_array_equal(a, [np.where(np.arange(1024) < count, np.arange(1024) + 1, 0)] * 2)
    np.testing.assert_array_equal(shared, [np.arange(count)[::-1]] * 2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", THREADS)
def test_tile_operations(call, target, threads):
    m, n, k, steps = 16, 24, 16, 3

    @T.prim_func
    def program(A: T.Tensor((m, k * steps), "float16"), B: T.Tensor((k * steps, n), "float16"), C: T.Tensor((m, n), "float32"),
                R: T.Tensor((m,), "float32"), S: T.Tensor((m, n), "float32")):
        with T.Kernel(1, threads=threads):
            a, b = T.alloc_shared((m, k), "float16"), T.alloc_shared((k, n), "float16")
            c, rows, scanned = T.alloc_fragment((m, n), "float32"), T.alloc_fragment((m,), "float32"), T.alloc_fragment((m, n), "float32")
            T.clear(c)
            for step in T.Pipelined(steps, num_stages=2):
                T.copy(A[0, step * k], a)
                T.copy(B[step * k, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)
            T.reduce_max(c, rows, dim=1)
            T.copy(rows, R)
            T.cumsum(c, scanned, dim=1)
            T.copy(scanned, S)

    random = np.random.default_rng(2)
    a, b = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k * steps), (k * steps, n)))
    zeros = [np.zeros(shape, np.float32) for shape in ((m, n), (m,), (m, n))]
    _, _, c, r, s = call(program, target, a, b, *zeros)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(c, expected)
    np.testing.assert_array_equal(r, expected.max(axis=1))
    np.testing.assert_array_equal(s, expected.cumsum(axis=1))
