# SPDX-License-Identifier: Apache-2.0
"""Attention of the last tokens of sequences whose keys and values lie in a cache, in one piece or in pages."""

from __future__ import annotations

from . import sizes
from .checks import HALVES, want_dtype, want_rank, want_shape
from .operation import Operation
from .plans import Dynamic, Plan, Program, Result, View
from .programs.decode import decode as program
from .programs.latent import latent
from .shapes import whole

LARGEST_HEAD = 256
NO_TABLE = View(3, (1, 1), first=True)  # an element of ``lengths``, which the program does not read
NO_SINKS = View(3, (1,), first=True)
TURNED = 64  # elements of a latent key that only its product with a query reads, those with the position


def check_heads(function, q, k, v, form):
    """Heads of q, and those of k and v that they share; ``form``: of k and v."""
    for name, spec in (("q", q), ("k", k), ("v", v)):
        want_rank(function, name, spec, 4, "(batch, tokens, heads, D)" if name == "q" else form)
        want_dtype(function, name, spec, HALVES if name == "q" else q.dtype)
    heads, dim = q.shape[2:]
    if dim % 16 != 0 or not 0 < dim <= LARGEST_HEAD:
        raise ValueError(f"{function}: q has heads of {dim} elements; use a multiple of 16 up to {LARGEST_HEAD}: pad q, k and v with zeros, and "
                         f"pass scale")
    if k.shape[2] == 0 or heads % k.shape[2] != 0:
        raise ValueError(f"{function}: k has {k.shape[2]} heads and q {heads}; q's must be a multiple of k's, each of which serves as many of q")


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


def _check(q, k, v, lengths, table, sinks, scale):
    check_heads("attention_decode", q, k, v, "(pages, page, kv_heads, D)" if table is not None else "(batch, tokens, kv_heads, D)")
    batch, _, heads, dim = q.shape
    cache = (*k.shape[:3], dim) if table is not None else (batch, *k.shape[1:3], dim)
    want_shape("attention_decode", "k", k, cache, "the heads' elements of q" if table is not None else "the batch and the heads' elements of q")
    want_shape("attention_decode", "v", v, k.shape, "that of k")
    check_sequences("attention_decode", batch, lengths, table, k.shape[1] * (1 if table is None else k.shape[0]))
    if sinks is not None:
        want_dtype("attention_decode", "sinks", sinks, "float32")
        want_shape("attention_decode", "sinks", sinks, (heads,), "one for each head of q")
    check_scale("attention_decode", scale)
    return (Result(q.shape, str(q.dtype)),)


