# SPDX-License-Identifier: Apache-2.0
"""Elements of values as expressions. A block that is a function of its indices stays one: ``at(value, indices)`` is the expression of an
element, a pointer's being its offset from the argument that it points into. What was given a place (a buffer, a variable) is read there."""

from __future__ import annotations

import math

from ..language.buffer import Buffer, load
from ..language.dtypes import as_dtype
from ..language.expr import Expr, as_expr, binary, cast, const, constant_value, logical_not, make, select, unary
from ..language.pointers import Memory
from .errors import Refusal
from .graph import PURE, Value
from .types import kiln_of

_INT64 = as_dtype("int64")
_MOST_DIMENSIONS = 8  # of a buffer and of a parallel loop


def merged(shape) -> tuple:
    """The shape of a buffer for a block: of one with more dimensions than buffers have, the first are one."""
    first = max(len(shape) - _MOST_DIMENSIONS + 1, 1)
    return (math.prod(shape[:first]), *shape[first:]) if shape else ()


def merged_indices(shape, indices) -> tuple:
    first = max(len(shape) - _MOST_DIMENSIONS + 1, 1)
    head = as_expr(0)
    for extent, index in zip(shape[:first], indices):
        head = index if first == 1 else head * extent + index
    return (head, *indices[first:]) if shape else ()


def separate_indices(shape, indices) -> tuple:
    """The other way round."""
    parts, rest = [], indices[0] if shape else None
    for extent in reversed(shape[1 : max(len(shape) - _MOST_DIMENSIONS + 1, 1)]):
        parts.insert(0, rest % extent)
        rest = rest // extent
    return (rest, *parts, *indices[1:]) if shape else ()


class Held:
    """In a buffer; a scalar in one of one element."""

    def __init__(self, buffer: Buffer):
        self.buffer = buffer

    def at(self, symbols, value, indices) -> Expr:
        return load(self.buffer, merged_indices(value.shape, indices) if value.shape else (0,))


class Known:
    """An expression that is a scalar's value wherever it is seen."""

    def __init__(self, expr: Expr):
        self.expr = expr

    def at(self, symbols, value, indices) -> Expr:
        return self.expr


class Alias:
    """Another value."""

    def __init__(self, value: Value):
        self.value = value

    def at(self, symbols, value, indices) -> Expr:
        return symbols.at(self.value, indices)


class Pair:
    """Of a block the two elements along a dimension, combined by a function of the tile language."""

    def __init__(self, source: Value, axis: int, fn: str):
        self.source, self.axis, self.fn = source, axis, fn

    def at(self, symbols, value, indices) -> Expr:
        first, second = (symbols.at(self.source, (*indices[: self.axis], as_expr(i), *indices[self.axis :])) for i in range(2))
        return binary(self.fn, first, second)


class Advanced:
    """``start`` plus so many ``times`` the steps: (+1 or -1, value)."""

    def __init__(self, start: Value, steps: list, times: Expr):
        self.start, self.steps, self.times = start, steps, times

    def at(self, symbols, value, indices) -> Expr:
        result = symbols.at(self.start, indices)
        for sign, step in self.steps:
            dtype = _INT64 if value.element.is_ptr() else value.element.kiln
            advance = binary("MUL", cast(symbols.at(step, indices), dtype), cast(self.times, dtype))
            result = binary("ADD" if sign > 0 else "SUB", cast(result, dtype), advance)
        return result


