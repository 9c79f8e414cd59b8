# SPDX-License-Identifier: Apache-2.0
"""What T.alloc_barrier gives."""

from __future__ import annotations

from .buffer import Buffer
from .dtypes import int64
from .expr import Expr, as_expr, constant_value
from .trace import error


class Barriers:
    """Barriers of one T.alloc_barrier: how many threads arrive at each. ``of_cluster``: threads of all blocks of the cluster do."""

    __slots__ = ("buffer", "counts", "of_cluster")

    def __init__(self, counts):
        self.counts, self.of_cluster = counts, False
        self.buffer = Buffer("BARRIER", (len(counts),), int64, "barriers")
        self.buffer.arrivals = tuple(counts)


class Barrier:
    """What T.alloc_barrier gives: one barrier, or several that are indexed."""

    __slots__ = ("barriers", "index")

    def __init__(self, barriers: Barriers, index: Expr | None):
        self.barriers, self.index = barriers, index

    def __getitem__(self, index):
        if self.index is not None:
            raise error("one barrier is not indexed; T.alloc_barrier([n, n]) makes two")
        index = as_expr(index)
        number, count = constant_value(index), len(self.barriers.counts)
        if number is not None and not 0 <= number < count:
            raise IndexError(f"barrier {number} of {count}")
        return Barrier(self.barriers, index)

    def __repr__(self):
        return f"barriers of {self.barriers.counts} arrivals"
