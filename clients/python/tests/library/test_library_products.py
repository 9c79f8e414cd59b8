# SPDX-License-Identifier: Apache-2.0
"""The library's products on the emulator: every dtype and layout, odd sizes, epilogues, packed weights, attention, against float64."""

import math

import numpy as np
import pytest
from library_testing import FLOATS, RNG, TARGETS, error, near, needs_kilnd, normal, typed, wide

import kiln
from kiln import library
from kiln.library import products

pytestmark = needs_kilnd
HOPPER = "emu:sm_90a"
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


ACTIVATION = {None: lambda x: x, "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x)), "gelu": gelu}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("trans_a, trans_b", [(False, False), (False, True), (True, False), (True, True)])
def test_layouts(emulated, target, trans_a, trans_b):
    emulated(target)
    a, b = normal(37, 45, dtype="float16"), normal(45, 29, dtype="float16")
    given = (a.T.copy() if trans_a else a), (b.T.copy() if trans_b else b)
    near(library.matmul(*given, trans_a=trans_a, trans_b=trans_b), wide(a) @ wide(b), "float16")


@pytest.mark.parametrize("trans_a, trans_b", [(False, False), (False, True), (True, False)])
def test_operands_that_are_laid_out_anew_may_be_shorter(emulated, monkeypatch, trans_a, trans_b):
    """The planner's choice for large ones, here for small ones: 37 rows of 40 and 77 steps of 80 for which the program is made."""
    emulated(HOPPER)
    asked = []

    def copied(program, space, *others):
        asked.append(space)
        return program.sized(next(tile for tile in space if dict(tile).get("copied")))

    monkeypatch.setattr(products, "chosen", copied)
    a, b, bias = normal(37, 77, dtype="float16"), normal(77, 91, dtype="float16"), normal(91, dtype="float16")
    given = (a.T.copy() if trans_a else a), (b.T.copy() if trans_b else b)
    near(library.matmul(*given, bias, trans_a=trans_a, trans_b=trans_b), wide(a) @ wide(b) + wide(bias), "float16")
    assert asked


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(emulated, target, dtype):
    emulated(target)
    a, b, bias = normal(33, 80, dtype=dtype), normal(24, 80, dtype=dtype), normal(24, dtype=dtype)
    expected = wide(a) @ wide(b).T
    near(library.matmul(a, b, trans_b=True), expected, dtype)
    near(library.matmul(a, b, bias, trans_b=True, activation="silu"), ACTIVATION["silu"](expected + wide(bias)), dtype)
    near(library.matmul(a, b, trans_b=True, out_dtype="float32"), expected, "float32", times=10)
    near(library.gemv(b, typed(wide(a)[0], dtype), bias), wide(b) @ wide(a)[0] + wide(bias), dtype)


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER, "emu:gfx942"])
def test_integers_are_exact(emulated, target):
    emulated(target)
    a, b = RNG.integers(-128, 128, (33, 80)).astype(np.int8), RNG.integers(-128, 128, (24, 80)).astype(np.int8)
    result = library.matmul(a, b, trans_b=True)
    assert result.dtype == np.int32 and np.array_equal(result, a.astype(np.int32) @ b.T.astype(np.int32))


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32"])
def test_eight_bit_floats(emulated, dtype, out):
    emulated(HOPPER)
    a, b = normal(33, 96, dtype=dtype), normal(40, 96, dtype=dtype)
    near(library.matmul(a, b, trans_b=True, out_dtype=out), wide(a) @ wide(b).T, out, times=50 if out == "float32" else 1)
    assert error(library.matmul(a, b, trans_b=True, fast_accumulation=True), wide(a) @ wide(b).T) < 1e-2


def test_tf32_rounds_operands(emulated):
    emulated("emu:sm_80")
    a, b = normal(32, 64), normal(64, 32)
    assert error(library.matmul(a, b), wide(a) @ wide(b)) < 1e-6
    assert 1e-6 < error(library.matmul(a, b, allow_tf32=True), wide(a) @ wide(b)) < 2e-3


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER])
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("extra", [{"bias"}, {"residual"}, {"row_scale"}, {"bias", "residual", "row_scale"}])
def test_epilogues(emulated, target, rows, extra):
    emulated(target)
    a, b = normal(rows, 48, dtype="float16"), normal(48, 40, dtype="float16")
    sides = {"bias": normal(40, dtype="float16"), "residual": normal(rows, 40, dtype="float16"), "row_scale": normal(rows)}
    given = {name: sides[name] for name in extra}
    product = wide(a) @ wide(b)
    product = product * wide(sides["row_scale"])[:, None] if "row_scale" in extra else product
    product = product + wide(sides["bias"]) if "bias" in extra else product
    for activation in (None, "gelu"):
        expected = ACTIVATION[activation](product) + (wide(sides["residual"]) if "residual" in extra else 0)
        near(library.matmul(a, b, activation=activation, **given), expected, "float16")


