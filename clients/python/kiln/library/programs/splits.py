# SPDX-License-Identifier: Apache-2.0
"""How the results of blocks that split the keys of a row become one."""

import kiln.language as T

from .running import LOWEST


def share(row_max, total, power):
    """The logarithm to base 2 of the sum of a row's exponentials; that of no keys is as low as a maximum begins."""
    return T.if_then_else(total > 0, row_max * power + T.log2(total), LOWEST)


@T.macro
def combine(parts, sizes, O, batch, tokens, heads, dim, splits):
    """O = Σ parts[s] · 2^sizes[s] / Σ 2^sizes[s], of parts that are divided by their own sums: a block for each row, which has several parts under
    way at once."""
    with T.Kernel(heads, tokens, batch, threads=128) as (bx, by, bz):
        together = next(count for count in (8, 6, 4, 3, 2, 1) if splits % count == 0)
        size = T.alloc_fragment((splits,), "float32")
        largest = T.alloc_fragment((1,), "float32")
        total = T.alloc_fragment((1,), "float32")
        factor = T.alloc_shared((splits,), "float32")
        sums = T.alloc_fragment((together, dim), "float32")
        output = T.alloc_fragment((dim,), "float32")
        T.assume(batch > 0)
        for s in T.Parallel(splits):
            size[s] = sizes[s, bz, by, bx]
        T.reduce_max(size, largest, dim=0)
        for s in T.Parallel(splits):
            size[s] = T.exp2(size[s] - largest[0])
        T.reduce_sum(size, total, dim=0)
        for s in T.Parallel(splits):
            factor[s] = size[s] / total[0]
        T.clear(sums)
        for s in T.serial(splits // together):
            for i, j in T.Parallel(together, dim):
                sums[i, j] += factor[s * together + i] * parts[s * together + i, bz, by, bx, j]
        T.reduce_sum(sums, output, dim=0)
        T.copy(output, O[bz, by, bx, :])
