# SPDX-License-Identifier: Apache-2.0
"""``triton.language`` as kernels know it: creation, memory, shapes and arithmetic. ``reductions`` has what combines elements, ``absent`` the
names that Kiln does not have."""

from __future__ import annotations

import builtins as _python
import sys as _sys
from importlib import import_module as _import_module

from . import blocks as _blocks
from . import types as _ty
from .absent import NAMES as _ABSENT
from .build import describe as _describe, is_number as _is_number, meet as _meet
from .blocks import (  # noqa: F401
    Descriptor as tensor_descriptor, advance, load_tensor_descriptor, make_block_ptr, make_tensor_descriptor, store_tensor_descriptor)
from .builtin import Absent as _Absent, Builtin as _Builtin, builtin as _builtin, constexpr, no_effect as _no_effect  # noqa: F401
from .errors import FailedAssertion as _FailedAssertion, Refusal as _Refusal
from .graph import Value as tensor
from .shapes import (  # noqa: F401
    broadcast, broadcast_to, expand_dims, integer_of as _integer, item, permute, ravel, reshape, shape_of as _shape, squeeze, trans, unsqueeze, view)
from .types import (  # noqa: F401
    bfloat16, block_type, dtype, float16, float32, float64, float8e4b8, float8e4nv, float8e5, float8e5b16, int1, int8, int16, int32, int64,
    pi32_t, pointer_type, str_to_ty, uint8, uint16, uint32, uint64)

_INFERRED = "which cache keeps what is inferred; leave it out"


def _dtype(x, what: str) -> dtype:
    if not isinstance(x, dtype):
        raise _Refusal(f"{what} needs an element type such as tl.float32, not {_describe(x)}")
    return x


# Programs and creation.


@_builtin
def program_id(b, axis):
    return b.emit("tt.get_program_id", (), [(int32, ())], axis=_axis(axis, "program_id")).result


@_builtin
def num_programs(b, axis):
    return b.emit("tt.get_num_programs", (), [(int32, ())], axis=_axis(axis, "num_programs")).result


def _axis(axis, name: str) -> int:
    if axis not in (0, 1, 2):
        raise _Refusal(f"{name} axis must be 0, 1, or 2 but got {_describe(axis)}")
    return axis


@_builtin
def arange(b, start, end):
    first, last = _integer(start, "the start of tl.arange"), _integer(end, "the end of tl.arange")
    shape = _shape((last - first,), "tl.arange")
    return b.emit("tt.make_range", (), [(int32, shape)], start=first).result


@_builtin
def full(b, shape, value, dtype):
    shape, element = _shape(shape, "tl.full"), _dtype(dtype, "tl.full")
    scalar = b.constant(value, element) if _is_number(value) else b.cast(value, element)
    if scalar.shape:
        raise _Refusal(f"tl.full takes a scalar, not {_describe(scalar)}")
    return b.broadcast_to(scalar, shape)


@_builtin
def zeros(b, shape, dtype):
    return full.run(b, shape, 0, dtype)


@_builtin
def zeros_like(b, input):
    return full.run(b, input.shape, 0, input.element) if input.shape else b.constant(0, input.element)


# Memory.


def _address(b, pointer, what: str):
    pointer = b.value(pointer, f"the first argument of {what}")
    if not pointer.element.is_ptr():
        raise _Refusal(f"{what} takes a pointer or a block of pointers, not {_describe(pointer)}; a tensor's pointer is the kernel's argument")
    return pointer


def _caches(b, what, **given):
    for name, value in given.items():
        if value:
            _no_effect(b, f"{what}({name}={value!r})", _INFERRED)


