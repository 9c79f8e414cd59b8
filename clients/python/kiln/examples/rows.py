# SPDX-License-Identifier: Apache-2.0
"""Functions of rows: a block has one row in its registers, reduces it and writes the result."""

import kiln.language as T


def rms_norm(M=None, N=1024, dtype="float16", eps=1e-6, threads=128):
    """y[i, :] = x[i, :] / √(mean(x[i, :]²) + eps) · w. M may be None: then it is known at launch only."""
    M = T.dynamic("M") if M is None else M

    @T.prim_func
    def rms_norm(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            row = T.alloc_fragment((N,), "float32")
            squares = T.alloc_fragment((N,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.copy(x[bx, 0:N], row)
            for j in T.Parallel(N):
                squares[j] = row[j] * row[j]
            T.reduce_sum(squares, scale, dim=0)
            for i in T.Parallel(1):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            for j in T.Parallel(N):
                y[bx, j] = row[j] * scale[0] * w[j]

    return rms_norm.with_outputs(-1)


def softmax(M=None, N=1024, dtype="float16", threads=128):
    """y[i, :] = exp(x[i, :] − max) / sum. M may be None: then it is known at launch only."""
    M = T.dynamic("M") if M is None else M

    @T.prim_func
    def softmax(x: T.Tensor((M, N), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            row = T.alloc_fragment((N,), "float32")
            largest = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(x[bx, 0:N], row)
            T.reduce_max(row, largest, dim=0)
            for j in T.Parallel(N):
                row[j] = T.exp(row[j] - largest[0])
            T.reduce_sum(row, total, dim=0)
            for j in T.Parallel(N):
                y[bx, j] = row[j] / total[0]

    return softmax.with_outputs(-1)
