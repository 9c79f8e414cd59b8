# SPDX-License-Identifier: Apache-2.0
"""``tl.map_elementwise``: a function of scalars, with branches and loops of its own for each element of blocks."""

from __future__ import annotations

from .build import describe, is_number
from .builtin import builtin
from .errors import Refusal
from .graph import PURE, Block, Op, Value

_ALLOWED = PURE | {"scf.if", "scf.for", "scf.while", "tt.load", "llvm.intr.assume"}


def _check(block: Block) -> None:
    for op in block.ops:
        if op.name not in _ALLOWED or any(value.shape for value in op.results):
            raise Refusal("the function of tl.map_elementwise computes with one element of each block; loads of scalars, branches and loops are what "
                          "it may have")
        for region in op.regions:
            _check(region)


@builtin
def map_elementwise(b, scalar_fn, *args, pack=1):
    """``pack``: how many elements one call takes of each block, one after the other, and returns of each result."""
    if not args or isinstance(pack, bool) or not isinstance(pack, int) or pack < 1:
        raise Refusal(f"tl.map_elementwise of {len(args)} blocks with pack={describe(pack)}; a block and a number from 1 on are needed")
    blocks = b.together(*(b.value(x, "an argument of tl.map_elementwise") for x in args))
    shape, count = blocks[0].shape, blocks[0].numel
    if count % pack:
        raise Refusal(f"tl.map_elementwise with pack={pack} of {count} elements, which it does not divide")
    parts = [part for x in blocks for part in dealt(b, x, pack)]
    results, single = _mapped(b, scalar_fn, parts)
    if len(results) % pack:
        raise Refusal(f"the function of tl.map_elementwise returns {len(results)} values, and with pack={pack} a multiple of that is needed")
    found = [collected(b, results[i : i + pack], shape) for i in range(0, len(results), pack)]
    return found[0] if single else tuple(found)


def dealt(b, x: Value, pack: int) -> list:
    """Of each ``pack`` elements that follow each other the first, the second, and so on."""
    if pack == 1:
        return [x]
    rows = b.reshape(x, (x.numel // pack, pack))
    return [b.part(rows, 1, i) for i in range(pack)]


def collected(b, parts: list, shape) -> Value:
    """The other way round."""
    if len(parts) == 1:
        return parts[0]
    if any(part.element != parts[0].element for part in parts):
        raise Refusal("the function of tl.map_elementwise returns values of several types for the elements of one result; cast them with .to(…)")
    count = parts[0].numel
    result = b.broadcast_to(b.expand(parts[0], 1), (count, len(parts)))
    for i, part in enumerate(parts[1:], 1):
        result = b.select(b.binary("==", b.arange(len(parts), 1, 2), i), b.expand(part, 1), result)
    return b.reshape(result, shape)


def _mapped(b, function, blocks: list) -> tuple:
    """(a block for each value that the function returns, whether it returns one alone)."""
    region, shape = Block(None, b.block), blocks[0].shape
    elements = [region.argument(x.element) for x in blocks]
    with b.within(region):
        returned = b.call(function, elements, {})
        single = not isinstance(returned, (tuple, list))
        for value in (returned,) if single else returned:
            if not isinstance(value, Value) and not is_number(value) or isinstance(value, Value) and value.shape:
                raise Refusal(f"the function of tl.map_elementwise returns {describe(value)}; scalars are needed")
        region.finish([b.value(value) for value in ((returned,) if single else returned)])
    _check(region)
    op: Op = b.emit("tt.map_elementwise", blocks, [(value.element, shape) for value in region.ends])
    op.regions, region.op = [region], op
    return op.results, single
