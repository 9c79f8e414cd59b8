# SPDX-License-Identifier: Apache-2.0
"""Rows of any length, ``columns`` at a time, read twice: a block has one row. What ``kiln.examples`` keep in registers or shared memory is
read once, but must fit there."""

import kiln.language as T


def rms_norm(M, N, dtype, eps, columns=4096, threads=256):
    """As ``kiln.examples.rows.rms_norm``."""

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


def layer_norm(M, N, dtype, eps, columns=4096, threads=256):
    """As ``kiln.examples.bandwidth.layer_norm``."""

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


def quantize_rows(M, N, dtype, columns=4096, threads=256):
    """As ``kiln.examples.bandwidth.quantize_rows``."""

    @T.prim_func
    def quantize_rows_parts(x: T.Tensor((M, N), dtype), q: T.Tensor((M, N), "float8_e4m3fn"), s: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            seen = T.alloc_fragment((columns,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            inverse = T.alloc_fragment((1,), "float32")
            T.clear(seen)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    seen[j] = T.max(seen[j], T.abs(T.cast(x[bx, k * columns + j], "float32")))
            T.reduce_max(seen, scale, dim=0)
            for i in T.Parallel(1):
                scale[i] = T.max(scale[i] / 448.0, 1e-12)
                inverse[i] = 1.0 / scale[i]
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    q[bx, k * columns + j] = T.cast(x[bx, k * columns + j], "float32") * inverse[0]
            T.copy(scale, s[bx])

    return quantize_rows_parts.with_outputs([1, 2])


def reduction(M, N, dtype, kind, columns=4096, threads=256):
    """y[i] = the sum, mean, largest or smallest of x[i, :], in float32."""
    outside = {"max": -T.infinity("float32"), "min": T.infinity("float32")}.get(kind, 0.0)
    reduce = {"max": T.reduce_max, "min": T.reduce_min}.get(kind, T.reduce_sum)

    @T.prim_func
    def row_reduction(x: T.Tensor((M, N), dtype), y: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            seen = T.alloc_fragment((columns,), "float32")
            result = T.alloc_fragment((1,), "float32")
            T.fill(seen, outside)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    value = T.if_then_else(k * columns + j < N, T.cast(x[bx, k * columns + j], "float32"), outside)
                    seen[j] = together(kind, seen[j], value)
            reduce(seen, result, dim=0)
            if kind == "mean":
                for i in T.Parallel(1):
                    result[i] = result[i] / N
            T.copy(result, y[bx])

    return row_reduction.with_outputs(-1)


def together(kind, a, b):
    """Two partial results of a reduction as one."""
    return T.max(a, b) if kind == "max" else T.min(a, b) if kind == "min" else a + b


def column_reduction(M, N, dtype, kind, rows=32, columns=64, threads=256):
    """y[j] = the sum, mean, largest or smallest of x[:, j], in float32: a block has a strip of columns."""
    outside = {"max": -T.infinity("float32"), "min": T.infinity("float32")}.get(kind, 0.0)
    reduce = {"max": T.reduce_max, "min": T.reduce_min}.get(kind, T.reduce_sum)

    @T.prim_func
    def column_reduction(x: T.Tensor((M, N), dtype), y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, columns), threads=threads) as bx:
            seen = T.alloc_fragment((rows, columns), "float32")
            result = T.alloc_fragment((columns,), "float32")
            T.fill(seen, outside)
            for k in T.serial(T.ceildiv(M, rows)):
                for i, j in T.Parallel(rows, columns):
                    value = T.if_then_else(k * rows + i < M, T.cast(x[k * rows + i, bx * columns + j], "float32"), outside)
                    seen[i, j] = together(kind, seen[i, j], value)
            reduce(seen, result, dim=0)
            if kind == "mean":
                for j in T.Parallel(columns):
                    result[j] = result[j] / T.cast(M, "float32")
            T.copy(result, y[bx * columns])

    return column_reduction.with_outputs(-1)
