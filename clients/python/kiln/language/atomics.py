# SPDX-License-Identifier: Apache-2.0
"""Atomic operations: on one element, or on each element of a tile."""

from __future__ import annotations

from .. import notices
from . import program as ir
from .agreed import agree, each, may_differ
from .buffer import Buffer, Region, element, load
from .expr import Expr, Var, as_expr, cast
from .lanes import elements
from .loops import Parallel
from .regions import closed, describe, operand, pair, shifted, tile_extents
from .trace import allocate, converted, current, emit, error, value_error

# "consume" promises less than "acquire", which every target has.
_ORDERS = {None: "RELAXED", "relaxed": "RELAXED", "consume": "ACQUIRE", "acquire": "ACQUIRE", "release": "RELEASE", "acq_rel": "ACQ_REL",
           "seq_cst": "SEQ_CST"}
_OF_LOADS = (None, "relaxed", "consume", "acquire", "seq_cst")
_OF_STORES = (None, "relaxed", "release", "seq_cst")


def _order(name: str, order, known=tuple(_ORDERS)) -> str:
    if order not in known:
        raise value_error(f"T.{name}(memory_order={order!r}): {name} does not support memory_order={order!r}; it may be "
                          f"{', '.join(o for o in known if o)}")
    return "MEMORY_ORDER_" + _ORDERS[order]


def _of_each_thread() -> bool:
    """Whether a statement on one element stands for each thread: in a parallel loop it stands for an iteration."""
    return "parallel" not in current("an atomic operation").loops


def _change(name: str, kind: str, dst, value, order: str, gives_old: bool, compare=None) -> Expr | None:
    """The statement, and the element from before."""
    target = element(dst)
    if target is None:
        raise error(f"T.{name} of {describe(dst)}: it takes one element, as A[i, j]; write a T.Parallel loop over the tile")
    buffer, indices = target
    of_type = lambda x: None if x is None else converted(x, buffer)  # noqa: E731
    value, compare = of_type(value), of_type(compare)
    old = ir.Element(allocate("LOCAL", (1,), buffer.dtype, "old"), [as_expr(0)]) if gives_old else None
    emit(ir.Atomic(kind, buffer, indices, value, _of_each_thread(), compare, old, order))
    if old is None:
        return None
    var = Var("LET", buffer.dtype, "before")
    emit(ir.Let(var, load(old.buffer, old.indices)))
    return var.expr


def _tile(kind: str, dst, value, order: str) -> None:
    """Tile form: each element of the destination. Where an operand is an array of the thread's own, each thread does all of it at a place of its
    own; at a place that all share, it is done once, of values that all have."""
    if not isinstance(value, (Buffer, Region)):
        region = closed(operand(dst, "the destination of an atomic operation"))
        source = None
    else:
        source, region = pair(value, dst, "an atomic operation")
        if tile_extents(source) != tile_extents(region):
            raise error(f"an atomic operation from {describe(source)} to {describe(region)}: the extents differ")
    dims = [d for d, e in enumerate(region.extents) if e != 1]
    operands, added = ([region], [value]) if source is None else ([region, source], [])
    for index in each([region.extents[d] for d in dims] or [1], *operands, values=added):
        if source is None:
            operand_value = converted(value, region.buffer)
        else:
            source_dims = [d for d, e in enumerate(source.extents) if e != 1]
            operand_value = as_expr(source.buffer[shifted(source, dict(zip(source_dims, index)))])
        indices = shifted(region, dict(zip(dims, index)))
        change = lambda apart: ir.Atomic(kind, region.buffer, list(indices), cast(operand_value, region.dtype), apart, order=order)  # noqa: E731
        if source is None or source.buffer.space != "LOCAL" or not _of_each_thread() or any(may_differ(offset) for offset in region.offsets):
            emit(change(_of_each_thread()))
            continue
        agree(values=[operand_value])
        for _ in Parallel(1):
            emit(change(False))


