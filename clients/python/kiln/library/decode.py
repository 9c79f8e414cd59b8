# SPDX-License-Identifier: Apache-2.0
"""Attention of the last tokens of sequences whose keys and values lie in a cache, in one piece or in pages."""

from __future__ import annotations

from .. import tiles
from .checks import HALVES, want_dtype, want_rank, want_shape
from .operation import Operation
from .plans import Dynamic, Plan, Program, Result, View
from .programs.decode import decode as program
from .shapes import whole

LARGEST_HEAD = 256


def check_scale(function, scale):
    """ValueError unless it is left out or a number above 0."""
    if scale is not None and not 0 < scale < float("inf"):
        raise ValueError(f"{function}: scale is {scale}; pass a number above 0, or nothing for 1/√D")


def check_sequences(function, batch, lengths, table, tokens):
    """What says where each sequence's keys are; ``tokens``: of the cache, or of a page."""
    want_dtype(function, "lengths", lengths, "int32")
    want_shape(function, "lengths", lengths, (batch,), "one for each sequence of q")
    if table is not None:
        want_rank(function, "table", table, 2, "(batch, pages of a sequence)")
        want_dtype(function, "table", table, "int32")
        want_shape(function, "table", table, (batch, table.shape[1]), "a row for each sequence of q")
        if table.shape[1] == 0:
            raise ValueError(f"{function}: table has no columns; it needs one for each page that the longest sequence may have")
    if tokens == 0:
        raise ValueError(f"{function}: the cache has no tokens; there is nothing to attend to")


def _check(q, k, v, lengths, table, scale):
    form = "(pages, page, kv_heads, D)" if table is not None else "(batch, tokens, kv_heads, D)"
    for name, spec in (("q", q), ("k", k), ("v", v)):
        want_rank("attention_decode", name, spec, 4, "(batch, tokens, heads, D)" if name == "q" else form)
        want_dtype("attention_decode", name, spec, HALVES if name == "q" else q.dtype)
    batch, _, heads, dim = q.shape
    if dim % 16 != 0 or not 0 < dim <= LARGEST_HEAD:
        raise ValueError(f"attention_decode: q has heads of {dim} elements; use a multiple of 16 up to {LARGEST_HEAD}: pad q, k and v with "
                         f"zeros, and pass scale")
    cache = (*k.shape[:3], dim) if table is not None else (batch, *k.shape[1:3], dim)
    want_shape("attention_decode", "k", k, cache, "the heads' elements of q" if table is not None else "the batch and the heads' elements of q")
    want_shape("attention_decode", "v", v, k.shape, "that of k")
    if k.shape[2] == 0 or heads % k.shape[2] != 0:
        raise ValueError(f"attention_decode: k has {k.shape[2]} heads and q {heads}; q's must be a multiple of k's, each of which serves as many "
                         f"of q")
    check_sequences("attention_decode", batch, lengths, table, k.shape[1] * (1 if table is None else k.shape[0]))
    check_scale("attention_decode", scale)
    return (Result(q.shape, str(q.dtype)),)


def _plan(q, k, v, lengths, table, scale, target):
    batch, tokens, heads, dim = q.shape
    kv_heads = k.shape[2]
    page = 0 if table is None else k.shape[1]
    keys = table.shape[1] * page if page else k.shape[1]
    tile = tiles.decode(tokens * heads // kv_heads, dim, page, target)
    blocks = batch * kv_heads * -(-tokens * heads // kv_heads // tile["block_m"])
    built = Program.of(program, batch=Dynamic("batch"), tokens=tokens, heads=heads, kv_heads=kv_heads, kv_len=Dynamic("kv_len"), dim=dim,
                       scale=float(dim**-0.5 if scale is None else scale), dtype=str(q.dtype), page=page, pages=Dynamic("pages") if page else 0,
                       splits=tiles.splits(blocks, -(-keys // tile["block_n"]), target), **tile)
    places = View(4, table.shape) if page else View(3, (1, 1), first=True)
    inputs = (whole(0, q), whole(1, k), whole(2, v), whole(3, lengths), places)
    return Plan(built, inputs, _check(q, k, v, lengths, table, scale), options=(("fast_math", True),))


_attention_decode = Operation("attention_decode(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? table, float? scale) -> Tensor", _check,
                              _plan, instead="use attention's reference, torch.nn.functional.scaled_dot_product_attention, where one is needed")


def attention_decode(q, k, v, lengths, table=None, scale=None):
    """softmax(q · kᵀ · scale) · v for each head, of the last tokens of sequences whose keys lie in a cache.

    q: (batch, tokens, heads, D) of float16 or bfloat16, D a multiple of 16 up to 256, tokens few: those that end each sequence. k, v: (batch,
    capacity, kv_heads, D), of which sequence b has the first lengths[b] tokens; with ``table``, (pages, page, kv_heads, D): token t of
    sequence b lies in page table[b, t // page]. lengths: (batch,) of int32, table: (batch, pages of a sequence) of int32, both on the device;
    what a table says beyond a sequence's length does not matter, nor does what the cache holds there. heads is a multiple of kv_heads, whose
    neighbours share one (grouped queries). Token i of q sees the first lengths[b] − tokens + i + 1; one that sees none gives zeros. ``scale``:
    1/√D if left out. Returns the same as q. No gradient.

    Several blocks share a sequence where there are few: as many as the shapes and the device's multiprocessors ask for. One kernel serves every
    batch and every capacity that are shared alike. TypeError: another dtype. ValueError: another shape, a cache without tokens."""
    return _attention_decode(q, k, v, lengths, table, scale)
