# SPDX-License-Identifier: Apache-2.0
"""Rewrites of the graph before it is lowered."""

from __future__ import annotations

from .choices import split_choices
from .graph import Block, Op, Value, remove, replace

_ONLY_COMPUTE = frozenset(("tt.load", "tt.reduce", "tt.dot", "tt.histogram", "tt.exchange", "tt.alternate", "tt.map_elementwise"))


def blocks_of(block: Block):
    """The block and those within it."""
    yield block
    for op in block.ops:
        for region in op.regions:
            yield from blocks_of(region)


def is_zero(value: Value) -> bool:
    op = value.op
    while op is not None and op.name in ("tt.splat", "tt.broadcast"):
        op = op.operands[0].op
    return op is not None and op.name == "arith.constant" and op.attrs["value"] == 0


def sum_into_products(function) -> None:
    """x + a · b, where the product begins from zero and nothing else takes it, is a product that begins from x."""
    for block in blocks_of(function.body):
        place = {op: i for i, op in enumerate(block.ops)}
        for op in [op for op in block.ops if op.name == "arith.binary" and op.attrs["fn"] == "ADD"]:
            for product, other in (op.operands, op.operands[::-1]):
                dot = product.op
                if dot is None or dot.name != "tt.dot" or dot.block is not block or product.uses != [op] or not is_zero(dot.operands[2]):
                    continue
                if product is other or other.op is not None and other.home is block and place[other.op] > place[dot]:
                    continue
                dot.operands[2].uses.remove(dot)
                dot.operands[2] = other
                other.uses.append(dot)
                remove(op)
                replace(op.result, product)
                product.name = product.name or op.result.name
                break


def drop_unused(block: Block) -> None:
    """Removes what only computes values that nothing takes."""
    from .graph import PURE

    for op in reversed(list(block.ops)):
        for region in op.regions:
            drop_unused(region)
        if (op.name in PURE or op.name in _ONLY_COMPUTE) and not any(result.uses for result in op.results):
            remove(op)


def simplify(function) -> None:
    split_choices(function)
    sum_into_products(function)
    drop_unused(function.body)
