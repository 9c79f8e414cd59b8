# SPDX-License-Identifier: Apache-2.0
"""Attention of the few last tokens of sequences whose keys and values lie in a cache."""

import kiln.language as T

from .rows import LOG2_E
from .running import LOWEST, add_sums, running_softmax, weigh
from .splits import combine, share


def decode(batch, tokens, heads, kv_heads, kv_len, dim, scale, dtype, splits, page, pages, sinks, block_m, block_n, stages, threads):
    """O = softmax(Q · Kᵀ · scale) · V: Q and O are (batch, tokens, heads, dim), ``tokens`` few; K and V (batch, kv_len, kv_heads, dim), of
    which sequence b has the first lengths[b] tokens. Token i of Q sees keys up to lengths[b] − tokens + i. With ``page`` above 0, K and V are
    (pages, page, kv_heads, dim), token t of sequence b lies in page table[b, t // page], and kv_len counts the table's columns. ``sinks``: head h has
    a score of its own, S[h], which takes its part of the weights and brings no value.

    The heads of Q that share keys, and the tokens, are the rows of one tile. ``splits`` blocks share a sequence's keys; a second kernel adds up
    what they leave. Steps whose keys all rows see come first and are not masked; the last ones, which read no row beyond the length, follow."""
    group = heads // kv_heads
    rows = tokens * group
    tiles = -(-rows // block_m)
    cache = (pages, page, kv_heads, dim) if page else (batch, kv_len, kv_heads, dim)
    table_shape = (batch, kv_len) if page else (1, 1)
    power = scale * LOG2_E
    together = page == 0 or page % block_n == 0

    def element(cache, table, b, first, i, head, j):
        """Element j of token first + i. Where pages hold whole steps, the page is the step's."""
        if page == 0:
            return cache[b, first + i, head, j]
        if together:
            return cache[table[b, first // page], first % page + i, head, j]
        return cache[table[b, (first + i) // page], (first + i) % page, head, j]

    @T.macro
    def load(cache, table, b, first, head, tile):
        if not together:
            for i, j in T.Parallel(block_n, dim):
                tile[i, j] = element(cache, table, b, first, i, head, j)
        elif page:
            T.copy(cache[table[b, first // page], first % page : first % page + block_n, head, :], tile)
        else:
            T.copy(cache[b, first : first + block_n, head, :], tile)

    @T.macro
    def load_last(cache, table, b, first, length, head, tile):
        for i, j in T.Parallel(block_n, dim):
            tile[i, j] = T.if_then_else(first + i < length, element(cache, table, b, first, i, head, j), 0)

    @T.prim_func
    def decode(Q: T.Tensor((batch, tokens, heads, dim), dtype), K: T.Tensor(cache, dtype), V: T.Tensor(cache, dtype),
               lengths: T.Tensor((batch,), "int32"), table: T.Tensor(table_shape, "int32"),
               S: T.Tensor((heads if sinks else 1,), "float32" if sinks else "int32"), O: T.Tensor((batch, tokens, heads, dim), dtype)):
        parts = T.alloc_global((splits, batch, tokens, heads, dim), "float32")
        sizes = T.alloc_global((splits, batch, tokens, heads), "float32")
        with T.Kernel(splits, kv_heads * tiles, batch, threads=threads) as (bx, by, bz):
            q_shared = T.alloc_shared((block_m, dim), dtype)
            k_shared = T.alloc_shared((block_n, dim), dtype)
            v_shared = T.alloc_shared((block_n, dim), dtype)
            k_last = T.alloc_shared((block_n, dim), dtype)
            v_last = T.alloc_shared((block_n, dim), dtype)
            scores = T.alloc_fragment((block_m, block_n), "float32")
            weights = T.alloc_shared((block_m, block_n), dtype)
            output = T.alloc_fragment((block_m, dim), "float32")
            running = running_softmax(block_m, block_n)

            T.assume(batch > 0)
            T.assume(kv_len > 0)
            head = by // tiles
            row = by % tiles * block_m
            length = T.min(lengths[bz], kv_len * (page or 1))
            steps = T.ceildiv(length, block_n)
            first = T.min(bx * T.ceildiv(steps, splits), steps)
            end = T.min(first + T.ceildiv(steps, splits), steps)
            whole = T.max(first, T.min(end, (length - tokens + 1) // block_n))
            for i, j in T.Parallel(block_m, dim):
                q_shared[i, j] = T.if_then_else(row + i < rows, Q[bz, (row + i) // group, head * group + (row + i) % group, j], 0)
            T.clear(output)
            if sinks:
                # The first block's rows begin as if they had seen a key of this score.
                for i in T.Parallel(block_m):
                    running.row_max[i] = T.if_then_else(bx == 0, T.max(S[head * group + (row + i) % group] / scale, LOWEST), LOWEST)
                    running.total[i] = T.if_then_else(bx == 0, 1.0, 0.0)
            else:
                T.clear(running.total)
                T.fill(running.row_max, LOWEST)
            for step in T.Pipelined(whole - first, num_stages=stages):
                load(K, table, bz, (first + step) * block_n, head, k_shared)
                T.clear(scores)
                T.gemm(q_shared, k_shared, scores, transpose_B=True)
                weigh(running, scores, weights, output, power, block_m, block_n, dim)
                load(V, table, bz, (first + step) * block_n, head, v_shared)
                T.gemm(weights, v_shared, output)
            for step in T.serial(end - whole):
                k = (whole + step) * block_n
                load_last(K, table, bz, k, length, head, k_last)
                load_last(V, table, bz, k, length, head, v_last)
                T.clear(scores)
                T.gemm(q_shared, k_last, scores, transpose_B=True)
                for i, j in T.Parallel(block_m, block_n):
                    scores[i, j] = T.if_then_else(k + j <= length - tokens + (row + i) // group, scores[i, j], -T.infinity("float32"))
                weigh(running, scores, weights, output, power, block_m, block_n, dim)
                T.gemm(weights, v_last, output)
            add_sums(running, block_m)
            for i, j in T.Parallel(block_m, dim):
                output[i, j] = T.if_then_else(running.total[i] > 0, output[i, j] / running.total[i], 0)
            for i, j in T.Parallel(block_m, dim):
                if row + i < rows:
                    if splits == 1:
                        O[bz, (row + i) // group, head * group + (row + i) % group, j] = output[i, j]
                    else:
                        parts[bx, bz, (row + i) // group, head * group + (row + i) % group, j] = output[i, j]
            if splits > 1:
                for i in T.Parallel(block_m):
                    if row + i < rows:
                        sizes[bx, bz, (row + i) // group, head * group + (row + i) % group] = share(running.row_max[i], running.total[i], power)
        if splits > 1:
            combine(parts, sizes, O, batch, tokens, heads, dim, splits)

    return decode.with_outputs(-1)
