# SPDX-License-Identifier: Apache-2.0
"""Scalar expressions. Nodes are hash-consed when they are made: two expressions with the same structure are one object, so
``is`` compares structure and a shared subexpression is written to the wire once.

Operands of an operation have one type (``dtypes.promote``); a Python integer counts as int32 (int64 where it does not fit), a
Python float as float32. Constants are folded."""

from __future__ import annotations

import math
import struct
import weakref

from . import dtypes, scales
from .dtypes import DType, as_dtype

COMPARISONS = frozenset(("EQ", "NE", "LT", "LE", "GT", "GE"))
LOGICAL = frozenset(("AND", "OR", "NOT"))


class Operators:
    """The operators of whatever stands for a scalar value. Subclasses give ``as_expr()`` through the function of that name."""

    __slots__ = ()

    def __add__(self, o): return binary("ADD", self, o)
    def __radd__(self, o): return binary("ADD", o, self)
    def __sub__(self, o): return binary("SUB", self, o)
    def __rsub__(self, o): return binary("SUB", o, self)
    def __mul__(self, o): return binary("MUL", self, o)
    def __rmul__(self, o): return binary("MUL", o, self)
    def __truediv__(self, o): return divide(self, o)
    def __rtruediv__(self, o): return divide(o, self)
    def __floordiv__(self, o): return floordiv(self, o)
    def __rfloordiv__(self, o): return floordiv(o, self)
    def __mod__(self, o): return floormod(self, o)
    def __rmod__(self, o): return floormod(o, self)
    def __pow__(self, o): return binary("POW", self, o)
    def __rpow__(self, o): return binary("POW", o, self)
    def __and__(self, o): return binary("BIT_AND", self, o)
    def __rand__(self, o): return binary("BIT_AND", o, self)
    def __or__(self, o): return binary("BIT_OR", self, o)
    def __ror__(self, o): return binary("BIT_OR", o, self)
    def __xor__(self, o): return binary("BIT_XOR", self, o)
    def __rxor__(self, o): return binary("BIT_XOR", o, self)
    def __lshift__(self, o): return binary("SHL", self, o)
    def __rlshift__(self, o): return binary("SHL", o, self)
    def __rshift__(self, o): return binary("SHR", self, o)
    def __rrshift__(self, o): return binary("SHR", o, self)
    def __eq__(self, o): return binary("EQ", self, o)
    def __ne__(self, o): return binary("NE", self, o)
    def __lt__(self, o): return binary("LT", self, o)
    def __le__(self, o): return binary("LE", self, o)
    def __gt__(self, o): return binary("GT", self, o)
    def __ge__(self, o): return binary("GE", self, o)
    def __neg__(self): return unary("NEG", self)
    def __pos__(self): return as_expr(self)
    def __invert__(self): return invert(self)
    def __abs__(self): return unary("ABS", self)
    __hash__ = object.__hash__

    def astype(self, dtype):
        return cast(self, dtype)

    def __bool__(self):
        raise TypeError(
            "the value of a run-time expression is not known while the program is traced; use `if`, `and`, `or` and `not` "
            "inside a traced function (they are rewritten), or T.if_then_else"
        )

    def __index__(self):
        value = constant_value(as_expr(self))
        if isinstance(value, int):
            return value
        raise TypeError(
            "a compile-time integer is needed here, not a run-time expression; loops over run-time ranges are written "
            "`for i in T.serial(n)` or `range(n)` inside a traced function"
        )


class Var:
    """A variable of a program: a loop's, a block's, a scalar parameter or a symbolic dimension. Programs see ``expr``. ``for_let``: of T.let."""

    __slots__ = ("kind", "dtype", "name", "axis", "for_let", "expr", "__weakref__")

    def __init__(self, kind: str, dtype: DType, name: str, axis: int = 0, for_let: bool = False):
        self.kind, self.dtype, self.name, self.axis, self.for_let = kind, as_dtype(dtype), name, axis, for_let
        self.expr = make("VAR", self.dtype, (), self)


