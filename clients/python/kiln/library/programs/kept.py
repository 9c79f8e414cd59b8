# SPDX-License-Identifier: Apache-2.0
"""Rows of two-byte elements that begin anywhere in memory, kept in shared memory: memory is read once. See ``rows`` for the other variants.

Tensors of rows are flat: row i begins at element i · N, which lies `shift` elements behind an aligned vector. A block copies whole vectors from
that one on, so element j of what it keeps is element j − shift of the row. The compiler gives long rows to a cluster; `blocks` says to how many
blocks, each of which has `threads` of the lanes."""

import kiln.language as T

from .rows import LOG2_E, RUN


def vectors_of(N, lanes):
    """How many vectors of RUN elements each lane takes of a row of N elements, wherever it begins."""
    longest = N if N % RUN == 0 else N + RUN - 1
    return -(-longest // (lanes * RUN))


@T.macro
def fetch(x, row, bx, N):
    """row[k, l, r] = x[first + (k · lanes + l) · RUN + r], from the vector in which row bx begins. Returns where the row begins in x, where that
    vector does, and how far the two are apart."""
    start = T.cast(bx, "int64") * N
    first = start - start % RUN
    shift = T.cast(start % RUN, "int32")
    lanes = row.shape[1]
    for k, l, r in T.Parallel(row.shape[0], lanes, RUN):
        row[k, l, r] = x[first + (k * lanes + l) * RUN + r]
    return start, first, shift


@T.macro
def sum_of_powers(row, shift, count, lanes, N):
    """The largest x · log₂ e, and Σ 2^(x · log₂ e − it), of the row's elements x. Each lane adds up its own below a maximum of its own."""
    seen = T.alloc_fragment((lanes, RUN), row.dtype)
    powers = T.alloc_fragment((lanes, RUN), "float32")
    most = T.alloc_fragment((lanes,), row.dtype)
    high = T.alloc_fragment((lanes,), "float32")
    before = T.alloc_fragment((lanes,), "float32")
    more = T.alloc_fragment((lanes,), "float32")
    sums = T.alloc_fragment((lanes,), "float32")
    largest = T.alloc_fragment((1,), "float32")
    total = T.alloc_fragment((1,), "float32")
    T.fill(high, T.min_value("float32"))
    T.clear(sums)
    for k in T.serial(count):
        for l, r in T.Parallel(lanes, RUN):
            j = (k * lanes + l) * RUN + r
            seen[l, r] = T.if_then_else(T.And(j >= shift, j < shift + N), row[k, l, r], -T.infinity(row.dtype))
        T.copy(high, before)
        T.reduce_max(seen, most, dim=1)
        for l in T.Parallel(lanes):
            high[l] = T.max(before[l], T.cast(most[l], "float32") * LOG2_E)
        for l, r in T.Parallel(lanes, RUN):
            powers[l, r] = T.exp2(T.cast(seen[l, r], "float32") * LOG2_E - high[l])
        T.reduce_sum(powers, more, dim=1)
        for l in T.Parallel(lanes):
            sums[l] = sums[l] * T.exp2(before[l] - high[l]) + more[l]
    T.reduce_max(high, largest, dim=0)
    for l in T.Parallel(lanes):
        sums[l] *= T.exp2(high[l] - largest[0])
    T.reduce_sum(sums, total, dim=0)
    return largest, total


def softmax_kept(total, N, dtype="bfloat16", threads=256, blocks=1):
    """y[i, :] = exp(x[i, :] − max) / sum, of elements above −2e38."""
    lanes = threads * blocks
    count = vectors_of(N, lanes)

    @T.prim_func
    def softmax_kept(x: T.Tensor((total,), dtype), y: T.Tensor((total,), dtype)):
        with T.Kernel(T.cast(total // N, "int32"), threads=threads) as bx:
            row = T.alloc_shared((count, lanes, RUN), dtype)
            _, first, shift = fetch(x, row, bx, N)
            largest, scale = sum_of_powers(row, shift, count, lanes, N)
            for i in T.Parallel(1):
                scale[i] = 1.0 / scale[i]
            for k in T.serial(count):
                for l, r in T.Parallel(lanes, RUN):
                    j = (k * lanes + l) * RUN + r
                    if T.And(j >= shift, j < shift + N):
                        y[first + j] = T.exp2(T.cast(row[k, l, r], "float32") * LOG2_E - largest[0]) * scale[0]

    return softmax_kept.with_outputs(-1)


def cross_entropy_kept(total, M, N, dtype="bfloat16", threads=256, blocks=1):
    """loss[i] = log Σ exp(x[i, :]) − x[i, label[i]], of elements between ±2e38: as ``cross_entropy``, but all of a row is on its way at once."""
    lanes = threads * blocks
    count = vectors_of(N, lanes)

    @T.prim_func
    def cross_entropy_kept(x: T.Tensor((total,), dtype), label: T.Tensor((M,), "int32"), loss: T.Tensor((total // N,), "float32")):
        with T.Kernel(T.cast(total // N, "int32"), threads=threads) as bx:
            row = T.alloc_shared((count, lanes, RUN), dtype)
            target = T.alloc_fragment((1,), "float32")
            start, _, shift = fetch(x, row, bx, N)
            for i in T.Parallel(1):
                target[i] = T.cast(x[start + label[bx]], "float32")
            largest, powers = sum_of_powers(row, shift, count, lanes, N)
            for i in T.Parallel(1):
                loss[bx + i] = T.log(powers[i]) + (largest[i] - target[i] * LOG2_E) / LOG2_E

    return cross_entropy_kept.with_outputs(-1)


def rms_norm_kept(total, N, dtype="bfloat16", eps=1e-6, threads=256, blocks=1):
    """y[i, :] = x[i, :] / √(mean(x[i, :]²) + eps) · w."""
    lanes = threads * blocks
    count = vectors_of(N, lanes)

    @T.prim_func
    def rms_norm_kept(x: T.Tensor((total,), dtype), w: T.Tensor((N,), dtype), y: T.Tensor((total,), dtype)):
        with T.Kernel(T.cast(total // N, "int32"), threads=threads) as bx:
            row = T.alloc_shared((count, lanes, RUN), dtype)
            seen = T.alloc_fragment((lanes, RUN), dtype)
            squares = T.alloc_fragment((lanes, RUN), "float32")
            sums = T.alloc_fragment((lanes,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            _, first, shift = fetch(x, row, bx, N)
            T.clear(sums)
            for k in T.serial(count):
                for l, r in T.Parallel(lanes, RUN):
                    j = (k * lanes + l) * RUN + r
                    seen[l, r] = T.if_then_else(T.And(j >= shift, j < shift + N), row[k, l, r], T.cast(0, dtype))
                for l, r in T.Parallel(lanes, RUN):
                    squares[l, r] = T.cast(seen[l, r], "float32") * T.cast(seen[l, r], "float32")
                T.reduce_sum(squares, sums, dim=1, clear=False)
            T.reduce_sum(sums, scale, dim=0)
            for i in T.Parallel(1):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            for k in T.serial(count):
                for l, r in T.Parallel(lanes, RUN):
                    j = (k * lanes + l) * RUN + r
                    if T.And(j >= shift, j < shift + N):
                        y[first + j] = T.cast(row[k, l, r], "float32") * scale[0] * w[j - shift]

    return rms_norm_kept.with_outputs(-1)


def layer_norm_kept(total, N, dtype="bfloat16", eps=1e-5, threads=256, blocks=1):
    """y[i, :] = (x[i, :] − mean) / √(variance + eps) · w + b, and the mean and 1/√(variance + eps) of each row. Sums are of the differences from
    the row's first element: nothing cancels where the mean is large."""
    lanes = threads * blocks
    count = vectors_of(N, lanes)

    @T.prim_func
    def layer_norm_kept(x: T.Tensor((total,), dtype), w: T.Tensor((N,), dtype), b: T.Tensor((N,), dtype), y: T.Tensor((total,), dtype),
                        mean: T.Tensor((total // N,), "float32"), rstd: T.Tensor((total // N,), "float32")):
        with T.Kernel(T.cast(total // N, "int32"), threads=threads) as bx:
            row = T.alloc_shared((count, lanes, RUN), dtype)
            seen = T.alloc_fragment((lanes, RUN), dtype)
            moved = T.alloc_fragment((lanes, RUN), "float32")
            squares = T.alloc_fragment((lanes, RUN), "float32")
            sums = T.alloc_fragment((lanes,), "float32")
            sums_of_squares = T.alloc_fragment((lanes,), "float32")
            origin = T.alloc_fragment((1,), dtype)
            middle = T.alloc_fragment((1,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            start, first, shift = fetch(x, row, bx, N)
            for i in T.Parallel(1):
                origin[i] = x[start + i]
            T.clear(sums)
            T.clear(sums_of_squares)
            for k in T.serial(count):
                for l, r in T.Parallel(lanes, RUN):
                    j = (k * lanes + l) * RUN + r
                    seen[l, r] = T.if_then_else(T.And(j >= shift, j < shift + N), row[k, l, r], origin[0])
                for l, r in T.Parallel(lanes, RUN):
                    moved[l, r] = T.cast(seen[l, r], "float32") - T.cast(origin[0], "float32")
                    squares[l, r] = moved[l, r] * moved[l, r]
                T.reduce_sum(moved, sums, dim=1, clear=False)
                T.reduce_sum(squares, sums_of_squares, dim=1, clear=False)
            T.reduce_sum(sums, middle, dim=0)
            T.reduce_sum(sums_of_squares, scale, dim=0)
            for i in T.Parallel(1):
                middle[i] = middle[i] / N
                scale[i] = T.rsqrt(T.max(scale[i] / N - middle[i] * middle[i], 0.0) + eps)
                middle[i] += T.cast(origin[i], "float32")
            for k in T.serial(count):
                for l, r in T.Parallel(lanes, RUN):
                    j = (k * lanes + l) * RUN + r
                    if T.And(j >= shift, j < shift + N):
                        y[first + j] = (T.cast(row[k, l, r], "float32") - middle[0]) * scale[0] * w[j - shift] + b[j - shift]
            T.copy(middle, mean[bx])
            T.copy(scale, rstd[bx])

    return layer_norm_kept.with_outputs([3, 4, 5])


def quantize_rows_kept(total, N, dtype="bfloat16", threads=256, blocks=1):
    """q[i, :] = e4m3(x[i, :] / s[i]), s[i] = max |x[i, :]| / 448."""
    lanes = threads * blocks
    count = vectors_of(N, lanes)

    @T.prim_func
    def quantize_rows_kept(x: T.Tensor((total,), dtype), q: T.Tensor((total,), "float8_e4m3fn"), s: T.Tensor((total // N,), "float32")):
        with T.Kernel(T.cast(total // N, "int32"), threads=threads) as bx:
            row = T.alloc_shared((count, lanes, RUN), dtype)
            seen = T.alloc_fragment((lanes, RUN), dtype)
            most = T.alloc_fragment((lanes,), dtype)
            high = T.alloc_fragment((lanes,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            inverse = T.alloc_fragment((1,), "float32")
            _, first, shift = fetch(x, row, bx, N)
            T.clear(high)
            for k in T.serial(count):
                for l, r in T.Parallel(lanes, RUN):
                    j = (k * lanes + l) * RUN + r
                    seen[l, r] = T.if_then_else(T.And(j >= shift, j < shift + N), row[k, l, r], T.cast(0, dtype))
                T.reduce_absmax(seen, most, dim=1)
                for l in T.Parallel(lanes):
                    high[l] = T.max(high[l], T.cast(most[l], "float32"))
            T.reduce_max(high, scale, dim=0)
            for i in T.Parallel(1):
                scale[i] = T.max(scale[i] / 448.0, 1e-12)
                inverse[i] = 1.0 / scale[i]
            for k in T.serial(count):
                for l, r in T.Parallel(lanes, RUN):
                    j = (k * lanes + l) * RUN + r
                    if T.And(j >= shift, j < shift + N):
                        q[first + j] = T.cast(row[k, l, r], "float32") * inverse[0]
            T.copy(scale, s[bx])

    return quantize_rows_kept.with_outputs([1, 2])
