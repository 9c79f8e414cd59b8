# SPDX-License-Identifier: Apache-2.0
"""Linear attention with decay, chunk by chunk: what state-space models (Mamba-2) and retention compute."""

import kiln.language as T

from .rows import LOG2_E


def linear_attention(batch, heads, groups, seq_len, keys, values, dtype, decays, chunk, columns, stages, threads):
    """O[t] = Σ exp(a[s + 1] + … + a[t]) · (Q[t] · K[s]) · V[s] over s ≤ t: Q and K are (batch, seq_len, groups, keys), V and O (batch, seq_len,
    heads, values), where neighbouring heads share a group; A (batch, seq_len, heads) holds the logarithms a, 0 without ``decays``.

    A block goes over one head's tokens, ``chunk`` at a time, for ``columns`` of V. Within a chunk scores are a tile; what came before is a state of
    keys × columns, in float32."""
    share = heads // groups
    shape = (batch, seq_len, groups, keys)

    @T.prim_func
    def linear_attention(Q: T.Tensor(shape, dtype), K: T.Tensor(shape, dtype), V: T.Tensor((batch, seq_len, heads, values), dtype),
                         A: T.Tensor((batch, seq_len, heads) if decays else (1, 1, 1), "float32" if decays else dtype),
                         O: T.Tensor((batch, seq_len, heads, values), dtype)):
        with T.Kernel(T.ceildiv(values, columns), heads, batch, threads=threads) as (bx, by, bz):
            q_shared = T.alloc_shared((chunk, keys), dtype)
            k_shared = T.alloc_shared((chunk, keys), dtype)
            v_shared = T.alloc_shared((chunk, columns), dtype)
            faded = T.alloc_shared((chunk, keys), dtype)
            before = T.alloc_shared((keys, columns), dtype)
            weights = T.alloc_shared((chunk, chunk), dtype)
            decay = T.alloc_shared((chunk,), "float32")
            scores = T.alloc_fragment((chunk, chunk), "float32")
            output = T.alloc_fragment((chunk, columns), "float32")
            state = T.alloc_fragment((keys, columns), "float32")

            T.clear(state)
            for c in T.Pipelined(T.ceildiv(seq_len, chunk), num_stages=stages):
                first = c * chunk
                T.copy(Q[bz, first : first + chunk, by // share, :], q_shared)
                T.copy(K[bz, first : first + chunk, by // share, :], k_shared)
                T.copy(V[bz, first : first + chunk, by, bx * columns : (bx + 1) * columns], v_shared)
                if decays:
                    for i in T.Parallel(chunk):
                        decay[i] = A[bz, first + i, by] * LOG2_E
                    T.cumsum(decay, dim=0)
                T.copy(state, before)
                T.clear(scores)
                T.gemm(q_shared, k_shared, scores, transpose_B=True)
                for i, j in T.Parallel(chunk, chunk):
                    since = T.exp2(decay[i] - decay[j]) if decays else 1.0
                    scores[i, j] = T.if_then_else(i >= j, scores[i, j] * since, 0)
                T.copy(scores, weights)
                T.clear(output)
                T.gemm(q_shared, before, output)
                if decays:
                    for i, j in T.Parallel(chunk, columns):
                        output[i, j] *= T.exp2(decay[i])
                T.gemm(weights, v_shared, output)
                T.copy(output, O[bz, first : first + chunk, by, bx * columns : (bx + 1) * columns])
                if decays:
                    for i, j in T.Parallel(chunk, keys):
                        faded[i, j] = T.cast(k_shared[i, j], "float32") * T.exp2(decay[chunk - 1] - decay[i])
                    for i, j in T.Parallel(keys, columns):
                        state[i, j] *= T.exp2(decay[chunk - 1])
                    T.gemm(faded, v_shared, state, transpose_A=True)
                else:
                    T.gemm(k_shared, v_shared, state, transpose_A=True)

    return linear_attention.with_outputs(-1)
