# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows (mixture of experts)."""

import kiln.language as T


def grouped(experts, N, K, M=None, dtype="bfloat16", out_dtype=None, block_m=128, block_n=256, block_k=64, stages=3, threads=256):
    """C[rows of tile t] = A[rows of tile t] · B[expert[t]]ᵀ: A is (M, K) with each expert's rows together, padded to whole tiles of
    ``block_m``; B (experts, N, K); expert (M / block_m) of int32."""
    out_dtype = out_dtype or dtype
    M = T.dynamic("M") if M is None else M
    tiles = M // block_m

    @T.prim_func
    def grouped(A: T.Tensor((M, K), dtype), B: T.Tensor((experts, N, K), dtype), expert: T.Tensor((tiles,), "int32"),
                C: T.Tensor((M, N), out_dtype)):
        with T.Kernel(T.ceildiv(N, block_n), tiles, threads=threads) as (bx, by):
            a_shared = T.alloc_shared((block_m, block_k), dtype)
            b_shared = T.alloc_shared((block_n, block_k), dtype)
            accum = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(accum)
            for ko in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                T.copy(A[by * block_m, ko * block_k], a_shared)
                T.copy(B[expert[by], bx * block_n : (bx + 1) * block_n, ko * block_k : (ko + 1) * block_k], b_shared)
                T.gemm(a_shared, b_shared, accum, transpose_B=True)
            T.copy(accum, C[by * block_m, bx * block_n])

    return grouped.with_outputs(-1)
