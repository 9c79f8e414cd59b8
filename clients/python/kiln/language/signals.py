# SPDX-License-Identifier: Apache-2.0
"""Barriers of warp groups.

A program with roles is one of several that run at once, and its barriers are the program's: where the target has such, the kernel keeps them. For
other targets they say in which orders the groups' statements may follow each other, and one such order is enough to say what the program computes.
So the order in which the statements stand is tried: each wait must be over where it stands. Then barriers have nothing left to do, since each
statement's effect is visible to the next, and the compiler specialises warps as it sees fit."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from .. import notices
from . import program as ir
from . import trace as tr
from .affine import advance, evaluated, finds
from .expr import Expr, const, constant_value

_MOST = 1 << 20  # steps of a trial
_LONGEST = 64  # turns after which a loop of unknown length is to repeat


class Role(ir.If):
    """What stands in T.ws, until the kernel is complete."""

    __slots__ = ()


@dataclass(slots=True)
class Signal(ir.Stmt):
    """An operation on barriers, until the kernel is complete: on the one at ``index``. ``threads``: how many come to it, or why that is not known.
    ``parity``: of a wait. ``name``: the function that the program calls."""

    barrier: object
    index: Expr
    threads: object
    parity: Expr | None = None
    name: str = ""
    block: Expr | None = None  # the rank in the cluster of the block whose barrier it is, unless it is this block's


@dataclass(slots=True)
class Wish(ir.Registers):
    """Registers that warp groups ask for, until the kernel is complete. ``name``: the function that the program calls."""

    name: str = ""


class Late(Exception):
    """A wait that is not over where it stands."""

    def __init__(self, signal):
        self.signal = signal


class State:
    """What a trial knows of barriers: the possible worlds, each with (whether the number of completed turns is odd, arrivals in the turn that is
    under way) for the barriers that are not in their first state. There are several behind a loop whose length is not known."""

    def __init__(self, worlds=({},), steps: int = 0):
        self.worlds, self.steps = [dict(w) for w in worlds], steps

    def step(self, signal, values):
        self.steps += 1
        if self.steps > _MOST:
            raise _problem(signal, f"the barriers of warp groups with roles take more than {_MOST} steps")
        if isinstance(signal.threads, Exception):
            raise signal.threads
        index = _number(signal.index, values, signal, "which barrier is meant")
        if not 0 <= index < len(signal.barrier.counts):
            raise _problem(signal, f"barrier {index} of {len(signal.barrier.counts)}")
        key = (signal.barrier, index)
        if signal.parity is not None:
            parity = _number(signal.parity, values, signal, "the parity of a wait") % 2
            if any(w.get(key, (0, 0))[0] == parity for w in self.worlds):
                raise Late(signal)
            return
        for world in self.worlds:
            world[key] = self._arrived(signal, index, *world.get(key, (0, 0)))
            if world[key] == (0, 0):
                del world[key]

    @staticmethod
    def _arrived(signal, index: int, odd: int, arrived: int) -> tuple:
        arrived, wanted = arrived + signal.threads, signal.barrier.counts[index]
        if arrived > wanted:
            raise _problem(signal, f"{arrived} threads arrive at a barrier of {wanted}")
        return (1 - odd, 0) if arrived == wanted else (odd, arrived)


def _different(worlds) -> list:
    return list({frozenset(w.items()): w for w in worlds}.values())


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
        if isinstance(s, Signal):
            state.step(s, values)
        elif isinstance(s, ir.Let):
            values = {**values, s.var.expr: evaluated(s.value, values)}
        elif not any(has_signals(b) for b in blocks_of(s)):
            continue
        elif isinstance(s, ir.For):
            turns(s, state, values)
        elif isinstance(s, ir.If) and of_threads(s.cond):
            run(s.then_body, state, values)
            run(s.else_body, state, values)
        elif isinstance(s, ir.If):
            run(s.then_body if _number(s.cond, values, s, "a condition around barriers") else s.else_body, state, values)
        else:
            raise _problem(s, "barriers of warp groups with roles in a `while` loop, whose length is not known")


def leaves(stmts) -> bool:
    """Whether a break or continue of the loop that these statements are the body of stands in them."""
    return any(isinstance(s, (ir.Break, ir.Continue)) or not isinstance(s, (ir.For, ir.While)) and any(leaves(b) for b in blocks_of(s))
               for s in stmts)


def turns(loop: ir.For, state: State, values: dict, done: int = 0) -> None:
    """The turns of a loop from ``done`` on. Where their number is known at run time only, those after which the signals are as in the first one must
    leave the barriers as they found them: then all further ones are like these."""

    if leaves(loop.body):
        raise _problem(loop, "break or continue in a loop with barriers of warp groups with roles; put what is left out under a condition")

    def turn(number: int):
        run(loop.body, state, {**values, loop.vars[0].expr: const(number, loop.vars[0].dtype)})

    known = constant_value(evaluated(loop.extents[0], values))
    if known is not None:
        for number in range(done, int(known)):
            turn(number)
        return
    period = _period(loop, values)
    if period is None:
        raise _problem(loop, "the barriers in this loop, whose length is known at run time only, must take turns with its variable, as `i % 2` does")
    reached = []
    for number in range(done, done + period):
        reached += [dict(w) for w in state.worlds]
        turn(number)
    before, after = (_different(w) for w in (reached[: len(reached) // period], state.worlds))
    if sorted(map(repr, map(_written, before))) != sorted(map(repr, map(_written, after))):
        raise _problem(loop, f"the barriers in this loop, whose length is known at run time only, are not as before after {period} turns")
    state.worlds = _different(reached)


def _written(world: dict) -> list:
    return sorted((id(barrier), index, *value) for (barrier, index), value in world.items())


def _period(loop: ir.For, values: dict):
    """After how many turns the signals of the loop are the same ones."""
    found = [evaluated(e, values) for e in _deciding(loop.body)]
    var = loop.vars[0].expr
    return next((turns for turns in range(1, _LONGEST + 1) if all(advance(e, var, turns) == 0 for e in found)), None)


def _deciding(stmts):
    """What decides about signals: their operands, and the conditions and extents around them."""
    for s in stmts:
        if isinstance(s, Signal):
            yield from (e for e in (s.index, s.parity) if e is not None)
        elif any(has_signals(b) for b in blocks_of(s)):
            yield from (e for e in ir.expressions(s) if not of_threads(e))
            for block in blocks_of(s):
                yield from _deciding(block)


def _without_signals(stmts, differing: set) -> list:
    """The statements of the block. Where nothing in a role depends on threads, it is everybody's."""
    result = []
    for s in stmts:
        if isinstance(s, (Signal, ir.Registers)):
            continue
        if isinstance(s, ir.Copy):
            s.signals = None
        for name in ("body", "then_body", "else_body"):
            if hasattr(s, name):
                setattr(s, name, _without_signals(getattr(s, name), differing))
        if isinstance(s, Role) and not _depends_on_threads(s.then_body, set(), differing):
            result += s.then_body
        elif isinstance(s, Role):
            result.append(ir.If(s.cond, s.then_body, location=s.location))
        elif not (isinstance(s, ir.If) and not s.then_body and not s.else_body):
            result.append(s)
    return result


