# SPDX-License-Identifier: Apache-2.0
"""Row-wise programs for rows too long for registers alone, of which memory is read once. Where nothing else is needed again, a block
keeps one row, the first `kept` elements in shared memory, the last `columns` in registers: `columns` divides `kept`; both together are the
row. Where weights are, several rows come one after the other, and the compiler gives a row that one block cannot hold to a cluster."""

import kiln.language as T

from .rows import LOG2_E, RUN


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


def layer_norm_long(M, N, dtype="bfloat16", eps=1e-5, blocks=128, stages=3, threads=512):
    """As ``bandwidth.layer_norm``; `blocks` blocks share the rows. The weights stay where they are, the next rows are on their way."""
    rows = -(-M // blocks)

    @T.prim_func
    def layer_norm_long(x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), b: T.Tensor((N,), dtype), y: T.Tensor((M, N), dtype),
                        mean: T.Tensor((M,), "float32"), rstd: T.Tensor((M,), "float32")):
        with T.Kernel(blocks, threads=threads) as bx:
            weight = T.alloc_fragment((N,), dtype)
            bias = T.alloc_fragment((N,), dtype)
            row = T.alloc_shared((N,), dtype)
            head = T.alloc_shared((RUN,), dtype)
            moved = T.alloc_fragment((N,), "float32")
            squares = T.alloc_fragment((N,), "float32")
            middle = T.alloc_fragment((1,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            T.copy(w, weight)
            T.copy(b, bias)
            for r in T.Pipelined(rows, num_stages=stages):
                T.copy(x[r * blocks + bx, 0:N], row)
                T.copy(x[r * blocks + bx, 0:RUN], head)
                for j in T.Parallel(N):
                    moved[j] = T.cast(row[j], "float32") - T.cast(head[0], "float32")
                    squares[j] = moved[j] * moved[j]
                T.reduce_sum(moved, middle, dim=0)
                T.reduce_sum(squares, scale, dim=0)
                for i in T.Parallel(1):
                    middle[i] = middle[i] / N
                    scale[i] = T.rsqrt(T.max(scale[i] / N - middle[i] * middle[i], 0.0) + eps)
                    middle[i] += T.cast(head[0], "float32")
                for j in T.Parallel(N):
                    y[r * blocks + bx, j] = (T.cast(row[j], "float32") - middle[0]) * scale[0] * weight[j] + bias[j]
                T.copy(middle, mean[r * blocks + bx])
                T.copy(scale, rstd[r * blocks + bx])

    return layer_norm_long.with_outputs([3, 4, 5])


def layer_norm_backward_long(M, N, dtype="bfloat16", blocks=128, stages=2, threads=512):
    """As ``bandwidth.layer_norm_backward``; `blocks` blocks share the rows."""
    rows = -(-M // blocks)

    @T.prim_func
    def layer_norm_backward_long(dy: T.Tensor((M, N), dtype), x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype),
                                 mean: T.Tensor((M,), "float32"), rstd: T.Tensor((M,), "float32"), dx: T.Tensor((M, N), dtype)):
        with T.Kernel(blocks, threads=threads) as bx:
            weight = T.alloc_fragment((N,), dtype)
            dy_row = T.alloc_shared((N,), dtype)
            x_row = T.alloc_shared((N,), dtype)
            middle = T.alloc_shared((1,), "float32")
            scale = T.alloc_shared((1,), "float32")
            gradient = T.alloc_fragment((N,), "float32")
            normal = T.alloc_fragment((N,), "float32")
            product = T.alloc_fragment((N,), "float32")
            first = T.alloc_fragment((1,), "float32")
            second = T.alloc_fragment((1,), "float32")
            T.copy(w, weight)
            for r in T.Pipelined(rows, num_stages=stages):
                T.copy(dy[r * blocks + bx, 0:N], dy_row)
                T.copy(x[r * blocks + bx, 0:N], x_row)
                T.copy(mean[r * blocks + bx], middle)
                T.copy(rstd[r * blocks + bx], scale)
                for j in T.Parallel(N):
                    gradient[j] = T.cast(dy_row[j], "float32") * weight[j]
                    normal[j] = (T.cast(x_row[j], "float32") - middle[0]) * scale[0]
                    product[j] = gradient[j] * normal[j]
                T.reduce_sum(gradient, first, dim=0)
                T.reduce_sum(product, second, dim=0)
                for j in T.Parallel(N):
                    dx[r * blocks + bx, j] = scale[0] * (gradient[j] - (first[0] + normal[j] * second[0]) / N)

    return layer_norm_backward_long.with_outputs(-1)


def softmax_long(M, N, dtype="bfloat16", columns=16384, threads=1024):
    """As ``rows.softmax``, of elements above −2e38: exp(x − m) is 2 to the x · log₂ e − m · log₂ e. Each lane adds up its elements below a
    maximum of its own, part by part as they come."""
    kept = _kept(N, columns)
    parts = range(kept // columns)
    lanes = min(threads, columns // RUN)
    steps = columns // (lanes * RUN)

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
                last[s, l, r] = x[bx, kept + place(s, l, r)]
            T.fill(high, T.min_value("float32"))
            T.clear(sums)
            for k in parts:
                for s, l, r in T.Parallel(steps, lanes, RUN):
                    seen[s, l, r] = row[k][place(s, l, r)]
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
