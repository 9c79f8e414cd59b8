# SPDX-License-Identifier: Apache-2.0
"""Tiles whose elements come from computed places: transposed tiles, and the windows of a convolution."""

from __future__ import annotations

from .. import notices
from .agreed import agree, each
from .buffer import Buffer, Region
from .expr import as_expr, binary, const, constant_value, floordiv, floormod, logical, select
from .loops import Parallel
from .regions import closed, describe, operand
from .trace import current, error, store

_ANNOTATIONS = ((None, {}), "what annotations say is inferred; leave them out")


def _matrix(value, what: str) -> Region:
    region = closed(operand(value, what))
    if len(region.extents) < 2 or any(e != 1 for e in region.extents[:-2]):
        raise error(f"{what} must be a matrix (leading dimensions of size 1 are allowed), not {describe(region)}")
    return region


def _at(region: Region, row, column) -> tuple:
    *outer, r, c = (as_expr(o) for o in region.offsets)
    return (*outer, r + row, c + column)


def transpose(src, dst, annotations=None):
    """dst[j, i] = src[i, j], with a conversion where the dtypes differ. ``annotations``: no effect, with a warning.
    Shapes: ``src`` is m × n, ``dst`` is n × m: the last two dimensions; those before are of extent 1. Any memory. Dtypes: any two. Targets:
    all. Errors: TraceError where the shapes do not fit. CompileError where only some threads reach it, unless those are a range by number."""
    notices.unused("T.transpose", annotations=(annotations, *_ANNOTATIONS))
    a, b = _matrix(src, "the source of T.transpose"), _matrix(dst, "the destination of T.transpose")
    rows, columns = a.extents[-2:]
    if tuple(b.extents[-2:]) != (columns, rows):
        raise error(f"T.transpose from {describe(a)} to {describe(b)}: the destination must be {columns}×{rows}")
    for j, i in each((columns, rows), a, b):
        store(b.buffer, _at(b, j, i), as_expr(a.buffer[_at(a, i, j)]))


def im2col(img, col, nhw_step, c_step, kernel, stride, dilation, pad, eviction_policy=None, annotations=None):
    """A tile of the matrix whose product with the weights is a convolution. ``col`` is block_M × block_K: its row i is the output pixel
    nhw_step · block_M + i (image, row and column of the output in this order), its column j the weight c_step · block_K + j (row and column
    of the window, channel). What lies outside of the image reads as zero. ``eviction_policy`` and ``annotations``: no effect, with a warning.
    Shapes: ``img`` is a tensor of images × height × width × channels, of any size; the window is ``kernel`` × ``kernel`` pixels,
    ``dilation`` apart, ``stride`` from one output to the next, and begins ``pad`` outside of the image: four Python ints. Dtypes: any two;
    elements are converted. Targets: all. Errors: TraceError for other shapes."""
    current("T.im2col")
    notices.unused("T.im2col", annotations=(annotations, *_ANNOTATIONS),
                   eviction_policy=(eviction_policy, (None, "evict_normal"), "what caches keep is inferred; leave it out"))
    if not isinstance(img, Buffer) or img.ndim != 4:
        raise error(f"T.im2col takes a tensor of images × height × width × channels, not {img!r}")
    for name, number in (("kernel", kernel), ("stride", stride), ("dilation", dilation), ("pad", pad)):
        known = constant_value(as_expr(number))
        if not isinstance(known, int) or known < (0 if name == "pad" else 1):
            raise error(f"T.im2col({name}={number!r}): a number known at compile time is needed")
    kernel, stride, dilation, pad = (constant_value(as_expr(v)) for v in (kernel, stride, dilation, pad))
    tile = _matrix(col, "the result of T.im2col")
    rows, columns = tile.extents[-2:]
    _, height, width, channels = (as_expr(d) for d in img.shape)
    out_height, out_width = (floordiv(size + (2 * pad - dilation * (kernel - 1) - 1), stride) + 1 for size in (height, width))
    agree(tile, values=(nhw_step, c_step))
    for i, j in Parallel(rows, columns):
        pixel, weight = as_expr(nhw_step) * rows + i, as_expr(c_step) * columns + j
        x, y = floormod(pixel, out_width), floormod(floordiv(pixel, out_width), out_height)
        image = floordiv(pixel, out_width * out_height)
        channel, place = floormod(weight, channels), floordiv(weight, channels)
        across, down = floormod(place, kernel), floordiv(place, kernel)
        value = as_expr(img[image, y * stride + down * dilation - pad, x * stride + across * dilation - pad, channel])
        exists = logical("AND", binary("GE", weight, 0), binary("LT", down, kernel))
        store(tile.buffer, _at(tile, i, j), select(exists, value, const(0, img.dtype)))


def c2d_im2col(img, col, nhw_step, c_step, kernel, stride, dilation, pad, eviction_policy=None, annotations=None):
    """T.im2col under its older name, with a DeprecationWarning.
    Shapes: as T.im2col. Dtypes: as T.im2col. Targets: all. Errors: as T.im2col."""
    notices.warn("T.c2d_im2col is deprecated: write T.im2col", DeprecationWarning)
    im2col(img, col, nhw_step, c_step, kernel, stride, dilation, pad, eviction_policy, annotations)


__all__ = ["transpose", "im2col", "c2d_im2col"]
