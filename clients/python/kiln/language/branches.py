# SPDX-License-Identifier: Apache-2.0
"""Which threads of a block come to a statement, by the conditions around it."""

from __future__ import annotations

import math

from . import program as ir
from . import trace as tr
from .affine import finds
from .expr import Expr, binary, cast, const, constant_value, logical, logical_not
from .launch import get_thread_binding


def _conditions(trace) -> list:
    """(condition, whether it holds) of each If around the next statement."""
    found = []
    for block, inner in zip(trace.blocks, trace.blocks[1:]):
        stmt = block[-1] if block else None
        if isinstance(stmt, ir.If):
            found.append((stmt.cond, inner is not stmt.else_body))
    return found


def _with(e: Expr, values: dict, done: dict):
    """The expression with numbers for variables, or None where it has an operation that is not followed here."""
    if e in done:
        return done[e]
    if e in values:
        result = values[e]
    elif e.op in ("VAR", "CONST_INT", "CONST_FLOAT"):
        result = e
    else:
        args = [_with(a, values, done) for a in e.args]
        if any(a is None for a in args):
            result = None
        elif e.op in ("AND", "OR"):
            result = logical(e.op, *args)
        elif e.op == "NOT":
            result = logical_not(args[0])
        elif e.op == "CAST":
            result = cast(args[0], e.dtype)
        else:
            result = binary(e.op, *args) if len(args) == 2 and e.op != "POW" else None
    done[e] = result
    return result


def threads_here(name: str) -> int:
    """How many threads come to the next statement where the block does. TraceError where values that are known at run time only decide."""
    trace = tr.current(f"T.{name}")
    if trace.kernel is None:
        raise tr.error(f"T.{name} is used outside T.Kernel")
    block = list(trace.kernel.block)
    threads = [get_thread_binding(dim) for dim in range(len(block))]
    if trace.kernel.thread_var is not None:
        threads, block = [trace.kernel.thread_var.expr], [math.prod(block)]
    variables = [(t, extent) for t, extent in zip(threads, block) if isinstance(t, Expr) and t.op == "VAR"]
    deciding = [(c, holds) for c, holds in _conditions(trace) if finds(c, lambda e: any(e is t for t, _ in variables))]
    count = 0
    for number in range(math.prod(extent for _, extent in variables)):
        values, rest = {}, number
        for variable, extent in variables:
            values[variable], rest = const(rest % extent, variable.dtype), rest // extent
        comes = [_with(c, values, {}) for c, _ in deciding]
        known = [None if c is None else constant_value(c) for c in comes]
        if None in known:
            raise tr.error(f"T.{name} under {deciding[known.index(None)][0]!r}: which threads come here is not known while the program is traced")
        count += all(bool(k) == holds for k, (_, holds) in zip(known, deciding))
    return count
