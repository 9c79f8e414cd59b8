# SPDX-License-Identifier: Apache-2.0
"""A product of 8-bit floats whose blocks have scales: the sums of each block along k are scaled before they are added up."""

import kiln.language as T

FP8 = "float8_e4m3fn"
SCALED = 128  # elements along k (and rows of B) that share a scale


def scaled(M, N, K, out_dtype="bfloat16", block_m=64, stages=3, threads=128):
    """C = Σ over blocks of 128 along k of (A · Bᵀ) · scale_a · scale_b: A is (M, K), B (N, K), scale_a (K/128, M) and scale_b (⌈N/128⌉, K/128)
    of float32. A block's columns share their scale: they are 128."""
    if K % SCALED:
        raise ValueError(f"scaled: {K} elements along k are no whole blocks of {SCALED}; pad K to a multiple of it")
    steps, strips = K // SCALED, -(-N // SCALED)

    @T.prim_func
    def scaled(A: T.Tensor((M, K), FP8), B: T.Tensor((N, K), FP8), scale_a: T.Tensor((steps, M), "float32"),
               scale_b: T.Tensor((strips, steps), "float32"), C: T.Tensor((M, N), out_dtype)):
        with T.Kernel(strips, T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a_shared = T.alloc_shared((block_m, SCALED), FP8)
            b_shared = T.alloc_shared((SCALED, SCALED), FP8)
            partial = T.alloc_fragment((block_m, SCALED), "float32")
            accum = T.alloc_fragment((block_m, SCALED), "float32")
            T.clear(accum)
            for k in T.Pipelined(steps, num_stages=stages):
                T.copy(A[by * block_m, k * SCALED], a_shared)
                T.copy(B[bx * SCALED, k * SCALED], b_shared)
                T.gemm(a_shared, b_shared, partial, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_m, SCALED):
                    accum[i, j] += partial[i, j] * scale_a[k, by * block_m + i] * scale_b[bx, k]
            T.copy(accum, C[by * block_m, bx * SCALED])

    return scaled.with_outputs(-1)