@_builtin
def load(b, pointer, mask=None, other=None, boundary_check=(), padding_option="", cache_modifier="", eviction_policy="", volatile=False):
    if isinstance(pointer, _blocks.BlockPointer):
        if volatile:
            raise _Refusal("tl.load(volatile=True) of a block pointer; add offsets to the pointer itself")
        if mask is not None or other is not None:
            raise _Refusal("tl.load of a block pointer takes boundary_check= and padding_option=, no mask= and other=")
        _caches(b, "tl.load", cache_modifier=cache_modifier, eviction_policy=eviction_policy)
        return _blocks.load_block(b, pointer, boundary_check, padding_option)
    pointer = _address(b, pointer, "tl.load")
    if boundary_check or padding_option:
        raise _Refusal("boundary_check and padding_option belong to block pointers (tl.make_block_ptr); use mask= and other=")
    if other is not None and mask is None:
        raise _Refusal("tl.load with other= needs mask=, which says where other is taken")
    _caches(b, "tl.load", cache_modifier=cache_modifier, eviction_policy=eviction_policy)
    element = pointer.element.element_ty
    operands = [pointer]
    if mask is not None:
        _wider(pointer, mask, None, "a mask of a block is given with")
        operands.append(b.condition(mask))
    if other is not None:
        operands.append(b.constant(other, element) if _is_number(other) else b.cast(other, element))
    operands = b.together(*operands)
    if volatile:
        return _volatile(b, element, operands)
    return b.emit("tt.load", operands, [(element, operands[0].shape)]).result


def _volatile(b, element, operands: list):
    """Reads what other programs have stored meanwhile, each time anew."""
    if element.primitive_bitwidth < 16:
        raise _Refusal(f"tl.load(volatile=True) of {element}: what other programs store meanwhile is read in words of 16 bits and more")
    found = b.emit("tt.atomic_rmw", operands[:2], [(element, operands[0].shape)], kind="ATOMIC_LOAD", order="MEMORY_ORDER_RELAXED", values=0).result
    return found if len(operands) < 3 else b.select(operands[1], found, operands[2])


@_builtin
def store(b, pointer, value, mask=None, boundary_check=(), cache_modifier="", eviction_policy=""):
    if isinstance(pointer, _blocks.BlockPointer):
        if mask is not None:
            raise _Refusal("tl.store to a block pointer takes boundary_check=, no mask=")
        _caches(b, "tl.store", cache_modifier=cache_modifier, eviction_policy=eviction_policy)
        return _blocks.store_block(b, pointer, value, boundary_check)
    pointer = _address(b, pointer, "tl.store")
    if boundary_check:
        raise _Refusal("boundary_check belongs to block pointers (tl.make_block_ptr); use mask=")
    if pointer.element.is_const:
        raise _Refusal("Cannot store to a constant pointer, one that is annotated tl.const")
    _caches(b, "tl.store", cache_modifier=cache_modifier, eviction_policy=eviction_policy)
    element = pointer.element.element_ty
    given = b.value(value)
    value = b.constant(value, element) if _is_number(value) and not (element.is_int() and isinstance(value, float)) else b.cast(given, element)
    operands = [b.broadcast_to(pointer, _wider(pointer, value, mask)), value]
    if mask is not None:
        operands.append(b.condition(mask))
    operands = [b.broadcast_to(x, operands[0].shape) for x in operands]
    b.emit("tt.store", operands)


_ORDERS = {None: "ACQ_REL", "acq_rel": "ACQ_REL", "relaxed": "RELAXED", "acquire": "ACQUIRE", "release": "RELEASE"}


def _atomic_parts(b, name: str, pointer, values: list, mask, sem, scope, fits) -> tuple:
    """(the operands, the order) of an atomic operation. ``fits``: whether it takes elements of a type."""
    pointer = _address(b, pointer, f"tl.{name}")
    if sem not in _ORDERS or scope not in (None, "gpu", "cta", "sys"):
        raise _Refusal(f"tl.{name}(sem={sem!r}, scope={scope!r}): known are relaxed, acquire, release, acq_rel; cta, gpu, sys")
    if scope == "sys":
        raise _Refusal(f"tl.{name}(scope=\"sys\"): Kiln's atomics are those of one device")
    element = pointer.element.element_ty
    if not fits(element):
        raise _Refusal(f"tl.{name} to {element}; store each program's result, and combine them in a second kernel")
    values = [b.constant(x, element) if _is_number(x) and (element.is_floating() or isinstance(x, int)) else b.cast(x, element) for x in values]
    operands = [pointer, *(b.broadcast_to(x, _wider(pointer, x, mask)) for x in values)]
    if mask is not None:
        operands.append(b.broadcast_to(b.condition(mask), pointer.shape))
    return operands, "MEMORY_ORDER_" + _ORDERS[sem]


