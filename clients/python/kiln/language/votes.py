# SPDX-License-Identifier: Apache-2.0
"""Whether elements of a tile hold, and what threads of a warp or block know together. Values pass between threads through a tile in shared
memory, which the compiler makes visible. A warp is 32 threads of one number after the other on every target."""

from __future__ import annotations

import functools
import math

from . import program as ir
from . import trace as tr
from .agreed import agree
from .buffer import Buffer, LocalVar, Region, load
from .dtypes import as_dtype, bool_, int32, uint32
from .expr import Deferred, Expr, Var, as_expr, binary, cast, condition, const, constant_value, floordiv, floormod, select
from .launch import get_thread_binding
from .loops import Parallel, serial
from .reducers import identity
from .regions import closed, operand
from .trace import allocate, emit, error, store, variable

WARP = 32
_WRITTEN_OUT = 64  # elements of which a condition is one expression
_FULL = (None, -1, 0xFFFFFFFF)


def _element(region: Region, index) -> Expr:
    return condition(as_expr(region.buffer[tuple(as_expr(o) + i for o, i in zip(region.offsets, index))]))


def _together(name: str, value, every: bool):
    tr.current(f"T.{name}")
    if not isinstance(value, (Buffer, Region, LocalVar)):
        return condition(value)
    region = closed(operand(value, f"the operand of T.{name}"))
    if region.buffer.space == "FRAGMENT":
        return _of_fragment(region, "REDUCE_BIT_AND" if every else "REDUCE_BIT_OR")
    op, count = "BIT_AND" if every else "BIT_OR", math.prod(region.extents)
    if count <= _WRITTEN_OUT:
        bits = [cast(_element(region, _digits(n, region.extents)), int32) for n in range(count)]
        total = const(int(every), int32)
        for n, bit in enumerate(bits):
            total = bit if n == 0 else binary(op, total, bit)
        return _kept(binary("NE", total, 0))
    total = variable(int32, name, int(every))
    for n in serial(count):
        total.store(binary(op, total.as_scalar(), cast(_element(region, _digits(n, region.extents)), int32)))
    return _kept(binary("NE", total.as_scalar(), 0))


def _digits(number, extents) -> list:
    digits = []
    for extent in reversed(extents):
        digits.insert(0, floormod(number, extent))
        number = floordiv(number, extent)
    return digits


def _of_fragment(region: Region, kind: str) -> Expr:
    extents = list(region.extents)
    tile = allocate("FRAGMENT", extents, bool_, f"{region.name}_holds")
    agree(region)
    for index in Parallel(*extents):
        index = index if isinstance(index, tuple) else (index,)
        store(tile, index, _element(region, index))
    while extents:
        extents.pop()
        smaller = allocate("FRAGMENT", extents or [1], bool_, f"{region.name}_holds")
        emit(ir.Reduce(kind, tile.whole(), smaller.whole(), len(extents), True))
        tile = smaller
    return _kept(load(tile, [as_expr(0)]))


def _kept(value: Expr) -> Expr:
    """The value that the expression has here."""
    if constant_value(value) is not None:
        return value
    var = Var("LET", value.dtype, "held")
    emit(ir.Let(var, value))
    return var.expr


def any_of(buffer):
    """Whether an element is not zero.
    Shapes: a buffer, a slice with constant extents, or a scalar. Dtypes: bool; numbers count as true where they are not 0; the result is
    bool. Targets: all. Errors: TraceError where an extent is known at run time only. CompileError of a fragment, where only some threads
    reach it."""
    return _together("any_of", buffer, False)


def all_of(buffer):
    """Whether no element is zero.
    Shapes: as T.any_of. Dtypes: as T.any_of. Targets: all. Errors: as T.any_of."""
    return _together("all_of", buffer, True)