_ORDER_DOC = (
    "``memory_order``: \"relaxed\" (the same as None) orders nothing else; \"release\" makes all that the block did before visible to those who "
    "acquire the element's value, \"acquire\" (and \"consume\") makes visible to the block what was done before the release, \"acq_rel\" does "
    "both, and \"seq_cst\" also puts all such operations in one order. Outside of T.Parallel, each thread that comes to it does it: ``if tx == "
    "0``, with tx of T.get_thread_binding(), lets one thread do it.")
_OLD_DOC = "With ``return_prev=True`` the result is what the element was before, 0 where there is none."


def _atomic(kind: str, name: str, what: str, dtypes: str = "numbers of 16 bits or more"):
    def function(dst, value, memory_order=None, return_prev=False, use_tma=False, annotations=None):
        notices.unused(f"T.{name}", annotations=(annotations, (None, {}), "what annotations say is inferred; leave them out"),
                       use_tma=(use_tma, (False, None), "the compiler chooses the instruction; leave it out"))
        order = _order(name, memory_order)
        whole = isinstance(dst, Buffer) and not return_prev  # a tile, though it has one element: once, and not by each thread
        if not isinstance(value, (Buffer, Region)) and not whole and element(dst) is not None:
            return _change(name, kind, dst, value, order, bool(return_prev))
        if return_prev:
            raise error(f"T.{name}(return_prev=True) of a tile: write a T.Parallel loop over it, where each element has a result of its own")
        _tile(kind, dst, value, order)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{what}, atomically, for one element or for each element of a tile. {_OLD_DOC} {_ORDER_DOC} ``use_tma`` and ``annotations``: no effect, "
        "with a warning.\n"
        "Shapes: ``dst`` is an element or a tile in global or shared memory; ``value`` is a scalar, or a tile of equal extents. Of a T.alloc_local "
        "each thread does all where the place in ``dst`` has its number in it; else it is done once, of what all threads have. \n"
        f"Dtypes: {dtypes}; ``value`` is converted to the dtype of ``dst``. Targets: all.\n"
        "Errors: TraceError for another ``memory_order``, for ``return_prev=True`` of a tile, and where extents differ. CompileError for elements "
        "of 8 bits, for an element that is in neither global nor shared memory, and where a tile's offset, its scalar or a T.alloc_local that is "
        "taken once differs between threads.").replace(". \n", ".\n")
    return function


_INTEGERS = "integers of 16 bits or more"
atomic_add = _atomic("ATOMIC_ADD", "atomic_add", "dst += value")
atomic_max = _atomic("ATOMIC_MAX", "atomic_max", "dst = max(dst, value)")
atomic_min = _atomic("ATOMIC_MIN", "atomic_min", "dst = min(dst, value)")
atomic_and = _atomic("ATOMIC_BIT_AND", "atomic_and", "dst &= value", _INTEGERS)
atomic_or = _atomic("ATOMIC_BIT_OR", "atomic_or", "dst |= value", _INTEGERS)
atomic_xor = _atomic("ATOMIC_BIT_XOR", "atomic_xor", "dst ^= value", _INTEGERS)


def _vector(name: str, width: int, what: str):
    def function(dst, value, memory_order=None, return_prev=False, annotations=None):
        notices.unused(f"T.{name}", annotations=(annotations, (None, {}), "what annotations say is inferred; leave them out"))
        order = _order(name, memory_order)
        added = [as_expr(buffer[tuple(indices)]) for buffer, indices in _neighbours(name, value, width)]
        old = [_change(name, "ATOMIC_ADD", load(*to), by, order, bool(return_prev)) for to, by in zip(_neighbours(name, dst, width), added)]
        return tuple(old) if return_prev else None

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"``T.atomic_add`` of {what} neighbours along the last dimension, from the elements that ``dst`` and ``value`` name on, each by itself. "
        f"With ``return_prev=True`` the result is a tuple of what the {what} elements were before.\n"
        f"Shapes: {what} elements from each start on. A slice counts from where it begins; a T.Ramp names each.\n"
        "Dtypes: as T.atomic_add. Targets: all.\n"
        "Errors: TraceError for another ``memory_order``, and for what is neither an element nor a slice.")
    return function


