# SPDX-License-Identifier: Apache-2.0
"""Gradients of the library's attention on the emulator, and attention of 8-bit floats, against float64: masks, shared keys, lengths that fill no
tile, both orders of sums, scales."""

import numpy as np
import pytest
from library_testing import TARGETS, near, needs_kilnd, normal, typed, wide

import kiln
from kiln import library
from kiln.library import sizes
from kiln.library.operation import OPERATIONS

pytestmark = needs_kilnd
HOPPER = "emu:sm_90a"


def reference(q, k, v, do, causal, scale):
    """o, lse, dq, dk, dv in float64."""
    group = q.shape[2] // k.shape[2]
    query, keys, values, slope = wide(q), np.repeat(wide(k), group, 2), np.repeat(wide(v), group, 2), wide(do)
    scores = np.einsum("bqhd,bkhd->bhqk", query, keys) * scale
    if causal:
        scores = np.where(np.tri(q.shape[1], k.shape[1], k.shape[1] - q.shape[1], dtype=bool), scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    lse = most + np.log(np.exp(scores - most).sum(-1, keepdims=True))
    weights = np.exp(scores - lse)
    o = np.einsum("bhqk,bkhd->bqhd", weights, values)
    delta = (slope * o).sum(-1).transpose(0, 2, 1)[..., None]
    slopes = weights * (np.einsum("bqhd,bkhd->bhqk", slope, values) - delta) * scale
    shared = (*k.shape[:3], group, k.shape[3])
    dk = np.einsum("bhqk,bqhd->bkhd", slopes, query).reshape(k.shape[0], k.shape[1], k.shape[2], group, -1).sum(3)
    dv = np.einsum("bhqk,bqhd->bkhd", weights, slope).reshape(shared[0], shared[1], shared[2], group, -1).sum(3)
    return o, lse[..., 0], np.einsum("bhqk,bkhd->bqhd", slopes, keys), dk, dv


def compare(q, k, v, do, causal=False, scale=None, deterministic=False):
    """The result, its sums, and the gradients of both."""
    dtype = "bfloat16" if isinstance(q, library.Bits) else "float16"
    o, lse, *gradients = reference(q, k, v, do, causal, q.shape[3]**-0.5 if scale is None else scale)
    given = library.attention_with_lse(q, k, v, causal, scale)
    near(given[0], o, dtype)
    near(given[1], lse, "float32", times=20)
    found = library.attention_backward(q, k, v, *given, do, causal, scale, deterministic)
    for actual, expected in zip(found, gradients):
        near(actual, expected, dtype, times=2)
    return found


def tensors(batch, tokens, keys, heads, kv_heads, dim, dtype):
    """q, k, v, do"""
    q = [normal(batch, tokens, heads, dim, dtype=dtype) for _ in range(2)]
    k = [normal(batch, keys, kv_heads, dim, dtype=dtype) for _ in range(2)]
    return q[0], *k, q[1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(emulated, target, causal):
    emulated(target)
    for shape in ((2, 37, 37, 2, 2, 64, "float16"), (1, 3, 70, 4, 2, 32, "bfloat16"), (1, 70, 133, 3, 1, 16, "float16")):
        compare(*tensors(*shape), causal)


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER, "emu:gfx942", "emu:gfx1100"])
@pytest.mark.parametrize("dim", [80, 112, 128])
def test_gradients_of_wide_heads(emulated, target, dim):
    emulated(target)
    compare(*tensors(1, 70, 70, 2, 1, dim, "float16"), causal=True)


@pytest.mark.parametrize("dim", [64, 128])
def test_gradients_of_heads_that_share_keys(emulated, monkeypatch, dim):
    """A block goes over these heads where there are many blocks; each head has blocks of its own where there are few."""
    emulated(HOPPER)
    given = tensors(1, 70, 133, 3, 1, dim, "float16")
    assert sizes.attention_backward(dim, HOPPER, group=3, tiles_of_keys=2)["heads_apart"]
    compare(*given, causal=True)
    monkeypatch.setattr(sizes, "KEY_TURNS", 0)
    OPERATIONS["attention_backward"]._ready.clear()
    assert not sizes.attention_backward(dim, HOPPER, group=3, tiles_of_keys=2)["heads_apart"]
    compare(*given, causal=True)


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER, "emu:gfx1100"])
@pytest.mark.parametrize("dim", [64, 128])
def test_gradients_in_order(emulated, target, dim):
    """Equal calls give equal bits."""
    emulated(target)
    given = tensors(1, 70, 130, 1, 1, dim, "float16")
    for causal in (False, True):
        first, second = (compare(*given, causal, deterministic=True) for _ in range(2))
        for one, other in zip(first, second):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER])
