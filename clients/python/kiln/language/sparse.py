# SPDX-License-Identifier: Apache-2.0
"""Products with a matrix of which at most two of four neighbours along k are not zero, held as those two and metadata of where they are. Four
bits of metadata are for one group: of elements of 16 bits and less the places of its two, the lower bits first; of 32 bits, where a group is
of two elements and one is kept, the places of its halves, 0b0100 or 0b1110."""

from __future__ import annotations

from .. import notices
from . import program as ir
from .products import check_product, check_tf32, clear_before, matrix_of
from .regions import Region, closed, operand
from .tile_ops import GemmWarpPolicy
from .trace import emit, error

_BITS = 4  # of metadata for a group


def group_of(dtype) -> tuple:
    """(elements that are kept, elements of a group)."""
    return (1, 2) if dtype.bits == 32 else (2, 4)


def elements_of(dtype, meta_dtype) -> int:
    """How many elements along k one element of metadata is for."""
    return meta_dtype.bits // _BITS * group_of(dtype)[1]


def _check_metadata(a: Region, e: Region, transpose_a: bool, transpose_e: bool) -> None:
    if e.dtype.kind not in "iu" or e.dtype.bits not in (8, 16, 32) or a.dtype.bits not in (8, 16, 32):
        raise error(f"T.gemm_sp of {a.dtype} with metadata of {e.dtype}: elements have 8, 16 or 32 bits, and so have "
                    f"metadata, which are integers")
    (m, kept), (rows, columns) = matrix_of("T.gemm_sp", "A_sparse", a, transpose_a), matrix_of("T.gemm_sp", "E", e, transpose_e)
    k, each = 2 * kept, elements_of(a.dtype, e.dtype)
    if (rows, columns * each) != (m, k):
        raise error(f"T.gemm_sp of A {m}×{k}, of which {kept} columns are kept, with metadata {rows}×{columns}: an element of {e.dtype} is for "
                    f"{each} of {a.dtype}, so {m}×{k // each} is needed; check transpose_E and the shapes of the allocations")


def gemm_sp(A_sparse, E, B, C, transpose_A=False, transpose_E=False, transpose_B=False, policy=GemmWarpPolicy.Square, clear_accum=False,
            k_pack=1, wg_wait=0, annotations=None, *, allow_tf32=False):
    """C += op(A) · op(B), where A has two of every four neighbours along k (of 32-bit elements one of two): ``A_sparse`` holds what is kept, ``E``
    where it was, row by row. Four bits of E are for one group, the first in the lowest: the place of the first kept element, then that of the
    second, which lies behind it; of 32-bit elements 0b0100 for the first and 0b1110 for the second of the two. Where E has other bits, the kept
    elements must be 0, as they are beyond a tensor's end. ``transpose_A`` says that A_sparse holds k × m, ``transpose_E`` the same of E,
    ``transpose_B`` that B holds n × k. kiln.sparse.compress makes A_sparse and E on the host. NVIDIA GPUs from sm_80 on multiply such tiles of
    16-bit floats, tf32 and 8-bit integers by their sparse instructions, which take half of a dense product's time; 8-bit floats on sm_89, sm_90a
    and sm_120a. So do AMD's gfx942 and gfx950, except tf32. Elsewhere the tile becomes dense in shared memory and is multiplied as T.gemm does;
    `kiln explain` shows the choice. Where B is not finite beside a place that is left out, the first give a number and the second NaN.
    ``allow_tf32``: as of T.gemm. ``k_pack``, ``wg_wait`` and ``annotations``: no effect, with a warning.
    Shapes: A_sparse is m × k/2, E is m × k/e with e the elements that one of E is for, B is k × n, C is m × n. Memory: as T.gemm; E is in shared
    memory or a fragment. Dtypes: as T.gemm, of 8, 16 or 32 bits, with E of int8, int16, int32 or their unsigned kin. Targets: all. Errors:
    TraceError where shapes or dtypes do not fit. CompileError as T.gemm."""
    notices.unused("T.gemm_sp", annotations=(annotations, (None, {}), "what annotations say is inferred; leave them out"),
                   k_pack=(k_pack, (1, None), "how operands lie in registers is inferred; leave it out"),
                   wg_wait=(wg_wait, (0, None), "products are waited for where their result is used; leave it out"))
    a, e, b, c = (closed(operand(x, f"operand {name} of T.gemm_sp")) for x, name in ((A_sparse, "A_sparse"), (E, "E"), (B, "B"), (C, "C")))
    _check_metadata(a, e, bool(transpose_A), bool(transpose_E))
    check_product("T.gemm_sp", a, b, c, transpose_A, transpose_B, kept=2)
    if allow_tf32:
        check_tf32("T.gemm_sp", a, b)
    cleared = clear_before("T.gemm_sp", c, clear_accum)
    emit(ir.Gemm(a, b, c, bool(transpose_A), bool(transpose_B), int(policy), cleared, bool(allow_tf32), e, bool(transpose_E)))
