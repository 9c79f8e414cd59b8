# SPDX-License-Identifier: Apache-2.0
"""``tl.dot_scaled``: products of blocks in the formats of OCP Microscaling (MX) 1.0, section 5: elements of 4, 8 or 16 bits, and for each group
of neighbours along K a power of two of 8 bits. They are computed in bfloat16, or in float16 where an operand is of that type."""

from __future__ import annotations

from . import types as ty
from .build import describe
from .builtin import builtin
from .errors import Refusal
from .graph import Value
from .reductions import dot

_FORMATS = {"e4m3": (ty.float8e4nv, ty.uint8), "e5m2": (ty.float8e5, ty.uint8), "bf16": (ty.bfloat16, ty.uint16), "fp16": (ty.float16, ty.uint16)}


@builtin
def dot_scaled(b, lhs, lhs_scale, lhs_format, rhs, rhs_scale, rhs_format, acc=None, fast_math=False, lhs_k_pack=True, rhs_k_pack=True,
               out_dtype=ty.float32):
    """Scales have the shapes [M, K / group] and [N, K / group]. ``lhs_k_pack``: pairs of 4 bits are neighbours along K, and not along M; the
    first has the lower bits. A scale of 255 is not a number, with ``fast_math`` too."""
    if out_dtype is not ty.float32:
        raise Refusal(f"out_dtype={describe(out_dtype)} of tl.dot_scaled; its products are float32")
    x, y = b.value(lhs, "the first operand of tl.dot_scaled"), b.value(rhs, "the second operand of tl.dot_scaled")
    if x.rank != y.rank or x.rank < 2:
        raise Refusal(f"tl.dot_scaled of {describe(x)} and {describe(y)}; blocks of two dimensions are needed")
    rank, compute = x.rank, ty.float16 if "fp16" in (lhs_format, rhs_format) else ty.bfloat16
    x = _elements(b, x, lhs_format, rank - 1 if lhs_k_pack else rank - 2)
    y = _elements(b, y, rhs_format, rank - 2 if rhs_k_pack else rank - 1)
    groups = [k // s.shape[-1] for s, k in ((lhs_scale, x.shape[-1]), (rhs_scale, y.shape[-2])) if isinstance(s, Value) and s.shape]
    if len(set(groups)) > 1:
        raise Refusal(f"Operands must have the same scale factor; (lhs: {groups[0]} vs rhs: {groups[1]})")
    x = _scaled(b, x, lhs_scale, compute)
    turned = (*range(rank - 2), rank - 1, rank - 2)
    y = _scaled(b, b.permute(y, turned), rhs_scale, compute)
    return dot.run(b, x, b.permute(y, turned), acc, out_dtype=out_dtype)


def _elements(b, x: Value, form: str, packed: int) -> Value:
    """As floats. ``packed``: the dimension along which pairs of 4 bits are neighbours."""
    if form == "e2m1":
        return _of_4_bits(b, x, packed)
    if form not in _FORMATS:
        raise Refusal(f"the format {describe(form)} of tl.dot_scaled; known are e2m1, {', '.join(_FORMATS)}")
    element, bits = _FORMATS[form]
    if x.element not in (element, bits):
        raise Refusal(f"tl.dot_scaled is given {describe(x)} for the format {form}; {element} or {bits} is needed")
    return b.cast(x, element, bitcast=True)


def _of_4_bits(b, x: Value, axis: int) -> Value:
    """A sign, two digits of exponent, one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6. With the last three at the place where float16 has the end of
    its exponent and the beginning of its mantissa, they are a float16, 2^14 times too small."""
    if x.element is not ty.uint8:
        raise Refusal(f"tl.dot_scaled is given {describe(x)} for the format e2m1; uint8 with two elements each is needed")
    extent = 2 * x.shape[axis]
    pairs = b.cast(b.along(x, axis, extent, lambda i: b.binary("//", i, 2)), ty.int16)
    place = b.binary("%", b.arange(extent, axis, x.rank), 2)
    first = b.binary("<<", pairs, b.cast(b.binary("-", 12, b.binary("*", place, 4)), ty.int16))  # its four bits are the upper ones
    half = b.cast(b.binary("&", b.binary(">>", first, 3), -0x7200), ty.float16, bitcast=True)
    return b.binary("*", b.cast(half, ty.float32), 2.0**14)


def _scaled(b, x: Value, scale, compute) -> Value:
    """``scale``: of groups along the last dimension."""
    if scale is None:
        return b.cast(x, compute)
    scale = b.value(scale, "a scale of tl.dot_scaled")
    extent = x.shape[-1]
    if scale.element is not ty.uint8 or scale.rank != x.rank or scale.shape[:-1] != x.shape[:-1] or extent % scale.shape[-1]:
        raise Refusal(f"a scale of tl.dot_scaled is {describe(scale)}; uint8 of shape {[*x.shape[:-1], 'K / group']} is needed, where K is {extent}")
    exponent = b.cast(scale, ty.int32)
    bits = b.select(b.binary("==", exponent, 0), 1 << 22, b.binary("<<", exponent, 23))
    bits = b.select(b.binary("==", exponent, 255), 0x7FC00000, bits)
    power = b.expand(b.cast(bits, ty.float32, bitcast=True), x.rank)
    group = extent // scale.shape[-1]
    power = b.reshape(b.broadcast_to(power, (*scale.shape, group)), x.shape)
    return b.cast(b.binary("*", b.cast(x, ty.float32), power), compute)
