# SPDX-License-Identifier: Apache-2.0
"""The running softmax of attention programs: what a block keeps of its rows while the keys come in steps."""

from typing import NamedTuple

import kiln.language as T

# What a row's maximum begins with: lower than any score of finite float16 and of bfloat16 below 1e14, and a number still, so that a row which
# sees none of a step's keys stays one.
LOWEST = -(2.0**100)


class Running(NamedTuple):
    row_max: T.FragmentBuffer
    row_max_before: T.FragmentBuffer  # of the steps before the last one
    rescale: T.FragmentBuffer  # what sums of the steps before must be multiplied by
    row_sum: T.FragmentBuffer  # of the last step's weights
    total: T.FragmentBuffer


@T.macro
def running_softmax(block_m):
    """Of as many rows; their maxima and totals are the caller's to begin."""
    row_max = T.alloc_fragment((block_m,), "float32")
    row_max_before = T.alloc_fragment((block_m,), "float32")
    rescale = T.alloc_fragment((block_m,), "float32")
    row_sum = T.alloc_fragment((block_m,), "float32")
    total = T.alloc_fragment((block_m,), "float32")
    return Running(row_max, row_max_before, rescale, row_sum, total)


@T.macro
def weigh(running, scores, weights, output, power, block_m, block_n, columns, largest=0.0, key_at=None):
    """One step: scores become weights 2^((score − maximum) · power + largest), and ``output``, of which each row has ``columns``, is what it was
    before by the new maxima. ``key_at``: which key weights of each column are of; the same, if left out."""
    row_max, row_max_before, rescale, row_sum, total = running
    T.copy(row_max, row_max_before)
    T.reduce_max(scores, row_max, dim=1, clear=False)
    for i in T.Parallel(block_m):
        rescale[i] = T.exp2((row_max_before[i] - row_max[i]) * power)
    for i, j in T.Parallel(block_m, block_n):
        scores[i, j] = T.exp2(scores[i, j] * power - (row_max[i] * power - largest if largest else row_max[i] * power))
    T.reduce_sum(scores, row_sum, dim=1)
    for i in T.Parallel(block_m):
        total[i] = total[i] * rescale[i] + row_sum[i]
    if key_at is None:
        T.copy(scores, weights)
    else:
        for i, j in T.Parallel(block_m, block_n):
            weights[i, j] = scores[i, key_at(j)]
    for i, j in T.Parallel(block_m, columns):
        output[i, j] *= rescale[i]