def _thread(name: str):
    """(the thread's number in its block, how many there are)."""
    kernel = tr.current(f"T.{name}").kernel
    if kernel is None:
        raise error(f"T.{name} is used outside T.Kernel")
    number, inner = as_expr(0), 1
    for dim, extent in enumerate(kernel.block):
        if extent > 1:
            number = number + get_thread_binding(dim) * inner
        inner *= extent
    if kernel.thread_var is not None:
        number = kernel.thread_var.expr
    return number, inner


def _value(name: str, value) -> Expr:
    e = as_expr(value)
    if "parallel" in tr.current(f"T.{name}").loops:
        raise error(f"T.{name} in a T.Parallel loop: which thread does which iteration is the compiler's; use T.reduce_sum and its kin on a tile")
    return e


def _full_mask(name: str, mask):
    known = constant_value(mask) if isinstance(mask, (Expr, int)) else mask
    if known not in _FULL:
        raise error(f"T.{name}(mask={mask!r}): all threads of a warp take part; give those that shall not count a value without effect")


def _shared(name: str, value: Expr, neutral: Expr):
    """Every thread's value in a tile of warps × lanes; ``neutral`` where a warp has fewer threads, or they may not come here."""
    thread, count = _thread(name)
    warps = -(-count // WARP)
    tile = allocate("SHARED", (warps, WARP), value.dtype, name)
    if count % WARP or "branch" in tr.current().loops:
        emit(ir.Fill(tile.whole(), neutral))
    store(tile, (floordiv(thread, WARP), floormod(thread, WARP)), value)
    return tile, thread, warps


def _of_warp(name: str, kind: str, value: Expr, neutral: Expr) -> Expr:
    tile, thread, warps = _shared(name, value, neutral)
    result = allocate("SHARED", (warps,), value.dtype, f"{name}_result")
    emit(ir.Reduce(kind, tile.whole(), result.whole(), 1, True))
    return _kept(load(result, [floordiv(thread, WARP)]))


def _warp_reduction(op: str, kind: str, what: str):
    name = f"warp_reduce_{op}"

    def function(value):
        e = _value(name, value)
        if op[:3] == "bit" and e.dtype.is_float:
            raise TypeError(f"T.{name} of {e.dtype}: bits are those of integers; T.reinterpret gives a float's")
        if e.dtype.kind == "b" and op[:3] != "bit":
            e = cast(e, int32)
        return _of_warp(name, kind, e, identity(op, e.dtype))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The {what} of the values that the 32 threads of a warp give, in each of them. A warp is 32 threads by number on every target, also "
        "where the hardware's waves have 64.\nShapes: a scalar.\n"
        f"Dtypes: {'integers or bool' if op[:3] == 'bit' else 'numbers'}; the result has the type of the value.\nTargets: all.\n"
        "Errors: TraceError in T.Parallel. CompileError where only some threads reach it, unless those are a range by number with a barrier.")
    return function


warp_reduce_sum = _warp_reduction("sum", "REDUCE_SUM", "sum")
warp_reduce_max = _warp_reduction("max", "REDUCE_MAX", "maximum")
warp_reduce_min = _warp_reduction("min", "REDUCE_MIN", "minimum")
warp_reduce_bitand = _warp_reduction("bitand", "REDUCE_BIT_AND", "bitwise and")
warp_reduce_bitor = _warp_reduction("bitor", "REDUCE_BIT_OR", "bitwise or")


def _vote(dtype):
    """A function whose first argument is a predicate. Outside of a traced function it gives a value that is computed where one uses it."""
    def decorator(function):
        @functools.wraps(function)
        def called(predicate, *rest, **others):
            if as_expr(predicate).dtype.is_float:
                raise TypeError(f"T.{function.__name__} requires an integer or boolean predicate, not {as_expr(predicate).dtype}")
            if tr.active() is None:
                return Deferred(functools.partial(function, predicate, *rest, **others), dtype)
            return function(predicate, *rest, **others)

        return called

    return decorator


def _predicate(name: str, predicate) -> Expr:
    return condition(_value(name, predicate))


