# SPDX-License-Identifier: Apache-2.0
"""Calls of functions in other languages → the tile language's program."""

from __future__ import annotations

from ...language import program as ir
from ...language.expr import as_expr, cast, const
from ..errors import Refusal
from ..graph import Op, Value
from ..symbolic import Held
from .buffers import leaves_of, seen
from .lowering import region_of


def call(lowering, op: Op) -> None:
    arguments, tiles = [], {}
    for i, x in enumerate(seen(op.attrs["given"], op.operands)):
        if isinstance(x, Value) and x.shape:
            tiles[i] = lowering.materialize(x, "SHARED")
            arguments += _tile(tiles[i], as_expr(0), x.shape, _strides(x.shape))
        elif isinstance(x, Value):
            arguments.append(_scalar(lowering, x))
        else:
            arguments += _view(lowering, x)
    lowering.emit(ir.Call(op.attrs["function"], arguments))
    for i, result in zip(op.attrs["blocks"], op.results):
        lowering.data.add(result)
        lowering.symbols.put(result, Held(tiles[i]))


def _strides(shape) -> list:
    strides = [1] * len(shape)
    for d in range(len(shape) - 1, 0, -1):
        strides[d - 1] = strides[d] * shape[d]
    return strides


def _scalar(lowering, x: Value) -> ir.Argument:
    if not x.element.is_ptr():
        return ir.Argument(lowering.at(x))
    buffer, places = lowering.symbols.element(x, ())
    steps = _strides(buffer.shape) if buffer.space == "SHARED" else [1]
    return ir.Argument(sum((as_expr(place) * step for place, step in zip(places, steps)), as_expr(0)), buffer)


def _tile(buffer, offset, shape, strides) -> list:
    """The five parts of a tile in shared memory."""
    begin = ir.Argument(as_expr(0), buffer)
    numbers = [cast(offset, "int64"), *(const(x, "int64") for x in (*shape, *strides))]
    return [begin, begin, *map(ir.Argument, numbers)]


def _view(lowering, view) -> list:
    region = region_of(lowering, view, leaves_of(view))
    if region is None and not any(hasattr(step, "kept") for step in view.steps):  # rows under other shapes
        buffer = lowering.symbols.buffers[view.memory]
        first = view.places(lowering.at, leaves_of(view), (as_expr(0),) * len(view.shape))
        offset = sum((as_expr(place) * step for place, step in zip(first, _strides(buffer.shape))), as_expr(0))
        return _tile(buffer, offset, view.shape, _strides(view.shape))
    if region is None:
        raise Refusal("a part of a buffer under another shape is given to a function; give it the part, or the buffer under another shape")
    steps = _strides(region.buffer.shape)
    offset = sum((as_expr(at) * step for at, step in zip(region.offsets, steps)), as_expr(0))
    return _tile(region.buffer, offset, view.shape, [steps[d] for d in region.dims])


LOWERED = {"tle.call": call}
