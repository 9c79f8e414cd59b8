# SPDX-License-Identifier: Apache-2.0
"""Blocks of a cluster (T.ClusterKernel): their ranks, their barrier, and copies into each other's shared memory."""

from __future__ import annotations

from .. import notices
from . import program as ir
from . import ranks
from . import trace as tr
from .agreed import agree
from .awaited import alloc_barrier, barrier_of, mbarrier_arrive, of_cluster
from .branches import threads_here
from .dtypes import int32
from .expr import Var, as_expr, binary, cast, constant_value
from .loops import Parallel
from .regions import describe, pair, shifted, tile_extents
from .scope import Branch
from .tile_ops import copy
from .trace import emit, error


def _kernel(name: str) -> ir.Kernel:
    kernel = tr.current(f"T.{name}").kernel
    if kernel is None:
        raise error(f"T.{name} is used outside T.Kernel")
    return kernel


def block_rank_in_cluster():
    """The block's number in its cluster, along the grid's first dimension first; 0 in a kernel without clusters.
    Shapes: a scalar. Dtypes: int32. Targets: all. Errors: TraceError outside of T.Kernel."""
    return ranks.of_block(_kernel("block_rank_in_cluster"))


def cluster_sync():
    """A barrier of all threads of the blocks of the cluster: what any of them did to global memory and to shared memory before it, its own or, by
    T.copy_cluster, another block's, all of them see after it. In a kernel without clusters it is T.sync_threads. The compiler puts one where the
    kernel begins and one where it ends if blocks reach each other's memory: a block is there for the others.
    Shapes: none. Dtypes: none. Targets: sm_90 and later; in a kernel without clusters all. Errors: TraceError outside of T.Kernel. CompileError where
    only some threads reach it. Where some blocks of a cluster come to it less often than others, it is met by their next barrier of the cluster or
    by their end, and orders less than it seems to; the emulator's check finds the races of that."""
    emit(ir.Barrier(cluster=bool(_kernel("cluster_sync").cluster)))


def cluster_wait():
    """T.cluster_sync, with the T.cluster_arrive before it, of which it is the second half.
    Shapes: none. Dtypes: none. Targets: sm_90 and later; in a kernel without clusters all. Errors: TraceError outside of T.Kernel. CompileError where
    only some threads reach it."""
    cluster_sync()


def cluster_arrive():
    """Accepted, and does nothing, with a warning: the whole barrier is where T.cluster_wait is, which each block that arrives comes to.
    Shapes: none. Dtypes: none. Targets: all. Errors: TraceError outside of T.Kernel."""
    _kernel("cluster_arrive")
    notices.no_effect("T.cluster_arrive", "threads arrive and wait in one step at T.cluster_wait; leave it out")


def cluster_arrive_relaxed():
    """T.cluster_arrive.
    Shapes: none. Dtypes: none. Targets: all. Errors: TraceError outside of T.Kernel."""
    cluster_arrive()


def alloc_cluster_barrier(arrive_count):
    """T.alloc_barrier of which each block of the cluster has one, and at which threads of all its blocks arrive: T.mbarrier_arrive(barrier, rank) and
    T.copy_cluster. Who waits, waits for that of its own block. ``arrive_count`` counts the threads of all blocks.
    Shapes: as T.alloc_barrier. Dtypes: none. Targets: sm_90 and later. Errors: as T.alloc_barrier. TraceError in a kernel without clusters."""
    if not _kernel("alloc_cluster_barrier").cluster:
        raise error("T.alloc_cluster_barrier in a kernel without clusters: use T.ClusterKernel, or T.alloc_barrier")
    return of_cluster(alloc_barrier(arrive_count))


def ptx_arrive_cluster_barrier(mbarrier, cta_id):
    """T.mbarrier_arrive(mbarrier, cta_id).
    Shapes: one barrier, and a scalar. Dtypes: an integer. Targets: sm_90 and later. Errors: as of T.mbarrier_arrive."""
    mbarrier_arrive(mbarrier, cta_id)


