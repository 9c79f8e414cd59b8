# SPDX-License-Identifier: Apache-2.0
"""The programs whose candidates were measured. They stand here and not in ``kiln.library`` so that the library may change without the
measurements losing their meaning: a change of a program here needs new data."""

import kiln.language as T

LOG2_E = 1.4426950408889634


def product(M, N, K, dtype, sums, out, trans_a, trans_b, block_m, block_n, block_k, stages, threads):
    """C = op(A) · op(B)."""
    a_tile = (block_k, block_m) if trans_a else (block_m, block_k)
    b_tile = (block_n, block_k) if trans_b else (block_k, block_n)

    @T.prim_func
    def product(A: T.Tensor((K, M) if trans_a else (M, K), dtype), B: T.Tensor((N, K) if trans_b else (K, N), dtype), C: T.Tensor((M, N), out)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a = T.alloc_shared(a_tile, dtype)
            b = T.alloc_shared(b_tile, dtype)
            accum = T.alloc_fragment((block_m, block_n), sums)
            T.clear(accum)
            for k in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                if trans_a:
                    T.copy(A[k * block_k, by * block_m], a)
                else:
                    T.copy(A[by * block_m, k * block_k], a)
                if trans_b:
                    T.copy(B[bx * block_n, k * block_k], b)
                else:
                    T.copy(B[k * block_k, bx * block_n], b)
                T.gemm(a, b, accum, transpose_A=trans_a, transpose_B=trans_b)
            T.copy(accum, C[by * block_m, bx * block_n])

    return product


def gated(M, N, K, dtype, block_m, block_n, block_k, stages, threads):
    """C = silu(A · Uᵀ) · (A · Vᵀ): two products that share an operand."""

    @T.prim_func
    def gated(A: T.Tensor((M, K), dtype), U: T.Tensor((N, K), dtype), V: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a = T.alloc_shared((block_m, block_k), dtype)
            u = T.alloc_shared((block_n, block_k), dtype)
            v = T.alloc_shared((block_n, block_k), dtype)
            gate = T.alloc_fragment((block_m, block_n), "float32")
            value = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(gate)
            T.clear(value)
            for k in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                T.copy(A[by * block_m, k * block_k], a)
                T.copy(U[bx * block_n, k * block_k], u)
                T.copy(V[bx * block_n, k * block_k], v)
                T.gemm(a, u, gate, transpose_B=True)
                T.gemm(a, v, value, transpose_B=True)
            for i, j in T.Parallel(block_m, block_n):
                value[i, j] = value[i, j] * gate[i, j] * T.sigmoid(gate[i, j])
            T.copy(value, C[by * block_m, bx * block_n])

    return gated


def convolution(images, size, channels, filters, window, pad, dtype, block_m, block_n, block_k, stages, threads):
    """Y = the convolution of X with windows W, whose rows are (row, column, channel): a product with im2col."""
    rows, depth = images * size * size, window * window * channels

    @T.prim_func
    def convolution(X: T.Tensor((images, size, size, channels), dtype), W: T.Tensor((depth, filters), dtype), Y: T.Tensor((rows, filters), dtype)):
        with T.Kernel(T.ceildiv(filters, block_n), T.ceildiv(rows, block_m), threads=threads) as (bx, by):
            x = T.alloc_shared((block_m, block_k), dtype)
            w = T.alloc_shared((block_k, block_n), dtype)
            accum = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(accum)
            for k in T.Pipelined(T.ceildiv(depth, block_k), num_stages=stages):
                T.im2col(X, x, by, k, window, 1, 1, pad)
                T.copy(W[k * block_k, bx * block_n], w)
                T.gemm(x, w, accum)
            T.copy(accum, Y[by * block_m, bx * block_n])

    return convolution


def attention(batch, heads, length, dim, causal, dtype, block_m, block_n, stages, threads):
    """O = softmax(Q · Kᵀ / √dim) · V."""
    power = dim**-0.5 * LOG2_E

    @T.prim_func
    def attention(Q: T.Tensor((batch, heads, length, dim), dtype), K: T.Tensor((batch, heads, length, dim), dtype),
                  V: T.Tensor((batch, heads, length, dim), dtype), O: T.Tensor((batch, heads, length, dim), dtype)):
        with T.Kernel(T.ceildiv(length, block_m), heads, batch, threads=threads) as (bx, by, bz):
            q = T.alloc_shared((block_m, dim), dtype)
            keys = T.alloc_shared((block_n, dim), dtype)
            values = T.alloc_shared((block_n, dim), dtype)
            scores = T.alloc_fragment((block_m, block_n), "float32")
            weights = T.alloc_fragment((block_m, block_n), dtype)
            output = T.alloc_fragment((block_m, dim), "float32")
            most = T.alloc_fragment((block_m,), "float32")
            before = T.alloc_fragment((block_m,), "float32")
            rescale = T.alloc_fragment((block_m,), "float32")
            row_sum = T.alloc_fragment((block_m,), "float32")
            total = T.alloc_fragment((block_m,), "float32")
            T.copy(Q[bz, by, bx * block_m : (bx + 1) * block_m, :], q)
            T.clear(output)
            T.clear(total)
            T.fill(most, -T.infinity("float32"))
            steps = T.ceildiv((bx + 1) * block_m, block_n) if causal else T.ceildiv(length, block_n)
            for k in T.Pipelined(steps, num_stages=stages):
                T.copy(K[bz, by, k * block_n : (k + 1) * block_n, :], keys)
                if causal:
                    for i, j in T.Parallel(block_m, block_n):
                        scores[i, j] = T.if_then_else(bx * block_m + i >= k * block_n + j, 0, -T.infinity("float32"))
                else:
                    T.clear(scores)
                T.gemm(q, keys, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(most, before)
                T.reduce_max(scores, most, dim=1, clear=False)
                for i in T.Parallel(block_m):
                    rescale[i] = T.exp2((before[i] - most[i]) * power)
                for i, j in T.Parallel(block_m, block_n):
                    scores[i, j] = T.exp2(scores[i, j] * power - most[i] * power)
                T.reduce_sum(scores, row_sum, dim=1)
                for i in T.Parallel(block_m):
                    total[i] = total[i] * rescale[i] + row_sum[i]
                T.copy(scores, weights)
                for i, j in T.Parallel(block_m, dim):
                    output[i, j] *= rescale[i]
                T.copy(V[bz, by, k * block_n : (k + 1) * block_n, :], values)
                T.gemm(weights, values, output, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_m, dim):
                output[i, j] /= total[i]
            T.copy(output, O[bz, by, bx * block_m : (bx + 1) * block_m, :])

    return attention


def rms_norm(M, N, dtype, rows, threads, staged, min_blocks):
    """Y[i, :] = X[i, :] / √(mean(X[i, :]²) + ε) · w. ``staged``: rows come through shared memory."""

    @T.prim_func
    def rms_norm(X: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as bx:
            T.annotate_min_blocks_per_sm(min_blocks)
            tile = T.alloc_fragment((rows, N), "float32")
            squares = T.alloc_fragment((rows, N), "float32")
            weight = T.alloc_fragment((N,), "float32")
            scale = T.alloc_fragment((rows,), "float32")
            if staged:
                near = T.alloc_shared((rows, N), dtype)
                T.copy(X[bx * rows, 0], near)
                T.copy(near, tile)
            else:
                T.copy(X[bx * rows, 0], tile)
            T.copy(w, weight)
            for i, j in T.Parallel(rows, N):
                squares[i, j] = tile[i, j] * tile[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(rows):
                scale[i] = T.rsqrt(scale[i] / N + 1e-6)
            for i, j in T.Parallel(rows, N):
                tile[i, j] = tile[i, j] * scale[i] * weight[j]
            T.copy(tile, Y[bx * rows, 0])

    return rms_norm


def softmax(M, N, dtype, columns, threads, stages):
    """Y[i, :] = exp(X[i, :] − max) / Σ, rows in parts that are read twice; ``stages`` > 0: through shared memory, that many under way."""

    @T.prim_func
    def softmax(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            tile = T.alloc_fragment((1, columns), "float32")
            most = T.alloc_fragment((1,), "float32")
            before = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            more = T.alloc_fragment((1,), "float32")
            near = T.alloc_shared((1, columns), dtype)
            T.fill(most, -T.infinity("float32"))
            T.clear(total)
            for k in T.Pipelined(N // columns, num_stages=stages) if stages else T.serial(N // columns):
                if stages:
                    T.copy(X[bx, k * columns], near)
                    T.copy(near, tile)
                else:
                    T.copy(X[bx, k * columns], tile)
                T.copy(most, before)
                T.reduce_max(tile, most, dim=1, clear=False)
                for i, j in T.Parallel(1, columns):
                    tile[i, j] = T.exp2((tile[i, j] - most[i]) * LOG2_E)
                T.reduce_sum(tile, more, dim=1)
                for i in T.Parallel(1):
                    total[i] = total[i] * T.exp2((before[i] - most[i]) * LOG2_E) + more[i]
            for i in T.Parallel(1):
                total[i] = 1.0 / total[i]
            for k in T.serial(N // columns):
                T.copy(X[bx, k * columns], tile)
                for i, j in T.Parallel(1, columns):
                    tile[i, j] = T.exp2((tile[i, j] - most[i]) * LOG2_E) * total[i]
                T.copy(tile, Y[bx, k * columns])

    return softmax


def column_sum(M, N, dtype, parts, rows, columns, threads):
    """y[part, j] = Σ of a part of X[:, j]."""
    height = M // parts

    @T.prim_func
    def column_sum(X: T.Tensor((M, N), dtype), y: T.Tensor((parts, N), "float32")):
        with T.Kernel(T.ceildiv(N, columns), parts, threads=threads) as (bx, by):
            tile = T.alloc_fragment((rows, columns), "float32")
            total = T.alloc_fragment((rows, columns), "float32")
            result = T.alloc_fragment((columns,), "float32")
            T.clear(total)
            for k in T.serial(height // rows):
                T.copy(X[by * height + k * rows, bx * columns], tile)
                for i, j in T.Parallel(rows, columns):
                    total[i, j] += tile[i, j]
            T.reduce_sum(total, result, dim=0)
            T.copy(result, y[by, bx * columns])

    return column_sum


def distances(M, N, K, block_m, block_n, block_k, stages, threads):
    """D[i, j] = Σ |A[i, :] − B[j, :]|: no matrix instruction computes it, and nothing in the compiler was written for it."""

    @T.prim_func
    def distances(A: T.Tensor((M, K), "float32"), B: T.Tensor((N, K), "float32"), D: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a = T.alloc_shared((block_m, block_k), "float32")
            b = T.alloc_shared((block_n, block_k), "float32")
            sums = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(sums)
            for k in T.Pipelined(K // block_k, num_stages=stages):
                T.copy(A[by * block_m, k * block_k], a)
                T.copy(B[bx * block_n, k * block_k], b)
                for l in T.serial(block_k):
                    for i, j in T.Parallel(block_m, block_n):
                        sums[i, j] += T.abs(a[i, l] - b[j, l])
            T.copy(sums, D[by * block_m, bx * block_n])

    return distances
