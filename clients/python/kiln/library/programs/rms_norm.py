# SPDX-License-Identifier: Apache-2.0
"""RMSNorm and its gradient. See ``rows`` for what the variants keep where."""

import kiln.language as T

from .rows import kept_apart


def rms_norm(M=None, N=1024, dtype="float16", eps=1e-6, rows=1, threads=128):
    """y[i, :] = x[i, :] / √(mean(x[i, :]²) + eps) · w, a block for every ``rows`` rows."""
    M = T.dynamic("M") if M is None else M

    @T.prim_func
    def rms_norm(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            tile = T.alloc_fragment((rows, N), "float32")
            squares = T.alloc_fragment((rows, N), "float32")
            weight = T.alloc_fragment((N,), "float32")
            scale = T.alloc_fragment((rows,), "float32")
            T.copy(x[bx * rows, 0], tile)
            T.copy(w, weight)
            for i, j in T.Parallel(rows, N):
                squares[i, j] = tile[i, j] * tile[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(rows):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            for i, j in T.Parallel(rows, N):
                tile[i, j] = tile[i, j] * scale[i] * weight[j]
            T.copy(tile, y[bx * rows, 0])

    return rms_norm.with_outputs(-1)


def rms_norm_short(M, N, dtype="bfloat16", eps=1e-6, rows=8, threads=128):
    """As ``rms_norm``, of short rows, for which the weights are not kept."""

    @T.prim_func
    def rms_norm_short(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            tile = T.alloc_fragment((rows, N), "float32")
            squares = T.alloc_fragment((rows, N), "float32")
            scale = T.alloc_fragment((rows,), "float32")
            T.copy(x[bx * rows, 0], tile)
            for i, j in T.Parallel(rows, N):
                squares[i, j] = tile[i, j] * tile[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(rows):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            for i, j in T.Parallel(rows, N):
                tile[i, j] = tile[i, j] * scale[i] * w[j]
            T.copy(tile, y[bx * rows, 0])

    return rms_norm_short.with_outputs(-1)


def rms_norm_long(M, N, dtype="bfloat16", eps=1e-6, columns=16384, threads=1024):
    """As ``rms_norm``, a row in the registers and the shared memory of a block."""
    kept = kept_apart(N, columns)

    @T.prim_func
    def rms_norm_long(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            row = T.alloc_shared((kept,), dtype)
            last = T.alloc_fragment((columns,), dtype)
            squares = T.alloc_fragment((columns,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.copy(x[bx, 0:kept], row)
            T.copy(x[bx, kept:N], last)
            for j in T.Parallel(columns):
                squares[j] = T.cast(last[j], "float32") * T.cast(last[j], "float32")
            for k in T.serial(kept // columns):
                for j in T.Parallel(columns):
                    squares[j] += T.cast(row[k * columns + j], "float32") * T.cast(row[k * columns + j], "float32")
            T.reduce_sum(squares, scale, dim=0)
            for i in T.Parallel(1):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            for j in T.Parallel(columns):
                y[bx, kept + j] = T.cast(last[j], "float32") * scale[0] * w[kept + j]
            for k in T.serial(kept // columns):
                for j in T.Parallel(columns):
                    y[bx, k * columns + j] = T.cast(row[k * columns + j], "float32") * scale[0] * w[k * columns + j]

    return rms_norm_long.with_outputs(-1)


def rms_norm_parts(M, N, dtype, eps, columns=4096, threads=256):
    """As ``rms_norm``, of rows of any length."""

    @T.prim_func
    def rms_norm_parts(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            squares = T.alloc_fragment((columns,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.clear(squares)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    squares[j] += T.cast(x[bx, k * columns + j], "float32") * T.cast(x[bx, k * columns + j], "float32")
            T.reduce_sum(squares, scale, dim=0)
            for i in T.Parallel(1):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    y[bx, k * columns + j] = T.cast(x[bx, k * columns + j], "float32") * scale[0] * w[k * columns + j]

    return rms_norm_parts.with_outputs(-1)


def rms_norm_backward(M, N, dtype, eps, columns=4096, threads=256):
    """dx for dy, and 1/√(mean(x²) + eps) of each row: rstd · (g − x̂ · mean(g · x̂)), g = dy · w, x̂ = x · rstd."""

    @T.prim_func
    def rms_norm_backward(dy: T.Tensor((M, N), dtype), x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), dx: T.Tensor((M, N), dtype),
                          rstd: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            squares = T.alloc_fragment((columns,), "float32")
            products = T.alloc_fragment((columns,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            along = T.alloc_fragment((1,), "float32")
            T.clear(squares)
            T.clear(products)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    value = T.cast(x[bx, k * columns + j], "float32")
                    squares[j] += value * value
                    products[j] += T.cast(dy[bx, k * columns + j], "float32") * w[k * columns + j] * value
            T.reduce_sum(squares, scale, dim=0)
            T.reduce_sum(products, along, dim=0)
            for i in T.Parallel(1):
                scale[i] = T.rsqrt(scale[i] / N + eps)
                along[i] = along[i] / N * scale[i] * scale[i]
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    of_normal = T.cast(dy[bx, k * columns + j], "float32") * w[k * columns + j]
                    dx[bx, k * columns + j] = scale[0] * (of_normal - T.cast(x[bx, k * columns + j], "float32") * along[0])
            T.copy(scale, rstd[bx])

    return rms_norm_backward.with_outputs([3, 4])
