# SPDX-License-Identifier: Apache-2.0
"""Maxima and minima that are NaN where an element is: a reduction of integers that are ordered as the numbers are, and in which NaN lies
beyond all."""

from __future__ import annotations

from . import program as ir
from .buffer import Region
from .dtypes import as_dtype
from .expr import Expr, as_expr, binary, cast, const, make, select, unary
from .loops import Parallel
from .trace import allocate, emit, store

KINDS = {"REDUCE_MAX": "REDUCE_MAX", "REDUCE_MIN": "REDUCE_MIN", "REDUCE_ABS_MAX": "REDUCE_MAX"}


def _flipped(bits: Expr) -> Expr:
    """Of negative numbers all bits but the sign, so that a larger magnitude is a smaller integer; twice it is the bits themselves."""
    width = bits.dtype.bits
    sign = binary("SHR", bits, const(width - 1, bits.dtype))
    return binary("BIT_XOR", bits, binary("BIT_AND", sign, const((1 << (width - 1)) - 1, bits.dtype)))


def _key(value: Expr, kind: str) -> Expr:
    dtype = value.dtype
    integer = as_dtype(f"int{dtype.bits}")
    if kind == "REDUCE_ABS_MAX":
        value = unary("ABS", value)
    beyond = -(1 << (dtype.bits - 1)) if kind == "REDUCE_MIN" else (1 << (dtype.bits - 1)) - 1
    return select(_is_nan(value), const(beyond, integer), _flipped(make("REINTERPRET", integer, (value,))))


def _is_nan(value: Expr) -> Expr:
    return make("IS_NAN", as_dtype("bool"), (value,))


def _number(key: Expr, kind: str, dtype) -> Expr:
    beyond = -(1 << (key.dtype.bits - 1)) if kind == "REDUCE_MIN" else (1 << (key.dtype.bits - 1)) - 1
    nan = const(float("nan"), dtype)
    return select(binary("EQ", key, const(beyond, key.dtype)), nan, make("REINTERPRET", dtype, (_flipped(key),)))


def reduce(kind: str, src: Region, dst: Region, dim: int, clear: bool, at) -> None:
    """``at(region, index)``: the buffer's index of a region's element."""
    integer = as_dtype(f"int{dst.dtype.bits}")
    keys = allocate("FRAGMENT", src.extents, integer, f"{src.name}_keys")
    for index in _elements(src.extents):
        store(keys, index, _key(cast(as_expr(src.buffer[at(src, index)]), dst.dtype), kind))
    best = allocate("FRAGMENT", dst.extents, integer, f"{dst.name}_key")
    emit(ir.Reduce(KINDS[kind], keys.whole(), best.whole(), dim, True))
    for index in _elements(dst.extents):
        value = as_expr(best[index])
        if not clear:
            value = binary("MIN" if kind == "REDUCE_MIN" else "MAX", value, _key(as_expr(dst.buffer[at(dst, index)]), kind))
        store(dst.buffer, at(dst, index), _number(value, kind, dst.dtype))


def with_nan(combine):
    """The same of two numbers, and NaN of NaN and anything."""
    return lambda a, b: select(_is_nan(a), a, select(_is_nan(b), b, combine(a, b)))


def _elements(extents):
    for values in Parallel(*extents):
        yield values if isinstance(values, tuple) else (values,)
