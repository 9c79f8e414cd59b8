# SPDX-License-Identifier: Apache-2.0
"""Tensors, tiles and regions without a dimension, or without an element: every statement takes them as any other."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
N = 8


def results(emulator, program, target, *arrays):
    """Every array after the run."""
    dtypes = [(array, str(array.dtype)) for array in arrays]
    after, answer = emulator.call(emulator.module(program.serialized), target, dtypes, check=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    return after


def filled(*shape, value=3.0, dtype=np.float32):
    return np.full(shape, value, dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("space", ["shared", "fragment", "local"])
def test_a_tile_without_dimensions(emulator, target, space):
    @T.prim_func
    def program(A: T.Tensor((), "float32"), B: T.Tensor((), "float32"), C: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=64):
            tile = getattr(T, f"alloc_{space}")((), "float32")
            one = T.alloc_shared((1,), "float32")
            T.copy(A, tile)
            T.copy(tile, B)
            T.copy(A, one)
            T.copy(one, C)

    _, b, c = results(emulator, program, target, filled(value=5.0), filled(), filled(1))
    assert b == 5 and c == 5


@pytest.mark.parametrize("target", TARGETS)
def test_fill_reduce_and_elements_of_tiles_without_dimensions(emulator, target):
    @T.prim_func
    def program(A: T.Tensor((N,), "float32"), B: T.Tensor((), "float32"), C: T.Tensor((), "float32")):
        with T.Kernel(1, threads=64):
            row, total = T.alloc_fragment((N,), "float32"), T.alloc_fragment((), "float32")
            tile = T.alloc_shared((), "float32")
            T.copy(A, row)
            T.reduce_sum(row, total, dim=0)
            T.copy(total, B)
            T.fill(tile, 2.0)
            for i in T.Parallel(N):
                T.atomic_add(tile[()], row[i])
            T.copy(tile, C)

    a = np.arange(N, dtype=np.float32)
    _, b, c = results(emulator, program, target, a, filled(), filled())
    assert b == a.sum() and c == a.sum() + 2


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(0,), (0, N), (N, 0)])
@pytest.mark.parametrize("space", ["shared", "fragment"])
def test_copies_and_fills_of_nothing(emulator, target, shape, space):
    @T.prim_func
    def program(A: T.Tensor(shape, "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            tile = getattr(T, f"alloc_{space}")(shape, "float32")
            rest = T.alloc_shared((N,), "float32")
            T.copy(A, tile)
            T.fill(tile, 1.0)
            T.copy(tile, A)
            T.fill(rest, 4.0)
            T.copy(rest, B)

    _, b = results(emulator, program, target, filled(*shape), filled(N))
    assert (b == 4).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind, identity", [("sum", 0.0), ("max", -np.inf), ("min", np.inf), ("abssum", 0.0), ("absmax", 0.0)])
@pytest.mark.parametrize("clear", [True, False])
def test_a_reduction_of_nothing(emulator, target, kind, identity, clear):
    @T.prim_func
    def program(B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            tile, result = T.alloc_fragment((N, 0), "float32"), T.alloc_fragment((N,), "float32")
            T.fill(result, 7.0)
            T.reduce(tile, result, kind, 1, clear=clear)
            T.copy(result, B)

    (b,) = results(emulator, program, target, filled(N))
    assert (b == (identity if clear else 7.0)).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m, n, k", [(16, 16, 0), (0, 16, 16), (16, 0, 16)])
@pytest.mark.parametrize("clear", [True, False])
def test_a_product_of_nothing(emulator, target, m, n, k, clear):
    @T.prim_func
    def program(C: T.Tensor((m, n), "float32"), D: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            a, b = T.alloc_shared((m, k), "float16"), T.alloc_shared((k, n), "float16")
            c, rest = T.alloc_fragment((m, n), "float32"), T.alloc_shared((N,), "float32")
            T.fill(c, 7.0)
            T.gemm(a, b, c, clear_accum=clear)
            T.copy(c, C)
            T.fill(rest, 4.0)
            T.copy(rest, D)

    c, d = results(emulator, program, target, filled(m, n), filled(N))
    assert (c == (0.0 if clear else 7.0)).all() and (d == 4).all()


@pytest.mark.parametrize("target", TARGETS)
def test_elements_of_nothing_are_never_reached(emulator, target):
    @T.prim_func
    def program(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((0,), "float32")
            for i in T.serial(B[0]):
                tile[i] = 1.0
                A[i] = tile[i]
            A[1] = 5.0

    a, _ = results(emulator, program, target, filled(N), np.zeros(N, np.int32))
    assert list(a) == [3, 5, *[3] * (N - 2)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("space", ["shared", "fragment", "local"])
@pytest.mark.parametrize("one, other", [((1,), ()), ((), (1,)), ((1, 1), ()), ((), (1, 1, 1)), ((), ())])
def test_one_element_under_another_shape(emulator, target, space, one, other):
    at, there = (0,) * len(one), (0,) * len(other)

    @T.prim_func
    def program(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((), "float32")):
        with T.Kernel(1, threads=64):
            tile = getattr(T, f"alloc_{space}")(one, "float32")
            again = T.reshape(tile, other)
            T.fill(tile, 4.0)
            B[0] = again[there]
            again[there] = A[5]
            B[1] = tile[at]
            T.copy(C, tile)
            for i in T.serial(2, 2 + N // 4):
                B[i] = again[there] + T.reshape(C, (1,))[0]

    _, b, _ = results(emulator, program, target, np.arange(N, dtype=np.float32), filled(N), filled(value=7.0))
    assert list(b) == [4, 5, 14, 14, 3, 3, 3, 3]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("one, other", [((0, 4), (0,)), ((0,), (4, 0)), ((4, 0), (0, 4)), ((0, 3), (2, 0, 5)), ((0,), (0,))])
def test_nothing_under_another_shape(emulator, target, one, other):
    @T.prim_func
    def program(A: T.Tensor(one, "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared(one, "float32")
            for memory in (tile, A):
                again = T.reshape(memory, other)
                T.fill(again, 1.0)
                for index in T.Parallel(*other):
                    again[index] = 2.0
            T.copy(A, tile)
            B[0] = 5.0

    _, b = results(emulator, program, target, filled(*one), filled(N))
    assert b[0] == 5
