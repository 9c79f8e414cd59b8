# SPDX-License-Identifier: Apache-2.0
"""Attention without a softmax, whose past is a state of fixed size."""

from __future__ import annotations

from . import sizes
from .checks import HALVES, want_dtype, want_rank, want_shape
from .operation import Operation
from .plans import Dynamic, Plan, Program, Result, View
from .programs.linear_attention import linear_attention as program
from .shapes import whole

LARGEST_KEY = 256


def _check(q, k, v, decay):
    for name, spec in (("q", q), ("k", k), ("v", v)):
        want_rank("linear_attention", name, spec, 4, f"(batch, tokens, {'heads' if name == 'v' else 'groups'}, elements)")
        want_dtype("linear_attention", name, spec, HALVES if name == "q" else q.dtype)
    batch, tokens, groups, keys = q.shape
    heads, values = v.shape[2:]
    want_shape("linear_attention", "k", k, q.shape, "that of q")
    want_shape("linear_attention", "v", v, (batch, tokens, heads, values), "the batch and the tokens of q")
    if keys % 16 != 0 or not 0 < keys <= LARGEST_KEY:
        raise ValueError(f"linear_attention: q has rows of {keys} elements; use a multiple of 16 up to {LARGEST_KEY}: pad q and k with zeros")
    if values % 16 != 0 or values == 0:
        raise ValueError(f"linear_attention: v has rows of {values} elements; use a multiple of 16: pad v with zeros")
    if groups == 0 or heads % groups != 0:
        raise ValueError(f"linear_attention: q has {groups} heads and v {heads}; v's must be a multiple of q's, each of which serves as many of v")
    if decay is not None:
        want_dtype("linear_attention", "decay", decay, "float32")
        want_shape("linear_attention", "decay", decay, (batch, tokens, heads), "a number for each token and head of v")
    return (Result(v.shape, str(q.dtype)),)


def _plan(q, k, v, decay, target):
    heads, values = v.shape[2:]
    built = Program.of(program, batch=Dynamic("batch"), heads=heads, groups=q.shape[2], seq_len=Dynamic("seq_len"), keys=q.shape[3], values=values,
                       dtype=str(q.dtype), decays=decay is not None, **sizes.linear_attention(q.shape[3], target))
    inputs = (whole(0, q), whole(1, k), whole(2, v), View(0, (1, 1, 1), first=True) if decay is None else whole(3, decay))
    return Plan(built, inputs, _check(q, k, v, decay), options=(("fast_math", True),))


_linear_attention = Operation("linear_attention(Tensor q, Tensor k, Tensor v, Tensor? decay) -> Tensor", _check, _plan,
                              instead="compute it with torch's own operators where one is needed")


def linear_attention(q, k, v, decay=None):
    """Σ exp(decay[s + 1] + … + decay[t]) · (q[t] · k[s]) · v[s] over s ≤ t, for each head: linear attention, retention, and the chunk scan of Mamba-2
    (q is its C, k its B, v its x · dt, decay its A · dt).

    q, k: (batch, tokens, groups, K) of float16 or bfloat16, K a multiple of 16 up to 256. v: (batch, tokens, heads, N) of the same dtype, N a
    multiple of 16; heads is a multiple of groups, whose neighbours share one. decay: (batch, tokens, heads) of float32, logarithms, finite and at
    most 0, whose sums over up to 64 tokens are kept in float32; 0 if left out. The state between chunks is summed in float32 and multiplied in q's
    dtype. Returns the same as v. No gradient. One kernel serves every batch and every number of tokens. TypeError: another dtype. ValueError: another
    shape."""
    return _linear_attention(q, k, v, decay)
