# SPDX-License-Identifier: Apache-2.0
"""What combines elements of blocks: reductions and products."""

from __future__ import annotations

import math

from . import types as ty
from .build import describe, is_number
from .builtin import Builtin, builtin, no_effect
from .driver import target_of
from .errors import Refusal
from .graph import Value
from .scans import place_of, reduced, together

_KINDS = {"ADD": "REDUCE_SUM", "MAX": "REDUCE_MAX", "MIN": "REDUCE_MIN", "BIT_AND": "REDUCE_BIT_AND", "BIT_OR": "REDUCE_BIT_OR",
          "BIT_XOR": "REDUCE_BIT_XOR"}


def _block(b, x, what: str):
    x = b.value(x, f"the argument of {what}")
    if not x.shape:
        raise Refusal(f"{what} of a scalar; it takes a block")
    return x


def _axes(x, axis, what: str) -> list:
    if axis is None:
        return list(range(x.rank))
    if isinstance(axis, bool) or not isinstance(axis, int) or not -x.rank <= axis < x.rank:
        raise Refusal(f"{what} along axis {describe(axis)} of {describe(x)}")
    return [axis % x.rank]


def combined(b, x, axis, fn: str, keep_dims: bool, what: str):
    """The elements of a block along an axis, or all of them, combined by a function of the tile language."""
    x = _block(b, x, what)
    for one in reversed(_axes(x, axis, what)):
        shape = x.shape[:one] + x.shape[one + 1 :]
        result = _along(b, x, one, shape, _KINDS[fn])
        x = (b.expand(result, one) if shape else b.broadcast_to(result, (1,))) if keep_dims else result
    return x


def _along(b, x, axis: int, shape: tuple, kind: str) -> Value:
    """``shape``: without that dimension. Of more dimensions than a buffer has, those before it and those behind it are made one."""
    if x.rank <= 8:
        return b.emit("tt.reduce", [x], [(x.element, shape)], kind=kind, axis=axis).result
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    x = b.reshape(x, (outer, x.shape[axis], inner))
    return b.reshape(b.emit("tt.reduce", [x], [(x.element, (outer, inner))], kind=kind, axis=1).result, shape)


def _widened(b, x, dtype, what: str):
    """Of integers narrower than 32 bits, sums are of 32."""
    x = _block(b, x, what)
    if dtype is None and x.element.is_int() and x.element.primitive_bitwidth < 32:
        dtype = ty.int32 if x.element.is_int_signed() else ty.uint32
    return x if dtype is None else b.cast(x, dtype)


@builtin
def sum(b, input, axis=None, keep_dims=False, dtype=None):
    if dtype is ty.int1:  # of one bit: whether the count is odd
        odd = xor_sum.run(b, b.cast(b.condition(_block(b, input, "tl.sum")), ty.int32), axis, keep_dims)
        return b.condition(odd)
    return combined(b, _widened(b, input, dtype, "tl.sum"), axis, "ADD", keep_dims, "tl.sum")


@builtin
def xor_sum(b, input, axis=None, keep_dims=False):
    return combined(b, _integers(b, input, "tl.xor_sum"), axis, "BIT_XOR", keep_dims, "tl.xor_sum")


@builtin
def reduce_or(b, input, axis, keep_dims=False):
    return combined(b, _integers(b, input, "tl.reduce_or"), axis, "BIT_OR", keep_dims, "tl.reduce_or")


def _integers(b, x, what):
    x = _block(b, x, what)
    if not x.element.is_int():
        raise Refusal(f"{what} takes integers, not {x.element}")
    return x


def _comparable(b, x, what: str):
    """bfloat16 is compared as float32, narrow integers as 32 bits."""
    x = _block(b, x, what)
    if x.element.is_bf16():
        return b.cast(x, ty.float32)
    if x.element.is_int() and x.element.primitive_bitwidth < 32:
        return b.cast(x, ty.int32)
    return x


