# SPDX-License-Identifier: Apache-2.0
"""The library's row-wise functions on the emulator: every dtype, odd lengths, empty and strided arrays, against float64."""

import numpy as np
import pytest
from library_testing import BARS, FLOATS, RNG, TARGETS, error, near, needs_kilnd, normal, softmax, typed, wide

import kiln
from kiln import library
from kiln.library.operation import OPERATIONS

pytestmark = needs_kilnd
SHAPES = [(5, 77), (3, 2, 64), (1, 1000), (130,)]
PROMISED = [(target, shape, dtype) for target in TARGETS for shape,
            dtype in (((5, 77), "float16"), ((3, 2, 64), "bfloat16"), ((1, 1000), "float32"))]
PROMISED += [("emu:sm_90a", (3, 4099), "bfloat16"), ("emu:sm_90a", (2, 2, 4097), "float16")]  # that are kept in shared memory
PROMISED += [("emu:sm_90a", shape, dtype) for shape in SHAPES for dtype in FLOATS if ("emu:sm_90a", shape, dtype) not in PROMISED]


@pytest.fixture(params=PROMISED, ids=lambda p: f"{p[0]}-{'x'.join(map(str, p[1]))}-{p[2]}")
def case(request, emulated):
    target, shape, dtype = request.param
    emulated(target)
    return shape, dtype


def statistics(x, eps=1e-5):
    mean, variance = wide(x).mean(-1), wide(x).var(-1)
    return mean, 1 / np.sqrt(variance + eps)


def test_rms_norm(case):
    shape, dtype = case
    x, w, dy = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype), normal(*shape, dtype=dtype)
    rstd = 1 / np.sqrt((wide(x) ** 2).mean(-1) + 1e-3)
    near(library.rms_norm(x, w, eps=1e-3), wide(x) * rstd[..., None] * wide(w), dtype)
    dx, found = library.rms_norm_backward(dy, x, w, eps=1e-3)
    g, normed = wide(dy) * wide(w), wide(x) * rstd[..., None]
    near(dx, rstd[..., None] * (g - normed * (g * normed).mean(-1, keepdims=True)), dtype)
    near(found, rstd, "float32")


def test_layer_norm(case):
    shape, dtype = case
    x, w, b, dy = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype), normal(shape[-1], dtype=dtype), normal(*shape, dtype=dtype)
    mean, rstd = statistics(x)
    normed = (wide(x) - mean[..., None]) * rstd[..., None]
    y, found_mean, found_rstd = library.layer_norm(x, w, b)
    near(y, normed * wide(w) + wide(b), dtype)
    near(found_mean, mean, "float32", times=10)
    near(found_rstd, rstd, "float32", times=10)
    statistic = np.asarray(mean, np.float32), np.asarray(rstd, np.float32)
    g = wide(dy) * wide(w)
    dx = rstd[..., None] * (g - g.mean(-1, keepdims=True) - normed * (g * normed).mean(-1, keepdims=True))
    near(library.layer_norm_backward(dy, x, w, *statistic), dx, dtype)
    dw, db = library.norm_weight_backward(dy, x, *statistic)
    near(dw, (wide(dy) * normed).reshape(-1, shape[-1]).sum(0), dtype)
    near(db, wide(dy).reshape(-1, shape[-1]).sum(0), dtype)


def test_softmax(case):
    shape, dtype = case
    x, dy = normal(*shape, dtype=dtype, scale=3), normal(*shape, dtype=dtype)
    y = library.softmax(x)
    near(y, softmax(x), dtype)
    near(OPERATIONS["softmax_backward"](dy, y), wide(y) * (wide(dy) - (wide(dy) * wide(y)).sum(-1, keepdims=True)), dtype)