def copy_cluster(src, dst, *, dst_block=None, cluster_mask=None, remote_barrier=None, eviction_policy=None, coalesced_width=None, annotations=None,
                 loop_layout=None):
    """T.copy between blocks of a cluster. ``dst_block``: into the shared memory of the block of this rank, at the place that ``dst`` has in all of
    them. That block sees the elements after T.cluster_sync, or, with ``remote_barrier`` (T.alloc_cluster_barrier), after it has waited for its own:
    the first of the threads that come here arrives there when all elements are written. ``cluster_mask``: the blocks whose rank is a bit of it all
    get what the lowest of them reads, the others what they read themselves. ``coalesced_width``: as of T.copy. The other keywords: no effect, with
    a warning.
    Shapes: as T.copy. ``dst`` is a T.alloc_shared; ``src`` is a tensor for ``cluster_mask``, and that, a T.alloc_shared or a T.alloc_fragment for
    ``dst_block``. Dtypes: as T.copy; for ``dst_block`` of 8 bits or more. Targets: sm_90 and later. Errors: as T.copy. TraceError without one of
    ``dst_block`` and ``cluster_mask`` or with both, for other memory than that, for a rank or a mask that the cluster does not have, for a source
    whose offsets are computed from what each block has for itself, and for ``remote_barrier`` where values known at run time only decide which
    threads come here."""
    notices.unused("T.copy_cluster", eviction_policy=(eviction_policy, (None, "evict_normal"), "what caches keep is inferred; leave it out"),
                   annotations=(annotations, (None, {}), "what annotations say is inferred; leave them out"),
                   loop_layout=(loop_layout, (None,), "layouts are inferred; leave it out"))
    kernel = _kernel("copy_cluster")
    if not kernel.cluster:
        raise error("T.copy_cluster in a kernel without clusters: use T.ClusterKernel")
    if (dst_block is None) == (cluster_mask is None):
        raise error("T.copy_cluster takes dst_block, to write to another block's memory, or cluster_mask, to read for several")
    a, b = pair(src, dst, "T.copy_cluster")
    if b.buffer.space != "SHARED":
        raise error(f"T.copy_cluster from {describe(a)} to {describe(b)}: blocks write to shared memory, of T.alloc_shared, for each other")
    if cluster_mask is not None:
        if remote_barrier is not None:
            raise error("T.copy_cluster(cluster_mask=…, remote_barrier=…): the next statement sees the elements; leave the barrier out")
        return ranks.multicast("T.copy_cluster", src, dst, cluster_mask, lambda a, b: copy(a, b, coalesced_width=coalesced_width))
    rank = cast(dst_block, int32)
    _put(a, b, rank, coalesced_width or 0)
    if remote_barrier is not None:
        barrier, first = barrier_of("copy_cluster", remote_barrier), _is_first_here(kernel)
        emit(ir.Barrier())  # the elements of all threads
        branch = Branch(first)
        if branch.then_():
            with branch.then_block():
                mbarrier_arrive(barrier, rank)


def _is_first_here(kernel: ir.Kernel):
    """Whether it is the first of the block's threads that come here."""
    here = threads_here("copy_cluster")
    if not here:
        return False
    if kernel.thread_var is None:
        kernel.thread_var = Var("THREAD", int32, "tx")
    return binary("EQ", kernel.thread_var.expr, here[0])


def _put(a, b, rank, coalesced_width: int) -> None:
    """Each element into the memory of the block of this rank."""
    number, blocks = constant_value(rank), ranks.blocks(_kernel("copy_cluster"))
    if number is not None and not 0 <= number < blocks:
        raise error(f"T.copy_cluster(dst_block={number}): the cluster has the blocks 0 to {blocks - 1}")
    if a.buffer.space not in ("SHARED", "FRAGMENT", "GLOBAL"):
        raise error(f"T.copy_cluster from {describe(a)} to {describe(b)}: it takes a tensor or a tile, and each thread has that memory for itself")
    if b.buffer.dtype.bits < 8:
        raise error(f"T.copy_cluster(dst_block=…) to {describe(b)}: threads write elements of 8 bits or more to another block, and those of "
                    f"{b.buffer.dtype} have {b.buffer.dtype.bits}; keep them in a tile of bytes")
    if tile_extents(a) != tile_extents(b):
        raise error(f"T.copy_cluster from {describe(a)} to {describe(b)}: the extents differ")
    agree(a, b)
    to, of = ([d for d, e in enumerate(r.extents) if e != 1] for r in (b, a))
    for index in Parallel(*[b.extents[d] for d in to] or [1], coalesced_width=coalesced_width or None):
        index = index if isinstance(index, tuple) else (index,)
        value = as_expr(a.buffer[shifted(a, dict(zip(of, index)))])
        emit(ir.Atomic("ATOMIC_STORE", b.buffer, list(shifted(b, dict(zip(to, index)))), cast(value, b.dtype), block=rank))


__all__ = ["alloc_cluster_barrier", "block_rank_in_cluster", "cluster_arrive", "cluster_arrive_relaxed", "cluster_sync", "cluster_wait",
           "copy_cluster", "ptx_arrive_cluster_barrier"]
