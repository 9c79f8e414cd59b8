# SPDX-License-Identifier: Apache-2.0
"""Gradients of LayerNorm, and of the weights of both norms. See ``rows`` for what the variants keep where."""

import kiln.language as T


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


def layer_norm_backward_long(M, N, dtype="bfloat16", blocks=128, stages=2, threads=512):
    """As ``layer_norm_backward``; `blocks` blocks share the rows."""
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


def layer_norm_backward_parts(M, N, dtype, columns=4096, threads=256):
    """As ``layer_norm_backward``, of rows of any length."""

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


def norm_weight_backward(M, N, dtype, rows=32, columns=64, threads=256):
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