@pytest.mark.parametrize("label_dtype", ["int32", "int64"])
def test_cross_entropy(case, label_dtype):
    shape, dtype = case
    x = normal(*shape, dtype=dtype, scale=2)
    label = RNG.integers(0, shape[-1], shape[:-1]).astype(label_dtype)
    expected = np.log(np.exp(wide(x)).sum(-1)) - np.take_along_axis(wide(x), label[..., None].astype(np.int64), -1)[..., 0]
    loss = library.cross_entropy(x, label)
    near(loss, expected, "float32", times=10)
    dloss = normal(*shape[:-1]) if shape[:-1] else np.asarray(0.5, np.float32)
    onehot = np.eye(shape[-1])[label]
    near(OPERATIONS["cross_entropy_backward"](dloss, x, label, loss), wide(dloss)[..., None] * (softmax(x) - onehot), dtype)


def test_reductions(case):
    shape, dtype = case
    x = normal(*shape, dtype=dtype)
    for function, reference in ((library.sum, np.sum), (library.mean, np.mean), (library.amax, np.max), (library.amin, np.min)):
        near(function(x), reference(wide(x), -1), "float32", times=10)
        if len(shape) == 2:
            near(function(x, dim=0), reference(wide(x), 0), "float32", times=10)


def test_quantize_rows(case):
    shape, dtype = case
    x = normal(*shape, dtype=dtype)
    q, s = library.quantize_rows(x)
    scale = np.abs(wide(x)).max(-1) / 448
    near(s, scale, "float32")
    near(q, wide(x) / scale[..., None], "float8_e4m3fn")


def test_swiglu(case):
    shape, dtype = case
    x, dy = normal(*shape[:-1], 2 * shape[-1], dtype=dtype), normal(*shape, dtype=dtype)
    gate, value = np.split(wide(x), 2, -1)
    share = 1 / (1 + np.exp(-gate))
    near(library.swiglu(x), gate * share * value, dtype)
    expected = np.concatenate([wide(dy) * value * share * (1 + gate * (1 - share)), wide(dy) * gate * share], -1)
    near(OPERATIONS["swiglu_backward"](dy, x), expected, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", TARGETS)
def test_transpose_and_rope(emulated, target, dtype):
    emulated(target)
    for shape in ((37, 24), (32, 40), (1, 9)):
        x = normal(*shape, dtype=dtype)
        assert np.array_equal(wide(library.transpose(x)), wide(x).T)
    x, cos, sin = normal(2, 5, 4, 10, dtype=dtype), normal(2, 5, 5), normal(2, 5, 5)
    low, high = wide(x)[..., :5], wide(x)[..., 5:]
    c, s = wide(cos)[:, :, None], wide(sin)[:, :, None]
    near(library.rope(x, cos, sin), np.concatenate([low * c - high * s, high * c + low * s], -1), dtype)


# Rows that no block keeps, and those that blocks of the largest GPU do.


@pytest.mark.parametrize("target, n, dtype",
                         [("emu:sm_80", 20000, "float16"), ("emu:gfx1100", 17000, "bfloat16"), ("emu:sm_90a", 16385, "float32"),
                          ("emu:sm_90a", 32768, "bfloat16"), ("emu:sm_90a", 35376, "float16"), ("emu:sm_90a", 51936, "bfloat16"),
                          ("emu:sm_90a", 114688, "bfloat16")])
def test_long_rows(emulated, target, n, dtype):
    emulated(target)
    x, w, b, dy = normal(2, n, dtype=dtype), normal(n, dtype=dtype), normal(n, dtype=dtype), normal(2, n, dtype=dtype)
    mean, rstd = statistics(x)
    normed = (wide(x) - mean[:, None]) * rstd[:, None]
    y, *found = library.layer_norm(x, w, b)
    near(y, normed * wide(w) + wide(b), dtype)
    g = wide(dy) * wide(w)
    near(library.layer_norm_backward(dy, x, w, *found),
         rstd[:, None] * (g - g.mean(-1, keepdims=True) - normed * (g * normed).mean(-1, keepdims=True)),
         dtype, times=2)
    near(library.rms_norm(x, w), wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-6) * wide(w), dtype)
    near(library.softmax(x), softmax(x), dtype)
    q, s = library.quantize_rows(x)
    near(q, wide(x) / (np.abs(wide(x)).max(-1, keepdims=True) / 448), "float8_e4m3fn")
    label = np.asarray([0, n - 1], np.int32)
    near(library.cross_entropy(x, label), np.log(np.exp(wide(x)).sum(-1)) - wide(x)[[0, 1], label], "float32", times=10)


