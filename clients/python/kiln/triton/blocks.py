# SPDX-License-Identifier: Apache-2.0
"""Block pointers and tensor descriptors: a pointer with the shape and strides of what it points into. A load of one is a load of pointers with
a mask, which the service takes back to a tile of a tensor."""

from __future__ import annotations

import math
from typing import NamedTuple

from . import types as ty
from .build import describe, is_number
from .builtin import Builtin, builtin
from .errors import Refusal
from .graph import Value


class BlockPointer(NamedTuple):
    """tl.make_block_ptr's. ``block_shape`` is known; the others may be values."""

    base: object
    shape: tuple
    strides: tuple
    offsets: tuple
    block_shape: tuple

    @property
    def element(self):
        return self.base.element.element_ty

    @property
    def type(self):
        """As Triton's, that of a pointer to a block. Programs cast to ``pointer.dtype.element_ty``, a block's type."""
        return ty.pointer_type(ty.block_type(self.element, self.block_shape))

    dtype = type


class Descriptor(NamedTuple):
    """tl.make_tensor_descriptor's, and what a kernel sees of a TensorDescriptor."""

    base: object
    shape: tuple
    strides: tuple
    block_shape: tuple
    padding: str

    @property
    def element(self):
        return self.base.element.element_ty

    @property
    def block_type(self):
        return ty.block_type(self.element, self.block_shape)

    dtype = element

    type = block_type


