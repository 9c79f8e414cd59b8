# SPDX-License-Identifier: Apache-2.0
"""Attention in which each block of queries sees the blocks of keys of its own list."""

import kiln.language as T

from .rows import LOG2_E
from .running import LOWEST, running_softmax, weigh


def block_sparse(batch, heads, kv_heads, seq_len, kv_len, dim, block, most, causal, scale, dtype, block_m, block_n, stages, threads, columns,
                 exchanged):
    """O = softmax(Q · Kᵀ · scale) · V of what the lists name: Q and O are (batch, seq_len, heads, dim), K and V (batch, kv_len, kv_heads, dim).
    Queries i · block and following see the keys of the first counts[b, h, i] blocks of chosen[b, h, i, :]; with ``causal`` those up to their own,
    counted from the ends. A number that is no block stands for none. Tiles of ``block_m`` and ``block_n`` divide ``block``."""
    group = heads // kv_heads
    inside = block // block_n
    power = scale * LOG2_E
    blocks = T.ceildiv(seq_len, block)

    @T.prim_func
    def block_sparse(Q: T.Tensor((batch, seq_len, heads, dim), dtype), K: T.Tensor((batch, kv_len, kv_heads, dim), dtype),
                     V: T.Tensor((batch, kv_len, kv_heads, dim), dtype), chosen: T.Tensor((batch, heads, blocks, most), "int32"),
                     counts: T.Tensor((batch, heads, blocks), "int32"), O: T.Tensor((batch, seq_len, heads, dim), dtype)):
        with T.Kernel(T.ceildiv(seq_len, block_m), heads, batch, threads=threads) as (bx, by, bz):
            q_shared = T.alloc_shared((block_m, dim), dtype)
            k_shared = T.alloc_shared((block_n, dim), dtype)
            v_shared = T.alloc_shared((block_n, columns), dtype)
            scores = T.alloc_fragment((block_m, block_n), "float32")
            weights = (T.alloc_shared if exchanged else T.alloc_fragment)((block_m, block_n), dtype)
            output = T.alloc_fragment((block_m, columns), "float32")
            running = running_softmax(block_m)

            row = bx * block_m
            T.copy(Q[bz, row : row + block_m, by, :], q_shared)
            T.clear(output)
            T.clear(running.total)
            T.fill(running.row_max, LOWEST)
            for step in T.Pipelined(T.min(counts[bz, by, row // block], most) * inside, num_stages=stages):
                number = chosen[bz, by, row // block, step // inside]
                known = T.And(number >= 0, number < T.ceildiv(kv_len, block))  # of others, the first key's place may not be a number
                first = T.if_then_else(known, number, -1) * block + step % inside * block_n
                T.copy(K[bz, first : first + block_n, by // group, :], k_shared)
                T.clear(scores)
                T.gemm(q_shared, k_shared, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(block_m, block_n):
                    seen = T.And(first >= 0, first + j < kv_len)
                    if causal:
                        seen = T.And(seen, first + j <= row + i + kv_len - seq_len)
                    scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))
                weigh(running, scores, weights, output, power, block_m, block_n, columns)
                T.copy(V[bz, first : first + block_n, by // group, 0:columns], v_shared)
                T.gemm(weights, v_shared, output, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_m, columns):
                output[i, j] = T.if_then_else(running.total[i] > 0, output[i, j] / running.total[i], 0)
            T.copy(output, O[bz, row : row + block_m, by, 0:columns])

    return block_sparse.with_outputs(-1)
