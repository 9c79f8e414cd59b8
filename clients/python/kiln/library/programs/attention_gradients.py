# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention. What a weight was is computed again, from the scores and the logarithm of its row's sum."""

import kiln.language as T

from .rows import LOG2_E


def attention_backward(batch, heads, kv_heads, seq_len, kv_len, dim, causal, scale, dtype, block_m, block_n, stages, threads, exchanged,
                       atomic):
    """dQ, dK and dV of ``attention`` for dO. With P the weights and S the scores before the scale: dV = Pᵀ · dO, dS = P ∘ (dO · Vᵀ − Δ) with
    Δ = Σ dO ∘ O of each row, dK = dSᵀ · Q · scale and dQ = dS · K · scale.

    LSE: (batch, heads, seq_len), log Σ exp of each row's scaled scores. ROWS holds what a block needs of each query, block by block: LSE in powers of
    two, then Δ; no weight is left of queries beyond the last. A block has `block_n` keys and goes over the queries of all heads that share them.
    ``atomic``: the blocks add their parts of dQ in float32, in any order, to SUMS; else no dQ comes out, and SUMS is not used.
    ``exchanged``: weights lie in shared memory, not in registers."""
    group = heads // kv_heads
    power = scale * LOG2_E
    blocks = T.ceildiv(seq_len, block_m)
    queries, keys = (batch, seq_len, heads, dim), (batch, kv_len, kv_heads, dim)
    weight_tile = T.alloc_shared if exchanged else T.alloc_fragment

    @T.macro
    def mask(weights, q, k):
        if k + block_n > (q + kv_len - seq_len + 1 if causal else kv_len):
            for i, j in T.Parallel(block_n, block_m):
                if causal:
                    weights[i, j] = T.if_then_else(q + j + kv_len - seq_len >= k + i, weights[i, j], 0)
                else:
                    weights[i, j] = T.if_then_else(k + i < kv_len, weights[i, j], 0)

    @T.macro
    def prepare(O, LSE, dO, ROWS, bx, by, bz):
        products = T.alloc_fragment((block_m, dim), "float32")
        delta = T.alloc_fragment((block_m,), "float32")
        for i, j in T.Parallel(block_m, dim):
            products[i, j] = T.cast(O[bz, bx * block_m + i, by, j], "float32") * T.cast(dO[bz, bx * block_m + i, by, j], "float32")
        T.reduce_sum(products, delta, dim=1)
        T.copy(delta, ROWS[bz, by, bx, block_m])
        for i in T.Parallel(block_m):
            ROWS[bz, by, bx, i] = T.if_then_else(bx * block_m + i < seq_len, LSE[bz, by, bx * block_m + i] * LOG2_E, T.infinity("float32"))

    @T.macro
    def keys_and_values(Q, K, V, dO, ROWS, SUMS, dK, dV, bx, by, bz):
        k_shared = T.alloc_shared((block_n, dim), dtype)
        v_shared = T.alloc_shared((block_n, dim), dtype)
        q_shared = T.alloc_shared((block_m, dim), dtype)
        do_shared = T.alloc_shared((block_m, dim), dtype)
        rows_shared = T.alloc_shared((1, 2 * block_m), "float32")
        slopes_shared = T.alloc_shared((block_n, block_m), dtype)
        weights = T.alloc_fragment((block_n, block_m), "float32")
        slopes = T.alloc_fragment((block_n, block_m), "float32")
        narrow_weights = weight_tile((block_n, block_m), dtype)
        narrow_slopes = slopes_shared if exchanged else T.alloc_fragment((block_n, block_m), dtype)
        dq = T.alloc_fragment((block_m, dim), "float32")
        dk = T.alloc_fragment((block_n, dim), "float32")
        dv = T.alloc_fragment((block_n, dim), "float32")

        T.copy(K[bz, bx * block_n : (bx + 1) * block_n, by, :], k_shared)
        T.copy(V[bz, bx * block_n : (bx + 1) * block_n, by, :], v_shared)
        T.clear(dk)
        T.clear(dv)
        first = T.max(bx * block_n + seq_len - kv_len, 0) // block_m if causal else 0
        for member in range(group) if group == 1 else T.serial(group):
            head = by * group + member
            for step in T.Pipelined(blocks - first, num_stages=stages):
                row = first + step
                q = row * block_m
                T.copy(Q[bz, q : q + block_m, head, :], q_shared)
                T.copy(ROWS[bz, head, row, :], rows_shared)
                T.copy(dO[bz, q : q + block_m, head, :], do_shared)
                T.gemm(k_shared, q_shared, weights, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(v_shared, do_shared, slopes, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_n, block_m):
                    weights[i, j] = T.exp2(weights[i, j] * power - rows_shared[0, j])
                mask(weights, q, bx * block_n)
                for i, j in T.Parallel(block_n, block_m):
                    slopes[i, j] = weights[i, j] * (slopes[i, j] - rows_shared[0, block_m + j])
                T.copy(weights, narrow_weights)
                T.copy(slopes, narrow_slopes)
                if atomic and not exchanged:
                    T.copy(narrow_slopes, slopes_shared)
                T.gemm(narrow_weights, do_shared, dv, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(narrow_slopes, q_shared, dk, policy=T.GemmWarpPolicy.FullRow)
                if atomic:
                    T.gemm(slopes_shared, k_shared, dq, transpose_A=True, clear_accum=True)
                    for i, j in T.Parallel(block_m, dim):
                        T.atomic_add(SUMS[bz, head, row, i, j], dq[i, j])
        T.copy(dv, dV[bz, bx * block_n : (bx + 1) * block_n, by, :])
        for i, j in T.Parallel(block_n, dim):
            dk[i, j] *= scale
        T.copy(dk, dK[bz, bx * block_n : (bx + 1) * block_n, by, :])

    @T.prim_func
    def attention_backward(Q: T.Tensor(queries, dtype), K: T.Tensor(keys, dtype), V: T.Tensor(keys, dtype), O: T.Tensor(queries, dtype),
                           LSE: T.Tensor((batch, heads, seq_len), "float32"), dO: T.Tensor(queries, dtype), dQ: T.Tensor(queries, dtype),
                           dK: T.Tensor(keys, dtype), dV: T.Tensor(keys, dtype),
                           ROWS: T.Tensor((batch, heads, blocks, 2 * block_m), "float32")):
        SUMS = T.alloc_global((batch, heads, blocks, block_m, dim), "float32")
        with T.Kernel(blocks, heads, batch, threads=256) as (bx, by, bz):
            prepare(O, LSE, dO, ROWS, bx, by, bz)
            for i, j in T.Parallel(block_m, dim):
                SUMS[bz, by, bx, i, j] = 0.0
        with T.Kernel(T.ceildiv(kv_len, block_n), kv_heads, batch, threads=threads) as (bx, by, bz):
            keys_and_values(Q, K, V, dO, ROWS, SUMS, dK, dV, bx, by, bz)
        with T.Kernel(blocks, heads, batch, threads=256) as (bx, by, bz):
            for i, j in T.Parallel(block_m, dim):
                dQ[bz, bx * block_m + i, by, j] = SUMS[bz, by, bx, i, j] * scale

    return attention_backward.with_outputs([6, 7, 8, 9])
