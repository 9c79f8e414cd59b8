# SPDX-License-Identifier: Apache-2.0
"""What the library's tests share: random arrays of each dtype, float64 references, and which error a dtype allows."""

import numpy as np

from kiln import library
from needs import needs_kilnd

TARGETS = ("emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100")
FLOATS = ("float16", "bfloat16", "float32")
BARS = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "float8_e4m3fn": 0.07, "int32": 0.0}
RNG = np.random.default_rng(20)


def normal(*shape, dtype="float32", scale=1.0):
    """Random numbers, rounded to the dtype."""
    return typed(RNG.standard_normal(shape) * scale, dtype)


def typed(values, dtype):
    """An array of numpy, or Bits of the types that it lacks."""
    if dtype == "bfloat16" or dtype.startswith("float8"):
        return library.Bits.of(values, dtype)
    return np.asarray(values).astype(dtype)


def wide(array):
    """Its numbers in float64."""
    return np.asarray(array).astype(np.float64)


def error(actual, expected):
    """The larger of max|r − x| / max|x| and ‖r − x‖ / ‖x‖; infinite where shapes differ or a number is not finite."""
    actual, expected = wide(actual), wide(expected)
    if actual.shape != expected.shape or not np.isfinite(actual).all():
        return float("inf")
    if expected.size == 0:
        return 0.0
    difference, largest = np.abs(actual - expected), np.abs(expected).max()
    if largest == 0:
        return float(difference.max())
    return float(max(difference.max() / largest, np.linalg.norm(difference) / np.linalg.norm(expected)))


def near(actual, expected, dtype, times=1.0):
    """Asserts that the results are what they should be, within the dtype's bar."""
    assert str(actual.dtype) == dtype, (actual.dtype, dtype)
    found = error(actual, expected)
    assert found <= BARS[dtype] * times, (found, BARS[dtype] * times)


def softmax(x):
    powers = np.exp(wide(x) - wide(x).max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
