# SPDX-License-Identifier: Apache-2.0
"""The blocks of a cluster by their ranks, which count along the grid's first dimension first."""

from __future__ import annotations

import math

from . import program as ir
from . import trace as tr
from .affine import evaluated, finds
from .buffer import Region
from .expr import Expr, as_expr, binary, constant_value, floormod
from .regions import describe, pair
from .scope import Branch
from .trace import error


def blocks(kernel: ir.Kernel) -> int:
    """How many a cluster has."""
    return math.prod(kernel.cluster)


def of_block(kernel: ir.Kernel) -> Expr:
    rank, inner = as_expr(0), 1
    for var, size in zip(kernel.block_vars, kernel.cluster):
        rank, inner = rank + floormod(var.expr, size) * inner, inner * size
    return rank


def multicast(what: str, src, dst, cluster_mask, copy_of) -> None:
    """``copy_of(src, dst)``, where the blocks whose rank is a bit of the mask read at the places that the lowest of them reads at."""
    kernel, mask = tr.current(what).kernel, constant_value(as_expr(cluster_mask))
    if kernel is None or not kernel.cluster:
        raise error(f"{what}(cluster_mask=…) in a kernel without clusters: use T.ClusterKernel")
    everybody = (1 << blocks(kernel)) - 1
    if not isinstance(mask, int) or not 0 < mask <= everybody:
        raise error(f"{what}(cluster_mask={cluster_mask!r}): it is a Python int with a bit for some of the cluster's {blocks(kernel)} blocks")
    source, target = pair(src, dst, what)
    if source.buffer.space != "GLOBAL":
        raise error(f"{what}(cluster_mask=…) from {describe(source)}: blocks read tensors for each other")
    source = Region(source.buffer, [tr.unnamed(as_expr(offset)) for offset in source.offsets], source.extents, source.dims)
    if any(finds(offset, _is_of_block_alone) for offset in source.offsets):
        raise error(f"{what}(cluster_mask=…) from {describe(source)}: where it begins depends on what each block has for itself, and the block that "
                    "reads is another; compute it from the block's indices, without a T.alloc_var, a tile's elements and names of loaded values")
    branch = Branch(mask == everybody or binary("NE", binary("BIT_AND", binary("SHR", as_expr(mask), of_block(kernel)), 1), 0))
    if branch.then_():
        with branch.then_block():
            copy_of(_as_read_by(kernel, (mask & -mask).bit_length() - 1, source), target)
    if branch.else_():
        with branch.else_block():
            copy_of(source, target)


def _as_read_by(kernel: ir.Kernel, rank: int, source: Region) -> Region:
    """What the block of this rank reads."""
    places = {}
    for var, size in zip(kernel.block_vars, kernel.cluster):
        places[var.expr] = var.expr - floormod(var.expr, size) + rank % size
        rank //= size
    return Region(source.buffer, [evaluated(as_expr(offset), places) for offset in source.offsets], source.extents, source.dims)


def _is_of_block_alone(node) -> bool:
    return node.value.kind == "LET" if node.op == "VAR" else node.op == "LOAD" and node.value.space != "GLOBAL"
