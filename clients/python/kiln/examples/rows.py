# SPDX-License-Identifier: Apache-2.0
"""Row-wise programs: RMSNorm, softmax, and an element-wise sum."""

import kiln.language as T


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
                tile[i, j] = T.exp(tile[i, j] - largest[i])
            T.reduce_sum(tile, total, dim=1)
            for i, j in T.Parallel(rows, N):
                tile[i, j] /= total[i]
            T.copy(tile, y[bx * rows, 0])

    return softmax.with_outputs(-1)


def softmax_online(M=None, N=None, dtype="float32", rows=4, columns=256, threads=128):
    """The same for rows of any length: one pass keeps a running maximum and sum, a second writes."""
    M = T.dynamic("M") if M is None else M
    N = T.dynamic("N") if N is None else N

    @T.prim_func
    def softmax_online(x: T.Tensor((M, N), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            T.annotate_safe_value({x: -T.infinity(dtype)})
            tile = T.alloc_fragment((rows, columns), "float32")
            largest = T.alloc_fragment((rows,), "float32")
            before = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            partial = T.alloc_fragment((rows,), "float32")
            T.fill(largest, T.min_value("float32"))
            T.clear(total)
            for k in T.serial(T.ceildiv(N, columns)):
                T.copy(x[bx * rows, k * columns], tile)
                T.copy(largest, before)
                T.reduce_max(tile, largest, dim=1, clear=False)
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = T.exp(tile[i, j] - largest[i])
                T.reduce_sum(tile, partial, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * T.exp(before[i] - largest[i]) + partial[i]
            for k in T.serial(T.ceildiv(N, columns)):
                T.copy(x[bx * rows, k * columns], tile)
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = T.exp(tile[i, j] - largest[i]) / total[i]
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
