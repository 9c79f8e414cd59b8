# SPDX-License-Identifier: Apache-2.0
"""Attention of which each block of queries sees only some blocks of keys."""

from __future__ import annotations

from . import sizes
from .checks import want_dtype, want_rank, want_shape
from .decode import check_heads, check_scale
from .operation import Operation
from .plans import Dynamic, Plan, Program, Result
from .programs.block_sparse import block_sparse
from .shapes import whole

BLOCKS = (64, 128)


def _check_block_sparse(q, k, v, chosen, counts, block, causal, scale):
    check_heads("block_sparse_attention", q, k, v, "(batch, tokens, kv_heads, D)")
    batch, tokens, heads, dim = q.shape
    want_shape("block_sparse_attention", "k", k, (batch, *k.shape[1:3], dim), "the batch and the heads' elements of q")
    want_shape("block_sparse_attention", "v", v, k.shape, "that of k")
    if k.shape[1] == 0:
        raise ValueError("block_sparse_attention: k has no tokens; there is nothing to attend to")
    check_scale("block_sparse_attention", scale)
    if block not in BLOCKS:
        raise ValueError(f"block_sparse_attention: block is {block}; use {' or '.join(map(str, BLOCKS))}")
    blocks = (tokens + block - 1) // block
    for name, spec in (("chosen", chosen), ("counts", counts)):
        want_dtype("block_sparse_attention", name, spec, "int32")
    want_rank("block_sparse_attention", "chosen", chosen, 4, "(batch, heads, blocks of q, most)")
    want_shape("block_sparse_attention", "chosen", chosen, (batch, heads, blocks, chosen.shape[3]), "a list for each block of each head of q")
    want_shape("block_sparse_attention", "counts", counts, (batch, heads, blocks), "a number for each list")
    if chosen.shape[3] == 0:
        raise ValueError("block_sparse_attention: chosen has empty lists; there is nothing to attend to")
    return (Result(q.shape, str(q.dtype)),)


def _plan_block_sparse(q, k, v, chosen, counts, block, causal, scale, target):
    heads, dim = q.shape[2:]
    built = Program.of(block_sparse, batch=Dynamic("batch"), heads=heads, kv_heads=k.shape[2], seq_len=Dynamic("seq_len"),
                       kv_len=Dynamic("kv_len"), dim=dim, block=block, most=Dynamic("most"), causal=causal,
                       scale=float(dim**-0.5 if scale is None else scale), dtype=str(q.dtype), **sizes.block_sparse(dim, block, target))
    inputs = (whole(0, q), whole(1, k), whole(2, v), whole(3, chosen), whole(4, counts))
    return Plan(built, inputs, _check_block_sparse(q, k, v, chosen, counts, block, causal, scale), options=(("fast_math", True),))


_block_sparse_attention = Operation("block_sparse_attention(Tensor q, Tensor k, Tensor v, Tensor chosen, Tensor counts, int block, bool causal, "
                                    "float? scale) -> Tensor", _check_block_sparse, _plan_block_sparse,
                                    instead="use torch.nn.functional.scaled_dot_product_attention with a mask where one is needed")


def block_sparse_attention(q, k, v, chosen, counts, block=128, causal=False, scale=None):
    """softmax(q · kᵀ · scale) · v for each head, where each block of queries sees only some blocks of keys.

    q, k, v, ``scale``: as ``attention`` takes them. ``block``: 64 or 128 neighbouring queries, and as many keys. chosen: (batch, heads, blocks of
    q, most) of int32: numbers of the blocks of keys that each block of queries sees, each once, in any order, of which the first counts[b, h, i]
    count. counts: (batch, heads, blocks of q) of int32. ``causal``: of those blocks, token i of q sees keys up to i + kv_tokens − tokens. A token
    that sees none gives zeros. Returns the same as q. No gradient. TypeError: another dtype. ValueError: another shape or block, empty lists."""
    return _block_sparse_attention(q, k, v, chosen, counts, block, causal, scale)
