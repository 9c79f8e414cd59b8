# SPDX-License-Identifier: Apache-2.0
"""Copies and products that a program waits for itself. In Kiln each is complete where its statement ends, and the compiler makes it asynchronous
where nothing tells the difference; so where all threads of a block arrive and wait, there is nothing left to do. Where some do, the barriers are
the program's (``signals``)."""

from __future__ import annotations

from .. import notices
from . import program as ir
from . import ranks
from . import trace as tr
from .barriers import Barrier, Barriers
from .branches import threads_here
from .buffer import Buffer, Region, element, load
from .dtypes import int32
from .expr import Expr, as_expr, cast, condition, constant_value
from .loops import vectorized
from .scope import Branch
from .signals import Signal
from .tile_ops import GemmWarpPolicy, copy, gemm
from .trace import error, refuse, store

_COMPLETE = "the next statement sees the data of a copy and the sums of a product anyway; leave it out"
_CHOSEN = "the compiler chooses the instruction; leave it out"


def alloc_barrier(arrive_count):
    """A barrier of the threads of a block for T.tma_copy and T.ws, or, of a list, as many as it has entries: ``bars[i]``. ``arrive_count``: how
    many threads arrive.
    Shapes: a Python int above 0, or a list of them. Dtypes: none. Targets: all. Errors: TraceError for another count."""
    tr.current("T.alloc_barrier")
    several = isinstance(arrive_count, (list, tuple))
    counts = [constant_value(c) if isinstance(c, (Expr, int)) else None for c in (arrive_count if several else [arrive_count])]
    if not counts or not all(isinstance(c, int) and not isinstance(c, bool) and c > 0 for c in counts):
        raise error(f"T.alloc_barrier({arrive_count!r}): the number of arrivals is a Python int above 0, or a list of them")
    return Barrier(Barriers(counts), None if several and len(counts) > 1 else as_expr(0))


def _one(name: str, barrier) -> Barrier:
    if not isinstance(barrier, Barrier):
        raise error(f"T.{name} of {barrier!r}: it takes what T.alloc_barrier gives")
    if barrier.index is None:
        raise error(f"T.{name} of {len(barrier.barriers.counts)} barriers: index one, as bars[i]")
    return barrier


def barrier_of(name: str, barrier) -> Barrier:
    """One of T.alloc_cluster_barrier."""
    barrier = _one(name, barrier)
    if not barrier.barriers.of_cluster:
        raise error(f"T.{name}: threads of another block arrive at barriers of the cluster; make it with T.alloc_cluster_barrier")
    return barrier


def of_cluster(barrier: Barrier) -> Barrier:
    barrier.barriers.of_cluster = True
    return barrier


def _signal(name: str, barrier, parity=None, block=None) -> None:
    """An arrival, or a wait. ``block``: the rank of the block in the cluster whose barrier it is."""
    barrier = _one(name, barrier) if block is None else barrier_of(name, barrier)
    try:
        threads = len(threads_here(name))
    except tr.TraceError as problem:
        threads = problem
    if parity is not None and parity.dtype == "bool":
        parity = cast(parity, int32)
    tr.current(f"T.{name}").emit(Signal(barrier.barriers, barrier.index, threads, parity, name, block))


def barrier_arrive(mbarrier):
    """Each thread that comes to it has done what stands before it. In a kernel where only some threads come to its barriers, as in T.ws, those of
    other branches see that after a T.barrier_wait. In another kernel it does nothing, with a warning: the statement before it is complete.
    Shapes: one barrier. Dtypes: none. Targets: as of T.ws. Errors: TraceError for what is none of T.alloc_barrier, and as of T.ws; for targets
    without mbarriers also where values known at run time only decide which threads come to it."""
    _signal("barrier_arrive", mbarrier)


def mbarrier_arrive(mbarrier, cta_id=None):
    """T.barrier_arrive. ``cta_id``: at the barrier of the block of this rank in the cluster, one of T.alloc_cluster_barrier; threads of that block
    see what the thread did before, T.copy_cluster among it, after a T.mbarrier_wait_parity.
    Shapes: one barrier, and a scalar. Dtypes: an integer. Targets: all; sm_90 and later with ``cta_id``. Errors: as of T.barrier_arrive. TraceError
    for ``cta_id`` of another barrier."""
    _signal("mbarrier_arrive", mbarrier, block=None if cta_id is None else cast(cta_id, int32))