@pytest.mark.parametrize("deterministic", [False, True])
def test_checked_by_the_emulator(emulated, target, deterministic):
    """No race, no access outside, over several blocks of queries and of keys."""
    emulated(target)
    for dim, causal in ((64, True), (128, False)):
        with kiln.emulation(check=True):
            compare(*tensors(1, 130, 140, 2, 1, dim, "bfloat16"), causal, deterministic=deterministic)


@pytest.mark.parametrize("target", ["emu:sm_80", HOPPER])
def test_keys_beyond_the_last_weigh_nothing(emulated, target):
    """All scores are far below 0, the score of a key that is not there: exp(0 − lse) is more than float16 holds."""
    emulated(target)
    q, k, v, do = tensors(1, 20, 21, 1, 1, 64, "float16")
    for deterministic in (False, True):
        compare(typed(np.abs(wide(q)), "float16"), typed(-np.abs(wide(k)), "float16"), v, do, scale=0.5, deterministic=deterministic)


def test_one_kernel_of_gradients_serves_all_lengths(emulated):
    from kiln.library import plans

    emulated("emu:sm_80")
    for batch, tokens in ((1, 5), (2, 66)):
        compare(*tensors(batch, tokens, tokens + 3, 2, 2, 16, "float16"), causal=True, scale=0.3)
    assert len(plans._kernels) == 2


def test_gradients_of_no_tokens(emulated):
    emulated("emu:sm_80")
    q, k, v, do = tensors(2, 0, 5, 2, 1, 16, "float16")
    dq, dk, dv = library.attention_backward(q, k, v, q, np.zeros((2, 2, 0), np.float32), do)
    assert dq.shape == q.shape and np.array_equal(dk, np.zeros_like(k)) and np.array_equal(dv, np.zeros_like(v))


def test_gradients_at_any_address(emulated):
    """Of tensors that begin at an element that nothing aligns."""
    emulated(HOPPER)
    given = tensors(1, 40, 40, 1, 1, 32, "float16")
    moved = [np.concatenate([np.zeros(1, t.dtype), t.reshape(-1)])[1:].reshape(t.shape) for t in given]
    for one, other in zip(compare(*given, deterministic=True), compare(*moved, deterministic=True)):
        assert np.array_equal(one, other)


def scaled(q, k, v, scales, causal=False, scale=None, **more):
    """Beside float64 of the same numbers; weights have three bits behind the first."""
    expected = reference(*(wide(t) * np.asarray(s)[:, None] for t, s in zip((q, k, v), scales)), np.zeros(q.shape), causal,
                         q.shape[3]**-0.5 if scale is None else scale)[0]
    given = library.scaled_attention(q, k, v, *scales, causal, scale, **more)
    near(given, expected, str(more.get("out_dtype") or "bfloat16"), times=20 if more else 4)


def eight_bits(batch, tokens, keys, heads, kv_heads, dim):
    """q, k and v"""
    k, v = (normal(batch, keys, kv_heads, dim, dtype="float8_e4m3fn") for _ in range(2))
    return normal(batch, tokens, heads, dim, dtype="float8_e4m3fn"), k, v


def of_heads(count):
    return (np.random.default_rng(3).random(count) + 0.5).astype(np.float32)


@pytest.mark.parametrize("target", ["emu:sm_89", HOPPER])
@pytest.mark.parametrize("causal", [False, True])
def test_scaled_attention(emulated, target, causal):
    emulated(target)
    one = np.ones(1, np.float32)
    scaled(*eight_bits(1, 37, 150, 2, 1, 64), (one, 2 * one, one / 3), causal)
    scaled(*eight_bits(2, 70, 131, 4, 2, 32), (of_heads(4), of_heads(2), of_heads(2)), causal, scale=0.3, out_dtype="float16")


@pytest.mark.parametrize("causal", [False, True])
def test_scaled_attention_of_heads_whose_scale_is_zero(emulated, causal):
    """All weights of a row are the same."""
    emulated(HOPPER)
    some = np.array([0, 0.5], np.float32)
    scaled(*eight_bits(1, 30, 150, 2, 2, 32), (some, np.ones(2, np.float32), np.ones(2, np.float32)), causal)
    scaled(*eight_bits(1, 30, 150, 2, 2, 32), (np.ones(2, np.float32), some, some), causal)


@pytest.mark.parametrize("target", ["emu:sm_89", HOPPER])
@pytest.mark.parametrize("dim", [128, 256])
def test_scaled_attention_of_wide_heads(emulated, target, dim):
    emulated(target)
    with kiln.emulation(check=True):
        scaled(*eight_bits(1, 140, 200, 2, 1, dim), (of_heads(2), of_heads(1), of_heads(1)), causal=True)