def _depends_on_threads(stmts, own: set, differing: set) -> bool:
    """Whether it matters which threads execute the statements: they ask for their number or for what differs between them, do something once each,
    change what threads keep for themselves outside, or leave a loop. ``own``: private arrays that these statements allocate."""
    if leaves(stmts):
        return True
    for s in stmts:
        if isinstance(s, ir.Alloc) and s.buffer.space == "LOCAL":
            own = own | {s.buffer}
        if isinstance(s, ir.Atomic) and s.each_thread or isinstance(s, ir.Barrier):
            return True
        if any(b.space == "LOCAL" and b not in own for b in ir.written(s)) or any(_differs(e, differing) for e in ir.expressions(s)):
            return True
        if any(_depends_on_threads(b, own, differing) for b in blocks_of(s)):
            return True
    return False


def _differs(e: Expr, differing: set) -> bool:
    """Whether threads may have different values of it. ``differing``: private arrays and variables of which that is so."""
    return finds(e, lambda node: node.op == "VAR" and (node.value.kind == "THREAD" or node.value in differing)
                 or node.op == "LOAD" and node.value in differing)


def _differing(kernel: ir.Kernel) -> set:
    """The private arrays and variables whose values may differ between threads: such values go in, or not all threads come to where they do."""
    found: set = set()
    while True:
        before = len(found)
        _find_differing(kernel.body, False, found)
        if len(found) == before:
            return found


def _leave_apart(stmts, apart: bool, found: set) -> bool:
    """Whether only some threads may leave the loop that these statements are the body of."""
    for s in stmts:
        if apart and isinstance(s, (ir.Break, ir.Continue)):
            return True
        inner = apart or isinstance(s, Role) or isinstance(s, ir.If) and any(_differs(e, found) for e in ir.expressions(s))
        if not isinstance(s, (ir.For, ir.While)) and any(_leave_apart(b, inner, found) for b in blocks_of(s)):
            return True
    return False


def _find_differing(stmts, apart: bool, found: set) -> None:
    for s in stmts:
        differs = apart or any(_differs(e, found) for e in ir.expressions(s))
        differs = differs or isinstance(s, (ir.For, ir.While)) and _leave_apart(s.body, False, found)
        if isinstance(s, ir.Let) and differs:
            found.add(s.var)
        if isinstance(s, ir.Atomic) or not isinstance(s, (ir.Store, ir.Fill)) or differs:
            found.update(b for b in ir.written(s) if b.space == "LOCAL")
        inner = differs if isinstance(s, (ir.If, ir.While, ir.For)) else apart
        for block in blocks_of(s):
            _find_differing(block, inner or isinstance(s, ir.For) and s.kind == "PARALLEL", found)


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

        body = woven(kernel)
        run(body, State(), {})
    except Late:
        raise _problem(late.signal, "this wait is for what stands further below, and no order of the warp groups' statements was found in which each "
                       "wait is over: loops of groups that wait for each other must have the same number of turns; "
                       "write one loop with the roles in it, each statement behind those that it waits for") from None
    kernel.body[:] = body


