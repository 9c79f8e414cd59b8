# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding, SwiGLU and transposition: each byte is read once and written once."""

from __future__ import annotations

from . import sizes
from .checks import FLOATS, want_dtype, want_rank, want_rows, want_shape
from .operation import Operation
from .plans import Dynamic, Plan, Program, Result, View, dynamic
from .programs import elementwise as programs
from .shapes import M, flat, rows_of

_BLOCKS = 65535  # along the second dimension of a grid


def _check_rope(x, cos, sin):
    if x.rank < 3:
        raise ValueError(f"rope: x has {x.rank} dimensions; pass one of shape (…, tokens, heads, D)")
    want_dtype("rope", "x", x, FLOATS)
    if x.shape[-1] % 2 != 0 or x.shape[-1] == 0:
        raise ValueError(f"rope: x has {x.shape[-1]} elements in its last dimension; it must be even, two halves that are turned against "
                         f"each other")
    for word, table in (("cos", cos), ("sin", sin)):
        want_dtype("rope", word, table, "float32")
        want_shape("rope", word, table, (*x.shape[:-2], x.shape[-1] // 2), "for each token, half of what a head has")
    return (Result(x.shape, str(x.dtype)),)


def _plan_rope(x, cos, sin, target):
    heads, dim = x.shape[-2:]
    tokens = x.size // (heads * dim)
    program = Program.of(programs.rope, tokens=Dynamic("tokens"), heads=heads, dim=dim, dtype=str(x.dtype))
    return Plan(program, (View(0, (tokens, heads, dim)), View(1, (tokens, dim // 2)), View(2, (tokens, dim // 2))),
                _check_rope(x, cos, sin))


def _rope_gradient(context, dy):
    if any(context.needs_input_grad[1:3]):
        raise NotImplementedError("kiln.library.rope has no gradient for cos and sin: pass cos.detach() and sin.detach()")
    cos, sin = context.saved_tensors
    return _rope(dy, cos, -sin), None, None


_rope = Operation("rope(Tensor x, Tensor cos, Tensor sin) -> Tensor", _check_rope, _plan_rope,
                  save=lambda context, inputs, output: context.save_for_backward(*inputs[1:]), backward=_rope_gradient)


def _check_swiglu(x):
    want_rows("swiglu", "x", x)
    want_dtype("swiglu", "x", x, FLOATS)
    if x.shape[-1] % 2 != 0:
        raise ValueError(f"swiglu: x has {x.shape[-1]} elements in its last dimension; it must be even: the gates, then as many values")
    return (Result((*x.shape[:-1], x.shape[-1] // 2), str(x.dtype)),)


def _plan_swiglu(x, target):
    m, n = flat(x)[0], x.shape[-1] // 2
    rows = 4 if m <= 4 * _BLOCKS else 64
    program = Program.of(programs.swiglu, M=M, N=n, dtype=str(x.dtype), rows=rows, **sizes.rows("swiglu", n))
    return Plan(program, (rows_of(0, x),), _check_swiglu(x))


def _check_swiglu_backward(dy, x):
    result = _check_swiglu(x)[0]
    want_dtype("swiglu_backward", "dy", dy, x.dtype)
    want_shape("swiglu_backward", "dy", dy, result.shape, "that of swiglu's result")
    return (Result(x.shape, str(x.dtype)),)


def _plan_swiglu_backward(dy, x, target):
    m, n = flat(dy)
    program = Program.of(programs.swiglu_backward, M=M, N=n, dtype=str(x.dtype), **sizes.rows("swiglu", n))
    return Plan(program, (View(0, (m, n)), View(1, (m, 2, n))), _check_swiglu_backward(dy, x))


_swiglu_backward = Operation("swiglu_backward(Tensor dy, Tensor x) -> Tensor", _check_swiglu_backward, _plan_swiglu_backward)
_swiglu = Operation("swiglu(Tensor x) -> Tensor", _check_swiglu, _plan_swiglu,
                    save=lambda context, inputs, output: context.save_for_backward(*inputs),
                    backward=lambda context, dy: _swiglu_backward(dy, context.saved_tensors[0]))


def _check_transpose(x):
    want_rank("transpose", "x", x, 2, "(M, N)")
    want_dtype("transpose", "x", x, FLOATS)
    return (Result((x.shape[1], x.shape[0]), str(x.dtype)),)


def _plan_transpose(x, target):
    m, n = x.shape
    program = Program.of(programs.transpose, M=dynamic("M", m), N=n, dtype=str(x.dtype), **sizes.transposed(n, x.dtype))
    return Plan(program, (View(0, (m, n)),), _check_transpose(x))


_transpose = Operation("transpose(Tensor x) -> Tensor", _check_transpose, _plan_transpose, save=lambda context, inputs, output: None,
                       backward=lambda context, dy: _transpose(dy))


def rope(x, cos, sin):
    """Rotary embedding of the halves of each head: (x₁ · cos − x₂ · sin, x₂ · cos + x₁ · sin).

    x: (…, tokens, heads, D) of float16, bfloat16 or float32, D even. cos, sin: (…, tokens, D/2) of float32. Returns the same as x. With a
    gradient for x; NotImplementedError where cos or sin need one. TypeError: another dtype. ValueError: another shape."""
    return _rope(x, cos, sin)


def swiglu(x):
    """silu(x[…, :N]) · x[…, N:].

    x: (…, 2·N) of float16, bfloat16 or float32. Returns (…, N). With a gradient. TypeError: another dtype. ValueError: an odd last
    dimension, or an empty one."""
    return _swiglu(x)


def transpose(x):
    """xᵀ, written out.

    x: (M, N) of float16, bfloat16 or float32. Returns (N, M). With a gradient. TypeError: another dtype. ValueError: not two dimensions."""
    return _transpose(x)
