# SPDX-License-Identifier: Apache-2.0
"""float8_e8m0fnu, the type of scales: 2 to the power of a byte less 127, and NaN for 255. It has no sign and no zero. Memory holds its bytes; what is
computed of a value is computed of the float32 that it becomes. As in TileLang a conversion goes up to the next power of two, saturates at the
largest, and takes the magnitude of what is negative."""

from __future__ import annotations

import math

NAME = "float8_e8m0fnu"
NAN = 255
_LARGEST = 254


def code_of(value: float) -> int:
    """The byte of a number."""
    if math.isnan(value):
        return NAN
    if value == 0:
        return 0
    if math.isinf(value):
        return _LARGEST
    fraction, exponent = math.frexp(abs(value))  # 0.5 ≤ fraction < 1
    return min(max(exponent - (fraction == 0.5) + 127, 0), _LARGEST)


def value_of(code: int) -> float:
    return math.nan if code == NAN else math.ldexp(1.0, code - 127)


def rounded(value: float) -> float:
    return value_of(code_of(value))


def encoded(e):
    """An expression of another type as one of this."""
    from . import dtypes
    from .expr import binary, cast, const, make, select

    single, double = cast(e, dtypes.float32), e.dtype == "float64"
    bits = binary("BIT_AND", make("REINTERPRET", dtypes.uint32, (single,)), const(0x7FFFFFFF, dtypes.uint32))
    if double:  # a float32 that is nearest may lie below
        magnitude = make("REINTERPRET", dtypes.float32, (bits,))
        below = binary("LT", cast(magnitude, dtypes.float64), make("ABS", dtypes.float64, (e,)))
        bits = binary("ADD", bits, cast(below, dtypes.uint32))
    exponent = binary("SHR", bits, const(23, dtypes.uint32))
    rest = binary("BIT_AND", bits, const(0x7FFFFF, dtypes.uint32))
    # The smallest number, 2 to the power of −127, is no normal one of float32.
    above = binary("GT", rest, select(binary("EQ", exponent, 0), const(0x400000, dtypes.uint32), const(0, dtypes.uint32)))
    code = binary("MIN", binary("ADD", exponent, cast(above, dtypes.uint32)), const(_LARGEST, dtypes.uint32))
    code = select(binary("GT", bits, const(0x7F800000, dtypes.uint32)), const(NAN, dtypes.uint32), code)
    return make("REINTERPRET", dtypes.DType(NAME), (cast(code, dtypes.uint8),))


def decoded(e):
    """An expression of this type as a float32."""
    from . import dtypes
    from .expr import binary, cast, const, make, select

    code = e.args[0] if e.op == "REINTERPRET" else make("REINTERPRET", dtypes.uint8, (e,))
    code = cast(code, dtypes.uint32)
    bits = select(binary("EQ", code, 0), const(0x400000, dtypes.uint32), binary("SHL", code, const(23, dtypes.uint32)))
    bits = select(binary("EQ", code, NAN), const(0x7FC00000, dtypes.uint32), bits)
    return make("REINTERPRET", dtypes.float32, (bits,))
