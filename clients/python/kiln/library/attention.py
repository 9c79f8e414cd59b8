# SPDX-License-Identifier: Apache-2.0
"""Attention, forward: the scores are never written out."""

from __future__ import annotations

from .. import tiles
from .checks import HALVES, want_dtype, want_rank, want_shape
from .operation import Operation
from .plans import Dynamic, Plan, Program, Result
from .programs.attention import attention as program
from .programs.block_sparse import block_sparse
from .shapes import whole

FORM = "(batch, tokens, heads, D)"
LARGEST_HEAD = 256
BLOCKS = (64, 128)


def _check_of(function, q, k, v, causal, scale):
    for name, spec in (("q", q), ("k", k), ("v", v)):
        want_rank(function, name, spec, 4, FORM)
        want_dtype(function, name, spec, HALVES if name == "q" else q.dtype)
    batch, tokens, heads, dim = q.shape
    if dim % 16 != 0 or not 0 < dim <= LARGEST_HEAD:
        raise ValueError(f"{function}: q has heads of {dim} elements; use a multiple of 16 up to {LARGEST_HEAD}: pad q, k and v with "
                         f"zeros, and pass scale")
    want_shape(function, "k", k, (batch, k.shape[1], k.shape[2], dim), "the batch and the heads' elements of q")
    want_shape(function, "v", v, k.shape, "that of k")
    if k.shape[2] == 0 or heads % k.shape[2] != 0:
        raise ValueError(f"{function}: k has {k.shape[2]} heads and q {heads}; q's must be a multiple of k's, each of which serves as many "
                         f"of q")
    if k.shape[1] == 0:
        raise ValueError(f"{function}: k has no tokens; there is nothing to attend to")
    if scale is not None and not 0 < scale < float("inf"):
        raise ValueError(f"{function}: scale is {scale}; pass a number above 0, or nothing for 1/√D")
    if causal and k.shape[1] < tokens:
        raise ValueError(f"{function}: causal=True with {tokens} tokens of q and {k.shape[1]} of k: the first ones of q would see nothing")
    return (Result(q.shape, str(q.dtype)),)


def _check(q, k, v, causal, scale):
    return _check_of("attention", q, k, v, causal, scale)


def _plan(q, k, v, causal, scale, target):
    heads, dim = q.shape[2:]
    built = Program.of(program, batch=Dynamic("batch"), heads=heads, kv_heads=k.shape[2], seq_len=Dynamic("seq_len"),
                       kv_len=Dynamic("kv_len"), dim=dim,
                       causal=causal, scale=float(dim**-0.5 if scale is None else scale), dtype=str(q.dtype),
                       **tiles.attention(dim, target, q.shape[1], k.shape[1], causal))
    # The one thing that fast_math changes in the loop: weights below the smallest normal float32, beside one of 1 in each row, count as 0.
    return Plan(built, (whole(0, q), whole(1, k), whole(2, v)), _check(q, k, v, causal, scale), options=(("fast_math", True),))


_attention = Operation("attention(Tensor q, Tensor k, Tensor v, bool causal, float? scale) -> Tensor", _check, _plan,
                       instead="use torch.nn.functional.scaled_dot_product_attention where one is needed")


def attention(q, k, v, causal=False, scale=None):
    """softmax(q · kᵀ · scale) · v for each head.

    q: (batch, tokens, heads, D) of float16 or bfloat16, D a multiple of 16 up to 256. k, v: (batch, kv_tokens, kv_heads, D) of the same
    dtype; heads is a multiple of kv_heads, whose neighbours share one (grouped queries). ``causal``: token i of q sees those of k up to i +
    kv_tokens − tokens. ``scale``: 1/√D if left out. Returns the same as q. No gradient. One kernel serves every batch and every number of
    tokens; of heads of up to 64 elements, one serves few tokens and another one many. TypeError: another dtype. ValueError: another shape,
    no tokens of k, causal with fewer tokens of k than of q."""
    return _attention(q, k, v, causal, scale)


def _check_block_sparse(q, k, v, chosen, counts, block, causal, scale):
    results = _check_of("block_sparse_attention", q, k, v, causal, scale)
    if block not in BLOCKS:
        raise ValueError(f"block_sparse_attention: block is {block}; use {' or '.join(map(str, BLOCKS))}")
    batch, tokens, heads, _ = q.shape
    blocks = (tokens + block - 1) // block
    for name, spec in (("chosen", chosen), ("counts", counts)):
        want_dtype("block_sparse_attention", name, spec, "int32")
    want_rank("block_sparse_attention", "chosen", chosen, 4, "(batch, heads, blocks of q, most)")
    want_shape("block_sparse_attention", "chosen", chosen, (batch, heads, blocks, chosen.shape[3]), "a list for each block of each head of q")
    want_shape("block_sparse_attention", "counts", counts, (batch, heads, blocks), "a number for each list")
    if chosen.shape[3] == 0:
        raise ValueError("block_sparse_attention: chosen has empty lists; there is nothing to attend to")
    return results


def _plan_block_sparse(q, k, v, chosen, counts, block, causal, scale, target):
    heads, dim = q.shape[2:]
    built = Program.of(block_sparse, batch=Dynamic("batch"), heads=heads, kv_heads=k.shape[2], seq_len=Dynamic("seq_len"),
                       kv_len=Dynamic("kv_len"), dim=dim, block=block, most=Dynamic("most"), causal=causal,
                       scale=float(dim**-0.5 if scale is None else scale), dtype=str(q.dtype), **tiles.block_sparse(dim, block, target))
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
