# SPDX-License-Identifier: Apache-2.0
"""Attention and its gradients: the scores are never written out."""

from __future__ import annotations

import sys

from . import sizes, spaces
from .checks import HALVES, want_dtype, want_rank, want_shape
from .operation import Operation
from .plans import Dynamic, Plan, Program, Result, about, chosen
from .programs.attention import attention as program
from .programs.attention_gradients import attention_backward as gradients
from .shapes import whole

FORM = "(batch, tokens, heads, D)"
LARGEST_HEAD, LARGEST_GRADIENT = 256, 128
# The one thing that it changes in the loops: weights below the smallest normal float32, beside one of 1 in each row, count as 0.
OPTIONS = (("fast_math", True),)


def check_inputs(function, q, k, v, causal, scale, largest=LARGEST_HEAD, step=16):
    """Refuses what does not fit together; ``step``: of the elements of a head, up to the ``largest``."""
    batch, tokens, heads, dim = q.shape
    if dim % step != 0 or not 0 < dim <= largest:
        raise ValueError(f"{function}: q has heads of {dim} elements; use a multiple of {step} up to {largest}: pad q, k and v with "
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


def _check_halves(function, q, k, v, causal, scale, **more):
    for name, spec in (("q", q), ("k", k), ("v", v)):
        want_rank(function, name, spec, 4, FORM)
        want_dtype(function, name, spec, HALVES if name == "q" else q.dtype)
    check_inputs(function, q, k, v, causal, scale, **more)


def _like(spec) -> Result:
    return Result(spec.shape, str(spec.dtype))


def _sums_of(q) -> tuple:
    """(batch, heads, tokens): one for each row of each head."""
    return q.shape[0], q.shape[2], q.shape[1]


def arguments_of(q, k, causal, scale) -> dict:
    """Of programs that serve every batch and every number of tokens."""
    heads, dim = q.shape[2:]
    return {"batch": Dynamic("batch"), "heads": heads, "kv_heads": k.shape[2], "seq_len": Dynamic("seq_len"), "kv_len": Dynamic("kv_len"),
            "dim": dim, "causal": causal, "scale": float(dim**-0.5 if scale is None else scale), "dtype": str(q.dtype)}


def _check(q, k, v, causal, scale):
    _check_halves("attention", q, k, v, causal, scale)
    return (_like(q),)


def _forward(q, k, causal, scale, target, lse=False):
    known = {"batch": about(q.shape[0]), "seq_len": about(q.shape[1]), "kv_len": about(k.shape[1])}
    built = Program.of(program, **arguments_of(q, k, causal, scale), lse=lse)
    return chosen(built, spaces.attention(q.shape[3], target, lse), OPTIONS, target, known)


def _plan(q, k, v, causal, scale, target):
    return Plan(_forward(q, k, causal, scale, target), (whole(0, q), whole(1, k), whole(2, v)), _check(q, k, v, causal, scale), options=OPTIONS)


_attention = Operation("attention(Tensor q, Tensor k, Tensor v, bool causal, float? scale) -> Tensor", _check, _plan,
                       instead="use kiln.library.attention, or attention_with_lse, on tensors that require one")


def _check_with_lse(q, k, v, causal, scale):
    _check_halves("attention_with_lse", q, k, v, causal, scale)
    return _like(q), Result(_sums_of(q), "float32")


def _plan_with_lse(q, k, v, causal, scale, target):
    results = _check_with_lse(q, k, v, causal, scale)
    return Plan(_forward(q, k, causal, scale, target, lse=True), (whole(0, q), whole(1, k), whole(2, v)), results, options=OPTIONS)


def _check_backward(q, k, v, o, lse, do, causal, scale, deterministic):
    _check_halves("attention_backward", q, k, v, causal, scale, largest=LARGEST_GRADIENT)
    for name, spec in (("o", o), ("do", do)):
        want_dtype("attention_backward", name, spec, q.dtype)
        want_shape("attention_backward", name, spec, q.shape, "that of q")
    want_dtype("attention_backward", "lse", lse, "float32")
    want_shape("attention_backward", "lse", lse, _sums_of(q), "one for each token of each head of q")
    return _like(q), _like(k), _like(v)


def _plan_backward(q, k, v, o, lse, do, causal, scale, deterministic, target):
    results = _check_backward(q, k, v, o, lse, do, causal, scale, deterministic)
    if q.size == 0:
        return Plan(None, (), results, fill=0.0)
    tile = sizes.attention_backward(q.shape[3], target, deterministic, q.shape[2] // k.shape[2], k.shape[0] * k.shape[2] * -(-k.shape[1] // 128))
    built = Program.of(gradients, **arguments_of(q, k, causal, scale), **tile)
    return Plan(built, tuple(whole(i, spec) for i, spec in enumerate((q, k, v, o, lse, do))), results, options=OPTIONS)


_attention_backward = Operation("attention_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor do, bool causal, float? scale, "
                                "bool deterministic) -> (Tensor, Tensor, Tensor)", _check_backward, _plan_backward)


def _save(context, inputs, output):
    *tensors, context.causal, context.scale = inputs
    context.save_for_backward(*tensors, *output)
    context.mark_non_differentiable(output[1])


def _gradient(context, do, _):
    deterministic = sys.modules["torch"].are_deterministic_algorithms_enabled()
    return (*_attention_backward(*context.saved_tensors, do, context.causal, context.scale, deterministic), None, None)


_attention_with_lse = Operation("attention_with_lse(Tensor q, Tensor k, Tensor v, bool causal, float? scale) -> (Tensor, Tensor)",
                                _check_with_lse, _plan_with_lse, save=_save, backward=_gradient)


def _wants_gradient(*tensors) -> bool:
    """Not within torch.no_grad(), where the kernel that writes sums as well would be compiled for nothing."""
    wanted = any(isinstance(t, _attention.tensor_type) and t.requires_grad for t in tensors)
    return wanted and _attention.torch.is_grad_enabled()


def attention(q, k, v, causal=False, scale=None):
    """softmax(q · kᵀ · scale) · v for each head.

    q: (batch, tokens, heads, D) of float16 or bfloat16, D a multiple of 16 up to 256. k, v: (batch, kv_tokens, kv_heads, D) of the same
    dtype; heads is a multiple of kv_heads, whose neighbours share one (grouped queries). ``causal``: token i of q sees those of k up to i +
    kv_tokens − tokens. ``scale``: 1/√D if left out. Returns the same as q. With a gradient for q, k and v up to D = 128, as
    ``attention_backward``; in order where torch.use_deterministic_algorithms asks for it. A kernel serves every batch and every number of
    tokens; there are up to three of them, of which the planner expects one to be the fastest. TypeError: another dtype. ValueError: another shape,
    no tokens of k, causal with fewer tokens of k than of q."""
    if _wants_gradient(q, k, v):
        return _attention_with_lse(q, k, v, causal, scale)[0]
    return _attention(q, k, v, causal, scale)


def attention_with_lse(q, k, v, causal=False, scale=None):
    """(o, lse): ``attention``, and log Σ exp of the scaled scores of each row, which ``attention_backward`` takes.

    q, k, v, ``causal`` and ``scale``: as of ``attention``. o is like q, lse (batch, heads, tokens) of float32, without a gradient of its own; o has
    one. TypeError and ValueError: as of ``attention``."""
    return _attention_with_lse(q, k, v, causal, scale)


def attention_backward(q, k, v, o, lse, do, causal=False, scale=None, deterministic=False):
    """(dq, dk, dv) of ``attention`` for the gradient do of its result, with o and lse as ``attention_with_lse`` returned them.

    q, k, v, ``causal`` and ``scale``: as of ``attention``, D up to 128. o, do: like q. lse: (batch, heads, tokens) of float32. dq, dk and dv are like
    q, k and v, summed in float32. ``deterministic``: dq is summed in one order, so that equal calls give equal bits, which takes longer; else parts
    may be added in the order in which they come. No gradient. TypeError: another dtype. ValueError: another shape, and as of ``attention``."""
    return _attention_backward(q, k, v, o, lse, do, causal, scale, deterministic)
