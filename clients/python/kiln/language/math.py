# SPDX-License-Identifier: Apache-2.0
"""Scalar functions of the language."""

from __future__ import annotations

import builtins
import functools as _functools
import math as _math
import weakref as _weakref

from .. import notices
from . import dtypes
from . import scales as _scales
from .dtypes import as_dtype
from .expr import (
    Expr, as_expr, binary, cast, condition, const, constant_value, divide, floordiv, floormod, is_scalar, logical, logical_not, make, select,
    truncdiv, unary,
)
from .affine import finds as _finds
from .expr import masked as _masked


def _float(value):
    e = as_expr(value)
    return e if e.dtype.is_float else cast(e, dtypes.float32)


def _wide(value):
    """As float64 where it is one, else as float32."""
    x = _float(value)
    return x if x.dtype == dtypes.float64 else cast(x, dtypes.float32)


_written_out: "_weakref.WeakValueDictionary[int, Expr]" = _weakref.WeakValueDictionary()  # by their ids


def _function_of_several(e: Expr) -> Expr:
    """Notes that the expression is what a function of this page gives, though its operation is an operator."""
    _written_out[id(e)] = e
    return e


def is_written_out(e: Expr) -> bool:
    """Whether a function gave it that is computed from others."""
    return _written_out.get(id(e)) is e


def _composed(function):
    """In the type of a float and in float32 of an integer; what is narrower than float32 is computed there and rounded once."""

    @_functools.wraps(function)
    def rounded(x):
        x = _float(x)
        return _function_of_several(cast(function(_wide(x)), x.dtype))

    return rounded


def _float_function(op: str, name: str, what: str, ulps32: float, ulps64: float, more: str = ""):
    def function(x):
        return unary(op, _float(x))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (f"{what}. At most {ulps32:g} units in the last place off in float32, {ulps64:g} in float64; more with "
                        f"``fast_math``.{more}\nShapes: a scalar.\nDtypes: a float's own type; float32 for an integer.\nTargets: all.\n"
                        "Errors: TypeError for what is no scalar.")
    return function


exp = _float_function("EXP", "exp", "e to the x", 4, 1)
exp2 = _float_function("EXP2", "exp2", "2 to the x", 4, 1)
exp2_ftz = _float_function("EXP2_FTZ", "exp2_ftz", "2 to the x", 4, 1,
                           " Subnormal results may be zero, which takes fewer operations, as PTX's ex2.ftz.")
log = _float_function("LOG", "log", "The natural logarithm; NaN below 0", 2, 1)
log2 = _float_function("LOG2", "log2", "The logarithm to the base 2; NaN below 0", 2, 2)
sqrt = _float_function("SQRT", "sqrt", "The square root; NaN below 0", 0.5, 0.5)
rsqrt = _float_function("RSQRT", "rsqrt", "1 / √x; NaN below 0", 2, 2)
sin = _float_function("SIN", "sin", "The sine of x radians, of any size", 2, 2)
cos = _float_function("COS", "cos", "The cosine of x radians, of any size", 2, 2)
tanh = _float_function("TANH", "tanh", "The hyperbolic tangent", 5, 3)
erf = _float_function("ERF", "erf", "The error function", 4, 3)
sigmoid = _float_function("SIGMOID", "sigmoid", "1 / (1 + e^-x)", 6, 4)


def _rounding(op: str, name: str, what: str):
    def function(x):
        e = as_expr(x)
        return unary(op, e) if e.dtype.is_float else e

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (f"{what}.\nShapes: a scalar.\nDtypes: the same float type; an integer stays as it is.\nTargets: all.\n"
                        "Errors: TypeError for what is no scalar.")
    return function


floor = _rounding("FLOOR", "floor", "The next integer down")
ceil = _rounding("CEIL", "ceil", "The next integer up")
nearbyint = _rounding("ROUND", "nearbyint", "The nearest integer, halves to the even one")
trunc = _rounding("TRUNC", "trunc", "The integer part")


def round(x, mode: str = "ties-to-even"):
    """The nearest integer. ``mode`` says where halves go: to the even one ("ties-to-even"), or away from zero ("ties-away-from-zero").
    Shapes: a scalar. Dtypes: the same float type; an integer stays as it is. Targets: all. Errors: ValueError for another ``mode``."""
    if mode == "ties-to-even":
        return nearbyint(x)
    if mode != "ties-away-from-zero":
        raise ValueError(f"T.round mode {mode!r}; known: ties-to-even, ties-away-from-zero")
    e = as_expr(x)
    if not e.dtype.is_float:
        return e
    whole = trunc(e)
    step = select(e < 0, const(-1, e.dtype), const(1, e.dtype))
    return select(abs(e - whole) >= const(0.5, e.dtype), whole + step, whole)


