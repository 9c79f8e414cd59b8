# SPDX-License-Identifier: Apache-2.0
"""Statements once more, with other expressions for their variables; and parallel loops whose iterations are taken in turns."""

from __future__ import annotations

import copy
import math
from dataclasses import fields, replace

from . import program as ir
from .affine import evaluated
from .buffer import Buffer, Region
from .expr import Expr, Var, as_expr, binary, constant_value, floordiv, floormod


class Names:
    """What stands for what in a copy: expressions for variables, buffers for buffers that are allocated in it."""

    def __init__(self, values: dict):
        self.values, self.buffers = dict(values), {}

    def copied(self, stmts) -> list:
        result = []
        for stmt in stmts:
            cond = constant_value(self.of(stmt.cond)) if isinstance(stmt, ir.If) else None
            if cond is None:
                result.append(self._copy(stmt))
            else:
                result += self.copied(stmt.then_body if cond else stmt.else_body)
        return result

    def of(self, value):
        if isinstance(value, Expr):
            return evaluated(value, self.values, self.buffers)
        if isinstance(value, Buffer):
            return self.buffers.get(value, value)
        if isinstance(value, Region):
            return Region(self.of(value.buffer), [self.of(as_expr(o)) for o in value.offsets], value.extents, value.dims)
        if isinstance(value, ir.Element):
            return ir.Element(self.of(value.buffer), self.of(value.indices))
        if isinstance(value, list):
            return self.copied(value) if value and isinstance(value[0], ir.Stmt) else [self.of(v) for v in value]
        return value

    def _copy(self, stmt):
        """With variables and buffers of its own where it makes some."""
        if isinstance(stmt, ir.Alloc):
            old = stmt.buffer
            self.buffers[old] = new = copy.copy(old)
            return ir.Alloc(new, location=stmt.location)
        if isinstance(stmt, ir.Let):
            value, var = self.of(stmt.value), Var("LET", stmt.var.dtype, stmt.var.name)
            self.values[stmt.var.expr] = var.expr
            return ir.Let(var, value, location=stmt.location)
        if isinstance(stmt, ir.For):
            bound = [Var("LOOP", v.dtype, v.name) for v in stmt.vars]
            extents = [self.of(e) for e in stmt.extents]
            self.values.update((old.expr, new.expr) for old, new in zip(stmt.vars, bound))
            return replace(stmt, vars=bound, extents=extents, body=self.copied(stmt.body))
        return replace(stmt, **{part.name: self.of(getattr(stmt, part.name)) for part in fields(stmt) if part.name != "location"})


def in_turns(loop: ir.For, threads: int) -> None:
    """The parallel loop as a serial one in which each thread has one iteration, in the order of their numbers: what a thread keeps for itself and
    changes in each of its iterations, changes in that order, and the body is there once."""
    total = math.prod(constant_value(e) for e in loop.extents)
    dtype = loop.vars[0].dtype
    turn, lane = Var("LOOP", dtype, "turn"), Var("LOOP", dtype, "lane")
    number, values, inner = turn.expr * threads + lane.expr, {}, total
    for var, extent in zip(loop.vars, loop.extents):
        inner //= constant_value(extent)
        values[var.expr] = floormod(floordiv(number, inner), constant_value(extent))
    body = Names(values).copied(loop.body)
    if total % threads:
        body = [ir.If(binary("LT", number, total), body, location=loop.location)]
    parallel = ir.For("PARALLEL", [lane], [as_expr(min(threads, total))], body, 0, loop.coalesced_width, location=loop.location)
    loop.kind, loop.vars, loop.extents, loop.body, loop.coalesced_width = "SERIAL", [turn], [as_expr(-(-total // threads))], [parallel], 0
