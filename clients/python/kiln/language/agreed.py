# SPDX-License-Identifier: Apache-2.0
"""Tile operations that become loops before the compiler sees them. Which thread runs an iteration is the compiler's choice, so their offsets and
values must be the same for all threads, as those of other tile operations. A statement that the threads do together takes each of them that may
differ, so that the compiler refuses it unless it sees that the threads agree."""

from __future__ import annotations

from . import program as ir
from .affine import finds
from .buffer import Buffer
from .expr import as_expr
from .loops import Parallel, grid
from .trace import current, emit


def may_differ(operand) -> bool:
    """Whether the operand has the thread's number in it, what the thread keeps for itself, or a value from before, which may be either."""
    return finds(as_expr(operand), _is_of_thread)


def _is_of_thread(node) -> bool:
    return node.value.kind in ("THREAD", "LET") if node.op == "VAR" else node.op == "LOAD" and node.value.space in ("LOCAL", "FRAGMENT")


def agreements(regions, values=()) -> list:
    """The statements that take the offsets of regions, and values."""
    if any(region.buffer.space == "LOCAL" for region in regions):  # each thread does all of such an operation
        return []
    named = [(f"{region.name}_offset", offset) for region in regions for offset in region.offsets]
    stmts = []
    for name, operand in [*named, *(("value", value) for value in values)]:
        if may_differ(operand):
            taken = Buffer("FRAGMENT", (1,), as_expr(operand).dtype, name)
            stmts += [ir.Alloc(taken), ir.Fill(taken.whole(), as_expr(operand))]
    return stmts


def agree(*regions, values=()) -> None:
    """In front of a loop over what the regions hold. In a parallel loop it stands for an iteration, not for threads."""
    if "parallel" in current("a tile operation").loops:
        return
    for stmt in agreements(regions, values):
        emit(stmt)


def each(extents, *regions, values=()):
    """The indices of such a loop, as tuples: the threads share it, or each thread does all of it where a region is its own."""
    if any(region.buffer.space == "LOCAL" for region in regions):
        yield from grid(*extents)
        return
    agree(*regions, values=values)
    for index in Parallel(*extents):
        yield index if isinstance(index, tuple) else (index,)