def test_results_as_eight_bit_floats_saturate(emulated):
    emulated(HOPPER)
    a, b = normal(40, 64, dtype="bfloat16", scale=8), normal(64, 32, dtype="bfloat16", scale=8)
    result = library.matmul(a, b, out_dtype="float8_e4m3fn", row_scale=np.full(40, 0.5, np.float32))
    near(result, np.clip(0.5 * (wide(a) @ wide(b)), -448, 448), "float8_e4m3fn")
    assert np.abs(wide(result)).max() == 448


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER, "emu:gfx942"])
def test_batches(emulated, target):
    emulated(target)
    a, b = normal(3, 37, 45, dtype="float16"), normal(3, 45, 29, dtype="float16")
    expected = wide(a) @ wide(b)
    near(library.matmul(a, b), expected, "float16")
    near(library.matmul(a, b.swapaxes(1, 2).copy(), trans_b=True), expected, "float16")
    near(library.matmul(a.swapaxes(1, 2).copy(), b, trans_a=True), expected, "float16")
    near(library.matmul(a, b[0]), wide(a) @ wide(b)[0], "float16")
    near(library.matmul(a, b[0], residual=normal(3, 37, 29, dtype="float16") * 0), wide(a) @ wide(b)[0], "float16")


def test_transposed_views_are_not_copied(emulated):
    from kiln.library import plans

    emulated("emu:sm_80")
    a, b = normal(37, 45, dtype="float16"), normal(29, 45, dtype="float16")
    near(library.matmul(a, b.T), wide(a) @ wide(b).T, "float16")
    near(library.matmul(a, b, trans_b=True), wide(a) @ wide(b).T, "float16")
    assert len(plans._kernels) == 1, "the same program"
    near(library.matmul(a[::2, ::3], b[:, ::3].T), wide(a)[::2, ::3] @ wide(b)[:, ::3].T, "float16")


def test_kernels_serve_ranges_of_rows(emulated):
    from kiln.library import plans

    emulated("emu:sm_80")
    b = normal(48, 40, dtype="float16")
    for rows in (*range(2, 17), 17, 23, 24):
        a = normal(rows, 48, dtype="float16")
        near(library.matmul(a, b), wide(a) @ wide(b), "float16")
    assert len(plans._kernels) == 3, "up to 8, 16 and 24 rows"


def test_products_of_nothing(emulated):
    emulated(HOPPER)
    a, b = np.zeros((0, 48), np.float16), normal(48, 40, dtype="float16")
    assert library.matmul(a, b).shape == (0, 40) and library.matmul(normal(3, 48, dtype="float16"), b[:, :0]).shape == (3, 0)
    nothing = library.matmul(np.zeros((3, 0), np.float16), np.zeros((0, 5), np.float16))
    assert nothing.shape == (3, 5) and not nothing.any()
    assert library.matmul(np.zeros((0, 3, 48), np.float16), np.zeros((0, 48, 5), np.float16)).shape == (0, 3, 5)
    with pytest.raises(ValueError, match="a has no elements along k"):
        library.matmul(np.zeros((3, 0), np.float16), np.zeros((0, 5), np.float16), np.zeros(5, np.float16))


