# SPDX-License-Identifier: Apache-2.0
"""One order for warp groups that each have a loop of their own and wait for each other in it.

Each group is a strand. One after the other goes on to where it waits for another; loops in which all of them signal become one loop, whose body is
woven in the same way. Whether that order is right for every turn is not asked here: ``signals`` tries it afterwards."""

from __future__ import annotations

from . import program as ir
from .affine import evaluated, finds
from .copies import Names
from .expr import Expr, Var, as_expr, binary, const, constant_value, logical, logical_not, masked
from .signals import Late, Role, Signal, State, blocks_of, has_signals, of_threads, run, turns


def woven(kernel: ir.Kernel) -> list:
    """The body with its groups in one order. Late where none is found."""
    stmts, state, result, at = kernel.body, State(), [], 0
    while at < len(stmts):
        strands = []
        while at < len(stmts) and (legs := _legs(stmts[at])):
            strands += legs
            at += 1
        if strands:
            result += _Weaver(_united(strands, kernel), state, {}).weave()
        else:
            run([stmts[at]], state, {})
            result.append(stmts[at])
            at += 1
    return result


def _legs(stmt) -> list:
    """[(condition, statements)] of an if … elif … else that tells threads apart and has signals in it; else nothing."""
    if not isinstance(stmt, ir.If) or not of_threads(stmt.cond) or not has_signals([stmt]):
        return []
    legs, rest = [(stmt.cond, stmt.then_body)], logical_not(stmt.cond)
    if len(stmt.else_body) == 1 and _legs(stmt.else_body[0]):
        legs += [(logical("AND", rest, cond), body) for cond, body in _legs(stmt.else_body[0])]
    elif stmt.else_body:
        legs.append((rest, stmt.else_body))
    return legs


def _united(strands, kernel: ir.Kernel) -> list:
    """What the same threads do, one after the other, is one strand."""
    result: dict = {}
    for cond, body in strands:
        result.setdefault(_as_range(cond, kernel), []).extend(body)
    thread = kernel.thread_var.expr
    for number in range(kernel.threads):
        comes = [constant_value(evaluated(cond, {thread: const(number, thread.dtype)})) for cond in result]
        if sum(known is None or bool(known) for known in comes) > 1:  # a thread of two strands would not keep the order of its statements
            raise Late(_first_signal([s for _, body in strands for s in body]))
    return list(result.items())


def _as_range(cond: Expr, kernel: ir.Kernel) -> Expr:
    """The condition as bounds of the thread's number, if it says no more than that."""
    thread, numbers = kernel.thread_var.expr, []
    for number in range(kernel.threads):
        known = constant_value(evaluated(cond, {thread: const(number, thread.dtype)}))
        if known is None:
            return cond
        numbers += [number] if known else []
    first, last = (numbers[0], numbers[-1]) if numbers else (0, -1)
    if len(numbers) != last - first + 1 or not numbers:
        return cond
    return logical("AND", binary("GE", thread, first) if first else as_expr(True), binary("LT", thread, last + 1))


class _Strand:
    def __init__(self, cond: Expr, stmts: list):
        self.cond = cond
        self.ahead = [(s, None) for s in stmts]  # with what they are under, None: nothing

    @property
    def next(self):
        return self.ahead[0][0] if self.ahead else None

    @property
    def is_at_loop(self) -> bool:
        return isinstance(self.next, ir.For) and has_signals([self.next])