def mbarrier_arrive_expect_tx(mbarrier, tx):
    """T.barrier_arrive. ``tx``, the bytes that copies are to bring: no effect, with a warning, for these are complete.
    Shapes: one barrier, and a scalar. Dtypes: an integer. Targets: all. Errors: as of T.barrier_arrive."""
    as_expr(tx)
    _signal("mbarrier_arrive_expect_tx", mbarrier)


def cp_async_barrier_noinc(barrier):
    """T.barrier_arrive: the threads that come to it have done what stands before it, T.ptx_cp_async among it.
    Shapes: one barrier. Dtypes: none. Targets: as of T.ws. Errors: as of T.barrier_arrive."""
    _signal("cp_async_barrier_noinc", barrier)


def mbarrier_expect_tx(mbarrier, tx):
    """Accepted, and does nothing, with a warning: copies are complete where their statements end. ``tx``: the bytes that they are to bring.
    Shapes: one barrier, and a scalar. Dtypes: an integer. Targets: all. Errors: TraceError for what is none of T.alloc_barrier."""
    as_expr(tx)
    _one("mbarrier_expect_tx", mbarrier)
    notices.no_effect("T.mbarrier_expect_tx", _COMPLETE)


def barrier_wait(mbarrier, parity):
    """Each thread that comes to it waits until the turn of the barrier of this ``parity`` is over, and sees what those did who arrived. Turns are
    counted from 0; at first that of parity 1 is over. In a kernel where all threads come to its barriers it does nothing, with a warning: what it
    waits for is complete.
    Shapes: one barrier, and a scalar. Dtypes: an integer or bool. Targets: as of T.ws. Errors: as of T.barrier_arrive. TypeError for a
    ``parity`` that is no scalar."""
    _signal("barrier_wait", mbarrier, as_expr(parity))


def mbarrier_wait_parity(mbarrier, parity):
    """T.barrier_wait.
    Shapes: one barrier, and a scalar. Dtypes: an integer or bool. Targets: as of T.ws. Errors: as of T.barrier_wait."""
    _signal("mbarrier_wait_parity", mbarrier, as_expr(parity))


def tma_copy(src, dst, *, barrier=None, cluster_mask=None, leader_scope_threads=None, eviction_policy=None, annotations=None):
    """T.copy. The compiler takes the TMA where the target has it and the shapes fit it. ``barrier``: its turn that is under way is not over before
    the elements are there; who waits for it sees them. In a kernel where all threads come to its barriers, the next statement sees them.
    ``leader_scope_threads`` and ``eviction_policy``: no effect, with a warning.
    ``cluster_mask``: the blocks of the cluster whose rank is a bit of it all get what the lowest of them reads, as by T.copy_cluster.
    Shapes: as T.copy. Dtypes: as T.copy. Targets: all; sm_90 and later with ``cluster_mask``. Errors: as T.copy. TraceError for what is no
    ``barrier``, and as of T.copy_cluster."""
    if cluster_mask is not None:
        own = lambda a, b: tma_copy(a, b, barrier=barrier, leader_scope_threads=leader_scope_threads, eviction_policy=eviction_policy,  # noqa: E731
                                    annotations=annotations)
        return ranks.multicast("T.tma_copy", src, dst, cluster_mask, own)
    if barrier is not None:
        _one("tma_copy", barrier)
    notices.unused("T.tma_copy", leader_scope_threads=(leader_scope_threads, (None,), _CHOSEN), eviction_policy=(eviction_policy, (None,), _CHOSEN),
                   annotations=(annotations, (None, {}), "what annotations say is inferred; leave them out"))
    block = tr.current("T.tma_copy").blocks[-1]
    first = len(block)
    copy(src, dst)
    for stmt in block[first:] if barrier is not None else ():
        if isinstance(stmt, ir.Copy) and (stmt.src.buffer.space, stmt.dst.buffer.space) == ("GLOBAL", "SHARED"):
            stmt.signals = ir.Element(barrier.barriers.buffer, [barrier.index])


def async_copy(src, dst, *, coalesced_width=None, annotations=None, loop_layout=None):
    """T.copy from a tensor to shared memory. The compiler makes it asynchronous where nothing tells the difference, and waits for it.
    Shapes: as T.copy. Dtypes: as T.copy. Targets: all. Errors: as T.copy. From and to other memory, a TraceError of what
    compiles the program."""
    spaces = [getattr(getattr(side, "buffer", side), "space", None) for side in (src, dst)]
    if spaces != ["GLOBAL", "SHARED"]:
        refuse(f"T.async_copy only supports global->shared/shared.dyn copies, and this one goes from {src!r} to {dst!r}: use T.copy")
    copy(src, dst, coalesced_width=coalesced_width, annotations=annotations, loop_layout=loop_layout)


