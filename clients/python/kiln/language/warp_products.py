# SPDX-License-Identifier: Apache-2.0
"""Instructions of warps that a program chooses itself. T.gemm is what programs use otherwise."""

from __future__ import annotations

import re

from . import program as ir
from .buffer import Buffer, Region
from .expr import as_expr, constant_value
from .trace import emit, error

_TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "int8": "int8", "uint8": "uint8", "int32": "int32", "e4m3": "float8_e4m3fn",
          "e5m2": "float8_e5m2"}
_LANES = 32


def _part(name: str, value, offset, elements: int, abbreviation: str) -> Region:
    """So many elements of each thread's array from the offset on."""
    buffer = value.buffer if isinstance(value, Region) else value
    if not isinstance(buffer, Buffer) or buffer.space != "LOCAL" or len(buffer.shape) != 1:
        raise error(f"operand {name} of T.ptx_mma is the data of a T.alloc_local of one dimension, not {value!r}")
    if str(buffer.dtype) != _TYPES.get(abbreviation):
        raise error(f"operand {name} of T.ptx_mma is said to be {abbreviation!r}, and {buffer.name} is {buffer.dtype}; known: {', '.join(_TYPES)}")
    if isinstance(value, Region):
        offset = as_expr(value.offsets[0]) + offset
    return Region(buffer, (as_expr(offset),), (elements,), range(1))


def ptx_mma(dtype, shape, A_layout, B_layout, A_dtype, B_dtype, C_dtype, multiplicand_a, a_index, multiplicand_b, b_index, accumulator, c_index,
            saturate=False, operator=None):
    """c += a · b by one instruction of each warp (PTX's mma.sync), on what the warp's threads hold in arrays of their own: from ``a_index``,
    ``b_index`` and ``c_index`` on, in the order of the instruction's registers. ``shape``, as "m16n8k16", and the operands' types name it.
    T.gemm is shorter, and the compiler chooses for it what the target is best at.
    Shapes: ``multiplicand_a``, ``multiplicand_b`` and ``accumulator`` are T.alloc_local of one dimension, their ``data`` or slices; a thread's part
    of m × k, n × k and m × n is a 32nd. ``A_layout`` is "row", ``B_layout`` "col". Dtypes: "fp16", "bf16", "int8", "uint8", "e4m3" or "e5m2" for
    a and b, "fp16", "fp32" or "int32" for c, as the arrays have. Targets: those that have the instruction. Errors: TraceError for other layouts,
    ``saturate`` or ``operator``. CompileError where the target has no such instruction, or threads come that are not whole warps."""
    found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", shape)
    if found is None:
        raise error(f"T.ptx_mma of shape {shape!r}, which is written as \"m16n8k16\"")
    if (A_layout, B_layout) != ("row", "col"):
        raise error(f"T.ptx_mma of operands {A_layout!r} and {B_layout!r}: the instruction takes A by rows and B by columns, \"row\" and \"col\"")
    if operator is not None or constant_value(saturate) not in (False, 0):
        raise error("T.ptx_mma with saturate or operator is not part of this version: leave them out")
    m, n, k = map(int, found.groups())
    if any(size % _LANES for size in (m * k, n * k, m * n)):
        raise error(f"T.ptx_mma of shape {shape!r}: {_LANES} threads hold the parts of a matrix, and its elements are no multiple of that")
    emit(ir.Mma(_part("A", multiplicand_a, a_index, m * k // _LANES, A_dtype), _part("B", multiplicand_b, b_index, n * k // _LANES, B_dtype),
                _part("C", accumulator, c_index, m * n // _LANES, C_dtype), m, n, k))


__all__ = ["ptx_mma"]
