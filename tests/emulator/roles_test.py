# SPDX-License-Identifier: Apache-2.0
"""Programs whose tiles could go through a ring or leave as boxes, and some that only look so: checked runs are clean and agree with a
float64 reference, whatever the compiler makes of them."""

import kiln.language as T
import numpy as np
import pytest
from data import decode, random_array, relative_error

HALF, WIDE = "float16", "float32"
SIDE = 64


def operands(rng, m, n, k):
    a, b = random_array(rng, (m, k), HALF), random_array(rng, (n, k), HALF)
    return a, b, decode(a, HALF), decode(b, HALF)


def tile(wide, step):
    return wide[:, step * SIDE : (step + 1) * SIDE]


def load_under_a_condition(rng):
    @T.prim_func
    def program(A: T.Tensor((SIDE, 4 * SIDE), HALF), B: T.Tensor((SIDE, 4 * SIDE), HALF), C: T.Tensor((SIDE, SIDE), WIDE)):
        with T.Kernel(1, threads=128) as _:
            a, b = T.alloc_shared((SIDE, SIDE), HALF), T.alloc_shared((SIDE, SIDE), HALF)
            total = T.alloc_fragment((SIDE, SIDE), WIDE)
            T.clear(total)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * SIDE], a)
                if k < 2:
                    T.copy(B[0, k * SIDE], b)
                T.gemm(a, b, total, transpose_B=True)
            T.copy(total, C[0, 0])

    a, b, left, right = operands(rng, SIDE, SIDE, 4 * SIDE)
    return program, [(a, HALF), (b, HALF)], [(WIDE, sum(tile(left, k) @ tile(right, min(k, 1)).T for k in range(4)))]


def load_in_an_inner_loop(rng):
    @T.prim_func
    def program(A: T.Tensor((SIDE, 4 * SIDE), HALF), B: T.Tensor((SIDE, 4 * SIDE), HALF), C: T.Tensor((SIDE, SIDE), WIDE)):
        with T.Kernel(1, threads=128) as _:
            a, b = T.alloc_shared((SIDE, SIDE), HALF), T.alloc_shared((SIDE, SIDE), HALF)
            total = T.alloc_fragment((SIDE, SIDE), WIDE)
            T.clear(total)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * SIDE], a)
                for j in T.serial(2):
                    T.copy(B[0, j * SIDE], b)
                    T.gemm(a, b, total, transpose_B=True)
            T.copy(total, C[0, 0])

    a, b, left, right = operands(rng, SIDE, SIDE, 4 * SIDE)
    return program, [(a, HALF), (b, HALF)], [(WIDE, sum(tile(left, k) @ tile(right, j).T for k in range(4) for j in range(2)))]


def index_between_loads(rng):
    @T.prim_func
    def program(A: T.Tensor((SIDE, 2 * SIDE), HALF), B: T.Tensor((8, SIDE, SIDE), HALF), idx: T.Tensor((2,), "int32"),
                C: T.Tensor((SIDE, SIDE), WIDE)):
        with T.Kernel(1, threads=128) as _:
            a, b = T.alloc_shared((SIDE, SIDE), HALF), T.alloc_shared((SIDE, SIDE), HALF)
            total = T.alloc_fragment((SIDE, SIDE), WIDE)
            T.clear(total)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * SIDE], a)
                j = idx[k]
                T.copy(B[j, 0:SIDE, 0:SIDE], b)
                T.gemm(a, b, total, transpose_B=True)
            T.copy(total, C[0, 0])

    a, b, idx = random_array(rng, (SIDE, 2 * SIDE), HALF), random_array(rng, (8, SIDE, SIDE), HALF), np.array([2, 5], np.int32)
    reference = sum(tile(decode(a, HALF), k) @ decode(b[idx[k]], HALF).T for k in range(2))
    return program, [(a, HALF), (b, HALF), (idx, "int32")], [(WIDE, reference)]


