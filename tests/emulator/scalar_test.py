# SPDX-License-Identifier: Apache-2.0
"""Functions of the language, over many magnitudes and in each type of float, and reductions of magnitudes between types: against numpy.
On a GPU, compiled by the daemon of KILN_ADDRESS: KILN_ON_GPU=1 PYTHONPATH=… python3 -m pytest tests/emulator/scalar_test.py"""

import math

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_90a", "emu:gfx942"]
ROWS, COLUMNS = 4, 6


def result(emulator, target, program, inputs, shape, dtype, **keys):
    tensors = [(array, str(array.dtype)) for array in [*inputs, np.zeros(shape, dtype)]]
    after, answer = emulator.call(emulator.module(program.serialized), target, tensors, **keys)
    assert "error" not in answer and answer["finished"] and not answer["findings"], answer
    return after[-1]


def applied(emulator, target, function, *arguments, dtype=None, **keys):
    """``function`` of each element, in ``dtype`` if it is not the arguments'."""
    arguments = np.stack(arguments)
    (several, count), outside = arguments.shape, str(arguments.dtype)
    inside = dtype or outside

    def value(X, place):
        return T.cast(function(*[T.cast(X[k, place], inside) for k in range(several)]), outside)

    @T.prim_func
    def program(X: T.Tensor((several, count), outside), Y: T.Tensor((count,), outside)):
        with T.Kernel(T.ceildiv(count, 128), threads=128) as bx:
            for i in T.Parallel(128):
                if bx * 128 + i < count:
                    Y[bx * 128 + i] = value(X, bx * 128 + i)

    return result(emulator, target, program, [arguments], count, arguments.dtype, **keys)


DIGITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}  # after the point


def units(actual, exact, dtype=None):
    """The largest error, in units in the last place of the type."""
    smallest = {"float16": -14, "float64": -1022}.get(dtype or str(actual.dtype), -126)
    exponent = np.maximum(np.frexp(np.abs(exact))[1] - 1, smallest)
    return float((np.abs(actual.astype(np.longdouble) - exact) / np.exp2(np.longdouble(exponent - DIGITS[dtype or str(actual.dtype)]))).max())


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


def dividends_and_divisors(dtype, low, high):
    """Of all quotients: small ones, ones without a bit in the type, multiples, subnormals, and what has no remainder."""
    rng = np.random.default_rng(29)
    wide = [np.exp2(rng.uniform(np.log2(low), np.log2(high), 3000)) * rng.choice([-1, 1], 3000) for _ in range(2)]
    near = rng.uniform(-50, 50, (2, 1000))
    whole = rng.integers(-1000, 1000, 500), rng.integers(1, 40, 500)
    special = np.array([0.0, -0.0, 1, -1, high, -high, low, -low, np.inf, -np.inf, np.nan])
    return [np.concatenate(parts).astype(dtype) for parts in ((wide[0], near[0], whole[0], np.repeat(special, len(special))),
                                                              (wide[1], near[1], whole[1], np.tile(special, len(special))))]


