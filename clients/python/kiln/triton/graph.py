# SPDX-License-Identifier: Apache-2.0
"""A kernel as a graph: operations in blocks, each value made once. Operations have the names of Triton's own dialects where those have one.

``scf.for`` has the operands lower, upper, step and initial values; its region's arguments are the index and the carried values, and its
region ends with the next carried values. ``scf.while`` has two regions: the first takes the carried values and ends with the condition, the
second takes them and ends with the next ones. ``scf.if`` ends both its regions with its results."""

from __future__ import annotations

from .types import block_type


class Value:
    """A scalar or a block of elements or pointers. ``element``: a dtype or a pointer_type. ``op``: what makes it; None of an argument.
    ``uses``: the operations that take it, and the blocks that end with it, once for each time. ``home``: the block that it is made in."""

    __slots__ = ("element", "shape", "op", "index", "uses", "home", "name")

    def __init__(self, element, shape=(), op=None, index=0, home=None):
        self.element, self.shape, self.op, self.index, self.uses, self.home = element, tuple(shape), op, index, [], home
        self.name = ""  # of the first variable that held it

    @property
    def type(self):
        return block_type(self.element, self.shape) if self.shape else self.element

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def __repr__(self):
        return f"<value {self.type} of {self.op.name if self.op else 'an argument'}>"


class Block:
    """``args``, operations in order, and ``ends``: the values that it ends with. ``op``: the operation around it."""

    __slots__ = ("args", "ops", "ends", "op", "parent")

    def __init__(self, op=None, parent=None):
        self.args, self.ops, self.ends, self.op, self.parent = [], [], [], op, parent

    def argument(self, element, shape=()) -> Value:
        value = Value(element, shape, None, len(self.args), self)
        self.args.append(value)
        return value

    def finish(self, values) -> None:
        self.ends = list(values)
        for value in self.ends:
            value.uses.append(self)

    def take_over(self, other: "Block") -> None:
        """The operations of a block within it, at its end."""
        for op in other.ops:
            op.block = self
            for result in op.results:
                result.home = self
        self.ops.extend(other.ops)

    def inside(self, other: "Block") -> bool:
        """Whether it is ``other`` or within it."""
        block = self
        while block is not None and block is not other:
            block = block.parent
        return block is other


class Op:
    """``attrs``: what the operation has beside operands."""

    __slots__ = ("name", "operands", "attrs", "regions", "results", "line", "file", "block")

    def __init__(self, name, operands, results, attrs=None, line=0, file="", block=None):
        self.name, self.operands, self.attrs, self.regions = name, list(operands), attrs or {}, []
        self.line, self.file, self.block = line, file, block
        self.results = [Value(element, shape, self, i, block) for i, (element, shape) in enumerate(results)]
        for value in self.operands:
            value.uses.append(self)

    @property
    def result(self) -> Value:
        return self.results[0]

    def __repr__(self):
        return f"<op {self.name} at line {self.line}>"


def block_of(user) -> Block:
    """The block in which an operation takes a value, or which ends with it."""
    return user.block if isinstance(user, Op) else user


def replace(old: Value, new: Value) -> None:
    """All that takes ``old`` takes ``new``."""
    for user in set(old.uses):
        if isinstance(user, Op):
            user.operands = [new if operand is old else operand for operand in user.operands]
        else:
            user.ends = [new if end is old else end for end in user.ends]
    new.uses.extend(old.uses)
    old.uses = []


def is_scalar(block: "Block") -> bool:
    """Whether no value in the block and those within it has more than one element, and nothing asks for several threads."""
    if any(op.name == "tle.call" for op in block.ops):
        return False
    return all(result.numel == 1 for op in block.ops for result in op.results) and all(is_scalar(region) for op in block.ops for region in op.regions)


_LARGEST_BLOCK = 1 << 16  # numbers of programs are multiplied by others, too, as where they are hashed, and may wrap


def largest_factor(block: "Block", axis: int) -> int:
    """The largest size of a block, a power of two, by which a program's number along the axis is multiplied in 32 bits; 1 where it is not."""
    most = 1
    for op in block.ops:
        most = max([most, *(largest_factor(region, axis) for region in op.regions)])
        if op.name != "arith.binary" or op.attrs["fn"] != "MUL" or op.result.element.primitive_bitwidth != 32:
            continue
        for number, factor in (op.operands, op.operands[::-1]):
            if _is(number, "tt.get_program_id") and number.op.attrs["axis"] == axis and _is(factor, "arith.constant"):
                size = factor.op.attrs["value"]
                most = max(most, size if 0 < size <= _LARGEST_BLOCK and size & (size - 1) == 0 else 1)
    return most


def _is(value: Value, name: str) -> bool:
    return value.op is not None and value.op.name == name


def remove(op: Op) -> None:
    op.block.ops.remove(op)
    for operand in op.operands:
        operand.uses.remove(op)


# Operations whose results depend on their operands alone.
PURE = frozenset((
    "arith.constant", "tt.make_range", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.gather", "tt.addptr",
    "tt.int_to_ptr", "tt.ptr_to_int", "tt.bitcast", "tle.local_ptr",
    "arith.select", "arith.cast", "arith.bitcast", "arith.binary", "arith.unary", "arith.cmp", "math.fma", "tt.get_program_id",
    "tt.get_num_programs"))


class Function:
    """A kernel. ``params``: (name, value) of those that it takes at run time, in order. ``assumed``: (value, divisor) of
    arguments; a pointer's divides the number of elements that it leads to. ``views``: of the last parameters, which of the others each one is once
    more, and with which elements."""

    def __init__(self, name: str, file: str):
        self.name, self.file, self.body = name, file, Block()
        self.params, self.assumed, self.views = [], [], []

    def __str__(self):
        return _Printer(self).text()


class _Printer:
    def __init__(self, function: Function):
        self.function, self.names, self.lines = function, {}, []

    def name(self, value: Value) -> str:
        return self.names.setdefault(value, f"%{len(self.names)}")

    def text(self) -> str:
        params = ", ".join(f"{self.name(v)}: {v.type}" for _, v in self.function.params)
        self.lines.append(f"func {self.function.name}({params})")
        self.block(self.function.body, 1)
        return "\n".join(self.lines)

    def block(self, block: Block, depth: int) -> None:
        indent = "  " * depth
        if block.args:
            self.lines.append(indent + "args " + ", ".join(f"{self.name(a)}: {a.type}" for a in block.args))
        for op in block.ops:
            results = ", ".join(self.name(r) for r in op.results)
            attrs = " ".join(f"{k}={v}" for k, v in op.attrs.items())
            types = ", ".join(str(r.type) for r in op.results)
            operands = ", ".join(self.name(o) for o in op.operands)
            self.lines.append(f"{indent}{results + ' = ' if results else ''}{op.name} {operands} {attrs}{' : ' + types if types else ''}".rstrip())
            for region in op.regions:
                self.block(region, depth + 1)
        if block.ends:
            self.lines.append(indent + "ends " + ", ".join(self.name(v) for v in block.ends))
