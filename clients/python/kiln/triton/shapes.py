# SPDX-License-Identifier: Apache-2.0
"""Shapes of blocks: what reads them, and what gives a block another one."""

from __future__ import annotations

import math

from .build import MOST_ELEMENTS, describe
from .builtin import builtin, no_effect
from .errors import Refusal


def integer_of(x, what: str) -> int:
    if isinstance(x, bool) or not isinstance(x, int):
        raise Refusal(f"{what} must be an integer that is known when the kernel is compiled, not {describe(x)}; make it a tl.constexpr")
    return x


def shape_of(shape, what: str) -> tuple:
    if isinstance(shape, int):
        shape = (shape,)
    if not isinstance(shape, (tuple, list)):
        raise Refusal(f"the shape of {what} is {describe(shape)}, and a list of integers is needed")
    sizes = tuple(integer_of(extent, f"a dimension of {what}") for extent in shape)
    if any(extent < 1 for extent in sizes) or math.prod(sizes) > MOST_ELEMENTS:
        raise Refusal(f"{what} of shape {list(sizes)}: dimensions are positive, and a block has at most {MOST_ELEMENTS} elements")
    return sizes


@builtin
def broadcast_to(b, input, *shape):
    return b.broadcast_to(input, shape_of(shape[0] if len(shape) == 1 else shape, "tl.broadcast_to"))


@builtin
def broadcast(b, input, other):
    return tuple(b.together(b.value(input), b.value(other)))


@builtin
def expand_dims(b, input, axis):
    input = b.value(input)
    axes = list(axis) if isinstance(axis, (tuple, list)) else [axis]
    rank = input.rank + len(axes)
    places = sorted(dimension_of(a, rank, "axis", "of tl.expand_dims") for a in axes)
    if len(set(places)) < len(places):
        raise Refusal(f"tl.expand_dims has duplicate axes, normalized axes = {places}")
    for one in places:
        input = b.expand(input, one)
    return input


def dimension_of(axis, rank: int, what: str, of: str) -> int:
    number = integer_of(axis, f"the {what} {of}")
    if not -rank <= number < rank:
        raise Refusal(f"invalid {what} {number} {of}; it counts from {-rank} to {rank - 1}")
    return number % rank


@builtin
def reshape(b, input, *shape, can_reorder=False):
    if can_reorder:
        no_effect(b, "tl.reshape(can_reorder=True)", "elements keep their order; leave it out")
    return b.reshape(b.value(input), shape_of(shape[0] if len(shape) == 1 else shape, "tl.reshape"))


@builtin
def view(b, input, *shape):
    return b.reshape(b.value(input), shape_of(shape[0] if len(shape) == 1 else shape, "tl.view"))


@builtin
def item(b, input):
    """The scalar in a block of one element."""
    input = b.value(input)
    if input.numel != 1:
        raise Refusal(f"item of {describe(input)}, which has {input.numel} elements; tl.sum, tl.max and tl.reduce make one of them")
    return b.reshape(input, ())


@builtin
def ravel(b, x):
    return b.reshape(x, (x.numel,))


@builtin
def trans(b, input, *dims):
    input = b.value(input)
    if input.rank < 2:
        raise Refusal(f"tl.trans needs a block of two dimensions or more, not {describe(input)}")
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    return b.permute(input, order or (*range(input.rank - 2), input.rank - 1, input.rank - 2))


@builtin
def permute(b, input, *dims):
    return b.permute(b.value(input), dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims)


@builtin
def unsqueeze(b, input, dim):
    return b.expand(b.value(input), integer_of(dim, "the dimension of tl.unsqueeze"))


@builtin
def squeeze(b, input, dim):
    input = b.value(input)
    axis = dimension_of(dim, input.rank, "dimension", "of tl.squeeze")
    if input.shape[axis] != 1:
        raise Refusal(f"dimension {axis} of {describe(input)} is not 1")
    return b.reshape(input, input.shape[:axis] + input.shape[axis + 1 :])
