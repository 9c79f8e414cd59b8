# SPDX-License-Identifier: Apache-2.0
"""LayerNorm. See ``rows`` for what the variants keep where."""

import kiln.language as T

from .rows import RUN


def layer_norm(M, N, dtype="bfloat16", eps=1e-5, threads=128, min_blocks=0):
    """y[i, :] = (x[i, :] − mean) / √(variance + eps) · w + b, and the mean and 1/√(variance + eps) of each row. Rows wait in shared memory,
    many at a time. Sums are of the differences from the row's first element: nothing cancels where the mean is large."""

    @T.prim_func
    def layer_norm(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), b: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype),
                   mean: T.Tensor((M,), "float32"), rstd: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            T.annotate_min_blocks_per_sm(min_blocks)
            row = T.alloc_shared((N,), dtype)
            moved = T.alloc_fragment((N,), "float32")
            squares = T.alloc_fragment((N,), "float32")
            middle = T.alloc_fragment((1,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.copy(x[bx, 0:N], row)
            for j in T.Parallel(N):
                moved[j] = T.cast(row[j], "float32") - T.cast(row[0], "float32")
                squares[j] = moved[j] * moved[j]
            T.reduce_sum(moved, middle, dim=0)
            T.reduce_sum(squares, scale, dim=0)
            for i in T.Parallel(1):
                middle[i] = middle[i] / N
                scale[i] = T.rsqrt(T.max(scale[i] / N - middle[i] * middle[i], 0.0) + eps)
                middle[i] += T.cast(row[0], "float32")
            for j in T.Parallel(N):
                y[bx, j] = (T.cast(row[j], "float32") - middle[0]) * scale[0] * w[j] + b[j]
            T.copy(middle, mean[bx])
            T.copy(scale, rstd[bx])

    return layer_norm.with_outputs([3, 4, 5])


def layer_norm_short(M, N, dtype="bfloat16", eps=1e-5, rows=8, threads=128):
    """As ``layer_norm``, a block for every ``rows`` rows, which it keeps in registers."""

    @T.prim_func
    def layer_norm_short(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), b: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype),
                         mean: T.Tensor((M,), "float32"), rstd: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            tile = T.alloc_fragment((rows, N), "float32")
            squares = T.alloc_fragment((rows, N), "float32")
            first = T.alloc_fragment((rows,), "float32")
            middle = T.alloc_fragment((rows,), "float32")
            scale = T.alloc_fragment((rows,), "float32")
            T.copy(x[bx * rows, 0], tile)
            for i in T.Parallel(rows):
                first[i] = T.cast(x[bx * rows + i, 0], "float32")
            for i, j in T.Parallel(rows, N):
                tile[i, j] = tile[i, j] - first[i]
                squares[i, j] = tile[i, j] * tile[i, j]
            T.reduce_sum(tile, middle, dim=1)
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(rows):
                middle[i] = middle[i] / N
                scale[i] = T.rsqrt(T.max(scale[i] / N - middle[i] * middle[i], 0.0) + eps)
            for i, j in T.Parallel(rows, N):
                tile[i, j] = (tile[i, j] - middle[i]) * scale[i] * w[j] + b[j]
            T.copy(tile, y[bx * rows, 0])
            for i in T.Parallel(rows):
                middle[i] += first[i]
            T.copy(middle, mean[bx * rows])
            T.copy(scale, rstd[bx * rows])

    return layer_norm_short.with_outputs([3, 4, 5])


def layer_norm_long(M, N, dtype="bfloat16", eps=1e-5, blocks=128, stages=3, threads=512):
    """As ``layer_norm``; `blocks` blocks share the rows. The weights stay where they are, the next rows are on their way."""
    rows = -(-M // blocks)

    @T.prim_func
    def layer_norm_long(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), b: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype),
                        mean: T.Tensor((M,), "float32"), rstd: T.Tensor((M,), "float32")):
        with T.Kernel(blocks, threads=threads) as bx:
            weight = T.alloc_fragment((N,), dtype)
            bias = T.alloc_fragment((N,), dtype)
            row = T.alloc_shared((N,), dtype)
            head = T.alloc_shared((RUN,), dtype)
            moved = T.alloc_fragment((N,), "float32")
            squares = T.alloc_fragment((N,), "float32")
            middle = T.alloc_fragment((1,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.copy(w, weight)
            T.copy(b, bias)
            for r in T.Pipelined(rows, num_stages=stages):
                T.copy(x[r * blocks + bx, 0:N], row)
                T.copy(x[r * blocks + bx, 0:RUN], head)
                for j in T.Parallel(N):
                    moved[j] = T.cast(row[j], "float32") - T.cast(head[0], "float32")
                    squares[j] = moved[j] * moved[j]
                T.reduce_sum(moved, middle, dim=0)
                T.reduce_sum(squares, scale, dim=0)
                for i in T.Parallel(1):
                    middle[i] = middle[i] / N
                    scale[i] = T.rsqrt(T.max(scale[i] / N - middle[i] * middle[i], 0.0) + eps)
                    middle[i] += T.cast(head[0], "float32")
                for j in T.Parallel(N):
                    y[r * blocks + bx, j] = (T.cast(row[j], "float32") - middle[0]) * scale[0] * weight[j] + bias[j]
                T.copy(middle, mean[r * blocks + bx])
                T.copy(scale, rstd[r * blocks + bx])

    return layer_norm_long.with_outputs([3, 4, 5])


def layer_norm_parts(M, N, dtype, eps, columns=4096, threads=256):
    """As ``layer_norm``, of rows of any length."""

    @T.prim_func
    def layer_norm_parts(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), b: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype),
                         mean: T.Tensor((M,), "float32"), rstd: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            moved = T.alloc_fragment((columns,), "float32")
            squares = T.alloc_fragment((columns,), "float32")
            first = T.alloc_fragment((1,), "float32")
            middle = T.alloc_fragment((1,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.clear(moved)
            T.clear(squares)
            for i in T.Parallel(1):
                first[i] = T.cast(x[bx, i], "float32")
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    apart = T.if_then_else(k * columns + j < N, T.cast(x[bx, k * columns + j], "float32") - first[0], 0.0)
                    moved[j] += apart
                    squares[j] += apart * apart
            T.reduce_sum(moved, middle, dim=0)
            T.reduce_sum(squares, scale, dim=0)
            for i in T.Parallel(1):
                middle[i] = middle[i] / N
                scale[i] = T.rsqrt(T.max(scale[i] / N - middle[i] * middle[i], 0.0) + eps)
                middle[i] += first[i]
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    normal = (T.cast(x[bx, k * columns + j], "float32") - middle[0]) * scale[0]
                    y[bx, k * columns + j] = normal * w[k * columns + j] + b[k * columns + j]
            T.copy(middle, mean[bx])
            T.copy(scale, rstd[bx])

    return layer_norm_parts.with_outputs([3, 4, 5])
