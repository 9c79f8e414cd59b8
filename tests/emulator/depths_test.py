# SPDX-License-Identifier: Apache-2.0
"""Chains of two products of 8-bit floats: the first one's sum, rounded, is the second one's operand, in the registers where it lies."""

import kiln.language as T
import numpy as np
import pytest
from data import STORED, decode, random_array, relative_error

E4M3 = "float8_e4m3fn"
STAYS = "stays in the registers of the sum that it was"
M, N, D = 64, 256, 64
TILE = 128


def natural(place):
    return place


def key_at(place):
    return place // 32 * 32 + place % 32 // 16 * 16 + place % 4 // 2 * 8 + place % 16 // 4 * 2 + place % 2


@T.macro
def products(Q, K, turned, O, order):
    q_shared, k_shared = T.alloc_shared((M, D), E4M3), T.alloc_shared((TILE, D), E4M3)
    v_shared = T.alloc_shared((D, TILE), E4M3)
    scores, weights = T.alloc_fragment((M, TILE), "float32"), T.alloc_fragment((M, TILE), E4M3)
    output = T.alloc_fragment((M, D), "float32")
    T.copy(Q, q_shared)
    T.clear(output)
    for k in T.Pipelined(N // TILE, num_stages=2):
        T.copy(K[k * TILE, 0], k_shared)
        T.gemm(q_shared, k_shared, scores, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
        for i, j in T.Parallel(M, TILE):
            weights[i, j] = scores[i, order(j)]
        T.copy(turned[0, k * TILE], v_shared)
        T.gemm(weights, v_shared, output, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
    T.copy(output, O)


def by_workspace():
    """The order is the compiler's: it is in the workspace, which kernels of the function write."""
    @T.prim_func
    def program(Q: T.Tensor((M, D), E4M3), K: T.Tensor((N, D), E4M3), V: T.Tensor((N, D), E4M3), O: T.Tensor((M, D), "float32")):
        turned = T.alloc_global((D, N), E4M3)
        with T.Kernel(N // TILE, threads=128) as bx:
            tile = T.alloc_shared((TILE, D), E4M3)
            T.copy(V[bx * TILE, 0], tile)
            for d, j in T.Parallel(D, TILE):
                turned[d, bx * TILE + j] = tile[j, d]
        with T.Kernel(1, threads=128) as bx:
            products(Q, K, turned, O, natural)

    return program


def by_program():
    @T.prim_func
    def program(Q: T.Tensor((M, D), E4M3), K: T.Tensor((N, D), E4M3), V: T.Tensor((N, D), E4M3), O: T.Tensor((M, D), "float32"),
                VT: T.Tensor((D, N), E4M3)):
        with T.Kernel(N // TILE, threads=128) as bx:
            tile = T.alloc_shared((TILE, D), E4M3)
            T.copy(V[bx * TILE, 0], tile)
            for d, j in T.Parallel(D, TILE):
                VT[d, bx * TILE + j] = tile[key_at(j), d]
        with T.Kernel(1, threads=128) as bx:
            products(Q, K, VT, O, key_at)

    return program


@pytest.mark.parametrize("target", ["emu:sm_89", "emu:sm_90a"])
@pytest.mark.parametrize("build", [by_workspace, by_program])
def test_depths(emulator, target, build):
    """A row of q has a single 1, so that scores are elements of k, which rounding leaves alone."""
    rng = np.random.default_rng(7)
    q = np.where(np.arange(D) == rng.permutation(M)[:, None], 0x38, 0).astype(np.uint8)
    k, v = random_array(rng, (N, D), E4M3), random_array(rng, (N, D), E4M3)
    expected = decode(q, E4M3) @ decode(k, E4M3).T @ decode(v, E4M3)
    tensors = [(q, E4M3), (k, E4M3), (v, E4M3), (np.full((M, D), -1, STORED["float32"]), "float32")]
    if build is by_program:
        tensors.append((np.zeros((D, N), np.uint8), E4M3))
    after, answer = emulator.call(emulator.module(build().serialized), target, tensors, check=1, seeds=4)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    assert STAYS in answer["decisions"]
    assert relative_error(decode(after[3], "float32"), expected) <= 2e-3
