# SPDX-License-Identifier: Apache-2.0
"""Accesses by a pointer that is chosen among arguments while the kernel runs: each becomes one for each argument, where that is the one chosen."""

from __future__ import annotations

from . import types as ty
from .graph import PURE, Block, Function, Op, Value, remove, replace

_MOVES = frozenset(("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.addptr", "tt.bitcast", "tt.gather"))
_ACCESSES = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}  # the place of the mask


def split_choices(function: Function) -> None:
    _split(function.body)


def _split(block: Block) -> None:
    position = 0
    while position < len(block.ops):
        op = block.ops[position]
        for region in op.regions:
            _split(region)
        if op.name == "scf.if":
            position += _chosen_by(op)
        choice = _choice(op.operands[0]) if op.name in _ACCESSES else None
        if choice is None:
            position += 1
        else:
            _Split(op, choice).run()  # and the two that stand there now are looked at


def _chosen_by(op: Op) -> int:
    """Pointers that an if gives, which lead into several arguments, become choices behind it, and what is added to them numbers that it gives.
    What the choices are made of moves before it. Returns how many operations moved."""
    moved: list = []
    for i, result in enumerate(op.results):
        ends = [region.ends[i] for region in op.regions]
        if not result.element.is_ptr() or len(_roots(*ends)) == 1:
            continue
        starts = [_start(end) for end in ends]
        if not all(_moves(start, op) for start in starts):
            continue
        for start in starts:
            _move_before(start, op, moved)
        behind = Value(result.element, result.shape)  # in the result's place until that is made
        replace(result, behind)
        made = _behind(op, 1, "arith.select", [op.operands[0], *starts], result)
        if any(start is not end for start, end in zip(starts, ends)):
            for region, start in zip(op.regions, starts):
                _give_offset(region, i, start)
            result.element = ty.int64
            made = _behind(op, 2, "tt.addptr", [made, result], made)
        made.name = result.name
        replace(behind, made)
    return len(moved)


def _start(pointer: Value) -> Value:
    """Without what is added to it."""
    while pointer.op is not None and pointer.op.name == "tt.addptr":
        pointer = pointer.op.operands[0]
    return pointer


def _behind(op: Op, distance: int, name: str, operands, like: Value) -> Value:
    made = Op(name, operands, [(like.element, like.shape)], {}, op.line, op.file, op.block)
    op.block.ops.insert(op.block.ops.index(op) + distance, made)
    return made.result


def _give_offset(region: Block, i: int, start: Value) -> None:
    """The end of a region, a pointer, becomes its distance from ``start``."""
    def emit(name, operands, **attrs):
        op = Op(name, operands, [(ty.int64, end.shape)], attrs, region.op.line, region.op.file, region)
        region.ops.append(op)
        return op.result

    end, pointer, total = region.ends[i], region.ends[i], None
    while pointer is not start:
        pointer, offset = pointer.op.operands
        offset = emit("arith.cast", [offset])
        total = offset if total is None else emit("arith.binary", [total, offset], fn="ADD")
    if total is None:
        zero = Op("arith.constant", [], [(ty.int64, ())], {"value": 0}, region.op.line, region.op.file, region)
        region.ops.append(zero)
        total = emit("tt.splat", [zero.result]) if end.shape else zero.result
    end.uses.remove(region)
    region.ends[i] = total
    total.uses.append(region)


def _moves(value: Value, op: Op) -> bool:
    """Whether a value is computed outside of the regions of an operation, or could be."""
    if not any(value.home.inside(region) for region in op.regions):
        return True
    return value.op is not None and value.op.name in PURE and all(_moves(operand, op) for operand in value.op.operands)


def _move_before(value: Value, op: Op, moved: list) -> None:
    inner = value.op
    if not any(value.home.inside(region) for region in op.regions):
        return
    for operand in inner.operands:
        _move_before(operand, op, moved)
    inner.block.ops.remove(inner)
    op.block.ops.insert(op.block.ops.index(op), inner)
    inner.block = value.home = op.block
    moved.append(inner)


def _choice(pointer: Value):
    """The operation on the way to a pointer that chooses between arguments."""
    while pointer.op is not None:
        op = pointer.op
        if op.name == "arith.select":
            if len(_roots(pointer)) > 1:
                return op
            pointer = op.operands[1]
        elif op.name in _MOVES:
            pointer = op.operands[0]
        else:
            return None
    return None


def _roots(*pointers: Value) -> set:
    """What pointers may lead into: arguments, and for all integers one."""
    found, open_, seen = set(), list(pointers), set()
    while open_:
        value = open_.pop()
        if value in seen:
            continue
        seen.add(value)
        op = value.op
        if op is not None and op.name == "arith.select":
            open_ += op.operands[1:]
        elif op is not None and op.name in _MOVES:
            open_.append(op.operands[0])
        else:
            found.add(value.element.element_ty if op is not None and op.name == "tt.int_to_ptr" else value)
    return found


class _Split:
    """Of one access: two before it, with masks, in its place."""

    def __init__(self, op: Op, choice: Op):
        self.op, self.choice, self.block = op, choice, op.block
        self.at = self.block.ops.index(op)

    def _emit(self, name: str, operands, results, attrs=None) -> Op:
        op = Op(name, operands, results, dict(attrs or {}), self.op.line, self.op.file, self.block)
        self.block.ops.insert(self.at, op)
        self.at += 1
        return op

    def _rebuilt(self, value: Value, start: Value, adds: bool) -> Value:
        """``value`` where the choice is ``start``; without ``adds``, what is added to pointers is left out, as of a condition."""
        op = value.op
        if op is self.choice:
            return start
        before = self._rebuilt(op.operands[0], start, adds)
        if op.name in ("tt.addptr", "tt.bitcast") and not adds:
            return before
        element = value.element if adds else before.element
        return self._emit(op.name, [before, *op.operands[1:]], [(element, value.shape)], op.attrs).result

    def run(self) -> None:
        op, pointer, place = self.op, self.op.operands[0], _ACCESSES[self.op.name]
        place = 1 + op.attrs.get("values", place - 1)
        first = self._rebuilt(pointer, self.choice.operands[0], False)
        second = self._emit("arith.unary", [first], [(ty.int1, first.shape)], {"fn": "NOT"}).result
        made = []
        for condition, start in zip((first, second), self.choice.operands[1:]):
            operands = [self._rebuilt(pointer, start, True), *op.operands[1:]]
            if len(operands) > place:
                mask = self._emit("arith.binary", [operands[place], condition], [(ty.int1, condition.shape)], {"fn": "BIT_AND"}).result
                operands[place] = mask
            else:
                operands.append(condition)
            made.append(self._emit(op.name, operands, [(value.element, value.shape) for value in op.results], op.attrs))
        if op.results:
            results = [one.result for one in made]
            chosen = self._emit("arith.select", [first, *results], [(results[0].element, results[0].shape)]).result
            chosen.name = op.result.name
            replace(op.result, chosen)
        remove(op)
