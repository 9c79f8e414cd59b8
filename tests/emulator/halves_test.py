# SPDX-License-Identifier: Apache-2.0
"""Products whose blocks take half of k each: who finishes the tile, and what may lie between its parts."""

import kiln.language as T
import numpy as np
import pytest
from data import STORED, decode, random_array, relative_error

NEVER = 1  # of kiln.v1.StreamK
HALVES = "of two blocks that take half of k each and finish half of the tile each, through each other's shared memory"
FIRST = "of two blocks that take half of k each, through shared memory of the first"
M = N = 128
K = 2048
TILE = 64  # of a narrow tile's columns


@T.macro
def product(A, B, accum, block, n):
    a_shared, b_shared = T.alloc_shared((A.shape[0], 64), "float16"), T.alloc_shared((n, 64), "float16")
    T.clear(accum)
    for ko in T.Pipelined(K // 64, num_stages=3):
        T.copy(A[0, ko * 64], a_shared)
        T.copy(B[block * n, ko * 64], b_shared)
        T.gemm(a_shared, b_shared, accum, transpose_B=True)


def leading_unit():
    """A sum of three dimensions: that along which it is halved is none of the first two of its layout."""
    @T.prim_func
    def program(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(1, threads=256) as bx:
            accum = T.alloc_fragment((1, M, N), "float32")
            product(A, B, accum, bx, N)
            T.copy(accum, C[0:M, 0:N])

    return program, lambda sums: [sums]


def unit_in_the_middle():
    """One head for each block."""
    @T.prim_func
    def program(A: T.Tensor((16, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((16, N // TILE, TILE), "float32")):
        with T.Kernel(N // TILE, threads=128) as bx:
            accum = T.alloc_fragment((16, TILE), "float32")
            product(A, B, accum, bx, TILE)
            T.copy(accum, C[0:16, bx:bx + 1, 0:TILE])

    return program, lambda sums: [sums.reshape(16, N // TILE, TILE)]


def trailing_unit():
    @T.prim_func
    def program(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N, 1), "float32")):
        with T.Kernel(1, threads=256) as bx:
            accum = T.alloc_fragment((M, N), "float32")
            product(A, B, accum, bx, N)
            T.copy(accum, C[0:M, 0:N, 0:1])

    return program, lambda sums: [sums[:, :, None]]


def reads_what_it_wrote():
    """Elements of the result whose other half of the tile the other block would have written."""
    @T.prim_func
    def program(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32"), D: T.Tensor((M, N), "float32")):
        with T.Kernel(1, threads=256) as bx:
            accum = T.alloc_fragment((M, N), "float32")
            product(A, B, accum, bx, N)
            T.copy(accum, C[0, 0])
            for i, j in T.Parallel(M, N):
                accum[i, j] += C[i, N - 1 - j]
            T.copy(accum, D[0, 0])

    return program, lambda sums: [sums, sums + sums[:, ::-1]]


def writes_twice():
    """The second copy lies over half of what the first one wrote."""
    @T.prim_func
    def program(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N + N // 2), "float32")):
        with T.Kernel(1, threads=256) as bx:
            accum = T.alloc_fragment((M, N), "float32")
            product(A, B, accum, bx, N)
            T.copy(accum, C[0, N // 2])
            T.copy(accum, C[0, 0])

    return program, lambda sums: [np.concatenate([sums, sums[:, N // 2:]], 1)]


@pytest.mark.parametrize("build, rows, decision", [
    (leading_unit, M, HALVES), (unit_in_the_middle, 16, HALVES), (trailing_unit, M, HALVES),
    (reads_what_it_wrote, M, FIRST), (writes_twice, M, FIRST),
])
def test_halves(emulator, build, rows, decision):
    program, reference = build()
    rng = np.random.default_rng(5)
    a, b = random_array(rng, (rows, K), "float16"), random_array(rng, (N, K), "float16")
    expected = reference(decode(a, "float16") @ decode(b, "float16").T)
    outputs = [np.full(result.shape, -1, STORED["float32"]) for result in expected]
    tensors = [(a, "float16"), (b, "float16"), *((output, "float32") for output in outputs)]
    after, answer = emulator.call(emulator.module(program.serialized), "emu:sm_90a", tensors, check=1, seeds=4, stream_k=NEVER)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    assert decision in answer["decisions"]
    for result, array in zip(expected, after[2:]):
        assert relative_error(decode(array, "float32"), result) <= 1e-4
