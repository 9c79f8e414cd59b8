# SPDX-License-Identifier: Apache-2.0
"""What plans of row-wise functions share: (…, N) as M rows of N, and which program keeps such rows where."""

from __future__ import annotations

from . import sizes
from .plans import Dynamic, Program, View

M = Dynamic("M")
TOTAL = Dynamic("total", dtype="int64")  # elements of all rows
LONGEST = 131072  # elements of two bytes that a block's registers and shared memory, or a cluster's, hold together
UNIT = 8  # neighbours in a row that stay in one block (compiler/rows/split_rows.cc)


def flat(spec) -> tuple:
    """(M, N) of a tensor (…, N)."""
    n = spec.shape[-1]
    return spec.size // n if n else 0, n


def rows_of(index: int, spec) -> View:
    """A tensor (…, N) as M rows."""
    return View(index, flat(spec))


def flat_of(index: int, spec) -> View:
    """A tensor (…, N) as one row after the other."""
    return View(index, (spec.size,))


def flat_rows(build, name: str, n: int, spec, **more) -> Program:
    """A program of ``programs.kept`` for rows of n elements, as flat tensors."""
    return Program.of(build, total=TOTAL, N=n, dtype=str(spec.dtype), **more, **sizes.kept(name, n))


def each_row(index: int, spec) -> View:
    """A tensor (…) of one number for each row."""
    return View(index, (spec.size,))


def whole(index: int, spec) -> View:
    """A tensor as it is."""
    return View(index, spec.shape)


def kept_in(program: str, n: int, dtype, target: str) -> str:
    """Where a program keeps rows of n elements between its two looks at them: "registers" (of a block, or its shared memory), "block"
    (registers and shared memory of a large block, or a cluster's), "kept" (shared memory of small blocks, or a cluster's, wherever rows begin), or
    "memory": it reads them twice."""
    if _is_kept(program, n) and target.endswith(":sm_90a") and dtype.bytes == 2:
        return "kept"
    if n <= sizes.IN_REGISTERS and (target.endswith(":sm_90a") or n * dtype.bytes <= 32768):
        return "registers"
    if not target.endswith(":sm_90a") or dtype.bytes != 2 or n > LONGEST:
        return "memory"
    if program not in ("layer_norm", "layer_norm_backward"):
        return "block" if sizes.row_part(n) else "memory"
    blocks = sizes.row_blocks(f"{program}_long", n)
    return "block" if blocks > 1 and n % (blocks * UNIT) == 0 else "memory"


# From so many elements on, odd rows of the programs that have such a form are kept in shared memory: shorter ones share blocks.
_KEPT_FROM = {"softmax": 1024, "cross_entropy": 1024, "quantize_rows": 2048, "rms_norm": 4096, "layer_norm": 4096}


def _is_kept(program: str, n: int) -> bool:
    """Whether small blocks keep such rows in shared memory. Not where another variant is faster: short rows, rows that are a multiple of 16384
    elements (one large block keeps them), and norms of rows for which one block, or a persistent cluster, reads the weights less often."""
    if program not in _KEPT_FROM or n > LONGEST:
        return False
    if n % UNIT != 0:
        return n >= _KEPT_FROM[program]
    if n <= sizes.IN_REGISTERS or n % sizes.IN_REGISTERS == 0:
        return False
    if program == "layer_norm":
        blocks = sizes.row_blocks("layer_norm_long", n)
        return blocks == 1 or n % (blocks * UNIT) != 0
    return program != "rms_norm" or sizes.row_part(n) == 0 or sizes.kept(program, n)["blocks"] <= 2
