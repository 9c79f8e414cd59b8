# SPDX-License-Identifier: Apache-2.0
"""Operations on values, as Triton's language types them: promotion, broadcasting, pointer arithmetic. A Python number stays one while only
Python numbers meet, and takes the type of the value it meets where its kind is no higher."""

from __future__ import annotations

import contextlib
import math

from . import types as ty
from .errors import Refusal
from .graph import Block, Op, Value

MOST_ELEMENTS = 1 << 20
_PYTHON = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b, "//": lambda a, b: a // b,
    "%": lambda a, b: a % b, "**": lambda a, b: a**b, "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}
_COMPARISONS = {"==": "EQ", "!=": "NE", "<": "LT", "<=": "LE", ">": "GT", ">=": "GE"}
_BITS = {"&": "BIT_AND", "|": "BIT_OR", "^": "BIT_XOR", "<<": "SHL", ">>": "SHR"}
_ARITHMETIC = {"+": "ADD", "-": "SUB", "*": "MUL"}
_BOOL = {"ADD": "BIT_XOR", "SUB": "BIT_XOR", "MUL": "BIT_AND"}  # of one bit


def is_number(x) -> bool:
    return isinstance(x, (bool, int, float))


def type_of_number(x):
    """The type that a number of the program has where nothing else says one."""
    if isinstance(x, bool):
        return ty.int1
    if isinstance(x, int):
        for candidate in (ty.int32, ty.uint32, ty.int64, ty.uint64):
            low, high = candidate.range()
            if low <= x <= high:
                return candidate
        raise Refusal(f"the integer {x} needs more than 64 bits")
    size = abs(x)
    fits = size == 0 or math.isinf(size) or math.isnan(size) or 2.0**-126 <= size <= (2 - 2**-23) * 2.0**127
    return ty.float32 if fits else ty.float64


def meet_integers(a, b):
    """The type in which two integer types meet."""
    if a.is_int_signed() == b.is_int_signed():
        return a if a.primitive_bitwidth >= b.primitive_bitwidth else b
    unsigned, signed = (a, b) if not a.is_int_signed() else (b, a)
    return unsigned if unsigned.primitive_bitwidth >= signed.primitive_bitwidth else signed


def meet(a, a_number: bool, b, b_number: bool, division: bool = False):
    """The type in which two element types are computed. ``a_number``: a Python number's, which follows a value of no lower kind.
    ``division``: of / and %, which have no forms of 16 bits."""
    if a_number != b_number:
        number, value = (a, b) if a_number else (b, a)
        if number.kind <= value.kind:
            return ty.float32 if division and value in (ty.float16, ty.bfloat16) else value
    pair = (a, b)
    for wide in (ty.float64, ty.float32):
        if wide in pair:
            return wide
    if ty.float16 in pair:
        return ty.float32 if division else ty.float16
    if ty.bfloat16 in pair:
        return ty.bfloat16 if a is b and not division else ty.float32
    if a.is_fp8() and b.is_fp8():
        return a if a is b else ty.float16
    if a.is_floating() or b.is_floating():
        raise Refusal(f"{a} and {b} do not meet in a type of their own; cast one of them with .to(…)")
    if division and a.is_int_signed() != b.is_int_signed():
        raise Refusal(f"Cannot use // or % with {a} and {b} because they have different signedness; cast one of them with .to(…)")
    return meet_integers(a, b)


def meet_shapes(a: tuple, b: tuple) -> tuple:
    """The shape to which two shapes are broadcast, as numpy does."""
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
    if any(x != y and 1 not in (x, y) for x, y in zip(left, right)):
        raise Refusal(f"blocks of shapes {list(a)} and {list(b)} do not fit together: dimensions must be equal or 1")
    return tuple(max(x, y) for x, y in zip(left, right))