def _atomic(name: str, kind: str, fits):
    def function(b, pointer, val, mask=None, sem=None, scope=None):
        operands, order = _atomic_parts(b, name, pointer, [val], mask, sem, scope, fits)
        return b.emit("tt.atomic_rmw", operands, [(operands[0].element.element_ty, operands[0].shape)], kind=kind, order=order, values=1).result

    return _Builtin(function, name)


def _words(element) -> bool:
    return element.primitive_bitwidth >= 32


def _addable(element) -> bool:
    return _words(element) or element in (float16, bfloat16)


atomic_add = _atomic("atomic_add", "ATOMIC_ADD", _addable)
atomic_max, atomic_min = _atomic("atomic_max", "ATOMIC_MAX", _words), _atomic("atomic_min", "ATOMIC_MIN", _words)
atomic_and, atomic_or, atomic_xor = (_atomic(f"atomic_{fn}", f"ATOMIC_BIT_{fn.upper()}", lambda element: element.is_int() and _words(element))
                                     for fn in ("and", "or", "xor"))
atomic_xchg = _atomic("atomic_xchg", "ATOMIC_EXCHANGE", lambda element: element.primitive_bitwidth >= 16)


@_builtin
def atomic_cas(b, pointer, cmp, val, sem=None, scope=None):
    operands, order = _atomic_parts(b, "atomic_cas", pointer, [cmp, val], None, sem, scope, lambda element: element.primitive_bitwidth >= 16)
    return b.emit("tt.atomic_rmw", operands, [(operands[0].element.element_ty, operands[0].shape)], kind="ATOMIC_COMPARE_EXCHANGE", order=order,
                  values=2).result


def _wider(pointer, value, mask, what: str = "a block is stored to") -> tuple:
    """The shape of an access. One pointer takes one value."""
    parts = [x for x in (value, mask) if isinstance(x, tensor)]
    if not pointer.shape and any(part.shape for part in parts):
        raise _Refusal(f"{what} a single pointer; add offsets to it, as pointer + tl.arange(0, BLOCK)")
    return pointer.shape


# Types and arithmetic.


@_builtin
def cast(b, input, dtype, fp_downcast_rounding=None, bitcast=False):
    if isinstance(dtype, _Absent):
        raise dtype.refusal()
    dtype = dtype.element_ty if isinstance(dtype, block_type) else dtype
    if not isinstance(dtype, (_ty.dtype, pointer_type)):
        raise _Refusal(f"a cast needs an element type such as tl.float32, not {_describe(dtype)}")
    if fp_downcast_rounding is not None:
        return _rounded(b, b.value(input), dtype, fp_downcast_rounding)
    return b.constant(input, dtype) if _is_number(input) and not bitcast and dtype.is_floating() else b.cast(input, dtype, bitcast)


def _rounded(b, x, element, how: str):
    """To a narrower float: to the nearest, "rtne", or towards zero, "rtz". Nothing is rounded to its own type."""
    if how not in ("rtne", "rtz"):
        raise _Refusal(f"fp_downcast_rounding={how!r}; known are \"rtne\" and \"rtz\"")
    if x.element == element:
        return x
    if not x.element.is_floating() or not element.is_floating() or element.primitive_bitwidth >= x.element.primitive_bitwidth:
        raise _Refusal(f"fp_downcast_rounding should be set only for truncating fp conversions, and this is one of {x.element} to {element}")
    nearest = b.cast(x, element)
    if how == "rtne":
        return nearest
    word = getattr(_ty, f"int{element.primitive_bitwidth}")
    beyond = b.binary(">", abs.run(b, b.cast(nearest, x.element)), abs.run(b, x))  # the number before it has bits that are one less
    bits = b.cast(nearest, word, bitcast=True)
    return b.cast(b.select(beyond, b.binary("-", bits, 1), bits), element, bitcast=True)


@_builtin
def where(b, condition, x, y):
    return b.select(condition, x, y)


def _operation(name: str, op: str):
    def function(b, x, y, sanitize_overflow=True):
        return b.binary(op, x, y)

    return _Builtin(function, name)


add, sub, mul = (_operation(name, op) for name, op in (("add", "+"), ("sub", "-"), ("mul", "*")))


