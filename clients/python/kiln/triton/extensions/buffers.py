# SPDX-License-Identifier: Apache-2.0
"""Buffers in shared memory and views of them. A view is a thing that is known when the kernel is compiled, but for the numbers where its boxes begin.
What it leads to is a block of pointers, which tl.load, tl.store and atomic operations take as any other: so a buffer is read and written by the
operations that the graph has."""

from __future__ import annotations

import math
from typing import NamedTuple

from .. import language as tl
from .. import types as ty
from ..build import describe, is_number
from ..builtin import Builtin, no_effect
from ..errors import Refusal
from ..graph import Value
from ..interpret import flatten, rebuilt
from ..shapes import integer_of, shape_of
from ..symbolic import in_one_row, reshaped_indices

MOST_DIMENSIONS = 8


class Memory:
    """What one tle.gpu.alloc makes."""

    def __init__(self, shape: tuple, element):
        self.shape, self.element, self.name = shape, element, ""

    def __repr__(self):
        return f"memory {id(self):#x}"


class Box(NamedTuple):
    """A step of a view: a part of what was seen before. ``offsets``: where it begins in each dimension, scalar Values. ``kept``: the dimensions that
    it has still."""

    offsets: tuple
    kept: tuple

    def behind(self, at, indices) -> tuple:
        """Where an element of this step is in what was seen before. ``at``: gives the expression of a scalar."""
        inner = dict(zip(self.kept, indices))
        return tuple(at(offset) + inner[d] if d in inner else at(offset) for d, offset in enumerate(self.offsets))


class Rows(NamedTuple):
    """A step of a view: elements of what was seen before, row by row from the ``first`` on, under another shape."""

    source: tuple
    shape: tuple
    first: int

    def behind(self, at, indices) -> tuple:
        if self.first:
            return in_one_row(self.shape, self.source, indices, self.first)
        return reshaped_indices(self.shape, self.source, indices)


