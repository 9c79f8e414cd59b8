# SPDX-License-Identifier: Apache-2.0
"""Functions that the Python front end composes of others, over many magnitudes, and reductions of magnitudes between types: against numpy."""

import os
import pathlib

import kiln.language as T
import numpy as np
import pytest
from emulated import Emulator

BINARY = pathlib.Path(os.environ.get("KILN_BUILD", "build")) / "bin" / "kiln_emulate_jobs"
TARGETS = ["emu:sm_90a", "emu:gfx942"]
ROWS, COLUMNS = 4, 6


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    emulator = Emulator(BINARY, tmp_path_factory.mktemp("scalar"))
    yield emulator
    emulator.close()


def result(emulator, target, program, inputs, shape, dtype, **keys):
    tensors = [(array, str(array.dtype)) for array in [*inputs, np.zeros(shape, dtype)]]
    after, answer = emulator.call(emulator.module(program.serialized), target, tensors, **keys)
    assert "error" not in answer and answer["finished"], answer
    return after[-1]


def applied(emulator, target, function, x, **keys):
    dtype, count = str(x.dtype), len(x)

    @T.prim_func
    def program(X: T.Tensor((count,), dtype), Y: T.Tensor((count,), dtype)):
        with T.Kernel(T.ceildiv(count, 128), threads=128) as bx:
            for i in T.Parallel(128):
                if bx * 128 + i < count:
                    Y[bx * 128 + i] = function(X[bx * 128 + i])

    return result(emulator, target, program, [x], count, x.dtype, **keys)


def units(actual, exact):
    """The largest error, in units in the last place of the type."""
    error = np.abs(actual.astype(np.longdouble) - exact)
    return float((error / np.spacing(np.abs(exact).astype(actual.dtype))).max())


def magnitudes(dtype, low, high):
    """Random numbers of both signs and of every power of two from ``low`` on; some where branches meet."""
    rng = np.random.default_rng(28)
    positive = np.concatenate([np.exp2(rng.uniform(np.log2(low), np.log2(high), 6000)), rng.uniform(0, min(high, 2), 4000)])
    edges = [np.nextafter(edge, towards) for edge in (0.3, 0.5, 1) for towards in (0, edge, 2)]
    return np.concatenate([positive, -positive, edges, np.negative(edges)]).astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype, low, most", [("float32", 1e-30, 4), ("float64", 1e-200, 4)])
def test_log1p_keeps_its_digits(emulator, target, dtype, low, most):
    x = magnitudes(dtype, low, 1e30)
    x = x[x > -1]
    assert units(applied(emulator, target, T.log1p, x), np.log1p(x.astype(np.longdouble))) <= most
    special = np.array([0.0, -0.0, -1, np.inf, -2, np.nan], dtype)
    with np.errstate(all="ignore"):
        expected = np.log1p(special)
    actual = applied(emulator, target, T.log1p, special)
    assert np.array_equal(actual, expected, equal_nan=True) and np.signbit(actual[1])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype, low, high, most", [("float32", 1e-30, 88.7, 6), ("float64", 1e-200, 709.7, 4)])
def test_sinh_keeps_its_digits(emulator, target, dtype, low, high, most):
    x = magnitudes(dtype, low, high)
    assert units(applied(emulator, target, T.sinh, x), np.sinh(x.astype(np.longdouble))) <= most
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], dtype)
    actual = applied(emulator, target, T.sinh, special)
    assert np.array_equal(actual, special, equal_nan=True) and np.signbit(actual[1])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("function, reference", [(T.log1p, np.log1p), (T.sinh, np.sinh)])
def test_small_arguments_under_fast_math(emulator, target, function, reference):
    x = magnitudes("float32", 1e-30, 0.3)
    x = x[np.abs(x) < 0.29]
    actual, exact = applied(emulator, target, function, x, fast=1), reference(x.astype(np.float64))
    assert np.abs(actual / exact - 1).max() < 1e-6


