# SPDX-License-Identifier: Apache-2.0
"""Which threads of a block come to a statement, by the conditions around it."""

from __future__ import annotations

import math

from . import program as ir
from . import trace as tr
from .affine import evaluated, finds
from .expr import Expr, const, constant_value
from .launch import get_thread_binding


def _conditions(trace) -> list:
    """(condition, whether it holds) of each If around the next statement."""
    found = []
    for block, inner in zip(trace.blocks, trace.blocks[1:]):
        stmt = block[-1] if block else None
        if isinstance(stmt, ir.If):
            found.append((stmt.cond, inner is not stmt.else_body))
    return found


def threads_here(name: str) -> list:
    """The numbers of the threads that come to the next statement where the block does. TraceError where values that are known at run time only
    decide."""
    trace = tr.current(f"T.{name}")
    if trace.kernel is None:
        raise tr.error(f"T.{name} is used outside T.Kernel")
    block = list(trace.kernel.block)
    threads = [get_thread_binding(dim) for dim in range(len(block))]
    if trace.kernel.thread_var is not None:
        threads, block = [trace.kernel.thread_var.expr], [math.prod(block)]
    variables = [(t, extent) for t, extent in zip(threads, block) if isinstance(t, Expr) and t.op == "VAR"]
    conditions = [(tr.unnamed(c), holds) for c, holds in _conditions(trace)]
    deciding = [(c, holds) for c, holds in conditions if finds(c, lambda e: any(e is t for t, _ in variables))]
    here = []
    for number in range(math.prod(extent for _, extent in variables)):
        values, rest = {}, number
        for variable, extent in variables:
            values[variable], rest = const(rest % extent, variable.dtype), rest // extent
        comes = [evaluated(c, values) for c, _ in deciding]
        known = [constant_value(c) for c in comes]
        if None in known:
            raise tr.error(f"T.{name} under {deciding[known.index(None)][0]!r}: which threads come here is not known while the program is traced")
        if all(bool(k) == holds for k, (_, holds) in zip(known, deciding)):
            here.append(number)
    return here