class Pointer:
    """What T.access_ptr gives: a place in a buffer."""

    __slots__ = ("buffer", "indices")

    def __init__(self, buffer, indices):
        self.buffer, self.indices = buffer, list(indices)

    def ahead(self, count) -> list:
        """The index so many elements further, along the last dimension."""
        return [*self.indices[:-1], self.indices[-1] + count]


def access_ptr(base, access_type="r", *extents, offset=0, extent=None, ignore_last_ndim=0):
    """A place in a buffer, for T.ptx_cp_async: that of an element ``A[i, j]``, of the first one of a slice, or of a whole buffer. ``offset``: so
    many elements further, along the last dimension. What is read and written there, and how much, is seen without ``access_type``, ``extents`` and
    ``extent``.
    Shapes: one place. Dtypes: any. Targets: all. Errors: ValueError for another ``access_type`` than "r", "w" and "rw". TraceError for
    ``ignore_last_ndim``, and for what names no place."""
    if access_type not in ("r", "w", "rw", 1, 2, 3):
        raise ValueError(f"T.access_ptr of access_type={access_type!r}; known: r, w, rw")
    if ignore_last_ndim:
        raise error("T.access_ptr(ignore_last_ndim=…): index the element at which it begins")
    if isinstance(base, Buffer):
        base = base.whole()
    found = (base.buffer, [as_expr(o) for o in base.offsets]) if isinstance(base, Region) else element(base)
    if found is None:
        raise error(f"T.access_ptr of {base!r}: it takes a buffer, a slice or an element")
    pointer = Pointer(*found)
    return Pointer(pointer.buffer, pointer.ahead(as_expr(offset)))


def ptx_cp_async(dst, src, num_elems, predicate=None):
    """Each thread that comes to it copies ``num_elems`` neighbours from one T.access_ptr to another. ``predicate``: where it does not hold, zeros are
    written. The next statement sees them.
    Shapes: two places, and a Python int. Dtypes: one for both. Targets: all. Errors: TraceError for what is no T.access_ptr, for another number, and
    for places of two dtypes."""
    if not isinstance(dst, Pointer) or not isinstance(src, Pointer) or dst.buffer.dtype != src.buffer.dtype:
        raise error("T.ptx_cp_async(dst, src, n) takes what T.access_ptr gives, of two buffers of one dtype")
    count = constant_value(as_expr(num_elems))
    if not isinstance(count, int) or count < 1:
        raise error(f"T.ptx_cp_async of {num_elems!r} elements: how many is a Python int above 0")
    branch = Branch(True if predicate is None else condition(predicate))

    def copied(value):
        for i in vectorized(count):
            store(dst.buffer, dst.ahead(i), value(i))

    if branch.then_():
        with branch.then_block():
            copied(lambda i: load(src.buffer, src.ahead(i)))
    if branch.else_():
        with branch.else_block():
            copied(lambda i: 0)


def _done(name: str, what: str):
    def function(*args, **kwargs):
        tr.current(f"T.{name}")
        notices.no_effect(f"T.{name}", what)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (f"Accepted, and does nothing, with a warning: {what}.\nShapes: any arguments. Dtypes: none. Targets: all. "
                        "Errors: TraceError outside of a traced function.")
    return function


ptx_commit_group = _done("ptx_commit_group", "copies are complete where their statements end; leave it out")
ptx_wait_group = _done("ptx_wait_group", "copies are complete where their statements end; leave it out")
fence_proxy_async = _done("fence_proxy_async", "the compiler places the fences that tensor copies and products need; leave it out")


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


__all__ = ["access_ptr", "alloc_barrier", "async_copy", "barrier_arrive", "barrier_wait", "cp_async_barrier_noinc", "fence_proxy_async",
           "mbarrier_arrive", "mbarrier_arrive_expect_tx", "mbarrier_expect_tx", "mbarrier_wait_parity", "ptx_commit_group", "ptx_cp_async",
           "ptx_wait_group", "tma_copy", "tma_store_wait", "wait_wgmma", "wgmma_gemm"]