@_vote(int32)
def any_sync(predicate, mask=None):
    """Whether the predicate holds in a thread of the warp: 1 or 0.
    Shapes: a scalar. Dtypes: an integer or bool; the result is int32. Targets: all. Errors: TypeError for a float. TraceError for a ``mask``
    that leaves threads out. Otherwise as T.warp_reduce_sum."""
    _full_mask("any_sync", mask)
    return _of_warp("any_sync", "REDUCE_MAX", cast(_predicate("any_sync", predicate), int32), const(0, int32))


@_vote(int32)
def all_sync(predicate, mask=None):
    """Whether the predicate holds in all threads of the warp: 1 or 0.
    Shapes: a scalar. Dtypes: an integer or bool; the result is int32. Targets: all. Errors: as T.any_sync."""
    _full_mask("all_sync", mask)
    return _of_warp("all_sync", "REDUCE_MIN", cast(_predicate("all_sync", predicate), int32), const(1, int32))


@_vote(as_dtype("uint64"))
def ballot_sync(predicate, mask=None):
    """A number with one bit for each thread of the warp in which the predicate holds; the warp's first thread has the lowest.
    Shapes: a scalar. Dtypes: an integer or bool; the result is uint64. Targets: all. Errors: as T.any_sync."""
    _full_mask("ballot_sync", mask)
    thread, _ = _thread("ballot_sync")
    bit = binary("SHL", const(1, uint32), cast(floormod(thread, WARP), uint32))
    given = select(_predicate("ballot_sync", predicate), bit, const(0, uint32))
    return cast(_of_warp("ballot_sync", "REDUCE_BIT_OR", given, const(0, uint32)), "uint64")


@_vote(as_dtype("uint64"))
def ballot(predicate):
    """T.ballot_sync of all threads of the warp.
    Shapes: a scalar. Dtypes: an integer or bool; the result is uint64. Targets: all. Errors: as T.any_sync."""
    return ballot_sync(predicate)


def activemask():
    """A number with one bit for each thread of the warp that comes to it; the warp's first thread has the lowest.
    Shapes: a scalar. Dtypes: the result is uint64. Targets: all. Errors: as T.warp_reduce_sum."""
    return ballot_sync(True)


def match_any_sync(value, mask=None):
    """A number with one bit for each thread of the warp that comes to it and has the same value as this one; the warp's first thread has the lowest.
    Shapes: a scalar. Dtypes: an integer or bool; the result is uint32. Targets: all. Errors: TypeError for a float. TraceError for a ``mask`` that
    leaves threads out. Otherwise as T.warp_reduce_sum."""
    return _matching("match_any_sync", value, mask)[0]


def match_all_sync(value, mask=None):
    """T.match_any_sync where all threads of the warp that come to it have the same value, else 0.
    Shapes: a scalar. Dtypes: an integer or bool; the result is uint32. Targets: all. Errors: as T.match_any_sync."""
    same, here = _matching("match_all_sync", value, mask)
    return select(binary("EQ", same, here), same, const(0, uint32))


def _matching(name: str, value, mask) -> tuple:
    """The warp's threads that come here with the same value, and all that come here."""
    _full_mask(name, mask)
    e = _value(name, value)
    if e.dtype.is_float:
        raise TypeError(f"T.{name} of {e.dtype}: floats that are equal may differ in their bits; T.reinterpret gives these")
    e = cast(e, int32) if e.dtype.kind == "b" else e
    here = _kept(cast(ballot_sync(True), uint32))
    tile, thread, _ = _shared(name, e, const(0, e.dtype))
    same = variable(uint32, name, 0)
    for lane in serial(WARP):
        bit = binary("SHL", const(1, uint32), cast(lane, uint32))
        theirs = load(tile, [floordiv(thread, WARP), lane])
        same.store(binary("BIT_OR", same.as_scalar(), select(binary("EQ", theirs, e), bit, const(0, uint32))))
    return _kept(binary("BIT_AND", same.as_scalar(), here)), here


