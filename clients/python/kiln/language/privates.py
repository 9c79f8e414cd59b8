# SPDX-License-Identifier: Apache-2.0
"""Fragments of which each thread has its own. A fragment is a tile of the block. Where no tile operation and no T.Parallel loop touches it, and
all threads that come to a store write the same element, what they write may differ: TileLang keeps one for each thread then, an array of
T.alloc_local."""

from __future__ import annotations

from . import program as ir
from .affine import finds
from .buffer import Region
from .signals import blocks_of


class _Uses:
    """What a kernel does with a fragment. ``around``: the conditions around each store and each load that tell threads apart."""

    def __init__(self):
        self.shared, self.stores, self.loads = False, [], []

    @property
    def are_private(self) -> bool:
        """The block's tile and an array of each thread have the same values, as far as the tile has some: whoever reads has written, too."""
        return not self.shared and bool(self.stores) and all(load[: len(store)] == store for store in self.stores for load in self.loads)


def settle(kernel: ir.Kernel) -> None:
    """Makes them private."""
    found: dict = {}
    _visit(kernel.body, (), False, found)
    for buffer, uses in found.items():
        if uses.are_private and buffer.dtype.bits >= 8:
            buffer.space = "LOCAL"


def _visit(stmts, around: tuple, parallel: bool, found: dict) -> None:
    def uses(buffer) -> _Uses:
        root = buffer
        while hasattr(root, "base"):
            root = root.base
        known = found.setdefault(root, _Uses()) if root.space == "FRAGMENT" else _Uses()
        known.shared |= parallel or root is not buffer or hasattr(root, "storage")
        return known

    for s in stmts:
        for part in ir.fields(s):
            if isinstance(getattr(s, part.name), Region):
                uses(getattr(s, part.name).buffer).shared = True
        for e in ir.expressions(s):
            finds(e, lambda node: node.op == "LOAD" and uses(node.value).loads.append(around))
        if isinstance(s, (ir.Store, ir.Atomic)):
            stored = uses(s.buffer)
            stored.stores.append(around)
            stored.shared |= isinstance(s, ir.Atomic) or any(finds(i, _may_differ) for i in s.indices)
        inner = (*around, id(s.cond)) if isinstance(s, ir.If) and finds(s.cond, _may_differ) else around
        for number, block in enumerate(blocks_of(s)):
            _visit(block, (*inner, number) if inner is not around else around, parallel or isinstance(s, ir.For) and s.kind == "PARALLEL", found)


def _may_differ(node) -> bool:
    """Between threads."""
    return node.op == "VAR" and node.value.kind in ("THREAD", "LET") or node.op == "LOAD" and node.value.space in ("LOCAL", "FRAGMENT")