class Expr(Operators):
    """A scalar expression: what indexing a buffer, an operator or a function of this page gives. ``dtype`` is its type, ``op`` its
    operation.
    Shapes: a scalar. Dtypes: any. Targets: all. Errors: TypeError where Python needs its value while the program is traced: as a truth
    value outside of a traced function, as an index of a list."""

    __slots__ = ("op", "dtype", "args", "value", "size", "__weakref__")

    def __iter__(self):
        if self.op == "VAR" and self.value.kind == "BLOCK":
            return iter((self,))  # `with T.Kernel(n) as (bx,)`
        raise TypeError("a scalar expression cannot be iterated; `for i in T.serial(n)` makes a loop")

    @property
    def name(self):
        return self.value.name if self.op in ("VAR", "LOAD") else ""

    @property
    def buffer(self):
        if self.op != "LOAD":
            raise AttributeError(f"{self!r} is no element of a buffer")
        return self.value

    @property
    def indices(self):
        return self.args[1:] if self.op == "LANE" else self.args

    @property
    def vectors(self):
        if self.op != "LANE":
            raise AttributeError(f"{self!r} is no lane of a vector")
        return self.args[:1]

    def same_as(self, other) -> bool:
        """Whether it is the same expression."""
        return self is other

    def __repr__(self):
        from .printer import show

        return show(self)


class Deferred(Operators):
    """A value that is computed where a traced function uses it: what a function that needs threads gives outside of one."""

    __slots__ = ("compute", "dtype")

    def __init__(self, compute, dtype: DType):
        self.compute, self.dtype = compute, dtype

    def as_scalar(self) -> Expr:
        return self.compute()


_interned: "weakref.WeakValueDictionary[tuple, Expr]" = weakref.WeakValueDictionary()


def make(op: str, dtype: DType, args: tuple, value=None) -> Expr:
    if op == "CONST_FLOAT":
        tag = struct.pack("<d", value)
    elif op == "CONST_INT":
        tag = value
    else:
        tag = id(value)
    key = (op, str(dtype), tuple(id(a) for a in args), tag)
    node = _interned.get(key)
    if node is None:
        node = Expr.__new__(Expr)
        node.op, node.dtype, node.args, node.value = op, dtype, args, value
        node.size = 1 + sum(a.size for a in args)
        _interned[key] = node
    return node


def _wrap_int(value: int, dtype: DType) -> int:
    if dtype.kind == "b":
        return int(bool(value))
    mask = (1 << dtype.bits) - 1
    value &= mask
    if dtype.kind == "i" and value >> (dtype.bits - 1):
        value -= 1 << dtype.bits
    return value


def _truncate(value: float, dtype: DType) -> int:
    """As a cast does at run time: towards zero, into the range of the type; 0 of NaN; whether it is not zero, as a bool."""
    if dtype.kind == "b":
        return int(value != 0)
    if math.isnan(value):
        return 0
    low, high = (0, (1 << dtype.bits) - 1) if dtype.kind == "u" else (-1 << (dtype.bits - 1), (1 << (dtype.bits - 1)) - 1)
    return int(min(max(value, low), high))


class _Format:
    """A binary floating-point type as ``ir/expr/numeric.cc`` has it: digits behind the first, exponent of the smallest normal number, largest
    number, what larger ones become."""

    def __init__(self, digits: int, least: int, largest: float, beyond: float = math.inf, negative_zero: bool = True):
        self.digits, self.least, self.largest, self.beyond, self.negative_zero = digits, least, largest, beyond, negative_zero

    def round(self, value: float) -> float:
        """The nearest number of the type, of two the even one; of NaN itself."""
        if math.isnan(value):
            return value
        if abs(value) >= 2 * self.largest:
            return math.copysign(self.beyond, value)
        quantum = max(math.frexp(value)[1] - 1, self.least) - self.digits
        rounded = math.ldexp(round(math.ldexp(value, -quantum)), quantum)
        magnitude = self.beyond if rounded > self.largest or -rounded > self.largest else abs(rounded)
        return math.copysign(magnitude, value if magnitude or self.negative_zero else 1.0)


