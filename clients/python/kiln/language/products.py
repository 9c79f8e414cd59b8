# SPDX-License-Identifier: Apache-2.0
"""What T.gemm and T.gemm_sp have in common."""

from __future__ import annotations

from . import program as ir
from .buffer import Region
from .expr import as_expr, cast, constant_value
from .regions import describe
from .trace import current, emit, error


def clear_before(name: str, c: Region, clear_accum) -> bool:
    """Whether the product itself starts from zero. Where that is known at run time only, a statement before it sets its sum to zero."""
    known = constant_value(clear_accum)
    if known is None:
        trace = current(name)
        guard = trace.emit(ir.If(as_expr(clear_accum)))
        with trace.inside(guard.then_body):
            emit(ir.Fill(c, cast(0, c.dtype)))
    return bool(known)


def matrix_of(name: str, operand: str, region: Region, transposed: bool = False) -> tuple:
    """(rows, columns) of what the operand holds, or of its transpose."""
    if len(region.extents) < 2 or any(e != 1 for e in region.extents[:-2]):
        raise error(f"operand {operand} of {name} must be a matrix (leading dimensions of size 1 are allowed), not {describe(region)}")
    rows, columns = region.extents[-2:]
    return (columns, rows) if transposed else (rows, columns)


def check_product(name: str, a, b, c, transpose_a, transpose_b, kept: int = 1) -> None:
    """``kept``: of so many neighbours along k, A holds one."""
    (m, k), (k2, n), sum_ = matrix_of(name, "A", a, transpose_a), matrix_of(name, "B", b, transpose_b), matrix_of(name, "C", c)
    k *= kept
    if k != k2 or sum_ != (m, n):
        raise error(f"{name} of A {m}×{k} and B {k2}×{n} into C {sum_[0]}×{sum_[1]}: "
                    + ("the inner sizes differ; " if k != k2 else f"C must be {m}×{n}; ")
                    + "check transpose_A and transpose_B and the shapes of the allocations")


def check_tf32(name: str, a: Region, b: Region) -> None:
    if a.dtype != "float32" or b.dtype != "float32":
        raise error(f"{name}(allow_tf32=True) is for float32, and A is {a.dtype}, B {b.dtype}; leave it out")