def test_a_large_mean_does_not_cancel(emulated):
    emulated("emu:sm_90a")
    x = typed(RNG.standard_normal((3, 20000)) + 1000.0, "float32")
    w, b = np.ones(20000, np.float32), np.zeros(20000, np.float32)
    y, mean, rstd = library.layer_norm(x, w, b)
    expected_mean, expected = statistics(x)
    assert error(y, (wide(x) - expected_mean[:, None]) * expected[:, None]) < 1e-3 and error(rstd, expected) < 1e-4


# What every function does with arrays that are empty, strided or many.


def test_empty_rows_of_results(emulated):
    emulated("emu:sm_90a")
    x, w = np.zeros((0, 64), np.float16), np.ones(64, np.float16)
    assert library.rms_norm(x, w).shape == (0, 64) and library.softmax(x).shape == (0, 64)
    assert [r.shape for r in library.layer_norm(x, w, w)] == [(0, 64), (0,), (0,)]
    q, s = library.quantize_rows(x)
    assert (q.shape, str(q.dtype), s.shape) == ((0, 64), "float8_e4m3fn", (0,))
    dw, db = library.norm_weight_backward(x, x, np.zeros(0, np.float32), np.zeros(0, np.float32))
    assert dw.dtype == np.float16 and not dw.any() and not db.any() and dw.shape == db.shape == (64,)
    assert not library.sum(x, dim=0).any() and library.sum(x, dim=0).shape == (64,) and library.sum(x).shape == (0,)
    assert not library.sum(np.zeros((3, 0), np.float16)).any()
    assert library.transpose(x).shape == (64, 0) and library.cross_entropy(x, np.zeros(0, np.int32)).shape == (0,)
    x, w = np.zeros((0, 4097), np.float16), np.ones(4097, np.float16)
    assert [r.shape for r in (library.rms_norm(x, w), library.softmax(x), *library.layer_norm(x, w, w))] == [(0, 4097)] * 3 + [(0,)] * 2
    assert library.quantize_rows(x)[1].shape == (0,) and library.cross_entropy(x, np.zeros(0, np.int32)).shape == (0,)


def test_strided_arrays(emulated):
    emulated("emu:sm_80")
    x, w = normal(10, 154)[::2, ::2], normal(154)[::-2]
    expected = x / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-6) * w
    assert error(library.rms_norm(x, w), expected) < BARS["float32"]
    assert error(library.softmax(x.T), softmax(x.T)) < BARS["float32"]
    assert np.array_equal(library.transpose(x), x.T)
    assert np.array_equal(library.transpose(np.broadcast_to(x[:1], x.shape)), np.broadcast_to(x[:1], x.shape).T)


def test_minus_infinity_weighs_nothing(emulated):
    emulated("emu:sm_90a")
    for n in (40, 20000):
        x = normal(3, n)
        x[:, 1::2] = -np.inf
        near(library.softmax(x), softmax(x), "float32")


def test_one_kernel_serves_every_number_of_rows(emulated):
    from kiln.library import plans

    emulated("emu:sm_80")
    w = np.ones(48, np.float16)
    for rows in (1, 2, 7, 64, 65):
        x = normal(rows, 48, dtype="float16")
        near(library.rms_norm(x, w), wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-6), "float16")
    assert len(plans._kernels) == 1


def test_checked_by_the_emulator(emulated):
    """No race, no access outside, in any of the library's own programs."""
    emulated("emu:sm_90a")
    x, w, m = normal(5, 77), normal(77), np.zeros(5, np.float32)
    label = np.asarray([0, 76, 3, 4, 5])
    with kiln.emulation(check=True):
        library.rms_norm_backward(x, x, w)
        library.norm_weight_backward(x, x, m, m)
        library.mean(x), library.amax(x, dim=0)
        OPERATIONS["softmax_backward"](x, x), OPERATIONS["swiglu_backward"](x, normal(5, 154))
        OPERATIONS["cross_entropy_backward"](m, x, label, library.cross_entropy(x, label))
