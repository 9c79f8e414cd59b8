# SPDX-License-Identifier: Apache-2.0
"""Attention of 8-bit floats with scales."""

import kiln.language as T

from .rows import LOG2_E
from .running import LOWEST, running_softmax, weigh

GROUP = 32  # keys that an instruction of 8-bit elements takes along k
LARGEST = 8.0  # the power of two of a row's largest weight: e4m3 holds up to 448, and keeps few bits of small numbers


def key_at(place):
    """Which of a tile's keys the second product takes at a place along its k. Its instructions want four neighbouring places in a register, and a
    thread of scores has two neighbouring keys: in this order a thread's scores, rounded, are its part of the weights."""
    return place // GROUP * GROUP + place % GROUP // 16 * 16 + place % 4 // 2 * 8 + place % 16 // 4 * 2 + place % 2


def scaled_attention(batch, heads, kv_heads, seq_len, kv_len, dim, causal, scale, q_scales, kv_scales, out_dtype, block_m, block_n, stages,
                     threads, ordered):
    """O = softmax(Q · Kᵀ · scale) · V of e4m3, where Q stands for Q · QS, and K and V for K · KS and V · VS, one scale for each head or one for all
    (``q_scales``, ``kv_scales``: how many). Shapes and ``causal`` as of ``attention``.

    Matrix units take 8-bit operands with neighbours along k only, so a kernel of its own turns V first, to VT, with zeros beyond the last key.
    ``ordered``: VT has the keys in the order of ``key_at``, and weights stay in registers; else they lie in shared memory."""
    dtype = "float8_e4m3fn"
    group = heads // kv_heads
    lowest = LOWEST if causal else -T.infinity("float32")
    keys = T.ceildiv(kv_len, block_n) * block_n

    @T.macro
    def mask(scores, first, k):
        # The last key block, and under a causal mask those that reach beyond the block's first query.
        if (k + 1) * block_n > (T.min(kv_len, first + kv_len - seq_len + 1) if causal else kv_len):
            for i, j in T.Parallel(block_m, block_n):
                column = k * block_n + j
                seen = T.And(first + i + kv_len - seq_len >= column, column < kv_len) if causal else column < kv_len
                scores[i, j] = T.if_then_else(seen, scores[i, j], -T.infinity("float32"))

    @T.prim_func
    def scaled_attention(Q: T.Tensor((batch, seq_len, heads, dim), dtype), K: T.Tensor((batch, kv_len, kv_heads, dim), dtype),
                         V: T.Tensor((batch, kv_len, kv_heads, dim), dtype), QS: T.Tensor((q_scales,), "float32"),
                         KS: T.Tensor((kv_scales,), "float32"), VS: T.Tensor((kv_scales,), "float32"),
                         O: T.Tensor((batch, seq_len, heads, dim), out_dtype), VT: T.Tensor((batch, kv_heads, dim, keys), dtype)):
        with T.Kernel(keys // GROUP, kv_heads, batch, threads=128) as (bx, by, bz):
            tile = T.alloc_shared((GROUP, dim), dtype)
            T.copy(V[bz, bx * GROUP : (bx + 1) * GROUP, by, :], tile)
            for d, j in T.Parallel(dim, GROUP):
                VT[bz, by, d, bx * GROUP + j] = tile[key_at(j) if ordered else j, d]

        with T.Kernel(T.ceildiv(seq_len, block_m), heads, batch, threads=threads) as (bx, by, bz):
            q_shared = T.alloc_shared((block_m, dim), dtype)
            k_shared = T.alloc_shared((block_n, dim), dtype)
            v_shared = T.alloc_shared((dim, block_n), dtype)
            scores = T.alloc_fragment((block_m, block_n), "float32")
            weights = (T.alloc_fragment if ordered else T.alloc_shared)((block_m, block_n), dtype)
            output = T.alloc_fragment((block_m, dim), "float32")
            running = running_softmax(block_m)

            # Of scales of 0 a number that leaves nothing of a score either, and leaves −∞ as it is.
            power = T.max(QS[by % q_scales] * KS[(by // group) % kv_scales] * (scale * LOG2_E), 2.0**-64)
            T.copy(Q[bz, bx * block_m : (bx + 1) * block_m, by, :], q_shared)
            T.clear(output)
            T.clear(running.total)
            T.fill(running.row_max, lowest)
            blocks = T.ceildiv(kv_len, block_n)
            last = T.min(blocks, T.ceildiv((bx + 1) * block_m + kv_len - seq_len, block_n)) if causal else blocks
            for step in T.Pipelined(last, num_stages=stages):
                k = last - 1 - step
                T.copy(K[bz, k * block_n : (k + 1) * block_n, by // group, :], k_shared)
                T.gemm(q_shared, k_shared, scores, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
                mask(scores, bx * block_m, k)
                weigh(running, scores, weights, output, power, block_m, block_n, dim, LARGEST, key_at if ordered else None)
                T.copy(VT[bz, by // group, :, k * block_n : (k + 1) * block_n], v_shared)
                T.gemm(weights, v_shared, output, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_m, dim):
                output[i, j] *= VS[(by // group) % kv_scales] / running.total[i]
            T.copy(output, O[bz, bx * block_m : (bx + 1) * block_m, by, :])

    return scaled_attention.with_outputs([6, 7])
