# SPDX-License-Identifier: Apache-2.0
"""RMSNorm and LayerNorm over the last dimension, with their gradients."""

from __future__ import annotations

from . import sizes
from .checks import FLOATS, want_dtype, want_not_negative, want_rows, want_shape
from .operation import Operation
from .plans import Plan, Program, Result
from .programs import kept
from .programs import layer_norm as layer_norms
from .programs import norm_gradients as gradients
from .programs import rms_norm as rms_norms
from .shapes import M, each_row, flat, flat_of, flat_rows, kept_in, rows_of, whole

_WEIGHT = "one for each element of a row of x"
_ROW = "one for each row of x"


def _rows_and_weights(function, x, **weights):
    """Checks x (…, N) and vectors (N) of its dtype."""
    want_rows(function, "x", x)
    want_dtype(function, "x", x, FLOATS)
    for name, weight in weights.items():
        want_dtype(function, name, weight, x.dtype)
        want_shape(function, name, weight, (x.shape[-1],), _WEIGHT)


def _like(function, name, spec, x):
    want_dtype(function, name, spec, x.dtype)
    want_shape(function, name, spec, x.shape, "that of x")


def _statistics(function, x, **rows):
    for name, row in rows.items():
        want_dtype(function, name, row, "float32")
        want_shape(function, name, row, x.shape[:-1], _ROW)


def _same(x) -> Result:
    return Result(x.shape, str(x.dtype))


def _row_statistic(x) -> Result:
    return Result(x.shape[:-1], "float32")


# RMSNorm.


def _check_rms_norm(x, weight, eps):
    _rows_and_weights("rms_norm", x, weight=weight)
    want_not_negative("rms_norm", "eps", eps)
    return (_same(x),)


def _plan_rms_norm(x, weight, eps, target):
    n, where = x.shape[-1], kept_in("rms_norm", x.shape[-1], x.dtype, target)
    common = {"M": M, "N": n, "dtype": str(x.dtype), "eps": float(eps)}
    if where == "kept":
        program = flat_rows(kept.rms_norm_kept, "rms_norm", n, x, eps=float(eps))
        return Plan(program, (flat_of(0, x), whole(1, weight)), _check_rms_norm(x, weight, eps))
    if n < 2 * sizes.SHORT:
        program = Program.of(rms_norms.rms_norm_short, **common, **sizes.rows("rms_norm_short", n))
    elif where == "registers":
        program = Program.of(rms_norms.rms_norm, **common, **sizes.rows("rms_norm", n, target))
    elif where == "block":
        program = Program.of(rms_norms.rms_norm_long, **common, **sizes.rows("rms_norm_long", n))
    else:
        program = Program.of(rms_norms.rms_norm_parts, **common, **sizes.parts(n))
    return Plan(program, (rows_of(0, x), whole(1, weight)), _check_rms_norm(x, weight, eps))


def _check_rms_norm_backward(dy, x, weight, eps):
    _rows_and_weights("rms_norm_backward", x, weight=weight)
    _like("rms_norm_backward", "dy", dy, x)
    want_not_negative("rms_norm_backward", "eps", eps)
    return _same(x), _row_statistic(x)


def _plan_rms_norm_backward(dy, x, weight, eps, target):
    n = x.shape[-1]
    program = Program.of(rms_norms.rms_norm_backward, M=M, N=n, dtype=str(x.dtype), eps=float(eps), **sizes.parts(n))
    return Plan(program, (rows_of(0, dy), rows_of(1, x), whole(2, weight)), _check_rms_norm_backward(dy, x, weight, eps))


_rms_norm_backward = Operation("rms_norm_backward(Tensor dy, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
                               _check_rms_norm_backward, _plan_rms_norm_backward)


def _save_rms_norm(context, inputs, output):
    x, weight, context.eps = inputs
    context.save_for_backward(x, weight)


def _rms_norm_gradient(context, dy):
    x, weight = context.saved_tensors
    dx, rstd = _rms_norm_backward(dy, x, weight, context.eps)
    dw = _norm_weight_backward(dy, x, rstd.new_zeros(rstd.shape), rstd)[0] if context.needs_input_grad[1] else None
    return dx, dw, None


_rms_norm = Operation("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", _check_rms_norm, _plan_rms_norm, save=_save_rms_norm,
                      backward=_rms_norm_gradient)


# LayerNorm.


def _check_layer_norm(x, weight, bias, eps):
    _rows_and_weights("layer_norm", x, weight=weight, bias=bias)
    want_not_negative("layer_norm", "eps", eps)
    return _same(x), _row_statistic(x), _row_statistic(x)


def _plan_layer_norm(x, weight, bias, eps, target):
    n, where = x.shape[-1], kept_in("layer_norm", x.shape[-1], x.dtype, target)
    common = {"M": M, "N": n, "dtype": str(x.dtype), "eps": float(eps)}
    if where == "kept":
        program = flat_rows(kept.layer_norm_kept, "layer_norm", n, x, eps=float(eps))
        return Plan(program, (flat_of(0, x), whole(1, weight), whole(2, bias)), _check_layer_norm(x, weight, bias, eps))
    if n <= sizes.SHORT:
        program = Program.of(layer_norms.layer_norm_short, **common, **sizes.rows("layer_norm_short", n))
    elif where == "registers":
        program = Program.of(layer_norms.layer_norm, **common, **sizes.rows("layer_norm", n, target, x.dtype))
    elif where == "block":
        program = Program.of(layer_norms.layer_norm_long, **common, **sizes.rows("layer_norm_long", n))
    else:
        program = Program.of(layer_norms.layer_norm_parts, **common, **sizes.parts(n))
    return Plan(program, (rows_of(0, x), whole(1, weight), whole(2, bias)), _check_layer_norm(x, weight, bias, eps))


