# SPDX-License-Identifier: Apache-2.0
"""``triton.language.extra.libdevice``, in Triton's language: names of NVIDIA's device library for float32 and float64. Each is made of what the
tile language has, to a few units of the last place, unless its text says else."""

from __future__ import annotations

from . import language as tl
from .builtin import constexpr
from .runtime import jit

abs, fabs = tl.abs, tl.abs
exp, exp2, log, log2, sin, cos, sqrt, rsqrt = tl.exp, tl.exp2, tl.log, tl.log2, tl.sin, tl.cos, tl.sqrt, tl.rsqrt
erf, floor, ceil, fma, tanh, trunc, rint, nearbyint = tl.erf, tl.floor, tl.ceil, tl.fma, tl._tanh, tl._trunc, tl._rint, tl._rint
pow, fmod, isnan, mulhi, umulhi = tl._pow, tl._fmod, tl._isnan, tl._mulhi, tl.umulhi
sqrt_rn, div_rn, fast_dividef = tl.sqrt_rn, tl.div_rn, tl.fdiv
fast_expf, fast_exp2f, fast_logf, fast_log2f, fast_sinf, fast_cosf, fast_tanhf = tl.exp, tl.exp2, tl.log, tl.log2, tl.sin, tl.cos, tl._tanh
add_rn, mul_rn, sub_rn = tl.add, tl.mul, tl.sub

_PI, _HALF_PI = constexpr(3.141592653589793), constexpr(1.5707963267948966)
_LN_2, _LN_10 = constexpr(0.6931471805599453), constexpr(2.302585092994046)


@jit
def fmax(x, y):
    return tl.maximum(x, y)


@jit
def fmin(x, y):
    return tl.minimum(x, y)


@jit
def saturatef(x):
    return tl.clamp(x, 0.0, 1.0)


@jit
def isinf(x):
    return tl.abs(x) == float("inf")


@jit
def finitef(x):
    return tl.abs(x) < float("inf")


isfinited = finitef


@jit
def signbit(x):
    """1 or 0."""
    wide: tl.constexpr = tl.int64 if x.dtype == tl.float64 else tl.int32
    return (x.to(wide, bitcast=True) < 0).to(tl.int32)


@jit
def copysign(x, y):
    size = tl.abs(x)
    return tl.where(signbit(y) != 0, -size, size)


@jit
def round(x):
    """Halves away from zero."""
    whole = tl.floor(tl.abs(x))
    return copysign(tl.where(tl.abs(x) - whole >= 0.5, whole + 1, whole), x)


@jit
def llrint(x):
    return rint(x).to(tl.int64)


@jit
def fdim(x, y):
    return tl.where(x <= y, 0.0, x - y)


@jit
def rcp_rn(x):
    return 1.0 / x


@jit
def log10(x):
    return tl.log(x) / _LN_10


@jit
def exp10(x):
    return tl.exp(x * _LN_10)


@jit
def log1p(x):
    """Right for small numbers too: what 1 + x has lost is put back."""
    y = 1.0 + x
    lost = tl.where(tl.abs(x) < 1.0, x - (y - 1.0), 0.0)
    return tl.where((y == 1.0) | (tl.abs(x) == float("inf")), x, tl.log(y) + lost / y)


@jit
def expm1(x):
    """Right for small numbers too: (e^x - 1) · x / log(e^x), as Kahan has it."""
    y = tl.exp(x)
    near = (y - 1.0) * x / tl.log(tl.where((y > 0.25) & (y < 4.0) & (y != 1.0), y, 2.0))
    return tl.where(y == 1.0, x, tl.where((y > 0.25) & (y < 4.0), near, y - 1.0))


@jit
def tan(x):
    return tl.sin(x) / tl.cos(x)


@jit
def sinh(x):
    small = expm1(tl.abs(x))
    return copysign(tl.where(tl.abs(x) > 20.0, tl.exp(tl.abs(x) - _LN_2), 0.5 * (small + small / (small + 1.0))), x)


@jit
def cosh(x):
    half = tl.exp(tl.abs(x) - _LN_2)
    return half + 0.25 / half


