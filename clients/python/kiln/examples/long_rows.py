# SPDX-License-Identifier: Apache-2.0
"""Row-wise programs for rows too long for registers alone: a block keeps one row, the first `kept` elements in shared memory, the last
`columns` in registers, so that memory is read once. `columns` divides `kept`; both together are the row."""

import kiln.language as T

from .rows import LOG2_E


def _kept(N, columns):
    if N % columns:
        raise ValueError(f"rows of {N} elements are not whole parts of {columns}: choose `columns` to divide them")
    return N - columns


def rms_norm_long(M, N, dtype="bfloat16", eps=1e-6, columns=16384, threads=1024):
    """As ``rows.rms_norm``."""
    kept = _kept(N, columns)

    @T.prim_func
    def rms_norm_long(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            row = T.alloc_shared((kept,), dtype)
            last = T.alloc_fragment((columns,), dtype)
            squares = T.alloc_fragment((columns,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.copy(x[bx, 0:kept], row)
            T.copy(x[bx, kept:N], last)
            for j in T.Parallel(columns):
                squares[j] = T.cast(last[j], "float32") * T.cast(last[j], "float32")
            for k in T.serial(kept // columns):
                for j in T.Parallel(columns):
                    squares[j] += T.cast(row[k * columns + j], "float32") * T.cast(row[k * columns + j], "float32")
            T.reduce_sum(squares, scale, dim=0)
            for i in T.Parallel(1):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            for j in T.Parallel(columns):
                y[bx, kept + j] = T.cast(last[j], "float32") * scale[0] * w[kept + j]
            for k in T.serial(kept // columns):
                for j in T.Parallel(columns):
                    y[bx, k * columns + j] = T.cast(row[k * columns + j], "float32") * scale[0] * w[k * columns + j]

    return rms_norm_long.with_outputs(-1)


def layer_norm_long(M, N, dtype="bfloat16", eps=1e-5, columns=16384, threads=1024):
    """As ``bandwidth.layer_norm``, of the differences from the row's first element: nothing cancels where the mean is large."""
    kept, half = _kept(N, columns), columns // 2

    @T.prim_func
    def layer_norm_long(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), b: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype),
                        mean: T.Tensor((M,), "float32"), rstd: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            row = T.alloc_shared((kept,), dtype)
            low = T.alloc_fragment((half,), dtype)
            high = T.alloc_fragment((half,), dtype)
            moved = T.alloc_fragment((half,), "float32")
            sums = T.alloc_fragment((half,), "float32")
            squares = T.alloc_fragment((half,), "float32")
            first = T.alloc_fragment((1,), "float32")
            middle = T.alloc_fragment((1,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.copy(x[bx, 0:kept], row)
            T.copy(x[bx, kept : kept + half], low)
            T.copy(x[bx, kept + half : N], high)
            T.copy(x[bx, 0], first)
            for j in T.Parallel(half):
                moved[j] = T.cast(low[j], "float32") - first[0]
                sums[j] = moved[j]
                squares[j] = moved[j] * moved[j]
                moved[j] = T.cast(high[j], "float32") - first[0]
                sums[j] += moved[j]
                squares[j] += moved[j] * moved[j]
            for k in T.serial(kept // half):
                for j in T.Parallel(half):
                    moved[j] = T.cast(row[k * half + j], "float32") - first[0]
                    sums[j] += moved[j]
                    squares[j] += moved[j] * moved[j]
            T.reduce_sum(sums, middle, dim=0)
            T.reduce_sum(squares, scale, dim=0)
            for i in T.Parallel(1):
                middle[i] = middle[i] / N
                scale[i] = T.rsqrt(T.max(scale[i] / N - middle[i] * middle[i], 0.0) + eps)
                middle[i] += first[i]
            for j in T.Parallel(half):
                y[bx, kept + j] = (T.cast(low[j], "float32") - middle[0]) * scale[0] * w[kept + j] + b[kept + j]
                y[bx, kept + half + j] = (T.cast(high[j], "float32") - middle[0]) * scale[0] * w[kept + half + j] + b[kept + half + j]
            for k in T.serial(kept // half):
                for j in T.Parallel(half):
                    y[bx, k * half + j] = (T.cast(row[k * half + j], "float32") - middle[0]) * scale[0] * w[k * half + j] + b[k * half + j]
            T.copy(middle, mean[bx])
            T.copy(scale, rstd[bx])

    return layer_norm_long.with_outputs([3, 4, 5])


def layer_norm_backward_long(M, N, dtype="bfloat16", columns=8192, threads=1024):
    """As ``bandwidth.layer_norm_backward``. Two rows do not fit: both are read twice, the second time from L2 what is still there."""

    @T.prim_func
    def layer_norm_backward_long(dy: T.Tensor((M, N), dtype), x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype),
                                 mean: T.Tensor((M,), "float32"), rstd: T.Tensor((M,), "float32"), dx: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            gradient = T.alloc_fragment((columns,), "float32")
            normal = T.alloc_fragment((columns,), "float32")
            gradients = T.alloc_fragment((columns,), "float32")
            products = T.alloc_fragment((columns,), "float32")
            first = T.alloc_fragment((1,), "float32")
            second = T.alloc_fragment((1,), "float32")
            T.clear(gradients)
            T.clear(products)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    gradient[j] = T.cast(dy[bx, k * columns + j], "float32") * w[k * columns + j]
                    normal[j] = (T.cast(x[bx, k * columns + j], "float32") - mean[bx]) * rstd[bx]
                    gradients[j] += gradient[j]
                    products[j] += gradient[j] * normal[j]
            T.reduce_sum(gradients, first, dim=0)
            T.reduce_sum(products, second, dim=0)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    gradient[j] = T.cast(dy[bx, k * columns + j], "float32") * w[k * columns + j]
                    normal[j] = (T.cast(x[bx, k * columns + j], "float32") - mean[bx]) * rstd[bx]
                    dx[bx, k * columns + j] = rstd[bx] * (gradient[j] - (first[0] + normal[j] * second[0]) / N)

    return layer_norm_backward_long.with_outputs(-1)


def softmax_long(M, N, dtype="bfloat16", columns=16384, threads=1024):
    """As ``rows.softmax``, of elements above −2e38: exp(x − m) is 2 to the x · log₂ e − m · log₂ e."""
    kept = _kept(N, columns)

    @T.prim_func
    def softmax_long(x: T.Tensor((M, N), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            row = T.alloc_shared((kept,), dtype)
            last = T.alloc_fragment((columns,), dtype)
            seen = T.alloc_fragment((columns,), "float32")
            largest = T.alloc_fragment((1,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.copy(x[bx, 0:kept], row)
            T.copy(x[bx, kept:N], last)
            T.copy(last, seen)
            for k in T.serial(kept // columns):
                for j in T.Parallel(columns):
                    seen[j] = T.max(seen[j], T.cast(row[k * columns + j], "float32"))
            T.reduce_max(seen, largest, dim=0)
            for i in T.Parallel(1):
                largest[i] *= LOG2_E
            for j in T.Parallel(columns):
                seen[j] = T.exp2(T.cast(last[j], "float32") * LOG2_E - largest[0])
            for k in T.serial(kept // columns):
                for j in T.Parallel(columns):
                    seen[j] += T.exp2(T.cast(row[k * columns + j], "float32") * LOG2_E - largest[0])
            T.reduce_sum(seen, scale, dim=0)
            for i in T.Parallel(1):
                scale[i] = 1.0 / scale[i]
            for j in T.Parallel(columns):
                y[bx, kept + j] = T.exp2(T.cast(last[j], "float32") * LOG2_E - largest[0]) * scale[0]
            for k in T.serial(kept // columns):
                for j in T.Parallel(columns):
                    y[bx, k * columns + j] = T.exp2(T.cast(row[k * columns + j], "float32") * LOG2_E - largest[0]) * scale[0]

    return softmax_long.with_outputs(-1)


def quantize_rows_long(M, N, dtype="bfloat16", columns=16384, threads=1024):
    """As ``bandwidth.quantize_rows``."""
    kept = _kept(N, columns)

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
