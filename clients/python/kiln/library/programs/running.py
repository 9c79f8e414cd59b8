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
    sums: "T.FragmentBuffer | None"  # of each place in a step by itself, until `add_sums`; then row_sum is theirs


@T.macro
def running_softmax(block_m, block_n=0):
    """Of as many rows; their maxima and totals are the caller's to begin. ``block_n``: the keys of a step, whose weights are added up only where
    ``add_sums`` stands. Warps that share a row then meet once less in each step."""
    row_max = T.alloc_fragment((block_m,), "float32")
    row_max_before = T.alloc_fragment((block_m,), "float32")
    rescale = T.alloc_fragment((block_m,), "float32")
    row_sum = T.alloc_fragment((block_m,), "float32")
    total = T.alloc_fragment((block_m,), "float32")
    sums = None
    if block_n:
        sums = T.alloc_fragment((block_m, block_n), "float32")
        T.clear(sums)
    return Running(row_max, row_max_before, rescale, row_sum, total, sums)


@T.macro
def weigh(running, scores, weights, output, power, block_m, block_n, columns, largest=0.0, key_at=None):
    """One step: scores become weights 2^((score − maximum) · power + largest), and ``output``, of which each row has ``columns``, is what it was
    before by the new maxima. ``key_at``: which key weights of each column are of; the same, if left out."""
    row_max, row_max_before, rescale, row_sum, total, sums = running
    T.copy(row_max, row_max_before)
    T.reduce_max(scores, row_max, dim=1, clear=False)
    for i in T.Parallel(block_m):
        rescale[i] = T.exp2((row_max_before[i] - row_max[i]) * power)
    for i, j in T.Parallel(block_m, block_n):
        scores[i, j] = T.exp2(scores[i, j] * power - (row_max[i] * power - largest if largest else row_max[i] * power))
    if sums is None:
        T.reduce_sum(scores, row_sum, dim=1)
        for i in T.Parallel(block_m):
            total[i] = total[i] * rescale[i] + row_sum[i]
    else:
        for i in T.Parallel(block_m):
            total[i] *= rescale[i]
        for i, j in T.Parallel(block_m, block_n):
            sums[i, j] = sums[i, j] * rescale[i] + scores[i, j]
    if key_at is None:
        T.copy(scores, weights)
    else:
        for i, j in T.Parallel(block_m, block_n):
            weights[i, j] = scores[i, key_at(j)]
    for i, j in T.Parallel(block_m, columns):
        output[i, j] *= rescale[i]


@T.macro
def add_sums(running, block_m):
    """Behind the last step: totals become those of all steps."""
    T.reduce_sum(running.sums, running.row_sum, dim=1)
    for i in T.Parallel(block_m):
        running.total[i] += running.row_sum[i]
