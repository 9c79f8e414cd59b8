# SPDX-License-Identifier: Apache-2.0
"""Inputs, float64 references and the error measure, with numpy alone. Types that numpy lacks are arrays of their bits."""

import numpy as np

FP8 = {  # exponent bits, mantissa bits, bias, FNUZ
    "float8_e4m3fn": (4, 3, 7, False), "float8_e5m2": (5, 2, 15, False),
    "float8_e4m3fnuz": (4, 3, 8, True), "float8_e5m2fnuz": (5, 2, 16, True),
}
STORED = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32, "tfloat32": np.float32, "float64": np.float64,
          "int8": np.int8, "uint8": np.uint8, "int32": np.int32, **{name: np.uint8 for name in FP8}}
GUARD = 64  # elements around an output that must stay as they were


def fp8_values(dtype):
    """What each of the 256 bit patterns stands for; NaN and infinities as NaN."""
    exponent_bits, mantissa_bits, bias, fnuz = FP8[dtype]
    values = np.empty(256)
    for bits in range(256):
        sign = -1.0 if bits >> 7 else 1.0
        exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
        mantissa = bits & ((1 << mantissa_bits) - 1)
        top = exponent == (1 << exponent_bits) - 1
        if fnuz:
            special = bits == 0x80
        else:
            special = top if dtype == "float8_e5m2" else top and mantissa == (1 << mantissa_bits) - 1
        fraction = mantissa / 2**mantissa_bits
        value = fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias)
        values[bits] = np.nan if special else sign * value
    return values


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])  # what each of the 16 bit patterns stands for
SHORT = {"int4": np.where(np.arange(16) < 8, np.arange(16), np.arange(16) - 16.0), "uint4": np.arange(16.0), "float4_e2m1fn": E2M1}


def packed(array, dtype):
    """Numbers that the dtype has as bytes, each of two neighbours, the first in the lower half."""
    codes = {float(value): code for code, value in reversed(list(enumerate(SHORT[dtype])))}
    halves = np.vectorize(codes.__getitem__, otypes=[np.uint8])(array) if array.size else np.zeros(array.shape, np.uint8)
    return halves[..., 0::2] | halves[..., 1::2] << 4


def decode(array, dtype):
    """As float64."""
    if dtype in SHORT:
        return SHORT[dtype][np.stack([array & 15, array >> 4], -1).reshape(*array.shape[:-1], 2 * array.shape[-1])]
    if dtype == "bfloat16":
        return np.asarray(array.astype(np.uint32) << 16, np.uint32).view(np.float32).astype(np.float64)
    if dtype in FP8:
        return fp8_values(dtype)[array]
    return array.astype(np.float64)


def random_array(rng, shape, dtype):
    if dtype in ("int8", "uint8"):
        info = np.iinfo(STORED[dtype])
        return rng.integers(info.min, info.max + 1, shape, dtype=STORED[dtype])
    normal = rng.standard_normal(shape).astype(np.float32)
    if dtype == "bfloat16":
        bits = normal.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    if dtype in FP8:
        values = fp8_values(dtype)
        finite = np.flatnonzero(~np.isnan(values) & (np.abs(values) <= 4))
        order = finite[np.argsort(values[finite])]
        nearest = np.clip(np.searchsorted(values[order], normal), 0, len(order) - 1)
        return order[nearest].astype(np.uint8)
    if dtype == "tfloat32":
        return ((normal.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
    return normal.astype(STORED[dtype])


def relative_error(result, reference):
    """The larger of max|r-x| / max|x| and ‖r-x‖ / ‖x‖; NaN where the result has one, so that no bar is met."""
    if result.size == 0:
        return 0.0
    if not np.isfinite(result).all():
        return float("nan")
    difference = np.abs(result - reference)
    largest, norm = np.abs(reference).max(), np.linalg.norm(reference.ravel())
    if largest == 0:
        return float(difference.max())
    return float(max(difference.max() / largest, np.linalg.norm(difference.ravel()) / norm))


def erf(x):
    """Abramowitz and Stegun 7.1.26 is too coarse here: a series and a continued fraction by math.erf."""
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x)


def activate(name, x):
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return x * 0.5 * (1 + erf(x * 0.5**0.5))
    return x / (1 + np.exp(-x)) if name == "silu" else x


def gemm(rng, m, n, k, dtype, out, trans_a=False, trans_b=False, bias=False, activation=None):
    a, b = random_array(rng, (k, m) if trans_a else (m, k), dtype), random_array(rng, (n, k) if trans_b else (k, n), dtype)
    wide_a, wide_b = decode(a, dtype), decode(b, dtype)
    reference = (wide_a.T if trans_a else wide_a) @ (wide_b.T if trans_b else wide_b)
    inputs = [(a, dtype), (b, dtype)]
    if bias:
        inputs.append((random_array(rng, (n,), out), out))
        reference = reference + decode(*inputs[2])
    return inputs, ((m, n), out), activate(activation, reference)


def attention(rng, batch, seq_len, heads, dim, dtype, causal=False):
    shape = (batch, seq_len, heads, dim)
    inputs = [(random_array(rng, shape, dtype), dtype) for _ in range(3)]
    q, k, v = (decode(*x) for x in inputs)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / dim**0.5
    if causal:
        scores[..., np.triu(np.ones((seq_len, seq_len), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e30))
    weights /= weights.sum(axis=-1, keepdims=True)
    return inputs, (shape, dtype), np.einsum("bhqk,bkhd->bqhd", weights, v)


def rms_norm(rng, m, n, dtype):
    x, w = random_array(rng, (m, n), dtype), random_array(rng, (n,), dtype)
    wide = decode(x, dtype)
    scale = 1 / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + 1e-6)
    return [(x, dtype), (w, dtype)], ((m, n), dtype), wide * scale * decode(w, dtype)


def softmax(rng, m, n, dtype):
    x = random_array(rng, (m, n), dtype)
    wide = decode(x, dtype)
    weights = np.exp(wide - wide.max(axis=-1, keepdims=True, initial=-1e30))
    return [(x, dtype)], ((m, n), dtype), weights / weights.sum(axis=-1, keepdims=True)


def add(rng, m, n, dtype):
    a, b = random_array(rng, (m, n), dtype), random_array(rng, (m, n), dtype)
    return [(a, dtype), (b, dtype)], ((m, n), dtype), decode(a, dtype) + decode(b, dtype)


MAKERS = {"gemm": gemm, "attention": attention, "rms_norm": rms_norm, "softmax": softmax, "add": add}