def _of_block(name: str, kind: str, predicate) -> Expr:
    value = cast(_predicate(name, predicate), int32)
    thread, count = _thread(name)
    tile = allocate("SHARED", (count,), int32, name)
    store(tile, (thread,), value)
    result = allocate("SHARED", (1,), int32, f"{name}_result")
    emit(ir.Reduce(kind, tile.whole(), result.whole(), 0, True))
    return _kept(load(result, [as_expr(0)]))


@_vote(int32)
def syncthreads_count(predicate):
    """In how many threads of the block the predicate holds.
    Shapes: a scalar. Dtypes: an integer or bool; the result is int32. Targets: all. Errors: TypeError for a float. TraceError in T.Parallel.
    CompileError where only some threads reach it."""
    return _of_block("syncthreads_count", "REDUCE_SUM", predicate)


@_vote(int32)
def syncthreads_and(predicate):
    """Whether the predicate holds in all threads of the block: 1 or 0.
    Shapes: a scalar. Dtypes: as T.syncthreads_count. Targets: all. Errors: as T.syncthreads_count."""
    return _of_block("syncthreads_and", "REDUCE_MIN", predicate)


@_vote(int32)
def syncthreads_or(predicate):
    """Whether the predicate holds in a thread of the block: 1 or 0.
    Shapes: a scalar. Dtypes: as T.syncthreads_count. Targets: all. Errors: as T.syncthreads_count."""
    return _of_block("syncthreads_or", "REDUCE_MAX", predicate)


def _shuffle(name: str, value, width, mask, source) -> Expr:
    """``source(lane, width)``: (the thread's lane from which it takes, whether it does; otherwise it keeps its own)."""
    _full_mask(name, mask)
    e, known = _value(name, value), constant_value(width)
    if known not in (1, 2, 4, 8, 16, 32):
        raise error(f"T.{name}(width={width!r}): a power of two up to {WARP}")
    tile, thread, _ = _shared(name, e, cast(0, e.dtype))
    lane = floormod(thread, WARP)
    other, takes = source(lane, known)
    other = select(takes, other, lane)
    return _kept(load(tile, [floordiv(thread, WARP), other]))


def shfl_sync(value, srcLane, width=WARP, mask=None):
    """The value of another thread of the warp: of lane ``srcLane`` (modulo ``width``) of the ``width`` neighbours that the thread belongs to.
    Shapes: scalars. Dtypes: any of 8 bits or more; ``srcLane`` is an integer. Targets: all; a warp is 32 threads by number on each. Errors:
    TraceError in T.Parallel, for a ``mask`` that leaves threads out, and for a ``width`` that is no power of two up to 32. CompileError
    where only some threads reach it, unless those are a range by number with a barrier."""
    return _shuffle("shfl_sync", value, width, mask, lambda lane, n: (lane - floormod(lane, n) + floormod(as_expr(srcLane), n), True))


def shfl_xor(value, delta, width=WARP, mask=None):
    """The value of the thread whose lane differs from this one's in the bits of ``delta``; the thread's own where that lies in a later group of
    ``width`` neighbours.
    Shapes: scalars. Dtypes: as T.shfl_sync. Targets: all. Errors: as T.shfl_sync."""
    def source(lane, n):
        other = binary("BIT_XOR", lane, cast(delta, int32))
        return other, binary("LT", other, lane - floormod(lane, n) + n)

    return _shuffle("shfl_xor", value, width, mask, source)


def shfl_up(value, delta, width=WARP, mask=None):
    """The value of the thread ``delta`` lanes below; the thread's own where that is outside of its ``width`` neighbours.
    Shapes: scalars. Dtypes: as T.shfl_sync. Targets: all. Errors: as T.shfl_sync."""
    return _shuffle("shfl_up", value, width, mask, lambda lane, n: (lane - delta, binary("GE", floormod(lane, n), delta)))


