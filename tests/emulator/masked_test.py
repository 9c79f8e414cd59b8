# SPDX-License-Identifier: Apache-2.0
"""T.masked, and stores under conditions, on each family of targets, checked: results against numpy's, and nothing found of the elements that
a mask leaves out."""

import kiln.language as T
import numpy as np
import pytest
from cases import TARGETS

DTYPES = ["float32", "float16", "int8"]
MASKS = {  # of j: the program's, numpy's
    "below a size": (lambda j, n: j < n, lambda j, n: j < n),
    "from a number on": (lambda j, n: j >= 100, lambda j, n: j >= 100),
    "of an odd number": (lambda j, n: j > 36, lambda j, n: j > 36),
    "of each element": (lambda j, n: j % 3 == 1, lambda j, n: j % 3 == 1),
    "of eight": (lambda j, n: j // 8 != 5, lambda j, n: j // 8 != 5),
    "of the launch": (lambda j, n: n > 200, lambda j, n: np.full(j.shape, n > 200)),
    "both": (lambda j, n: T.And(j >= 4, j < n - 4), lambda j, n: (j >= 4) & (j < n - 4)),
}


def numbers(dtype, *shape):
    return np.random.default_rng(5).integers(1, 100, shape).astype(dtype)


@pytest.mark.parametrize("size", [256, 250, 100])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_values(call, target, dtype, mask, size):
    holds, expected = MASKS[mask]
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((n,), dtype), B: T.Tensor((256,), dtype), C: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=64):
            T.assume(n % 2 == 0)
            total = T.alloc_fragment((256,), "float32")
            for j in T.Parallel(256):
                B[j] = T.masked(holds(j, n), A[j], 7)
            for j in T.Parallel(256):
                total[j] = T.cast(T.masked(holds(j, n), A[j], j % 5) + A[j] * T.masked(j < n - 1, A[j + 1], 2), "float32")
            T.copy(total, C)

    a, j = numbers(dtype, size), np.arange(256)
    padded = np.zeros(258, dtype)
    padded[:size] = a
    where = expected(j, size)
    first = np.where(where, padded[j], np.dtype(dtype).type(7))
    with np.errstate(over="ignore"):
        factor = np.where(j < size - 1, padded[j + 1], np.dtype(dtype).type(2))
        second = (np.where(where, padded[j], (j % 5).astype(dtype)) + padded[j] * factor).astype(dtype)
    after = call(program, target, a, np.zeros(256, dtype), np.zeros(256, np.float32))
    assert np.array_equal(after[1], first)
    assert np.allclose(after[2], second.astype(np.float32), rtol=2e-3 if dtype == "float16" else 0)


@pytest.mark.parametrize("size", [256, 100])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_stores_under_a_condition(call, target, dtype, mask, size):
    """To a tensor, a shared tile and a fragment."""
    holds, expected = MASKS[mask]
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((n,), dtype), B: T.Tensor((256,), dtype), C: T.Tensor((256,), dtype)):
        with T.Kernel(1, threads=64):
            T.assume(n % 4 == 0)
            tile, held = T.alloc_shared((256,), dtype), T.alloc_fragment((256,), dtype)
            for j in T.Parallel(256):
                tile[j] = 1
                if holds(j, n):
                    tile[j] = A[j]
                    B[j] = A[j]
            for j in T.Parallel(256):
                held[j] = tile[j]
                if holds(j, n):
                    held[j] = held[j] + T.masked(j % 2 == 0, A[j], 3)
            T.copy(held, C)

    a, j = numbers(dtype, size), np.arange(256)
    padded = np.zeros(256, dtype)
    padded[:size] = a
    where, one = expected(j, size), np.dtype(dtype).type
    tile = np.where(where, padded, one(1))
    with np.errstate(over="ignore"):
        held = np.where(where, tile + np.where(j % 2 == 0, padded, one(3)), tile).astype(dtype)
    before = numbers(dtype, 256)[::-1].copy()
    after = call(program, target, a, before, np.zeros(256, dtype))
    assert np.array_equal(after[1], np.where(where, padded, before)) and np.array_equal(after[2], held)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found_outside_of_a_tile(call, target):
    """Each thread's array, a tile in shared memory and a gather, where the mask keeps the index inside."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), I: T.Tensor((64,), "int32"), C: T.Tensor((3, 64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile, index, few = T.alloc_shared((64, 64), "float32"), T.alloc_shared((64,), "int32"), T.alloc_local((4,), "float32")
            T.copy(A, tile)
            T.copy(I, index)
            for i in T.serial(4):
                few[i] = A[i, 0]
            for i, j in T.Parallel(64, 64):
                C[0, i, j] = T.masked(j > 0, tile[i, j - 1], -1.0)
            for i, j in T.Parallel(64, 64):
                C[1, i, j] = T.masked(T.And(index[j] >= 0, index[j] < 64), tile[index[j], i], -2.0)
            for i, j in T.Parallel(64, 64):
                C[2, i, j] = T.masked(i < 4, few[i], T.masked(j + 4 < 64, tile[i, j + 4], -3.0))

    a = numbers("float32", 64, 64)
    index = np.random.default_rng(2).integers(-40, 100, 64).astype(np.int32)
    i, j = np.indices((64, 64))
    inside = (index >= 0) & (index < 64)
    ahead = np.where(j + 4 < 64, np.pad(a, ((0, 0), (0, 4)))[:, 4:], -3)
    expected = [np.where(j > 0, np.roll(a, 1, 1), -1), np.where(inside[None, :], a[np.where(inside, index, 0)].T, -2),
                np.where(i < 4, a[np.minimum(i, 3), 0], ahead)]
    after = call(program, target, a, index, np.zeros((3, 64, 64), np.float32))
    assert np.array_equal(after[2], np.stack(expected).astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_mask_leaves_out_is_not_touched(emulator, target):
    """Elements that other blocks write meanwhile: a select of a tensor's elements reads them and drops them."""
    def program(choose):
        @T.prim_func
        def program(A: T.Tensor((4, 256), "float32"), S: T.Tensor((1,), "int32"), C: T.Tensor((4, 256), "float32")):
            with T.Kernel(4, threads=64) as bx:
                for j in T.Parallel(256):
                    C[bx, j] = choose(S[0] > 0, A[(bx + 1) % 4, j], 3.0)
                for j in T.Parallel(256):
                    A[bx, j] = 5.0
        return program

    tensors = [(numbers("float32", 4, 256), "float32"), (np.zeros(1, np.int32), "int32"), (np.zeros((4, 256), np.float32), "float32")]
    after, answer = emulator.call(emulator.module(program(T.masked).serialized), target, tensors, check=1)
    assert answer["finished"] and not answer["findings"], answer["findings"]
    assert (after[2] == 3).all() and (after[0] == 5).all()
    assert emulator.call(emulator.module(program(T.if_then_else).serialized), target, tensors, check=1)[1]["findings"]