class Symbols:
    """``place``: where a value is held, of those that are. ``base``: the argument of a pointer. ``memories``: by dtype, what pointers lead to that
    were integers. ``buffers``: in shared memory, of each allocation of the program."""

    def __init__(self):
        self.place: dict = {}
        self.bases: dict = {}
        self.memories: dict = {}
        self.buffers: dict = {}
        self.programs: list = []  # expressions of the program's place in the grid
        self.grid: list = []
        self._known: dict = {}

    def forget(self) -> None:
        """What was found before stands for values that are computed again."""
        self._known.clear()

    def put(self, value: Value, place) -> None:
        """From here on it is read there."""
        self.place[value] = place
        if value.shape:
            self._known.clear()
        else:
            self._known.pop((id(value),), None)

    def again(self, value: Value) -> None:
        """The value is computed once more."""
        self.place.pop(value, None)

    def offset(self, pointer, value: Value, indices) -> Expr:
        """What is added to a pointer."""
        return self.at(value, indices)

    def at(self, value: Value, indices=()) -> Expr:
        key = (id(value), *map(id, indices))
        known = self._known.get(key)
        if known is None:
            place = self.place.get(value)
            expr = place.at(self, value, indices) if place is not None else self._computed(value, indices)
            known = self._known[key] = (expr, indices)  # the indices are kept, for their numbers are the key
        return known[0]

    def _computed(self, value: Value, indices) -> Expr:
        op = value.op
        if op is None or op.name not in PURE:
            raise AssertionError(f"{value!r} has no place")
        return _FUNCTIONS[op.name](self, op, indices)

    def base(self, value: Value) -> Buffer:
        """The argument that a pointer points into."""
        found = self.bases.get(value)
        if found is None:
            found = self.bases[value] = self._base(value)
        return found

    def _base(self, value: Value) -> Buffer:
        place = self.place.get(value)
        if isinstance(place, (Alias, Advanced)):
            return self.base(place.value if isinstance(place, Alias) else place.start)
        op = value.op
        if op is not None and op.name == "tt.int_to_ptr":
            dtype = value.element.element_ty.kiln
            return self.memories.setdefault(dtype, Memory(dtype))
        if op is not None and op.name == "tle.local_ptr":
            return self.buffers[op.attrs["view"].memory]
        if op is not None and op.name == "arith.select":
            return self.common([self.base(operand) for operand in op.operands[1:]])
        if op is not None and op.name in PURE:
            return self.base(op.operands[0])
        raise Refusal("a pointer that is loaded from memory; pass the tensors as arguments")

    def element(self, pointer: Value, indices=()) -> tuple:
        """(the buffer, the indices in it) that a pointer leads to."""
        base = self.base(pointer)
        return base, list(_Places(self).at(pointer, indices)) if base.space == "SHARED" else [self.at(pointer, indices)]

    def local(self, op, indices):
        raise Refusal("a pointer of tle.gpu.local_ptr that is kept, carried or chosen by a branch; keep its indices, and make the pointer where it "
                      "is read or written")

    def address(self, value: Value, indices=()) -> Expr:
        """Of the byte that a pointer leads to, if an integer is behind it."""
        op = value.op if value not in self.place else None
        if op is not None and op.name == "tle.local_ptr":
            raise Refusal("a pointer of tle.gpu.local_ptr as an integer; keep its indices")
        if op is not None and op.name == "tt.int_to_ptr":
            return self.at(op.operands[0], indices)
        if op is not None and op.name in PURE:
            return _FUNCTIONS[op.name](_Addresses(self), op, indices)
        if not isinstance(self.base(value), Memory):
            raise Refusal("an argument's pointer is used as an integer, and kernels do not see where a tensor lies; pass tensor.data_ptr()")
        return self.at(value, indices) * value.element.element_ty.itemsize + Memory.BASE

    @staticmethod
    def common(bases) -> Buffer:
        if any(base is not bases[0] for base in bases):
            names = " and ".join(sorted({base.name for base in bases}))
            raise Refusal(f"a pointer that points into {names}, which of them is known only when the kernel runs; load from each and choose by "
                          "tl.where, or store to each with a mask")
        return bases[0]


