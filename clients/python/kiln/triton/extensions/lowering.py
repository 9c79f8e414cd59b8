# SPDX-License-Identifier: Apache-2.0
"""Operations of ``tle`` → the tile language's program."""

from __future__ import annotations

from ...language import program as ir
from ...language.buffer import Buffer, Region, load
from ...language.expr import as_expr
from ..graph import PURE, Block, Op, Value
from .buffers import Box, Memory, seen


class Seen:
    """A part of a buffer in shared memory, which has a block's elements as long as they are wanted."""

    def __init__(self, region: Region):
        self.region = region

    def at(self, symbols, value, indices):
        inner = dict(zip(self.region.dims, indices))
        return load(self.region.buffer, [as_expr(o) + inner[d] if d in inner else as_expr(o) for d, o in enumerate(self.region.offsets)])


def alloc(lowering, op: Op) -> None:
    allocated(lowering, op.attrs["memory"])


def allocated(lowering, memory: Memory) -> None:
    lowering.count += 1
    buffer = Buffer("SHARED", memory.shape, memory.element.kiln, memory.name or f"buffer_{lowering.count}")
    lowering.symbols.buffers[memory] = buffer
    lowering.shared.append(ir.Alloc(buffer, location=lowering.here))


def region_of(lowering, view, operands):
    """The part of a buffer that a view is, or None where it has another shape."""
    view = seen(view, operands)
    buffer = lowering.symbols.buffers[view.memory]
    offsets, extents, dims = [as_expr(0)] * len(buffer.shape), list(buffer.shape), list(range(len(buffer.shape)))
    sizes = view.shape
    for step in view.steps:
        if not isinstance(step, Box):
            return None
        for d, offset in zip(dims, step.offsets):
            offsets[d] = offsets[d] + lowering.at(offset)
        for place, d in enumerate(dims):
            if place not in step.kept:
                extents[d] = 1
        dims = [dims[place] for place in step.kept]
    for d, size in zip(dims, sizes):
        extents[d] = size
    return Region(buffer, offsets, extents, dims)


def unchanged_region(lowering, op: Op):
    """The part of a buffer that a load reads as a whole, where the buffer still holds it when the last operation takes the block. None: a copy is
    needed."""
    pointer = op.operands[0]
    source = pointer.op
    if len(op.operands) > 1 or source is None or source.name != "tle.local_ptr" or source.attrs["count"] or pointer in lowering.symbols.place:
        return None
    memory, ops = source.attrs["view"].memory, op.block.ops
    last = _last_taker(op, {other: place for place, other in enumerate(ops)})
    if last is None or any(_changes(lowering, other, memory, op.block) for other in ops[ops.index(op) : last + 1]):
        return None
    return region_of(lowering, source.attrs["view"], source.operands)


def _last_taker(op: Op, places: dict):
    """The place, in the block of an operation, of the last one that takes its result, or in which one does. None where a loop or a branch gives the
    result on."""
    last, open_, seen = 0, [op.result], set()
    while open_:
        for user in open_.pop().uses:
            if isinstance(user, Block):
                return None
            if user in seen:
                continue
            seen.add(user)
            if user.name in PURE:
                open_ += user.results
            while user not in places:
                user = user.block.op
            last = max(last, places[user])
    return last


def _changes(lowering, op: Op, memory, block: Block) -> bool:
    """Whether the buffer may hold other elements behind an operation: one that writes to it, or one behind which another group of warps may have."""
    if op.name in ("tt.store", "tt.atomic_rmw") and _memory(op.operands[0]) in (None, memory):
        return True
    if op.name == "tle.copy" and op.attrs["into"] and op.attrs["view"].memory is memory:
        return True
    if op.name == "tle.call":
        return True
    if op.name in ("tle.wait", "tle.turn") and lowering.roles is not None and lowering.roles.others_write(memory, block):
        return True
    return any(_changes(lowering, inner, memory, block) for region in op.regions for inner in region.ops)


def writes_of(op: Op):
    """The buffer that an operation writes to, if it does."""
    if op.name in ("tt.store", "tt.atomic_rmw"):
        found = _memory(op.operands[0])
        return found if isinstance(found, Memory) else None
    return op.attrs["view"].memory if op.name == "tle.copy" and op.attrs["into"] else None


def _memory(pointer: Value):
    """What a pointer leads into: an allocation, a parameter of the kernel, or None where that does not show."""
    while pointer.op is not None and pointer.op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.addptr"):
        pointer = pointer.op.operands[0]
    if pointer.op is not None:
        return pointer.op.attrs["view"].memory if pointer.op.name == "tle.local_ptr" else None
    return pointer


def copy(lowering, op: Op) -> None:
    """Between pointers into tensors and a buffer, as one loop over their elements: what the compiler knows as the copy of a tile. Operands: pointers,
    a mask where one is given, what is read elsewhere, and those of the view."""
    pointer, mask, values = op.operands[0], op.operands[1 : op.attrs["masks"] + 1], op.operands[op.attrs["masks"] + 1 :]
    view, dtype = op.attrs["view"], lowering.symbols.base(pointer).dtype
    buffer = lowering.symbols.buffers[view.memory]

    def place(indices) -> list:
        return list(view.places(lowering.at, values, indices))

    if op.attrs["into"]:
        lowering.parallel(view.shape, lambda indices: lowering.emit(
            ir.Store(buffer, place(indices), lowering.loaded([pointer, *mask], dtype, indices))))
    else:
        lowering.guarded(pointer, mask, lambda indices, tensor, at: lowering.emit(ir.Store(tensor, at, load(buffer, place(indices)))))


LOWERED = {"tle.alloc": alloc, "tle.copy": copy}
