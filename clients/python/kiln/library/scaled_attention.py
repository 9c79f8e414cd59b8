# SPDX-License-Identifier: Apache-2.0
"""Attention of 8-bit floats, with scales for each head or for a whole tensor."""

from __future__ import annotations

from .attention import FORM, arguments_of, check_inputs
from . import sizes
from .checks import HALVES, want_dtype, want_rank, want_shape
from .operation import Operation
from .plans import Plan, Program, Result
from .programs.scaled_attention import scaled_attention as program
from .shapes import whole

FP8 = "float8_e4m3fn"
# The matrix unit's own sums, which have 13 bits on sm_90a, are far finer than weights of e4m3.
OPTIONS = (("fast_accumulation", True), ("fast_math", True))


def _check(q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype):
    name = "scaled_attention"
    for word, spec in (("q", q), ("k", k), ("v", v)):
        want_rank(name, word, spec, 4, FORM)
        want_dtype(name, word, spec, FP8)
    check_inputs(name, q, k, v, causal, scale, step=32)
    for word, spec, heads in (("q_scale", q_scale, q.shape[2]), ("k_scale", k_scale, k.shape[2]), ("v_scale", v_scale, k.shape[2])):
        want_dtype(name, word, spec, "float32")
        if spec.shape != (1,):
            want_shape(name, word, spec, (heads,), f"one for each head of {word[0]}, or (1,): one for all")
    want_shape(name, "v_scale", v_scale, k_scale.shape, "that of k_scale")
    if out_dtype is not None and out_dtype not in HALVES:
        raise TypeError(f"{name}: out_dtype is {out_dtype}; use {' or '.join(HALVES)}")
    return (Result(q.shape, str(out_dtype or "bfloat16")),)


def _plan(q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype, target):
    results = _check(q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype)
    arguments = {name: value for name, value in arguments_of(q, k, causal, scale).items() if name != "dtype"}
    built = Program.of(program, **arguments, q_scales=q_scale.shape[0], kv_scales=k_scale.shape[0], out_dtype=results[0].dtype,
                       **sizes.scaled_attention(q.shape[3], target))
    return Plan(built, tuple(whole(i, spec) for i, spec in enumerate((q, k, v, q_scale, k_scale, v_scale))), results, options=OPTIONS)


_scaled_attention = Operation("scaled_attention(Tensor q, Tensor k, Tensor v, Tensor q_scale, Tensor k_scale, Tensor v_scale, bool causal, "
                              "float? scale, ScalarType? out_dtype) -> Tensor", _check, _plan)


def scaled_attention(q, k, v, q_scale, k_scale, v_scale, causal=False, scale=None, out_dtype=None):
    """``attention`` of q · q_scale, k · k_scale and v · v_scale, whose weights are rounded to float8_e4m3fn as well.

    q, k, v: of float8_e4m3fn, shapes as of ``attention``, D a multiple of 32 up to 256. q_scale: (heads), k_scale and v_scale: (kv_heads) of float32,
    or (1,): one for the whole tensor, none below 0. ``causal``, ``scale``: as of ``attention``. Returns the shape of q, of out_dtype: bfloat16 (the
    default) or float16. No gradient. TypeError: another dtype. ValueError: another shape, and as of ``attention``."""
    return _scaled_attention(q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype)
