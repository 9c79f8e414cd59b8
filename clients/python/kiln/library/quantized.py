# SPDX-License-Identifier: Apache-2.0
"""Products of narrow operands: scaled 8-bit floats, packed 4-bit weights, groups of experts; and rows made into 8-bit floats."""

from __future__ import annotations

from . import sizes
from .checks import FLOATS, HALVES, Spec, is_torch, spec_of, want_dtype, want_name, want_rank, want_rows, want_shape
from .operation import Operation
from .plans import Dynamic, Plan, Program, Result, View, bucket, dynamic
from .programs import grouped, kept, quantize, scaled
from .programs import packed as packed_programs
from .shapes import M, flat_of, flat_rows, kept_in, rows_of, whole

FP8 = "float8_e4m3fn"
GROUP_ROWS = 128  # of one expert: what grouped_matmul takes at a time
SCALED = scaled.SCALED
MXFP4_GROUP = 128  # elements of four exponents, which share a word
FORMATS = ("int4", "mxfp4")


def _at_most(extent: int) -> int:
    """The number of rows for which the program of a product of so many rows is made."""
    return max(8, bucket(extent))


def _tiles_up(extent: int, tile: int) -> int:
    return -(-extent // tile)


# Scaled 8-bit floats.


def _check_scaled(a, b, scale_a, scale_b, out_dtype):
    name = "scaled_matmul"
    for word, spec in (("a", a), ("b", b)):
        want_rank(name, word, spec, 2, "(M, K)" if word == "a" else "(N, K)")
        want_dtype(name, word, spec, FP8)
    want_shape(name, "b", b, (b.shape[0], a.shape[1]), "its rows are as long as those of a")
    if a.shape[1] == 0 or a.shape[1] % SCALED != 0:
        raise ValueError(f"{name}: a has {a.shape[1]} elements along k; pad a and b to a multiple of {SCALED}, with zeros")
    steps = a.shape[1] // SCALED
    for word, spec, shape in (("scale_a", scale_a, (steps, a.shape[0])), ("scale_b", scale_b, (_tiles_up(b.shape[0], SCALED), steps))):
        want_dtype(name, word, spec, "float32")
        want_shape(name, word, spec, shape,
                   f"one for each {SCALED} elements along k" + (f" and {SCALED} rows of b" if word == "scale_b" else ""))
    if out_dtype is not None and out_dtype not in FLOATS:
        raise TypeError(f"{name}: out_dtype is {out_dtype}; use {' or '.join(FLOATS)}")
    return (Result((a.shape[0], b.shape[0]), str(out_dtype or "bfloat16")),)


def _plan_scaled(a, b, scale_a, scale_b, out_dtype, target):
    results = _check_scaled(a, b, scale_a, scale_b, out_dtype)
    (m, k), n = a.shape, b.shape[0]
    shorter = ((dynamic("M", m), (("A", 0), ("scale_a", 1), ("C", 0))),)
    program = Program.of(scaled.block_scaled, shorter, M=_at_most(m), N=n, K=k, out_dtype=results[0].dtype,
                         **sizes.scaled_product(m, target))
    return Plan(program, tuple(whole(i, s) for i, s in enumerate((a, b, scale_a, scale_b))), results)


_scaled_matmul = Operation("scaled_matmul(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, ScalarType? out_dtype) -> Tensor",
                           _check_scaled,
                           _plan_scaled)


# Groups of experts.


def _check_grouped(a, b, expert, fast_accumulation):
    name = "grouped_matmul"
    want_rank(name, "a", a, 2, "(M, K)")
    want_rank(name, "b", b, 3, "(experts, N, K)")
    want_dtype(name, "a", a, (*HALVES, FP8))
    want_dtype(name, "b", b, a.dtype)
    want_shape(name, "b", b, (b.shape[0], b.shape[1], a.shape[1]), "its rows are as long as those of a")
    if a.shape[1] == 0:
        raise ValueError(f"{name}: a has shape {tuple(a.shape)}: there is nothing along k to sum")
    if a.shape[0] % GROUP_ROWS != 0:
        raise ValueError(f"{name}: a has {a.shape[0]} rows; pad those of each expert to a multiple of {GROUP_ROWS}")
    want_dtype(name, "expert", expert, "int32")
    want_shape(name, "expert", expert, (a.shape[0] // GROUP_ROWS,), f"the expert of each {GROUP_ROWS} rows of a")
    return (Result((a.shape[0], b.shape[1]), "bfloat16" if a.dtype == FP8 else str(a.dtype)),)


def _plan_grouped(a, b, expert, fast_accumulation, target):
    results = _check_grouped(a, b, expert, fast_accumulation)
    experts, n, k = b.shape
    program = Program.of(grouped.grouped, experts=experts, N=n, K=k, dtype=str(a.dtype), out_dtype=results[0].dtype,
                         **sizes.grouped_product(a.dtype, target))
    options = (("fast_accumulation", True),) if fast_accumulation else ()
    return Plan(program, (whole(0, a), whole(1, b), whole(2, expert)), results, options)


_grouped_matmul = Operation("grouped_matmul(Tensor a, Tensor b, Tensor expert, bool fast_accumulation) -> Tensor", _check_grouped,
                            _plan_grouped)


# Packed 4-bit weights.


def _check_quantized(a, weight, scale, format, group):
    name = "quantized_matmul"
    want_name(name, "format", format, FORMATS)
    want_rank(name, "a", a, (2, 3), "(M, K) or (batch, M, K)")
    want_dtype(name, "a", a, HALVES if format == "int4" else "bfloat16")
    want_dtype(name, "weight", weight, ("uint8", "uint32"))
    want_rank(name, "weight", weight, 2, "(N, K / 2) of uint8 or (N, K / 8) of uint32")
    k, n = a.shape[-1], weight.shape[0]
    if format == "mxfp4" and group != 32:
        raise ValueError(f"{name}: group is {group}; mxfp4 has exponents for groups of 32")
    if format == "int4" and (group < 32 or group & (group - 1) != 0):
        raise ValueError(f"{name}: group is {group}; use a power of two from 32 on")
    unit = max(group, MXFP4_GROUP if format == "mxfp4" else 32)
    if k == 0 or k % unit != 0:
        raise ValueError(f"{name}: a has {k} elements along k; pad a and weight to a multiple of {unit}, with zeros")
    want_shape(name, "weight", weight, (n, k // (2 if weight.dtype == "uint8" else 8)), "two 4-bit weights in a byte, eight in a word")
    want_dtype(name, "scale", scale, a.dtype if format == "int4" else "uint32")
    rows = k // (group if format == "int4" else MXFP4_GROUP)
    want_shape(name, "scale", scale, (rows, n),
               "one for each group along k and row of weight" if format == "int4" else "four exponents in a word")
    return (Result((*a.shape[:-1], n), str(a.dtype)),)


def _packed_tile(m, k, group, target) -> dict:
    """The tile of ``packed_product``, its steps at least as long as a group's scales ask for."""
    tile = sizes.packed_product(m, k, target)
    step = tile["block_k"]
    return tile if step % group == 0 or group % step == 0 else {**tile, "block_k": group}


def _plan_quantized(a, weight, scale, format, group, target):
    k, n = a.shape[-1], weight.shape[0]
    m = a.size // k
    common = {"M": _at_most(m), "N": n, "K": k, "interleaved": weight.dtype == "uint32"}
    shorter = ((Dynamic("M"), (("A", 0), ("C", 0))),)
    if format == "int4":
        program = Program.of(packed_programs.packed_weights, shorter, dtype=str(a.dtype), group=group, **common,
                             **_packed_tile(m, k, group, target))
    else:
        program = Program.of(packed_programs.packed_mxfp4, shorter, **common, **_packed_tile(m, k, MXFP4_GROUP, target))
    # Few rows: scales go to the product's sums, which rounds less often.
    options = (("fast_math", True),) if format == "int4" and m <= 8 else ()
    inputs = (View(0, (m, k)), whole(1, weight), whole(2, scale))
    return Plan(program, inputs, _check_quantized(a, weight, scale, format, group), options)


_quantized_matmul = Operation("quantized_matmul(Tensor a, Tensor weight, Tensor scale, str format, int group) -> Tensor", _check_quantized,
                              _plan_quantized)


# Rows as 8-bit floats.


def _check_quantize_rows(x):
    want_rows("quantize_rows", "x", x)
    want_dtype("quantize_rows", "x", x, FLOATS)
    return Result(x.shape, FP8), Result(x.shape[:-1], "float32")


def _plan_quantize_rows(x, target):
    n, where = x.shape[-1], kept_in("quantize_rows", x.shape[-1], x.dtype, target)
    common = {"M": M, "N": n, "dtype": str(x.dtype)}
    if where == "kept":
        return Plan(flat_rows(kept.quantize_rows_kept, "quantize_rows", n, x), (flat_of(0, x),), _check_quantize_rows(x))
    if where == "registers":
        program = Program.of(quantize.quantize_rows, **common, **sizes.rows("quantize_rows", n, target))
    elif where == "block":
        program = Program.of(quantize.quantize_rows_long, **common, **sizes.rows("quantize_rows_long", n))
    else:
        program = Program.of(quantize.quantize_rows_parts, **common, **sizes.parts(n))
    return Plan(program, (rows_of(0, x),), _check_quantize_rows(x))


_quantize_rows = Operation("quantize_rows(Tensor x) -> (Tensor, Tensor)", _check_quantize_rows, _plan_quantize_rows)


def scaled_matmul(a, b, scale_a, scale_b, out_dtype=None):
    """a · bᵀ of 8-bit floats, where each 128 elements along k have a scale: Σ over these blocks of (a · bᵀ) · scale_a · scale_b.

    a: (M, K), b: (N, K) of float8_e4m3fn, K a multiple of 128. scale_a: (K / 128, M), scale_b: (⌈N / 128⌉, K / 128) of float32. Returns (M,
    N) of out_dtype: bfloat16 (the default), float16 or float32. No gradient. One kernel serves a range of M. TypeError: another dtype.
    ValueError: another shape. CompileError (UNIMPLEMENTED) where the GPU has no such products."""
    return _scaled_matmul(a, b, scale_a, scale_b, out_dtype)


def grouped_matmul(a, b, expert, fast_accumulation=False):
    """Each GROUP_ROWS (128) rows of a by the matrix of their expert: c[rows of tile t] = a[rows of tile t] · b[expert[t]]ᵀ.

    a: (M, K) of float16, bfloat16 or float8_e4m3fn, the rows of an expert together and padded to a multiple of 128. b: (experts, N, K) of
    the same dtype. expert: (M / 128) of int32, from 0 to experts − 1, which is not checked. Returns (M, N) of a's dtype, bfloat16 for 8-bit
    floats. ``fast_accumulation``: 8-bit floats are summed in what the matrix unit keeps, 13 bits on sm_90a. No gradient. One kernel serves
    all M. TypeError: another dtype. ValueError: another shape."""
    return _grouped_matmul(a, b, expert, fast_accumulation)


def quantized_matmul(a, weight, scale, format="int4", group=None):
    """a · Wᵀ with weights of 4 bits.

    a: (M, K) or (batch, M, K) of float16 or bfloat16. weight: (N, K / 2) of uint8 with two weights in each byte, the earlier one low, or
    what ``interleave`` makes of it, which is faster. "int4": W = (weight − 8) · scale, scale (K / group, N) of a's dtype; group is a power
    of two from 32 on, 128 if left out, of which K is a multiple. "mxfp4", for a of bfloat16 and a group of 32: numbers of e2m1 times a
    power of two for each 32 along k; scale (K / 128, N) of uint32, four exponents of e8m0 in a word, the earliest one low, 1 … 254 each.
    Returns (…, N) of a's dtype. No gradient. One kernel serves a range of M. TypeError: another dtype. ValueError: another shape, format or
    group."""
    return _quantized_matmul(a, weight, scale, format, group if group is not None else 32 if format == "mxfp4" else 128)


def interleave(packed, format="int4"):
    """Weights of 4 bits (N, K / 2), two in a byte, as (N, K / 8) words in the order in which ``quantized_matmul`` unpacks them fastest. K
    is a multiple of 32. packed: uint8, of torch or numpy. TypeError: another dtype. ValueError: another shape or format."""
    spec = spec_of(packed, "interleave: packed")
    want_name("interleave", "format", format, FORMATS)
    want_dtype("interleave", "packed", spec, "uint8")
    want_rank("interleave", "packed", spec, 2, "(N, K / 2)")
    if spec.shape[1] % 16 != 0:
        raise ValueError(f"interleave: packed has {spec.shape[1]} bytes in a row; pad it to a multiple of 16")
    if is_torch(packed):
        import torch

        return packed_programs.interleave(packed.long(), e2m1=format == "mxfp4").to(torch.int32).view(torch.uint32)
    import numpy

    return packed_programs.interleave(packed.astype(numpy.int64), e2m1=format == "mxfp4").astype(numpy.uint32)


def quantize_rows(x):
    """(q, s): q[i, :] = x[i, :] / s[i] as float8_e4m3fn, with s[i] = max |x[i, :]| / 448, at least 1e-12.

    x: (…, N) of float16, bfloat16 or float32. q: (…, N), s: (…) of float32. No gradient. TypeError: another dtype. ValueError: N = 0."""
    return _quantize_rows(x)