@pytest.mark.parametrize("m, n", [(5, 130), (70, 256), (16, 72)])
def test_scaled_matmul(emulated, m, n):
    emulated(HOPPER)
    k = 256
    a, b = normal(m, k, dtype="float8_e4m3fn"), normal(n, k, dtype="float8_e4m3fn")
    scale_a = (RNG.random((k // 128, m)) + 0.5).astype(np.float32)
    scale_b = (RNG.random((-(-n // 128), k // 128)) + 0.5).astype(np.float32)
    left = (wide(a).reshape(m, -1, 128) * wide(scale_a).T[:, :, None]).reshape(m, k)
    right = (wide(b).reshape(n, -1, 128) * np.repeat(wide(scale_b), 128, 0)[:n, :, None]).reshape(n, k)
    near(library.scaled_matmul(a, b, scale_a, scale_b), left @ right.T, "bfloat16")
    near(library.scaled_matmul(a, b, scale_a, scale_b, out_dtype="float32"), left @ right.T, "float32", times=100)


@pytest.mark.parametrize("target, dtype",
                         [("emu:sm_80", "float16"), (HOPPER, "bfloat16"), (HOPPER, "float8_e4m3fn"), ("emu:gfx942", "bfloat16")])
def test_grouped_matmul(emulated, target, dtype):
    emulated(target)
    rows = library.GROUP_ROWS
    a, b, expert = normal(3 * rows, 64, dtype=dtype), normal(4, 40, 64, dtype=dtype), np.asarray([2, 0, 2], np.int32)
    expected = np.concatenate([wide(a)[t * rows : (t + 1) * rows] @ wide(b)[e].T for t, e in enumerate(expert)])
    near(library.grouped_matmul(a, b, expert), expected, "bfloat16" if dtype.startswith("float8") else dtype)


E2M1 = np.asarray([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("m, group", [(1, 128), (5, 32), (20, 128), (140, 256)])
def test_int4_weights(emulated, target, interleaved, m, group):
    emulated(target)
    n, k = 72, 256
    a, packed = normal(m, k, dtype="float16"), RNG.integers(0, 256, (n, k // 2)).astype(np.uint8)
    scale = (RNG.random((k // group, n)) + 0.5).astype(np.float16)
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(n, k).astype(float) - 8
    weights = (nibbles.reshape(n, -1, group) * wide(scale).T[:, :, None]).reshape(n, k)
    given = library.interleave(packed) if interleaved else packed
    near(library.quantized_matmul(a, given, scale, group=group), wide(a) @ weights.T, "float16")


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("m", [1, 20])
def test_mxfp4_weights(emulated, interleaved, m):
    emulated(HOPPER)
    n, k = 72, 256
    a, packed = normal(m, k, dtype="bfloat16"), RNG.integers(0, 256, (n, k // 2)).astype(np.uint8)
    exponent = RNG.integers(123, 131, (n, k // 32)).astype(np.uint8)
    numbers = E2M1[np.stack([packed & 15, packed >> 4], -1).reshape(n, k)]
    weights = (numbers.reshape(n, -1, 32) * np.exp2(exponent.astype(float) - 127)[:, :, None]).reshape(n, k)
    given = library.interleave(packed, "mxfp4") if interleaved else packed
    near(library.quantized_matmul(a, given, exponent.view(np.uint32).T.copy(), format="mxfp4"), wide(a) @ weights.T, "bfloat16")


def reference_attention(q, k, v, causal, scale):
    group = q.shape[2] // k.shape[2]
    keys, values = np.repeat(wide(k), group, 2), np.repeat(wide(v), group, 2)
    scores = np.einsum("bqhd,bkhd->bhqk", wide(q), keys) * scale
    if causal:
        scores = np.where(np.tri(q.shape[1], k.shape[1], k.shape[1] - q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), values)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(emulated, target, causal):
    emulated(target)
    for tokens, keys, heads, kv_heads, dim, dtype in ((37, 37, 2, 2, 64, "float16"), (1, 70, 4, 2, 32, "bfloat16"),
                                                      (20, 90, 3, 1, 16, "float16")):
        q, k, v = normal(2, tokens, heads, dim, dtype=dtype), *(normal(2, keys, kv_heads, dim, dtype=dtype) for _ in range(2))
        near(library.attention(q, k, v, causal=causal), reference_attention(q, k, v, causal, dim**-0.5), dtype)
    near(library.attention(q, k, v, causal=causal, scale=0.5), reference_attention(q, k, v, causal, 0.5), dtype)


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER])
@pytest.mark.parametrize("dim", [80, 96, 128, 256])
def test_attention_of_wide_heads(emulated, target, dim):
    emulated(target)
    q, k, v = (normal(1, 70, heads, dim, dtype="float16") for heads in (2, 1, 1))
    near(library.attention(q, k, v, causal=True), reference_attention(q, k, v, True, dim**-0.5), "float16")


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER])
def test_attention_of_rows_that_see_none_of_the_last_keys(emulated, target):
    """A step has 128 keys or 64. The last one of the first rows ends beyond what they see."""
    emulated(target)
    for tokens, dim in ((130, 64), (70, 128)):
        q, k = normal(1, tokens, 1, dim, dtype="float16"), normal(1, 300, 1, dim, dtype="float16")
        with kiln.emulation(check=True):
            given = library.attention(q, k, k, causal=True, scale=30.0)
        near(given, reference_attention(q, k, k, True, 30.0), "float16")


def test_one_kernel_of_attention_serves_all_lengths(emulated):
    from kiln.library import plans

    emulated("emu:sm_80")
    for batch, tokens in ((1, 5), (2, 66)):
        q = normal(batch, tokens, 2, 16, dtype="float16")
        near(library.attention(q, q, q), reference_attention(q, q, q, False, 0.25), "float16")
    assert len(plans._kernels) == 1
    assert library.attention(q[:, :0], q, q).shape == (2, 0, 2, 16)


def test_checked_by_the_emulator(emulated):
    """No race, no access outside, in any of the library's own programs."""
    emulated(HOPPER)
    a, b, r, s = normal(21, 48, dtype="float16"), normal(48, 40, dtype="float16"), normal(21, 40, dtype="float16"), normal(21)
    q = normal(1, 37, 2, 32, dtype="float16")
    with kiln.emulation(check=True):
        library.matmul(a, b, r[0], residual=r, row_scale=s)
        library.matmul(a, b)
        library.matmul(a, b[:21], trans_a=True)
        library.matmul(np.stack([a, a]), np.stack([b, b]))
        library.attention(q, q, q, causal=True)
