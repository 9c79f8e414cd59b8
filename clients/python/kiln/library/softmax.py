# SPDX-License-Identifier: Apache-2.0
"""Softmax and cross-entropy over the last dimension, with their gradients."""

from __future__ import annotations

from . import sizes
from .checks import FLOATS, want_dtype, want_rows, want_shape
from .operation import Operation
from .plans import Plan, Program, Result, View
from .programs import cross_entropy as losses
from .programs import kept
from .programs import softmax as programs
from .shapes import M, each_row, flat_of, flat_rows, kept_in, rows_of

LABELS = ("int32", "int64")
# Else powers of two take three operations more for results below 2^-126, which count for nothing beside the largest, 1.
WITHOUT_SUBNORMALS = (("fast_math", True),)


def _check_softmax(x):
    want_rows("softmax", "x", x)
    want_dtype("softmax", "x", x, FLOATS)
    return (Result(x.shape, str(x.dtype)),)


def _plan_softmax(x, target):
    n, where = x.shape[-1], kept_in("softmax", x.shape[-1], x.dtype, target)
    common = {"M": M, "N": n, "dtype": str(x.dtype)}
    if where == "kept":
        return Plan(flat_rows(kept.softmax_kept, "softmax", n, x), (flat_of(0, x),), _check_softmax(x), WITHOUT_SUBNORMALS)
    if where == "registers":
        program = Program.of(programs.softmax, **common, **sizes.rows("softmax", n, target))
    elif where == "block":
        program = Program.of(programs.softmax_long, **common, **sizes.rows("softmax_long", n))
    else:
        program = Program.of(programs.softmax_online, **common, **sizes.rows("softmax_online", n))
    return Plan(program, (rows_of(0, x),), _check_softmax(x))


def _check_softmax_backward(dy, y):
    want_rows("softmax_backward", "y", y)
    want_dtype("softmax_backward", "y", y, FLOATS)
    want_dtype("softmax_backward", "dy", dy, y.dtype)
    want_shape("softmax_backward", "dy", dy, y.shape, "that of y")
    return (Result(y.shape, str(y.dtype)),)


def _plan_softmax_backward(dy, y, target):
    program = Program.of(programs.softmax_backward, M=M, N=y.shape[-1], dtype=str(y.dtype), **sizes.parts(y.shape[-1]))
    return Plan(program, (rows_of(0, dy), rows_of(1, y)), _check_softmax_backward(dy, y))


_softmax_backward = Operation("softmax_backward(Tensor dy, Tensor y) -> Tensor", _check_softmax_backward, _plan_softmax_backward)
_softmax = Operation("softmax(Tensor x) -> Tensor", _check_softmax, _plan_softmax,
                     save=lambda context, inputs, output: context.save_for_backward(output),
                     backward=lambda context, dy: _softmax_backward(dy, context.saved_tensors[0]))


def _check_cross_entropy(x, label):
    want_rows("cross_entropy", "x", x)
    want_dtype("cross_entropy", "x", x, FLOATS)
    want_dtype("cross_entropy", "label", label, LABELS)
    want_shape("cross_entropy", "label", label, x.shape[:-1], "one for each row of x")
    return (Result(x.shape[:-1], "float32"),)


def _plan_cross_entropy(x, label, target):
    n = x.shape[-1]
    labels = View(1, (label.size,), dtype="int32")
    if kept_in("cross_entropy", n, x.dtype, target) == "kept":
        program = flat_rows(kept.cross_entropy_kept, "cross_entropy", n, x, M=M)
        return Plan(program, (flat_of(0, x), labels), _check_cross_entropy(x, label), WITHOUT_SUBNORMALS)
    name = "cross_entropy_short" if n < 2 * sizes.SHORT else "cross_entropy"
    program = Program.of(getattr(losses, name), M=M, N=n, dtype=str(x.dtype), **sizes.rows(name, n, target))
    # Where memory is far from the bound, as for short rows, operations are.
    options = WITHOUT_SUBNORMALS if n <= sizes.IN_REGISTERS else ()
    return Plan(program, (rows_of(0, x), labels), _check_cross_entropy(x, label), options)


def _check_cross_entropy_backward(dloss, x, label, loss):
    results = _check_cross_entropy(x, label)
    for name, spec in (("dloss", dloss), ("loss", loss)):
        want_dtype("cross_entropy_backward", name, spec, "float32")
        want_shape("cross_entropy_backward", name, spec, results[0].shape, "one for each row of x")
    return (Result(x.shape, str(x.dtype)),)


def _plan_cross_entropy_backward(dloss, x, label, loss, target):
    n = x.shape[-1]
    program = Program.of(losses.cross_entropy_backward, M=M, N=n, dtype=str(x.dtype), **sizes.parts(n))
    inputs = (each_row(0, dloss), rows_of(1, x), View(2, (label.size,), dtype="int32"), each_row(3, loss))
    return Plan(program, inputs, _check_cross_entropy_backward(dloss, x, label, loss))


_cross_entropy_backward = Operation("cross_entropy_backward(Tensor dloss, Tensor x, Tensor label, Tensor loss) -> Tensor",
                                    _check_cross_entropy_backward, _plan_cross_entropy_backward)


def _cross_entropy_gradient(context, dloss):
    return _cross_entropy_backward(dloss, *context.saved_tensors), None


_cross_entropy = Operation("cross_entropy(Tensor x, Tensor label) -> Tensor", _check_cross_entropy, _plan_cross_entropy,
                           save=lambda context, inputs,
                           output: context.save_for_backward(*inputs, output), backward=_cross_entropy_gradient)


def softmax(x):
    """exp(x) / Σ exp(x) over the last dimension, computed in float32.

    x: (…, N) of float16, bfloat16 or float32. Returns the same; results below 2^-126 may be 0. With a gradient. A row of nothing but −∞ gives NaN.
    TypeError: another dtype. ValueError: N = 0."""
    return _softmax(x)


def cross_entropy(x, label):
    """log Σ exp(x[i, :]) − x[i, label[i]] for each row, in float32.

    x: (…, N) of float16, bfloat16 or float32, elements between ±2e38. label: (…) of int32 or int64, from 0 to N − 1, which is not checked.
    Returns (…) of float32, not averaged. With a gradient for x. TypeError: another dtype. ValueError: another shape, N = 0."""
    return _cross_entropy(x, label)
