# SPDX-License-Identifier: Apache-2.0
"""How much a traced function computes and moves."""

from __future__ import annotations

import math

from . import program as ir
from .affine import finds
from .buffer import Region
from .expr import Expr, as_expr, constant_value


def of_kernel(kernel: ir.Kernel) -> tuple[int, int]:
    """(operations of products, two for each multiplication and addition; bytes of tensors that are read and written) of a launch. Both sides of a
    condition count, and all of a region that reaches beyond its tensor. ValueError where a grid's or loop's extent is known at run time only."""
    counter = _Counter(kernel)
    counter.block(kernel.body, math.prod(_known(e, "an extent of the grid") for e in kernel.grid))
    return counter.operations, counter.bytes


def _known(e, what: str) -> int:
    number = constant_value(as_expr(e))
    if number is None:
        raise ValueError(f"{what}, {e!r}, is known at run time only: trace the function with the sizes of a call")
    return int(number)


def _is_tensor(buffer) -> bool:
    return buffer.space == "GLOBAL"


class _Counter:
    def __init__(self, kernel: ir.Kernel):
        self.kernel, self.operations, self.bytes = kernel, 0, 0

    def block(self, stmts, times: int, parallel: bool = False):
        for s in stmts:
            self._stmt(s, times, parallel)
            inner = times
            if isinstance(s, ir.For):
                inner *= math.prod(_known(e, "the extent of a loop") for e in s.extents)
            for name in ("body", "then_body", "else_body"):
                self.block(getattr(s, name, ()), inner, parallel or isinstance(s, ir.For) and s.kind == "PARALLEL")

    def _stmt(self, s, times: int, parallel: bool):
        if isinstance(s, ir.Gemm):
            rows, columns = s.c.extents[-2:]
            self.operations += 2 * rows * columns * s.b.extents[-1 if s.transpose_b else -2] * times
        for operand in _operands(s):
            if isinstance(operand, Region) and _is_tensor(operand.buffer):
                self._move(operand.dtype, math.prod(_known(e, "the extent of a region") for e in operand.extents) * times)
        expressions = list(ir.expressions(s))
        if isinstance(s, (ir.Store, ir.Atomic)) and _is_tensor(s.buffer):
            self._move(s.buffer.dtype, self._executions(s.indices, times, parallel))
        for e in expressions:
            for load in _loads(e):
                self._move(load.dtype, self._executions(load.args, times, parallel))

    def _executions(self, indices, times: int, parallel: bool) -> int:
        """Outside of parallel loops each thread has an element of its own where its number is in the index."""
        own = any(finds(as_expr(i), lambda node: node.op == "VAR" and node.value.kind == "THREAD") for i in indices)
        return times * (self.kernel.threads if own and not parallel else 1)

    def _move(self, dtype, elements: int):
        self.bytes += elements * dtype.bits // 8


def _operands(s) -> list:
    return [getattr(s, name) for name in ("src", "dst", "a", "b", "c") if hasattr(s, name)]


def _loads(root: Expr) -> list:
    found = []
    finds(root, lambda node: bool(node.op == "LOAD" and _is_tensor(node.value) and found.append(node)))
    return found