_FORMATS = {
    "bfloat16": _Format(7, -126, (2 - 2**-7) * 2.0**127),
    "tfloat32": _Format(10, -126, (2 - 2**-10) * 2.0**127),
    "float8_e4m3fn": _Format(3, -6, 448.0, 448.0),
    "float8_e5m2": _Format(2, -14, 57344.0, 57344.0),
    "float8_e4m3fnuz": _Format(3, -7, 240.0, 240.0, negative_zero=False),
    "float8_e5m2fnuz": _Format(2, -15, 57344.0, 57344.0, negative_zero=False),
}
_PACKED = {"float32": "f", "float16": "e"}  # which struct rounds


def _round_float(value, dtype: DType) -> float:
    """A number as a cast to the float type makes it."""
    if isinstance(value, int) and dtype != "float64":
        value = _rounded_to_odd(value)
    value = float(value)
    if dtype == scales.NAME:
        return scales.rounded(value)
    if dtype in _FORMATS:
        return _FORMATS[dtype].round(value)
    code = _PACKED.get(dtype)
    if code is None or math.isinf(value) or math.isnan(value):
        return value
    try:
        return struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def representable(value, dtype: DType) -> bool:
    """Whether a number has a value of the type: itself, or of a float type one that it is rounded to."""
    if not dtype.is_float:
        return math.isfinite(value) and int(value) == value and _wrap_int(int(value), dtype) == value
    rounded = _round_float(value, dtype)
    if not math.isfinite(value) or not math.isfinite(rounded):
        return math.isnan(value) or value == rounded
    form = _FORMATS.get(dtype)
    return form is None or abs(value) <= form.largest * (1 + 2.0 ** -(form.digits + 1))


def _rounded_to_odd(value: int) -> float:
    """A float that rounds to fewer digits as the integer does: of what it has no room for the last digit tells that it was there."""
    cut = max(0, value.bit_length() - 53)
    kept = abs(value) >> cut
    return math.copysign(math.ldexp(kept | (kept << cut != abs(value)), cut), value)


def const(value, dtype=None) -> Expr:
    """A constant; without a dtype, an int is int32 (int64 where needed), a float float32, a bool bool. A finite float becomes an integer as
    ``cast`` makes it one; TypeError of another. OverflowError for an int that is none of int64 and has no dtype."""
    if dtype is None:
        dtype = dtypes.of_number(value)
    dtype = as_dtype(dtype)
    if dtype.is_float:
        return make("CONST_FLOAT", dtype, (), _round_float(value, dtype))
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{value} has no value of type {dtype}")
    return make("CONST_INT", dtype, (), _truncate(value, dtype) if isinstance(value, float) else _wrap_int(int(value), dtype))