class buffered_tensor(NamedTuple):
    """What tle.gpu.alloc gives, and views of it."""

    memory: Memory
    steps: tuple
    shape: tuple

    @property
    def dtype(self):
        return self.memory.element

    @property
    def type(self):
        return ty.block_type(self.memory.element, self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def places(self, at, operands, indices) -> tuple:
        """The indices of an element in the memory. ``operands``: what takes the place of the Values in the view."""
        for step in reversed(seen(self, operands).steps):
            indices = step.behind(at, indices)
        return indices

    def named(self, name: str) -> None:
        self.memory.name = self.memory.name or name

    def __str__(self):
        return f"of shape {list(self.shape)} and {self.dtype}"


class Scope:
    def __init__(self, name: str):
        self.__name__ = name


smem, tmem = Scope("smem"), Scope("tmem")


def gpu(function):
    """A function of ``tle.gpu``."""
    return Builtin(function, package="tle.gpu")


def buffer_of(x, what: str) -> buffered_tensor:
    if not isinstance(x, buffered_tensor):
        raise Refusal(f"{what} takes a buffer of tle.gpu.alloc, not {describe(x)}")
    return x


def known(b, what: str, shape, element) -> buffered_tensor:
    """New memory."""
    if not isinstance(element, ty.dtype) or element.is_bool():
        raise Refusal(f"{what} of {describe(element)}; elements are numbers such as tl.float16, and bits are kept as tl.int8")
    shape = shape_of(shape, what)
    if not 1 <= len(shape) <= MOST_DIMENSIONS:
        raise Refusal(f"{what} of {len(shape)} dimensions; a buffer has from 1 to {MOST_DIMENSIONS}")
    memory = Memory(shape, element)
    b.emit("tle.alloc", (), memory=memory)
    return buffered_tensor(memory, (), shape)


@gpu
def alloc(b, shape, dtype, layout=None, scope=smem, init_value=None, alias=None, alias_offset_bytes=0, nv_mma_shared_layout=True,
          alignment=None):
    """A buffer in shared memory. ``alias``: another name for memory of that buffer, ``alias_offset_bytes`` behind its beginning. How the elements lie
    in memory is inferred from what reads them."""
    if scope is not smem:
        raise Refusal(f"tle.gpu.alloc(scope={describe(scope)}): buffers are in shared memory; leave scope out, and let tl.dot keep its sums in "
                      "registers")
    if layout is not None:
        raise Refusal("tle.gpu.alloc(layout=…): how a buffer lies in memory is inferred from what reads it; leave layout out")
    if not nv_mma_shared_layout:
        no_effect(b, "tle.gpu.alloc(nv_mma_shared_layout=False)", "how a buffer lies in memory is inferred from what reads it; leave it out")
    if alignment is not None:
        no_effect(b, f"tle.gpu.alloc(alignment={describe(alignment)})", "where a buffer begins is inferred from what reads it; leave it out")
    if alias is None:
        if alias_offset_bytes:
            raise Refusal("tle.gpu.alloc(alias_offset_bytes=…) counts from the beginning of another buffer; name it with alias=")
        made = known(b, "tle.gpu.alloc", shape, dtype)
    else:
        made = _alias(buffer_of(alias, "tle.gpu.alloc(alias=…)"), shape_of(shape, "tle.gpu.alloc"), dtype, alias_offset_bytes)
    if init_value is not None:
        store.run(b, made, init_value)
    return made


def _alias(other: buffered_tensor, shape: tuple, element, offset) -> buffered_tensor:
    offset = integer_of(offset, "alias_offset_bytes of tle.gpu.alloc")
    if element != other.dtype:
        raise Refusal(f"tle.gpu.alloc(alias=…) of {describe(element)} over elements of {other.dtype}; buffers that are not in use at one time share "
                      "their bytes anyway, so leave alias out, and to read the bits of others cast what is loaded: .to(dtype, bitcast=True)")
    size = element.itemsize
    if offset < 0 or offset % size or offset // size + math.prod(shape) > math.prod(other.shape):
        raise Refusal(f"tle.gpu.alloc of shape {list(shape)} at byte {offset} of a buffer {other!s}, which does not hold it at a whole element")
    return other._replace(steps=(*other.steps, Rows(other.shape, shape, offset // size)), shape=shape)


# Views.


def _index(b, x, what: str) -> Value:
    x = b.value(x, what)
    if x.shape or not x.element.is_int() or x.element.is_bool():
        raise Refusal(f"{what} is {describe(x)}, and a scalar integer is needed")
    return b.cast(x, ty.int32)


def box(b, buffer: buffered_tensor, offsets, shape, what: str, dropped=()) -> buffered_tensor:
    """The part of a view from ``offsets`` on. ``dropped``: dimensions of it that go."""
    for d, (offset, size, extent) in enumerate(zip(offsets, shape, buffer.shape)):
        if size > extent or is_number(offset) and not 0 <= offset <= extent - size:
            raise Refusal(f"{what}: {size} elements from {describe(offset)} on in dimension {d} of a buffer {buffer!s}")
    offsets = tuple(_index(b, offset, f"an offset of {what}") for offset in offsets)
    kept = tuple(d for d in range(buffer.rank) if d not in dropped)
    return buffer._replace(steps=(*buffer.steps, Box(offsets, kept)), shape=tuple(shape[d] for d in kept))


@gpu
def _slot(b, buffer, index):
    """The part of a buffer at an index of its first dimension, without that dimension."""
    if buffer.rank < 2:
        raise Refusal(f"slot of a buffer {buffer!s}; a slot is what is left of a shape without its first dimension")
    return box(b, buffer, (index, *(0,) * (buffer.rank - 1)), (1, *buffer.shape[1:]), "slot", (0,))


@gpu
def _subslice(b, buffer, offsets, shape, dim=0):
    """A part of a buffer: offsets and a shape for all dimensions, or, of one dimension, where it begins and how many elements it has."""
    if not isinstance(shape, (tuple, list)):
        axis, size = integer_of(dim, "the dimension of a slice"), integer_of(shape, "the length of a slice")
        if not -buffer.rank <= axis < buffer.rank:
            raise Refusal(f"dimension {axis} of a buffer {buffer!s} is sliced")
        axis %= buffer.rank
        offsets = tuple(offsets if d == axis else 0 for d in range(buffer.rank))
        shape = tuple(size if d == axis else extent for d, extent in enumerate(buffer.shape))
    shape = shape_of(shape, "subslice")
    if not isinstance(offsets, (tuple, list)) or not len(offsets) == len(shape) == buffer.rank:
        raise Refusal(f"subslice of a buffer {buffer!s} takes as many offsets and sizes as it has dimensions")
    return box(b, buffer, tuple(offsets), shape, "subslice")


@gpu
def _reshape(b, buffer, *shape):
    shape = shape_of(shape[0] if len(shape) == 1 else shape, "reshape")
    if math.prod(shape) != math.prod(buffer.shape):
        raise Refusal(f"reshape of a buffer {buffer!s} to {list(shape)}, which has {math.prod(shape)} elements")
    return buffer._replace(steps=(*buffer.steps, Rows(buffer.shape, shape, 0)), shape=shape)


# Accesses.


def leaves_of(view) -> list:
    """The Values in it, in order: operands of an operation that has the view as an attribute."""
    return [leaf for leaf in flatten(view) if isinstance(leaf, Value)]


def seen(view, operands):
    """The view with an operation's operands in their places, as they may have been replaced by others since."""
    values = iter(operands)
    return rebuilt(view, iter([next(values) if isinstance(leaf, Value) else leaf for leaf in flatten(view)]))


@gpu
def local_ptr(b, buffer, indices=None, offsets=None):
    """Pointers to elements of a buffer: to all of them, or to those at ``indices``, as many integers as it has dimensions, which are blocks of one
    shape or scalars. One block of integers counts elements row by row; older programs call it ``offsets``."""
    if offsets is not None and indices is not None:
        raise Refusal("tle.gpu.local_ptr with indices= and offsets=, which is the older name of the former; give one of them")
    indices = offsets if indices is None else indices
    buffer = buffer_of(buffer, "tle.gpu.local_ptr")
    if indices is None:
        return _pointers(b, buffer, [], buffer.shape)
    if not isinstance(indices, (tuple, list)):
        indices = (indices,)
    if len(indices) == 1 and buffer.rank > 1:
        buffer = _reshape.run(b, buffer, math.prod(buffer.shape))
    if len(indices) != buffer.rank:
        raise Refusal(f"tle.gpu.local_ptr of a buffer {buffer!s} with {len(indices)} indices; it takes one for each dimension")
    values = [b.value(x, "an index of tle.gpu.local_ptr") for x in indices]
    for value in values:
        if not value.element.is_int() or value.element.is_bool():
            raise Refusal(f"an index of tle.gpu.local_ptr is {describe(value)}, and integers are needed")
    shapes = {value.shape for value, x in zip(values, indices) if not is_number(x)}
    if len(shapes) > 1:
        raise Refusal(f"the indices of tle.gpu.local_ptr have the shapes {' and '.join(str(list(s)) for s in sorted(shapes))}; broadcast them to "
                      "one, as by tl.broadcast_to, or give scalars alone")
    values = b.together(*(b.cast(value, ty.int32) for value in values))
    return _pointers(b, buffer, values, values[0].shape)


def _pointers(b, buffer: buffered_tensor, indices: list, shape) -> Value:
    element = ty.pointer_type(buffer.dtype, 3)
    return b.emit("tle.local_ptr", [*indices, *leaves_of(buffer)], [(element, shape)], view=buffer, count=len(indices)).result


@gpu
def load(b, buffer):
    return tl.load.run(b, local_ptr.run(b, buffer_of(buffer, "tle.gpu.local_load")))


@gpu
def store(b, buffer, value):
    buffer = buffer_of(buffer, "tle.gpu.local_store")
    value = b.constant(value, buffer.dtype) if is_number(value) else b.cast(value, buffer.dtype)
    if value.shape and value.shape != buffer.shape:
        raise Refusal(f"a block of shape {list(value.shape)} is stored to a buffer {buffer!s}")
    tl.store.run(b, local_ptr.run(b, buffer), value)


METHODS = buffered_tensor.METHODS = {"load": load, "store": store, "slot": _slot, "subslice": _subslice, "slice": _subslice, "reshape": _reshape}