def _plan(q, k, v, lengths, table, sinks, scale, target):
    batch, tokens, heads, dim = q.shape
    kv_heads = k.shape[2]
    page = 0 if table is None else k.shape[1]
    keys = table.shape[1] * page if page else k.shape[1]
    tile = sizes.decode(tokens * heads // kv_heads, dim, page, target)
    blocks = batch * kv_heads * -(-tokens * heads // kv_heads // tile["block_m"])
    built = Program.of(program, batch=Dynamic("batch"), tokens=tokens, heads=heads, kv_heads=kv_heads, kv_len=Dynamic("kv_len"), dim=dim,
                       scale=float(dim**-0.5 if scale is None else scale), dtype=str(q.dtype), page=page, pages=Dynamic("pages") if page else 0,
                       sinks=sinks is not None, splits=sizes.splits(blocks, -(-keys // tile["block_n"]), target), **tile)
    inputs = (whole(0, q), whole(1, k), whole(2, v), whole(3, lengths), whole(4, table) if page else NO_TABLE,
              NO_SINKS if sinks is None else whole(5, sinks))
    return Plan(built, inputs, _check(q, k, v, lengths, table, sinks, scale), options=(("fast_math", True),))


INSTEAD = "compute it with torch's own operators where one is needed"
_attention_decode = Operation("attention_decode(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? table, Tensor? sinks, "
                              "float? scale) -> Tensor", _check, _plan, instead=INSTEAD)


def attention_decode(q, k, v, lengths, table=None, sinks=None, scale=None):
    """softmax(q · kᵀ · scale) · v for each head, of the last tokens of sequences whose keys lie in a cache.

    q: (batch, tokens, heads, D) of float16 or bfloat16, D a multiple of 16 up to 256, tokens few: those that end each sequence. k, v: (batch,
    capacity, kv_heads, D), of which sequence b has the first lengths[b] tokens; with ``table``, (pages, page, kv_heads, D): token t of
    sequence b lies in page table[b, t // page]. lengths: (batch,) of int32, table: (batch, pages of a sequence) of int32, both on the device;
    what a table says beyond a sequence's length does not matter, nor does what the cache holds there. A length above the capacity, or above page ·
    pages of a sequence, counts as that. heads is a multiple of kv_heads, whose neighbours share one (grouped queries). Token i of q sees the
    first lengths[b] − tokens + i + 1; one that sees none gives zeros. ``sinks``: (heads,) of float32: a score for each head that takes its part of
    the weights and brings no value. ``scale``: 1/√D if left out. Returns the same as q. No gradient.

    Several blocks share a sequence where there are few: as many as the shapes and the device's multiprocessors ask for. One kernel serves every
    batch and every capacity that are shared alike. TypeError: another dtype. ValueError: another shape, a cache without tokens."""
    return _attention_decode(q, k, v, lengths, table, sinks, scale)


def _check_latent(function, q, kv, paged):
    """The result of latent attention."""
    want_rank(function, "q", q, 4, "(batch, tokens, heads, 576)")
    want_dtype(function, "q", q, HALVES)
    want_rank(function, "kv", kv, 3, "(pages, page, 576)" if paged else "(batch, tokens, 576)")
    want_dtype(function, "kv", kv, q.dtype)
    batch, tokens, heads, width = q.shape
    if width % 64 != 0 or not TURNED < width <= 576:
        raise ValueError(f"{function}: q has heads of {width} elements; use 576, or another multiple of 64 from 128 up to that, of which the last "
                         f"{TURNED} are no part of the values")
    want_shape(function, "kv", kv, (kv.shape[0] if paged else batch, kv.shape[1], width), "rows of as many elements as q's, for every head the same")
    return Result((batch, tokens, heads, width - TURNED), str(q.dtype))


def _latent(q, kv, lists, rows, keys, target, **more):
    """The program of latent attention: ``lists`` of ``rows`` queries each see up to ``keys`` keys."""
    batch, tokens, heads, width = q.shape
    tile = sizes.latent(rows, target)
    blocks = lists * -(-rows // tile["block_m"])
    return Program.of(latent, batch=Dynamic("batch"), tokens=tokens, heads=heads, kv_len=Dynamic("kv_len"), dim=width - TURNED, turned=TURNED,
                      dtype=str(q.dtype), splits=sizes.splits(blocks, -(-keys // tile["block_n"]), target, resident=1), **more, **tile)


def _check_latent_attention(q, kv, lengths, table, scale):
    result = _check_latent("latent_attention", q, kv, table is not None)
    check_sequences("latent_attention", q.shape[0], lengths, table, kv.shape[1] * (1 if table is None else kv.shape[0]))
    check_scale("latent_attention", scale)
    return (result,)


def _plan_latent_attention(q, kv, lengths, table, scale, target):
    batch, tokens, heads, width = q.shape
    page = 0 if table is None else kv.shape[1]
    keys = table.shape[1] * page if page else kv.shape[1]
    built = _latent(q, kv, batch, tokens * heads, keys, target, page=page, pages=Dynamic("pages") if page else 0, chosen=0, causal=True,
                    scale=float(width**-0.5 if scale is None else scale))
    inputs = (whole(0, q), whole(1, kv), whole(2, lengths), whole(3, table) if page else View(2, (1, 1), first=True), View(2, (1, 1, 1), first=True))
    return Plan(built, inputs, _check_latent_attention(q, kv, lengths, table, scale), options=(("fast_math", True),))


def _check_sparse(q, kv, rows, causal, scale):
    result = _check_latent("sparse_latent_attention", q, kv, False)
    want_rank("sparse_latent_attention", "rows", rows, 3, "(batch, tokens, chosen)")
    want_dtype("sparse_latent_attention", "rows", rows, "int32")
    want_shape("sparse_latent_attention", "rows", rows, (*q.shape[:2], rows.shape[2]), "a list for each token of q")
    if rows.shape[2] == 0 or kv.shape[1] == 0:
        raise ValueError("sparse_latent_attention: there is nothing to attend to: rows has empty lists, or kv no tokens")
    if causal and kv.shape[1] < q.shape[1]:
        raise ValueError(f"sparse_latent_attention: causal=True with {q.shape[1]} tokens of q and {kv.shape[1]} of kv: the first ones of q would see "
                         f"nothing")
    check_scale("sparse_latent_attention", scale)
    return (result,)


def _plan_sparse(q, kv, rows, causal, scale, target):
    batch, tokens, heads, width = q.shape
    built = _latent(q, kv, batch * tokens, heads, rows.shape[2], target, page=0, pages=0, chosen=rows.shape[2], causal=causal,
                    scale=float(width**-0.5 if scale is None else scale))
    inputs = (whole(0, q), whole(1, kv), View(2, (1,), first=True), View(2, (1, 1), first=True), whole(2, rows))
    return Plan(built, inputs, _check_sparse(q, kv, rows, causal, scale), options=(("fast_math", True),))


_latent_attention = Operation("latent_attention(Tensor q, Tensor kv, Tensor lengths, Tensor? table, float? scale) -> Tensor",
                              _check_latent_attention, _plan_latent_attention, instead=INSTEAD)
_sparse_latent_attention = Operation("sparse_latent_attention(Tensor q, Tensor kv, Tensor rows, bool causal, float? scale) -> Tensor", _check_sparse,
                                     _plan_sparse, instead=INSTEAD)


def latent_attention(q, kv, lengths, table=None, scale=None):
    """Multi-head latent attention (MLA) of the last tokens of sequences: softmax(q · kvᵀ · scale) · kv[..., :-64].

    q: (batch, tokens, heads, 576) of float16 or bfloat16, absorbed: its first 512 elements stand against the latent row, the last 64 carry the
    position. kv: (batch, capacity, 576), one row for all heads, or with ``table`` (pages, page, 576). lengths, table: as ``attention_decode`` takes
    them. Other widths: a multiple of 64 from 128 to 576. Token i of q sees the first lengths[b] − tokens + i + 1; one that sees
    none gives zeros. ``scale``: 1/√576 if left out; models have scales of their own. Returns (batch, tokens, heads, 512) of q's dtype. No gradient.
    TypeError: another dtype. ValueError: another shape, a cache without tokens."""
    return _latent_attention(q, kv, lengths, table, scale)


def sparse_latent_attention(q, kv, rows, causal=True, scale=None):
    """Latent attention of which each token sees only the rows that it has chosen.

    q, kv: as ``latent_attention`` takes them, without a table. rows: (batch, tokens, chosen) of int32: the rows of kv that token i sees, each at most
    once, in any order; a number that is no row, as −1, stands for none. ``causal``: rows beyond i + kv_tokens − tokens count as none, too. A
    token that sees none gives zeros. batch · tokens is at most 65535. ``scale``: as there. Returns (batch, tokens, heads, 512) of q's dtype. No
    gradient. TypeError: another dtype. ValueError: another shape, empty lists, causal with fewer tokens of kv than of q."""
    return _sparse_latent_attention(q, kv, rows, causal, scale)