def _check_fragments(kernel: ir.Kernel) -> None:
    """A fragment is one tile of the block: where TileLang's groups would each have registers of their own, Kiln has the same elements for both."""
    writers: dict = {}

    def visit(stmts, group):
        for s in stmts:
            for buffer in ir.written(s):
                if buffer.space == "FRAGMENT" and group is not None:
                    writers.setdefault(buffer, {})[group] = s
            tells = group is None and isinstance(s, ir.If) and of_threads(s.cond)
            for number, block in enumerate(blocks_of(s)):
                visit(block, (s.cond, number) if tells else group)

    visit(kernel.body, None)
    for buffer, by in writers.items():
        if len(by) > 1:
            raise _problem(list(by.values())[-1], f"{buffer.name} is written by several warp groups, but a fragment is one tile of the block; "
                           "allocate one for each group")


def _same(stmts) -> list:
    """The statements once more, with the same variables and buffers."""
    return [replace(s, **{part.name: _same(getattr(s, part.name)) for part in fields(s) if part.type == "list[Stmt]"}) for s in stmts]


def _turns_of(loop) -> list:
    """The statements of an unrolled loop with barriers, turn by turn: which barrier and which part of a tile is then a number."""
    from .copies import Names

    turns = range(int(constant_value(loop.extents[0])))
    return [s for turn in turns for s in Names({loop.vars[0].expr: const(turn, loop.vars[0].dtype)}).copied(loop.body)]


def _pinned(stmts) -> list:
    """The statements with the barriers that they name."""
    result = []
    for s in stmts:
        if isinstance(s, ir.For) and s.kind == "UNROLL" and constant_value(s.extents[0]) is not None and has_signals([s]) and not leaves(s.body):
            result += _pinned(_turns_of(s))
            continue
        if isinstance(s, Signal):
            buffer, at = s.barrier.buffer, [s.index]
            s = ir.Arrive(buffer, at, s.block, location=s.location) if s.parity is None else ir.Await(buffer, at, s.parity, location=s.location)
        if isinstance(s, Wish):
            s = ir.Registers(s.count, s.more, location=s.location)
        for part in fields(s):
            if part.type == "list[Stmt]":
                setattr(s, part.name, _pinned(getattr(s, part.name)))
        result.append(ir.If(s.cond, s.then_body, location=s.location) if isinstance(s, Role) else s)
    return result


def _barriers(stmts) -> list:
    """The barriers that statements name, each once, in their order."""
    found: dict = {}
    for s in stmts:
        if isinstance(s, (ir.Arrive, ir.Await)):
            found[s.buffer] = True
        if isinstance(s, ir.Copy) and s.signals is not None:
            found[s.signals.buffer] = True
        found.update((buffer, True) for block in blocks_of(s) for buffer in _barriers(block))
    return list(found)


def _signals(stmts):
    for s in stmts:
        if isinstance(s, Signal):
            yield s
        yield from _signals(_all(s))


def _in_order(kernel: ir.Kernel):
    """The kernel for targets without such barriers, or why there is none."""
    for signal in _signals(kernel.body):
        if signal.barrier.of_cluster:
            return _problem(signal, f"T.{signal.name} of a barrier of the cluster's blocks: targets from sm_90 on have clusters")
    other = replace(kernel, body=_same(kernel.body))
    try:
        _order(other)
    except tr.TraceError as problem:
        return problem
    other.body[:] = _without_signals(other.body, _differing(other))
    return other


def _tell(stmts) -> None:
    """Says what has no effect."""
    for s in stmts:
        if isinstance(s, Signal):
            notices.no_effect(f"T.{s.name}", "the next statement sees the data of a copy and the sums of a product anyway; leave it out", s.location)
        if isinstance(s, Wish):
            notices.no_effect(f"T.{s.name}", "registers are given to warp groups that have barriers; elsewhere the compiler gives them", s.location)
        _tell(_all(s))


def _has_any(stmts) -> bool:
    return any(isinstance(s, (Role, Signal, ir.Registers)) or isinstance(s, ir.Copy) and s.signals is not None or _has_any(_all(s)) for s in stmts)


def settle(kernel: ir.Kernel) -> None:
    """Gives the kernel its barriers where conditions say which threads come to them. Elsewhere takes roles and barriers out: what all threads wait
    for is complete."""
    if not _has_any(kernel.body):
        return
    _check_fragments(kernel)
    if not _are_conditional(kernel.body) and not any(signal.barrier.of_cluster for signal in _signals(kernel.body)):
        _tell(kernel.body)
        kernel.body[:] = _without_signals(kernel.body, _differing(kernel))
        return
    kernel.in_order = _in_order(kernel)
    body = _pinned(kernel.body)
    kernel.body[:] = [*(ir.Alloc(barrier) for barrier in _barriers(body)), *body]
