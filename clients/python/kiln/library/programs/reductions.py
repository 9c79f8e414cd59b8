# SPDX-License-Identifier: Apache-2.0
"""Sums, means, largest and smallest elements along the rows or the columns of a matrix."""

import math

import kiln.language as T

from .rows import WARP


def together(kind, a, b):
    """Two partial results of a reduction as one."""
    return T.max(a, b) if kind == "max" else T.min(a, b) if kind == "min" else a + b


def row_sum(M, N, dtype="bfloat16", columns=4096, threads=256):
    """y[i] = Σ x[i, :] in float32."""

    @T.prim_func
    def row_sum(x: T.Tensor((M, N), dtype), y: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            tile = T.alloc_fragment((1, columns), "float32")
            total = T.alloc_fragment((1, columns), "float32")
            result = T.alloc_fragment((1,), "float32")
            T.clear(total)
            for k in T.serial(T.ceildiv(N, columns)):
                T.copy(x[bx, k * columns], tile)
                for i, j in T.Parallel(1, columns):
                    total[i, j] += tile[i, j]
            T.reduce_sum(total, result, dim=1)
            T.copy(result, y[bx])

    return row_sum.with_outputs(-1)


def column_sum(M, N, dtype="bfloat16", steps=4, rows=16, columns=128, threads=256):
    """y[j] = Σ x[:, j] in float32: each block sums a strip of columns, ``steps`` · ``rows`` rows at a time, each warp neighbouring ones of
    these rows; a thread for each column adds up what the warps have."""
    warps = math.gcd(rows, threads // WARP)
    inner = rows // warps

    @T.prim_func
    def column_sum(x: T.Tensor((M, N), dtype), y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, columns), threads=threads) as bx:
            tile = T.alloc_fragment((steps, warps, inner, columns), "float32")
            more = T.alloc_fragment((warps, inner, columns), "float32")
            total = T.alloc_fragment((warps, inner, columns), "float32")
            warp_sum = T.alloc_fragment((warps, columns), "float32")
            every_sum = T.alloc_shared((warps, columns), "float32")
            result = T.alloc_fragment((columns,), "float32")
            T.clear(total)
            for k in T.serial(T.ceildiv(M, steps * rows)):
                for s, w, i, j in T.Parallel(steps, warps, inner, columns):
                    tile[s, w, i, j] = x[(k * steps + s) * rows + w * inner + i, bx * columns + j]
                T.reduce_sum(tile, more, dim=0)
                for w, i, j in T.Parallel(warps, inner, columns):
                    total[w, i, j] += more[w, i, j]
            T.reduce_sum(total, warp_sum, dim=1)
            T.copy(warp_sum, every_sum)
            T.clear(result)
            for w in T.serial(warps):
                for j in T.Parallel(columns):
                    result[j] += every_sum[w, j]
            T.copy(result, y[bx * columns])

    return column_sum.with_outputs(-1)


def row_reduction(M, N, dtype, kind, columns=4096, threads=256):
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