def as_expr(value) -> Expr:
    """What stands for a scalar, as an expression: an expression, a number, a T.alloc_var, a buffer or slice of one element. A Python int
    becomes int32 (int64 where it does not fit), a float float32, a bool bool.
    Shapes: a scalar. Dtypes: any. Targets: all. Errors: TypeError for anything else. OverflowError for an int that int64 does not hold."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (bool, int, float)):
        return const(value)
    load = getattr(value, "as_scalar", None)
    if load is not None:
        return load()
    if hasattr(value, "__index__"):
        return const(value.__index__())
    if hasattr(value, "__float__") and not isinstance(value, str):
        return const(float(value))
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be used as a scalar in a tile program")


def is_scalar(value) -> bool:
    return isinstance(value, (Operators, bool, int, float))


def constant_value(e):
    """The number of a constant (bool for a bool), or None."""
    if isinstance(e, (bool, int, float)):
        return e
    if isinstance(e, Expr) and e.op in ("CONST_INT", "CONST_FLOAT"):
        return bool(e.value) if e.dtype.kind == "b" else e.value
    return None


def cast(value, dtype) -> Expr:
    """``value`` in the dtype. A float becomes an integer by cutting towards zero and saturates at the type's ends; NaN becomes 0. An
    integer becomes a narrower one by its low bits. A Python number keeps all digits that fit.
    Shapes: a scalar. Dtypes: any to any. Targets: all. 8-bit floats are converted by instructions where the target has them, else by their
    bits. Errors: TypeError for what is no scalar, and for an infinite Python float as an integer."""
    dtype = as_dtype(dtype)
    # A number not through the literal's own type, which may hold fewer digits.
    value = int(value) if dtypes.is_beyond(value) else value
    e = value if isinstance(value, (bool, int, float)) else as_expr(value)
    if isinstance(e, Expr) and e.dtype == dtype:
        return e
    number = constant_value(e)
    if number is None:
        if dtype == scales.NAME:
            return scales.encoded(e)
        return cast(scales.decoded(e), dtype) if e.dtype == scales.NAME else make("CAST", dtype, (e,))
    if isinstance(number, float) and not dtype.is_float:
        return make("CONST_INT", dtype, (), _truncate(number, dtype))
    return const(number, dtype)


def condition(value) -> Expr:
    """A value as a bool: numbers compare with zero."""
    e = as_expr(value)
    return e if e.dtype.kind == "b" else binary("NE", e, 0)


def _promoted(a, b):
    """Both in one type. An int that int64 does not hold is one of the other's type, if that has it."""
    for number, other in ((a, b), (b, a)):
        if dtypes.is_beyond(number) and not dtypes.is_beyond(other) and representable(int(number), dtype := as_expr(other).dtype):
            break
    else:
        dtype = dtypes.promote(as_expr(a).dtype, as_expr(b).dtype)
    return cast(a, dtype), cast(b, dtype), dtype


_FOLD = {
    "ADD": lambda a, b: a + b,
    "SUB": lambda a, b: a - b,
    "MUL": lambda a, b: a * b,
    "MIN": min,
    "MAX": max,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "BIT_AND": lambda a, b: a & b,
    "BIT_OR": lambda a, b: a | b,
    "BIT_XOR": lambda a, b: a ^ b,
    "AND": lambda a, b: bool(a and b),
    "OR": lambda a, b: bool(a or b),
}
_INT_FOLD = {
    "FLOOR_DIV": lambda a, b: a // b,
    "FLOOR_MOD": lambda a, b: a % b,
    "DIV": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "MOD": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    "SHL": lambda a, b: a << b,
    "SHR": lambda a, b: a >> b,
}


def _fold(op, a: Expr, b: Expr, dtype: DType):
    x, y = constant_value(a), constant_value(b)
    if x is None or y is None:
        return _identity(op, a, b, x, y)
    if isinstance(x, float) and (math.isnan(x) or math.isnan(y)):
        return None
    if op in _FOLD:
        return const(_FOLD[op](x, y), dtype)
    if op in _INT_FOLD and isinstance(x, int) and isinstance(y, int):
        bad = not 0 <= y < a.dtype.bits if op in ("SHL", "SHR") else y == 0
        return None if bad else const(_INT_FOLD[op](x, y), dtype)
    if op in ("DIV", "DIV_FULL") and isinstance(x, float) and y != 0:
        return const(x / y, dtype)
    return None


def _identity(op, a, b, x, y):
    """x + 0, x · 1 and their like, on integers only: on floats these are not exact for every value."""
    if not a.dtype.is_int:
        return None
    if op == "ADD" and x == 0:
        return b
    if op in ("ADD", "SUB", "SHL", "SHR", "BIT_OR", "BIT_XOR") and y == 0:
        return a
    if op == "MUL" and (x == 0 or y == 0):
        return const(0, a.dtype)
    if op == "MUL" and x == 1:
        return b
    if op in ("MUL", "FLOOR_DIV", "DIV") and y == 1:
        return a
    if op == "FLOOR_MOD" and y == 1:
        return const(0, a.dtype)
    return None


