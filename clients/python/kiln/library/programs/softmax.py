# SPDX-License-Identifier: Apache-2.0
"""Softmax and its gradient. See ``rows`` for what the variants keep where."""

import kiln.language as T

from .rows import LOG2_E, RUN, kept_apart


def softmax(M=None, N=1024, dtype="float16", rows=1, threads=128):
    """y[i, :] = exp(x[i, :] - max) / sum, whole rows in registers."""
    M = T.dynamic("M") if M is None else M

    @T.prim_func
    def softmax(x: T.Tensor((M, N), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            tile = T.alloc_fragment((rows, N), "float32")
            largest = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(x[bx * rows, 0], tile)
            T.reduce_max(tile, largest, dim=1)
            for i, j in T.Parallel(rows, N):
                tile[i, j] = T.exp2((tile[i, j] - largest[i]) * LOG2_E)
            T.reduce_sum(tile, total, dim=1)
            for i in T.Parallel(rows):
                total[i] = 1.0 / total[i]
            for i, j in T.Parallel(rows, N):
                tile[i, j] *= total[i]
            T.copy(tile, y[bx * rows, 0])

    return softmax.with_outputs(-1)


def softmax_long(M, N, dtype="bfloat16", columns=16384, threads=1024):
    """As ``softmax``, of elements above −2e38: exp(x − m) is 2 to the x · log₂ e − m · log₂ e. Each lane adds up its elements below a
    maximum of its own, part by part as they come."""
    kept = kept_apart(N, columns)
    parts = range(kept // columns)
    lanes = min(threads, columns // RUN)
    steps = -(-columns // (lanes * RUN))

    def place(s, l, r):
        return s * (lanes * RUN) + l * RUN + r

    @T.prim_func
    def softmax_long(x: T.Tensor((M, N), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            row = [T.alloc_shared((columns,), dtype) for _ in parts]
            last = T.alloc_fragment((steps, lanes, RUN), dtype)
            seen = T.alloc_fragment((steps, lanes, RUN), dtype)
            powers = T.alloc_fragment((steps, lanes, RUN), "float32")
            highs = T.alloc_fragment((steps, lanes), dtype)
            partial = T.alloc_fragment((steps, lanes), "float32")
            most = T.alloc_fragment((lanes,), dtype)
            high = T.alloc_fragment((lanes,), "float32")
            before = T.alloc_fragment((lanes,), "float32")
            more = T.alloc_fragment((lanes,), "float32")
            sums = T.alloc_fragment((lanes,), "float32")
            largest = T.alloc_fragment((1,), "float32")
            scale = T.alloc_fragment((1,), "float32")

            @T.macro
            def add(part):
                T.copy(high, before)
                T.reduce_max(part, highs, dim=2)
                T.reduce_max(highs, most, dim=0)
                for l in T.Parallel(lanes):
                    high[l] = T.max(before[l], T.cast(most[l], "float32") * LOG2_E)
                for s, l, r in T.Parallel(steps, lanes, RUN):
                    powers[s, l, r] = T.exp2(T.cast(part[s, l, r], "float32") * LOG2_E - high[l])
                T.reduce_sum(powers, partial, dim=2)
                T.reduce_sum(partial, more, dim=0)
                for l in T.Parallel(lanes):
                    sums[l] = sums[l] * T.exp2(before[l] - high[l]) + more[l]

            for k in parts:
                T.copy(x[bx, k * columns:(k + 1) * columns], row[k])
            for s, l, r in T.Parallel(steps, lanes, RUN):
                last[s, l, r] = T.if_then_else(place(s, l, r) < columns, x[bx, kept + place(s, l, r)], -T.infinity(dtype))
            T.fill(high, T.min_value("float32"))
            T.clear(sums)
            for k in parts:
                for s, l, r in T.Parallel(steps, lanes, RUN):
                    seen[s, l, r] = T.if_then_else(place(s, l, r) < columns, row[k][place(s, l, r)], -T.infinity(dtype))
                add(seen)
            add(last)
            T.reduce_max(high, largest, dim=0)
            for l in T.Parallel(lanes):
                sums[l] *= T.exp2(high[l] - largest[0])
            T.reduce_sum(sums, scale, dim=0)
            for i in T.Parallel(1):
                scale[i] = 1.0 / scale[i]
            for s, l, r in T.Parallel(steps, lanes, RUN):
                y[bx, kept + place(s, l, r)] = T.exp2(T.cast(last[s, l, r], "float32") * LOG2_E - largest[0]) * scale[0]
            for k in parts:
                for j in T.Parallel(columns):
                    y[bx, k * columns + j] = T.exp2(T.cast(row[k][j], "float32") * LOG2_E - largest[0]) * scale[0]

    return softmax_long.with_outputs(-1)


def softmax_online(M=None, N=None, dtype="float32", rows=4, columns=256, threads=128):
    """As ``softmax``, of rows of any length: in one pass each lane keeps the maximum and the sum of what it has seen, a second writes."""
    M = T.dynamic("M") if M is None else M
    N = T.dynamic("N") if N is None else N
    lanes = min(threads // rows, columns // RUN)
    steps = columns // (lanes * RUN)

    @T.prim_func
    def softmax_online(x: T.Tensor((M, N), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            T.annotate_safe_value({x: -T.infinity(dtype)})
            seen = T.alloc_fragment((rows, steps, lanes, RUN), "float32")
            partial = T.alloc_fragment((rows, steps, lanes), "float32")
            high = T.alloc_fragment((rows, lanes), "float32")
            before = T.alloc_fragment((rows, lanes), "float32")
            more = T.alloc_fragment((rows, lanes), "float32")
            sums = T.alloc_fragment((rows, lanes), "float32")
            largest = T.alloc_fragment((rows,), "float32")
            scale = T.alloc_fragment((rows,), "float32")
            tile = T.alloc_fragment((rows, columns), "float32")
            T.fill(high, T.min_value("float32"))
            T.clear(sums)
            for k in T.serial(T.ceildiv(N, columns)):
                for i, s, l, r in T.Parallel(rows, steps, lanes, RUN):
                    seen[i, s, l, r] = x[bx * rows + i, k * columns + s * (lanes * RUN) + l * RUN + r]
                T.copy(high, before)
                T.reduce_max(seen, partial, dim=3)
                T.reduce_max(partial, high, dim=1, clear=False)
                for i, s, l, r in T.Parallel(rows, steps, lanes, RUN):
                    seen[i, s, l, r] = T.exp2((seen[i, s, l, r] - high[i, l]) * LOG2_E)
                T.reduce_sum(seen, partial, dim=3)
                T.reduce_sum(partial, more, dim=1)
                for i, l in T.Parallel(rows, lanes):
                    sums[i, l] = sums[i, l] * T.exp2((before[i, l] - high[i, l]) * LOG2_E) + more[i, l]
            T.reduce_max(high, largest, dim=1)
            for i, l in T.Parallel(rows, lanes):
                sums[i, l] *= T.exp2((high[i, l] - largest[i]) * LOG2_E)
            T.reduce_sum(sums, scale, dim=1)
            for i in T.Parallel(rows):
                scale[i] = 1.0 / scale[i]
            for k in T.serial(T.ceildiv(N, columns)):
                T.copy(x[bx * rows, k * columns], tile)
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = T.exp2((tile[i, j] - largest[i]) * LOG2_E) * scale[i]
                T.copy(tile, y[bx * rows, k * columns])

    return softmax_online.with_outputs(-1)


def softmax_backward(M, N, dtype, columns=4096, threads=256):
    """dx = y · (dy − Σ dy · y)."""

    @T.prim_func
    def softmax_backward(dy: T.Tensor((M, N), dtype), y: T.Tensor((M, N), dtype), dx: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            products = T.alloc_fragment((columns,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.clear(products)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    products[j] += T.cast(dy[bx, k * columns + j], "float32") * T.cast(y[bx, k * columns + j], "float32")
            T.reduce_sum(products, total, dim=0)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    dx[bx, k * columns + j] = T.cast(y[bx, k * columns + j],
                                                     "float32") * (T.cast(dy[bx, k * columns + j], "float32") - total[0])

    return softmax_backward.with_outputs(-1)