class PropagateNan:
    """Whether a NaN operand of tl.maximum and its like is the result."""

    NONE, ALL = "none", "all"


def _comparable(b, x):
    """An operand of tl.maximum and its like: a number has its own type here, whatever it meets, and bfloat16 is widened first."""
    x = b.value(x)
    return b.cast(x, float32) if x.element.is_bf16() else x


def _extreme(fn: str):
    def function(b, x, y, propagate_nan=PropagateNan.NONE):
        if _is_number(x) and _is_number(y):
            return (_python.max if fn == "MAX" else _python.min)(x, y)
        x, y = b.pair(_comparable(b, x), _comparable(b, y))
        result = b.apply(fn, x, y)
        if propagate_nan == PropagateNan.ALL and result.element.is_floating():
            for side in (x, y):
                result = b.select(b.binary("!=", side, side), side, result)
        return result

    return _Builtin(function, {"MAX": "maximum", "MIN": "minimum"}[fn])


maximum, minimum = _extreme("MAX"), _extreme("MIN")


@_builtin
def clamp(b, x, min, max, propagate_nan=PropagateNan.NONE):
    if not (_is_number(x) and _is_number(min) and _is_number(max)):
        min, max = b.pair(_comparable(b, min), _comparable(b, max))
    return minimum.run(b, maximum.run(b, x, min, propagate_nan), max, propagate_nan)


@_builtin
def abs(b, x):
    x = b.value(x)
    return x if x.element.is_int_unsigned() else b.unary("ABS", x)


def _function(name: str, fn: str, of_float32: str = ""):
    def function(b, x):
        x = b.value(x, f"the argument of tl.{name}")
        if x.element not in (float32, float64):
            raise _Refusal(f"Expected dtype fp32 or fp64 but got {x.element} in tl.{name}; write tl.{name}(x.to(tl.float32))")
        return b.unary(of_float32 or fn if x.element is float32 else fn, x)

    return _Builtin(function, name)


_exp, _exp2, log, log2, sin, cos, sqrt, sqrt_rn, rsqrt, erf, floor, ceil = (_function(name, fn) for name, fn in (
    ("exp", "EXP"), ("exp2", "EXP2"), ("log", "LOG"), ("log2", "LOG2"), ("sin", "SIN"), ("cos", "COS"), ("sqrt", "SQRT"), ("sqrt_rn", "SQRT"),
    ("rsqrt", "RSQRT"), ("erf", "ERF"), ("floor", "FLOOR"), ("ceil", "CEIL")))


@_builtin
def exp(b, x):
    """As Triton's: of float32 by one product and exp2, so that errors grow with the size of x. libdevice.exp has none that large."""
    x = b.value(x, "the argument of tl.exp")
    return _exp2.run(b, b.binary("*", x, 1.4426950408889634)) if x.element is float32 else _exp.run(b, x)


exp2 = _function("exp2", "EXP2", "EXP2_FTZ")  # as Triton's: subnormal results may be zero
_tanh, _trunc, _rint = _function("tanh", "TANH"), _function("trunc", "TRUNC"), _function("rint", "ROUND")  # of libdevice

def _of_two(name: str, fn: str):
    def function(b, x, y):
        x, y = b.pair(x, y)
        if x.element not in (float32, float64):
            raise _Refusal(f"{name} takes float32 or float64, not {x.element}")
        return b.apply(fn, x, y)

    return _Builtin(function, name)


_pow, _fmod = _of_two("pow", "POW"), _of_two("fmod", "MOD")


@_builtin
def _isnan(b, x):
    x = b.value(x)
    return b.binary("!=", x, x)


@_builtin
def fma(b, x, y, z):
    x, y, z = (b.value(v) for v in (x, y, z))
    element = _meet(_meet(x.element, False, y.element, False), False, z.element, False)
    x, y, z = b.together(*(b.cast(v, element) for v in (x, y, z)))
    if not element.is_floating():
        return b.binary("+", b.binary("*", x, y), z)
    return b.emit("math.fma", [x, y, z], [(element, x.shape)]).result


