# SPDX-License-Identifier: Apache-2.0
"""Which order the barriers of warp groups allow.

A program with roles is one of several that run at once. Its barriers say in which orders their statements may follow each other, and one such
order is enough to say what the program computes. So the order in which the statements stand is tried: each wait must be over where it stands. Then
barriers have nothing left to do, since each statement's effect is visible to the next, and the compiler specialises warps again as it sees fit."""

from __future__ import annotations

from dataclasses import dataclass

from . import program as ir
from . import trace as tr
from .affine import evaluated, finds
from .expr import Expr, const, constant_value

_MOST = 1 << 20  # steps of a trial


class Role(ir.If):
    """What stands in T.ws, until the kernel is complete."""

    __slots__ = ()


@dataclass(slots=True)
class Signal(ir.Stmt):
    """An operation on barriers, until the kernel is complete: on the one at ``index``. ``threads``: how many come to it. ``parity``: of a wait."""

    barrier: object
    index: Expr
    threads: int
    parity: Expr | None = None


class Late(Exception):
    """A wait that is not over where it stands."""

    def __init__(self, signal):
        self.signal = signal


class State:
    """How often each barrier was completed in a trial, and how many arrivals are missing."""

    def __init__(self):
        self.done, self.arrived, self.steps = {}, {}, 0

    def step(self, signal, values):
        self.steps += 1
        index = _number(signal.index, values, signal, "which barrier is meant")
        if not 0 <= index < len(signal.barrier.counts):
            raise _problem(signal, f"barrier {index} of {len(signal.barrier.counts)}")
        key = (signal.barrier, index)
        if signal.parity is not None:
            if self.done.get(key, 0) % 2 == _number(signal.parity, values, signal, "the parity of a wait") % 2:
                raise Late(signal)
            return
        self.arrived[key] = self.arrived.get(key, 0) + signal.threads
        wanted = signal.barrier.counts[index]
        if self.arrived[key] > wanted:
            raise _problem(signal, f"{self.arrived[key]} threads arrive at a barrier of {wanted}")
        if self.arrived[key] == wanted:
            self.arrived[key], self.done[key] = 0, self.done.get(key, 0) + 1


def _problem(stmt, message: str):
    at = stmt.location
    return tr.TraceError(f"{at.file}:{at.line}: {message}" if at.line else message)


def _number(e: Expr, values, stmt, what: str) -> int:
    number = constant_value(evaluated(e, values))
    if number is None:
        raise _problem(stmt, f"{what} is known at run time only; between warp groups with roles it must follow from loops of known length")
    return int(number)


def blocks_of(stmt) -> list:
    return [getattr(stmt, name) for name in ("body", "then_body", "else_body") if hasattr(stmt, name)]


def has_signals(stmts) -> bool:
    return any(isinstance(s, Signal) or any(has_signals(b) for b in blocks_of(s)) for s in stmts)


def of_threads(e: Expr) -> bool:
    return finds(e, lambda node: node.op == "VAR" and node.value.kind == "THREAD")


def run(stmts, state: State, values: dict) -> None:
    """The barriers of these statements, in this order. ``values``: numbers of loop variables."""
    for s in stmts:
        if state.steps > _MOST:
            raise _problem(s, f"the barriers of warp groups with roles take more than {_MOST} steps")
        if isinstance(s, Signal):
            state.step(s, values)
        elif isinstance(s, ir.Let):
            values = {**values, s.var.expr: evaluated(s.value, values)}
        elif not any(has_signals(b) for b in blocks_of(s)):
            continue
        elif isinstance(s, ir.For):
            for turn in range(_number(s.extents[0], values, s, "how often this loop, which has barriers in it, runs")):
                run(s.body, state, {**values, s.vars[0].expr: const(turn, s.vars[0].dtype)})
        elif isinstance(s, ir.If) and of_threads(s.cond):
            run(s.then_body, state, values)
            run(s.else_body, state, values)
        elif isinstance(s, ir.If):
            run(s.then_body if _number(s.cond, values, s, "a condition around barriers") else s.else_body, state, values)
        else:
            raise _problem(s, "barriers of warp groups with roles in a `while` loop, whose length is not known")


def _without_signals(stmts) -> list:
    """The statements of the block. Where nothing in a role depends on threads, it is everybody's."""
    result = []
    for s in stmts:
        if isinstance(s, Signal):
            continue
        for name in ("body", "then_body", "else_body"):
            if hasattr(s, name):
                setattr(s, name, _without_signals(getattr(s, name)))
        if isinstance(s, Role) and not _depends_on_threads(s.then_body, set()):
            result += s.then_body
        elif isinstance(s, Role):
            result.append(ir.If(s.cond, s.then_body, location=s.location))
        elif not (isinstance(s, ir.If) and not s.then_body and not s.else_body):
            result.append(s)
    return result


def _depends_on_threads(stmts, own: set) -> bool:
    """Whether it matters which threads execute the statements: they ask for their number, do something once each, or change what threads keep
    for themselves outside. ``own``: private arrays that these statements allocate."""
    for s in stmts:
        if isinstance(s, ir.Alloc) and s.buffer.space == "LOCAL":
            own = own | {s.buffer}
        if isinstance(s, ir.Atomic) and s.each_thread or isinstance(s, ir.Barrier):
            return True
        written = [s.buffer] if isinstance(s, (ir.Store, ir.Atomic)) else [getattr(s, s.WRITTEN).buffer] if hasattr(s, s.WRITTEN) else []
        if isinstance(s, ir.Atomic) and s.old is not None:
            written.append(s.old.buffer)
        if any(b.space == "LOCAL" and b not in own for b in written):
            return True
        if any(of_threads(e) for e in ir.expressions(s)) or any(_depends_on_threads(b, own) for b in blocks_of(s)):
            return True
    return False


def _are_conditional(stmts) -> bool:
    """Whether a barrier stands under a condition."""
    return any(has_signals(_all(s)) if isinstance(s, ir.If) else any(_are_conditional(b) for b in blocks_of(s)) for s in stmts)


def _all(stmt) -> list:
    return [s for block in blocks_of(stmt) for s in block]


def _order(kernel: ir.Kernel) -> None:
    """The order in which the statements stand, or one in which groups that have loops of their own take turns."""
    try:
        run(kernel.body, State(), {})
        return
    except Late as problem:
        late = problem
    try:
        from .weave import woven

        body = woven(kernel.body)
        run(body, State(), {})
    except Late:
        raise _problem(late.signal, "this wait is for what stands further below, and no order of the warp groups' statements was found in which each "
                       "wait is over: loops of groups that wait for each other must have the same number of turns, known while the program is traced; "
                       "write one loop with the roles in it, each statement behind those that it waits for") from None
    kernel.body[:] = body


def settle(kernel: ir.Kernel) -> None:
    """Tries the order of the kernel's statements where a condition says which threads come to a barrier, and takes roles and barriers out."""
    if _are_conditional(kernel.body):
        _order(kernel)
    kernel.body[:] = _without_signals(kernel.body)