@_composed
def exp10(x):
    """10 to the x. x · log2(10) is rounded first: to the error of T.exp2 that adds |x| · 2^-21 of the result in float32, |x| · 2^-50 in
    float64.
    Shapes: a scalar. Dtypes: a float's own type; float32 for an integer. Types narrower than float32 are computed in float32 and rounded
    once. Targets: all. Errors: TypeError for what is no scalar."""
    return exp2(x * _math.log2(10.0))


@_composed
def log10(x):
    """The logarithm to the base 10; NaN below 0. At most 4 units in the last place off.
    Shapes: a scalar. Dtypes: a float's own type; float32 for an integer. Types narrower than float32 are computed in float32 and rounded
    once. Targets: all. Errors: TypeError for what is no scalar."""
    return log2(x) * _math.log10(2.0)


def _polynomial(x, coefficients):
    """c[0] + c[1] · x + …"""
    value = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        value = value * x + const(c, x.dtype)
    return value


@_composed
def log1p(x):
    """log(1 + x), precise for small x too; NaN below -1. At most 4 units in the last place off.
    Shapes: a scalar. Dtypes: a float's own type; float32 for an integer. Types narrower than float32 are computed in float32 and rounded
    once. Targets: all. Errors: TypeError for what is no scalar."""
    s = x / (x + 2)
    terms = [2 / (2 * k + 1) for k in range(12 if x.dtype == dtypes.float64 else 6)]
    near = s * _polynomial(s * s, terms)
    return select(logical("AND", x > const(-0.3, x.dtype), x < const(0.5, x.dtype)), near, log(x + 1))


def tan(x):
    """The tangent of x radians: sin(x) / cos(x). At most 6 units in the last place off.
    Shapes: a scalar. Dtypes: a float's own type; float32 for an integer. Targets: all. Errors: TypeError for what is no scalar."""
    return _function_of_several(sin(x) / cos(x))


@_composed
def sinh(x):
    """The hyperbolic sine. At most 6 units in the last place off in float32, 4 in float64. Infinite where e^|x| is: from |x| = 88.73 on in
    float32.
    Shapes: a scalar. Dtypes: a float's own type; float32 for an integer. Types narrower than float32 are computed in float32 and rounded
    once. Targets: all. Errors: TypeError for what is no scalar."""
    terms = [1 / _math.factorial(2 * k + 3) for k in range(9 if x.dtype == dtypes.float64 else 5)]
    near = x + x * (x * x) * _polynomial(x * x, terms)
    return select(abs(x) < 1, near, (exp(x) - exp(-x)) * const(0.5, x.dtype))


@_composed
def cosh(x):
    """The hyperbolic cosine. At most 6 units in the last place off in float32, 4 in float64. Infinite where e^|x| is: from |x| = 88.73 on
    in float32.
    Shapes: a scalar. Dtypes: a float's own type; float32 for an integer. Types narrower than float32 are computed in float32 and rounded
    once. Targets: all. Errors: TypeError for what is no scalar."""
    return (exp(x) + exp(-x)) * 0.5




def abs(x):
    """|x|. The lowest signed integer stays as it is.
    Shapes: a scalar. Dtypes: numbers; the result has the type of x. Targets: all. Errors: TypeError for what is no scalar."""
    if isinstance(x, (int, float)):
        return builtins.abs(x)
    return unary("ABS", x)


def max(a, b):
    """The larger of two; of NaN and a number, the number.
    Shapes: two scalars. Dtypes: numbers, promoted to one type. Targets: all. Errors: TypeError for what is no scalar."""
    return _extreme("MAX", builtins.max, a, b)


def min(a, b):
    """The smaller of two; of NaN and a number, the number.
    Shapes: two scalars. Dtypes: numbers, promoted to one type. Targets: all. Errors: TypeError for what is no scalar."""
    return _extreme("MIN", builtins.min, a, b)


def _extreme(op, of_numbers, a, b):
    if not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
        return binary(op, a, b)
    return b if a != a else a if b != b else of_numbers(a, b)


