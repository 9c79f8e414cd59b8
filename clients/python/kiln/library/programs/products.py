# SPDX-License-Identifier: Apache-2.0
"""Matrix products with more behind them than ``gemm``, and in batches."""

import kiln.language as T

from .gemm import ACCUMULATOR, activate


def fused(M, N, K, in_dtype, out_dtype, bias, activation, row_scale, residual, trans_a, trans_b, block_m, block_n, block_k, stages,
          threads):
    """C = activation((op(A) · op(B)) · scale[row] + bias) + R. scale is (M) of float32, bias (N) and R (M, N) of ``bias``' and
    ``residual``'s dtype; of one that is not asked for (None) a single element of any kind is passed, which is not read."""
    a_shape, b_shape = (K, M) if trans_a else (M, K), (N, K) if trans_b else (K, N)
    a_tile = (block_k, block_m) if trans_a else (block_m, block_k)
    b_tile = (block_n, block_k) if trans_b else (block_k, block_n)

    @T.prim_func
    def fused(A: T.Tensor(a_shape, in_dtype), B: T.Tensor(b_shape, in_dtype),
              scale: T.Tensor((M,) if row_scale else (1,), "float32" if row_scale else in_dtype),
              bias_row: T.Tensor((N,) if bias else (1,), bias or in_dtype),
              R: T.Tensor((M, N) if residual else (1, 1), residual or in_dtype),
              C: T.Tensor((M, N), out_dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a_shared = T.alloc_shared(a_tile, in_dtype)
            b_shared = T.alloc_shared(b_tile, in_dtype)
            accum = T.alloc_fragment((block_m, block_n), ACCUMULATOR.get(in_dtype, "float32"))
            T.clear(accum)
            for ko in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                if trans_a:
                    T.copy(A[ko * block_k, by * block_m], a_shared)
                else:
                    T.copy(A[by * block_m, ko * block_k], a_shared)
                if trans_b:
                    T.copy(B[bx * block_n, ko * block_k], b_shared)
                else:
                    T.copy(B[ko * block_k, bx * block_n], b_shared)
                T.gemm(a_shared, b_shared, accum, transpose_A=trans_a, transpose_B=trans_b)
            if row_scale:
                for i, j in T.Parallel(block_m, block_n):
                    accum[i, j] *= scale[by * block_m + i]
            if bias:
                for i, j in T.Parallel(block_m, block_n):
                    accum[i, j] += bias_row[bx * block_n + j]
            if activation:
                for i, j in T.Parallel(block_m, block_n):
                    accum[i, j] = activate(activation, accum[i, j])
            if residual:
                for i, j in T.Parallel(block_m, block_n):
                    accum[i, j] += R[by * block_m + i, bx * block_n + j]
            T.copy(accum, C[by * block_m, bx * block_n])

    return fused.with_outputs(-1)


def batched(batch, M, N, K, in_dtype, out_dtype, trans_a, trans_b, block_m, block_n, block_k, stages, threads):
    """C[i] = op(A[i]) · op(B[i])."""
    a_shape, b_shape = (batch, K, M) if trans_a else (batch, M, K), (batch, N, K) if trans_b else (batch, K, N)
    a_tile = (block_k, block_m) if trans_a else (block_m, block_k)
    b_tile = (block_n, block_k) if trans_b else (block_k, block_n)

    @T.prim_func
    def batched(A: T.Tensor(a_shape, in_dtype), B: T.Tensor(b_shape, in_dtype), C: T.Tensor((batch, M, N), out_dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), batch, threads=threads) as (bx, by, bz):
            a_shared = T.alloc_shared(a_tile, in_dtype)
            b_shared = T.alloc_shared(b_tile, in_dtype)
            accum = T.alloc_fragment((block_m, block_n), ACCUMULATOR.get(in_dtype, "float32"))
            T.clear(accum)
            for ko in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                if trans_a:
                    T.copy(A[bz, ko * block_k : (ko + 1) * block_k, by * block_m : (by + 1) * block_m], a_shared)
                else:
                    T.copy(A[bz, by * block_m : (by + 1) * block_m, ko * block_k : (ko + 1) * block_k], a_shared)
                if trans_b:
                    T.copy(B[bz, bx * block_n : (bx + 1) * block_n, ko * block_k : (ko + 1) * block_k], b_shared)
                else:
                    T.copy(B[bz, ko * block_k : (ko + 1) * block_k, bx * block_n : (bx + 1) * block_n], b_shared)
                T.gemm(a_shared, b_shared, accum, transpose_A=trans_a, transpose_B=trans_b)
            T.copy(accum, C[bz, by * block_m : (by + 1) * block_m, bx * block_n : (bx + 1) * block_n])

    return batched.with_outputs(-1)