class Builder:
    """Appends operations to ``block``; ``line`` is that of the statement being read. ``target``: what the kernel is compiled for. ``debug``:
    whether assertions are checked."""

    def __init__(self, file: str, block: Block, num_warps: int = 4, target: str = "", debug: bool = False):
        self.file, self.block, self.num_warps, self.target, self.debug, self.line = file, block, num_warps, target, debug, 0
        self.sources: list = []  # what functions in other languages are made of, as globals are kept: (whose, "text", the text)
        self.body, self.views = block, {}  # views: {(an argument, a type of elements): a pointer to these in the same memory}

    @contextlib.contextmanager
    def within(self, block: Block):
        """Operations go to this block."""
        outer, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = outer

    def emit(self, name: str, operands, results=(), **attrs) -> Op:
        op = Op(name, operands, results, attrs, self.line, self.file, self.block)
        self.block.ops.append(op)
        return op

    # Values from numbers.

    def constant(self, number, element=None) -> Value:
        element = element or type_of_number(number)
        if element.is_int() and not element.is_bool():
            low, high = element.range()
            if isinstance(number, float):
                number = int(number)
            if not low <= number <= high:
                raise Refusal(f"Scalar {number} is out of range for type {element}, that of the value which it meets")
        return self.emit("arith.constant", (), [(element, ())], value=number).result

    def value(self, x, what: str = "this") -> Value:
        """``x`` as a value: a number gets a type of its own."""
        if isinstance(x, Value):
            return x
        if is_number(x):
            return self.constant(x)
        raise Refusal(f"{what} is {describe(x)}, and a number, a block or a pointer is needed")

    # Shapes.

    def broadcast_to(self, x, shape) -> Value:
        x, shape = self.value(x), tuple(shape)
        if x.shape == shape:
            return x
        if not x.shape:
            return self.emit("tt.splat", [x], [(x.element, shape)]).result
        if meet_shapes(x.shape, shape) != shape:
            raise Refusal(f"a block of shape {list(x.shape)} cannot be broadcast to {list(shape)}")
        for _ in range(len(shape) - x.rank):
            x = self.expand(x, 0)
        return self.emit("tt.broadcast", [x], [(x.element, shape)]).result

    def together(self, *values) -> list:
        """The values, broadcast to one shape."""
        shape = ()
        for value in values:
            shape = meet_shapes(shape, value.shape)
        return [self.broadcast_to(value, shape) for value in values]

    def expand(self, x: Value, axis: int) -> Value:
        rank = x.rank + 1
        if not -rank <= axis < rank:
            raise Refusal(f"invalid axis {axis} of expand_dims; that of a block of {x.rank} dimensions is from {-rank} to {rank - 1}")
        axis %= rank
        return self.emit("tt.expand_dims", [x], [(x.element, x.shape[:axis] + (1,) + x.shape[axis:])], axis=axis).result

    def reshape(self, x: Value, shape) -> Value:
        shape = tuple(shape)
        if math.prod(shape) != x.numel:
            raise Refusal(f"a block of shape {list(x.shape)} has {x.numel} elements and cannot become {list(shape)}")
        return x if shape == x.shape else self.emit("tt.reshape", [x], [(x.element, shape)]).result

    def permute(self, x: Value, order) -> Value:
        order = tuple(order)
        if sorted(order) != list(range(x.rank)):
            raise Refusal(f"{list(order)} is no order of the {x.rank} dimensions of the block")
        return self.emit("tt.trans", [x], [(x.element, tuple(x.shape[d] for d in order))], order=order).result

    def arange(self, extent: int, axis: int = 0, rank: int = 1) -> Value:
        """0, 1, … along a dimension of a block that has the extent 1 along the others."""
        index = self.emit("tt.make_range", (), [(ty.int32, (extent,))], start=0).result
        return index if rank == 1 else self.reshape(index, (1,) * axis + (extent,) + (1,) * (rank - axis - 1))

    def gather(self, x: Value, index: Value, axis: int) -> Value:
        """result[…, i, …] = x[…, index[…, i, …], …]; the shape is that of the index."""
        if x.element.is_ptr():
            raise Refusal("pointers are taken out of a block by an index; take out the offsets, and add them to the pointer")
        if x.element.is_bool():
            return self.condition(self.gather(self.cast(x, ty.int8), index, axis))
        return self.emit("tt.gather", [x, index], [(x.element, index.shape)], axis=axis).result

    def exchanged(self, x: Value) -> Value:
        """``x`` where all threads find its elements, for what takes several of them by an index."""
        return x if x.element.is_bool() else self.emit("tt.exchange", [x], [(x.element, x.shape)]).result

    def alternate(self, blocks: list, axis: int) -> Value:
        """Of blocks of one shape: element i of block k becomes element i · blocks + k along the dimension."""
        if blocks[0].element.is_bool():
            return self.binary("!=", self.alternate([self.cast(x, ty.int8) for x in blocks], axis), 0)
        shape = blocks[0].shape
        longer = shape[:axis] + (shape[axis] * len(blocks),) + shape[axis + 1 :]
        return self.emit("tt.alternate", blocks, [(blocks[0].element, longer)], axis=axis).result

    def along(self, x: Value, axis: int, extent: int, of) -> Value:
        """Of ``x`` along a dimension the ``extent`` elements whose places are ``of(0, 1, …)``."""
        shape = x.shape[:axis] + (extent,) + x.shape[axis + 1 :]
        return self.gather(x, self.broadcast_to(of(self.arange(extent, axis, x.rank)), shape), axis)

    def part(self, x: Value, axis: int, place: int) -> Value:
        """``x[…, place, …]``, without that dimension."""
        one = self.along(x, axis, 1, lambda index: self.binary("+", index, place))
        return self.reshape(one, x.shape[:axis] + x.shape[axis + 1 :])

    # Types.

    def cast(self, x, element, bitcast: bool = False) -> Value:
        x = self.value(x)
        if x.element == element:
            return x
        if x.element.is_ptr() or element.is_ptr():
            return self._cast_pointer(x, element)
        if bitcast:
            if x.element.primitive_bitwidth != element.primitive_bitwidth:
                raise Refusal(f"a bitcast of {x.element} to {element}, which have different widths")
            return self.emit("arith.bitcast", [x], [(element, x.shape)]).result
        return self.emit("arith.cast", [x], [(element, x.shape)]).result

    def _cast_pointer(self, x: Value, element) -> Value:
        """A pointer to elements of another type, one that is an integer, or the integer that it is."""
        if not x.element.is_ptr() and x.element.is_int():
            return self.emit("tt.int_to_ptr", [self.cast(x, ty.int64)], [(element, x.shape)]).result
        if not element.is_ptr() and element.is_int():
            return self.cast(self.emit("tt.ptr_to_int", [x], [(ty.int64, x.shape)]).result, element)
        if not x.element.is_ptr() or not element.is_ptr():
            raise Refusal(f"a cast of {x.element} to {element}")
        if x.element.element_ty.itemsize != element.element_ty.itemsize:
            return self._seen_as(x, element)
        return self.emit("tt.bitcast", [x], [(element, x.shape)]).result

    def _seen_as(self, x: Value, element) -> Value:
        """A scalar pointer into an argument, to elements of another width: the launch gives the argument's memory once more for them."""
        pointer, offset = x, self.constant(0, ty.int64)
        while pointer.op is not None and pointer.op.name == "tt.addptr" and not pointer.shape:
            pointer, step = pointer.op.operands
            offset = self.binary("+", offset, self.cast(step, ty.int64))
        if pointer.shape or pointer.op is not None or pointer.home is not self.body:
            raise Refusal(f"a cast of {x.element} to {element}: only an argument's pointer, and what is added to it, may be cast to elements of "
                          "another width; pass the tensor with the type that the kernel reads (tensor.view(dtype), or triton.reinterpret(tensor, "
                          "dtype))")
        argument = next((argument for (argument, _), view in self.views.items() if view is pointer), pointer)
        view = argument if argument.element.element_ty == element.element_ty else self.views.get((argument, element.element_ty))
        if view is None:
            view = self.views[argument, element.element_ty] = self.body.argument(element)
            view.name = f"{argument.name}_as_{element.element_ty}"
        width, other = x.element.element_ty.itemsize, element.element_ty.itemsize
        place = self.binary("*", offset, width // other) if width > other else self.binary("//", offset, other // width)
        return self.emit("tt.addptr", [view, place], [(element, ())]).result

    def condition(self, x) -> Value:
        """As a bool: whether it is not zero."""
        x = self.value(x)
        if x.element.is_ptr():
            return self.condition(self.cast(x, ty.int64))
        return x if x.element.is_bool() else self._compare("NE", x, self.constant(0, x.element))

    def pair(self, a, b, division: bool = False):
        """Both as values of one element type and shape."""
        ta, tb = self._element(a), self._element(b)
        if ta.is_ptr() or tb.is_ptr():
            raise Refusal("pointers are added to integers and given to tl.load and tl.store; this operation takes none")
        element = meet(ta, is_number(a), tb, is_number(b), division)
        return self.together(self._as(a, element), self._as(b, element))

    def _element(self, x):
        return type_of_number(x) if is_number(x) else self.value(x).element

    def _as(self, x, element) -> Value:
        if not is_number(x):
            return self.cast(x, element)
        if element.is_int_unsigned() and x < 0:
            raise Refusal(f"the negative number {x} meets a value of {element}; cast the value with .to(…)")
        return self.constant(x, element)

    # Operators.

    def binary(self, op: str, a, b):
        if is_number(a) and is_number(b) or not isinstance(a, Value) and not isinstance(b, Value):
            return self._folded(op, a, b)
        if op in _COMPARISONS:
            return self._compare(_COMPARISONS[op], *self.pair(a, b))
        if op in ("+", "-") and any(isinstance(x, Value) and x.element.is_ptr() for x in (a, b)):
            return self._pointer(op, a, b)
        if op in _ARITHMETIC:
            return self.apply(_ARITHMETIC[op], *self.pair(a, b))
        if op in _BITS:
            return self._bits(op, a, b)
        if op == "/":
            return self._quotient(a, b)
        if op == "//":
            return self._whole_quotient(a, b)
        if op == "%":
            return self.apply("MOD", *self.pair(a, b, division=True))
        raise Refusal(f"the operator {op} of values; " + ("write x * x, or tl.exp2(y * tl.log2(x))" if op == "**" else "it is not Triton's"))

    @staticmethod
    def _folded(op: str, a, b):
        if op in ("==", "!=") and isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
            a, b = list(a), list(b)  # a shape and [32, 32] are equal
        try:
            return _PYTHON[op](a, b)
        except (KeyError, TypeError, ZeroDivisionError) as problem:
            raise Refusal(f"{describe(a)} {op} {describe(b)}: {problem}") from None

    def apply(self, fn: str, a: Value, b: Value) -> Value:
        """A function of the tile language of two values of one type and shape."""
        if a.element.is_bool():
            fn = _BOOL.get(fn, fn)
        return self.emit("arith.binary", [a, b], [(a.element, a.shape)], fn=fn).result

    def unary(self, fn: str, a: Value) -> Value:
        return self.emit("arith.unary", [a], [(a.element, a.shape)], fn=fn).result

    def _compare(self, fn: str, a: Value, b: Value) -> Value:
        return self.emit("arith.cmp", [a, b], [(ty.int1, a.shape)], fn=fn).result

    def _pointer(self, op: str, a, b):
        if isinstance(b, Value) and b.element.is_ptr():
            if op == "-" or isinstance(a, Value) and a.element.is_ptr():
                raise Refusal("a pointer is added to, or subtracted from, a pointer; keep offsets, and add each to its pointer")
            a, b = b, a
        b = self.value(b, "an offset")
        if not b.element.is_int():
            raise Refusal(f"an offset of type {b.element} is added to a pointer; offsets are integers")
        if op == "-":
            b = self.negative(self.cast(b, ty.int64))  # whose negative is no large number, as an unsigned type's is
        a, b = self.together(a, b)
        return self.emit("tt.addptr", [a, b], [(a.element, a.shape)]).result

    def _bits(self, op: str, a, b):
        keeps_sign = op == ">>" and isinstance(a, Value) and a.element.is_int_signed()
        a, b = self.pair(a, b)
        if a.element.is_floating():
            raise Refusal(f"invalid operands of type {a.element} for {op}, which takes integers; .to(tl.int32, bitcast=True) gives a float's bits")
        if keeps_sign and a.element.is_int_unsigned():  # the left side says which shift it is, the common type that of the result
            signed = getattr(ty, f"int{a.element.primitive_bitwidth}")
            return self.cast(self.apply(_BITS[op], self.cast(a, signed), self.cast(b, signed)), a.element)
        return self.apply(_BITS[op], a, b)

    def _quotient(self, a, b):
        ta, tb = self._element(a), self._element(b)
        if not ta.is_floating() and not tb.is_floating():
            a = self.cast(a, ty.float32) if isinstance(a, Value) else float(a)
            b = self.cast(b, ty.float32) if isinstance(b, Value) else float(b)
        a, b = self.pair(a, b, division=True)
        return self.apply("DIV" if a.element is ty.float64 else "DIV_FULL", a, b)

    def _whole_quotient(self, a, b):
        a, b = self.pair(a, b, division=True)
        if a.element.is_floating():
            raise Refusal("// of floats; write tl.floor(a / b)")
        return self.apply("DIV", a, b)

    def negative(self, x):
        if is_number(x):
            return -x
        x = self.value(x)
        if x.element.is_ptr():
            raise Refusal("a pointer is negated")
        return x if x.element.is_bool() else self.unary("NEG", x)  # 0 - x of one bit is x

    def inverted(self, x):
        if is_number(x):
            return ~x if not isinstance(x, bool) else not x
        x = self.value(x)
        if not x.element.is_int():
            raise Refusal(f"~ needs an integer, not {x.element}")
        return self.unary("NOT" if x.element.is_bool() else "BIT_NOT", x)

    def logical(self, fn: str, a, b) -> Value:
        """``and`` and ``or``, of which both sides are evaluated."""
        return self.apply({"AND": "BIT_AND", "OR": "BIT_OR"}[fn], *self.together(self.condition(a), self.condition(b)))

    def select(self, condition, a, b) -> Value:
        c = self.condition(condition)
        if all(isinstance(x, Value) and x.element.is_ptr() for x in (a, b)):
            c, a, b = self.together(c, a, b)
        else:
            a, b = self.pair(a, b)
            c, a, b = self.together(c, a, b)
        return self.emit("arith.select", [c, a, b], [(a.element, a.shape)]).result


def describe(x) -> str:
    """A thing of the program in words."""
    if isinstance(x, Value):
        return f"a value of type {x.type}"
    if isinstance(x, (str, int, float, bool, type(None), ty.dtype)):
        return repr(x)
    return f"{type(x).__name__} {getattr(x, '__name__', x)!s}"
