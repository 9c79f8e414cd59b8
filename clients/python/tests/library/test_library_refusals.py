# SPDX-License-Identifier: Apache-2.0
"""Arguments that do not fit are refused before anything is compiled, and the message names the argument and what to pass."""

import inspect
import re

import numpy as np
import pytest

import kiln.language.dtypes as dtypes
from kiln import library
from kiln.library import plans, sizes
from kiln.library.operation import OPERATIONS

X, W, B3 = np.zeros((4, 8), np.float16), np.zeros(8, np.float16), np.zeros((2, 4, 8), np.float16)
ROW, F32 = np.zeros(4, np.float32), np.zeros((4, 8), np.float32)
Q = np.zeros((1, 4, 2, 16), np.float16)
LISTS, COUNTS = np.zeros((1, 2, 1, 3), np.int32), np.zeros((1, 2, 1), np.int32)
LENGTHS, LATENT, KV = np.zeros(1, np.int32), np.zeros((1, 4, 2, 576), np.float16), np.zeros((1, 9, 576), np.float16)
ONE, EIGHT = np.ones(1, np.float32), library.Bits.of(np.zeros((1, 4, 2, 32)), "float8_e4m3fn")
LSE, WIDE = np.zeros((1, 2, 4), np.float32), np.zeros((1, 4, 2, 144), np.float16)
E4 = library.Bits(np.zeros((4, 128), np.uint8), "float8_e4m3fn")
PACKED = np.zeros((8, 64), np.uint8)


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    monkeypatch.setenv("KILN_TARGET", "emu:sm_90a")
    monkeypatch.setattr(plans, "default_client", lambda: pytest.fail("compiled"))


def a128(dtype=np.float16):
    return np.zeros((4, 128), dtype)