def shfl_down(value, delta, width=WARP, mask=None):
    """The value of the thread ``delta`` lanes above; the thread's own where that is outside of its ``width`` neighbours.
    Shapes: scalars. Dtypes: as T.shfl_sync. Targets: all. Errors: as T.shfl_sync."""
    return _shuffle("shfl_down", value, width, mask, lambda lane, n: (lane + delta, binary("LT", floormod(lane, n) + delta, n)))


def tvm_warp_shuffle(mask, value, warp_id, width, warp_size):
    """T.shfl_sync(value, warp_id, width, mask), as TVM writes it. ``warp_size`` is 32, or the threads of a smaller block.
    Shapes: as T.shfl_sync. Dtypes: as T.shfl_sync. Targets: all. Errors: as T.shfl_sync. TraceError for another ``warp_size``."""
    return shfl_sync(value, warp_id, _of_32("tvm_warp_shuffle", width, warp_size), mask)


def tvm_warp_shuffle_up(mask, value, offset, width, warp_size):
    """T.shfl_up(value, offset, width, mask), as TVM writes it. ``warp_size`` is 32, or the threads of a smaller block.
    Shapes: as T.shfl_up. Dtypes: as T.shfl_up. Targets: all. Errors: as T.shfl_up. TraceError for another ``warp_size``."""
    return shfl_up(value, offset, _of_32("tvm_warp_shuffle_up", width, warp_size), mask)


def tvm_warp_shuffle_down(mask, value, offset, width, warp_size):
    """T.shfl_down(value, offset, width, mask), as TVM writes it. ``warp_size`` is 32, or the threads of a smaller block.
    Shapes: as T.shfl_down. Dtypes: as T.shfl_down. Targets: all. Errors: as T.shfl_down. TraceError for another ``warp_size``."""
    return shfl_down(value, offset, _of_32("tvm_warp_shuffle_down", width, warp_size), mask)


def _of_32(name: str, width, warp_size):
    """The width: of a block with fewer threads than a warp, programs give their number for both."""
    if constant_value(warp_size) not in (1, 2, 4, 8, 16, WARP):
        raise error(f"T.{name}(warp_size={warp_size!r}): a warp has {WARP} threads on every target here")
    return width


def get_lane_idx(warp_size=None):
    """The thread's number in its warp.
    Shapes: a scalar. Dtypes: int32. Targets: all; a warp is 32 threads by number on each, or ``warp_size``. Errors: TraceError outside of
    T.Kernel."""
    return floormod(_thread("get_lane_idx")[0], warp_size or WARP)


def get_warp_idx(warp_size=None):
    """The number of the thread's warp in its block.
    Shapes: a scalar. Dtypes: int32. Targets: all; a warp is 32 threads by number on each, or ``warp_size``. Errors: TraceError outside of
    T.Kernel."""
    return floordiv(_thread("get_warp_idx")[0], warp_size or WARP)


get_warp_idx_sync = get_warp_idx


def get_warp_group_idx(warp_size=None, warps_per_group=None):
    """The number of the thread's group of four warps, or of ``warps_per_group``.
    Shapes: a scalar. Dtypes: int32. Targets: all; a warp is 32 threads by number on each, or ``warp_size``. Errors: TraceError outside of
    T.Kernel."""
    return floordiv(_thread("get_warp_group_idx")[0], (warp_size or WARP) * (warps_per_group or 4))


def shuffle_elect(thread_extent):
    """Whether the thread is the first of its ``thread_extent`` neighbours; with 0, of its block.
    Shapes: a Python int. Dtypes: the result is bool. Targets: all. Errors: TraceError outside of T.Kernel."""
    thread, _ = _thread("shuffle_elect")
    return binary("EQ", floormod(thread, thread_extent) if thread_extent else thread, 0)


__all__ = [name for name, made in list(globals().items()) if not name.startswith("_") and getattr(made, "__module__", "") == __name__]