def _check_layer_norm_backward(dy, x, weight, mean, rstd):
    _rows_and_weights("layer_norm_backward", x, weight=weight)
    _like("layer_norm_backward", "dy", dy, x)
    _statistics("layer_norm_backward", x, mean=mean, rstd=rstd)
    return (_same(x),)


def _plan_layer_norm_backward(dy, x, weight, mean, rstd, target):
    n, where = x.shape[-1], kept_in("layer_norm_backward", x.shape[-1], x.dtype, target)
    common = {"M": M, "N": n, "dtype": str(x.dtype)}
    if where == "registers":
        program = Program.of(gradients.layer_norm_backward, **common, **sizes.rows("layer_norm_backward", n, target))
    elif where == "block":
        program = Program.of(gradients.layer_norm_backward_long, **common, **sizes.rows("layer_norm_backward_long", n))
    else:
        program = Program.of(gradients.layer_norm_backward_parts, **common, **sizes.parts(n))
    inputs = (rows_of(0, dy), rows_of(1, x), whole(2, weight), each_row(3, mean), each_row(4, rstd))
    return Plan(program, inputs, _check_layer_norm_backward(dy, x, weight, mean, rstd))


_layer_norm_backward = Operation("layer_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor rstd) -> Tensor",
                                 _check_layer_norm_backward, _plan_layer_norm_backward)


def _check_norm_weight_backward(dy, x, mean, rstd):
    _rows_and_weights("norm_weight_backward", x)
    _like("norm_weight_backward", "dy", dy, x)
    _statistics("norm_weight_backward", x, mean=mean, rstd=rstd)
    weight = Result((x.shape[-1],), str(x.dtype))
    return weight, weight


def _plan_norm_weight_backward(dy, x, mean, rstd, target):
    results = _check_norm_weight_backward(dy, x, mean, rstd)
    if x.size == 0:
        return Plan(None, (), results, fill=0.0)
    program = Program.of(gradients.norm_weight_backward, M=M, N=flat(x)[1], dtype=str(x.dtype))
    return Plan(program, (rows_of(0, dy), rows_of(1, x), each_row(2, mean), each_row(3, rstd)), results)


_norm_weight_backward = Operation("norm_weight_backward(Tensor dy, Tensor x, Tensor mean, Tensor rstd) -> (Tensor, Tensor)",
                                  _check_norm_weight_backward, _plan_norm_weight_backward)


def _save_layer_norm(context, inputs, output):
    x, weight, _, _ = inputs
    context.save_for_backward(x, weight, output[1], output[2])
    context.mark_non_differentiable(output[1], output[2])


def _layer_norm_gradient(context, dy, *_):
    x, weight, mean, rstd = context.saved_tensors
    dx = _layer_norm_backward(dy, x, weight, mean, rstd)
    needs = context.needs_input_grad
    dw, db = _norm_weight_backward(dy, x, mean, rstd) if needs[1] or needs[2] else (None, None)
    return dx, dw, db, None


_layer_norm = Operation("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor, Tensor)", _check_layer_norm,
                        _plan_layer_norm, save=_save_layer_norm, backward=_layer_norm_gradient)


def rms_norm(x, weight, eps=1e-6):
    """y = x / √(mean(x²) + eps) · weight over the last dimension.

    x: (…, N) of float16, bfloat16 or float32. weight: (N) of x's dtype. Returns y like x. With a gradient for x and weight.
    TypeError: another dtype. ValueError: another shape, N = 0, eps below 0."""
    return _rms_norm(x, weight, eps)


def rms_norm_backward(dy, x, weight, eps=1e-6):
    """(dx, rstd) of ``rms_norm`` for the gradient dy of its result; rstd, 1/√(mean(x²) + eps) of each row, is what ``norm_weight_backward``
    takes.

    dy and x: (…, N) of one dtype, float16, bfloat16 or float32. weight: (N) of it. dx is like x, rstd (…) of float32. No gradient.
    TypeError: another dtype. ValueError: another shape, N = 0, eps below 0."""
    return _rms_norm_backward(dy, x, weight, eps)


def layer_norm(x, weight, bias, eps=1e-5):
    """(y, mean, rstd): y = (x − mean) · rstd · weight + bias over the last dimension, with rstd = 1/√(variance + eps).

    x: (…, N) of float16, bfloat16 or float32. weight, bias: (N) of x's dtype. y is like x, mean and rstd (…) of float32, without a gradient
    of their own; y has one for x, weight and bias. TypeError: another dtype. ValueError: another shape, N = 0, eps below 0."""
    return _layer_norm(x, weight, bias, eps)


def layer_norm_backward(dy, x, weight, mean, rstd):
    """dx of ``layer_norm`` for the gradient dy of y, with the mean and rstd that it returned.

    dy and x: (…, N) of one dtype, float16, bfloat16 or float32. weight: (N) of it. mean, rstd: (…) of float32. No gradient. TypeError: another
    dtype. ValueError: another shape, N = 0."""
    return _layer_norm_backward(dy, x, weight, mean, rstd)


def norm_weight_backward(dy, x, mean, rstd):
    """(dw, db) of ``layer_norm``, and with a mean of zeros dw of ``rms_norm``: Σ dy · (x − mean) · rstd and Σ dy over all rows.

    dy and x: (…, N) of one dtype, float16, bfloat16 or float32. mean, rstd: (…) of float32. dw, db: (N) of x's dtype, summed in float32; of
    no rows, zeros. No gradient. TypeError: another dtype. ValueError: another shape, N = 0."""
    return _norm_weight_backward(dy, x, mean, rstd)
