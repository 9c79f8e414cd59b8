# SPDX-License-Identifier: Apache-2.0
"""Row-wise programs: RMSNorm, softmax, and an element-wise sum."""

import kiln.language as T

LOG2_E = 1.4426950408889634
RUN = 8  # neighbours that a lane takes at a time


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


def softmax_online(M=None, N=None, dtype="float32", rows=4, columns=256, threads=128):
    """The same for rows of any length: in one pass each lane keeps the maximum and the sum of what it has seen, a second writes."""
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


def add(M=None, N=None, dtype="float32", block_m=32, block_n=32, threads=128):
    """c = a + b."""
    M = T.dynamic("M") if M is None else M
    N = T.dynamic("N") if N is None else N

    @T.prim_func
    def add(a: T.Tensor((M, N), dtype), b: T.Tensor((M, N), dtype), c: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            left = T.alloc_fragment((block_m, block_n), dtype)
            right = T.alloc_fragment((block_m, block_n), dtype)
            T.copy(a[by * block_m, bx * block_n], left)
            T.copy(b[by * block_m, bx * block_n], right)
            for i, j in T.Parallel(block_m, block_n):
                left[i, j] += right[i, j]
            T.copy(left, c[by * block_m, bx * block_n])

    return add.with_outputs(-1)
