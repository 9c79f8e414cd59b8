# SPDX-License-Identifier: Apache-2.0
"""Products with a matrix of which at most two of four neighbours along k are not zero, held as those two and metadata of where they are. Four
bits of metadata are for one group: of elements of 16 bits and less the places of its two, the lower bits first; of 32 bits, where a group is
of two elements and one is kept, the places of its halves, 0b0100 or 0b1110. The matrix is made dense in shared memory and multiplied as
T.gemm does."""

from __future__ import annotations

from .. import notices
from .agreed import agree
from .expr import as_expr, binary, cast, const, select
from .loops import Parallel
from .regions import Region, closed, describe, operand, shifted
from .tile_ops import GemmWarpPolicy, gemm
from .trace import allocate, error, store

_BITS = 4  # of metadata for a group


def group_of(dtype) -> tuple:
    """(elements that are kept, elements of a group)."""
    return (1, 2) if dtype.bits == 32 else (2, 4)


def elements_of(dtype, meta_dtype) -> int:
    """How many elements along k one element of metadata is for."""
    return meta_dtype.bits // _BITS * group_of(dtype)[1]


def _matrix(value, name: str) -> Region:
    region = closed(operand(value, f"operand {name} of T.gemm_sp"))
    if len(region.extents) < 2 or any(e != 1 for e in region.extents[:-2]):
        raise error(f"operand {name} of T.gemm_sp must be a matrix (leading dimensions of size 1 are allowed), not {describe(region)}")
    return region


def _at(region: Region, row, column, transposed: bool):
    """The element that the matrix has at (row, column), or at (column, row) of its memory."""
    rank = len(region.extents)
    place = (column, row) if transposed else (row, column)
    return as_expr(region.buffer[shifted(region, {rank - 2: place[0], rank - 1: place[1]})])


def _shape(region: Region, transposed: bool) -> tuple:
    rows, columns = region.extents[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _dense(a: Region, e: Region, transpose_a: bool, transpose_e: bool):
    """The tile that ``a`` and ``e`` describe, in the order in which ``a`` lies."""
    (m, kept), (rows, columns) = _shape(a, transpose_a), _shape(e, transpose_e)
    keeps, group = group_of(a.dtype)
    k, each = kept // keeps * group, elements_of(a.dtype, e.dtype)
    if e.dtype.kind not in "iu" or a.dtype.bits not in (8, 16, 32):
        raise error(f"T.gemm_sp of {a.dtype} with metadata of {e.dtype}: elements have 8, 16 or 32 bits, and metadata are integers")
    if (rows, columns * each) != (m, k):
        raise error(f"T.gemm_sp of A {m}×{k}, of which {kept} columns are kept, with metadata {rows}×{columns}: an element of {e.dtype} is for "
                    f"{each} of {a.dtype}, so {m}×{k // each} is needed; check transpose_E and the shapes of the allocations")
    tile = allocate("SHARED", (k, m) if transpose_a else (m, k), a.dtype, f"{a.name}_dense")
    agree(a, e)
    for first, second in Parallel(*tile.shape):
        row, column = (second, first) if transpose_a else (first, second)
        word = cast(_at(e, row, column // each, transpose_e), f"uint{max(e.dtype.bits, 32)}")
        word = binary("SHR", word, cast(column // group % (each // group) * _BITS, word.dtype))
        zero, place = const(0, a.dtype), cast(column % group, word.dtype)
        value = zero
        for which in reversed(range(keeps)):
            # Of 32 bits the first half's place says which element it is.
            at = binary("BIT_AND", binary("SHR", word, const(2 * which, word.dtype)), const(3, word.dtype))
            at = at if keeps == 2 else binary("SHR", at, const(1, word.dtype))
            value = select(binary("EQ", at, place), _at(a, row, column // group * keeps + which, transpose_a), value)
        store(tile, (first, second), value)
    return tile


def gemm_sp(A_sparse, E, B, C, transpose_A=False, transpose_E=False, transpose_B=False, policy=GemmWarpPolicy.Square, clear_accum=False,
            k_pack=1, wg_wait=0, annotations=None):
    """C += op(A) · op(B), where A has two of every four neighbours along k (of 32-bit elements one of two): ``A_sparse`` holds what is kept, ``E``
    where it was, row by row. Four bits of E are for one group, the first in the lowest: the place of the first kept element, then that of the
    second; of 32-bit elements 0b0100 for the first and 0b1110 for the second of the two. ``transpose_A`` says that A_sparse holds k × m,
    ``transpose_E`` the same of E, ``transpose_B`` that B holds n × k. kiln.sparse.compress makes A_sparse and E on the host. The tile becomes dense
    in shared memory and is multiplied as T.gemm does, so that it takes less of the memory's bandwidth than a dense one, and as long to multiply.
    ``k_pack``, ``wg_wait`` and ``annotations``: no effect, with a warning.
    Shapes: A_sparse is m × k/2, E is m × k/e with e the elements that one of E is for, B is k × n, C is m × n. Memory: as T.gemm; E is in shared
    memory or a fragment. Dtypes: as T.gemm, of 8, 16 or 32 bits, with E of int8, int16, int32 or their unsigned kin. Targets: all. Errors:
    TraceError where shapes or dtypes do not fit. CompileError as T.gemm."""
    notices.unused("T.gemm_sp", annotations=(annotations, (None, {}), "what annotations say is inferred; leave them out"),
                   k_pack=(k_pack, (1, None), "how operands lie in registers is inferred; leave it out"),
                   wg_wait=(wg_wait, (0, None), "products are waited for where their result is used; leave it out"))
    a, e = _matrix(A_sparse, "A_sparse"), _matrix(E, "E")
    gemm(_dense(a, e, bool(transpose_A), bool(transpose_E)), B, C, transpose_A, transpose_B, policy, clear_accum)
