# SPDX-License-Identifier: Apache-2.0
"""Products of 8-bit floats with scales."""

import kiln.language as T

FP8 = "float8_e4m3fn"
SCALED = 128  # elements along k (and rows of the weights) that share a scale


def block_scaled(M, N, K, out_dtype="bfloat16", block_m=128, block_n=256, block_k=SCALED, stages=3, threads=256, staged_scales=False):
    """C = Σ over blocks of 128 along k of (A · Bᵀ) · scale_a · scale_b: A is (M, K) and B (N, K) of e4m3, scale_a (K/128, M) and
    scale_b (N/128, K/128) of float32. The block's columns are summed up in strips that share scales, its steps in groups that do.
    ``staged_scales``: those of A come with its tiles, which is the better way where steps are short, instead of ahead in registers."""
    if (block_n % SCALED and SCALED % block_n) or block_k % SCALED:
        raise ValueError(f"blocks of {block_n} columns and {block_k} along k cut groups of {SCALED} that share scales: choose multiples of it, or a "
                         "`block_n` that divides it")
    width = min(block_n, SCALED)
    strips, groups = range(block_n // width), range(block_k // SCALED)
    steps, rows = -(-K // SCALED), -(-N // SCALED)

    @T.prim_func
    def block_scaled(A: T.Tensor((M, K), FP8), B: T.Tensor((N, K), FP8), scale_a: T.Tensor((steps, M), "float32"),
                     scale_b: T.Tensor((rows, steps), "float32"), C: T.Tensor((M, N), out_dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a_shared = T.alloc_shared((block_m, block_k), FP8)
            b_shared = [T.alloc_shared((width, block_k), FP8) for _ in strips]
            if staged_scales:
                s_shared = T.alloc_shared((len(groups), block_m), "float32")
            partial = T.alloc_fragment((block_m, width), "float32")
            accum = [T.alloc_fragment((block_m, width), "float32") for _ in strips]
            scale = [T.alloc_fragment((block_m,), "float32") for _ in strips]
            for strip in strips:
                T.clear(accum[strip])
            for ko in T.Pipelined(T.ceildiv(steps, len(groups)), num_stages=stages):
                T.copy(A[by * block_m, ko * block_k], a_shared)
                for strip in strips:
                    T.copy(B[bx * block_n + strip * width, ko * block_k], b_shared[strip])
                if staged_scales:
                    T.copy(scale_a[ko * len(groups), by * block_m], s_shared)
                for group in groups:
                    step = ko * len(groups) + group
                    depth = slice(group * SCALED, (group + 1) * SCALED)
                    for i in T.Parallel(block_m):
                        for strip in strips:
                            scale[strip][i] = s_shared[group, i] if staged_scales else scale_a[step, by * block_m + i]
                            scale[strip][i] *= scale_b[(bx * block_n + strip * width) // SCALED, step]
                    for strip in strips:
                        T.gemm(a_shared[:, depth], b_shared[strip][:, depth], partial, transpose_B=True, clear_accum=True)
                        for i, j in T.Parallel(block_m, width):
                            accum[strip][i, j] += partial[i, j] * scale[strip][i]
            for strip in strips:
                T.copy(accum[strip], C[by * block_m, bx * block_n + strip * width])

    return block_scaled.with_outputs(-1)
