# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy of rows of any length, and its gradient."""

import math

import kiln.language as T

from .rows import LOG2_E, RUN, WARP


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


def cross_entropy_short(M, N, dtype="bfloat16", rows=8, threads=128):
    """As ``cross_entropy``, of short rows: a block for every ``rows`` of them, which it keeps in registers."""

    @T.prim_func
    def cross_entropy_short(x: T.Tensor((M, N), dtype), label: T.Tensor((M,), "int32"), loss: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            tile = T.alloc_fragment((rows, N), "float32")
            largest = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            target = T.alloc_fragment((rows,), "float32")
            T.copy(x[bx * rows, 0], tile)
            for i in T.Parallel(rows):
                target[i] = T.cast(x[bx * rows + i, label[bx * rows + i]], "float32")
            T.reduce_max(tile, largest, dim=1)
            for i, j in T.Parallel(rows, N):
                tile[i, j] = T.exp2(tile[i, j] * LOG2_E - largest[i] * LOG2_E)
            T.reduce_sum(tile, total, dim=1)
            for i in T.Parallel(rows):
                total[i] = T.log(total[i]) + largest[i] - target[i]
            T.copy(total, loss[bx * rows])

    return cross_entropy_short.with_outputs(-1)


def cross_entropy_backward(M, N, dtype, columns=4096, threads=256):
    """dx[i, :] = dloss[i] · (softmax(x[i, :]) − onehot(label[i])), where the loss tells the sum of the powers: log Σ exp(x) = loss +
    x[label]."""

    @T.prim_func
    def cross_entropy_backward(dloss: T.Tensor((M,), "float32"), x: T.Tensor((M, N), dtype), label: T.Tensor((M,), "int32"),
                               loss: T.Tensor((M,), "float32"),
                               dx: T.Tensor((M, N), dtype)):
        with T.Kernel(M, T.ceildiv(N, columns), threads=threads) as (by, bx):
            total = T.alloc_fragment((1,), "float32")
            for i in T.Parallel(1):
                total[i] = loss[by] + T.cast(x[by, label[by]], "float32")
            for j in T.Parallel(columns):
                power = T.exp(T.cast(x[by, bx * columns + j], "float32") - total[0])
                dx[by, bx * columns + j] = dloss[by] * (power - T.if_then_else(bx * columns + j == label[by], 1.0, 0.0))

    return cross_entropy_backward.with_outputs(-1)