def _neighbours(name: str, value, width: int) -> list:
    """(buffer, indices) of ``width`` elements."""
    named = elements(value)
    if named is not None and len(named) != width:
        raise error(f"T.{name} of a T.Ramp of {len(named)} lanes: it takes {width}")
    if named is None:
        buffer, first = _first(name, value)
        named = [(buffer, [*first[:-1], first[-1] + lane]) for lane in range(width)]
    return named


def _first(name: str, value):
    """(buffer, indices) of the first element."""
    if isinstance(value, Region):
        return value.buffer, [as_expr(o) for o in value.offsets]
    target = element(value)
    if target is None and isinstance(value, Buffer):
        return value, [as_expr(0)] * len(value.shape)
    if target is None:
        raise error(f"T.{name} of {value!r}: it takes the first of its elements, as A[i, j * 4]")
    return target


atomic_addx2 = _vector("atomic_addx2", 2, "two")
atomic_addx4 = _vector("atomic_addx4", 4, "four")


def atomic_exch(dst, value, memory_order=None):
    """dst = value, atomically; the result is what the element was before, 0 where there is none. ``memory_order``: as of T.atomic_add.
    Outside of T.Parallel, each thread that comes to it does it.
    Shapes: ``dst`` is an element in global or shared memory; ``value`` is a scalar. Dtypes: numbers of 16 bits or more; ``value`` is converted
    to the dtype of ``dst``. Targets: all. Errors: TraceError for another ``memory_order``, and for a tile. CompileError as of T.atomic_add."""
    return _change("atomic_exch", "ATOMIC_EXCHANGE", dst, value, _order("atomic_exch", memory_order), True)


def atomic_cas(dst, compare, value, memory_order=None):
    """dst = value if dst has the bits of ``compare``, atomically; the result is what the element was before, 0 where there is none.
    ``memory_order``: as of T.atomic_add. Outside of T.Parallel, each thread that comes to it does it.
    Shapes: ``dst`` is an element in global or shared memory; the others are scalars. Dtypes: numbers of 16 bits or more; the others are
    converted to the dtype of ``dst``. Targets: all. Errors: as T.atomic_exch."""
    return _change("atomic_cas", "ATOMIC_COMPARE_EXCHANGE", dst, value, _order("atomic_cas", memory_order), True, compare)


def atomic_load(src, memory_order="seq_cst"):
    """The element, read in one step. ``memory_order``: as of T.atomic_add, but for "release" and "acq_rel". A loop may wait for it: ``while
    T.atomic_load(flag[0], "acquire") == 0``. Outside of T.Parallel, each thread that comes to it reads for itself.
    Shapes: ``src`` is an element in global or shared memory. Dtypes: numbers of 16 bits or more. Targets: all. Errors: TraceError for another
    ``memory_order``, and for a tile. CompileError as of T.atomic_add."""
    return _change("atomic_load", "ATOMIC_LOAD", src, None, _order("atomic_load", memory_order, _OF_LOADS), True)


def atomic_store(dst, src, memory_order="seq_cst"):
    """dst = src, written in one step. ``memory_order``: as of T.atomic_add, but for "acquire", "consume" and "acq_rel". Outside of
    T.Parallel, each thread that comes to it does it.
    Shapes: ``dst`` is an element in global or shared memory; ``src`` is a scalar. Dtypes: numbers of 16 bits or more; ``src`` is converted to
    the dtype of ``dst``. Targets: all. Errors: TraceError for another ``memory_order``, and for a tile. CompileError as of T.atomic_add."""
    _change("atomic_store", "ATOMIC_EXCHANGE", dst, src, _order("atomic_store", memory_order, _OF_STORES), False)


__all__ = [name for name in dir() if name.startswith("atomic_")]
