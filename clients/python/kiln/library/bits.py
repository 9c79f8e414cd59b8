# SPDX-License-Identifier: Apache-2.0
"""Arrays of the types that numpy lacks: numpy integers that hold their bits, and which type that is."""

from __future__ import annotations

import functools

from ..language.dtypes import DType, as_dtype

# The integer whose arrays hold the bits.
STAND_INS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e4m3fnuz": "uint8", "float8_e5m2fnuz": "uint8"}
_FLOAT8 = {  # mantissa bits, exponent bias, largest finite number
    "float8_e4m3fn": (3, 7, 448.0), "float8_e5m2": (2, 15, 57344.0), "float8_e4m3fnuz": (3, 8, 240.0), "float8_e5m2fnuz": (2, 16, 57344.0)}


class Bits:
    """A numpy array of ``uint16`` or ``uint8`` that holds the bits of ``dtype``: "bfloat16", "float8_e4m3fn", "float8_e5m2" and their
    "fnuz" kinds. The library's functions take it where they take a numpy array, and return it for results of these types. ``Bits.of``
    rounds numbers; ``numpy.asarray(bits)`` gives them back as float32. TypeError for another dtype or an array of another type."""

    def __init__(self, array, dtype):
        self.array, self.dtype = array, as_dtype(dtype)
        stand_in = STAND_INS.get(str(self.dtype))
        if stand_in is None:
            raise TypeError(f"Bits: dtype {self.dtype} is none of {', '.join(STAND_INS)}; pass a plain numpy array")
        if getattr(array, "dtype", None) != stand_in:
            raise TypeError(f"Bits: array must be a numpy array of {stand_in}, which holds the bits of {self.dtype}; Bits.of(numbers, "
                            f"dtype) makes one")

    @classmethod
    def of(cls, numbers, dtype) -> "Bits":
        """``numbers`` rounded to the nearest of ``dtype``, ties to the even one; beyond the largest finite 8-bit float to that."""
        import numpy

        dtype, values = as_dtype(dtype), numpy.asarray(numbers, numpy.float32)
        return cls(_to_bfloat16(values) if dtype == "bfloat16" else _to_float8(values, dtype), dtype)

    shape = property(lambda self: self.array.shape)

    def __array__(self, dtype=None, copy=None):
        import numpy

        if copy is False:
            raise ValueError("Bits: the numbers of these bits are a new array; leave copy=False out")
        if self.dtype == "bfloat16":
            values = (self.array.astype(numpy.uint32) << 16).view(numpy.float32)
        else:
            values = _float8_values(self.dtype)[self.array]
        return values if dtype is None else values.astype(dtype)

    def __repr__(self):
        return f"Bits({self.dtype}, shape {self.shape})"


def _to_bfloat16(values):
    import numpy

    bits = values.view(numpy.uint32).astype(numpy.uint64)
    rounded = (bits + 0x7FFF + (bits >> numpy.uint64(16) & numpy.uint64(1))) >> numpy.uint64(16)
    return numpy.where(numpy.isnan(values), 0x7FC0, rounded).astype(numpy.uint16)


@functools.lru_cache(maxsize=None)
def _float8_values(dtype: DType):
    """The number of each byte, as float32."""
    import numpy

    mantissa, bias, largest = _FLOAT8[dtype]
    magnitude = numpy.arange(128)
    exponent, rest = magnitude >> mantissa, magnitude & ((1 << mantissa) - 1)
    numbers = numpy.where(exponent > 0, 1 + rest / (1 << mantissa), 2 * rest / (1 << mantissa)) * 2.0 ** (exponent - bias)
    if dtype == "float8_e5m2":
        numbers[124], numbers[125:] = numpy.inf, numpy.nan
    numbers = numpy.where(numbers <= largest, numbers, numpy.nan) if dtype != "float8_e5m2" else numbers
    both = numpy.concatenate([numbers, -numbers]).astype(numpy.float32)
    if dtype.endswith("fnuz"):
        both[128] = numpy.nan
    return both


def _to_float8(values, dtype: DType):
    import numpy

    numbers = _float8_values(dtype)[:128].astype(numpy.float64)
    known = numpy.flatnonzero(numpy.isfinite(numbers))
    finite, size = numbers[known], numpy.minimum(numpy.abs(values.astype(numpy.float64)), numbers[known].max())
    above = numpy.clip(numpy.searchsorted(finite, numpy.nan_to_num(size)), 1, len(finite) - 1)
    below = above - 1
    nearer = size - finite[below] - (finite[above] - size)
    code = numpy.where((nearer < 0) | ((nearer == 0) & (below % 2 == 0)), below, above)
    negative = numpy.signbit(values) & ((code > 0) | (not dtype.endswith("fnuz")))
    quiet = 0x80 if dtype.endswith("fnuz") else 0x7F
    return numpy.where(numpy.isnan(values), quiet, code | numpy.where(negative, 0x80, 0)).astype(numpy.uint8)
