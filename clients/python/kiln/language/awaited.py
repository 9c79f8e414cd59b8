# SPDX-License-Identifier: Apache-2.0
"""Copies and products that a program waits for itself. In Kiln each is complete where its statement ends, and the compiler makes it asynchronous
where nothing tells the difference; so where all threads of a block arrive and wait, there is nothing left to do."""

from __future__ import annotations

from .. import notices
from . import trace as tr
from .expr import Expr, as_expr, constant_value
from .tile_ops import GemmWarpPolicy, copy, gemm
from .trace import error

_COMPLETE = "the next statement sees the data of a copy and the sums of a product anyway; leave it out"
_CHOSEN = "the compiler chooses the instruction; leave it out"


class Barrier:
    """What T.alloc_barrier gives: one barrier, or several that are indexed."""

    __slots__ = ("counts", "single")

    def __init__(self, counts, single: bool):
        self.counts, self.single = counts, single

    def __getitem__(self, index):
        if self.single:
            raise error("one barrier is not indexed; T.alloc_barrier([n, n]) makes two")
        number = constant_value(as_expr(index))
        if number is not None and not 0 <= number < len(self.counts):
            raise IndexError(f"barrier {number} of {len(self.counts)}")
        return Barrier(self.counts if number is None else [self.counts[number]], True)

    def __repr__(self):
        return f"barriers of {self.counts} arrivals"


def alloc_barrier(arrive_count):
    """A barrier of the threads of a block for T.tma_copy, or, of a list, as many as it has entries: ``bars[i]``. ``arrive_count``: how many
    threads arrive.
    Shapes: a Python int above 0, or a list of them. Dtypes: none. Targets: all. Errors: TraceError for another count."""
    tr.current("T.alloc_barrier")
    several = isinstance(arrive_count, (list, tuple))
    counts = [constant_value(c) if isinstance(c, (Expr, int)) else None for c in (arrive_count if several else [arrive_count])]
    if not counts or not all(isinstance(c, int) and not isinstance(c, bool) and c > 0 for c in counts):
        raise error(f"T.alloc_barrier({arrive_count!r}): the number of arrivals is a Python int above 0, or a list of them")
    return Barrier(counts, not several or len(counts) == 1)


def _of_all_threads(name: str, barrier) -> None:
    if not isinstance(barrier, Barrier):
        raise error(f"T.{name} of {barrier!r}: it takes what T.alloc_barrier gives")
    if not barrier.single:
        raise error(f"T.{name} of {len(barrier.counts)} barriers: index one, as bars[i]")
    if "branch" in tr.current(f"T.{name}").loops:
        raise error(f"T.{name} under a condition: threads that work while others wait are not part of this version: write the statements for all "
                    "threads of the block, in the order in which they depend on each other; the compiler specialises warps")


def barrier_arrive(mbarrier):
    """Accepted where all threads of a block come to it, and does nothing, with a warning: the statement before it is complete.
    Shapes: one barrier. Dtypes: none. Targets: all. Errors: TraceError for what is none of T.alloc_barrier, and under a condition."""
    _of_all_threads("barrier_arrive", mbarrier)
    notices.no_effect("T.barrier_arrive", _COMPLETE)


def mbarrier_arrive(mbarrier, cta_id=None):
    """T.barrier_arrive.
    Shapes: one barrier. Dtypes: none. Targets: all. Errors: as of T.barrier_arrive. TraceError for ``cta_id``: a barrier is of one block."""
    if cta_id is not None:
        raise error("T.mbarrier_arrive(cta_id=…): a barrier is of one block; blocks of a cluster do not wait for each other in this version")
    _of_all_threads("mbarrier_arrive", mbarrier)
    notices.no_effect("T.mbarrier_arrive", _COMPLETE)


def barrier_wait(mbarrier, parity):
    """Accepted where all threads of a block come to it, and does nothing, with a warning: what it waits for is complete.
    Shapes: one barrier, and a scalar. Dtypes: an integer or bool. Targets: all. Errors: as of T.barrier_arrive. TypeError for a ``parity`` that
    is no scalar."""
    _of_all_threads("barrier_wait", mbarrier)
    as_expr(parity)
    notices.no_effect("T.barrier_wait", _COMPLETE)


def mbarrier_wait_parity(mbarrier, parity):
    """T.barrier_wait.
    Shapes: as of it. Dtypes: as of it. Targets: all. Errors: as of it."""
    _of_all_threads("mbarrier_wait_parity", mbarrier)
    as_expr(parity)
    notices.no_effect("T.mbarrier_wait_parity", _COMPLETE)


def tma_copy(src, dst, *, barrier=None, cluster_mask=None, leader_scope_threads=None, eviction_policy=None, annotations=None):
    """T.copy. The compiler takes the TMA where the target has it and the shapes fit it. ``barrier``: one on which all threads arrive afterwards.
    ``leader_scope_threads`` and ``eviction_policy``: no effect, with a warning.
    Shapes: as T.copy. Dtypes: as T.copy. Targets: all. Errors: as T.copy. TraceError for a ``barrier`` as of T.barrier_arrive, and for a
    ``cluster_mask``."""
    if cluster_mask is not None:
        raise error("T.tma_copy(cluster_mask=…): a copy goes to one block; leave it out, and each block copies for itself")
    if barrier is not None:
        _of_all_threads("tma_copy", barrier)
    notices.unused("T.tma_copy", leader_scope_threads=(leader_scope_threads, (None,), _CHOSEN), eviction_policy=(eviction_policy, (None,), _CHOSEN),
                   annotations=(annotations, (None, {}), "what annotations say is inferred; leave them out"))
    copy(src, dst)


def tma_store_wait(count=0, read=True):
    """Accepted, and does nothing, with a warning: the compiler waits for a copy before its source changes and before the kernel ends.
    Shapes: none. Dtypes: none. Targets: all. Errors: TraceError outside of a traced function."""
    tr.current("T.tma_store_wait")
    notices.no_effect("T.tma_store_wait", "the compiler waits for a copy before its source changes and before the kernel ends; leave it out")


def wgmma_gemm(A, B, C, transpose_A=False, transpose_B=False, policy=GemmWarpPolicy.Square, clear_accum=False, annotations=None):
    """T.gemm. The compiler takes the instruction that is fastest, wgmma where the target and the shapes have it, and waits where the product is
    used.
    Shapes: as T.gemm. Dtypes: as T.gemm. Targets: all. Errors: as T.gemm."""
    notices.unused("T.wgmma_gemm", annotations=(annotations, (None, {}), "what annotations say is inferred; leave them out"))
    gemm(A, B, C, transpose_A=transpose_A, transpose_B=transpose_B, policy=policy, clear_accum=clear_accum)


def wait_wgmma(num_mma):
    """Accepted, and does nothing, with a warning: T.gemm and T.wgmma_gemm are complete where their result is used.
    Shapes: none. Dtypes: none. Targets: all. Errors: TraceError outside of a traced function."""
    tr.current("T.wait_wgmma")
    notices.no_effect("T.wait_wgmma", _COMPLETE)


__all__ = ["alloc_barrier", "barrier_arrive", "barrier_wait", "mbarrier_arrive", "mbarrier_wait_parity", "tma_copy", "tma_store_wait", "wait_wgmma",
           "wgmma_gemm"]