def binary(op: str, a, b):
    if not is_scalar(b) and not hasattr(b, "as_scalar") or not is_scalar(a) and not hasattr(a, "as_scalar"):
        if op in ("EQ", "NE") and (a is None or b is None or isinstance(a, str) or isinstance(b, str)):
            return op == "NE"
        if not hasattr(a, "__float__") and not hasattr(b, "__float__"):
            return NotImplemented
    a, b, dtype = _promoted(a, b)
    if dtype == scales.NAME:
        a, b, dtype = cast(a, dtypes.float32), cast(b, dtypes.float32), dtypes.float32
    if dtype.is_float and op in ("BIT_AND", "BIT_OR", "BIT_XOR", "SHL", "SHR"):
        raise TypeError(f"{op.lower()} needs integers, not {dtype}; T.reinterpret gives the bits of a float")
    if dtype.is_float and op in ("FLOOR_DIV", "FLOOR_MOD"):
        return _floor_quotient(a, b) if op == "FLOOR_DIV" else _floor_remainder(a, b)
    if dtype.kind == "b" and op not in COMPARISONS and op not in ("BIT_AND", "BIT_OR", "BIT_XOR"):
        a, b, dtype = cast(a, dtypes.int32), cast(b, dtypes.int32), dtypes.int32
    if op == "POW" and not dtype.is_float:
        a, b, dtype = cast(a, dtypes.float32), cast(b, dtypes.float32), dtypes.float32
    if dtype.kind == "b" and op in ("BIT_AND", "BIT_OR"):
        op = op.removeprefix("BIT_")
    result = dtypes.bool_ if op in COMPARISONS else dtype
    folded = _fold(op, a, b, result)
    return folded if folded is not None else make(op, result, (a, b))


def _differ_in_sign(rest: Expr, b: Expr) -> Expr:
    return binary("NE", binary("LT", rest, 0), binary("LT", b, 0))


def _floor_remainder(a: Expr, b: Expr) -> Expr:
    """Of floats, rounded once at most: a - floor(a / b) · b would have the error of the quotient, which may be that of a whole ``b``."""
    rest = make("MOD", a.dtype, (a, b))
    zero = select(b < 0, const(-0.0, a.dtype), const(0.0, a.dtype))
    return select(binary("EQ", rest, 0), zero, select(_differ_in_sign(rest, b), rest + b, rest))


def _floor_quotient(a: Expr, b: Expr) -> Expr:
    """Of floats: a / b would round up to an integer what is a little below it."""
    rest = make("MOD", a.dtype, (a, b))
    whole = unary("ROUND", divide(a - rest, b))
    below = logical("AND", binary("NE", rest, 0), _differ_in_sign(rest, b))
    return select(binary("EQ", b, 0), divide(a, b), select(below, whole - const(1, a.dtype), whole))


def divide(a, b):
    """a / b.
    Shapes: two scalars. Dtypes: at least one float; both are promoted to one type. Targets: all. Errors: TypeError for two integers:
    T.floordiv and T.truncdiv divide those."""
    e, f, dtype = _promoted(a, b)
    if not dtype.is_float:
        raise TypeError(
            f"`/` of two integers ({e!r} / {f!r}): write // for the floor of the quotient, T.truncdiv for the truncated one, or "
            "cast an operand to a float"
        )
    return binary("DIV", e, f)


