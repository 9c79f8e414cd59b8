# SPDX-License-Identifier: Apache-2.0
"""Large expressions in parts. An expression is a graph in which parts are shared, and the service limits how many nodes it has written out
and how deep it is; parts that are too large become variables."""

from __future__ import annotations

from ..language import program as ir
from ..language.expr import Expr, Var, make

_LARGE, _PART = 2048, 192  # nodes of an expression that is taken apart; of the parts


def _taken_apart(expr: Expr, lets: list, done: dict) -> Expr:
    found = done.get(expr)
    if found is None:
        args = tuple(_taken_apart(arg, lets, done) for arg in expr.args)
        found = expr if all(a is b for a, b in zip(args, expr.args)) else make(expr.op, expr.dtype, args, expr.value)
        if found.size > _PART and expr.op != "LOAD":  # a load may stand under the mask that allows it
            var = Var("LET", found.dtype, f"part_{len(lets)}")
            lets.append(ir.Let(var, found))
            found = var.expr
        done[expr] = found
    return found


def in_parts(stmt) -> list:
    """The statement, after those that bind parts of it."""
    lets: list = []
    if isinstance(stmt, ir.If):
        fields = {"cond": stmt.cond}
    elif isinstance(stmt, ir.Let):
        fields = {"value": stmt.value}
    elif isinstance(stmt, (ir.Store, ir.Atomic)):
        fields = {"value": stmt.value, "compare": getattr(stmt, "compare", None), **dict(enumerate(stmt.indices))}
    else:
        return [stmt]
    done: dict = {}
    for name, expr in fields.items():
        if not isinstance(expr, Expr) or expr.size <= _LARGE:
            continue
        small = _taken_apart(expr, lets, done)
        if isinstance(name, int):
            stmt.indices[name] = small
        else:
            setattr(stmt, name, small)
    for let in lets:
        let.location = stmt.location
    return [*lets, stmt]
