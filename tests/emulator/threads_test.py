# SPDX-License-Identifier: Apache-2.0
"""What single threads do: blocks of threads in two and three dimensions, and what only some of them may."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]


def call(emulator, program, target, *arrays):
    after, answer = emulator.call(emulator.module(program.serialized), target, [(a, str(a.dtype)) for a in arrays], check=1)
    if "error" in answer:
        return answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    return after


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block", [(128,), (32, 4), (4, 32), (8, 4, 4), (1, 64), (1, 1, 64), (64, 1, 2), (16, 8, 1)])
def test_threads_of_every_dimension(emulator, target, block):
    x, y, z = [*block, 1, 1][:3]

    @T.prim_func
    def program(A: T.Tensor((z, y, x), "int32"), B: T.Tensor((z, y, x, 3), "int32")):
        with T.Kernel(1, threads=block):
            tx, ty, tz = T.get_thread_bindings()
            assert (T.get_thread_extent(0), T.get_thread_extent(1), T.get_thread_extent(2)) == (x, y, z) == tuple(T.get_thread_extents())
            A[tz, ty, tx] += 1
            B[tz, ty, tx, 0] = tx
            B[tz, ty, tx, 1] = ty
            B[tz, ty, tx, 2] = T.get_thread_binding(2)

    a, b = call(emulator, program, target, np.zeros((z, y, x), np.int32), np.full((z, y, x, 3), -1, np.int32))
    assert (a == 1).all()
    k, j, i = np.indices((z, y, x))
    np.testing.assert_array_equal(b, np.stack([i, j, k], axis=-1))


def test_a_block_has_three_dimensions():
    with pytest.raises(Exception, match="up to three along x, y and z"):
        @T.prim_func
        def four(A: T.Tensor((1,), "int32")):
            with T.Kernel(1, threads=(2, 2, 2, 2)):
                A[0] = 1
    with pytest.raises(Exception, match=r"0 \(x\), 1 \(y\) and 2 \(z\)"):
        @T.prim_func
        def other(A: T.Tensor((1,), "int32")):
            with T.Kernel(1, threads=64):
                A[0] = T.get_thread_binding(3)


def statements():
    def copy(s, r, A):
        T.copy(A, s)

    def fill(s, r, A):
        T.fill(s, 1.0)

    def loop(s, r, A):
        for i in T.Parallel(128):
            s[i] = 1.0

    def atomics(s, r, A):
        for i in T.Parallel(128):
            T.atomic_add(s[i], 1.0)

    def reduce(s, r, A):
        T.reduce_sum(s, r, dim=0)

    return [copy, fill, loop, atomics, reduce]


@pytest.mark.parametrize("target", [*TARGETS, "emu:gfx90a"])
@pytest.mark.parametrize("statement", statements(), ids=lambda f: f.__name__)
@pytest.mark.parametrize("condition", ["warps", "data", "left"])
def test_tile_operations_of_threads_that_are_no_known_range_are_refused(emulator, target, statement, condition):
    @T.prim_func
    def program(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s, r = T.alloc_shared((128,), "float32"), T.alloc_fragment((1,), "float32")
            T.fill(s, 0.0)
            if condition == "left":
                for i in T.serial(4):
                    if i == tx:
                        T.loop_break()
                    statement(s, r, A)
            else:
                if {"warps": tx % 64 < 32, "data": A[tx] > 0}[condition]:
                    statement(s, r, A)
            T.copy(s, B)

    error = call(emulator, program, target, *np.zeros((2, 128), np.float32))
    assert isinstance(error, str) and "only some threads reach" in error, error


@pytest.mark.parametrize("target", TARGETS)
def test_single_threads_write_under_any_condition(emulator, target):
    @T.prim_func
    def program(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s = T.alloc_shared((128,), "float32")
            T.copy(A, s)
            if tx < 64:
                s[tx] = 5.0
            T.copy(s, B)

    a, b = call(emulator, program, target, np.arange(128, dtype=np.float32), np.zeros(128, np.float32))
    assert (b == np.where(np.arange(128) < 64, 5, a)).all()
