# SPDX-License-Identifier: Apache-2.0
"""Sums, means, largest and smallest elements along the rows or the columns of a matrix."""

from __future__ import annotations

from . import sizes
from .checks import FLOATS, want_dtype
from .operation import Operation
from .plans import Plan, Program, Result
from .programs import reductions as programs
from .shapes import M, flat, rows_of

_KINDS = ("sum", "mean", "max", "min")
_NAMES = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}


def _check(x, dim, kind):
    if kind not in _KINDS:
        raise ValueError(f"reduce: kind is {kind!r}; use {' or '.join(map(repr, _KINDS))}")
    name = _NAMES[kind]
    if x.rank < 1:
        raise ValueError(f"{name}: x has no dimension; pass one of shape (…, N)")
    want_dtype(name, "x", x, FLOATS)
    if dim not in (-1, x.rank - 1) and not (x.rank == 2 and dim in (0, -2)):
        raise ValueError(f"{name}: dim is {dim} of {x.rank} dimensions; use -1, the last one, or 0 of a matrix")
    along_rows = dim in (-1, x.rank - 1)
    if kind != "sum" and x.shape[-1 if along_rows else 0] == 0:
        raise ValueError(f"{name}: x has shape {tuple(x.shape)}, and there is nothing in dimension {dim} to take the {name} of")
    return (Result(x.shape[:-1] if along_rows else x.shape[1:], "float32"),)


def _plan(x, dim, kind, target):
    results = _check(x, dim, kind)
    if x.size == 0:
        return Plan(None, (), results, fill=0.0)
    n, along_rows = flat(x)[1], dim in (-1, x.rank - 1)
    common = {"M": M, "N": n, "dtype": str(x.dtype)}
    if kind == "sum":
        name = "row_sum" if along_rows else "column_sum"
        program = Program.of(getattr(programs, name), **common, **sizes.rows(name, n))
    elif along_rows:
        program = Program.of(programs.row_reduction, kind=kind, **common, **sizes.parts(n))
    else:
        program = Program.of(programs.column_reduction, kind=kind, **common)
    return Plan(program, (rows_of(0, x),), results)


def _save(context, inputs, output):
    x, context.dim, context.kind = inputs
    context.shape, context.dtype = x.shape, x.dtype


def _gradient(context, dy):
    if context.kind not in ("sum", "mean"):
        raise NotImplementedError(f"kiln.library.{_NAMES[context.kind]} has no gradient: use torch.{_NAMES[context.kind]} where one is "
                                  f"needed")
    scale = 1.0 if context.kind == "sum" else 1.0 / context.shape[context.dim]
    return (dy * scale).to(context.dtype).unsqueeze(context.dim).expand(context.shape), None, None


_reduce = Operation("reduce(Tensor x, int dim, str kind) -> Tensor", _check, _plan, save=_save, backward=_gradient)


def sum(x, dim=-1):
    """Σ x along a dimension, in float32.

    x: (…, N) of float16, bfloat16 or float32. dim: the last one, or 0 of a matrix (M, N). Returns float32 without that dimension; of
    nothing, 0. With a gradient. TypeError: another dtype. ValueError: another dim."""
    return _reduce(x, dim, "sum")


def mean(x, dim=-1):
    """The mean of x along ``dim``, in float32. Otherwise as ``sum``; ValueError where there is nothing."""
    return _reduce(x, dim, "mean")


def amax(x, dim=-1):
    """The largest of x along ``dim``, in float32. Otherwise as ``mean``, without a gradient (NotImplementedError)."""
    return _reduce(x, dim, "max")


def amin(x, dim=-1):
    """The smallest of x along ``dim``, in float32. Otherwise as ``amax``."""
    return _reduce(x, dim, "min")