class _Addresses:
    """Symbols in whose place pointers are addresses."""

    def __init__(self, symbols: Symbols):
        self._symbols = symbols

    def at(self, value: Value, indices=()) -> Expr:
        if value.element.is_ptr():
            return self._symbols.address(value, indices)
        return self._symbols.at(value, indices)

    def offset(self, pointer, value: Value, indices) -> Expr:
        return cast(self._symbols.at(value, indices), _INT64) * pointer.element_ty.itemsize


class _Places:
    """Symbols in whose place pointers into shared memory are indices of a buffer."""

    _MOVES = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.bitcast", "tle.local_ptr")

    def __init__(self, symbols: Symbols):
        self._symbols = symbols

    def at(self, value: Value, indices=()):
        place = self._symbols.place.get(value)
        if isinstance(place, Alias):
            return self.at(place.value, indices)
        if value.op is not None and place is None and value.op.name == "tt.addptr":
            return self._moved(value, indices)
        if value.op is None or place is not None or value.op.name not in self._MOVES:
            return self._symbols.local(value.op, indices)
        return _FUNCTIONS[value.op.name](self, value.op, indices)

    def local(self, op, indices) -> tuple:
        view, count, at = op.attrs["view"], op.attrs["count"], self._symbols.at
        if count:
            indices = tuple(cast(at(operand, indices), "int32") for operand in op.operands[:count])
        return view.places(at, op.operands[count:], indices)

    def _moved(self, value: Value, indices) -> tuple:
        """So many elements further, row by row."""
        start, step = value.op.operands
        linear, shape = as_expr(0), self._symbols.base(value).shape
        for extent, index in zip(shape, self.at(start, indices)):
            linear = linear * extent + index
        return in_one_row((math.prod(shape),), shape, (linear + cast(self._symbols.at(step, indices), "int32"),))


def _broadcast(symbols, op, indices):
    source = op.operands[0]
    return symbols.at(source, tuple(as_expr(0) if extent == 1 else index for extent, index in zip(source.shape, indices)))


def _expand(symbols, op, indices):
    axis = op.attrs["axis"]
    return symbols.at(op.operands[0], indices[:axis] + indices[axis + 1 :])


def _trans(symbols, op, indices):
    places = dict(zip(op.attrs["order"], indices))
    return symbols.at(op.operands[0], tuple(places[d] for d in range(len(indices))))


def _reshape(symbols, op, indices):
    source = op.operands[0]
    return symbols.at(source, reshaped_indices(op.result.shape, source.shape, indices) if source.shape else ())


