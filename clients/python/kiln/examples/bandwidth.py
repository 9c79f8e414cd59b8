# SPDX-License-Identifier: Apache-2.0
"""Programs that memory bounds: each reads and writes every byte once."""

import math

import kiln.language as T

from .rows import LOG2_E, RUN

WARP = 32


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


def layer_norm_backward(M, N, dtype="bfloat16", threads=256):
    """dx of ``layer_norm`` for dy, with its mean and rstd: rstd · (g − mean(g) − x̂ · mean(g · x̂)), g = dy · w, x̂ = (x − mean) · rstd."""

    @T.prim_func
    def layer_norm_backward(dy: T.Tensor((M, N), dtype), x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype),
                            mean: T.Tensor((M,), "float32"), rstd: T.Tensor((M,), "float32"), dx: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            gradient = T.alloc_fragment((1, N), "float32")
            normal = T.alloc_fragment((1, N), "float32")
            product = T.alloc_fragment((1, N), "float32")
            first = T.alloc_fragment((1,), "float32")
            second = T.alloc_fragment((1,), "float32")
            for i, j in T.Parallel(1, N):
                gradient[i, j] = T.cast(dy[bx, j], "float32") * w[j]
                normal[i, j] = (T.cast(x[bx, j], "float32") - mean[bx]) * rstd[bx]
                product[i, j] = gradient[i, j] * normal[i, j]
            T.reduce_sum(gradient, first, dim=1)
            T.reduce_sum(product, second, dim=1)
            for i, j in T.Parallel(1, N):
                gradient[i, j] = rstd[bx] * (gradient[i, j] - (first[i] + normal[i, j] * second[i]) / N)
            T.copy(gradient, dx[bx, 0])

    return layer_norm_backward.with_outputs(-1)