def indices_beyond_32_bits(rng):
    @T.prim_func
    def program(A: T.Tensor((SIDE, 2 * SIDE), HALF), B: T.Tensor((8, SIDE, 2 * SIDE), HALF), idx: T.Tensor((4,), "int64"),
                C: T.Tensor((4, SIDE, SIDE), WIDE)):
        with T.Kernel(4, threads=128) as bx:
            a, b = T.alloc_shared((SIDE, SIDE), HALF), T.alloc_shared((SIDE, SIDE), HALF)
            total = T.alloc_fragment((SIDE, SIDE), WIDE)
            T.clear(total)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * SIDE], a)
                T.copy(B[idx[bx], 0:SIDE, k * SIDE : k * SIDE + SIDE], b)
                T.gemm(a, b, total, transpose_B=True)
            T.copy(total, C[bx, 0:SIDE, 0:SIDE])

    a, b = random_array(rng, (SIDE, 2 * SIDE), HALF), random_array(rng, (8, SIDE, 2 * SIDE), HALF)
    idx = np.array([3, 1 << 32, np.iinfo(np.int64).max, np.iinfo(np.int64).min], np.int64)
    reference = np.zeros((4, SIDE, SIDE))  # outside of a tensor there are zeros
    reference[0] = decode(a, HALF) @ decode(b[3], HALF).T
    return program, [(a, HALF), (b, HALF), (idx, "int64")], [(WIDE, reference)]


def stage_that_is_also_stored(rng):
    @T.prim_func
    def program(A: T.Tensor((SIDE, 8 * SIDE), HALF), B: T.Tensor((SIDE, 8 * SIDE), HALF), D: T.Tensor((SIDE, 8 * SIDE), HALF),
                C: T.Tensor((SIDE, SIDE), WIDE)):
        with T.Kernel(1, threads=128) as _:
            a, b = T.alloc_shared((SIDE, SIDE), HALF), T.alloc_shared((SIDE, SIDE), HALF)
            total = T.alloc_fragment((SIDE, SIDE), WIDE)
            T.clear(total)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[0, k * SIDE], a)
                T.copy(B[0, k * SIDE], b)
                T.gemm(a, b, total, transpose_B=True)
                T.copy(a, D[0, k * SIDE])
            T.copy(total, C[0, 0])

    a, b, left, right = operands(rng, SIDE, SIDE, 8 * SIDE)
    return program, [(a, HALF), (b, HALF)], [(HALF, left), (WIDE, left @ right.T)]


def one_place_stored_again_and_again(rng):
    @T.prim_func
    def program(A: T.Tensor((SIDE, 8 * SIDE), HALF), B: T.Tensor((SIDE, 8 * SIDE), HALF), C: T.Tensor((SIDE, SIDE), WIDE)):
        with T.Kernel(1, threads=128) as _:
            a, b = T.alloc_shared((SIDE, SIDE), HALF), T.alloc_shared((SIDE, SIDE), HALF)
            total = T.alloc_fragment((SIDE, SIDE), WIDE)
            T.clear(total)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[0, k * SIDE], a)
                T.copy(B[0, k * SIDE], b)
                T.gemm(a, b, total, transpose_B=True)
                T.copy(total, C[0, 0])

    a, b, left, right = operands(rng, SIDE, SIDE, 8 * SIDE)
    return program, [(a, HALF), (b, HALF)], [(WIDE, left @ right.T)]


def operand_of_another_product_stored(rng):
    @T.prim_func
    def program(A: T.Tensor((SIDE, SIDE), HALF), B: T.Tensor((128, SIDE), HALF), X: T.Tensor((32, SIDE), HALF), D: T.Tensor((SIDE, 128), HALF),
                C: T.Tensor((32, 128), WIDE)):
        with T.Kernel(1, threads=128) as _:
            a, b = T.alloc_shared((SIDE, SIDE), HALF), T.alloc_shared((128, SIDE), HALF)
            x, d = T.alloc_shared((32, SIDE), HALF), T.alloc_shared((SIDE, 128), HALF)
            first, second = T.alloc_fragment((SIDE, 128), WIDE), T.alloc_fragment((32, 128), WIDE)
            T.clear(first)
            T.clear(second)
            T.copy(A, a)
            T.copy(B, b)
            T.copy(X, x)
            T.gemm(a, b, first, transpose_B=True)
            T.copy(first, d)
            T.copy(d, D)
            T.gemm(x, d, second)
            T.copy(second, C)

    a, b, left, right = operands(rng, SIDE, 128, SIDE)
    x = random_array(rng, (32, SIDE), HALF)
    return program, [(a, HALF), (b, HALF), (x, HALF)], [(HALF, left @ right.T), ("rounded", decode(x, HALF) @ (left @ right.T))]


