# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding, SwiGLU and its gradient, and transposition: each byte is read once and written once."""

import kiln.language as T

from .rows import RUN


def rope(tokens, heads, dim, dtype="bfloat16", rows=2, threads=256):
    """Rotary embedding of the halves of each head: y = (x₁ · cos − x₂ · sin, x₂ · cos + x₁ · sin)."""
    half = dim // 2

    @T.prim_func
    def rope(x: T.Tensor((tokens, heads, dim), dtype), cos: T.Tensor((tokens, half), "float32"), sin: T.Tensor((tokens, half), "float32"),
             y: T.Tensor((tokens, heads, dim), dtype)):
        with T.Kernel(T.ceildiv(tokens, rows), threads=threads) as bx:
            for i, h, j in T.Parallel(rows, heads, half):
                y[bx * rows + i, h, j] = x[bx * rows + i, h, j] * cos[bx * rows + i, j] - x[bx * rows + i, h, half + j] * sin[bx * rows + i, j]
                y[bx * rows + i, h, half + j] = x[bx * rows + i, h, half + j] * cos[bx * rows + i, j] + x[bx * rows + i, h, j] * sin[bx * rows + i, j]

    return rope.with_outputs(-1)


def swiglu(M, N, dtype="bfloat16", rows=4, columns=1024, threads=256):
    """y = silu(x[:, :N]) · x[:, N:]."""

    @T.prim_func
    def swiglu(x: T.Tensor((M, 2 * N), dtype), y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=threads) as (bx, by):
            gate = T.alloc_fragment((rows, columns), "float32")
            value = T.alloc_fragment((rows, columns), "float32")
            T.copy(x[by * rows, bx * columns], gate)
            T.copy(x[by * rows, N + bx * columns], value)
            for i, j in T.Parallel(rows, columns):
                value[i, j] = gate[i, j] * T.sigmoid(gate[i, j]) * value[i, j]
            T.copy(value, y[by * rows, bx * columns])

    return swiglu.with_outputs(-1)


def swiglu_backward(M, N, dtype, rows=4, columns=1024, threads=256):
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


def transpose(M, N, dtype="bfloat16", block_m=256, block_n=128, threads=512, min_blocks=2):
    """y = xᵀ. Neighbouring blocks write neighbours, each whole runs of `block_m` elements, from a tile in shared memory. Of its rows those
    that a warp writes at a time, eight columns of x apart, are neighbours: they lie in different banks."""

    @T.prim_func
    def transpose(x: T.Tensor((M, N), dtype), y: T.Tensor((N, M), dtype)):
        with T.Kernel(T.ceildiv(M, block_m), T.ceildiv(N, block_n), threads=threads) as (bx, by):
            T.annotate_min_blocks_per_sm(min_blocks)
            tile = T.alloc_shared((RUN, block_n // RUN, block_m), dtype)
            for i, j in T.Parallel(block_n, block_m):
                tile[i % RUN, i // RUN, j] = x[bx * block_m + j, by * block_n + i]
            for i, j in T.Parallel(block_n, block_m):
                y[by * block_n + i, bx * block_m + j] = tile[i % RUN, i // RUN, j]

    return transpose.with_outputs(-1)
