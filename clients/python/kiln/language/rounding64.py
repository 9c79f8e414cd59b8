# SPDX-License-Identifier: Apache-2.0
"""Directed rounding of float64, for which there is no wider type: the result is rounded to the nearest, and the sign of what it lacks of the
exact one is found by exact arithmetic (Boldo and Muller, "Exact and approximated error of the FMA", 2011). Operands are scaled where that
would leave the range of the type."""

from __future__ import annotations

from . import dtypes
from .expr import Expr, binary, cast, const, logical, logical_not, select, unary
from .math import fma, isinf, isfinite, reinterpret, trunc
from .dtypes import as_dtype

F64 = dtypes.float64
_BITS = as_dtype("uint64")


def _number(value: float) -> Expr:
    return const(value, F64)


def _size(x: Expr) -> Expr:
    return unary("ABS", x)


def _less(a: Expr, b) -> Expr:
    return binary("LT", a, b if isinstance(b, Expr) else _number(b))


def _is_zero(x: Expr) -> Expr:
    return binary("EQ", x, _number(0.0))


def _negative(x: Expr) -> Expr:
    """By the sign, which a zero has, too."""
    return reinterpret(x, dtype=dtypes.int64) < 0


def _all(*conditions) -> Expr:
    result = conditions[0]
    for other in conditions[1:]:
        result = logical("AND", result, other)
    return result


def opaque(x: Expr) -> Expr:
    """The same number. A product and a sum next to each other may be rounded as one, and are not across this: the part behind the point is
    never larger than the whole, which the compiler does not know."""
    never = cast(_size(x - trunc(x)) > _size(x), _BITS)
    return reinterpret(binary("ADD", reinterpret(x, dtype=_BITS), never), dtype=F64)


def _unit(negative: Expr) -> Expr:
    return select(negative, _number(-1.0), _number(1.0))


def _differ(x: Expr, y: Expr) -> Expr:
    return binary("NE", _negative(x), _negative(y))


def _beyond(near: Expr, lack: Expr, *operands) -> Expr:
    """What an infinite result of finite operands lacks points back."""
    return select(_all(isinf(near), *[isfinite(v) for v in operands]), unary("NEG", near), lack)


def _two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _scaled(x: Expr, y: Expr, of_x: Expr, scale: Expr) -> tuple[Expr, Expr]:
    """(x, y), one of which is scaled."""
    return select(of_x, x * scale, x), select(of_x, y, y * scale)


def add(x: Expr, y: Expr):
    """(the sum to the nearest, what it lacks, whether it is a zero that is negative when rounded down)."""
    x, y = opaque(x), opaque(y)
    total, lack = _two_sum(x, y)
    return total, _beyond(total, lack, x, y), _all(_is_zero(total), logical("OR", _negative(x), _negative(y)))


def mul(x: Expr, y: Expr):
    near = opaque(x * y)
    small = _less(_size(near), 2.0**-900)
    scale = select(small, _number(2.0**1000), _number(1.0))
    a, b = _scaled(x, y, binary("LE", _size(x), _number(1.0)), scale)
    lack = fma(a, b, unary("NEG", near * scale))
    nothing = _all(_is_zero(near), logical_not(_is_zero(x)), logical_not(_is_zero(y)))
    return near, _beyond(near, select(nothing, _unit(_differ(x, y)), lack), x, y)


def div(x: Expr, y: Expr):
    near = opaque(x / y)
    small = _all(_less(_size(x), 2.0**-500), _less(_size(y), 2.0**500))
    scale = select(small, _number(2.0**500), _number(1.0))
    rest = fma(unary("NEG", near), y * scale, x * scale)
    lack = select(_negative(y), unary("NEG", rest), rest)
    nothing = _all(_is_zero(near), logical_not(_is_zero(x)), isfinite(y))
    lack = _beyond(near, select(nothing, _unit(_differ(x, y)), lack), x, y)
    return near, select(_is_zero(y), _number(0.0), lack)


def sqrt(x: Expr):
    near = opaque(unary("SQRT", x))
    small = _less(x, 2.0**-500)
    root = near * select(small, _number(2.0**300), _number(1.0))
    return near, fma(unary("NEG", root), root, x * select(small, _number(2.0**600), _number(1.0)))


def fused(x: Expr, y: Expr, z: Expr):
    """As of ``add``, for x · y + z."""
    near, size, other = fma(x, y, z), _size(x * y), _size(z)
    factors = logical_not(logical("OR", _is_zero(x), _is_zero(y)))
    # So far below z that its sign alone matters.
    far = _all(factors, isfinite(z), _less(size, other * _number(2.0**-200)))
    large = logical("OR", binary("GE", size, _number(2.0**900)), binary("GE", other, _number(2.0**900)))
    small = _less(size, 2.0**-700)
    scale = select(large, _number(2.0**-200), select(small, _number(2.0**900), _number(1.0)))
    of_x = select(large, binary("GE", _size(x), _size(y)), binary("LE", _size(x), _number(1.0)))
    a, b = _scaled(x, y, of_x, scale)
    c = z * scale
    lost = _all(_is_zero(c), logical_not(_is_zero(z)))
    c = select(lost, _unit(_negative(z)) * _number(2.0**-1074), c)
    high = fma(a, b, near - near)  # the product, rounded for itself: of a finite result this is 0, which the compiler does not know
    low = fma(a, b, unary("NEG", high))
    first, first_lack = _two_sum(c, low)
    second, second_lack = _two_sum(high, first)
    lack = ((second - near * scale) + second_lack) + first_lack
    # Below all that z can hold: its sign again.
    deep = _all(factors, small, logical_not(large), _less(_size(high), 2.0**-250))
    lack = select(logical("OR", far, deep), _unit(_differ(x, y)), lack)
    zero = _all(_is_zero(near), _is_zero(lack), logical("OR", _differ(x, y), _negative(z)))
    return near, _beyond(near, lack, x, y, z), zero