@_builtin
def umulhi(b, x, y):
    """The upper half of a product of integers of 32 or 64 bits, whose bits count as numbers without a sign."""
    x, y = b.pair(b.value(x), b.value(y))
    element, bits = x.element, x.element.primitive_bitwidth
    if not element.is_int() or bits < 32:
        raise _Refusal(f"tl.umulhi takes integers of 32 or 64 bits, not {element}")
    if bits == 32:
        x, y = (b.cast(b.cast(v, uint32), uint64) for v in (x, y))
        return b.cast(b.binary(">>", b.binary("*", x, y), 32), element)
    parts = [(b.binary("&", v, 0xFFFFFFFF), b.binary(">>", v, 32)) for v in (b.cast(x, uint64), b.cast(y, uint64))]
    (x0, x1), (y0, y1) = parts
    middle = b.binary("+", b.binary("*", x1, y0), b.binary(">>", b.binary("*", x0, y0), 32))
    lower = b.binary("+", b.binary("*", x0, y1), b.binary("&", middle, 0xFFFFFFFF))
    high = b.binary("+", b.binary("+", b.binary("*", x1, y1), b.binary(">>", middle, 32)), b.binary(">>", lower, 32))
    return b.cast(high, element)


@_builtin
def _mulhi(b, x, y):
    """Of libdevice: with the signs, where the integers have some."""
    x, y = b.pair(x, y)
    high = umulhi.run(b, x, y)
    if x.element.is_int_signed():  # as numbers without a sign, the negative ones were too large by 2^bits
        for one, other in ((x, y), (y, x)):
            high = b.binary("-", high, b.select(b.binary("<", one, 0), other, b.constant(0, other.element)))
    return high


@_builtin
def fdiv(b, x, y, ieee_rounding=False):
    x, y = b.pair(x, y)
    if not x.element.is_floating():
        raise _Refusal("tl.fdiv takes floats; write x / y, or x // y for integers")
    return b.apply("DIV" if ieee_rounding or x.element is float64 else "DIV_FULL", x, y)


@_builtin
def div_rn(b, x, y):
    return fdiv.run(b, x, y, True)


@_builtin
def sigmoid(b, x):
    x = b.value(x)
    if x.element not in (float32, float64):
        raise _Refusal(f"Expected dtype fp32 or fp64 but got {x.element} in tl.sigmoid; write tl.sigmoid(x.to(tl.float32))")
    return b.unary("SIGMOID", x)


@_builtin
def cdiv(b, x, div):
    if _is_number(x) and _is_number(div):
        return (x + div - 1) // div
    return b.binary("//", b.binary("+", x, b.binary("-", div, 1)), div)


# Promises and messages.


@_builtin
def multiple_of(b, input, values):
    """A promise. Of a scalar number the compiler uses it."""
    input = b.value(input)
    value = values[0] if isinstance(values, (tuple, list)) and len(values) == 1 else values
    if input.element.is_ptr():
        _no_effect(b, "tl.multiple_of of pointers", "alignment is found in the arithmetic of addresses; promise it of the numbers that are added")
    elif not input.shape and isinstance(value, int):
        assume.run(b, b.binary("==", b.binary("%", input, value), 0))
    return input


@_builtin
def max_contiguous(b, input, values):
    """A promise that Kiln does not need: it finds runs of neighbours in the addresses themselves."""
    return input


@_builtin
def max_constancy(b, input, values):
    """As tl.max_contiguous."""
    return input


@_builtin
def assume(b, cond):
    cond = b.value(cond)
    if cond.shape:
        raise _Refusal("tl.assume takes a scalar")
    b.emit("llvm.intr.assume", [b.condition(cond)])


@_builtin
def debug_barrier(b):
    b.emit("gpu.barrier", ())


@_builtin
def static_assert(b, cond, msg=""):
    if isinstance(cond, tensor):
        raise _Refusal("tl.static_assert needs a condition that is known when the kernel is compiled")
    if not cond:
        raise _FailedAssertion(f"static assertion failed{': ' + str(msg) if msg else ''}")


@_builtin
def static_print(b, *values, sep=" ", end="\n", file=None, flush=False):
    print(*values, sep=sep, end=end, file=file, flush=flush)


