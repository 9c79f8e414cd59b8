# SPDX-License-Identifier: Apache-2.0
"""What works on blocks alone: loads, tiles of blocks, running sums."""

from __future__ import annotations

import math

from .. import language as tl
from .. import scans
from ..build import describe, is_number
from ..builtin import Builtin
from ..errors import Refusal
from ..graph import Value
from ..shapes import shape_of
from . import buffers


def builtin(function):
    return Builtin(function, package="tle")


@builtin
def load(b, pointer, mask=None, other=None, boundary_check=(), padding_option="", cache_modifier="", eviction_policy="", volatile=False,
         is_async=False):
    """tl.load. ``is_async``: a hint. Outside of warp groups, a loop with such a load has two stages at least, whatever ``tl.range(num_stages=)``
    says: what its products take is copied to shared memory while the iteration before computes, where addresses allow it."""
    if not isinstance(is_async, (bool, int)):
        raise Refusal(f"tle.load(is_async={describe(is_async)}): it is True or False, known when the kernel is compiled")
    loaded = tl.load.run(b, pointer, mask, other, boundary_check, padding_option, cache_modifier, eviction_policy, volatile)
    if is_async and loaded.op.name == "tt.load":
        loaded.op.attrs["is_async"] = True
    return loaded


# Tiles of a block: it is a grid of these, row by row.


def _grid(shape, tile, what: str) -> tuple:
    if len(tile) != len(shape) or any(whole % part for whole, part in zip(shape, tile)):
        raise Refusal(f"{what}: a block of shape {list(shape)} is no grid of tiles of shape {list(tile)}; each size must divide that of the block")
    return tuple(whole // part for whole, part in zip(shape, tile))


def _numbers(b, index, grid, what: str) -> list:
    """The tile's place in each dimension: of a number that counts row by row, or of one for each dimension."""
    parts = list(index) if isinstance(index, (tuple, list)) else [index]
    for part in parts:
        if not (isinstance(part, int) and not isinstance(part, bool)) and not (
                isinstance(part, Value) and not part.shape and part.element.is_int() and not part.element.is_bool()):
            raise Refusal(f"{what} at {describe(part)}; a tile's index is an integer, or one for each dimension")
    if not isinstance(index, (tuple, list)):
        if is_number(index) and not 0 <= index < math.prod(grid):
            raise Refusal(f"{what}: tile {index} of {math.prod(grid)}")
        rest, parts = index, []
        for count in reversed(grid[1:]):
            parts.insert(0, b.binary("%", rest, count))
            rest = b.binary("//", rest, count)
        parts.insert(0, rest)
    if len(parts) != len(grid):
        raise Refusal(f"{what} with {len(parts)} indices of a block of {len(grid)} dimensions; give one for each, or one number alone")
    for part, count in zip(parts, grid):
        if is_number(part) and not 0 <= part < count:
            raise Refusal(f"{what}: tile {list(map(describe, parts))} of {list(grid)}")
    return parts


def _stored(b, x: Value, what: str):
    """A buffer with the block's elements, as numbers."""
    x = b.cast(x, tl.int8) if x.element.is_bool() else x
    if x.element.is_ptr():
        raise Refusal(f"{what} of pointers; take the tile of the offsets, and add it to the pointer")
    if x.rank > buffers.MOST_DIMENSIONS:
        raise Refusal(f"{what} of a block of {x.rank} dimensions; reshape it to {buffers.MOST_DIMENSIONS} or less")
    memory = buffers.known(b, what, x.shape, x.element)
    buffers.store.run(b, memory, x)
    return memory


@builtin
def extract_tile(b, x, index, tile_shape):
    """The tile of a block at ``index``, a number that counts tiles row by row or one for each dimension, which may be known only when the kernel
    runs. It goes through shared memory."""
    (x,), tile = scans.together(b, x, "tle.extract_tile"), shape_of(tile_shape, "tle.extract_tile")
    places = _numbers(b, index, _grid(x.shape, tile, "tle.extract_tile"), "tle.extract_tile")
    memory = _stored(b, x, "tle.extract_tile")
    part = buffers.box(b, memory, [b.binary("*", place, size) for place, size in zip(places, tile)], tile, "tle.extract_tile")
    found = buffers.load.run(b, part)
    return b.condition(found) if x.element.is_bool() else found


@builtin
def insert_tile(b, x, tile, index):
    """The block with another tile at ``index``, as tle.extract_tile counts it."""
    (x,), (tile,) = scans.together(b, x, "tle.insert_tile"), scans.together(b, tile, "tle.insert_tile")
    if x.element != tile.element:
        raise Refusal(f"tle.insert_tile of {describe(tile)} into {describe(x)}; cast it with .to(…)")
    places = _numbers(b, index, _grid(x.shape, tile.shape, "tle.insert_tile"), "tle.insert_tile")
    memory, inside, indices = _stored(b, tile, "tle.insert_tile"), None, []
    for d, (place, size) in enumerate(zip(places, tile.shape)):
        at = b.binary("-", b.arange(x.shape[d], d, x.rank), b.cast(b.binary("*", place, size), tl.int32))
        here = b.logical("AND", b.binary(">=", at, 0), b.binary("<", at, size))
        inside = here if inside is None else b.logical("AND", inside, here)
        indices.append(at)
    pointers = buffers.local_ptr.run(b, memory, [b.broadcast_to(at, x.shape) for at in indices])
    other = b.cast(x, tl.int8) if x.element.is_bool() else x
    found = tl.load.run(b, pointers, b.broadcast_to(inside, x.shape), other)
    return b.condition(found) if x.element.is_bool() else found


@builtin
def cumsum(b, input, axis=0, reverse=False, dtype=None):
    """(the sum of what comes before each element, the sum of all). Integers of less than 32 bits are added in 32, bfloat16 in float32."""
    (x,) = scans.together(b, input, "tle.cumsum")
    if x.rank != 1 or axis not in (0, -1):
        raise Refusal(f"tle.cumsum of {describe(x)} along axis {describe(axis)}: it takes a block of one dimension; tl.cumsum has others")
    sums = scans.cumsum.run(b, x, 0, reverse, dtype)
    count, shared, index = x.shape[0], b.exchanged(sums), b.arange(x.shape[0])
    if reverse:
        has, near, end = b.binary("<", index, count - 1), lambda i: b.apply("MIN", *b.pair(b.binary("+", i, 1), count - 1)), 0
    else:
        has, near, end = b.binary(">", index, 0), lambda i: b.apply("MAX", *b.pair(b.binary("-", i, 1), 0)), count - 1
    before = b.select(has, b.along(shared, 0, count, near), b.constant(0, sums.element))
    return before, b.reshape(b.along(shared, 0, 1, lambda i: b.binary("+", i, end)), ())
