# SPDX-License-Identifier: Apache-2.0
"""``triton.language.extra.libdevice``, in Triton's language: names of NVIDIA's device library for float32 and float64. Each is made of what the
tile language has, to a few units of the last place, unless its text says else."""

from __future__ import annotations

from . import language as tl
from .builtin import constexpr
from .runtime import jit

abs, fabs = tl.abs, tl.abs
exp, exp2, log, log2, sin, cos, sqrt, rsqrt = tl._exp, tl.exp2, tl.log, tl.log2, tl.sin, tl.cos, tl.sqrt, tl.rsqrt
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
    return tl.div_rn(1.0, x)


@jit
def _moved(q, steps):
    """A number whose size is so many of its last places larger: of 0 the least of its sign, of infinity by -1 the largest."""
    if q.dtype == tl.float64:
        return (q.to(tl.int64, bitcast=True) + steps.to(tl.int64)).to(tl.float64, bitcast=True)
    return (q.to(tl.int32, bitcast=True) + steps).to(tl.float32, bitcast=True)


@jit
def _rounded_quotient(x, y, TOWARDS: tl.constexpr):
    """x / y towards 0, or towards infinity of the sign ``TOWARDS``. What the nearest quotient leaves says on which side of x / y it is; that is
    exact where it is no subnormal number."""
    q = tl.div_rn(x, y)
    rest = tl.fma(-q, y, x)
    finite = (tl.abs(x) < float("inf")) & (tl.abs(y) < float("inf")) & (y != 0.0)
    negative = (x < 0.0) != (y < 0.0)  # x / y is
    large = (tl.abs(q) == float("inf")) | ((rest != 0.0) & ((rest < 0.0) != (x < 0.0)))  # the size of q is larger than that of x / y
    small = (q == 0.0) & (x != 0.0) | (tl.abs(q) < float("inf")) & (rest != 0.0) & ((rest < 0.0) == (x < 0.0))
    if TOWARDS == 0:
        steps = tl.where(large, -1, 0)
    elif TOWARDS > 0:
        steps = tl.where(negative, tl.where(large, -1, 0), tl.where(small, 1, 0))
    else:
        steps = tl.where(negative, tl.where(small, 1, 0), tl.where(large, -1, 0))
    return _moved(q, tl.where(finite, steps, 0))


@jit
def div_rz(x, y):
    return _rounded_quotient(x, y, 0)


@jit
def div_ru(x, y):
    return _rounded_quotient(x, y, 1)


@jit
def div_rd(x, y):
    return _rounded_quotient(x, y, -1)


@jit
def log10(x):
    return tl.log(x) / _LN_10


@jit
def exp10(x):
    return tl._exp(x * _LN_10)


@jit
def log1p(x):
    """Right for small numbers too: what 1 + x has lost is put back."""
    y = 1.0 + x
    lost = tl.where(tl.abs(x) < 1.0, x - (y - 1.0), 0.0)
    return tl.where((y == 1.0) | (tl.abs(x) == float("inf")), x, tl.log(y) + lost / y)


@jit
def expm1(x):
    """Right for small numbers too: (e^x - 1) · x / log(e^x), as Kahan has it."""
    y = tl._exp(x)
    near = (y - 1.0) * x / tl.log(tl.where((y > 0.25) & (y < 4.0) & (y != 1.0), y, 2.0))
    return tl.where(y == 1.0, x, tl.where((y > 0.25) & (y < 4.0), near, y - 1.0))


@jit
def tan(x):
    return tl.sin(x) / tl.cos(x)


@jit
def sinh(x):
    small = expm1(tl.abs(x))
    return copysign(tl.where(tl.abs(x) > 20.0, tl._exp(tl.abs(x) - _LN_2), 0.5 * (small + small / (small + 1.0))), x)


@jit
def cosh(x):
    half = tl._exp(tl.abs(x) - _LN_2)
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
def _polynomial(x, factors: tl.constexpr):
    """By falling powers."""
    total = tl.full(x.shape, factors[0], x.dtype)
    for i in tl.static_range(1, len(factors)):
        total = total * x + factors[i]
    return total


# Numerical Recipes, 6.2: log(erfc(x)·e^(x²)/t) in t = 1/(1 + x/2), to 1.2e-7.
_ERFC = constexpr((0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223))


@jit
def erfc(x):
    """Of float64 no more digits than 1 - erf(x) leaves."""
    near = 1.0 - tl.erf(x)
    if x.dtype == tl.float64:
        return near
    t = 1.0 / (1.0 + 0.5 * tl.abs(x))
    return tl.where(x > 0.5, t * tl._exp(_polynomial(t, _ERFC) - x * x), near)


@jit
def erfcx(x):
    """erfc(x)·e^(x²), to 1.2e-7."""
    t = 1.0 / (1.0 + 0.5 * tl.abs(x))
    size = t * tl._exp(_polynomial(t, _ERFC))
    return tl.where(x < 0.0, 2.0 * tl._exp(x * x) - size, size)


# M. Giles, Approximating the erfinv function: in log(1 - x²), for its middle and its ends.
_ERFINV_MIDDLE = constexpr((2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
                            0.246640727, 1.50140941))