class _Weaver:
    def __init__(self, strands, state: State, values: dict):
        self.strands = [_Strand(cond, stmts) for cond, stmts in strands]
        self.state, self.values, self.out = state, values, []

    def weave(self) -> list:
        while any(s.ahead for s in self.strands):
            if not any([self._advance(s) for s in self.strands]):
                self._enter_loop()
        return self.out

    def _advance(self, strand: _Strand) -> bool:
        """Goes on to where it waits, to a loop with signals, or to the end. Whether it could."""
        moved = False
        while strand.ahead and not strand.is_at_loop:
            stmt, guard = strand.ahead[0]
            if isinstance(stmt, ir.If) and has_signals([stmt]):
                strand.ahead[:1] = [(s, _and(guard, cond)) for cond, body in ((stmt.cond, stmt.then_body), (logical_not(stmt.cond), stmt.else_body))
                                    for s in body]
                continue
            if isinstance(stmt, Signal) and self._holds(guard):
                try:
                    run([stmt], self.state, self.values)
                except Late:
                    return moved
            strand.ahead.pop(0)
            self._emit(strand, stmt, guard)
            moved = True
        return moved

    def _holds(self, guard) -> bool:
        """In the turn that is looked at."""
        return guard is None or bool(constant_value(evaluated(guard, self.values)))

    def _emit(self, strand: _Strand, stmt, guard) -> None:
        if isinstance(stmt, (ir.Alloc, ir.Let)):  # its name is used by what follows in other parts of the strand
            if isinstance(stmt, ir.Let) and finds(stmt.value, lambda e: e.op == "LOAD"):  # only these threads may read there
                stmt = ir.Let(stmt.var, masked(_and(guard, strand.cond), stmt.value, const(0, stmt.value.dtype)), location=stmt.location)
            self.out.append(stmt)
            return
        last = self.out[-1] if self.out else None
        if not isinstance(last, Role) or last.cond is not strand.cond:
            last = Role(strand.cond, location=stmt.location)
            self.out.append(last)
        if guard is None:
            last.then_body.append(stmt)
            return
        inner = last.then_body[-1] if last.then_body else None
        if not isinstance(inner, ir.If) or inner.cond is not guard or inner.else_body:
            inner = ir.If(guard, location=stmt.location)
            last.then_body.append(inner)
        inner.then_body.append(stmt)

    def _enter_loop(self) -> None:
        waiting = [s for s in self.strands if s.is_at_loop]
        written_out = [s for s in waiting if s.next.kind in ("UNROLL", "VECTORIZED") and constant_value(s.next.extents[0]) is not None]
        if written_out:
            for strand in written_out:
                self._write_out(strand)
            return
        loops = [s.ahead[0][0] for s in waiting]
        guards = [s.ahead[0][1] for s in waiting]
        if not loops or not self._are_alike(loops) or any(g is not None for g in guards):
            blocked = next((s.next for s in self.strands if isinstance(s.next, Signal)), None)
            raise Late(blocked or _first_signal(loops))
        self._together(waiting, loops)

    def _are_alike(self, loops) -> bool:
        """Whether all have as many turns, whatever the others' bodies store."""
        extent = loops[0].extents[0]
        read = set()
        finds(extent, lambda e: e.op == "LOAD" and read.add(e.value))
        return all(l.extents[0] is extent and len(l.vars) == 1 for l in loops) and not any(_writes(l.body, read) for l in loops)

    def _together(self, waiting, loops) -> None:
        first = loops[0]
        var = Var("LOOP", first.vars[0].dtype, first.vars[0].name)
        kind = first.kind if all(l.kind == first.kind for l in loops) else "SERIAL"
        loop = ir.For(kind, [var], list(first.extents), [], min(l.num_stages for l in loops), location=first.location)
        bodies = [(s.cond, Names({l.vars[0].expr: var.expr}).copied(l.body)) for s, l in zip(waiting, loops)]
        loop.body[:] = _Weaver(bodies, self.state, {**self.values, var.expr: const(0, var.dtype)}).weave()
        for strand in waiting:
            strand.ahead.pop(0)
        turns(loop, self.state, self.values, done=1)
        self.out.append(loop)

    def _write_out(self, strand: _Strand) -> None:
        loop, guard = strand.ahead[0]
        turns = range(constant_value(loop.extents[0]))
        strand.ahead[:1] = [(s, guard) for turn in turns
                            for s in Names({loop.vars[0].expr: const(turn, loop.vars[0].dtype)}).copied(loop.body)]


def _and(guard, cond):
    return cond if guard is None else logical("AND", guard, cond)


def _first_signal(stmts):
    for s in stmts:
        if isinstance(s, Signal):
            return s
        found = _first_signal([inner for block in blocks_of(s) for inner in block])
        if found is not None:
            return found
    return None


def _writes(stmts, buffers: set) -> bool:
    if not buffers:
        return False
    return any(bool(buffers.intersection(ir.written(s))) or any(_writes(b, buffers) for b in blocks_of(s)) for s in stmts)
