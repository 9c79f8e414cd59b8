# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention. The weights are computed again, from the scores and the logarithm of each row's sum.

With P the weights: dV = Pᵀ · dO, dS = P ∘ (dO · Vᵀ − Δ) with Δ = Σ dO ∘ O of each row, dK = dSᵀ · Q · scale and dQ = dS · K · scale."""

import kiln.language as T

from .rows import LOG2_E


def attention_backward(batch, heads, kv_heads, seq_len, kv_len, dim, causal, scale, dtype, block_m, block_n, stages, threads, columns, exchanged,
                       rows, row_keys, turned, by_rows, in_flight, heads_apart):
    """dQ, dK and dV of ``attention`` for dO, and ROWS. LSE: (batch, heads, seq_len), log Σ exp of each row's scaled scores.

    A block has `block_n` keys and goes over all queries that see them, `block_m` at a time; the transposed scores lie so in registers that they are
    operands of dV and dK. It adds its part of dQ to float32 sums, in any order among blocks. ``by_rows``: blocks of their own, of `rows` queries,
    go over `row_keys` keys at a time and compute dQ, in one order. ROWS holds, for each `block_m` queries, LSE in powers of two, then Δ; no weight
    remains of queries beyond the last. ``turned``: the sums of a block of queries lie column by column, so that lanes which hold neighbouring rows
    add to whole sectors of memory. ``in_flight``: products run while the threads compute. That of dV starts before dS is there, and that of dQ
    before that of dK, which runs while the other is added. ``heads_apart``: each head has blocks of its own among those that share keys; they add
    their dK and dV to float32 sums. ``columns``, ``exchanged``: as ``attention``'s."""
    group = heads // kv_heads
    power = scale * LOG2_E
    blocks = T.ceildiv(seq_len, block_m)
    queries, keys = (batch, seq_len, heads, dim), (batch, kv_len, kv_heads, dim)
    in_turn = 1 if heads_apart else group  # heads of a block
    piece = columns if columns <= 64 else columns // 2  # of a sum of dK or dV, that is added at once

    @T.macro
    def mask(weights, q, k, turned):
        """Of queries from q and keys from k on. ``turned``: the first dimension is that of keys. Where no dQ is added on the way, the compiler
        divides the loop around: steps without masks have registers for their values."""
        rows_of, columns_of = weights.shape
        if (causal and by_rows) or k + (rows_of if turned else columns_of) > (q + kv_len - seq_len + 1 if causal else kv_len):
            for i, j in T.Parallel(rows_of, columns_of):
                key, query = (k + i, q + j) if turned else (k + j, q + i)
                weights[i, j] = T.if_then_else(query + kv_len - seq_len >= key if causal else key < kv_len, weights[i, j], 0)

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
    def add(part, sums, bx, of, bz, column):
        """`piece` columns from this one on."""
        for i, j in T.Parallel(block_n, piece):
            T.atomic_add(sums[bz, bx * block_n + i, of, column + j], part[i, column + j])

    @T.macro
    def of_keys(Q, K, V, dO, ROWS, SUMS, dK, dV, bx, by, bz):
        of = by * in_turn // group  # the head of the keys
        k_shared = T.alloc_shared((block_n, columns), dtype)
        v_shared = T.alloc_shared((block_n, columns), dtype)
        q_shared = T.alloc_shared((block_m, columns), dtype)
        do_shared = T.alloc_shared((block_m, columns), dtype)
        rows_shared = T.alloc_shared((1, 2 * block_m), "float32")
        slopes_shared = T.alloc_shared((block_n, block_m), dtype)
        weights = T.alloc_fragment((block_n, block_m), "float32")
        slopes = T.alloc_fragment((block_n, block_m), "float32")
        narrow_weights = (T.alloc_shared if exchanged else T.alloc_fragment)((block_n, block_m), dtype)
        narrow_slopes = slopes_shared if exchanged else T.alloc_fragment((block_n, block_m), dtype)
        dq = T.alloc_fragment((block_m, columns), "float32")
        dk = T.alloc_fragment((block_n, columns), "float32")
        dv = T.alloc_fragment((block_n, columns), "float32")

        T.copy(K[bz, bx * block_n : (bx + 1) * block_n, of, 0:columns], k_shared)
        T.copy(V[bz, bx * block_n : (bx + 1) * block_n, of, 0:columns], v_shared)
        T.clear(dk)
        T.clear(dv)
        first = T.max(bx * block_n + seq_len - kv_len, 0) // block_m if causal else 0
        for member in range(1) if in_turn == 1 else T.serial(in_turn):
            head = by * in_turn + member
            for step in T.Pipelined(blocks - first, num_stages=stages):
                row = first + step
                q = row * block_m
                T.copy(Q[bz, q : q + block_m, head, 0:columns], q_shared)
                T.copy(ROWS[bz, head, row, :], rows_shared)
                T.copy(dO[bz, q : q + block_m, head, 0:columns], do_shared)
                T.gemm(k_shared, q_shared, weights, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(v_shared, do_shared, slopes, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_n, block_m):
                    weights[i, j] = T.exp2(weights[i, j] * power - rows_shared[0, j])
                mask(weights, q, bx * block_n, True)
                if in_flight:
                    T.copy(weights, narrow_weights)
                    T.gemm(narrow_weights, do_shared, dv, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_n, block_m):
                    slopes[i, j] = weights[i, j] * (slopes[i, j] - rows_shared[0, block_m + j])
                if not in_flight:
                    T.copy(weights, narrow_weights)
                T.copy(slopes, narrow_slopes)
                if not by_rows and not exchanged:
                    T.copy(narrow_slopes, slopes_shared)
                if not in_flight:
                    T.gemm(narrow_weights, do_shared, dv, policy=T.GemmWarpPolicy.FullRow)
                    T.gemm(narrow_slopes, q_shared, dk, policy=T.GemmWarpPolicy.FullRow)
                if not by_rows:
                    T.gemm(slopes_shared, k_shared, dq, transpose_A=True, clear_accum=True)
                if in_flight:
                    T.gemm(narrow_slopes, q_shared, dk, policy=T.GemmWarpPolicy.FullRow)
                if not by_rows:
                    for i, j in T.Parallel(block_m, columns):
                        T.atomic_add(SUMS[bz, head, row, j, i] if turned else SUMS[bz, head, row, i, j], dq[i, j])
        if heads_apart:
            add(dv, dV, bx, of, bz, 0)
            add(dk, dK, bx, of, bz, 0)
            if piece < columns:
                add(dv, dV, bx, of, bz, piece)
                add(dk, dK, bx, of, bz, piece)
        else:
            T.copy(dv, dV[bz, bx * block_n : (bx + 1) * block_n, of, 0:columns])
            for i, j in T.Parallel(block_n, columns):
                dk[i, j] *= scale
            T.copy(dk, dK[bz, bx * block_n : (bx + 1) * block_n, of, 0:columns])

    @T.macro
    def of_queries(Q, K, V, dO, ROWS, dQ, bx, by, bz):
        q_shared = T.alloc_shared((rows, columns), dtype)
        do_shared = T.alloc_shared((rows, columns), dtype)
        k_shared = T.alloc_shared((row_keys, columns), dtype)
        v_shared = T.alloc_shared((row_keys, columns), dtype)
        weights = T.alloc_fragment((rows, row_keys), "float32")
        slopes = T.alloc_fragment((rows, row_keys), "float32")
        narrow_slopes = (T.alloc_shared if exchanged else T.alloc_fragment)((rows, row_keys), dtype)
        dq = T.alloc_fragment((rows, columns), "float32")
        total = T.alloc_fragment((rows,), "float32")
        delta = T.alloc_fragment((rows,), "float32")

        T.copy(Q[bz, bx * rows : (bx + 1) * rows, by, 0:columns], q_shared)
        T.copy(dO[bz, bx * rows : (bx + 1) * rows, by, 0:columns], do_shared)
        for i in T.Parallel(rows):
            total[i] = ROWS[bz, by, (bx * rows + i) // block_m, (bx * rows + i) % block_m]
            delta[i] = ROWS[bz, by, (bx * rows + i) // block_m, block_m + (bx * rows + i) % block_m]
        T.clear(dq)
        all_keys = T.ceildiv(kv_len, row_keys)
        seen = T.min(all_keys, T.ceildiv((bx + 1) * rows + kv_len - seq_len, row_keys)) if causal else all_keys
        for k in T.Pipelined(seen, num_stages=stages):
            T.copy(K[bz, k * row_keys : (k + 1) * row_keys, by // group, 0:columns], k_shared)
            T.copy(V[bz, k * row_keys : (k + 1) * row_keys, by // group, 0:columns], v_shared)
            T.gemm(q_shared, k_shared, weights, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
            T.gemm(do_shared, v_shared, slopes, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(rows, row_keys):
                weights[i, j] = T.exp2(weights[i, j] * power - total[i])
            mask(weights, bx * rows, k * row_keys, False)
            for i, j in T.Parallel(rows, row_keys):
                slopes[i, j] = weights[i, j] * (slopes[i, j] - delta[i])
            T.copy(slopes, narrow_slopes)
            T.gemm(narrow_slopes, k_shared, dq, policy=T.GemmWarpPolicy.FullRow)
        for i, j in T.Parallel(rows, columns):
            dq[i, j] *= scale
        T.copy(dq, dQ[bz, bx * rows : (bx + 1) * rows, by, 0:columns])

    # Sums that a program does without have one element.
    of_rows = (batch, heads, blocks, *((columns, block_m) if turned else (block_m, columns))) if not by_rows else (1,)
    of_heads = (batch, kv_len, kv_heads, columns) if heads_apart else (1,)

    @T.prim_func
    def attention_backward(Q: T.Tensor(queries, dtype), K: T.Tensor(keys, dtype), V: T.Tensor(keys, dtype), O: T.Tensor(queries, dtype),
                           LSE: T.Tensor((batch, heads, seq_len), "float32"), dO: T.Tensor(queries, dtype), dQ: T.Tensor(queries, dtype),
                           dK: T.Tensor(keys, dtype), dV: T.Tensor(keys, dtype),
                           ROWS: T.Tensor((batch, heads, blocks, 2 * block_m), "float32"), SUMS: T.Tensor(of_rows, "float32"),
                           KSUMS: T.Tensor(of_heads, "float32"), VSUMS: T.Tensor(of_heads, "float32")):
        with T.Kernel(blocks, heads, batch, threads=256) as (bx, by, bz):
            prepare(O, LSE, dO, ROWS, bx, by, bz)
            if not by_rows:
                for i, j in T.Parallel(*of_rows[3:]):
                    SUMS[bz, by, bx, i, j] = 0.0
        if heads_apart:
            with T.Kernel(T.ceildiv(kv_len, block_n), kv_heads, batch, threads=256) as (bx, by, bz):
                for i, j in T.Parallel(block_n, columns):
                    KSUMS[bz, bx * block_n + i, by, j] = 0.0
                    VSUMS[bz, bx * block_n + i, by, j] = 0.0
        with T.Kernel(T.ceildiv(kv_len, block_n), heads if heads_apart else kv_heads, batch, threads=threads) as (bx, by, bz):
            of_keys(Q, K, V, dO, ROWS, SUMS, KSUMS if heads_apart else dK, VSUMS if heads_apart else dV, bx, by, bz)
        if heads_apart:
            with T.Kernel(T.ceildiv(kv_len, block_n), kv_heads, batch, threads=256) as (bx, by, bz):
                for i, j in T.Parallel(block_n, columns):
                    dK[bz, bx * block_n + i, by, j] = KSUMS[bz, bx * block_n + i, by, j] * scale
                    dV[bz, bx * block_n + i, by, j] = VSUMS[bz, bx * block_n + i, by, j]
        if by_rows:
            with T.Kernel(T.ceildiv(seq_len, rows), heads, batch, threads=threads) as (bx, by, bz):
                of_queries(Q, K, V, dO, ROWS, dQ, bx, by, bz)
        else:
            with T.Kernel(blocks, heads, batch, threads=256) as (bx, by, bz):
                for i, j in T.Parallel(block_m, columns):
                    dQ[bz, bx * block_m + i, by, j] = (SUMS[bz, by, bx, j, i] if turned else SUMS[bz, by, bx, i, j]) * scale

    return attention_backward.with_outputs(range(6, 13))
