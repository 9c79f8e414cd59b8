# SPDX-License-Identifier: Apache-2.0
"""FlashAttention forward for queries and keys of different lengths and numbers of heads; ``kiln.examples.attention`` is the simple one."""

import kiln.language as T

from .rows import LOG2_E
from .running import LOWEST, running_softmax, weigh


def attention(batch, heads, kv_heads, seq_len, kv_len, dim, causal, scale, dtype, block_m, block_n, stages, threads, columns, exchanged,
              backwards, lse=False):
    """O = softmax(Q · Kᵀ · scale) · V: Q and O are (batch, seq_len, heads, dim), K and V (batch, kv_len, kv_heads, dim). With ``causal``,
    query i sees keys up to i + kv_len − seq_len, which must be at least as many. ``columns``, ``exchanged``: see ``sizes.attention``; columns
    beyond dim are read as zeros and not written. ``backwards``: the last keys come first, so that the steps that mask do.
    ``lse``: the logarithms of the rows' sums, too, (batch, heads, seq_len)."""
    group = heads // kv_heads
    power = scale * LOG2_E
    # Else only the step with the last keys masks, behind a condition, which takes a few registers more: weights are exchanged where those are
    # short.
    masks_each = causal or exchanged
    # A row may see none of the step's keys that come first under a causal mask: its maximum is then a number still.
    lowest = LOWEST if causal and backwards else -T.infinity("float32")

    @T.macro
    def mask(scores, first, k):
        for i, j in T.Parallel(block_m, block_n):
            column = k * block_n + j
            if causal:
                scores[i, j] = T.if_then_else(T.And(first + i + kv_len - seq_len >= column, column < kv_len), 0, -T.infinity("float32"))
            else:
                scores[i, j] = T.if_then_else(column < kv_len, 0, -T.infinity("float32"))

    @T.macro
    def mask_tail(scores, step, k):
        if step < 1 if backwards else (k + 1) * block_n > kv_len:
            for i, j in T.Parallel(block_m, block_n):
                scores[i, j] = T.if_then_else(k * block_n + j < kv_len, scores[i, j], -T.infinity("float32"))

    @T.macro
    def rows(Q, K, V, O, LSE, bx, by, bz):
        q_shared = T.alloc_shared((block_m, dim), dtype)
        k_shared = T.alloc_shared((block_n, dim), dtype)
        v_shared = T.alloc_shared((block_n, columns), dtype)
        scores = T.alloc_fragment((block_m, block_n), "float32")
        weights = (T.alloc_shared if exchanged else T.alloc_fragment)((block_m, block_n), dtype)
        output = T.alloc_fragment((block_m, columns), "float32")
        running = running_softmax(block_m)

        T.copy(Q[bz, bx * block_m : (bx + 1) * block_m, by, :], q_shared)
        T.clear(output)
        T.clear(running.total)
        T.fill(running.row_max, lowest)
        blocks = T.ceildiv(kv_len, block_n)
        last = T.min(blocks, T.ceildiv((bx + 1) * block_m + kv_len - seq_len, block_n)) if causal else blocks
        for step in T.Pipelined(last, num_stages=stages):
            k = last - 1 - step if backwards else step
            T.copy(K[bz, k * block_n : (k + 1) * block_n, by // group, :], k_shared)
            if masks_each:
                mask(scores, bx * block_m, k)
            else:
                T.clear(scores)
            T.gemm(q_shared, k_shared, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            if not masks_each:
                mask_tail(scores, step, k)
            weigh(running, scores, weights, output, power, block_m, block_n, columns)
            T.copy(V[bz, k * block_n : (k + 1) * block_n, by // group, 0:columns], v_shared)
            T.gemm(weights, v_shared, output, policy=T.GemmWarpPolicy.FullRow)
        if lse:
            for i in T.Parallel(block_m):
                LSE[bz, by, bx * block_m + i] = running.row_max[i] * scale + T.log(running.total[i])
        for i, j in T.Parallel(block_m, columns):
            output[i, j] /= running.total[i]
        T.copy(output, O[bz, bx * block_m : (bx + 1) * block_m, by, 0:columns])

    if lse:

        @T.prim_func
        def attention_with_lse(Q: T.Tensor((batch, seq_len, heads, dim), dtype), K: T.Tensor((batch, kv_len, kv_heads, dim), dtype),
                               V: T.Tensor((batch, kv_len, kv_heads, dim), dtype), O: T.Tensor((batch, seq_len, heads, dim), dtype),
                               LSE: T.Tensor((batch, heads, seq_len), "float32")):
            with T.Kernel(T.ceildiv(seq_len, block_m), heads, batch, threads=threads) as (bx, by, bz):
                rows(Q, K, V, O, LSE, bx, by, bz)

        return attention_with_lse.with_outputs([3, 4])

    @T.prim_func
    def attention(Q: T.Tensor((batch, seq_len, heads, dim), dtype), K: T.Tensor((batch, kv_len, kv_heads, dim), dtype),
                  V: T.Tensor((batch, kv_len, kv_heads, dim), dtype), O: T.Tensor((batch, seq_len, heads, dim), dtype)):
        with T.Kernel(T.ceildiv(seq_len, block_m), heads, batch, threads=threads) as (bx, by, bz):
            rows(Q, K, V, O, None, bx, by, bz)

    return attention.with_outputs(-1)
