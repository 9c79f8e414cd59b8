# SPDX-License-Identifier: Apache-2.0
"""Attention whose keys and values are one row for all heads (multi-head latent attention), of all of a cache or of chosen rows."""

import kiln.language as T

from .rows import LOG2_E
from .running import LOWEST, running_softmax, weigh
from .splits import combine, share


def latent(batch, tokens, heads, kv_len, dim, turned, scale, dtype, splits, page, pages, chosen, causal, block_m, block_n, stages, threads):
    """O = softmax(Q · KVᵀ · scale) · KV[:, :dim]: Q is (batch, tokens, heads, dim + turned), O (batch, tokens, heads, dim), KV (batch, kv_len,
    dim + turned), or pages of such rows: (pages, page, dim + turned), then kv_len counts the columns of ``table``. Sequence b has
    lengths[b] rows.

    ``chosen`` 0: each token sees all rows up to its own, lengths[b] − tokens + i for token i. Above 0: those of the numbers rows[b, i, :] that are
    rows of the sequence, with ``causal`` up to its own; others, as −1, stand for none. The heads of a token are rows of one tile, and where all
    tokens see the same cache they are, too."""
    width = dim + turned
    lists = tokens if chosen else 1  # of rows, for each sequence
    rows = heads * tokens // lists
    tiles = -(-rows // block_m)
    cache = (pages, page, width) if page else (batch, kv_len, width)
    power = scale * LOG2_E

    @T.prim_func
    def latent(Q: T.Tensor((batch, tokens, heads, width), dtype), KV: T.Tensor(cache, dtype),
               lengths: T.Tensor((1,) if chosen else (batch,), "int32"), table: T.Tensor((batch, kv_len) if page else (1, 1), "int32"),
               choice: T.Tensor((batch, tokens, chosen) if chosen else (1, 1, 1), "int32"), O: T.Tensor((batch, tokens, heads, dim), dtype)):
        parts = T.alloc_global((splits, batch, tokens, heads, dim), "float32")
        sizes = T.alloc_global((splits, batch, tokens, heads), "float32")
        with T.Kernel(splits, tiles, batch * lists, threads=threads) as (bx, by, bz):
            q_shared = T.alloc_shared((block_m, width), dtype)
            kv_shared = T.alloc_shared((block_n, width), dtype)
            scores = T.alloc_fragment((block_m, block_n), "float32")
            weights = T.alloc_shared((block_m, block_n), dtype)
            output = T.alloc_fragment((block_m, dim), "float32")
            running = running_softmax(block_m)

            T.assume(batch > 0)
            T.assume(kv_len > 0)
            b = bz // lists
            row = by * block_m
            length = kv_len if chosen else T.min(lengths[b], kv_len * (page or 1))
            steps = T.ceildiv(chosen if chosen else length, block_n)
            first = T.min(bx * T.ceildiv(steps, splits), steps)
            end = T.min(first + T.ceildiv(steps, splits), steps)

            def token(i):
                return bz % lists if chosen else (row + i) // heads

            def head(i):
                return row + i if chosen else (row + i) % heads

            def place(k):
                """Of the k-th row that a list or the sequence has."""
                return choice[b, bz % lists, k] if chosen else k

            def seen(k, i):
                at = place(k)
                last = length - tokens + token(i) if causal else length - 1
                return T.And(k < chosen, T.And(at >= 0, at <= last)) if chosen else at <= last

            def element(k, j):
                at = place(k)
                return KV[table[b, at // page], at % page, j] if page else KV[b, at, j]

            for i, j in T.Parallel(block_m, width):
                q_shared[i, j] = T.if_then_else(row + i < rows, Q[b, token(i), head(i), j], 0)
            T.clear(output)
            T.clear(running.total)
            T.fill(running.row_max, LOWEST)
            for step in T.Pipelined(end - first, num_stages=stages):
                k = (first + step) * block_n
                for i, j in T.Parallel(block_n, width):
                    kv_shared[i, j] = T.if_then_else(seen(k + i, 0) if chosen else k + i < length, element(k + i, j), 0)
                T.clear(scores)
                T.gemm(q_shared, kv_shared, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                for i, j in T.Parallel(block_m, block_n):
                    scores[i, j] = T.if_then_else(seen(k + j, i), scores[i, j], -T.infinity("float32"))
                weigh(running, scores, weights, output, power, block_m, block_n, dim)
                T.gemm(weights, kv_shared[:, 0:dim], output, policy=T.GemmWarpPolicy.FullCol)
            for i, j in T.Parallel(block_m, dim):
                output[i, j] = T.if_then_else(running.total[i] > 0, output[i, j] / running.total[i], 0)
            for i, j in T.Parallel(block_m, dim):
                if row + i < rows:
                    if splits == 1:
                        O[b, token(i), head(i), j] = output[i, j]
                    else:
                        parts[bx, b, token(i), head(i), j] = output[i, j]
            if splits > 1:
                for i in T.Parallel(block_m):
                    if row + i < rows:
                        sizes[bx, b, token(i), head(i)] = share(running.row_max[i], running.total[i], power)
        if splits > 1:
            combine(parts, sizes, O, batch, tokens, heads, dim, splits)

    return latent.with_outputs(-1)
