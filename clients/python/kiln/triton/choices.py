# SPDX-License-Identifier: Apache-2.0
"""Accesses by a pointer that is chosen among arguments while the kernel runs: each becomes one for each argument, where that is the one chosen."""

from __future__ import annotations

from . import types as ty
from .graph import Block, Function, Op, Value, remove, replace

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
        choice = _choice(op.operands[0]) if op.name in _ACCESSES else None
        if choice is None:
            position += 1
        else:
            _Split(op, choice).run()  # and the two that stand there now are looked at


def _choice(pointer: Value):
    """The operation on the way to a pointer that chooses between arguments."""
    op = pointer.op
    if op is None:
        return None
    if op.name == "arith.select":
        return op if len(_roots(pointer)) > 1 else _choice(op.operands[1])
    return _choice(op.operands[0]) if op.name in _MOVES else None


def _roots(pointer: Value) -> set:
    """What a pointer may lead into: arguments, and for all integers one."""
    op = pointer.op
    if op is not None and op.name == "arith.select":
        return _roots(op.operands[1]) | _roots(op.operands[2])
    if op is not None and op.name in _MOVES:
        return _roots(op.operands[0])
    return {pointer.element.element_ty if op is not None and op.name == "tt.int_to_ptr" else pointer}


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
        place = 3 if op.attrs.get("compares") else place
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