def stores_that_share_bytes(rng):
    @T.prim_func
    def program(A: T.Tensor((128, 256), HALF), B: T.Tensor((512, 256), HALF), C: T.Tensor((256, 512), HALF), S: T.Tensor((128, 512), HALF)):
        with T.Kernel(1, threads=256) as _:
            a, b, d = T.alloc_shared((128, SIDE), HALF), T.alloc_shared((128, SIDE), HALF), T.alloc_shared((128, 128), HALF)
            total = T.alloc_fragment((128, 128), WIDE)
            for n in T.serial(4):
                T.clear(total)
                for k in T.Pipelined(4, num_stages=3):
                    T.copy(A[0, k * SIDE], a)
                    T.copy(B[n * 128, k * SIDE], b)
                    T.gemm(a, b, total, transpose_B=True)
                if n % 2 == 0:
                    T.copy(total, C[0, n * 128])
                else:
                    T.copy(total, C[128, n * 128])
                T.copy(total, d)
                for i, j in T.Parallel(128, 128):
                    total[i, j] = d[127 - i, j]
                T.copy(total, S[0, n * 128])

    a, b, left, right = operands(rng, 128, 512, 256)
    product = left @ right.T
    even = np.arange(512) // 128 % 2 == 0
    return program, [(a, HALF), (b, HALF)], [("halves", np.concatenate([np.where(even, product, np.nan), np.where(even, np.nan, product)])),
                                             (HALF, product[::-1])]


def reduction_beside_many_stages(rng):
    @T.prim_func
    def program(A: T.Tensor((128, 1024), HALF), B: T.Tensor((128, 1024), HALF), C: T.Tensor((128,), WIDE)):
        with T.Kernel(1, threads=256) as _:
            a, b = T.alloc_shared((128, SIDE), HALF), T.alloc_shared((128, SIDE), HALF)
            total, sums = T.alloc_fragment((128, 128), WIDE), T.alloc_fragment((128,), WIDE)
            T.clear(total)
            for k in T.Pipelined(16, num_stages=8):
                T.copy(A[0, k * SIDE], a)
                T.copy(B[0, k * SIDE], b)
                T.gemm(a, b, total, transpose_B=True)
            T.reduce_sum(total, sums, dim=0)
            T.copy(sums, C)

    a, b, left, right = operands(rng, 128, 128, 1024)
    return program, [(a, HALF), (b, HALF)], [(WIDE, (left @ right.T).sum(0))]


PROGRAMS = [load_under_a_condition, load_in_an_inner_loop, index_between_loads, indices_beyond_32_bits, stage_that_is_also_stored,
            one_place_stored_again_and_again, operand_of_another_product_stored, stores_that_share_bytes, reduction_beside_many_stages]
STORED = {HALF: np.float16, WIDE: np.float32, "rounded": np.float32, "halves": np.float16}
BARS = {HALF: 2e-3, WIDE: 1e-4, "rounded": 2e-3, "halves": 2e-3}


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("wgmma", [1, 0])
def test_agrees_and_is_clean(emulator, make, wgmma):
    program, inputs, expected = make(np.random.default_rng(11))
    outputs = [(np.full(reference.shape, np.nan, STORED[kind]), HALF if STORED[kind] is np.float16 else WIDE) for kind, reference in expected]
    after, answer = emulator.call(emulator.module(program.serialized), "emu:sm_90a", [*inputs, *outputs], wgmma=wgmma, check=1, seeds=4)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [f["message"] for f in answer["findings"]]
    assert (answer["wgmma"] > 0) == bool(wgmma)
    for (array, dtype), before in zip(inputs, after):
        assert np.array_equal(array, before), f"an input of {dtype} was written"
    for (kind, reference), array in zip(expected, after[len(inputs) :]):
        written = ~np.isnan(reference)
        assert np.isnan(array[~written]).all(), "what the program does not store was written"
        error = relative_error(array[written].astype(np.float64), reference[written])
        assert error <= BARS[kind], f"error {error:.2e}"