def reshaped_indices(shape: tuple, source: tuple, indices) -> tuple:
    """Of an element of ``shape``: where it is in ``source``, which has as many elements. An index that stands for whole dimensions of the source
    is split among these alone, so that what follows sees which dimensions are the same."""
    left, step = [], 1  # (an index, how many values it has, how many elements lie between two of them)
    for index, extent in zip(reversed(indices), reversed(shape)):
        left.append((index, extent, step))
        step *= extent
    parts = []
    for extent in reversed(source):
        part, above = as_expr(0), []
        for index, count, step in left:
            inner = extent // step if step < extent else 1  # so many values of the index lie within this dimension
            if step % extent == 0:
                above.append((index, count, step // extent))
            elif extent % step or count > inner and count % inner:
                return in_one_row(shape, source, indices)
            elif count <= inner:
                part = part + index * step
            else:
                part = part + index % inner * step
                above.append((_quotient(index, inner), count // inner, 1))
        left = above
        parts.insert(0, part)
    return tuple(parts)


def in_one_row(shape: tuple, source: tuple, indices, first: int = 0) -> tuple:
    """By the place in the whole, where extents do not divide each other. ``first``: where in the source the first element is."""
    linear = as_expr(0)
    for extent, index in zip(shape, indices):
        linear = linear * extent + index
    parts, rest = [], linear + first
    for extent in reversed(source[1:]):
        parts.insert(0, rest % extent)
        rest = rest // extent
    return (rest, *parts)


def _quotient(index: Expr, divisor: int) -> Expr:
    """index // divisor: of a quotient by a number, one of it by both."""
    if index.op == "FLOOR_DIV" and (inner := constant_value(index.args[1])) is not None and inner > 0:
        return index.args[0] // (inner * divisor)
    return index // divisor


def _gather(symbols, op, indices):
    axis = op.attrs["axis"]
    index = cast(symbols.at(op.operands[1], indices), "int32")
    return symbols.at(op.operands[0], (*indices[:axis], index, *indices[axis + 1 :]))


def _addptr(symbols, op, indices):
    start, offset = symbols.at(op.operands[0], indices), symbols.offset(op.result.element, op.operands[1], indices)
    if offset.dtype.bits < 32 or offset.dtype == "uint32":
        offset = cast(offset, _INT64 if offset.dtype == "uint32" else as_dtype("int32"))
    if constant_value(start) == 0:
        return offset
    return binary("ADD", cast(start, _INT64), cast(offset, _INT64))


def _binary(symbols, op, indices):
    a, b = (symbols.at(operand, indices) for operand in op.operands)
    fn = op.attrs["fn"]
    if a.dtype.kind == "b" and fn in ("BIT_XOR", "MAX", "MIN"):
        return binary({"BIT_XOR": "NE", "MAX": "BIT_OR", "MIN": "BIT_AND"}[fn], a, b)
    return binary(fn, a, b)


def _compare(symbols, op, indices):
    a, b = (symbols.at(operand, indices) for operand in op.operands)
    if a.dtype.kind == "b":
        a, b = cast(a, "int32"), cast(b, "int32")
    return binary(op.attrs["fn"], a, b)


def _unary(symbols, op, indices):
    x, fn = symbols.at(op.operands[0], indices), op.attrs["fn"]
    return logical_not(x) if fn == "NOT" else unary(fn, x)


def _select(symbols, op, indices):
    condition, a, b = (symbols.at(operand, indices) for operand in op.operands)
    return select(condition, a, b)


def _cast(symbols, op, indices):
    return cast(symbols.at(op.operands[0], indices), op.result.element.kiln)


def _bitcast(symbols, op, indices):
    return make("REINTERPRET", op.result.element.kiln, (symbols.at(op.operands[0], indices),))


def _pointed(symbols, op, indices):
    """The place of an address in all memory."""
    size = op.result.element.element_ty.itemsize
    return binary("SHR", symbols.at(op.operands[0], indices) - Memory.BASE, size.bit_length() - 1)


def _fma(symbols, op, indices):
    return make("FMA", op.result.element.kiln, tuple(symbols.at(operand, indices) for operand in op.operands))


_FUNCTIONS = {
    "arith.constant": lambda symbols, op, indices: const(op.attrs["value"], kiln_of(op.result.element)),
    "tt.make_range": lambda symbols, op, indices: indices[0] + op.attrs["start"],
    "tt.splat": lambda symbols, op, indices: symbols.at(op.operands[0]),
    "tt.broadcast": _broadcast, "tt.expand_dims": _expand, "tt.trans": _trans, "tt.reshape": _reshape, "tt.gather": _gather,
    "tt.addptr": _addptr, "arith.binary": _binary, "arith.cmp": _compare, "arith.unary": _unary, "arith.select": _select, "arith.cast": _cast,
    "arith.bitcast": _bitcast, "math.fma": _fma, "tt.int_to_ptr": _pointed,
    "tt.ptr_to_int": lambda symbols, op, indices: symbols.address(op.operands[0], indices),
    "tt.bitcast": lambda symbols, op, indices: symbols.at(op.operands[0], indices),
    "tle.local_ptr": lambda symbols, op, indices: symbols.local(op, indices),
    "tt.get_program_id": lambda symbols, op, indices: symbols.programs[op.attrs["axis"]],
    "tt.get_num_programs": lambda symbols, op, indices: symbols.grid[op.attrs["axis"]],
}
