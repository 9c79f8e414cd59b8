# SPDX-License-Identifier: Apache-2.0
"""Layouts for T.annotate_layout, which infers those of tiles and says so, and takes T.Layout(shape, function) of tensor parameters."""

import enum

from kiln.language.dtypes import as_dtype
from kiln.language.layout import Fragment, Layout

from . import _absent

__all__ = ["Fragment", "Layout"]


def _inferred(name):
    def make(*_, **__):
        return Layout()

    make.__name__ = name
    make.__doc__ = "A layout of a tile, whose own is inferred: T.annotate_layout warns that it has no effect."
    return make


def _fragment(name):
    def make(*_, **__):
        return Fragment()

    make.__name__ = name
    make.__doc__ = "A layout of a fragment, whose own is inferred: T.annotate_layout warns that it has no effect."
    return make


make_swizzled_layout = _inferred("make_swizzled_layout")
make_volta_swizzled_layout = _inferred("make_volta_swizzled_layout")
make_wgmma_swizzled_layout = _inferred("make_wgmma_swizzled_layout")
make_full_bank_swizzled_layout = _inferred("make_full_bank_swizzled_layout")
make_half_bank_swizzled_layout = _inferred("make_half_bank_swizzled_layout")
make_quarter_bank_swizzled_layout = _inferred("make_quarter_bank_swizzled_layout")
make_mma_swizzle_layout = _inferred("make_mma_swizzle_layout")
make_gemm_fragment_8x8 = _fragment("make_gemm_fragment_8x8")
make_gemm_fragment_8x8_transposed = _fragment("make_gemm_fragment_8x8_transposed")
make_fully_replicated_layout_fragment = _fragment("make_fully_replicated_layout_fragment")


def get_swizzle_layout(row, column, row_size, dtype, swizzle_bytes=None):
    """Where an element of a tile with rows of ``row_size`` elements lies if rows are cut into pieces of ``swizzle_bytes`` (at most 128) and the
    vectors of 16 bytes of a piece are permuted by the number of the row, so that eight rows' vectors of one column share no bank: (piece, row,
    column in the piece)."""
    bits = as_dtype(dtype).bits
    row_bytes = row_size * bits // 8
    if row_bytes % 32:
        raise ValueError(f"a row of {row_size} × {dtype} has {row_bytes} bytes; a swizzled one has a multiple of 32")
    in_vector, vectors = 128 // bits, (swizzle_bytes or min(128, row_bytes)) // 16
    vector = column // in_vector
    moved = (vector % vectors) ^ ((row % 8) // (8 // vectors))
    return vector // vectors, row, moved * in_vector + column % in_vector


class SwizzleMode(enum.IntEnum):
    """How rows of a tile are permuted in pieces of so many bytes."""

    NONE, SWIZZLE_32B, SWIZZLE_64B, SWIZZLE_128B = 0, 32, 64, 128


def make_linear_layout(buffer, *_, **__):
    """Row-major."""
    return Layout(getattr(buffer, "shape", buffer), lambda *index: list(index))


__path__ = []  # so that "tilelang.layout.swizzle" can be imported
__getattr__ = _absent.getter(__name__)
