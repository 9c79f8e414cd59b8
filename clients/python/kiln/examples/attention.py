# SPDX-License-Identifier: Apache-2.0
"""FlashAttention forward: O = softmax(Q · Kᵀ / √d) · V, one block of queries for each block, keys in a loop with a running maximum."""

import kiln.language as T
from kiln.library import sizes

LOG2_E = 1.4426950408889634


def attention(batch, heads, seq_len=None, dim=64, causal=False, dtype="float16", block_m=64, block_n=None, stages=2, threads=None, target=None):
    """Tensors are (batch, seq_len, heads, dim). ``seq_len`` may be anything; None: known at launch only. ``block_n`` and ``threads`` are 64 and
    128 if left out, or as many as the ``target``'s registers are enough for (None: as ``kiln.target`` finds it)."""
    plain = sizes.plain_attention(target, known=isinstance(seq_len, int))
    block_n, threads = block_n or plain["block_n"], threads or plain["threads"]
    scale = LOG2_E / dim**0.5
    seq_len = T.dynamic("seq_len") if seq_len is None else seq_len
    shape = (batch, seq_len, heads, dim)

    @T.macro
    def mask(scores, bx, k):
        for i, j in T.Parallel(block_m, block_n):
            column = k * block_n + j
            if causal:
                scores[i, j] = T.if_then_else(bx * block_m + i >= column, 0, -T.infinity("float32"))
            else:
                scores[i, j] = T.if_then_else(column < seq_len, 0, -T.infinity("float32"))

    @T.macro
    def online_softmax(scores, row_max, row_max_before, rescale, row_sum, total):
        T.copy(row_max, row_max_before)
        T.reduce_max(scores, row_max, dim=1, clear=False)
        for i in T.Parallel(block_m):
            rescale[i] = T.exp2((row_max_before[i] - row_max[i]) * scale)
        for i, j in T.Parallel(block_m, block_n):
            scores[i, j] = T.exp2(scores[i, j] * scale - row_max[i] * scale)
        T.reduce_sum(scores, row_sum, dim=1)
        for i in T.Parallel(block_m):
            total[i] = total[i] * rescale[i] + row_sum[i]

    @T.prim_func
    def attention(Q: T.Tensor(shape, dtype), K: T.Tensor(shape, dtype), V: T.Tensor(shape, dtype), O: T.Tensor(shape, dtype)):
        with T.Kernel(T.ceildiv(seq_len, block_m), heads, batch, threads=threads) as (bx, by, bz):
            q_shared = T.alloc_shared((block_m, dim), dtype)
            k_shared = T.alloc_shared((block_n, dim), dtype)
            v_shared = T.alloc_shared((block_n, dim), dtype)
            scores = T.alloc_fragment((block_m, block_n), "float32")
            weights = T.alloc_fragment((block_m, block_n), dtype)
            output = T.alloc_fragment((block_m, dim), "float32")
            row_max = T.alloc_fragment((block_m,), "float32")
            row_max_before = T.alloc_fragment((block_m,), "float32")
            rescale = T.alloc_fragment((block_m,), "float32")
            row_sum = T.alloc_fragment((block_m,), "float32")
            total = T.alloc_fragment((block_m,), "float32")

            T.copy(Q[bz, bx * block_m : (bx + 1) * block_m, by, :], q_shared)
            T.clear(output)
            T.clear(total)
            T.fill(row_max, -T.infinity("float32"))
            blocks = T.ceildiv(seq_len, block_n)
            last = T.min(blocks, T.ceildiv((bx + 1) * block_m, block_n)) if causal else blocks
            for k in T.Pipelined(last, num_stages=stages):
                T.copy(K[bz, k * block_n : (k + 1) * block_n, by, :], k_shared)
                mask(scores, bx, k)
                T.gemm(q_shared, k_shared, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                online_softmax(scores, row_max, row_max_before, rescale, row_sum, total)
                T.copy(scores, weights)
                for i, j in T.Parallel(block_m, dim):
                    output[i, j] *= rescale[i]
                T.copy(V[bz, k * block_n : (k + 1) * block_n, by, :], v_shared)
                T.gemm(weights, v_shared, output, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_m, dim):
                output[i, j] /= total[i]
            T.copy(output, O[bz, bx * block_m : (bx + 1) * block_m, by, :])

    return attention.with_outputs(-1)