REFUSED = [
    # (function, arguments, keywords, error, what its message says)
    ("rms_norm", (X, W[:5]), {}, ValueError, r"rms_norm: weight has shape \(5,\), where \(8,\) is needed"),
    ("rms_norm", (X, W.astype(np.float32)), {}, TypeError, "rms_norm: weight has dtype float32; use float16"),
    ("rms_norm", (X.astype(np.int32), W), {}, TypeError, "rms_norm: x has dtype int32; use float16 or bfloat16 or float32"),
    ("rms_norm", (X.astype(np.uint16), W), {}, TypeError, 'x has dtype uint16; .*kiln.library.Bits\\(array, "bfloat16"\\)'),
    ("rms_norm", (X[:, :0], W[:0]), {}, ValueError, "rows are empty"),
    ("rms_norm", (X, W, -1.0), {}, ValueError, "eps is -1.0; pass a number from 0 on"),
    ("rms_norm", (X, W, float("nan")), {}, ValueError, "eps is nan"),
    ("rms_norm", (X, W, "small"), {}, TypeError, "eps is str; pass float"),
    ("rms_norm", ([[1.0]], W), {}, TypeError, "x is list; pass a tensor of torch, a numpy array or kiln.library.Bits"),
    ("rms_norm", (X, None), {}, TypeError, "weight is None; pass a tensor"),
    ("rms_norm", (X.astype(">f2"), W), {}, TypeError, "foreign byte order"),
    ("rms_norm", (np.float16(1), W), {}, (TypeError, ValueError), "rms_norm: x"),
    ("layer_norm", (X, W, F32[0]), {}, TypeError, "layer_norm: bias has dtype float32; use float16"),
    ("layer_norm", (X, W, W[:1]), {}, ValueError, "layer_norm: bias has shape"),
    ("layer_norm_backward", (X, X, W, ROW, ROW.astype(np.float16)), {}, TypeError, "rstd has dtype float16; use float32"),
    ("layer_norm_backward", (X[:3], X, W, ROW, ROW), {}, ValueError, r"dy has shape \(3, 8\), where \(4, 8\) is needed: that of x"),
    ("layer_norm_backward", (X, X, W, ROW[:1], ROW), {}, ValueError, "mean has shape"),
    ("norm_weight_backward", (X, X, ROW, ROW[:2]), {}, ValueError, "rstd has shape"),
    ("rms_norm_backward", (F32, X, W), {}, TypeError, "dy has dtype float32; use float16"),
    ("softmax", (X.astype(np.float64),), {}, TypeError, "softmax: x has dtype float64"),
    ("softmax", (X[:, :0],), {}, ValueError, "rows are empty"),
    ("cross_entropy", (X, ROW), {}, TypeError, "label has dtype float32; use int32 or int64"),
    ("cross_entropy", (X, np.zeros(3, np.int32)), {}, ValueError, r"label has shape \(3,\), where \(4,\)"),
    ("rope", (X, ROW, ROW), {}, ValueError, "x has 2 dimensions"),
    ("rope", (Q, np.zeros((1, 4, 8), np.float16), np.zeros((1, 4, 8), np.float32)), {}, TypeError, "cos has dtype float16; use float32"),
    ("rope", (Q, np.zeros((1, 4, 7), np.float32), np.zeros((1, 4, 8), np.float32)), {}, ValueError, "cos has shape"),
    ("rope", (Q[..., :15], ROW, ROW), {}, ValueError, "15 elements in its last dimension; it must be even"),
    ("swiglu", (X[:, :7],), {}, ValueError, "7 elements in its last dimension; it must be even"),
    ("transpose", (B3,), {}, ValueError, r"transpose: x has shape \(2, 4, 8\); pass one of shape \(M, N\)"),
    ("sum", (X, 2), {}, ValueError, "sum: dim is 2 of 2 dimensions"),
    ("sum", (B3, 0), {}, ValueError, "sum: dim is 0 of 3 dimensions"),
    ("amax", (X[:0], 0), {}, ValueError, "amax: x has shape"),
    ("mean", (X[:, :0],), {}, ValueError, "there is nothing in dimension -1"),
    ("sum", (X, 0.5), {}, TypeError, "dim is float; pass int"),
    ("matmul", (X, X), {}, ValueError, r"matmul: a has 8 elements along k and b 4: a is \(4, 8\), b is \(4, 8\)"),
    ("matmul", (X, X.astype(np.float32)), {"trans_b": True}, TypeError, "matmul: b has dtype float32; use float16"),
    ("matmul", (X.astype(np.int64), X), {}, TypeError, "a has dtype int64; use float16 or"),
    ("matmul", (W, X), {}, ValueError, r"a has shape \(8,\); pass one of shape \(M, K\) or \(batch, M, K\)"),
    ("matmul", (X, B3), {"trans_b": True}, ValueError, "a batch of b needs one of a"),
    ("matmul", (B3, X), {"trans_a": True}, ValueError, "trans_a needs a of"),
    ("matmul", (np.zeros((3, 4, 8), np.float16), B3), {"trans_b": True}, ValueError, "a is a batch of 3 and b one of 2"),
    ("matmul", (X, X, W), {"trans_b": True}, ValueError, r"bias has shape \(8,\), where \(4,\)"),
    ("matmul", (X, X), {"trans_b": True, "activation": "tanh"}, ValueError, "activation is 'tanh'; use 'relu', 'gelu', 'silu' or None"),
    ("matmul", (X, X), {"trans_b": True, "out_dtype": "int32"}, TypeError, "out_dtype is int32 for operands of float16"),
    ("matmul", (X, X), {"trans_b": True, "residual": F32[:, :4]}, TypeError, "residual has dtype float32; use float16"),
    ("matmul", (X, X), {"trans_b": True, "row_scale": ROW.astype(np.float16)}, TypeError, "row_scale has dtype float16; use float32"),
    ("matmul", (X, X), {"trans_b": True, "fast_accumulation": True}, TypeError, "fast_accumulation is for 8-bit floats"),
    ("matmul", (X, X), {"trans_b": True, "allow_tf32": True}, TypeError, "allow_tf32 is for float32"),
    ("matmul", (X, X), {"trans_b": 1.5}, TypeError, "trans_b is float; pass bool"),
    ("matmul", (X.astype(np.int8), X.astype(np.int8)), {"trans_b": True, "activation": "relu"}, TypeError, "a has dtype int8"),
    ("matmul", (B3, B3), {"trans_b": True, "activation": "relu"}, ValueError, "b of two dimensions"),
    ("gemv", (X, W[:3]), {}, ValueError, "gemv: x has shape"),
    ("gemv", (X, W, W), {}, ValueError, "gemv: bias has shape"),
    ("scaled_matmul", (E4, E4, np.zeros((1, 4), np.float32), np.zeros((2, 1), np.float32)), {}, ValueError, "scale_b has shape"),
    ("scaled_matmul", (E4, E4, np.zeros((4, 1), np.float32), np.zeros((1, 1), np.float32)), {}, ValueError, "scale_a has shape"),
    ("scaled_matmul", (a128(), E4, ROW, ROW), {}, TypeError, "a has dtype float16; use float8_e4m3fn"),
    ("scaled_matmul", (a128(np.uint8), E4, ROW, ROW), {}, TypeError, r"kiln.library.Bits\(array, \"float8_e4m3fn\"\)"),
    ("grouped_matmul", (X, B3, np.zeros(1, np.int32)), {}, ValueError, "a has 4 rows; pad those of each expert to a multiple of 128"),
    ("grouped_matmul", (np.zeros((128, 8), np.float16), B3, np.zeros(2, np.int32)), {}, ValueError, "expert has shape"),
    ("quantized_matmul", (a128(), PACKED, np.zeros((1, 8), np.float16)), {"format": "int8"}, ValueError,
     "format is 'int8'; use 'int4' or 'mxfp4'"),
    ("quantized_matmul", (a128(), PACKED, np.zeros((1, 8), np.float16)), {"group": 48}, ValueError, "group is 48; use a power of two"),
    ("quantized_matmul", (a128(), PACKED, np.zeros((2, 8), np.float16)), {}, ValueError, "scale has shape"),
    ("quantized_matmul", (a128(), PACKED[:, :9], np.zeros((1, 8), np.float16)), {}, ValueError, "weight has shape"),
    ("quantized_matmul", (a128(), PACKED, np.zeros((1, 8), np.uint32)), {"format": "mxfp4"}, TypeError,
     "a has dtype float16; use bfloat16"),
    ("quantized_matmul", (X, PACKED, np.zeros((1, 8), np.float16)), {}, ValueError,
     "a has 8 elements along k; pad a and weight to a multiple of 128"),
    ("quantize_rows", (X.astype(np.int8),), {}, TypeError, "quantize_rows: x has dtype int8"),
    ("interleave", (PACKED[:, :9],), {}, ValueError, "packed has 9 bytes in a row"),
    ("interleave", (X,), {}, TypeError, "packed has dtype float16; use uint8"),
    ("attention", (Q, Q, Q[:, :3]), {}, ValueError, "attention: v has shape"),
    ("attention", (Q, Q[:, :, :0], Q[:, :, :0]), {}, ValueError, "attention: k has 0 heads and q 2"),
    ("attention", (Q, Q[:, :0], Q[:, :0]), {}, ValueError, "k has no tokens"),
    ("attention", (Q, Q[:, :2], Q[:, :2]), {"causal": True}, ValueError, "causal=True with 4 tokens of q and 2 of k"),
    ("attention", (Q[..., :15], Q, Q), {}, ValueError, "heads of 15 elements; use a multiple of 16 up to 256"),
    ("attention", (Q, Q, Q), {"scale": 0.0}, ValueError, "scale is 0.0; pass a number above 0"),
    ("attention_decode", (Q, Q, Q, np.zeros(2, np.int32)), {}, ValueError, "attention_decode: lengths has shape"),
    ("attention_decode", (Q, Q, Q, LENGTHS.astype(np.int64)), {}, TypeError, "attention_decode: lengths has dtype int64; use int32"),
    ("attention_decode", (Q, np.concatenate([Q, Q]), Q, LENGTHS), {}, ValueError, r"attention_decode: k has shape \(2, 4, 2, 16\)"),
    ("attention_decode", (Q, Q, Q[:, :3], LENGTHS), {}, ValueError, "attention_decode: v has shape"),
    ("attention_decode", (Q, Q[:, :, :0], Q[:, :, :0], LENGTHS), {}, ValueError, "attention_decode: k has 0 heads and q 2"),
    ("attention_decode", (Q, Q[:, :0], Q[:, :0], LENGTHS), {}, ValueError, "attention_decode: the cache has no tokens"),
    ("attention_decode", (Q[..., :15], Q, Q, LENGTHS), {}, ValueError, "heads of 15 elements; use a multiple of 16 up to 256"),
    ("attention_decode", (Q, Q, Q, LENGTHS, np.zeros((2, 3), np.int32)), {}, ValueError, "attention_decode: table has shape"),
    ("attention_decode", (Q, Q, Q, LENGTHS, np.zeros((1, 0), np.int32)), {}, ValueError, "attention_decode: table has no columns"),
    ("attention_decode", (Q, Q, Q, LENGTHS, np.zeros((1, 3))), {}, TypeError, "attention_decode: table has dtype float64; use int32"),
    ("attention_decode", (Q, Q, Q, LENGTHS, None, ROW), {}, ValueError, "attention_decode: sinks has shape"),
    ("attention_decode", (Q, Q, Q, LENGTHS, None, W[:2]), {}, TypeError, "attention_decode: sinks has dtype float16; use float32"),
    ("attention_decode", (Q, Q, Q, LENGTHS), {"scale": -1.0}, ValueError, "attention_decode: scale is -1.0; pass a number above 0"),
    ("block_sparse_attention", (Q, Q, Q, LISTS, COUNTS, 96), {}, ValueError, "block_sparse_attention: block is 96; use 64 or 128"),
    ("block_sparse_attention", (Q, Q, Q, LISTS[:, :1], COUNTS), {}, ValueError, "block_sparse_attention: chosen has shape"),
    ("block_sparse_attention", (Q, Q, Q, LISTS[..., :0], COUNTS), {}, ValueError, "block_sparse_attention: chosen has empty lists"),
    ("block_sparse_attention", (Q, Q, Q, LISTS, COUNTS[:, :1]), {}, ValueError, "block_sparse_attention: counts has shape"),
    ("block_sparse_attention", (Q, Q, Q, LISTS.astype(np.int64), COUNTS), {}, TypeError, "block_sparse_attention: chosen has dtype int64"),
    ("block_sparse_attention", (Q, Q[:, :0], Q[:, :0], LISTS, COUNTS), {}, ValueError, "block_sparse_attention: k has no tokens"),
    ("linear_attention", (Q, Q[:, :3], Q), {}, ValueError, "linear_attention: k has shape"),
    ("linear_attention", (Q[..., :15], Q[..., :15], Q), {}, ValueError, "linear_attention: q has rows of 15 elements"),
    ("linear_attention", (Q, Q, Q[..., :15]), {}, ValueError, "linear_attention: v has rows of 15 elements"),
    ("linear_attention", (Q, Q, Q[:, :, :1]), {}, ValueError, "linear_attention: q has 2 heads and v 1"),
    ("linear_attention", (Q, Q, Q, np.zeros((1, 4), np.float32)), {}, ValueError, "linear_attention: decay has shape"),
    ("linear_attention", (Q, Q, Q, np.zeros((1, 4, 2), np.float16)), {}, TypeError, "linear_attention: decay has dtype float16; use float32"),
    ("latent_attention", (LATENT[..., :100], KV, LENGTHS), {}, ValueError, "heads of 100 elements; use 576"),
    ("latent_attention", (LATENT, KV[..., :128], LENGTHS), {}, ValueError, "latent_attention: kv has shape"),
    ("latent_attention", (LATENT, KV[:, :0], LENGTHS), {}, ValueError, "latent_attention: the cache has no tokens"),
    ("latent_attention", (LATENT, KV, LENGTHS, np.zeros((3, 3), np.int32)), {}, ValueError, "latent_attention: table has shape"),
    ("sparse_latent_attention", (LATENT, KV, np.zeros((1, 3, 5), np.int32)), {}, ValueError, "sparse_latent_attention: rows has shape"),
    ("sparse_latent_attention", (LATENT, KV, np.zeros((1, 4, 0), np.int32)), {}, ValueError, "there is nothing to attend to"),
    ("sparse_latent_attention", (LATENT, KV[:, :3], np.zeros((1, 4, 5), np.int32)), {}, ValueError, "causal=True with 4 tokens of q and 3 of kv"),
    ("attention", (Q.astype(np.float32), Q, Q), {}, TypeError, "attention: q has dtype float32; use float16 or bfloat16"),
    ("scaled_attention", (Q, Q, Q, ONE, ONE, ONE), {}, TypeError, "scaled_attention: q has dtype float16; use float8_e4m3fn"),
    ("scaled_attention", (EIGHT, EIGHT, EIGHT, ONE, ONE, np.ones(3, np.float32)), {}, ValueError, "scaled_attention: v_scale has shape"),
    ("scaled_attention", (EIGHT, EIGHT, EIGHT, ONE, ONE, np.ones(2, np.float32)), {}, ValueError, "that of k_scale"),
    ("scaled_attention", (EIGHT, EIGHT, EIGHT, ONE, ONE, ONE), {"out_dtype": "float32"}, TypeError, "out_dtype is float32; use float16 or bfloat16"),
    ("attention_with_lse", (Q, Q[..., :8], Q), {}, ValueError, "attention_with_lse: k has shape"),
    ("attention_backward", (Q, Q, Q, Q, LSE[:, :1], Q), {}, ValueError, "attention_backward: lse has shape"),
    ("attention_backward", (Q, Q, Q, Q, LSE.astype(np.float64), Q), {}, TypeError, "attention_backward: lse has dtype float64; use float32"),
    ("attention_backward", (Q, Q, Q, Q[:, :1], LSE, Q), {}, ValueError, "attention_backward: o has shape"),
    ("attention_backward", (Q, Q, Q, Q, LSE, Q.astype(np.float32)), {}, TypeError, "attention_backward: do has dtype float32; use float16"),
    ("attention_backward", (*[WIDE] * 4, LSE[:, :1], WIDE), {}, ValueError, "heads of 144 elements; use a multiple of 16 up to 128"),
]