def cross_entropy(M, N, dtype="bfloat16", columns=8192, threads=256):
    """loss[i] = log Σ exp(x[i, :]) − x[i, label[i]], rows of any length in one pass: each lane has a maximum and a sum of its own. In powers
    of two, of elements between ±2e38: log₂ of all is what they are less `largest`, and `largest` itself. Warps meet once for each row."""
    lanes = max(1, min(threads, columns // RUN))
    if columns % (lanes * RUN) != 0:
        raise ValueError(f"{columns} columns at a time are not whole runs of {RUN} for each of {lanes} lanes: choose a multiple of {lanes * RUN}")
    width = math.gcd(lanes, WARP)
    warps = lanes // width
    steps = columns // (lanes * RUN)

    @T.prim_func
    def cross_entropy(x: T.Tensor((M, N), dtype), label: T.Tensor((M,), "int32"), loss: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            T.annotate_safe_value({x: -T.infinity(dtype)})
            seen = T.alloc_fragment((steps, warps, width, RUN), dtype)
            powers = T.alloc_fragment((steps, warps, width, RUN), "float32")
            highs = T.alloc_fragment((steps, warps, width), dtype)
            partial = T.alloc_fragment((steps, warps, width), "float32")
            most = T.alloc_fragment((warps, width), dtype)
            high = T.alloc_fragment((warps, width), "float32")
            before = T.alloc_fragment((warps, width), "float32")
            more = T.alloc_fragment((warps, width), "float32")
            sums = T.alloc_fragment((warps, width), "float32")
            warp_high = T.alloc_fragment((warps,), "float32")
            warp_sum = T.alloc_fragment((warps,), "float32")
            every_high = T.alloc_shared((warps,), "float32")
            every_sum = T.alloc_shared((warps,), "float32")
            largest = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            target = T.alloc_fragment((1,), "float32")
            for i in T.Parallel(1):
                target[i] = T.cast(x[bx, label[bx]], "float32")
            T.fill(high, T.min_value("float32"))
            T.clear(sums)
            for k in T.serial(T.ceildiv(N, columns)):
                for s, w, l, r in T.Parallel(steps, warps, width, RUN):
                    seen[s, w, l, r] = x[bx, k * columns + (s * lanes + w * width + l) * RUN + r]
                T.copy(high, before)
                T.reduce_max(seen, highs, dim=3)
                T.reduce_max(highs, most, dim=0)
                for w, l in T.Parallel(warps, width):
                    high[w, l] = T.max(before[w, l], T.cast(most[w, l], "float32") * LOG2_E)
                for s, w, l, r in T.Parallel(steps, warps, width, RUN):
                    powers[s, w, l, r] = T.exp2(T.cast(seen[s, w, l, r], "float32") * LOG2_E - high[w, l])
                T.reduce_sum(powers, partial, dim=3)
                T.reduce_sum(partial, more, dim=0)
                for w, l in T.Parallel(warps, width):
                    sums[w, l] = sums[w, l] * T.exp2(before[w, l] - high[w, l]) + more[w, l]
            T.reduce_max(high, warp_high, dim=1)
            for w, l in T.Parallel(warps, width):
                sums[w, l] *= T.exp2(high[w, l] - warp_high[w])
            T.reduce_sum(sums, warp_sum, dim=1)
            T.copy(warp_high, every_high)
            T.copy(warp_sum, every_sum)
            for i in T.Parallel(1):
                largest[i] = every_high[0]
                total[i] = 0.0
            for w in T.unroll(warps):
                for i in T.Parallel(1):
                    largest[i] = T.max(largest[i], every_high[w])
            for w in T.unroll(warps):
                for i in T.Parallel(1):
                    total[i] += every_sum[w] * T.exp2(every_high[w] - largest[i])
            for i in T.Parallel(1):
                loss[bx + i] = T.log(total[i]) + (largest[i] - target[i] * LOG2_E) / LOG2_E

    return cross_entropy.with_outputs(-1)


def rope(tokens, heads, dim, dtype="bfloat16", rows=2, threads=256):
    """Rotary embedding of the halves of each head: y = (x₁ · cos − x₂ · sin, x₂ · cos + x₁ · sin)."""
    half = dim // 2

    @T.prim_func
    def rope(x: T.Tensor((tokens, heads, dim), dtype), cos: T.Tensor((tokens, half), "float32"), sin: T.Tensor((tokens, half), "float32"),
             y: T.Tensor((tokens, heads, dim), dtype)):
        with T.Kernel(T.ceildiv(tokens, rows), threads=threads) as bx:
            for i, h, j in T.Parallel(rows, heads, half):
                y[bx * rows + i, h, j] = x[bx * rows + i, h, j] * cos[bx * rows + i, j] - x[bx * rows + i, h, half + j] * sin[bx * rows + i, j]
                y[bx * rows + i, h, half + j] = x[bx * rows + i, h, half + j] * cos[bx * rows + i, j] + x[bx * rows + i, h, j] * sin[bx * rows + i, j]

    return rope.with_outputs(-1)


def swiglu(M, N, dtype="bfloat16", rows=4, columns=1024, threads=256):
    """y = silu(x[:, :N]) · x[:, N:]."""

    @T.prim_func
    def swiglu(x: T.Tensor((M, 2 * N), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=threads) as (bx, by):
            gate = T.alloc_fragment((rows, columns), "float32")
            value = T.alloc_fragment((rows, columns), "float32")
            T.copy(x[by * rows, bx * columns], gate)
            T.copy(x[by * rows, N + bx * columns], value)
            for i, j in T.Parallel(rows, columns):
                value[i, j] = gate[i, j] * T.sigmoid(gate[i, j]) * value[i, j]
            T.copy(value, y[by * rows, bx * columns])

    return swiglu.with_outputs(-1)


def transpose(M, N, dtype="bfloat16", block_m=256, block_n=128, threads=512, min_blocks=2):
    """y = xᵀ. Neighbouring blocks write neighbours, each whole runs of `block_m` elements, from a tile in shared memory. Of its rows those
    that a warp writes at a time, eight columns of x apart, are neighbours: they lie in different banks."""

    @T.prim_func
    def transpose(x: T.Tensor((M, N), dtype), y: T.Tensor((N, M), dtype)):
        with T.Kernel(T.ceildiv(M, block_m), T.ceildiv(N, block_n), threads=threads) as (bx, by):
            T.annotate_min_blocks_per_sm(min_blocks)
            tile = T.alloc_shared((RUN, block_n // RUN, block_m), dtype)
            for i, j in T.Parallel(block_n, block_m):
                tile[i % RUN, i // RUN, j] = x[bx * block_m + j, by * block_n + i]
            for i, j in T.Parallel(block_n, block_m):
                y[by * block_n + i, bx * block_m + j] = tile[i % RUN, i // RUN, j]

    return transpose.with_outputs(-1)


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


def quantize_rows(M, N, dtype="bfloat16", threads=256):
    """q[i, :] = e4m3(x[i, :] / s[i]), s[i] = max |x[i, :]| / 448."""

    @T.prim_func
    def quantize_rows(x: T.Tensor((M, N), dtype), q: T.Tensor((M, N), "float8_e4m3fn"), s: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            tile = T.alloc_fragment((1, N), "float32")
            scale = T.alloc_fragment((1,), "float32")
            inverse = T.alloc_fragment((1,), "float32")
            T.copy(x[bx, 0], tile)
            T.reduce_absmax(tile, scale, dim=1)
            for i in T.Parallel(1):
                scale[i] = T.max(scale[i] / 448.0, 1e-12)
                inverse[i] = 1.0 / scale[i]
            for i, j in T.Parallel(1, N):
                tile[i, j] = tile[i, j] * inverse[i]
            T.copy(tile, q[bx, 0])
            T.copy(scale, s[bx])

    return quantize_rows.with_outputs([1, 2])