def clamp(x, min_val=None, max_val=None):
    """x, at least ``min_val`` and at most ``max_val``; NaN becomes ``min_val``. None: there is no such bound.
    Shapes: three scalars. Dtypes: numbers, promoted to one type. Targets: all. Errors: TypeError for what is no scalar."""
    if min_val is not None:
        x = max(x, min_val)
    return x if max_val is None else min(x, max_val)


def div_full(x, y):
    """x / y, at most 2 units in the last place off in float32, as PTX's div.full: a division that is rounded correctly takes branches. Narrower
    floats are computed in float32; float64 is rounded correctly.
    Shapes: two scalars. Dtypes: floats, promoted to one type; integers become float32. Targets: all. Errors: TypeError for what is no
    scalar."""
    return binary("DIV_FULL", _float(x), y)


def pow(x, y):
    """x to the y. At most 5 units in the last place off in float32, 2 in float64.
    Shapes: two scalars. Dtypes: floats, promoted to one type; integers become float32. Targets: all. Errors: TypeError for what is no
    scalar."""
    return binary("POW", _float(x), y)


power = pow


def fma(a, b, c):
    """a · b + c, rounded once.
    Shapes: three scalars. Dtypes: floats; the result has the type to which the three promote. Targets: all. Errors: TypeError for what is
    no scalar. CompileError for integers."""
    dtype = dtypes.promote(dtypes.promote(as_expr(a).dtype, as_expr(b).dtype), as_expr(c).dtype)
    return make("FMA", dtype, tuple(cast(v, dtype) for v in (a, b, c)))


def isnan(x):
    """Whether x is no number; False for an integer.
    Shapes: a scalar. Dtypes: any number; the result is bool. Targets: all. Errors: TypeError for what is no scalar."""
    e = as_expr(x)
    return make("IS_NAN", dtypes.bool_, (e,)) if e.dtype.is_float else const(False)


def isinf(x):
    """Whether x is infinite; False for an integer.
    Shapes: a scalar. Dtypes: any number; the result is bool. Targets: all. Errors: TypeError for what is no scalar."""
    e = as_expr(x)
    return binary("EQ", unary("ABS", e), const(_math.inf, e.dtype)) if e.dtype.is_float else const(False)


def isfinite(x):
    """Whether x is neither infinite nor NaN.
    Shapes: a scalar. Dtypes: any number; the result is bool. Targets: all. Errors: TypeError for what is no scalar."""
    return logical("AND", logical_not(isinf(x)), logical_not(isnan(x)))


def infinity(dtype):
    """+∞ of a float type; of a type without infinity its largest number.
    Shapes: a constant scalar. Dtypes: a float type. Targets: all. Errors: TypeError for an integer type."""
    dtype = as_dtype(dtype)
    if dtype == "float8_e5m2":  # a conversion to it gives the largest number
        return reinterpret(const(0x7C, "uint8"), dtype)
    return const(_math.inf, dtype)


_MAX_FLOAT = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38, "tfloat32": 3.4028234663852886e38,
              "float64": 1.7976931348623157e308, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float8_e4m3fnuz": 240.0,
              "float8_e5m2fnuz": 57344.0, "float8_e8m0fnu": 2.0**127}


def max_value(dtype):
    """The largest finite number of a type.
    Shapes: a constant scalar. Dtypes: integers, bool and floats of 8 bits or more with an arithmetic. Targets: all. Errors: TypeError for
    no dtype, KeyError for a float type without arithmetic."""
    dtype = as_dtype(dtype)
    if dtype.is_float:
        return const(_MAX_FLOAT[dtype], dtype)
    return const((1 << (dtype.bits - (dtype.kind == "i"))) - 1 if dtype.is_int else 1, dtype)