def floordiv(a, b):
    """The floor of the quotient, for floats as for integers; a / b where a float ``b`` is 0. Also written ``a // b``.
    Shapes: two scalars. Dtypes: numbers, promoted to one type. Targets: all. Errors: ZeroDivisionError for a Python 0. TypeError for what
    is no scalar."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return binary("FLOOR_DIV", as_expr(a), b)


def floormod(a, b):
    """a - floordiv(a, b) · b: the sign is that of ``b``. Also written ``a % b``. For floats it is Python's %: exact but for one rounding
    where the signs differ, at the cost of T.fmod; NaN where ``a`` is infinite or ``b`` is 0.
    Shapes: two scalars. Dtypes: numbers, promoted to one type. Targets: all. Errors: ZeroDivisionError for a Python 0. TypeError for what
    is no scalar."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return binary("FLOOR_MOD", as_expr(a), b)


def truncdiv(a, b):
    """The quotient of integers, cut towards zero; for floats, a / b.
    Shapes: two scalars. Dtypes: numbers, promoted to one type. Targets: all. Errors: TypeError for what is no scalar."""
    return binary("DIV", as_expr(a), b)


def truncmod(a, b):
    """a - truncdiv(a, b) · b: the sign is that of ``a``.
    Shapes: two scalars. Dtypes: integers; floats give T.fmod. Targets: all. Errors: TypeError for what is no scalar."""
    return binary("MOD", as_expr(a), b)


def unary(op: str, a) -> Expr:
    e = as_expr(a)
    if e.dtype == scales.NAME:
        e = cast(e, dtypes.float32)
    number = constant_value(e)
    if number is not None and op in ("NEG", "ABS"):
        return const(abs(number) if op == "ABS" else -number, dtypes.int32 if op == "NEG" and e.dtype.kind == "b" else e.dtype)
    if op == "NEG" and e.dtype.kind == "b":
        e = cast(e, dtypes.int32)
    if op == "NEG" and e.op == "REINTERPRET" and e.dtype.is_float and (bits := constant_value(e.args[0])) is not None:
        return make("REINTERPRET", e.dtype, (const(bits ^ 1 << e.dtype.bits - 1, e.args[0].dtype),))  # the sign is one of the bits
    return make(op, e.dtype, (e,))


def invert(a) -> Expr:
    e = as_expr(a)
    return logical_not(e) if e.dtype.kind == "b" else make("BIT_NOT", e.dtype, (e,))


def logical_not(a) -> Expr:
    e = condition(a)
    number = constant_value(e)
    if number is not None:
        return const(not number, dtypes.bool_)
    return e.args[0] if e.op == "NOT" else make("NOT", dtypes.bool_, (e,))


def logical(op: str, a, b) -> Expr:
    a, b = condition(a), condition(b)
    for this, other in ((a, b), (b, a)):
        number = constant_value(this)
        if number is not None:
            return other if number == (op == "AND") else const(number, dtypes.bool_)
    return make(op, dtypes.bool_, (a, b))


def select(cond, a, b) -> Expr:
    c = condition(cond)
    a, b, dtype = _promoted(a, b)
    number = constant_value(c)
    if number is not None:
        return a if number else b
    return a if a is b else make("SELECT", dtype, (c, a, b))


def masked(cond, value: Expr, other) -> Expr:
    """``value``, whose elements are read only where the condition holds, else ``other``. It is an element, or one that a view or a
    placement reads (SELECT)."""
    c, other = condition(cond), cast(other, value.dtype)
    number = constant_value(c)
    if number is not None:
        return value if number else other
    if value.op == "LOAD":
        return make("MASKED", value.dtype, (c, value, other))
    return select(c, _under(value, c, {}), other)


def _under(e: Expr, cond: Expr, done: dict) -> Expr:
    """``e`` with its elements masked, for use where ``cond`` holds."""
    if e not in done:
        if e.op == "LOAD":
            done[e] = make("MASKED", e.dtype, (cond, e, const(0, e.dtype)))
        elif e.op == "MASKED":
            done[e] = make("MASKED", e.dtype, (logical("AND", cond, e.args[0]), *e.args[1:]))
        else:
            args = tuple(_under(a, cond, done) for a in e.args)
            done[e] = e if all(a is b for a, b in zip(args, e.args)) else make(e.op, e.dtype, args, e.value)
    return done[e]
