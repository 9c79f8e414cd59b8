# SPDX-License-Identifier: Apache-2.0
"""Random arrays, and how far results may be from the reference."""

import numpy as np

BITS = {"bfloat16": np.uint16}
BOUND = {"float64": 1e-13, "float32": 3e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def rounded(x, dtype):
    """float64 values that the dtype has."""
    return values(stored(x, dtype), dtype)


def stored(x, dtype):
    """As an array of the dtype; of bfloat16 its bits."""
    if dtype != "bfloat16":
        return np.asarray(x).astype(dtype)
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def values(array, dtype):
    if dtype != "bfloat16":
        return array.astype(np.float64)
    return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def argument(array, dtype):
    """What a launch takes for an array of the dtype."""
    import triton
    import triton.language as tl

    return triton.reinterpret(array, tl.bfloat16) if dtype == "bfloat16" else array


def strides(array):
    return [s // array.itemsize for s in array.strides]


def error(actual, expected):
    """Relative to the largest value; NaN where one is not a number, which no bound takes."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if np.isnan(actual).any() or np.isnan(expected).any():
        return np.nan
    return np.abs(actual - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1e-30)


def refused(kernel, *arguments):
    """The kernel is refused in the line that has a comment "here:", with the text behind it."""
    import inspect
    import pathlib

    import pytest
    import triton

    lines, first = inspect.getsourcelines(kernel.fn)
    place, text = next((first + i, line.partition("# here: ")[2].strip()) for i, line in enumerate(lines) if "# here: " in line)
    with pytest.raises(triton.CompilationError) as found:
        kernel.program(*arguments)
    assert text in str(found.value) and f"{pathlib.Path(kernel.file).name}:{place}: " in str(found.value), str(found.value)
