# SPDX-License-Identifier: Apache-2.0
"""Rows as 8-bit floats and a scale. See ``rows`` for what the variants keep where."""

import kiln.language as T

from .rows import kept_apart


def quantize_rows(M, N, dtype="bfloat16", rows=1, threads=256):
    """q[i, :] = e4m3(x[i, :] / s[i]), s[i] = max |x[i, :]| / 448, a block for every ``rows`` rows."""

    @T.prim_func
    def quantize_rows(x: T.Tensor((M, N), dtype), q: T.Tensor((M, N), "float8_e4m3fn"), s: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            tile = T.alloc_fragment((rows, N), "float32")
            scale = T.alloc_fragment((rows,), "float32")
            inverse = T.alloc_fragment((rows,), "float32")
            T.copy(x[bx * rows, 0], tile)
            T.reduce_absmax(tile, scale, dim=1)
            for i in T.Parallel(rows):
                scale[i] = T.max(scale[i] / 448.0, 1e-12)
                inverse[i] = 1.0 / scale[i]
            for i, j in T.Parallel(rows, N):
                tile[i, j] = tile[i, j] * inverse[i]
            T.copy(tile, q[bx * rows, 0])
            T.copy(scale, s[bx * rows])

    return quantize_rows.with_outputs([1, 2])


def quantize_rows_long(M, N, dtype="bfloat16", columns=16384, threads=1024):
    """As ``quantize_rows``, a row in the registers and the shared memory of a block."""
    kept = kept_apart(N, columns)

    @T.prim_func
    def quantize_rows_long(x: T.Tensor((M, N), dtype), q: T.Tensor((M, N), "float8_e4m3fn"), s: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            row = T.alloc_shared((kept,), dtype)
            last = T.alloc_fragment((columns,), dtype)
            seen = T.alloc_fragment((columns,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            inverse = T.alloc_fragment((1,), "float32")
            T.copy(x[bx, 0:kept], row)
            T.copy(x[bx, kept:N], last)
            for j in T.Parallel(columns):
                seen[j] = T.abs(T.cast(last[j], "float32"))
            for k in T.serial(kept // columns):
                for j in T.Parallel(columns):
                    seen[j] = T.max(seen[j], T.abs(T.cast(row[k * columns + j], "float32")))
            T.reduce_max(seen, scale, dim=0)
            for i in T.Parallel(1):
                scale[i] = T.max(scale[i] / 448.0, 1e-12)
                inverse[i] = 1.0 / scale[i]
            for j in T.Parallel(columns):
                q[bx, kept + j] = T.cast(last[j], "float32") * inverse[0]
            for k in T.serial(kept // columns):
                for j in T.Parallel(columns):
                    q[bx, k * columns + j] = T.cast(row[k * columns + j], "float32") * inverse[0]
            T.copy(scale, s[bx])

    return quantize_rows_long.with_outputs([1, 2])


def quantize_rows_parts(M, N, dtype, columns=4096, threads=256):
    """As ``quantize_rows``, of rows of any length."""

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