class TensorDescriptor:
    """A launch's argument: a tensor, and the shape of the blocks that a kernel takes of it. ``strides`` count elements."""

    def __init__(self, base, shape, strides, block_shape, padding="zero"):
        if padding not in ("zero", "nan"):
            raise ValueError(f"TensorDescriptor(padding={padding!r}): known are \"zero\" and \"nan\"")
        if not len(shape) == len(strides) == len(block_shape):
            raise ValueError(f"TensorDescriptor: {len(shape)} sizes, {len(strides)} strides and {len(block_shape)} sizes of blocks")
        self.base, self.shape, self.strides, self.block_shape, self.padding = base, list(shape), list(strides), list(block_shape), padding

    @staticmethod
    def from_tensor(tensor, block_shape, padding="zero"):
        if hasattr(tensor, "stride"):
            strides = list(tensor.stride())
        else:
            strides = [stride // tensor.itemsize for stride in tensor.strides]
        return TensorDescriptor(tensor, list(tensor.shape), strides, block_shape, padding)


def _list(x, what: str) -> tuple:
    parts = tuple(x) if isinstance(x, (tuple, list)) else (x,)
    for part in parts:
        if not is_number(part) and not (isinstance(part, Value) and not part.shape and part.element.is_int()):
            raise Refusal(f"{what}: {describe(part)} in place of an integer")
    return parts


def _made(b, what: str, base, shape, strides, block_shape) -> tuple:
    base = b.value(base, f"the first argument of {what}")
    if not base.element.is_ptr() or base.shape:
        raise Refusal(f"{what} takes a pointer, not {describe(base)}")
    shape, strides, sizes = _list(shape, what), _list(strides, what), _list(block_shape, what)
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise Refusal(f"the block shape of {what} is {describe(block_shape)}; integers that are known when the kernel is compiled are needed")
    if not len(shape) == len(strides) == len(sizes):
        raise Refusal(f"{what}: {len(shape)} sizes, {len(strides)} strides, and blocks of {len(sizes)} dimensions")
    return base, shape, strides, sizes


@builtin
def make_block_ptr(b, base, shape, strides, offsets, block_shape, order):
    """``order`` says which dimension lies closest in memory, as the strides do."""
    made = _made(b, "tl.make_block_ptr", base, shape, strides, block_shape)
    return advance.run(b, BlockPointer(*made[:3], tuple(b.constant(0, ty.int32) for _ in made[1]), made[3]), offsets)


@builtin
def advance(b, base, offsets):
    offsets = _list(offsets, "tl.advance")
    if not isinstance(base, BlockPointer) or len(offsets) != len(base.offsets):
        raise Refusal(f"tl.advance of {describe(base)} by {len(offsets)} offsets; it takes what tl.make_block_ptr gives, and an offset per dimension")
    moved = (old if is_number(by) and by == 0 else b.binary("+", old, by) for old, by in zip(base.offsets, offsets))
    return base._replace(offsets=tuple(moved))


@builtin
def make_tensor_descriptor(b, base, shape, strides, block_shape, padding_option="zero"):
    base, shape, strides, sizes = _made(b, "tl.make_tensor_descriptor", base, shape, strides, block_shape)
    _check_bytes(base.element.element_ty, sizes)
    _filler(b, base.element.element_ty, padding_option)
    return Descriptor(base, shape, strides, sizes, padding_option)


def _check_bytes(element, sizes) -> None:
    width = sizes[-1] * element.itemsize
    if width < 16:
        raise Refusal(f"Descriptor block shape must have at least 16 bytes in the last dimension, but got {sizes[-1]} * {element.itemsize} = {width} "
                      "bytes; add offsets to the pointer, with a mask")


def _filler(b, element, option: str) -> Value:
    """What is read outside."""
    if option not in ("", "zero", "nan"):
        raise Refusal(f"padding_option={option!r}; known are \"zero\" and \"nan\"")
    if option == "nan" and not element.is_floating():
        raise Refusal(f"padding_option=\"nan\" of {element}")
    return b.constant(math.nan if option == "nan" else 0, element)


def _places(b, block, indices: list, checked) -> tuple:
    """(pointers, mask or None): ``indices`` are blocks of int64 of one rank, one for each dimension; ``checked``: the dimensions in which
    an index may be outside."""
    pointers, mask = block.base, None
    for d, (index, stride) in enumerate(zip(indices, block.strides)):
        pointers = b.binary("+", pointers, b.binary("*", index, b.cast(stride, ty.int64)))
        if d in checked:
            inside = b.logical("AND", b.binary(">=", index, 0), b.binary("<", index, b.cast(block.shape[d], ty.int64)))
            mask = inside if mask is None else b.logical("AND", mask, inside)
    return pointers, mask


def _box(b, block, offsets, checked, what: str) -> tuple:
    offsets = _list(offsets, what)
    if len(offsets) != len(block.block_shape):
        raise Refusal(f"{what}: {len(offsets)} offsets for a block of {len(block.block_shape)} dimensions")
    rank = len(offsets)
    indices = [b.binary("+", b.cast(offset, ty.int64), b.cast(b.arange(size, d, rank), ty.int64))
               for d, (offset, size) in enumerate(zip(offsets, block.block_shape))]
    pointers, mask = _places(b, block, indices, checked)
    return b.broadcast_to(pointers, block.block_shape), mask


def places_of(b, desc: Descriptor, offsets, what: str) -> tuple:
    """(pointers to a descriptor's block, which of them are inside, what is read elsewhere), all of the block's shape."""
    pointers, mask = _box(b, desc, offsets, range(len(desc.shape)), what)
    return pointers, b.broadcast_to(mask, pointers.shape), b.broadcast_to(_filler(b, desc.dtype, desc.padding), pointers.shape)


def checked_of(block: BlockPointer, boundary_check) -> tuple:
    axes = boundary_check if isinstance(boundary_check, (tuple, list)) else (boundary_check,)
    rank = len(block.block_shape)
    if any(isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank for axis in axes):
        raise Refusal(f"boundary_check={describe(boundary_check)} of a block pointer of {rank} dimensions")
    return tuple(axis % rank for axis in axes)


def _loaded(b, block, pointers, mask, option):
    operands = [pointers]
    if mask is not None:
        operands += [mask, _filler(b, block.element, option)]
    operands = b.together(*operands)
    return b.emit("tt.load", operands, [(block.element, pointers.shape)]).result


def _stored(b, block, pointers, mask, value, what: str) -> None:
    value = b.constant(value, block.element) if is_number(value) else b.cast(value, block.element)
    if value.shape and value.shape != pointers.shape:
        raise Refusal(f"{what}: {describe(value)} is stored to a block of shape {list(pointers.shape)}")
    operands = [pointers, value, *([] if mask is None else [mask])]
    b.emit("tt.store", [b.broadcast_to(x, pointers.shape) for x in operands])


def load_block(b, block: BlockPointer, boundary_check, padding_option):
    return _loaded(b, block, *_box(b, block, block.offsets, checked_of(block, boundary_check), "tl.load"), padding_option)


def store_block(b, block: BlockPointer, value, boundary_check):
    _stored(b, block, *_box(b, block, block.offsets, checked_of(block, boundary_check), "tl.store"), value, "tl.store")


# Methods of descriptors.


def _described(x, what: str) -> Descriptor:
    if not isinstance(x, Descriptor):
        raise Refusal(f"{what} takes a tensor descriptor, not {describe(x)}")
    return x


@builtin
def load_tensor_descriptor(b, desc, offsets):
    desc = _described(desc, "tl.load_tensor_descriptor")
    return _loaded(b, desc, *_box(b, desc, offsets, range(len(desc.shape)), "a descriptor's load"), desc.padding)


@builtin
def store_tensor_descriptor(b, desc, offsets, value):
    desc = _described(desc, "tl.store_tensor_descriptor")
    _stored(b, desc, *_box(b, desc, offsets, range(len(desc.shape)), "a descriptor's store"), value, "a descriptor's store")


def _rows(b, desc: Descriptor, x_offsets, y_offset, what: str) -> tuple:
    """Places of rows, each at an index of its own."""
    rows = b.value(x_offsets, "the rows")
    if len(desc.block_shape) != 2 or desc.block_shape[0] != 1 or rows.rank != 1 or not rows.element.is_int():
        raise Refusal(f"{what} takes a descriptor of two dimensions with blocks of one row, and a block of row numbers")
    columns = b.binary("+", b.cast(y_offset, ty.int64), b.cast(b.arange(desc.block_shape[1], 1, 2), ty.int64))
    pointers, mask = _places(b, desc, [b.cast(b.expand(rows, 1), ty.int64), columns], (0, 1))
    return b.broadcast_to(pointers, (rows.shape[0], desc.block_shape[1])), mask


@builtin
def _gather(b, desc, x_offsets, y_offset):
    return _loaded(b, desc, *_rows(b, desc, x_offsets, y_offset, "a descriptor's gather"), desc.padding)


@builtin
def _scatter(b, desc, value, x_offsets, y_offset):
    _stored(b, desc, *_rows(b, desc, x_offsets, y_offset, "a descriptor's scatter"), value, "a descriptor's scatter")


def _atomic(name: str) -> Builtin:
    def function(b, desc, offsets, value):
        from . import language as tl

        pointers, mask = _box(b, desc, offsets, range(len(desc.shape)), f"a descriptor's {name}")
        getattr(tl, name).run(b, pointers, value, b.broadcast_to(mask, pointers.shape))

    return Builtin(function, name)


BlockPointer.METHODS = {"advance": advance}
Descriptor.METHODS = {"load": load_tensor_descriptor, "store": store_tensor_descriptor, "gather": _gather, "scatter": _scatter,
                      **{f"atomic_{fn}": _atomic(f"atomic_{fn}") for fn in ("add", "min", "max", "and", "or", "xor")}}
