# SPDX-License-Identifier: Apache-2.0
"""What the programs for rows share, and where they keep a row between their two looks at it.

- In registers (``softmax``, ``rms_norm``, …): memory is read once. A row must fit in the registers of a block, or in its shared memory.
- In a block (``…_long``): memory is read once, too. Where nothing else is needed again, a block keeps one row, the first `kept` elements in
  shared memory, the last `columns` in registers: `columns` divides `kept`; both together are the row. Where weights are, several rows come
  one after the other, and the compiler gives a row that one block cannot hold to a cluster.
- In shared memory (``…_kept``): memory is read once, wherever rows begin. Small blocks share a multiprocessor; long rows are a cluster's.
- In memory (``…_parts``, ``softmax_online``, most gradients): a block reads a row twice, `columns` elements at a time. Rows have any
  length."""

LOG2_E = 1.4426950408889634
RUN = 8  # neighbours that a lane takes at a time
WARP = 32  # lanes


def kept_apart(N, columns):
    """How many elements of a row lie in shared memory when ``columns`` are in registers."""
    if N % columns:
        raise ValueError(f"rows of {N} elements are not whole parts of {columns}: choose `columns` to divide them")
    return N - columns