def test_log1p_and_sinh_of_other_types(emulator):
    """Narrower floats are rounded once, from float32; integers become float32."""
    x = np.array([1, 2, 3, 4], np.int32)

    @T.prim_func
    def program(X: T.Tensor((4,), "int32"), Y: T.Tensor((4, 2), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(4):
                Y[i, 0] = T.log1p(T.cast(X[i], "float16") / T.cast(1024, "float16"))
                Y[i, 1] = T.sinh(X[i])

    actual = result(emulator, "emu:sm_90a", program, [x], (4, 2), np.float32)
    assert np.array_equal(actual[:, 0], np.log1p(x / 1024).astype(np.float16))
    assert np.allclose(actual[:, 1], np.sinh(x), rtol=1e-6, atol=0)


def accurate(emulator, target, function, reference, x, relative):
    exact = reference(x.astype(np.float64))
    return (np.abs(applied(emulator, target, function, x) - exact) <= relative(x) * np.abs(exact)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_the_other_functions_are_as_exact_as_they_say(emulator, target):
    small, unit = magnitudes("float32", 1e-30, 1.5), 2.0**-23
    for function, reference in ((T.tanh, np.tanh), (T.tan, np.tan), (T.sin, np.sin)):
        assert accurate(emulator, target, function, reference, small, lambda x: 6 * unit)
    assert accurate(emulator, target, T.exp10, lambda x: 10**x, magnitudes("float32", 1e-30, 37), lambda x: (4 + 4 * np.abs(x)) * unit)
    assert accurate(emulator, target, T.cosh, np.cosh, magnitudes("float32", 1e-30, 88.7), lambda x: 5 * unit)
    assert accurate(emulator, target, T.log10, np.log10, np.abs(magnitudes("float32", 1e-30, 1e30)), lambda x: 4 * unit)


REDUCTIONS = {"absmax": np.max, "abssum": np.sum}
PAIRS = [("int8", "uint32"), ("int8", "uint8"), ("int8", "int32"), ("int32", "uint32"), ("float32", "uint32"), ("uint8", "int32"),
         ("uint8", "uint32"), ("int8", "float32"), ("float32", "float32")]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source, out", PAIRS)
@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("private", [False, True])
def test_reductions_of_magnitudes(emulator, target, source, out, kind, private):
    alloc = T.alloc_local if private else T.alloc_fragment

    @T.prim_func
    def program(X: T.Tensor((ROWS, COLUMNS), source), Y: T.Tensor((ROWS,), out)):
        with T.Kernel(1, threads=64):
            tile, largest = alloc((ROWS, COLUMNS), source), alloc((ROWS,), out)
            T.copy(X, tile)
            T.reduce(tile, largest, kind, 1)
            T.copy(largest, Y)

    x = np.random.default_rng(6).integers(0, 9, (ROWS, COLUMNS)).astype(source)
    if source != "uint8":
        x *= np.where(np.arange(COLUMNS) % 2, 1, -1).astype(source)
    x[1], x[2, 0] = 0, -128 if source == "int8" else 200 if source == "uint8" else -129
    x[1, 3], x[3, 3] = (1, 1) if source == "uint8" else (-1, -1)
    expected = REDUCTIONS[kind](np.abs(x.astype(np.float64)), axis=1)
    expected = np.where(expected > np.iinfo(out).max, expected - 256, expected) if out == "uint8" else expected
    assert np.array_equal(result(emulator, target, program, [x], ROWS, np.dtype(out)), expected.astype(out))


@pytest.mark.parametrize("private", [False, True])
def test_magnitudes_of_the_lowest_integers(emulator, private):
    alloc = T.alloc_local if private else T.alloc_shared

    @T.prim_func
    def program(X: T.Tensor((2, 3), "int32"), Y: T.Tensor((2,), "uint32")):
        with T.Kernel(1, threads=64):
            tile, largest = alloc((2, 3), "int32"), alloc((2,), "uint32")
            T.copy(X, tile)
            T.fill(largest, 7)
            T.reduce_absmax(tile, largest, clear=False)
            T.copy(largest, Y)

    x = np.array([[-(2**31), 5, 3], [-1, 2, 3]], np.int32)
    assert list(result(emulator, "emu:sm_90a", program, [x], 2, np.uint32)) == [2**31, 7]