REMAINDERS = [("float16", 6e-8, 6e4), ("float32", 1e-45, 3e38), ("float64", 5e-324, 1e308)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype, low, high", REMAINDERS)
def test_fmod_is_exact(emulator, target, dtype, low, high):
    a, b = dividends_and_divisors(dtype, low, high)
    with np.errstate(all="ignore"):
        expected = np.fmod(a, b)
    actual = applied(emulator, target, T.fmod, a, b)
    assert np.array_equal(actual, expected, equal_nan=True)
    known = ~np.isnan(expected)
    assert np.array_equal(np.signbit(actual[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype, low, high", REMAINDERS)
def test_the_remainder_of_floats_is_pythons(emulator, target, dtype, low, high):
    a, b = dividends_and_divisors(dtype, low, high)
    with np.errstate(all="ignore"):
        rest = np.fmod(a, b)
        expected = np.where((rest < 0) != (b < 0), rest + b, rest)
    expected = np.where(rest == 0, np.copysign(0, b), expected).astype(dtype)
    actual = applied(emulator, target, lambda x, y: x % y, a, b)
    assert np.array_equal(actual, expected, equal_nan=True)
    known = ~np.isnan(expected)
    assert np.array_equal(np.signbit(actual[known]), np.signbit(b[known]))
    assert applied(emulator, target, lambda x: x % 0.1, np.array([0.3, -0.3, 1], dtype)).min() >= 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_floor_of_a_quotient_of_floats_is_no_larger_than_it(emulator, target, dtype):
    rng = np.random.default_rng(31)
    b = (rng.uniform(0.1, 40, 4000) * rng.choice([-1, 1], 4000)).astype(dtype)
    near = (rng.integers(-500, 500, 4000) * b).astype(dtype)  # multiples, some of which are rounded down
    a = np.concatenate([near, np.nextafter(near, np.array(0, dtype)), np.array([0, 5, -5, 5, -5, 1, -1, np.inf, 1, np.nan], dtype)])
    b = np.concatenate([b, b, np.array([3, np.inf, np.inf, -np.inf, -np.inf, 0, 0, 2, np.nan, 1], dtype)])
    with np.errstate(all="ignore"):
        expected = np.floor_divide(a, b)
    assert np.array_equal(applied(emulator, target, lambda x, y: x // y, a, b), expected, equal_nan=True)


@pytest.mark.parametrize("target", TARGETS)
def test_tanh_keeps_its_digits_under_fast_math(emulator, target):
    x = magnitudes("float32", 1e-30, 20)
    actual, exact = applied(emulator, target, T.tanh, x, fast=1), np.tanh(x.astype(np.float64))
    has_instruction = getattr(emulator, "target", "").startswith("cuda")  # of 11 bits
    assert np.abs(actual / exact - 1).max() < (2.0**-10 if has_instruction else 2.0**-20)
    assert np.array_equal(applied(emulator, target, T.tanh, np.array([np.inf, -np.inf, 100, -100], np.float32), fast=1), [1, -1, 1, -1])


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


def in_type(x, dtype):
    """The nearest numbers of that type, as a numpy array that holds them."""
    if dtype != "bfloat16":
        return x.astype(dtype)
    return (x.astype(np.float32).view(np.uint32) + 0x8000 & 0xFFFF0000).astype(np.uint32).view(np.float32)


def erf(x):
    return np.array([math.erf(each) for each in x.astype(np.float64)], np.longdouble)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# (function, what it is of long doubles; the sizes of arguments, as powers of two, in float32 and in float64; how far off it may be there, as the
# documentation has it). Narrower types round what float32 gives, once; the tangent thrice.
FUNCTIONS = {
    "sin": (T.sin, np.sin, (-100, 127), (-1000, 1023), 2, 2),
    "cos": (T.cos, np.cos, (-100, 127), (-1000, 1023), 2, 2),
    "tan": (T.tan, np.tan, (-100, 127), (-1000, 1023), 6, 6),
    "exp": (T.exp, np.exp, (-100, 6.4), (-1000, 9.4), 4, 1),
    "exp2": (T.exp2, np.exp2, (-100, 6.9), (-1000, 9.9), 4, 1),
    "log": (lambda x: T.log(T.abs(x)), lambda x: np.log(np.abs(x)), (-126, 127), (-1000, 1023), 2, 1),
    "log2": (lambda x: T.log2(T.abs(x)), lambda x: np.log2(np.abs(x)), (-126, 127), (-1000, 1023), 2, 2),
    "log10": (lambda x: T.log10(T.abs(x)), lambda x: np.log10(np.abs(x)), (-126, 127), (-1000, 1023), 4, 4),
    "rsqrt": (lambda x: T.rsqrt(T.abs(x)), lambda x: 1 / np.sqrt(np.abs(x)), (-126, 127), (-1000, 1023), 2, 2),
    "tanh": (T.tanh, np.tanh, (-100, 10), (-1000, 10), 5, 3),
    "log1p": (lambda x: T.log1p(T.abs(x)), lambda x: np.log1p(np.abs(x)), (-100, 127), (-1000, 1023), 4, 4),
    "sinh": (T.sinh, np.sinh, (-100, 6.4), (-1000, 9.4), 6, 4),
    "cosh": (T.cosh, np.cosh, (-100, 6.4), (-1000, 9.4), 6, 4),
    "erf": (T.erf, erf, (-100, 4), (-1000, 4), 4, 3),
    "sigmoid": (T.sigmoid, sigmoid, (-100, 6.4), (-1000, 9.4), 6, 4),
}
NARROW = {"float16": (-14, 3.4), "bfloat16": (-100, 6)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_as_exact_as_they_say(emulator, target, name, dtype):
    function, reference, single, double, most32, most64 = FUNCTIONS[name]
    low, high = NARROW.get(dtype) or (single if dtype == "float32" else double)
    most = {"float32": most32, "float64": most64}.get(dtype, 2 if name == "tan" else 1)
    x = in_type(magnitudes("float64", 2.0**low, 2.0**high), dtype)
    exact = reference(x.astype(np.longdouble))
    assert units(applied(emulator, target, function, x, dtype=dtype), exact, dtype) <= most


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype, most", [("float32", 5), ("float64", 2), ("float16", 1), ("bfloat16", 1)])
def test_powers(emulator, target, dtype, most):
    rng = np.random.default_rng(3)
    wide = {"float16": 14, "float64": 1000}.get(dtype, 120)
    x = in_type(np.exp2(rng.uniform(-min(wide, 100) / 2, min(wide, 100) / 2, 8000)), dtype)
    x[x == 1] = 2
    y = in_type(rng.uniform(-wide, wide, 8000) / np.log2(x.astype(np.float64)), dtype)
    powers = x.astype(np.longdouble) ** y.astype(np.longdouble)
    known = (powers > 2.0**-wide) & (powers < 2.0**wide)
    assert known.sum() > 7000
    assert units(applied(emulator, target, T.pow, x[known], y[known], dtype=dtype), powers[known], dtype) <= most


@pytest.mark.parametrize("target", TARGETS)
def test_powers_of_ten(emulator, target):
    x = magnitudes("float32", 1e-30, 37)
    error = np.abs(applied(emulator, target, T.exp10, x) / 10 ** x.astype(np.float64) - 1)
    assert (error <= (4 + 4 * np.abs(x)) * 2.0**-23).all()


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
    assert np.array_equal(result(emulator, target, program, [x], ROWS, np.dtype(out), check=1), expected.astype(out))


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
    assert list(result(emulator, "emu:sm_90a", program, [x], 2, np.uint32, check=1)) == [2**31, 7]
