# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that rounds once, in a direction of one's choice, and conversions that do. A float32 result is computed in float64, where what
it lacks of the exact result is known, or its sign is; then it moves by one unit in the last place where the direction asks for it. All of it
is arithmetic of the language, so it is the same on every target."""

from __future__ import annotations

from . import dtypes, rounding64, scales
from .dtypes import as_dtype
from .expr import Expr, as_expr, binary, const, logical, logical_not, make, select, unary
from .expr import cast as _convert
from .math import fma, isfinite, isinf, max_value, nearbyint, reinterpret
from .math import ceil as _ceil
from .math import floor as _floor
from .trace import error, let

_MODES = ("rn", "rz", "ru", "rd")
_HALVES = ("float16", "bfloat16")
_UNSIGNED = {bits: as_dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}


def _operands(name: str, mode: str, *values) -> list[Expr]:
    """In the dtype of the first."""
    if not isinstance(mode, str) or mode not in _MODES:
        raise ValueError(f"T.{name}(rounding_mode={mode!r}): Invalid rounding mode; known: rn (nearest, halves to even), rz (to zero), ru (up), rd "
                         "(down)")
    first = as_expr(values[0])
    if name == "ieee_frsqrt" and first.dtype == dtypes.float64:
        raise TypeError("T.ieee_frsqrt: frsqrt is not supported for float64; write T.ieee_frcp(T.ieee_fsqrt(x)), which rounds twice")
    if first.dtype not in ("float32", "float64", *_HALVES):
        raise TypeError(f"T.{name} of {first.dtype}: it takes float64, float32, float16 and bfloat16; convert with T.cast")
    if mode != "rn" and first.dtype in _HALVES:
        raise TypeError(f"T.{name} of {first.dtype} with rounding_mode {mode!r}: Only rounding mode 'rn' is available for half precision: halves are "
                        f"rounded to the nearest; compute in float32, and convert by T.cast(x, \"{first.dtype}\", round=…)")
    return [_convert(v, first.dtype) for v in values]


def _wide(x) -> Expr:
    return _convert(x, dtypes.float64)


def _step(x: Expr, up: bool) -> Expr:
    """The next number of the type above or below a finite one or the infinity on the other side."""
    bits_of = _UNSIGNED[x.dtype.bits]
    bits, sign = reinterpret(x, dtype=bits_of), const(1 << (x.dtype.bits - 1), bits_of)
    one = const(1, bits_of)
    negative = binary("NE", binary("BIT_AND", bits, sign), 0)
    zero = binary("EQ", binary("BIT_AND", bits, binary("SUB", sign, one)), 0)
    away = binary("ADD", bits, one)
    closer = binary("SUB", bits, one)
    moved = select(negative, closer, away) if up else select(negative, away, closer)
    if x.dtype.endswith("fnuz"):  # they have one zero; the bits of the other are NaN
        moved = select(binary("EQ", moved, sign), const(0, bits_of), moved)
    first = one if up else binary("BIT_OR", sign, one)
    return reinterpret(select(zero, first, moved), dtype=x.dtype)


def _directed(mode: str, near: Expr, high: Expr, low: Expr) -> Expr:
    """``near`` is high + low, rounded to the nearest; they are of float64, and high is their sum, rounded. NaN has no direction."""
    back = _convert(near, high.dtype)
    same = binary("EQ", back, high)
    below = logical("OR", back < high, logical("AND", same, low > 0))
    above = logical("OR", back > high, logical("AND", same, low < 0))
    if mode == "ru":
        return select(below, _step(near, True), near)
    if mode == "rd":
        return select(above, _step(near, False), near)
    positive = logical("OR", high > 0, logical("AND", binary("EQ", high, 0), low > 0))
    return select(positive, select(above, _step(near, False), near), select(below, _step(near, True), near))


def _sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(the sum, rounded, what that lacks), exactly (Knuth, "The Art of Computer Programming" 2, 4.2.2)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _is_negative(x: Expr) -> Expr:
    """By the sign, which a zero has, too."""
    bits = {32: dtypes.int32, 64: dtypes.int64}[x.dtype.bits]
    return reinterpret(x, dtype=bits) < 0


def _rounded_sum(mode: str, a: Expr, b: Expr) -> Expr:
    """a + b of float64 in float32. a may be a product of two float32, for which the nearest is not found this way."""
    high, low = _sum(a, b)
    near = _directed(mode, _convert(high, dtypes.float32), high, low)
    if mode != "rd":
        return near
    # Rounding down, a sum of nothing is -0, unless both are +0.
    nothing = logical("AND", binary("EQ", high, 0), logical("OR", _is_negative(a), _is_negative(b)))
    return select(nothing, const(-0.0, dtypes.float32), near)


def _nearest(high: Expr, rest: Expr, above: Expr, dtype) -> Expr:
    """high in the dtype: float64 holds enough digits for a second rounding. The bits are touched because a product and a sum next to each other
    may be rounded as one, and because what float64 is computed for alone may be computed in less, and approximately: |rest|, of what high
    lacks, is never more than |above|, which the compiler does not know."""
    near = _convert(high, dtype)
    bits_of = _UNSIGNED[dtype.bits]
    never = _convert(unary("ABS", rest) > unary("ABS", above), bits_of)
    return reinterpret(binary("ADD", reinterpret(near, dtype=bits_of), never), dtype=dtype)


def _wide_result(mode: str, near: Expr, lack: Expr, zero=None) -> Expr:
    """Of float64. ``zero``: whether it is a zero that is negative when rounded down."""
    if mode == "rn":
        return near
    if mode == "ru":
        return select(lack > 0, _step(near, True), near)
    if mode == "rd":
        result = select(lack < 0, _step(near, False), near)
        return result if zero is None else select(zero, const(-0.0, dtypes.float64), result)
    too_far = logical("AND", binary("NE", near, 0), select(near > 0, lack < 0, lack > 0))
    one = const(1, _UNSIGNED[64])
    return select(too_far, reinterpret(binary("SUB", reinterpret(near, dtype=_UNSIGNED[64]), one), dtype=dtypes.float64), near)


_SHAPES = "Shapes: scalars"
_DOC = (
    "``rounding_mode``: \"rn\" to the nearest, halves to the even one; \"rz\" to zero; \"ru\" up; \"rd\" down. ``fast_math`` changes nothing of it "
    "but what becomes of subnormals.\n"
    "Under ``fast_math`` a quotient or root of float64 is as exact as that leaves it.\n"
    f"{_SHAPES}. Dtypes: float64 and float32, and float16 and bfloat16 for \"rn\"; the others are converted to the dtype of the first.\n"
    "Targets: all, by arithmetic of float64.\n"
    "Errors: ValueError for another ``rounding_mode``. TypeError for another dtype.")


def ieee_add(x, y, rounding_mode="rn"):
    x, y = _operands("ieee_add", rounding_mode, x, y)
    if x.dtype == dtypes.float64:
        return _wide_result(rounding_mode, *rounding64.add(x, y))
    if rounding_mode == "rn":
        high, low = _sum(_wide(x), _wide(y))
        return _nearest(high, low, high, x.dtype)
    return _rounded_sum(rounding_mode, _wide(x), _wide(y))


def ieee_sub(x, y, rounding_mode="rn"):
    x, y = _operands("ieee_sub", rounding_mode, x, y)
    return ieee_add(x, unary("NEG", y), rounding_mode)


def ieee_mul(x, y, rounding_mode="rn"):
    x, y = _operands("ieee_mul", rounding_mode, x, y)
    if x.dtype == dtypes.float64:
        return _wide_result(rounding_mode, *rounding64.mul(x, y))
    product = _wide(x) * _wide(y)
    if rounding_mode == "rn":
        return _nearest(product, fma(_wide(x), _wide(y), unary("NEG", product)), product, x.dtype)
    return _directed(rounding_mode, _convert(product, dtypes.float32), product, const(0.0, dtypes.float64))


def ieee_fmaf(x, y, z, rounding_mode="rn"):
    x, y, z = _operands("ieee_fmaf", rounding_mode, x, y, z)
    if x.dtype == dtypes.float64:
        if rounding_mode != "rn":  # of which the expression below has many
            x, y, z = (let("operand", v) for v in (x, y, z))
        return _wide_result(rounding_mode, *rounding64.fused(x, y, z))
    if rounding_mode == "rn":
        return fma(x, y, z)
    return _rounded_sum(rounding_mode, _wide(x) * _wide(y), _wide(z))


def ieee_fdiv(x, y, rounding_mode="rn"):
    x, y = _operands("ieee_fdiv", rounding_mode, x, y)
    if x.dtype == dtypes.float64:
        return _wide_result(rounding_mode, *rounding64.div(x, y))
    a, b = _wide(x), _wide(y)
    quotient = a / b
    rest = fma(unary("NEG", quotient), b, a)
    if rounding_mode == "rn":
        return _nearest(quotient, rest, a, x.dtype)
    return _directed(rounding_mode, _convert(quotient, dtypes.float32), quotient, select(b < 0, unary("NEG", rest), rest))


def ieee_frcp(x, rounding_mode="rn"):
    (x,) = _operands("ieee_frcp", rounding_mode, x)
    return ieee_fdiv(const(1.0, x.dtype), x, rounding_mode)


def ieee_fsqrt(x, rounding_mode="rn"):
    (x,) = _operands("ieee_fsqrt", rounding_mode, x)
    if x.dtype == dtypes.float64:
        return _wide_result(rounding_mode, *rounding64.sqrt(x))
    wide = _wide(x)
    root = unary("SQRT", wide)
    rest = fma(unary("NEG", root), root, wide)
    if rounding_mode == "rn":
        return _nearest(root, rest, wide, x.dtype)
    return _directed(rounding_mode, _convert(root, dtypes.float32), root, rest)


def ieee_frsqrt(x):
    """1 / √x, rounded to the nearest.
    Shapes: a scalar. Dtypes: float32, float16 and bfloat16. Targets: all, by arithmetic of float64, whose two roundings never reach the middle
    between two float32. Errors: TypeError for another dtype."""
    (x,) = _operands("ieee_frsqrt", "rn", x)
    one, root = const(1.0, dtypes.float64), unary("SQRT", _wide(x))
    high = one / root
    return _nearest(high, fma(unary("NEG", high), root, one), one, x.dtype)


for _name, _what in (("ieee_add", "x + y"), ("ieee_sub", "x - y"), ("ieee_mul", "x · y"), ("ieee_fmaf", "x · y + z"), ("ieee_fdiv", "x / y"),
                     ("ieee_frcp", "1 / x"), ("ieee_fsqrt", "√x")):
    globals()[_name].__doc__ = f"{_what}, rounded once. {_DOC}"
ieee_fmaf.__doc__ = ieee_fmaf.__doc__.replace("Shapes:", "In a direction, operands of float64 are read before the expression around them is: "
                                              "guard them with an if, not with T.if_then_else.\nShapes:")

# PTX's words for directions → those of T.ieee_add; "rs", by random bits, apart.
_ROUNDS = {"rn": "rn", "rz": "rz", "rp": "ru", "rm": "rd"}
CAST_ROUNDING_MODES = frozenset(("", "rs", *_ROUNDS))
_INFINITE = {"float8_e5m2": 0x7C, "float8_e4m3fn": 0x7F, "float8_e4m3fnuz": 0x80, "float8_e5m2fnuz": 0x80}


def cast(value, dtype, round="", sat=True, rbits=None):
    """``value`` in the dtype. A float becomes an integer by cutting towards zero and saturates at the type's ends; NaN becomes 0. An
    integer becomes a narrower one by its low bits. A Python number keeps all digits that fit. ``round``: "rn" to the nearest, "rz" to zero, "rp"
    up, "rm" down, of a float that becomes a narrower one or an integer; left out, integers are cut and floats rounded to the nearest.
    ``sat=False``: what is too large for an 8-bit float becomes its infinity, or NaN where it has none, and not its largest number.
    Shapes: a scalar. Dtypes: any to any; ``round`` of floats of up to 32 bits, and of float64 to float32. Targets: all. 8-bit floats are
    converted by instructions where the target has them, else by their bits. float8_e8m0fnu, which has no sign and no zero, takes the next power
    of two that is not below the magnitude, at most its largest. Errors: TypeError for what is no scalar, and for an infinite Python float as
    an integer. ValueError for another ``round`` or ``sat``. TraceError for ``round="rs"``, and for a ``round`` of other
    dtypes."""
    if round not in CAST_ROUNDING_MODES:
        raise ValueError(f"T.cast(round={round!r}): Invalid round; known: {', '.join(_ROUNDS)}, rs")
    if not isinstance(sat, bool):
        raise ValueError(f"T.cast(sat={sat!r}): Invalid sat; it is True or False")
    if round == "rs" and rbits is None:
        raise ValueError("T.cast(round=\"rs\"): rbits is required, the random bits to round by")
    if round != "rs" and rbits is not None:
        raise ValueError(f"T.cast(round={round!r}, rbits=…): rbits is only valid with round=\"rs\"")
    dtype = as_dtype(dtype)
    if round == "rs":
        raise error("T.cast(round=\"rs\"): rounding by random bits is not part of this version; add noise below the last place, then T.cast")
    if dtype == scales.NAME:
        if round not in ("", "rp") or not sat:
            raise error(f"T.cast to {dtype} with round={round!r}, sat={sat}: it goes up and saturates; leave them out")
        return _convert(value, dtype)
    if round in ("", "rn") and sat and (round == "" or dtype.is_float):
        return _convert(value, dtype)
    x = as_expr(value)
    x = _convert(x, dtypes.float32) if x.dtype == scales.NAME else x
    if not sat and dtype not in _INFINITE:
        raise error(f"T.cast to {dtype} with sat=False: only 8-bit floats saturate by themselves; leave it out")
    if dtype.is_int and x.dtype.is_float:
        whole = {"rn": nearbyint, "rp": _ceil, "rm": _floor, "rz": lambda v: v}[round](x)
        return _convert(whole, dtype)
    return _narrowed(x, dtype, _ROUNDS.get(round, "rn"), sat)


def _narrowed(x: Expr, dtype, mode: str, sat: bool) -> Expr:
    if not x.dtype.is_float or not dtype.is_float or (x.dtype == dtypes.float64) != (dtype == dtypes.float32) or x.dtype.bits <= dtype.bits:
        raise error(f"T.cast from {x.dtype} to {dtype} with round or sat: they are of a float that becomes a narrower one, float64 of float32; "
                    "convert to that first")
    wide = x if x.dtype == dtypes.float64 else _convert(x, dtypes.float32)
    near = make("CAST", dtype, (x,))  # of a constant too: what it becomes, the compiler knows
    finite = isfinite(wide)
    if mode != "rn":
        directed = _directed(mode, near, wide, const(0.0, wide.dtype))
        # A saturated result is as far as it goes, and what is not finite has no neighbour.
        largest = _convert(max_value(dtype), wide.dtype)
        beyond = unary("ABS", wide) >= largest if dtype in _INFINITE else const(False)
        near = select(logical("AND", finite, logical_not(beyond)), directed, near)
    if sat:
        return near
    return _unsaturated(wide, near, dtype, mode)


def _unsaturated(wide: Expr, near: Expr, dtype, mode: str) -> Expr:
    """Where rounding goes beyond the largest number, the infinity with the sign, or NaN."""
    size, down = unary("ABS", wide), wide < 0
    over = isinf(wide)
    if mode == "rn":  # the middle between the largest number and what would be the next goes to the even one, which is most often the next
        middle = const(_MIDDLE[dtype], wide.dtype)
        over = size > middle if dtype == "float8_e4m3fn" else size >= middle
    elif mode != "rz":
        away = wide > 0 if mode == "ru" else down
        over = logical("OR", over, logical("AND", away, size > _convert(max_value(dtype), wide.dtype)))
    code, sign = const(_INFINITE[dtype], _UNSIGNED[8]), const(0x80, _UNSIGNED[8])
    signed = code if _INFINITE[dtype] == 0x80 else select(down, binary("BIT_OR", code, sign), code)
    return select(over, reinterpret(signed, dtype=dtype), near)


_MIDDLE = {"float8_e5m2": 61440.0, "float8_e4m3fn": 464.0, "float8_e4m3fnuz": 248.0, "float8_e5m2fnuz": 61440.0}


__all__ = ["cast", "ieee_add", "ieee_sub", "ieee_mul", "ieee_fmaf", "ieee_fdiv", "ieee_frcp", "ieee_fsqrt", "ieee_frsqrt"]