def min_value(dtype):
    """The lowest finite number of a type.
    Shapes: a constant scalar. Dtypes: as T.max_value. Targets: all. Errors: as T.max_value."""
    dtype = as_dtype(dtype)
    if dtype.is_float:
        return const(2.0**-127 if dtype == _scales.NAME else -_MAX_FLOAT[dtype], dtype)
    return const(-(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0, dtype)


def ceildiv(a, b):
    """The quotient of integers, rounded up. Where both are known at run time only, ``b`` must be above 0.
    Shapes: two scalars. Dtypes: integers. Targets: all. Errors: ZeroDivisionError for a Python 0. TypeError for what is no scalar."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return floordiv(as_expr(a) + (as_expr(b) - 1), b)


cdiv = ceildiv


def align_up(a, b):
    """The first multiple of ``b`` that is ``a`` or more.
    Shapes: two scalars. Dtypes: integers. Targets: all. Errors: as T.ceildiv."""
    return ceildiv(a, b) * b


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is ``n`` or more; 1 where n ≤ 0. It is computed while the program is traced.
    Shapes: a Python int. Dtypes: none. Targets: all. Errors: AttributeError for what is no Python int."""
    return 1 << (n - 1).bit_length() if n > 0 else 1


def if_then_else(cond, a, b):
    """``a`` where the condition holds, else ``b``. Elements that only the other one names are not loaded: the condition may guard an index.
    Where the condition is a Python bool, the other value is left out.
    Shapes: three scalars. Dtypes: a bool, and two values promoted to one type. Targets: all. Errors: TypeError for what is no scalar."""
    if isinstance(cond, bool):
        return a if cond else b
    return select(cond, a, b)


Select = if_then_else


def masked(cond, element, other=0):
    """``element`` (as ``A[i]``) where the condition holds, else ``other``. The element is read only where the condition holds, so it need
    not be there elsewhere, and others may write it. ``T.if_then_else`` may read an element of a tensor and drop it.
    Where the condition is a Python bool, the other value is left out.
    Shapes: three scalars. Dtypes: a bool, and any; ``other`` is cast to the element's. Targets: all. Errors: TypeError for an element that
    is none of a tensor or tile."""
    value = as_expr(element)
    if isinstance(cond, bool):
        return value if cond else cast(other, value.dtype)
    if not _finds(value, lambda node: node.op == "LOAD"):
        raise TypeError(f"T.masked of {value!r}, which is no element of a tensor or tile: there is nothing to keep from reading. Give A[i], or "
                        "choose between values with T.if_then_else")
    return _masked(cond, value, other)



def reinterpret(*args, dtype=None):
    """The same bits as another type of the same width: ``reinterpret(dtype, x)`` or ``reinterpret(x, dtype)``.
    Shapes: a scalar. Dtypes: two types of equal width; a null pointer is ``reinterpret(T.uint64(0), dtype="handle")``. Targets: all. Errors:
    TypeError where the widths differ."""
    a, b = args if dtype is None else (*args, dtype)
    if b == "handle" and constant_value(as_expr(a)) == 0:
        return None
    x, dtype = (a, as_dtype(b)) if is_scalar(a) else (b, as_dtype(a))
    e = as_expr(x)
    if e.dtype.bits != dtype.bits:
        raise TypeError(f"T.reinterpret from {e.dtype} ({e.dtype.bits} bits) to {dtype} ({dtype.bits} bits): the widths must be equal")
    return e if e.dtype == dtype else make("REINTERPRET", dtype, (e,))


def bitwise_and(a, b):
    """a & b.
    Shapes: two scalars. Dtypes: integers or bool, promoted to one type. Targets: all. Errors: TypeError for floats; T.reinterpret gives
    their bits."""
    return binary("BIT_AND", as_expr(a), b)


def bitwise_or(a, b):
    """a | b.
    Shapes: two scalars. Dtypes: integers or bool, promoted to one type. Targets: all. Errors: TypeError for floats; T.reinterpret gives
    their bits."""
    return binary("BIT_OR", as_expr(a), b)


def bitwise_xor(a, b):
    """a ^ b.
    Shapes: two scalars. Dtypes: integers or bool, promoted to one type. Targets: all. Errors: TypeError for floats; T.reinterpret gives
    their bits."""
    return binary("BIT_XOR", as_expr(a), b)


def bitwise_not(a):
    """~a; the opposite of a bool.
    Shapes: a scalar. Dtypes: an integer or bool. Targets: all. Errors: CompileError for a float."""
    return ~as_expr(a)


def shift_left(a, b):
    """a << b, for 0 ≤ b < the bits of the type.
    Shapes: two scalars. Dtypes: integers, promoted to one type. Targets: all. Errors: TypeError for floats."""
    return binary("SHL", as_expr(a), b)


def shift_right(a, b):
    """a >> b, for 0 ≤ b < the bits of the type; a signed ``a`` keeps its sign.
    Shapes: two scalars. Dtypes: integers, promoted to one type. Targets: all. Errors: TypeError for floats."""
    return binary("SHR", as_expr(a), b)


def And(*xs):
    """Whether all conditions hold. Conditions after one that does not hold load nothing: an earlier one may guard an index of a later one.
    Shapes: one or more scalars. Dtypes: bool; a number counts as true where it is not 0. Targets: all. Errors: IndexError without a
    condition."""
    return _chain("AND", xs)


def Or(*xs):
    """Whether one of the conditions holds. Conditions after one that holds load nothing: an earlier one may guard an index of a later one.
    Shapes: one or more scalars. Dtypes: bool; a number counts as true where it is not 0. Targets: all. Errors: IndexError without a
    condition."""
    return _chain("OR", xs)


def Not(x):
    """Whether the condition does not hold.
    Shapes: a scalar. Dtypes: bool; a number counts as true where it is not 0. Targets: all. Errors: TypeError for what is no scalar."""
    return logical_not(x)


def likely(x):
    """x itself. That it is likely has no effect, with a warning.
    Shapes: a scalar. Dtypes: any. Targets: all. Errors: none."""
    notices.no_effect("T.likely", "the compiler does not ask which way a branch goes; write the condition alone")
    return x


def fast_rcp(x):
    """1 / x. With ``fast_math`` it is the hardware's approximate reciprocal.
    Shapes: a scalar. Dtypes: a float's own type; float32 for an integer. Targets: all. Errors: TypeError for what is no scalar."""
    return 1.0 / _float(x)


def div(a, b):
    """a / b for floats; for two integers the quotient cut towards zero.
    Shapes: two scalars. Dtypes: numbers, promoted to one type. Targets: all. Errors: TypeError for what is no scalar."""
    return divide(a, b) if as_expr(a).dtype.is_float or as_expr(b).dtype.is_float else truncdiv(a, b)


def fmod(a, b):
    """a - trunc(a / b) · b, exact as C's fmod: the sign is that of ``a``; NaN where ``a`` is infinite or ``b`` is 0. It takes a division
    and a few operations for a quotient below 2^22 (2^50 in float64), and as much again for each further 22 (50) bits of it. With
    ``fast_math``, float32 subnormals may count as 0, in ``b`` too.
    Shapes: two scalars. Dtypes: floats, promoted to one type; an integer ``a`` becomes float32. Targets: all. Errors: TypeError for what is
    no scalar."""
    return binary("MOD", _float(a), b)


def _chain(op, xs):
    result = condition(xs[0])
    for x in xs[1:]:
        result = logical(op, result, x)
    return result


def index_to_coordinates(index, shape):
    """The coordinates of a row-major linear index, as a list.
    Shapes: a scalar and a shape. Dtypes: integers. Targets: all. Errors: TypeError for what is no scalar."""
    coordinates = []
    for extent in reversed(list(shape)):
        coordinates.append(floormod(index, extent))
        index = floordiv(index, extent)
    return coordinates[::-1]


def constant(value):
    """The Python number of a constant expression, or None."""
    return constant_value(value)


_HELPERS = {"annotations", "builtins", "dtypes", "notices", "as_dtype", "as_expr", "binary", "condition", "const", "constant_value",
            "is_scalar", "make", "Expr", "is_written_out",
            "unary", "select", "logical", "logical_not", "constant"}
def _fast(name: str):
    plain = globals()[name]

    def function(x):
        e = as_expr(x)
        if e.dtype not in ("float16", "bfloat16", "float32", "float64"):
            raise TypeError(f"T.__{name} only supports floating-point inputs, but got {e.dtype}; those of 16 bits or more: convert with T.cast, "
                            f"or write T.{name}, which takes integers as float32")
        return plain(e)

    function.__name__ = function.__qualname__ = f"__{name}"
    function.__doc__ = (f"T.{name}. It is as fast as ``fast_math`` makes that.\nShapes: a scalar.\nDtypes: floats of 16 bits or more; the result has "
                        "the same.\nTargets: all.\nErrors: TypeError for another dtype.")
    return function


_FAST = {"__exp", "__exp10", "__log", "__log2", "__log10", "__sin", "__cos", "__tan"}
globals().update({name: _fast(name.removeprefix("__")) for name in _FAST})
__all__ = [name for name in dir() if name in _FAST or not name.startswith("_") and name not in _HELPERS]
