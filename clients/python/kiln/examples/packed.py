# SPDX-License-Identifier: Apache-2.0
"""A product with weights of 4 bits: each step unpacks its weights into registers, from where the product takes them."""

import kiln.language as T


def packed(M, N, K, dtype="float16", group=128, block_m=64, block_n=64, block_k=64, stages=3, threads=128):
    """C = A · (scale · (W − 8))ᵀ: A is (M, K); W (N, K/2) has two weights in each byte, the earlier one low; ``group`` weights along k share a
    scale, which is (K/group, N)."""
    if K % group or group % block_k:
        raise ValueError(f"packed: K is {K}, a group {group} and a step {block_k}; K must be whole groups, and a group whole steps")

    @T.prim_func
    def packed(A: T.Tensor((M, K), dtype), W: T.Tensor((N, K // 2), "uint8"), scale: T.Tensor((K // group, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a_shared = T.alloc_shared((block_m, block_k), dtype)
            w_shared = T.alloc_shared((block_n, block_k // 2), "uint8")
            s_shared = T.alloc_shared((block_n,), dtype)
            weights = T.alloc_fragment((block_n, block_k), dtype)
            accum = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(accum)
            for k in T.Pipelined(K // block_k, num_stages=stages):
                T.copy(A[by * block_m, k * block_k], a_shared)
                T.copy(W[bx * block_n, k * (block_k // 2)], w_shared)
                T.copy(scale[k * block_k // group, bx * block_n], s_shared)
                for i, j in T.Parallel(block_n, block_k):
                    nibble = (w_shared[i, j // 2] >> T.cast(j % 2 * 4, "uint8")) & T.cast(15, "uint8")
                    weights[i, j] = (T.cast(nibble, dtype) - T.cast(8, dtype)) * s_shared[i]
                T.gemm(a_shared, weights, accum, transpose_B=True)
            T.copy(accum, C[by * block_m, bx * block_n])

    return packed.with_outputs(-1)
