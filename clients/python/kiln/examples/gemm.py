# SPDX-License-Identifier: Apache-2.0
"""C = A · B: each block has a tile of C, whose sizes may be given; kiln.autotune finds the best, and kiln.rank what is expected of them."""

import kiln.language as T
from kiln.library import sizes


def gemm(M=None, N=None, K=None, dtype="float16", target=None, **given):
    """A is (M, K), B (K, N), C (M, N), of floats alike. A dimension that is None is known at launch only. ``given``: ``block_m``,
    ``block_n``, ``block_k``, ``stages`` and ``threads``; those that are left out serve on every target, with as many threads as its registers
    ask for (None: as ``kiln.target`` finds it)."""
    chosen = sizes.for_registers(sizes.PLAIN, target, known=all(isinstance(extent, int) for extent in (M, N, K)))
    if unknown := set(given) - set(chosen):
        raise TypeError(f"gemm: there is no size {' or '.join(sorted(unknown))}; sizes are {', '.join(chosen)}")
    block_m, block_n, block_k, stages, threads = {**chosen, **given}.values()
    M = T.dynamic("M") if M is None else M
    N = T.dynamic("N") if N is None else N
    K = T.dynamic("K") if K is None else K

    @T.prim_func
    def gemm(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a_shared = T.alloc_shared((block_m, block_k), dtype)
            b_shared = T.alloc_shared((block_k, block_n), dtype)
            accum = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(accum)
            for k in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                T.copy(A[by * block_m, k * block_k], a_shared)
                T.copy(B[k * block_k, bx * block_n], b_shared)
                T.gemm(a_shared, b_shared, accum)
            T.copy(accum, C[by * block_m, bx * block_n])

    return gemm.with_outputs(-1)
