# SPDX-License-Identifier: Apache-2.0
"""Atomic operations on one element: outside of parallel loops each thread that comes to one does it, as in TileLang."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ("emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100")
THREADS = 96


@pytest.mark.parametrize("target", TARGETS)
def test_each_thread_that_comes_does_it(call, target):
    @T.prim_func
    def program(Sum: T.Tensor((8,), "int32"), Wide: T.Tensor((4,), "float32"), One: T.Tensor((4,), "float32")):
        with T.Kernel(2, threads=THREADS):
            tx = T.get_thread_binding()
            T.atomic_add(Sum[0], 1)
            if tx == 5:
                T.atomic_add(Sum[1], 1)
            if tx < 40:
                T.atomic_add(Sum[2], 1)
            for _ in T.serial(3):
                T.atomic_add(Sum[3], 2)
            for i in T.Parallel(10):
                T.atomic_add(Sum[4], i)
            T.atomic_max(Sum[5], tx)
            T.atomic_addx4(Wide[0], One[0])

    ones = np.arange(1, 5, dtype=np.float32)
    total, wide, _ = call(program, target, np.zeros(8, np.int32), np.zeros(4, np.float32), ones)
    assert list(total) == [2 * THREADS, 2, 80, 12 * THREADS, 90, THREADS - 1, 0, 0]
    assert list(wide) == list(2 * THREADS * ones)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_that_names_no_thread_has_them_all_the_same(call, target):
    @T.prim_func
    def program(Sum: T.Tensor((1,), "int32")):
        with T.Kernel(3, threads=THREADS):
            T.atomic_add(Sum[0], 1)

    (total,) = call(program, target, np.zeros(1, np.int32))
    assert total[0] == 3 * THREADS


@pytest.mark.parametrize("target", TARGETS)
def test_one_thread_adds_what_the_block_has_summed(call, target):
    @T.prim_func
    def program(A: T.Tensor((4, 64), "float32"), Sum: T.Tensor((1,), "float32")):
        with T.Kernel(4, threads=64) as bx:
            row, total = T.alloc_fragment((1, 64), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(A[bx : bx + 1, 0:64], row)
            T.reduce_sum(row, total, dim=1)
            if T.get_thread_binding() == 0:
                T.atomic_add(Sum[0], total[0])

    a = np.random.default_rng().integers(0, 100, (4, 64)).astype(np.float32)
    _, total = call(program, target, a, np.zeros(1, np.float32))
    assert total[0] == a.sum()


@pytest.mark.parametrize("target", TARGETS)
def test_each_thread_counts_in_shared_memory(call, target):
    @T.prim_func
    def program(Out: T.Tensor((2,), "int32")):
        with T.Kernel(1, threads=THREADS):
            counts = T.alloc_shared((2,), "int32")
            T.clear(counts)
            T.atomic_add(counts[1], 1)
            T.copy(counts, Out)

    (out,) = call(program, target, np.zeros(2, np.int32))
    assert list(out) == [0, THREADS]


@pytest.mark.parametrize("target", TARGETS)
def test_an_array_that_all_threads_hold_alike_is_added_once(call, target):
    @T.prim_func
    def program(A: T.Tensor((3,), "float32"), B: T.Tensor((3,), "float32")):
        with T.Kernel(2, threads=THREADS):
            mine = T.alloc_local((3,), "float32")
            T.copy(A, mine)
            T.atomic_add(B, mine)

    a = np.array([1, 2, 4], np.float32)
    np.testing.assert_array_equal(call(program, target, a, np.zeros(3, np.float32))[1], 2 * a)


def test_an_array_that_differs_between_threads_is_not_added_as_a_tile(emulator):
    @T.prim_func
    def program(B: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=THREADS):
            mine = T.alloc_local((1,), "int32")
            mine[0] = T.get_thread_binding()
            T.atomic_add(B, mine)

    _, answer = emulator.call(emulator.module(program.serialized), "emu:sm_80", [(np.zeros(1, np.int32), "int32")])
    assert "may differ between" in answer["error"], answer