@pytest.mark.parametrize("target", TARGETS)
def test_an_element_that_lies_elsewhere(call, target):
    """A tensor in an order of its own, and a view of its numbers as others."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64, 64), "float32"), D: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            T.annotate_layout({A: T.Layout(A.shape, lambda i, j: [i, 63 - j])})
            bits = T.view(B, (64,), "int32")
            for i, j in T.Parallel(64, 64):
                C[i, j] = T.masked(j > 0, A[i, j - 1], -1.0)
            for i in T.Parallel(64):
                D[i] = T.masked(i % 3 == 0, bits[i], 5)

    a, b = numbers("float32", 64, 64), numbers("float32", 64)
    after = call(program, target, a, b, np.zeros((64, 64), np.float32), np.zeros(64, np.int32))
    i, j = np.indices((64, 64))
    assert np.array_equal(after[2], np.where(j > 0, a[i, 64 - np.maximum(j, 1)], -1).astype(np.float32))
    assert np.array_equal(after[3], np.where(np.arange(64) % 3 == 0, b.view(np.int32), 5))


@pytest.mark.parametrize("k", [96, 75])
@pytest.mark.parametrize("target", TARGETS)
def test_a_product_of_masked_tiles(call, target, k):
    @T.prim_func
    def program(A: T.Tensor((80, k), "float16"), B: T.Tensor((k, 64), "float16"), C: T.Tensor((80, 64), "float32")):
        with T.Kernel(2, threads=128) as by:
            a, b, c = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16"), T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for step in T.Pipelined(T.ceildiv(k, 32), num_stages=3):
                for i, j in T.Parallel(64, 32):
                    a[i, j] = T.masked(T.And(by * 64 + i < 80, j < k - step * 32), A[by * 64 + i, step * 32 + j], 0)
                for i, j in T.Parallel(32, 64):
                    b[i, j] = T.masked(i < k - step * 32, B[step * 32 + i, j], 0)
                T.gemm(a, b, c)
            for i, j in T.Parallel(64, 64):
                if by * 64 + i < 80:
                    C[by * 64 + i, j] = c[i, j]

    a, b = numbers("float16", 80, k) / 64, numbers("float16", k, 64) / 64
    after = call(program, target, a.astype(np.float16), b.astype(np.float16), np.zeros((80, 64), np.float32))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.allclose(after[2], exact, rtol=1e-3)


def guarded(kind):
    """A mask, or what stands in for the element, that is loaded where only a condition around it keeps the index inside of the tile."""
    @T.prim_func
    def program(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32"), C: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((256,), "float32")
            T.copy(A, tile)
            for i in T.Parallel(256):
                if kind == "other":
                    C[i] = T.masked(i < 100, A[i], T.masked(tile[i - 100] > 50, B[i], 3.0))
                if kind == "select":
                    C[i] = T.if_then_else(i >= 100, T.masked(tile[i - 100] > 50, B[i], 3.0), 1.0)
                if kind == "plain":
                    C[i] = T.masked(i < 100, A[i], tile[i - 100])

    return program


@pytest.mark.parametrize("kind", ("other", "select", "plain"))
@pytest.mark.parametrize("target", ("emu:sm_80", "emu:sm_90a", "emu:gfx942"))
def test_a_mask_that_is_loaded_waits_for_the_condition_around_it(call, target, kind):
    a = np.random.default_rng().integers(1, 100, 256).astype(np.float32)
    b = a[::-1].copy()
    at = np.arange(256)
    inner = a[np.maximum(at - 100, 0)]
    given = np.where(inner > 50, b, 3)
    wanted = {"other": np.where(at < 100, a, given), "select": np.where(at >= 100, given, 1), "plain": np.where(at < 100, a, inner)}[kind]
    assert np.array_equal(call(guarded(kind), target, a, b, np.zeros(256, np.float32))[2], wanted)
