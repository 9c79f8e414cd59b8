# SPDX-License-Identifier: Apache-2.0
"""Several elements in one index: ``A[T.Ramp(base, stride, lanes)]``. They are read and written one by one; the compiler makes vectors of
neighbours."""

from __future__ import annotations

from . import math
from . import trace as tr
from .buffer import Buffer, Region, load
from .expr import Expr, as_expr, cast, constant_value, select


class Ramp:
    """The indices ``base``, ``base`` + ``stride``, …, ``lanes`` of them. ``A[T.Ramp(i, 1, 4)]`` is a tuple of elements, and takes a tuple of as
    many values, or one value for all. An index below 0 counts from the end of the dimension.
    Shapes: ``base`` is a scalar, ``stride`` a Python int, ``lanes`` a Python int above 0. Dtypes: integers. Targets: all. Errors: TraceError
    where ``stride`` or ``lanes`` is known at run time only, and for a tuple of another length."""

    __slots__ = ("indices",)

    def __init__(self, base, stride, lanes):
        step, count = constant_value(stride), constant_value(lanes)
        if not isinstance(step, int) or not isinstance(count, int) or count < 1:
            raise tr.error(f"T.Ramp(…, {stride!r}, {lanes!r}): the step and the number of lanes are Python integers, at least one lane")
        self.indices = [as_expr(base) + lane * step for lane in range(count)]


class Lanes(tuple):
    """What a T.Ramp names: loads of its elements."""

    def read(self) -> "Lanes":
        """The values that they have here."""
        return Lanes(tr.let("lane", e) for e in self)


def _positions(key) -> list | None:
    """The key once for each lane, or None where it holds no Ramp."""
    parts = key if isinstance(key, tuple) else (key,)
    ramps = [p for p in parts if isinstance(p, Ramp)]
    if not ramps:
        return None
    if len(ramps) > 1:
        raise tr.error("one T.Ramp in an index")
    return [tuple(p.indices[lane] if p is ramps[0] else p for p in parts) for lane in range(len(ramps[0].indices))]


def _from_the_end(region: Region, key: tuple) -> tuple:
    """A key whose indices below 0 count from the end."""
    wrapped = []
    for dim, index in zip(region.dims, key):
        number, extent = constant_value(index) if isinstance(index, (Expr, int)) else None, region.extents[dim]
        if isinstance(index, Expr) and index.dtype.kind == "i" and number is None and extent is not None:
            index = select(index < 0, index + cast(extent, index.dtype), index)
        wrapped.append(index if number is None else number)
    return tuple(wrapped)


def read(region: Region, key) -> Lanes | None:
    """The elements that a key with a Ramp names; None for another key."""
    keys = _positions(key)
    if keys is None:
        return None
    elements = [region[_from_the_end(region, k)] for k in keys]
    if not all(isinstance(e, Expr) for e in elements):
        raise tr.error("an index with a T.Ramp names elements: give an index for each dimension")
    return Lanes(elements)


def write(region: Region, key, value) -> bool:
    """Stores to the elements that a key names, where it holds a Ramp or the value is a tuple; whether it was so."""
    named = read(region, key)
    if named is None and not isinstance(value, (tuple, list)):
        return False
    places = [(e.value, e.args) for e in named] if named is not None else _of_slice(region[key])
    values = list(value) if isinstance(value, (tuple, list)) else [value] * len(places)
    if len(values) != len(places):
        raise tr.error(f"{len(values)} values for {len(places)} elements of {region.name}")
    if len(values) > 1:
        values = [tr.let("lane", as_expr(v)) for v in values]  # all are read before the first is written
    for (buffer, indices), item in zip(places, values):
        tr.store(buffer, indices, item)
    return True


def _of_slice(region) -> list:
    """(buffer, indices) of each element of a slice along one dimension."""
    dims = [d for d, extent in enumerate(region.extents) if extent != 1] if isinstance(region, (Region, Buffer)) else []
    if isinstance(region, Buffer) or len(dims) > 1 or not all(isinstance(region.extents[d], int) for d in dims):
        raise tr.error(f"a tuple is assigned to {region!r}: it goes to a slice of constant size along one dimension")
    moved = dims or [len(region.extents) - 1]
    return [(region.buffer, [as_expr(o) + lane if d == moved[0] else as_expr(o) for d, o in enumerate(region.offsets)])
            for lane in range(region.extents[moved[0]])]


def elements(value) -> list | None:
    """(buffer, indices) of each lane, or None for what is none of a Ramp."""
    if not isinstance(value, Lanes):
        return None
    if not all(e.op == "LOAD" for e in value):
        raise tr.error("these are values of elements, kept under a name; name the elements where they change, as A[T.Ramp(i, 1, 4)]")
    return [(e.value, list(e.args)) for e in value]


_PACKED = ("float32", "float16", "bfloat16")


def _pairs(name: str, count: int, what: str, function):
    def packed(*operands):
        if len(operands) != count:
            raise TypeError(f"T.{name} takes {count} arguments, not {len(operands)}")
        types = [_type_of_pair(name, operand) for operand in operands]
        if len(set(types)) > 1:
            raise ValueError(f"T.{name} of {', '.join(types)}: the operands must be of the same dtype; convert one with T.cast")
        if not all(isinstance(o, (tuple, list)) for o in operands):
            raise tr.error(f"T.{name} of a vector variable: a pair of elements is named by a T.Ramp, as A[T.Ramp(i, 1, 2)]")
        return Lanes(function(*lane) for lane in zip(*operands))

    packed.__name__ = packed.__qualname__ = name
    packed.__doc__ = (
        f"{what}, for each of two lanes: of ``A[T.Ramp(i, 1, 2)]`` and its like. The result is a tuple of two. The compiler computes both at once "
        "where the target can.\n"
        "Shapes: pairs of scalars. Dtypes: float32, float16 and bfloat16, the same for all operands. Targets: all.\n"
        "Errors: ValueError for other dtypes, TypeError for what is no pair.")
    return packed


def _type_of_pair(name: str, operand) -> str:
    if isinstance(operand, (tuple, list)) and len(operand) == 2:
        first, second = (as_expr(lane).dtype for lane in operand)
        dtype = first if first == second else f"a pair of {first} and {second}"
    elif isinstance(operand, Expr) and operand.dtype.lanes == 2:
        dtype = operand.dtype.removesuffix("x2")
    else:
        raise TypeError(f"T.{name} of {operand!r}: it takes pairs, as A[T.Ramp(i, 1, 2)]")
    if dtype not in _PACKED:
        raise ValueError(f"T.{name} of {dtype}: it takes pairs of {', '.join(_PACKED)}")
    return str(dtype)


add2 = _pairs("add2", 2, "x + y", lambda x, y: x + y)
sub2 = _pairs("sub2", 2, "x - y", lambda x, y: x - y)
mul2 = _pairs("mul2", 2, "x · y", lambda x, y: x * y)
fma2 = _pairs("fma2", 3, "x · y + z, rounded once", math.fma)
max2 = _pairs("max2", 2, "The larger of x and y, as T.max gives it", math.max)
min2 = _pairs("min2", 2, "The smaller of x and y, as T.min gives it", math.min)
abs2 = _pairs("abs2", 1, "|x|", math.abs)

__all__ = ["Ramp", "abs2", "add2", "fma2", "max2", "min2", "mul2", "sub2"]