@pytest.mark.parametrize("name, arguments, keywords, kind, says", REFUSED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REFUSED)])
def test_refusals(name, arguments, keywords, kind, says):
    with pytest.raises(kind, match=says):
        getattr(library, name)(*arguments, **keywords)


PUBLIC = [getattr(library, name) for name in library.__all__ if inspect.isfunction(getattr(library, name))]


@pytest.mark.parametrize("function", PUBLIC, ids=lambda f: f.__name__)
def test_every_function_says_what_it_takes(function):
    text = function.__doc__
    assert text and ("TypeError" in text or re.search(r"as\s+``\w+``", text)), "which errors it raises, or whose"
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind is parameter.VAR_POSITIONAL or re.search(rf"\b{parameter.name}\b", text), f"{parameter.name} is not explained"


def test_bits():
    values = np.asarray([0.0, 1.0, -1.5, 3.14159, 1e30, np.inf, np.nan, -0.0], np.float32)
    bits = library.Bits.of(values, "bfloat16")
    back = np.asarray(bits)
    assert bits.shape == (8,) and bits.dtype == "bfloat16" and back.dtype == np.float32 and np.isnan(back[6]) and np.signbit(back[7])
    assert np.abs(back[1:5] / values[1:5] - 1).max() < 2**-8 and back[5] == np.inf
    for dtype, largest, smallest in (("float8_e4m3fn", 448, 2.0**-9), ("float8_e5m2", 57344, 2.0**-16), ("float8_e4m3fnuz", 240, 2.0**-10)):
        assert list(np.asarray(library.Bits.of([largest, -1e9, smallest, smallest / 4, 1.0, -0.75],
                                               dtype))) == [largest, -largest, smallest, 0, 1, -0.75]
        every = library.Bits(np.arange(256, dtype=np.uint8), dtype)
        finite = np.isfinite(np.asarray(every)) & ~np.signbit(np.asarray(every))
        assert np.array_equal(library.Bits.of(np.asarray(every), dtype).array[finite],
                              every.array[finite]), "each number is its own nearest"
    assert list(np.asarray(library.Bits.of([17.0, 19.0, 18.0], "float8_e4m3fn"))) == [16, 20, 18], "ties to even"
    for array, dtype in ((np.zeros(3, np.float32), "bfloat16"), (np.zeros(3, np.uint8), "bfloat16"), (np.zeros(3, np.uint16), "float16")):
        with pytest.raises(TypeError, match="Bits"):
            library.Bits(array, dtype)


