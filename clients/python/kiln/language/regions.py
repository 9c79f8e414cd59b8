# SPDX-License-Identifier: Apache-2.0
"""Operands of tile operations. A buffer stands for all of it, a slice for its box, and an element ``A[i, j]`` for a box that starts there
and is as large as the other operand, right-aligned."""

from __future__ import annotations

from .buffer import Buffer, LocalVar, Region, RunTimeExtent, show_shape
from .expr import Expr, as_expr, constant_value
from .trace import error


def operand(value, what: str, of_any_size: bool = False) -> Region:
    """The region an operand names; extents that depend on the other operand are None. ``of_any_size``: a RunTimeExtent is taken."""
    if isinstance(value, LocalVar):
        value = value.buffer
    if isinstance(value, Buffer):
        return value.whole()
    if isinstance(value, Region):
        refused = [] if of_any_size else [e for e in value.extents if isinstance(e, RunTimeExtent)]
        if refused:
            raise refused[0].refusal
        return value
    if isinstance(value, Expr) and value.op == "LOAD":
        buffer = value.value
        return Region(buffer, value.args, (None,) * buffer.ndim, range(buffer.ndim))
    raise error(f"{what} must be a buffer, a slice of one or its first element, not {value!r}")


def _known(extent):
    return extent if isinstance(extent, int) else constant_value(extent) if isinstance(extent, Expr) else None


def closed(region: Region) -> Region:
    """A region that stands alone: every extent must be known."""
    extents = [_known(e) for e in region.extents]
    for d, extent in enumerate(extents):
        if extent is None:
            raise error(
                f"the extent of dimension {d} of {region!r} is not a compile-time constant; a tile has a fixed size, so write "
                f"{region.name}[start : start + SIZE] (what lies outside the tensor reads as zero and is not written)"
            )
    return Region(region.buffer, region.offsets, extents, region.dims)


def _fill_from(region: Region, other: Region, broadcast: bool) -> Region:
    """Open extents take the other operand's, from the right. Where every dimension is open (``A[i, j]``) the dimensions that the other
    operand slices are matched by position; where one was sliced to a symbolic size, the non-unit extents are matched in order.
    ``broadcast``: dimensions that this operand lacks may be left out."""
    extents = [_known(e) for e in region.extents]
    wanted = [_known(other.extents[d]) for d in other.dims]
    if all(e is None for e in extents):
        while len(wanted) > len(extents) and 1 in wanted:
            wanted.remove(1)
        if len(wanted) > len(extents) and broadcast:
            wanted = wanted[-len(extents) :]
        if len(wanted) > len(extents):
            raise error(f"{region!r} has {len(extents)} dimensions and the tile to copy is {wanted}")
        extents = [1] * (len(extents) - len(wanted)) + wanted
        return Region(region.buffer, region.offsets, extents, region.dims)
    wanted = [e for e in wanted if e != 1]
    for d in reversed(range(len(extents))):
        if extents[d] is None:
            extents[d] = wanted.pop() if wanted else 1
        elif extents[d] != 1 and wanted:
            wanted.pop()
    return Region(region.buffer, region.offsets, extents, region.dims)


def _is_open(region: Region) -> bool:
    return any(_known(e) is None for e in region.extents)


def pair(src, dst, what: str) -> tuple[Region, Region]:
    """Both operands of a copy with all extents known. They agree in everything but dimensions of size 1."""
    a, b = operand(src, f"the source of {what}"), operand(dst, f"the destination of {what}")
    if _is_open(a) and _is_open(b):
        raise error(f"{what} from {a!r} to {b!r}: neither operand says how large the tile is; slice one of them with constant sizes")
    if _is_open(a):
        a = _fill_from(a, b, True)
    elif _is_open(b):
        b = _fill_from(b, a, False)
    return closed(a), closed(b)


def tile_extents(region: Region) -> list[int]:
    return [e for e in region.extents if e != 1]


def describe(region: Region) -> str:
    return f"{region!r} of extents {show_shape(region.extents)}"


def shifted(region: Region, steps: dict) -> tuple:
    """The index so many steps from the region's start, by dimension."""
    return tuple(as_expr(o) + steps[d] if d in steps else as_expr(o) for d, o in enumerate(region.offsets))
