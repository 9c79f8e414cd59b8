# SPDX-License-Identifier: Apache-2.0
"""What plans of row-wise functions share: (…, N) as M rows of N, and which program keeps such rows where."""

from __future__ import annotations

from . import sizes
from .plans import Dynamic, View

M = Dynamic("M")
LONGEST = 131072  # elements of two bytes that a block's registers and shared memory, or a cluster's, hold together
UNIT = 8  # neighbours in a row that stay in one block (compiler/rows/split_rows.cc)


def flat(spec) -> tuple:
    """(M, N) of a tensor (…, N)."""
    n = spec.shape[-1]
    return spec.size // n if n else 0, n


def rows_of(index: int, spec) -> View:
    """A tensor (…, N) as M rows."""
    return View(index, flat(spec))


def each_row(index: int, spec) -> View:
    """A tensor (…) of one number for each row."""
    return View(index, (spec.size,))


def whole(index: int, spec) -> View:
    """A tensor as it is."""
    return View(index, spec.shape)


def kept_in(program: str, n: int, dtype, target: str) -> str:
    """Where a program keeps rows of n elements between its two looks at them: "registers" (of a block, or its shared memory), "block"
    (registers and shared memory of a large block, or a cluster's), or "memory": it reads them twice."""
    if n <= sizes.IN_REGISTERS and (target.endswith(":sm_90a") or n * dtype.bytes <= 32768):
        return "registers"
    if not target.endswith(":sm_90a") or dtype.bytes != 2 or n > LONGEST:
        return "memory"
    if program not in ("layer_norm", "layer_norm_backward"):
        return "block" if sizes.row_part(n) else "memory"
    blocks = sizes.row_blocks(f"{program}_long", n)
    return "block" if blocks > 1 and n % (blocks * UNIT) == 0 else "memory"
