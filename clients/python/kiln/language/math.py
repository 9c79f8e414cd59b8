# SPDX-License-Identifier: Apache-2.0
"""Scalar functions of the language."""

from __future__ import annotations

import builtins
import math as _math

from . import dtypes
from .dtypes import as_dtype
from .expr import (
    as_expr, binary, cast, condition, const, constant_value, divide, floordiv, floormod, is_scalar, logical, logical_not, make, select,
    truncdiv, unary,
)


def _float(value):
    e = as_expr(value)
    return e if e.dtype.is_float else cast(e, dtypes.float32)


def _float_function(op: str, name: str):
    def function(x):
        return unary(op, _float(x))

    function.__name__ = function.__qualname__ = name
    return function


exp = _float_function("EXP", "exp")
exp2 = _float_function("EXP2", "exp2")
log = _float_function("LOG", "log")
log2 = _float_function("LOG2", "log2")
sqrt = _float_function("SQRT", "sqrt")
rsqrt = _float_function("RSQRT", "rsqrt")
sin = _float_function("SIN", "sin")
cos = _float_function("COS", "cos")
tanh = _float_function("TANH", "tanh")
erf = _float_function("ERF", "erf")
sigmoid = _float_function("SIGMOID", "sigmoid")
__exp, __log, __log2, __sin, __cos = exp, log, log2, sin, cos


def _rounding(op: str, name: str):
    def function(x):
        e = as_expr(x)
        return unary(op, e) if e.dtype.is_float else e

    function.__name__ = function.__qualname__ = name
    return function


floor = _rounding("FLOOR", "floor")
ceil = _rounding("CEIL", "ceil")
nearbyint = _rounding("ROUND", "nearbyint")
trunc = _rounding("TRUNC", "trunc")


def round(x, mode: str = "ties-to-even"):
    """To the nearest integer; halves to the even one, or ("ties-away-from-zero") to the one farther from zero."""
    if mode == "ties-to-even":
        return nearbyint(x)
    if mode != "ties-away-from-zero":
        raise ValueError(f"T.round mode {mode!r}; known: ties-to-even, ties-away-from-zero")
    e = as_expr(x)
    whole = trunc(e)
    step = select(e < 0, const(-1, e.dtype), const(1, e.dtype))
    return select(abs(e - whole) >= const(0.5, e.dtype), whole + step, whole)


def exp10(x):
    return exp2(_float(x) * _math.log2(10.0))


def log10(x):
    return log2(_float(x)) * _math.log10(2.0)


def log1p(x):
    return log(_float(x) + 1.0)


def tan(x):
    return sin(x) / cos(x)


def sinh(x):
    x = _float(x)
    return (exp(x) - exp(-x)) * 0.5


def cosh(x):
    x = _float(x)
    return (exp(x) + exp(-x)) * 0.5


__exp10, __log10, __tan = exp10, log10, tan


def abs(x):
    if isinstance(x, (int, float)):
        return builtins.abs(x)
    return unary("ABS", x)


def max(a, b):
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return builtins.max(a, b)
    return binary("MAX", a, b)


def min(a, b):
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return builtins.min(a, b)
    return binary("MIN", a, b)


def clamp(x, low, high):
    return min(max(x, low), high)


def pow(x, y):
    return binary("POW", _float(x), y)


power = pow


def fma(a, b, c):
    dtype = dtypes.promote(dtypes.promote(as_expr(a).dtype, as_expr(b).dtype), as_expr(c).dtype)
    return make("FMA", dtype, tuple(cast(v, dtype) for v in (a, b, c)))


def isnan(x):
    e = as_expr(x)
    return make("IS_NAN", dtypes.bool_, (e,)) if e.dtype.is_float else const(False)


def isinf(x):
    e = as_expr(x)
    return binary("EQ", unary("ABS", e), const(_math.inf, e.dtype)) if e.dtype.is_float else const(False)


def isfinite(x):
    return logical("AND", logical_not(isinf(x)), logical_not(isnan(x)))


def infinity(dtype):
    return const(_math.inf, dtype)


_MAX_FLOAT = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38, "tfloat32": 3.4028234663852886e38,
              "float64": 1.7976931348623157e308, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float8_e4m3fnuz": 240.0,
              "float8_e5m2fnuz": 57344.0}


def max_value(dtype):
    dtype = as_dtype(dtype)
    if dtype.is_float:
        return const(_MAX_FLOAT[dtype], dtype)
    return const((1 << (dtype.bits - (dtype.kind == "i"))) - 1 if dtype.is_int else 1, dtype)


def min_value(dtype):
    dtype = as_dtype(dtype)
    if dtype.is_float:
        return const(-_MAX_FLOAT[dtype], dtype)
    return const(-(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0, dtype)


def ceildiv(a, b):
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return floordiv(as_expr(a) + (as_expr(b) - 1), b)


cdiv = ceildiv


def align_up(a, b):
    return ceildiv(a, b) * b


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 1


def if_then_else(cond, a, b):
    if isinstance(cond, bool):
        return a if cond else b
    return select(cond, a, b)


Select = if_then_else


def reinterpret(*args):
    """``reinterpret(dtype, x)`` or ``reinterpret(x, dtype)``: the same bits as another type of the same width."""
    a, b = args
    x, dtype = (a, as_dtype(b)) if is_scalar(a) else (b, as_dtype(a))
    e = as_expr(x)
    if e.dtype.bits != dtype.bits:
        raise TypeError(f"T.reinterpret from {e.dtype} ({e.dtype.bits} bits) to {dtype} ({dtype.bits} bits): the widths must be equal")
    return e if e.dtype == dtype else make("REINTERPRET", dtype, (e,))


def bitwise_and(a, b): return binary("BIT_AND", as_expr(a), b)
def bitwise_or(a, b): return binary("BIT_OR", as_expr(a), b)
def bitwise_xor(a, b): return binary("BIT_XOR", as_expr(a), b)
def bitwise_not(a): return ~as_expr(a)
def shift_left(a, b): return binary("SHL", as_expr(a), b)
def shift_right(a, b): return binary("SHR", as_expr(a), b)
def And(*xs): return _chain("AND", xs)
def Or(*xs): return _chain("OR", xs)
def Not(x): return logical_not(x)
def likely(x): return x
def fast_rcp(x): return 1.0 / _float(x)
def div(a, b): return divide(a, b) if as_expr(a).dtype.is_float or as_expr(b).dtype.is_float else truncdiv(a, b)
def fmod(a, b): return _float(a) - trunc(divide(_float(a), b)) * b


def _chain(op, xs):
    result = condition(xs[0])
    for x in xs[1:]:
        result = logical(op, result, x)
    return result


def index_to_coordinates(index, shape):
    """The coordinates of a row-major linear index."""
    coordinates = []
    for extent in reversed(list(shape)):
        coordinates.append(floormod(index, extent))
        index = floordiv(index, extent)
    return coordinates[::-1]


def constant(value):
    """The Python number of a constant expression, or None."""
    return constant_value(value)


_HELPERS = {"annotations", "builtins", "dtypes", "as_dtype", "as_expr", "binary", "condition", "const", "constant_value", "is_scalar", "make",
            "unary", "select", "logical", "logical_not", "constant"}
_FAST = {"__exp", "__exp10", "__log", "__log2", "__log10", "__sin", "__cos", "__tan"}
__all__ = [name for name in dir() if name in _FAST or not name.startswith("_") and name not in _HELPERS]
