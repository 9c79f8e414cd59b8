# SPDX-License-Identifier: Apache-2.0
"""Attention, forward: the scores are never written out."""

from __future__ import annotations

from .. import tiles
from .checks import HALVES, want_dtype, want_rank, want_shape
from .operation import Operation
from .plans import Dynamic, Plan, Program, Result
from .programs.attention import attention as program
from .shapes import whole

FORM = "(batch, tokens, heads, D)"
LARGEST_HEAD = 256


def _check(q, k, v, causal, scale):
    for name, spec in (("q", q), ("k", k), ("v", v)):
        want_rank("attention", name, spec, 4, FORM)
        want_dtype("attention", name, spec, HALVES if name == "q" else q.dtype)
    batch, tokens, heads, dim = q.shape
    if dim % 16 != 0 or not 0 < dim <= LARGEST_HEAD:
        raise ValueError(f"attention: q has heads of {dim} elements; use a multiple of 16 up to {LARGEST_HEAD}: pad q, k and v with "
                         f"zeros, and pass scale")
    want_shape("attention", "k", k, (batch, k.shape[1], k.shape[2], dim), "the batch and the heads' elements of q")
    want_shape("attention", "v", v, k.shape, "that of k")
    if k.shape[2] == 0 or heads % k.shape[2] != 0:
        raise ValueError(f"attention: k has {k.shape[2]} heads and q {heads}; q's must be a multiple of k's, each of which serves as many "
                         f"of q")
    if k.shape[1] == 0:
        raise ValueError("attention: k has no tokens; there is nothing to attend to")
    if scale is not None and not 0 < scale < float("inf"):
        raise ValueError(f"attention: scale is {scale}; pass a number above 0, or nothing for 1/√D")
    if causal and k.shape[1] < tokens:
        raise ValueError(f"attention: causal=True with {tokens} tokens of q and {k.shape[1]} of k: the first ones of q would see nothing")
    return (Result(q.shape, str(q.dtype)),)


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
