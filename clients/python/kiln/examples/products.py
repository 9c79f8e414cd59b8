# SPDX-License-Identifier: Apache-2.0
"""Products with something around them: a batch, whose index is a dimension of the grid; and an epilogue, which works on the sums while they are
in registers."""

import kiln.language as T


def batched(batch, M, N, K, dtype="bfloat16", block_m=128, block_n=256, block_k=64, stages=4, threads=256):
    """C[i] = A[i] · B[i]ᵀ: A is (batch, M, K), B (batch, N, K), C (batch, M, N)."""

    @T.prim_func
    def batched(A: T.Tensor((batch, M, K), dtype), B: T.Tensor((batch, N, K), dtype), C: T.Tensor((batch, M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), batch, threads=threads) as (bx, by, bz):
            a_shared = T.alloc_shared((block_m, block_k), dtype)
            b_shared = T.alloc_shared((block_n, block_k), dtype)
            accum = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(accum)
            for ko in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                T.copy(A[bz, by * block_m : (by + 1) * block_m, ko * block_k : (ko + 1) * block_k], a_shared)
                T.copy(B[bz, bx * block_n : (bx + 1) * block_n, ko * block_k : (ko + 1) * block_k], b_shared)
                T.gemm(a_shared, b_shared, accum, transpose_B=True)
            T.copy(accum, C[bz, by * block_m : (by + 1) * block_m, bx * block_n : (bx + 1) * block_n])

    return batched.with_outputs(-1)


def with_epilogue(M, N, K, dtype="bfloat16", out_dtype=None, residual=False, row_scale=False, block_m=128, block_n=256, block_k=64, stages=4,
                  threads=256):
    """C = (A · Bᵀ) · scale[row] + R: A is (M, K), B (N, K), R (M, N) of the operands' type, scale (M) of float32; the last two are read
    where asked for, and left out of the sum otherwise. ``out_dtype`` may be e4m3: values beyond its range become its largest."""
    out_dtype = out_dtype or dtype

    @T.prim_func
    def with_epilogue(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), R: T.Tensor((M, N), dtype), scale: T.Tensor((M,), "float32"),
                      C: T.Tensor((M, N), out_dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a_shared = T.alloc_shared((block_m, block_k), dtype)
            b_shared = T.alloc_shared((block_n, block_k), dtype)
            accum = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(accum)
            for ko in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                T.copy(A[by * block_m, ko * block_k], a_shared)
                T.copy(B[bx * block_n, ko * block_k], b_shared)
                T.gemm(a_shared, b_shared, accum, transpose_B=True)
            if row_scale:
                for i, j in T.Parallel(block_m, block_n):
                    accum[i, j] *= scale[by * block_m + i]
            if residual:
                for i, j in T.Parallel(block_m, block_n):
                    accum[i, j] += R[by * block_m + i, bx * block_n + j]
            T.copy(accum, C[by * block_m, bx * block_n])

    return with_epilogue.with_outputs(-1)
