# SPDX-License-Identifier: Apache-2.0
"""Gradients of the row-wise functions, rows of any length: a block has one row, ``columns`` of it at a time; sums first, then the
results."""

import kiln.language as T


def rms_norm(M, N, dtype, eps, columns=4096, threads=256):
    """dx for dy, and 1/√(mean(x²) + eps) of each row: rstd · (g − x̂ · mean(g · x̂)), g = dy · w, x̂ = x · rstd."""

    @T.prim_func
    def rms_norm_backward(dy: T.Tensor((M, N), dtype), x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype), dx: T.Tensor((M, N), dtype),
                          rstd: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            squares = T.alloc_fragment((columns,), "float32")
            products = T.alloc_fragment((columns,), "float32")
            scale = T.alloc_fragment((1,), "float32")
            along = T.alloc_fragment((1,), "float32")
            T.clear(squares)
            T.clear(products)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    value = T.cast(x[bx, k * columns + j], "float32")
                    squares[j] += value * value
                    products[j] += T.cast(dy[bx, k * columns + j], "float32") * w[k * columns + j] * value
            T.reduce_sum(squares, scale, dim=0)
            T.reduce_sum(products, along, dim=0)
            for i in T.Parallel(1):
                scale[i] = T.rsqrt(scale[i] / N + eps)
                along[i] = along[i] / N * scale[i] * scale[i]
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    of_normal = T.cast(dy[bx, k * columns + j], "float32") * w[k * columns + j]
                    dx[bx, k * columns + j] = scale[0] * (of_normal - T.cast(x[bx, k * columns + j], "float32") * along[0])
            T.copy(scale, rstd[bx])

    return rms_norm_backward.with_outputs([3, 4])


def layer_norm(M, N, dtype, columns=4096, threads=256):
    """As ``kiln.examples.bandwidth.layer_norm_backward``."""

    @T.prim_func
    def layer_norm_backward_parts(dy: T.Tensor((M, N), dtype), x: T.Tensor((M, N), dtype), w: T.Tensor((N,), dtype),
                                  mean: T.Tensor((M,), "float32"), rstd: T.Tensor((M,), "float32"), dx: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as bx:
            gradients = T.alloc_fragment((columns,), "float32")
            products = T.alloc_fragment((columns,), "float32")
            first = T.alloc_fragment((1,), "float32")
            second = T.alloc_fragment((1,), "float32")
            T.clear(gradients)
            T.clear(products)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    gradient = T.cast(dy[bx, k * columns + j], "float32") * w[k * columns + j]
                    gradients[j] += gradient
                    products[j] += gradient * ((T.cast(x[bx, k * columns + j], "float32") - mean[bx]) * rstd[bx])
            T.reduce_sum(gradients, first, dim=0)
            T.reduce_sum(products, second, dim=0)
            for k in T.serial(T.ceildiv(N, columns)):
                for j in T.Parallel(columns):
                    of_normal = T.cast(dy[bx, k * columns + j], "float32") * w[k * columns + j]
                    normal = (T.cast(x[bx, k * columns + j], "float32") - mean[bx]) * rstd[bx]
                    dx[bx, k * columns + j] = rstd[bx] * (of_normal - (first[0] + normal * second[0]) / N)

    return layer_norm_backward_parts.with_outputs(-1)


def norm_weights(M, N, dtype, rows=32, columns=64, threads=256):
    """dw[j] = Σ dy[:, j] · (x[:, j] − mean) · rstd and db[j] = Σ dy[:, j]: a block has a strip of columns."""

    @T.prim_func
    def norm_weight_backward(dy: T.Tensor((M, N), dtype), x: T.Tensor((M, N), dtype), mean: T.Tensor((M,), "float32"),
                             rstd: T.Tensor((M,), "float32"),
                             dw: T.Tensor((N,), dtype), db: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, columns), threads=threads) as bx:
            weights = T.alloc_fragment((rows, columns), "float32")
            biases = T.alloc_fragment((rows, columns), "float32")
            weight = T.alloc_fragment((columns,), "float32")
            bias = T.alloc_fragment((columns,), "float32")
            T.clear(weights)
            T.clear(biases)
            for k in T.serial(T.ceildiv(M, rows)):
                for i, j in T.Parallel(rows, columns):
                    gradient = T.cast(dy[k * rows + i, bx * columns + j], "float32")
                    normal = (T.cast(x[k * rows + i, bx * columns + j], "float32") - mean[k * rows + i]) * rstd[k * rows + i]
                    weights[i, j] += gradient * normal
                    biases[i, j] += gradient
            T.reduce_sum(weights, weight, dim=0)
            T.reduce_sum(biases, bias, dim=0)
            T.copy(weight, dw[bx * columns])
            T.copy(bias, db[bx * columns])

    return norm_weight_backward.with_outputs([4, 5])


def softmax(M, N, dtype, columns=4096, threads=256):
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


def cross_entropy(M, N, dtype, columns=4096, threads=256):
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


def swiglu(M, N, dtype, rows=4, columns=1024, threads=256):
    """dx of silu(gate) · value for dy; gate and value are x[:, 0, :] and x[:, 1, :]."""

    @T.prim_func
    def swiglu_backward(dy: T.Tensor((M, N), dtype), x: T.Tensor((M, 2, N), dtype), dx: T.Tensor((M, 2, N), dtype)):
        with T.Kernel(T.ceildiv(M, rows), T.ceildiv(N, columns), threads=threads) as (by, bx):
            for i, j in T.Parallel(rows, columns):
                gate = T.cast(x[by * rows + i, 0, bx * columns + j], "float32")
                value = T.cast(x[by * rows + i, 1, bx * columns + j], "float32")
                gradient = T.cast(dy[by * rows + i, bx * columns + j], "float32")
                share = T.sigmoid(gate)
                dx[by * rows + i, 0, bx * columns + j] = gradient * value * share * (1.0 + gate * (1.0 - share))
                dx[by * rows + i, 1, bx * columns + j] = gradient * gate * share

    return swiglu_backward.with_outputs(-1)
