# SPDX-License-Identifier: Apache-2.0
"""Bits of integers: how many, the first, the last."""

from __future__ import annotations

import numbers

from . import program as ir
from . import trace as tr
from .affine import finds
from .dtypes import int32, uint32
from .expr import Expr, Var, as_expr, binary, cast, const, constant_value, select
from .loops import serial
from .scope import Branch
from .trace import emit, error, variable


def _bits(name: str, value) -> Expr:
    """The value as an unsigned number of 32 or 64 bits."""
    e = as_expr(value)
    if not e.dtype.is_int:
        raise TypeError(f"T.{name} of {e.dtype}: bits are those of integers; T.reinterpret gives a float's")
    e = cast(cast(e, f"uint{e.dtype.bits}"), "uint64" if e.dtype.bits == 64 else uint32)
    if constant_value(e) is not None or tr.active() is None or tr.active().kernel is None or finds(e, _has_no_value):
        return e
    var = Var("LET", e.dtype, "bits")
    emit(ir.Let(var, e))
    return var.expr


def _has_no_value(node) -> bool:
    """Whether it is a variable that a T.let around the expression will replace."""
    return node.op == "VAR" and node.value.for_let and not tr.has_value(node)


def _number(pattern: int, dtype) -> Expr:
    """A byte's pattern in each byte."""
    return const(int.from_bytes(bytes([pattern]) * dtype.bytes, "little"), dtype)


def _shifted(e: Expr, by: int) -> Expr:
    return binary("SHR", e, const(by, e.dtype))


def _counted(e: Expr) -> Expr:
    """In pairs of bits, in fours, in bytes, and the sum of the bytes in the highest one."""
    pairs = e - binary("BIT_AND", _shifted(e, 1), _number(0x55, e.dtype))
    fours = binary("BIT_AND", pairs, _number(0x33, e.dtype)) + binary("BIT_AND", _shifted(pairs, 2), _number(0x33, e.dtype))
    in_bytes = binary("BIT_AND", fours + _shifted(fours, 4), _number(0x0F, e.dtype))
    return _shifted(in_bytes * _number(0x01, e.dtype), e.dtype.bits - 8)


def popcount(x):
    """How many bits of an integer are set.
    Shapes: a scalar. Dtypes: integers; the result is of the same. Targets: all. Errors: TypeError for another dtype."""
    return cast(_counted(_bits("popcount", x)), as_expr(x).dtype)


def clz(x):
    """How many bits above the highest one that is set are not set; all bits of 0.
    Shapes: a scalar. Dtypes: integers; the result is int32. Targets: all. Errors: TypeError for another dtype."""
    below, by = _bits("clz", x), 1
    width = below.dtype.bits
    while by < width:  # sets all bits below the highest
        below, by = binary("BIT_OR", below, _shifted(below, by)), by * 2
    return as_expr(x).dtype.bits - cast(_counted(below), int32)


def __ffs(x):
    """The number of the lowest bit that is set, counted from 1; 0 of 0.
    Shapes: a scalar. Dtypes: integers; the result is int32. Targets: all. Errors: TypeError for another dtype."""
    e = _bits("__ffs", x)
    up_to_it = binary("BIT_XOR", e, e - const(1, e.dtype))
    return select(binary("EQ", e, const(0, e.dtype)), const(0, int32), cast(_counted(up_to_it), int32))


def __fns(mask, base, offset):
    """The number, counted from 0, of the bit that is the ``offset``-th set one from bit ``base`` on, upward, or downward for a negative ``offset``.
    With an ``offset`` of 0 it is ``base`` where that bit is set. 0xFFFFFFFF where there is none.
    Shapes: scalars. Dtypes: ``mask`` of up to 32 bits, a Python int from 0 on as uint32, and integers; the result is uint32. Targets: all. Errors:
    TypeError for another dtype. TraceError for a ``mask`` of 64 bits, and outside of a traced function."""
    if isinstance(mask, numbers.Integral) and not isinstance(mask, bool) and 0 <= mask < 1 << 32:
        mask = const(int(mask), uint32)
    e, base, offset = _bits("__fns", mask), cast(base, int32), cast(offset, int32)
    if e.dtype.bits > 32:
        raise error("T.__fns of a mask of 64 bits: it takes 32")
    distance = select(binary("LT", offset, 0), -offset, offset)
    found = variable(uint32, "found", 0xFFFFFFFF)
    left = variable(int32, "left", select(binary("EQ", offset, 0), 1, distance))
    last = select(binary("EQ", offset, 0), 1, 32)
    for i in serial(last):
        place = base + select(binary("LT", offset, 0), -i, i)
        inside = (place >= 0) & (place < 32)
        bit = binary("BIT_AND", binary("SHR", e, cast(select(inside, place, 0), uint32)), const(1, uint32))
        branch = Branch(inside & binary("NE", bit, const(0, uint32)))
        branch.then_()
        with branch.then_block():
            left.store(left.as_scalar() - 1)
            found.store(select(binary("EQ", left.as_scalar(), 0), cast(place, uint32), found.as_scalar()))
    return found.as_scalar()


__all__ = ["__ffs", "__fns", "clz", "popcount"]