@jit
def asinh(x):
    size = tl.abs(x)
    near = log1p(size + size * size / (1.0 + tl.sqrt(size * size + 1.0)))
    return copysign(tl.where(size > 1e9, tl.log(size) + _LN_2, near), x)


@jit
def acosh(x):
    return tl.where(x > 1e9, tl.log(x) + _LN_2, log1p((x - 1.0) + tl.sqrt((x - 1.0) * (x + 1.0))))


@jit
def atanh(x):
    return 0.5 * log1p(2.0 * x / (1.0 - x))


@jit
def _atan_of_small(x):
    """Of 0 to tan(π/8), by the series of Euler, whose terms fall by x²/(1 + x²) < 0.15 each."""
    z = x * x / (1.0 + x * x)
    term = x / (1.0 + x * x)
    total = term
    for n in tl.static_range(1, 20):
        term = term * z * (2.0 * n / (2.0 * n + 1.0))
        total = total + term
    return total


@jit
def atan(x):
    size = tl.abs(x)
    large = size > 1.0
    y = tl.where(large, 1.0 / size, size)
    folded = y > 0.4142135623730951  # atan(y) = π/4 + atan((y - 1) / (y + 1))
    near = _atan_of_small(tl.where(folded, tl.abs((y - 1.0) / (y + 1.0)), y))
    angle = tl.where(folded, 0.5 * _HALF_PI - near, near)
    return copysign(tl.where(large, _HALF_PI - angle, angle), x)


@jit
def atan2(y, x):
    angle = tl.where((x == 0.0) & (y == 0.0), 0.0, atan(tl.abs(y) / tl.abs(x)))
    angle = tl.where((tl.abs(x) == float("inf")) & (tl.abs(y) == float("inf")), 0.5 * _HALF_PI, angle)
    return copysign(tl.where(signbit(x) != 0, _PI - angle, angle), y)


@jit
def asin(x):
    return atan(x / tl.sqrt((1.0 - x) * (1.0 + x)))


@jit
def acos(x):
    return _HALF_PI - asin(x)


@jit
def hypot(x, y):
    large, small = tl.maximum(tl.abs(x), tl.abs(y)), tl.minimum(tl.abs(x), tl.abs(y))
    part = small / tl.where(large == 0.0, 1.0, large)
    return tl.where(large == float("inf"), large, large * tl.sqrt(1.0 + part * part))


@jit
def erfc(x):
    """1 - erf(x): no more digits than that leaves."""
    return 1.0 - tl.erf(x)


@jit
def cbrt(x):
    root = tl.exp2(tl.log2(tl.abs(x)) / 3.0)
    root = root - (root - tl.abs(x) / (root * root)) / 3.0
    return tl.where((x == 0.0) | (tl.abs(x) == float("inf")), x, copysign(root, x))


@jit
def _halves(x):
    """The lower and the upper 32 bits of an integer of 64."""
    return x.to(tl.int32), (x >> 32).to(tl.int32)


@jit
def popc(x):
    if x.dtype.primitive_bitwidth == 64:
        low, high = _halves(x)
        return popc(low) + popc(high)
    bits = tl.cast(x, tl.uint32, bitcast=True)
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return ((((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@jit
def clz(x):
    if x.dtype.primitive_bitwidth == 64:
        low, high = _halves(x)
        return tl.where(high == 0, 32 + clz(low), clz(high))
    bits = tl.cast(x, tl.uint32, bitcast=True)
    for step in tl.static_range(5):
        bits = bits | (bits >> (1 << step))
    return 32 - popc(bits.to(tl.int32, bitcast=True))


@jit
def ffs(x):
    """The place of the lowest bit that is set, from 1; 0 of 0."""
    if x.dtype.primitive_bitwidth == 64:
        low, high = _halves(x)
        return tl.where((low == 0) & (high != 0), 32 + ffs(high), ffs(low))
    bits = tl.cast(x, tl.int32)
    return tl.where(bits == 0, 0, 32 - clz(bits & -bits))


@jit
def float_as_int(x):
    return x.to(tl.int32, bitcast=True)


@jit
def int_as_float(x):
    return x.to(tl.float32, bitcast=True)
