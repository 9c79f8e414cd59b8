# SPDX-License-Identifier: Apache-2.0
"""Matrix products: plain, with an epilogue, in batches, and of one row."""

from __future__ import annotations

from ..language.dtypes import as_dtype
from . import spaces
from .checks import FLOATS, want_dtype, want_rank, want_shape
from .operation import Operation
from .plans import Dynamic, Plan, Program, Result, View, bucket, chosen, dynamic
from .programs import products as programs
from .programs.gemm import gemm

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
OPERANDS = (*FLOATS, "int8", *FLOAT8)
ACTIVATIONS = (None, "relu", "gelu", "silu")


def _results_allowed(dtype) -> tuple:
    """The dtypes that the result of such operands may have; the first is the default."""
    if dtype == "int8":
        return ("int32",)
    if dtype in FLOAT8:
        return ("bfloat16", "float16", "float32")
    return tuple(dict.fromkeys((str(dtype), *FLOATS, "float8_e4m3fn")))


def _check_operands(a, b, trans_a, trans_b):
    """((…, M), N) of the result."""
    want_rank("matmul", "a", a, (2, 3), "(M, K) or (batch, M, K)")
    want_rank("matmul", "b", b, (2, 3), "(K, N) or (batch, K, N)")
    want_dtype("matmul", "a", a, OPERANDS)
    want_dtype("matmul", "b", b, a.dtype)
    if trans_a and a.rank != b.rank:
        raise ValueError("matmul: trans_a needs a of (K, M) where b has two dimensions, and of (batch, K, M) where it has three")
    if b.rank == 3 and a.rank != 3:
        raise ValueError(f"matmul: a has shape {tuple(a.shape)} and b {tuple(b.shape)}; a batch of b needs one of a, as in a.unsqueeze(0)")
    m, k = (a.shape[-1], a.shape[-2]) if trans_a else (a.shape[-2], a.shape[-1])
    n, depth = (b.shape[-2], b.shape[-1]) if trans_b else (b.shape[-1], b.shape[-2])
    if depth != k:
        raise ValueError(f"matmul: a has {k} elements along k and b {depth}: a is {tuple(a.shape)}{', transposed' if trans_a else ''}, b "
                         f"is "
                         f"{tuple(b.shape)}{', transposed' if trans_b else ''}; trans_a and trans_b say which of them is transposed")
    if b.rank == 3 and a.shape[0] != b.shape[0]:
        raise ValueError(f"matmul: a is a batch of {a.shape[0]} and b one of {b.shape[0]}; they must be equal")
    return (*a.shape[:-2], m), n