_ERFINV_ENDS = constexpr((-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406,
                          2.83297682))


@jit
def erfinv(x):
    w = -tl.log((1.0 - x) * (1.0 + x))
    root = x * tl.where(w < 5.0, _polynomial(w - 2.5, _ERFINV_MIDDLE), _polynomial(tl.sqrt(w) - 3.0, _ERFINV_ENDS))
    if x.dtype == tl.float64:
        for _ in tl.static_range(2):
            root = root - (tl.erf(root) - x) * 0.8862269254527579 * tl._exp(root * root)
    return tl.where(tl.abs(x) == 1.0, copysign(tl.full(x.shape, float("inf"), x.dtype), x), root)


_LANCZOS = constexpr((676.5203681218851, -1259.1392167224028, 771.3234287776531, -176.6150291621406, 12.507343278686905, -0.13857109526572012,
                      9.984369578019572e-06, 1.5056327351493116e-07))


@jit
def _lgamma_right(x):
    """Of x ≥ 1/2, by Lanczos' sum."""
    total = tl.full(x.shape, 0.9999999999998099, x.dtype)
    for i in tl.static_range(len(_LANCZOS)):
        total = total + _LANCZOS[i] / (x + i)
    t = x + 6.5
    return 0.9189385332046728 + (x - 0.5) * tl.log(t) - t + tl.log(total)


@jit
def lgamma(x):
    """Computed in float64: near 1 and 2 it is small, and its parts are not."""
    wide = x.to(tl.float64)
    left = wide < 0.5
    size = _lgamma_right(tl.where(left, 1.0 - wide, wide))
    sine = tl.abs(tl.sin(_PI * (wide - tl.floor(wide))))
    size = tl.where(left, tl.where(wide == tl.floor(wide), float("inf"), tl.log(_PI / sine) - size), size)
    return tl.where(tl.abs(wide) == float("inf"), float("inf"), size).to(x.dtype)


# Abramowitz and Stegun, 9.8.1 to 9.8.4: below 3.75 in (x/3.75)², above it in 3.75/x.
_I0_NEAR = constexpr((0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0))
_I0_FAR = constexpr((0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281, -0.00157565, 0.00225319, 0.01328592, 0.39894228))
_I1_NEAR = constexpr((0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5))
_I1_FAR = constexpr((-0.00420059, 0.01787654, -0.02895312, 0.02282967, -0.01031555, 0.00163801, -0.00362018, -0.03988024, 0.39894228))


@jit
def _bessel(size, near: tl.constexpr, far: tl.constexpr):
    t = size / 3.75
    above = tl.where(t < 1.0, 1.0, t)
    root = tl._exp(0.5 * size)  # of the power, which may be infinite where the result is not
    large = tl.where(size == float("inf"), size, root / tl.sqrt(above * 3.75) * _polynomial(1.0 / above, far) * root)
    return tl.where(t < 1.0, _polynomial(t * t, near), large)


@jit
def cyl_bessel_i0(x):
    """To 2e-7."""
    return _bessel(tl.abs(x), _I0_NEAR, _I0_FAR)


@jit
def cyl_bessel_i1(x):
    """To 2e-7."""
    size = tl.abs(x)
    whole = _bessel(size, _I1_NEAR, _I1_FAR)
    return copysign(tl.where(size < 3.75, size * whole, whole), x)


@jit
def _word(x):
    """Bits of a float as an integer, the bits of its fraction, what its exponent is raised by."""
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True), 52, 1023
    return x.to(tl.int32, bitcast=True), 23, 127


@jit
def ilogb(x):
    """The exponent; the least integer of 0, the greatest of infinities and NaN."""
    tiny: tl.constexpr = 2.2250738585072014e-308 if x.dtype == tl.float64 else 1.1754943508222875e-38
    small = tl.abs(x) < tiny
    bits, places, raised = _word(tl.where(small, x * 18014398509481984.0, x))  # 2^54
    exponent = ((bits >> places) & (2 * raised + 1)).to(tl.int32) - raised - tl.where(small, 54, 0)
    exponent = tl.where(x == 0.0, -2147483648, exponent)
    return tl.where((x != x) | (tl.abs(x) == float("inf")), 2147483647, exponent)


@jit
def ldexp(x, n):
    """x · 2^n: by three powers that are numbers, as n may lead from the least to the greatest."""
    _, places, raised = _word(x)
    left = n
    for _ in tl.static_range(3):
        step = tl.minimum(tl.maximum(left, 1 - raised), raised)
        left = left - step
        x = x * ((step.to(tl.int64) + raised) << places).to(tl.int64 if x.dtype == tl.float64 else tl.int32).to(x.dtype, bitcast=True)
    return x


scalbn = ldexp


@jit
def nextafter(x, y):
    bits, _, _ = _word(x)
    away = (y > x) == (x > 0.0)
    least = tl.full(x.shape, 1, bits.dtype).to(x.dtype, bitcast=True)
    stepped = tl.where(x == 0.0, copysign(least, y), (bits + tl.where(away, 1, -1)).to(x.dtype, bitcast=True))
    return tl.where((x != x) | (y != y), x + y, tl.where(x == y, y, stepped))


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