class range:
    """``for i in tl.range(n)``; ``num_stages`` says how many iterations' loads are under way at one time."""

    def __init__(self, arg1, arg2=None, step=None, num_stages=None, loop_unroll_factor=None, disallow_acc_multi_buffer=False, flatten=False,
                 warp_specialize=False, disable_licm=False):
        self.bounds = (0, arg1) if arg2 is None else (arg1, arg2)
        self.step, self.num_stages = 1 if step is None else step, num_stages
        self.hints = {"loop_unroll_factor": loop_unroll_factor, "disallow_acc_multi_buffer": disallow_acc_multi_buffer, "flatten": flatten,
                      "warp_specialize": warp_specialize, "disable_licm": disable_licm}


class static_range:
    """``for i in tl.static_range(n)``: the body is written out for each value, which is known in it."""

    def __init__(self, arg1, arg2=None, step=None):
        bounds = (0, arg1) if arg2 is None else (arg1, arg2)
        self.values = range_(*(_integer(x, "a bound of tl.static_range") for x in (*bounds, 1 if step is None else step)))


range_ = _python.range


tuple = _python.tuple  # of a kernel's values, as (a, b)


@_builtin
def condition(b, arg1, disable_licm=False):
    """``while tl.condition(x)``."""
    if disable_licm:
        _no_effect(b, "tl.condition(disable_licm=True)", "what a loop does not change is found by the compiler; leave it out")
    return arg1


constexpr_type = constexpr


class const:
    """The annotation of a pointer that the kernel only reads."""


ABSENT = {name: _Absent(name, instead) for name, instead in _ABSENT.items()}  # not global names here, for one is Python's "tuple"

from .reductions import argmax, argmin, dot, max, min, reduce, reduce_or, softmax, sum, xor_sum  # noqa: E402,F401
from .assembly import inline_asm_elementwise  # noqa: E402,F401
from .inner import _constexpr_to_value, _log2, _unwrap_if_constexpr, get_int_dtype  # noqa: E402,F401
from .mapped import map_elementwise  # noqa: E402,F401
from .messages import device_assert, device_print  # noqa: E402,F401
from .scaled import dot_scaled  # noqa: E402,F401
from .scans import associative_scan, cat, cumprod, cumsum, flip, gather, histogram, interleave, join, split  # noqa: E402,F401

CONSTEXPR_0 = constexpr(0)  # a default of functions in Triton's own library
math = _sys.modules[__name__]  # tl.math.exp is tl.exp
core = standard = math

# What is a method of values as well: x.sum(0), x.to(tl.float16).
METHODS = {name: globals()[name] for name in (
    "abs", "argmax", "argmin", "associative_scan", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or",
    "atomic_xchg", "atomic_xor", "broadcast_to", "cast", "cdiv", "ceil", "cos", "cumprod", "cumsum", "erf", "exp", "exp2", "expand_dims",
    "flip", "floor", "gather", "histogram", "item", "log", "log2", "max", "min", "permute", "ravel", "reduce", "reduce_or", "reshape",
    "rsqrt", "sigmoid", "sin", "softmax", "split", "sqrt", "sqrt_rn", "store", "sum", "trans", "view", "xor_sum")}
METHODS |= {"to": cast, "logical_and": _Builtin(lambda b, self, other: b.logical("AND", self, other), "logical_and"),
            "logical_or": _Builtin(lambda b, self, other: b.logical("OR", self, other), "logical_or")}
# Written in Triton's language (library.py), which is read when one of them is used.
_LIBRARY = ("philox", "philox_impl", "rand", "randn", "randint", "rand4x", "randn4x", "randint4x", "uint_to_uniform_float", "pair_uniform_to_normal",
            "sort", "topk", "bitonic_merge", "swizzle2d", "atomic_poll")
_LIBRARY_METHODS = ("sort", "topk", "atomic_poll")


def method(name: str):
    """What ``x.name`` calls with x, or None."""
    return METHODS.get(name) or (__getattr__(name) if name in _LIBRARY_METHODS else None)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _LIBRARY or name == "random":
        from . import library

        return library if name == "random" else getattr(library, name)
    if name in ("extra", "target_info"):
        return _import_module(f".{name}", __package__)
    if name in ABSENT:
        return ABSENT[name]
    raise AttributeError(f"triton.language.{name} is not part of Kiln's Triton front end")