def _check(a, b, bias, residual, row_scale, activation, trans_a, trans_b, out_dtype, allow_tf32, fast_accumulation):
    lead, n = _check_operands(a, b, trans_a, trans_b)
    allowed = _results_allowed(a.dtype)
    out = str(out_dtype or allowed[0])
    if out not in allowed:
        raise TypeError(f"matmul: out_dtype is {out} for operands of {a.dtype}; use {' or '.join(allowed)}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"matmul: activation is {activation!r}; use 'relu', 'gelu', 'silu' or None")
    if a.dtype == "int8" and not (bias is residual is row_scale is activation is None):
        raise TypeError("matmul: a has dtype int8, whose products are written as they are: leave bias, residual, row_scale and activation "
                        "out")
    if b.rank == 3 and not (bias is residual is row_scale is activation is None):
        raise ValueError("matmul: bias, residual, row_scale and activation are for b of two dimensions; apply them to the batch's result")
    if fast_accumulation and a.dtype not in FLOAT8:
        raise TypeError(f"matmul: fast_accumulation is for 8-bit floats, and a has dtype {a.dtype}; leave it out")
    if allow_tf32 and a.dtype != "float32":
        raise TypeError(f"matmul: allow_tf32 is for float32, and a has dtype {a.dtype}; leave it out")
    side = "float32" if out == "float8_e4m3fn" and a.dtype in FLOAT8 else str(a.dtype) if a.dtype in FLOATS else out
    for name, spec, shape in (("bias", bias, (n,)), ("residual", residual, (*lead, n)), ("row_scale", row_scale, lead)):
        if spec is not None:
            want_dtype("matmul", name, spec, "float32" if name == "row_scale" else side)
            want_shape("matmul", name, spec, shape,
                       "that of the result" if name == "residual" else f"one for each {'column' if name == 'bias' else 'row'}")
    return (Result((*lead, n), out),)


class _Sides:
    """Both operands as they lie in memory: two dimensions of each, and which is transposed there."""

    def __init__(self, a, b, trans_a, trans_b):
        self.flip_a, self.flip_b = a.is_transposed() and (a.rank == b.rank), b.is_transposed()
        self.trans_a, self.trans_b = trans_a != self.flip_a, trans_b != self.flip_b
        self.a, self.b = (self._laid(s, f) for s, f in ((a, self.flip_a), (b, self.flip_b)))
        if a.rank == 3 and b.rank == 2:
            self.a = (self.a[0] * self.a[1], self.a[2])
        self.m, self.k = (self.a[-1], self.a[-2]) if self.trans_a else (self.a[-2], self.a[-1])
        self.n = self.b[-2] if self.trans_b else self.b[-1]

    @staticmethod
    def _laid(spec, flipped):
        return (*spec.shape[:-2], spec.shape[-1], spec.shape[-2]) if flipped else tuple(spec.shape)

    def views(self) -> tuple:
        return View(0, self.a, self.flip_a), View(1, self.b, self.flip_b)


def _plan(a, b, bias, residual, row_scale, activation, trans_a, trans_b, out_dtype, allow_tf32, fast_accumulation, target):
    results = _check(a, b, bias, residual, row_scale, activation, trans_a, trans_b, out_dtype, allow_tf32, fast_accumulation)
    sides = _Sides(a, b, trans_a, trans_b)
    if sides.k == 0 and activation is bias is residual is None:
        return Plan(None, (), results, fill=0.0)
    if sides.k == 0:
        raise ValueError("matmul: a has no elements along k, so there is no product to add to; leave bias, residual and activation out")
    dtype = "tfloat32" if allow_tf32 else str(a.dtype)
    options = (("fast_accumulation", True),) if fast_accumulation else ()
    if b.rank == 3:
        return Plan(_batched(sides, dtype, results[0].dtype, options, target), sides.views(), results, options)
    common = {"N": sides.n, "in_dtype": dtype, "out_dtype": results[0].dtype, "trans_a": sides.trans_a, "trans_b": sides.trans_b,
              "activation": activation}
    one_row = sides.m == 1 and dtype in ("float16", "bfloat16") and sides.trans_b and not sides.trans_a and sides.k % 8 == 0
    if one_row and residual is row_scale is None and bias_fits(bias, results[0].dtype):
        program = Program.of(gemm, M=1, K=sides.k, bias=bias is not None, **common)
        return Plan(program, sides.views() + (() if bias is None else (View(2, (sides.n,)),)), results, options)
    size, shorter = _first_dimension(sides, residual is not None, row_scale is not None)
    plain = residual is row_scale is None and bias_fits(bias, results[0].dtype)
    space = spaces.product(size["M"], sides.n, size["K"], dtype, results[0].dtype, sides.trans_a, sides.trans_b, target, not plain,
                           copies=plain and not (sides.trans_a and sides.trans_b), promoted=dtype in FLOAT8 and not fast_accumulation,
                           aligned=all(extent * as_dtype(dtype).bytes % 16 == 0 for extent in (sides.a[-1], sides.b[-1])))
    symbols = {extent.name: size[extent.name] for extent, _ in shorter}
    if plain:
        program = chosen(Program.of(gemm, shorter, **size, bias=bias is not None, **common), space, options, target, symbols)
        return Plan(program, sides.views() + (() if bias is None else (View(2, (sides.n,)),)), results, options)
    program = Program.of(programs.fused, shorter, **size, bias=_name(bias), residual=_name(residual), row_scale=row_scale is not None, **common)
    program = chosen(program, space, options, target, symbols)
    scale = View(0, (1,), first=True) if row_scale is None else View(4, (sides.m,))
    row = View(0, (1,), first=True) if bias is None else View(2, (sides.n,))
    added = View(0, (1, 1), first=True) if residual is None else View(3, (sides.m, sides.n))
    return Plan(program, (*sides.views(), scale, row, added), results, options)


def bias_fits(bias, out: str) -> bool:
    """Whether the program ``gemm``, whose bias has the result's dtype, takes it."""
    return bias is None or bias.dtype == out


def _name(spec):
    return None if spec is None else str(spec.dtype)


def _first_dimension(sides: _Sides, residual: bool, row_scale: bool) -> tuple:
    """Sizes M and K that the program is made for, and which dimensions of its tensors may be shorter: the first one of a, which varies from
    call to call where b is a weight."""
    if sides.trans_a:
        places = [("A", 0), ("B", 1 if sides.trans_b else 0)]
        return {"M": sides.m, "K": bucket(sides.k)}, ((dynamic("K", sides.k) if sides.trans_b else Dynamic("K"), tuple(places)),)
    places = [("A", 0), ("C", 0)] + [("R", 0)] * residual + [("scale", 0)] * row_scale
    return {"M": max(8, bucket(sides.m)), "K": sides.k}, ((Dynamic("M"), tuple(places)),)


def _batched(sides: _Sides, dtype: str, out: str, options: tuple, target: str) -> Program:
    m, k = (sides.m, bucket(sides.k)) if sides.trans_a else (max(8, bucket(sides.m)), sides.k)
    if sides.trans_a:
        shorter = ((dynamic("K", sides.k) if sides.trans_b else Dynamic("K"), (("A", 1), ("B", 2 if sides.trans_b else 1))),)
    else:
        shorter = ((Dynamic("M"), (("A", 1), ("C", 1))),)
    program = Program.of(programs.batched, shorter, batch=Dynamic("batch"), M=m, N=sides.n, K=k, in_dtype=dtype, out_dtype=out,
                         trans_a=sides.trans_a, trans_b=sides.trans_b)
    space = spaces.batched(m, sides.n, k, dtype, out, sides.trans_a, sides.trans_b, target)
    return chosen(program, space, options, target, {"batch": bucket(sides.a[0]), **({"K": k} if sides.trans_a else {"M": m})})


def _save(context, inputs, output):
    a, b, bias, residual, row_scale, activation, context.trans_a, context.trans_b, _, context.allow_tf32, _ = inputs
    context.plain = row_scale is None and activation is None and a.dtype == output.dtype
    context.dtypes = [None if t is None else t.dtype for t in (bias, residual)]
    context.save_for_backward(a, b)


def _gradient(context, dc):
    if not context.plain:
        raise NotImplementedError("kiln.library.matmul has no gradient with activation, row_scale or an out_dtype other than a's: apply "
                                  "these to the "
                                  "result of matmul with torch's own operators")
    a, b = context.saved_tensors
    ta, tb, needs = context.trans_a, context.trans_b, context.needs_input_grad
    matmul_of = lambda x, y, tx, ty: _matmul(x, y, None, None, None, None, tx, ty, None, context.allow_tf32, False)
    da = db = None
    if needs[0]:
        da = matmul_of(b, dc, tb, True) if ta else matmul_of(dc, b, False, not tb)
    if needs[1]:
        x, y = (a, dc) if a.dim() == b.dim() else (a.flatten(0, 1), dc.flatten(0, 1))
        db = matmul_of(y, x, True, ta) if tb else matmul_of(x, y, not ta, False)
    dbias = dc.flatten(0, -2).sum(0).to(context.dtypes[0]) if needs[2] else None
    return da, db, dbias, dc.to(context.dtypes[1]) if needs[3] else None, *[None] * 7


_matmul = Operation("matmul(Tensor a, Tensor b, Tensor? bias, Tensor? residual, Tensor? row_scale, str? activation, bool trans_a, "
                    "bool trans_b, ScalarType? out_dtype, bool allow_tf32, bool fast_accumulation) -> Tensor", _check, _plan, save=_save,
                    backward=_gradient)


def matmul(a, b, bias=None, *, residual=None, row_scale=None, activation=None, trans_a=False, trans_b=False, out_dtype=None,
           allow_tf32=False, fast_accumulation=False):
    """activation((op(a) · op(b)) · row_scale + bias) + residual.

    a: (M, K), or (K, M) with ``trans_a``. b: (K, N), or (N, K) with ``trans_b``. a of (batch, M, K) goes by one b of two dimensions, or by
    a batch of as many. Both are float16, bfloat16, float32, int8, float8_e4m3fn or float8_e5m2, alike. bias: (N), residual: like the
    result, both of a's dtype (of 8-bit floats: of the result's). row_scale: (M) of float32. ``activation``: "relu", "gelu" or "silu".

    Returns (M, N) or (batch, M, N) of ``out_dtype``: of floats a's (the default), float16, bfloat16, float32 or float8_e4m3fn, which rounds
    to its largest number what is beyond; of 8-bit floats bfloat16 (the default), float16 or float32; of int8 int32. Sums are in float32, of
    int8 in int32. ``allow_tf32``: float32 is rounded to 10 bits on the matrix units, many times faster. ``fast_accumulation``: 8-bit floats
    are summed in what the matrix unit keeps, 13 bits on sm_90a.

    A matrix that is transposed in memory (``w.t()``) is taken as it is. One kernel serves a range of the first dimension of a, and any
    batch. With a gradient for a, b, bias and residual unless there is an activation, a row_scale or another out_dtype
    (NotImplementedError). TypeError: another dtype. ValueError: another shape or activation, K = 0 with something to add to."""
    return _matmul(a, b, bias, residual, row_scale, activation, trans_a, trans_b, out_dtype, allow_tf32, fast_accumulation)


def _check_gemv(weight, x, bias):
    want_rank("gemv", "weight", weight, 2, "(N, K)")
    want_dtype("gemv", "weight", weight, FLOATS)
    want_dtype("gemv", "x", x, weight.dtype)
    want_shape("gemv", "x", x, (weight.shape[1],), "one for each element of a row of weight")
    if bias is not None:
        want_dtype("gemv", "bias", bias, weight.dtype)
        want_shape("gemv", "bias", bias, (weight.shape[0],), "one for each row of weight")
    return (Result((weight.shape[0],), str(weight.dtype)),)


def _plan_gemv(weight, x, bias, target):
    """As a product of the one row x, whose arguments come in another order."""
    results = _check_gemv(weight, x, bias)
    row = type(x)((1, *x.shape), as_dtype(x.dtype))
    plan = _plan(row, weight, bias, None, None, None, False, True, None, False, False, target=target)
    moved = tuple(View({0: 1, 1: 0, 2: 2}[view.index], view.shape, view.transposed, view.first) for view in plan.inputs)
    return Plan(plan.program, moved, results, plan.options, plan.fill)


def _gemv_gradient(context, dy):
    weight, x = context.saved_tensors
    needs = context.needs_input_grad
    dw = dy.unsqueeze(1) * x.unsqueeze(0) if needs[0] else None
    dx = _matmul(dy.unsqueeze(0), weight, None, None, None, None, False, False, None, False, False).squeeze(0) if needs[1] else None
    return dw, dx, dy if needs[2] else None


_gemv = Operation("gemv(Tensor weight, Tensor x, Tensor? bias) -> Tensor", _check_gemv, _plan_gemv,
                  save=lambda context, inputs, output: context.save_for_backward(*inputs[:2]), backward=_gemv_gradient)


def gemv(weight, x, bias=None):
    """weight · x + bias.

    weight: (N, K) of float16, bfloat16 or float32. x: (K), bias: (N) of the same. Returns (N) of the same, summed in float32. With a
    gradient. TypeError: another dtype. ValueError: another shape."""
    return _gemv(weight, x, bias)
