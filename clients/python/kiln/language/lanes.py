# SPDX-License-Identifier: Apache-2.0
"""Several elements in one index: ``A[T.Ramp(base, stride, lanes)]``. They are read and written one by one; the compiler makes vectors of
neighbours."""

from __future__ import annotations

from . import math
from . import trace as tr
from .buffer import Buffer, LocalVar, Region, load
from .dtypes import as_dtype
from .expr import Expr, Operators, as_expr, cast, const, constant_value, make, select
from .kinds import Kind


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

class VectorVar(LocalVar):
    """What T.alloc_var of a vector's type gives: as many elements as it has lanes. A vector is assigned to it, and T.extract_lane reads a lane."""

    __slots__ = ("type",)

    def __init__(self, buffer: Buffer, dtype):
        super().__init__(buffer)
        self.type = dtype

    @property
    def dtype(self):
        return self.type

    def as_scalar(self):
        raise TypeError(f"{self.name} is a vector, {self.type}: T.extract_lane({self.name}, i) is one of its lanes")

    def read(self) -> Lanes:
        return Lanes(load(self.buffer, (lane,)) for lane in range(self.type.lanes)).read()

    def store(self, value):
        lanes = value.read() if isinstance(value, VectorVar) else value
        if not isinstance(lanes, (tuple, list)) or len(lanes) != self.type.lanes:
            raise tr.error(f"{self.name} is a {self.type}, and takes one: {self.type}(…) of {self.type.lanes} values, not {value!r}")
        for lane, item in enumerate([tr.let("lane", as_expr(v)) for v in lanes]):
            tr.store(self.buffer, (lane,), item)


def vector(dtype, values) -> Lanes:
    """What the type of a vector gives where it is called: of as many values, or of one for all lanes."""
    if len(values) == 1 and isinstance(values[0], (Lanes, VectorVar)):
        values = values[0].read()
    values = list(values) * dtype.lanes if len(values) == 1 else list(values)
    if len(values) != dtype.lanes:
        raise TypeError(f"{dtype} of {len(values)} values: it has {dtype.lanes} lanes, and takes a value for each, or one for all")
    return Lanes(cast(v, dtype.element) for v in values)


class Shuffle(metaclass=Kind):
    """The class of what T.extract_lane gives of a vector's expression. ``T.Shuffle([vector], [lane])`` makes one.
    Shapes: a vector and a Python int. Dtypes: any; the element's. Targets: all. Errors: as T.extract_lane. TraceError for several."""

    def __new__(cls, vectors, indices, span=None):
        if len(vectors) != 1 or len(indices) != 1:
            raise tr.error("T.Shuffle takes one vector and one lane; write a tuple of T.extract_lane for several")
        return extract_lane(vectors[0], indices[0])

    @staticmethod
    def holds(value) -> bool:
        return isinstance(value, Expr) and value.op == "LANE"


def extract_lane(vector, lane, span=None):
    """One lane of a vector: of a T.alloc_var of a vector's type as T.bfloat16x2, of what such a type gives, ``T.bfloat16x2(x, y)``, or of a
    tuple of elements, ``A[T.Ramp(i, 1, 2)]``.
    Shapes: a scalar; ``lane`` is a Python int. Dtypes: the element's. Targets: all. Errors: TypeError for what is no expression, and where
    ``lane`` is known at run time only. ValueError for a scalar, IndexError for a lane that the vector does not have."""
    if not isinstance(vector, (Operators, Lanes)):
        raise TypeError(f"T.extract_lane expects a PrimExpr, a vector, not {vector!r}")
    count = len(vector) if isinstance(vector, Lanes) else vector.dtype.lanes
    if count == 1:
        raise ValueError(f"T.extract_lane expects a vector expression, and {vector!r} is a scalar of {vector.dtype}")
    number = constant_value(lane) if isinstance(lane, (Expr, int)) else None
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"T.extract_lane expects a compile-time integer lane, not {lane!r}")
    if not 0 <= number < count:
        raise IndexError(f"lane {number} is out of bounds: the vector has {count}")
    if isinstance(vector, Lanes):
        return vector[number]
    if isinstance(vector, VectorVar):
        return load(vector.buffer, (number,))
    return make("LANE", vector.dtype.element, (vector, const(number, as_dtype("int32"))))


__all__ = ["Ramp", "Shuffle", "abs2", "add2", "extract_lane", "fma2", "max2", "min2", "mul2", "sub2"]
