# SPDX-License-Identifier: Apache-2.0
"""Copies between tensors and buffers in shared memory, and products of buffers."""

from __future__ import annotations

import math

from .. import blocks
from .. import language as tl
from .. import types as ty
from ..build import describe
from ..builtin import no_effect
from ..errors import Refusal
from ..graph import Value
from ..reductions import dot
from ..shapes import shape_of
from . import barriers
from .buffers import buffered_tensor, gpu, leaves_of, load


@gpu
def copy(b, src, dst, shape, offsets=None, barrier=None, mask=None, is_async=False, eviction_policy=""):
    """From pointers or a tensor descriptor into a buffer, or the other way round. ``offsets``: where the block of a descriptor begins. ``mask``: of
    pointers; where it is false, a buffer gets 0 and a tensor keeps what it has. ``barrier``: of a copy from a descriptor, one that is
    made with expect_bytes; its turn is not over before the bytes are there. The next statement sees what was copied; the compiler makes the copy
    asynchronous where nothing tells the difference, which is all that ``is_async`` asks for."""
    if eviction_policy:
        no_effect(b, f"tle.gpu.copy(eviction_policy={eviction_policy!r})", "which cache keeps what is inferred; leave it out")
    if not isinstance(is_async, (bool, int)):
        raise Refusal(f"tle.gpu.copy(is_async={describe(is_async)}): it is True or False, known when the kernel is compiled")
    into = isinstance(dst, buffered_tensor)
    buffer, tensor = (dst, src) if into else (src, dst)
    if not isinstance(buffer, buffered_tensor) or not isinstance(tensor, (Value, blocks.Descriptor)):
        raise Refusal(f"tle.gpu.copy from {describe(src)} to {describe(dst)}; one is a buffer of tle.gpu.alloc, the other a block of pointers or a "
                      "tensor descriptor")
    sizes = shape_of(shape, "tle.gpu.copy")
    if sizes != buffer.shape:
        raise Refusal(f"tle.gpu.copy of shape {list(sizes)} with a buffer {buffer!s}; a part of a buffer is copied by its subslice or slot")
    if barrier is not None and not (into and isinstance(tensor, blocks.Descriptor)):
        raise Refusal("tle.gpu.copy(barrier=…) belongs to copies from a tensor descriptor into a buffer; behind another copy, call "
                      "tle.gpu.barrier_arrive")
    pointers, masks = _of_descriptor(b, tensor, buffer, offsets, mask) if isinstance(tensor, blocks.Descriptor) else \
        _of_pointers(b, tensor, buffer, offsets, mask)
    if not into:
        masks = masks[:1]
        if pointers.element.is_const:
            raise Refusal("tle.gpu.copy to a constant pointer, one that is annotated tl.const")
    b.emit("tle.copy", [pointers, *masks, *leaves_of(buffer)], view=buffer, masks=len(masks), into=into)
    if barrier is not None:
        barriers.arrived(b, barrier, math.prod(sizes) * buffer.dtype.itemsize)


def _of_descriptor(b, tensor, buffer, offsets, mask) -> tuple:
    if mask is not None:
        raise Refusal("tle.gpu.copy(mask=…) belongs to pointers; what lies outside of a descriptor's shape reads as its padding and is not written")
    if offsets is None:
        raise Refusal("tle.gpu.copy with a tensor descriptor needs offsets=, where its block begins in each dimension")
    if math.prod(tensor.block_shape) != math.prod(buffer.shape) or [n for n in tensor.block_shape if n > 1] != [n for n in buffer.shape if n > 1]:
        raise Refusal(f"tle.gpu.copy between a descriptor with blocks of shape {list(tensor.block_shape)} and a buffer {buffer!s}")
    _check(tensor.dtype, buffer)
    pointers, mask, other = blocks.places_of(b, tensor, offsets, "tle.gpu.copy")
    return b.reshape(pointers, buffer.shape), [b.reshape(x, buffer.shape) for x in (mask, other)]


def _of_pointers(b, tensor, buffer, offsets, mask) -> tuple:
    if offsets is not None:
        raise Refusal("tle.gpu.copy(offsets=…) belongs to tensor descriptors; add offsets to the pointers")
    if not tensor.element.is_ptr() or tensor.element.address_space == 3:
        raise Refusal(f"tle.gpu.copy of {describe(tensor)}; pointers into a kernel's arguments are copied from and to, and values are stored by "
                      "buf.store(x)")
    _check(tensor.element.element_ty, buffer)
    if tensor.shape != buffer.shape:
        raise Refusal(f"tle.gpu.copy between pointers of shape {list(tensor.shape)} and a buffer {buffer!s}")
    if mask is None:
        return tensor, []
    mask = b.broadcast_to(b.condition(mask), buffer.shape)
    return tensor, [mask, b.broadcast_to(b.constant(0, buffer.dtype), buffer.shape)]


def _check(element, buffer) -> None:
    if element != buffer.dtype:
        raise Refusal(f"tle.gpu.copy between elements of {element} and a buffer {buffer!s}; a copy does not convert: buf.store(tl.load(…)) does")


# Products.


def _factor(b, x, transposed: bool):
    x = load.run(b, x) if isinstance(x, buffered_tensor) else b.value(x, "an operand of tle.gpu.wgmma")
    return tl.trans.run(b, x) if transposed else x


@gpu
def wgmma(b, a, b_, acc=None, input_precision=None, max_num_imprecise_acc=None, out_dtype=ty.float32, trans_a=False, trans_b=False):
    """tl.dot of buffers, of which the first may be a block. Its result is there where it is used: the compiler chooses the instruction, wgmma where
    target and shapes have it, and waits. A product of buffers reads them where they are."""
    if not isinstance(b_, buffered_tensor):
        raise Refusal(f"the second operand of tle.gpu.wgmma is {describe(b_)}, and a buffer of tle.gpu.alloc is needed; tl.dot takes blocks")
    return dot.run(b, _factor(b, a, trans_a), _factor(b, b_, trans_b), acc, input_precision=input_precision,
                   max_num_imprecise_acc=max_num_imprecise_acc, out_dtype=out_dtype)


@gpu
def wgmma_wait(b, pendings, acc):
    """The sums. There is nothing to wait for: they are there where they are used."""
    no_effect(b, f"tle.gpu.wgmma_wait({describe(pendings)})", "the sums of tle.gpu.wgmma are there where they are used; leave it out")
    return acc
