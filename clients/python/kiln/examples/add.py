# SPDX-License-Identifier: Apache-2.0
"""C = A + B: a tile for each block, in registers. The first program to read."""

import kiln.language as T


def add(M=None, N=None, dtype="float32", block_m=32, block_n=32, threads=128):
    """c = a + b."""
    M = T.dynamic("M") if M is None else M
    N = T.dynamic("N") if N is None else N

    @T.prim_func
    def add(a: T.Tensor((M, N), dtype), b: T.Tensor((M, N), dtype), c: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            left = T.alloc_fragment((block_m, block_n), dtype)
            right = T.alloc_fragment((block_m, block_n), dtype)
            T.copy(a[by * block_m, bx * block_n], left)
            T.copy(b[by * block_m, bx * block_n], right)
            for i, j in T.Parallel(block_m, block_n):
                left[i, j] += right[i, j]
            T.copy(left, c[by * block_m, bx * block_n])

    return add.with_outputs(-1)