def _extreme(fn: str, name: str):
    def function(b, input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
        given = _block(b, input, f"tl.{name}")
        x = _comparable(b, given, f"tl.{name}")
        if not return_indices:  # 32 bits, as in Triton
            wide = b.cast(x, ty.float32) if x.element.is_floating() and x.element.primitive_bitwidth < 32 else x
            return combined(b, wide, axis, fn, keep_dims, f"tl.{name}")
        best = combined(b, x, axis, fn, keep_dims, f"tl.{name}")
        best = b.cast(best, given.element) if given.element.is_int() else best
        return best, _place(b, x, axis, fn, keep_dims, f"tl.{name}")

    return Builtin(function, name)


max, min = _extreme("MAX", "max"), _extreme("MIN", "min")


def _place(b, x, axis, fn: str, keep_dims: bool, what: str):
    """The first index at which the extreme value stands."""
    if axis is None:
        if keep_dims:
            raise Refusal(f"{what} of all elements with keep_dims and indices; reshape the block to one dimension")
        x, axis = b.reshape(x, (x.numel,)), 0
    (axis,) = _axes(x, axis, what)
    best = combined(b, x, axis, fn, True, what)
    index = b.emit("tt.make_range", (), [(ty.int32, (x.shape[axis],))], start=0).result
    for d in range(x.rank):
        if d != axis:
            index = b.expand(index, d if d < axis else index.rank)
    found = b.select(b.binary("==", x, best), index, x.shape[axis] - 1)
    return combined(b, found, axis, "MIN", keep_dims, what)


def _argument(fn: str, name: str):
    def function(b, input, axis, tie_break_left=True, keep_dims=False):
        return _place(b, _comparable(b, input, f"tl.{name}"), axis, fn, keep_dims, f"tl.{name}")

    return Builtin(function, name)


argmax, argmin = _argument("MAX", "argmax"), _argument("MIN", "argmin")


@builtin
def reduce(b, input, axis, combine_fn, keep_dims=False):
    """Of several blocks at once, a function that takes the parts of two elements and returns those of one."""
    parts = together(b, input, "tl.reduce")
    several, rank = isinstance(input, (tuple, list)), parts[0].rank
    fn = None if several else b.combiner(combine_fn, parts[0].element)
    if fn is not None:
        return combined(b, parts[0], axis, fn, keep_dims, "tl.reduce")
    if axis is None:
        parts, axis = [b.reshape(x, (x.numel,)) for x in parts], 0
    else:
        rank = 0
    parts = reduced(b, parts, place_of(axis, parts[0].rank, "tl.reduce"), combine_fn, keep_dims, "tl.reduce")
    if keep_dims and rank:
        parts = [b.reshape(x, (1,) * rank) for x in parts]
    return tuple(parts) if several else parts[0]


@builtin
def softmax(b, x, dim=None, keep_dims=False, ieee_rounding=False):
    axis = 0 if dim is None else dim
    from .language import exp

    shifted = b.binary("-", x, combined(b, x, axis, "MAX", True, "tl.softmax"))
    parts = exp.run(b, shifted)
    return b.binary("/", parts, combined(b, parts, axis, "ADD", True, "tl.softmax"))


_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
_UPPER = -1 << 13  # the bits of a float32 that tf32 has


@builtin
def dot(b, input, other, acc=None, input_precision=None, allow_tf32=None, max_num_imprecise_acc=None, out_dtype=None):
    """``out_dtype``: that of ``acc`` where there is one, else float32."""
    if max_num_imprecise_acc is not None:
        no_effect(b, "tl.dot(max_num_imprecise_acc=…)", "Kiln adds eight-bit products in the precision of the result; leave it out")
    x, y = _block(b, input, "tl.dot"), _block(b, other, "tl.dot")
    if x.rank == y.rank > 3 and x.shape[:-2] == y.shape[:-2]:
        return _of_many(b, x, y, acc, {"input_precision": input_precision, "allow_tf32": allow_tf32, "out_dtype": out_dtype})
    if x.rank == 3 and y.rank == 3 and x.shape[0] == y.shape[0]:
        return _batched(b, x, y, acc, {"input_precision": input_precision, "allow_tf32": allow_tf32, "out_dtype": out_dtype})
    if x.rank != 2 or y.rank != 2:
        raise Refusal(f"tl.dot of {describe(x)} and {describe(y)}: it takes blocks of two dimensions, or of three whose first are equal")
    if x.shape[1] != y.shape[0]:
        raise Refusal(f"tl.dot of shapes {list(x.shape)} and {list(y.shape)}: the second dimension of the first must be the first of the second")
    if x.element is not y.element and not (x.element.is_fp8() and y.element.is_fp8()):
        raise Refusal(f"tl.dot of {x.element} and {y.element}; cast one of them with .to(…)")
    precision = input_precision or {None: "tf32", True: "tf32", False: "ieee"}[allow_tf32]
    if precision not in _PRECISIONS:
        raise Refusal(f"input_precision={describe(input_precision)}; known: {', '.join(_PRECISIONS)}")
    if out_dtype is None:
        out_dtype = acc.element if isinstance(acc, Value) else ty.float32
    element = _result_type(x.element, out_dtype)
    shape = (x.shape[0], y.shape[1])
    if acc is None:
        acc = b.broadcast_to(b.constant(0, element), shape)
    elif is_number(acc):
        acc = b.broadcast_to(b.constant(acc, element), shape)
    if acc.element is not element or acc.shape != shape:
        raise Refusal(f"the acc of tl.dot is {describe(acc)}; {list(shape)} of {element} is needed")
    if precision == "tf32x3" and x.element is ty.float32 and _has_tf32(b):
        return _of_parts(b, x, y, acc)
    return b.emit("tt.dot", [x, y, acc], [(element, shape)], precision=precision).result


def _has_tf32(b) -> bool:
    """Whether the tensor unit of the target takes tf32; else one product of float32 is faster than three."""
    gpu = target_of(b.target)
    return gpu.backend == "cuda" and gpu.arch >= 80


def _of_parts(b, x, y, acc):
    """A product of float32 by three of tf32: of the upper parts of both, and of the upper part of each with what is left of the other. As in
    Triton, to the latter two infinities, whose rest is a NaN, give nothing."""
    def product(one, other, total):
        return b.emit("tt.dot", [one, other, total], [(ty.float32, acc.shape)], precision="tf32").result

    upper = [b.cast(b.binary("&", b.cast(v, ty.int32, bitcast=True), _UPPER), ty.float32, bitcast=True) for v in (x, y)]
    lower = [b.binary("-", v, part) for v, part in zip((x, y), upper)]
    zero = b.broadcast_to(b.constant(0, ty.float32), acc.shape)
    rest = product(upper[0], lower[1], product(lower[0], upper[1], zero))
    rest = b.select(b.binary("!=", rest, rest), zero, rest)
    return b.binary("+", product(*upper, rest), acc)


def _of_many(b, x, y, acc, how: dict):
    """Products of blocks of more than three dimensions, of which those before the last two are made one."""
    batches = x.shape[:-2]
    x, y = (b.reshape(v, (math.prod(batches), *v.shape[-2:])) for v in (x, y))
    acc = b.reshape(acc, (x.shape[0], *acc.shape[-2:])) if isinstance(acc, Value) else acc
    result = dot.run(b, x, y, acc, **how)
    return b.reshape(result, (*batches, *result.shape[-2:]))


def _batched(b, x, y, acc, how: dict):
    """Products one by one, each put into its place."""
    result = None
    for i in range(x.shape[0]):
        before = acc if acc is None or is_number(acc) else b.part(acc, 0, i)
        one = dot.run(b, b.part(x, 0, i), b.part(y, 0, i), before, **how)
        here = b.binary("==", b.arange(x.shape[0], 0, 3), i)
        zero = b.broadcast_to(b.constant(0, one.element), (x.shape[0], *one.shape)) if result is None else result
        result = b.select(here, b.expand(one, 0), zero)
    return result


def _result_type(operand, wanted):
    if operand.is_int():
        if operand not in (ty.int8, ty.uint8):
            raise Refusal(f"tl.dot of {operand}; integer products take int8")
        return ty.int32
    if not isinstance(wanted, ty.dtype) or wanted not in (ty.float32, ty.float16, ty.float64):
        raise Refusal(f"out_dtype={describe(wanted)} of tl.dot; use tl.float32, or tl.float16 for operands of 16 or 8 bits, and cast the result")
    if operand in (ty.float32, ty.bfloat16, ty.float64):  # whose products have one type
        return ty.float64 if operand.is_fp64() else ty.float32
    return wanted