def test_buckets():
    assert [plans.bucket(m) for m in (0, 1, 2, 8, 9, 100, 256, 257, 5000, 8192)] == [0, 1, 8, 8, 16, 104, 256, 272, 5120, 8192]
    for m in range(1, 20000, 7):
        assert m <= plans.bucket(m) <= max(8, m * 17 // 16 + 8)
    assert len({plans.bucket(m) for m in range(1, 16385)}) <= 32 + 16 * 6 + 1
    assert [plans.dynamic("M", m).multiple for m in (32, 24, 20, 6, 7, 0)] == [16, 8, 4, 2, 1, 16]


def test_plans_tell_programs_without_tensors(monkeypatch, service):
    monkeypatch.setattr(plans, "default_client", lambda: service)
    plan = library.plan("matmul", library.Spec((5, 64), "float16"), library.Spec((64, 32), "float16"), None, None, None, None, False, False,
                        None, False, False,
                        target="cuda:sm_90a")
    assert plan.results[0].shape == (5, 32) and plan.program.trace().name == "gemm"
    with pytest.raises(ValueError, match="no function is called 'matmull'"):
        library.plan("matmull")
    with pytest.raises(TypeError, match="takes 3 arguments, not 1"):
        library.plan("rms_norm", library.Spec((5, 64), "float16"))


@pytest.mark.parametrize("m", [1, 8, 64, 128, 4096])
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_sizes_divide_what_shares_a_scale(m, target):
    for k, group in ((128, 128), (256, 32), (8192, 128), (8192, 2048)):
        from kiln.library.quantized import _packed_tile

        step = _packed_tile(m, k, group, target)["block_k"]
        assert step % group == 0 or group % step == 0
    assert sizes.scaled_product(m, target)["block_k"] % 128 == 0


def test_operations_have_the_parameters_of_their_checks():
    for operation in OPERATIONS.values():
        names = [parameter.name for parameter in operation.parameters]
        assert list(inspect.signature(operation.check).parameters) == names, operation.name
        assert list(inspect.signature(operation.plan).parameters) == [*names, "target"], operation.name
        assert {p.kind for p in operation.parameters} <= {"Tensor", "int", "float", "bool", "str", "ScalarType"}
        assert (operation.save is None) == (operation.backward is None), operation.name
    assert dtypes.as_dtype("bfloat16")
