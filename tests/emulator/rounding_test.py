# SPDX-License-Identifier: Apache-2.0
"""Arithmetic and conversions that round in a direction, against exact fractions."""

import itertools
import math
from fractions import Fraction

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_90a", "emu:gfx942"]
MODES = ("rn", "rz", "ru", "rd")
COUNT = 384
# (exponent of the least bit of subnormals, digits, exponent of what is too large)
FORMS = {"float16": (-24, 11, 16), "bfloat16": (-133, 8, 128), "float32": (-149, 24, 128), "float8_e4m3fn": (-9, 4, None),
         "float8_e5m2": (-16, 3, 16), "float64": (-1074, 53, 1024)}
LARGEST = {"float8_e4m3fn": 448, "float8_e5m2": 57344}


def rounded(exact: Fraction, form: str, mode: str):
    """The number of the form that the fraction becomes, as a Fraction; ±inf where it goes beyond."""
    least, digits, beyond = FORMS[form]
    if exact == 0:
        return Fraction(0)
    size = abs(exact)
    exponent = max(_exponent(size), least + digits) - digits
    scaled = size / Fraction(2) ** exponent
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    up = {"rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2), "rz": False, "ru": rest > 0 and exact > 0,
          "rd": rest > 0 and exact < 0}[mode]
    result = (whole + bool(up)) * Fraction(2) ** exponent
    limit = Fraction(LARGEST[form]) if form in LARGEST else (2 ** digits - 1) * Fraction(2) ** (beyond - digits)
    if result > limit:
        to_limit = mode == "rz" or (mode == "ru" and exact < 0) or (mode == "rd" and exact > 0)
        result = limit if to_limit else math.inf
    return -result if exact < 0 else result


def _exponent(size: Fraction) -> int:
    """2^(it - 1) ≤ size < 2^it"""
    at = size.numerator.bit_length() - size.denominator.bit_length()
    return at + (size >= Fraction(2) ** at)


def root(x: Fraction) -> Fraction:
    """√x, cut far behind the digits that matter, with a bit that says whether it was cut."""
    shift = 1200
    scaled = x.numerator * (1 << (2 * shift)) // x.denominator
    whole = math.isqrt(scaled)
    exact = whole * whole == scaled and x.numerator * (1 << (2 * shift)) % x.denominator == 0
    return Fraction(2 * whole + (not exact), 1 << (shift + 1))


EXACT = {"ieee_add": lambda x, y: x + y, "ieee_sub": lambda x, y: x - y, "ieee_mul": lambda x, y: x * y, "ieee_fdiv": lambda x, y: x / y,
         "ieee_fmaf": lambda x, y, z: x * y + z, "ieee_frcp": lambda x: 1 / x, "ieee_fsqrt": root, "ieee_frsqrt": lambda x: root(1 / x)}
ARITY = {name: function.__code__.co_argcount for name, function in EXACT.items()}
EDGES = np.array([1.0, -1.0, 2.0**-126, 2.0**-149, -(2.0**-149), 3.4028234663852886e38, -3.4028234663852886e38, 1 + 2.0**-23, 1.5, 3.0], np.float32)


def numbers(count, seed, near=False):
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-20, 20, count) if near else rng.integers(-149, 128, count)
    values = np.ldexp(rng.uniform(1, 2, count), exponents) * rng.choice([-1, 1], count)
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    values[: len(EDGES)] = rng.permutation(EDGES)
    return np.where((values == 0) | np.isinf(values), np.float32(1), values)


@pytest.fixture
def fast(emulator):
    """``call`` under fast_math."""
    def called(program, target, *arrays):
        after, answer = emulator.call(emulator.module(program.serialized), target, [(a, str(a.dtype)) for a in arrays], fast=1)
        assert "error" not in answer and answer["finished"], answer
        return after

    return called


def run(call, target, function, arguments, dtype):
    several, count = np.shape(arguments)

    def value(X, i):
        return function(*[X[k, i] for k in range(several)])

    @T.prim_func
    def program(X: T.Tensor((several, count), dtype), Y: T.Tensor((count,), dtype)):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(count):
                Y[i] = value(X, i)

    return call(program, target, np.asarray(arguments), np.zeros(count, dtype))[-1]


def check(name, mode, arguments, after, form="float32"):
    for at, result in enumerate(after):
        exact = EXACT[name](*[Fraction(float(a[at])) for a in arguments])
        expected = rounded(exact, form, mode)
        assert float(result) == float(expected), (name, mode, [float(a[at]).hex() for a in arguments], float(result).hex())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name, mode", [*itertools.product((n for n in EXACT if n != "ieee_frsqrt"), MODES), ("ieee_frsqrt", "rn")])
def test_single_precision(call, target, name, mode):
    function = getattr(T, name)
    for near in (True, False):
        arguments = [numbers(COUNT, 10 * k + near, near) for k in range(ARITY[name])]
        if name in ("ieee_fsqrt", "ieee_frsqrt"):
            arguments = [np.abs(a) for a in arguments]
        if name in ("ieee_add", "ieee_fmaf") and near:  # of which much is lost
            opposite = -np.prod(arguments[:-1], axis=0)
            arguments[-1] = np.where((np.arange(COUNT) % 3 == 0) & np.isfinite(opposite), opposite, arguments[-1])
        chosen = function if name == "ieee_frsqrt" else lambda *x: function(*x, rounding_mode=mode)
        check(name, mode, arguments, run(call, target, chosen, arguments, "float32"))


EDGES64 = np.array([1.0, -1.0, 2.0**-1022, 2.0**-1074, -(2.0**-1074), 1.7976931348623157e308, -1.7976931348623157e308, 1 + 2.0**-52, 1.5, 3.0,
                    2.0**-540, 2.0**600, 2.0**-700])


def wide_numbers(count, seed, near):
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-20, 20, count) if near else rng.integers(-1074, 1024, count)
    values = np.ldexp(rng.uniform(1, 2, count), exponents) * rng.choice([-1, 1], count)
    values[: len(EDGES64)] = rng.permutation(EDGES64)
    return np.where((values == 0) | np.isinf(values), 1.0, values)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name, mode", itertools.product((n for n in EXACT if n != "ieee_frsqrt"), MODES))
def test_double_precision(call, target, name, mode):
    function = getattr(T, name)
    for seed in range(4):
        arguments = [wide_numbers(COUNT, 10 * k + seed, seed % 2) for k in range(ARITY[name])]
        if name == "ieee_fsqrt":
            arguments = [np.abs(a) for a in arguments]
        if name in ("ieee_add", "ieee_fmaf") and seed >= 2:  # of which much is lost
            with np.errstate(over="ignore", under="ignore"):
                opposite = -np.prod(arguments[:-1], axis=0) * (1 + np.random.default_rng(seed).integers(-2, 3, COUNT) * 2.0**-52)
            arguments[-1] = np.where(np.isfinite(opposite) & (opposite != 0), opposite, arguments[-1])
        check(name, mode, arguments, run(call, target, lambda *x: function(*x, rounding_mode=mode), arguments, "float64"), "float64")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", MODES)
def test_zeros_infinities_and_nan_of_double_precision(call, target, mode):
    inf, nan = math.inf, math.nan
    x = np.array([0.0, -0.0, 0.0, 1.0, 1.0, inf, -inf, inf, nan, 0.0, 1.0, 2.0**1023])
    y = np.array([0.0, -0.0, -0.0, -1.0, inf, inf, 1.0, -inf, 1.0, 2.0, 0.0, 2.0**1023])
    zero = -0.0 if mode == "rd" else 0.0
    over = 1.7976931348623157e308 if mode in ("rz", "rd") else inf
    with np.errstate(invalid="ignore"):
        summed = np.where((x == -y) & (np.signbit(x) != np.signbit(y)) & np.isfinite(x), zero, x + y)
    summed[-1] = over
    assert _same(run(call, target, lambda a, b: T.ieee_add(a, b, mode), [x, y], "float64"), summed)
    fused = run(call, target, lambda a, b: T.ieee_fmaf(a, T.float64(1.0), b, mode), [x, y], "float64")
    assert _same(fused, summed)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        product, quotient = x * y, x / y
    product[-1] = over
    assert _same(run(call, target, lambda a, b: T.ieee_mul(a, b, mode), [x, y], "float64"), product)
    assert _same(run(call, target, lambda a, b: T.ieee_fdiv(a, b, mode), [x, y], "float64"), quotient)
    roots = run(call, target, lambda a: T.ieee_fsqrt(a, mode), [x], "float64")
    with np.errstate(invalid="ignore"):
        expected = np.sqrt(x)
    assert _same(roots[:-1], expected[:-1])  # the last one is no square


def _same(got, expected) -> bool:
    got, expected = np.asarray(got), np.asarray(expected)
    nan = np.isnan(expected)
    return bool((np.isnan(got) == nan).all() and (got[~nan] == expected[~nan]).all() and (np.signbit(got) == np.signbit(expected))[~nan].all())


def test_a_product_beside_a_sum_of_double_precision(call):
    """a · b - (1 + 2^-51), where a · b is 1 + 2^-51 + 2^-104."""
    a = np.full(COUNT, 1 + 2.0**-52)
    after = run(call, "emu:sm_90a", lambda x: T.ieee_mul(x, x) - T.float64(1 + 2.0**-51), [a], "float64")
    assert (after == 0).all()
    after = run(call, "emu:sm_90a", lambda x: T.ieee_add(x * x, T.float64(-(1 + 2.0**-51))), [a], "float64")
    assert (after == 0).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", EXACT)
def test_fast_math_changes_nothing(fast, target, name):
    arguments = [np.abs(numbers(COUNT, 5 * k, near=True)) for k in range(ARITY[name])]
    arguments = [np.where((a < 1e-20) | (a > 1e20), np.float32(3), a) for a in arguments]
    check(name, "rn", arguments, run(fast, target, getattr(T, name), arguments, "float32"))


@pytest.mark.parametrize("target", TARGETS)
def test_zeros_infinities_and_what_is_no_number(call, target):
    inf, nan = math.inf, math.nan
    x = np.array([0, -0.0, 1, -1, inf, -inf, inf, nan, 0, 1, -1, 0, inf, 0.0, -0.0, 2.0**-149], np.float32)
    y = np.array([-0.0, -0.0, -1, 1, 1, 1, -inf, 1, 0, 0, 0, inf, inf, -1, 1, 2.0**-149], np.float32)
    same = {"ieee_add": lambda a, b: a + b, "ieee_mul": lambda a, b: a * b, "ieee_fdiv": lambda a, b: a / b}
    with np.errstate(all="ignore"):
        for name, mode in itertools.product(same, MODES):
            after = run(call, target, lambda a, b: getattr(T, name)(a, b, mode), [x, y], "float32")
            expected = same[name](x, y)
            if name == "ieee_add" and mode == "rd":
                expected = np.where((expected == 0) & (np.signbit(x) | np.signbit(y)), np.float32(-0.0), expected)
            if name == "ieee_mul" and mode == "ru":
                expected[-1] = 2.0**-149
            np.testing.assert_array_equal(after, expected, f"{name} {mode}")
            numbers_ = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(after)[numbers_], np.signbit(expected)[numbers_], f"{name} {mode}")
        for mode in MODES:
            roots = run(call, target, lambda a: T.ieee_fsqrt(a, mode), [x], "float32")
            np.testing.assert_array_equal(roots[:-1], np.sqrt(x[:-1]))
            np.testing.assert_array_equal(np.signbit(roots[:2]), [False, True])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", EXACT)
def test_halves_are_rounded_to_the_nearest(call, target, name):
    arguments = [np.abs(numbers(COUNT, 3 * k, near=True)).astype(np.float16) + np.float16(2.0**-10) for k in range(ARITY[name])]
    arguments = [np.where(np.isfinite(a), a, np.float16(3)) for a in arguments]
    after = run(call, target, getattr(T, name), arguments, "float16")
    check(name, "rn", arguments, after, "float16")


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_and_a_sum_are_not_rounded_as_one(call, target):
    x, y = np.full(COUNT, 1 + 2.0**-12, np.float32), np.full(COUNT, 1 + 2.0**-12, np.float32)
    after = run(call, target, lambda a, b: T.ieee_mul(a, b) - (1 + 2.0**-11), [x, y], "float32")
    np.testing.assert_array_equal(after, x * y - np.float32(1 + 2.0**-11))
    after = run(call, target, lambda a, b: T.ieee_add(a * b, T.float32(-(1 + 2.0**-11))), [x, y], "float32")
    assert set(after) <= {0.0, np.float32(2.0**-24)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode, direction", [("rn", "rn"), ("rz", "rz"), ("rp", "ru"), ("rm", "rd")])
def test_conversions(call, target, mode, direction):
    x = numbers(COUNT, 77)
    x[COUNT // 2 :] = numbers(COUNT - COUNT // 2, 78, near=True)
    for dtype in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        after = run(call, target, lambda a: T.cast(T.cast(a, dtype, round=mode), "float32"), [x], "float32")
        for value, result in zip(x, after):
            expected = rounded(Fraction(float(value)), dtype, direction)
            if dtype in LARGEST and math.isinf(expected):
                expected = math.copysign(LARGEST[dtype], value)
            assert float(result) == float(expected), (dtype, mode, float(value).hex(), float(result).hex())
    after = run(call, target, lambda a: T.cast(T.cast(1.35, "float8_e4m3fn", round=mode), "float32") + a * 0, [x], "float32")
    assert set(after) == {1.375 if mode in ("rn", "rp") else 1.25}, "a constant"
    wide = x.astype(np.float64) * (1 + 2.0**-30)
    after = run(call, target, lambda a: T.cast(T.cast(a, "float32", round=mode), "float64"), [wide], "float64")
    assert [float(a) for a in after] == [float(rounded(Fraction(float(w)), "float32", direction)) for w in wide]
    small = np.linspace(-4, 4, COUNT).astype(np.float32)
    whole = {"rn": np.rint, "rz": np.trunc, "rp": np.ceil, "rm": np.floor}[mode]
    after = run(call, target, lambda a: T.cast(T.cast(a, "int32", round=mode), "float32"), [small], "float32")
    np.testing.assert_array_equal(after, whole(small))


@pytest.mark.parametrize("target", TARGETS)
def test_conversions_that_do_not_saturate(call, target):
    x = np.array([448, 463, 464, 465, 480, 1e9, -1e9, math.inf, -math.inf, math.nan, 57344, 61439, 61440, -61440, 1], np.float32)
    for dtype, over in (("float8_e4m3fn", np.abs(x) > 464), ("float8_e5m2", np.abs(x) >= 61440)):
        kept = run(call, target, lambda a: T.cast(T.cast(a, dtype), "float32"), [x], "float32")
        after = run(call, target, lambda a: T.cast(T.cast(a, dtype, sat=False), "float32"), [x], "float32")
        beyond = np.full_like(x, math.nan) if dtype == "float8_e4m3fn" else np.copysign(np.float32(math.inf), x)
        np.testing.assert_array_equal(after, np.where(over, beyond, kept), dtype)
        cut = run(call, target, lambda a: T.cast(T.cast(a, dtype, round="rz", sat=False), "float32"), [x], "float32")
        largest = np.copysign(np.float32(LARGEST[dtype]), x)
        np.testing.assert_array_equal(cut[np.isfinite(x) & over], largest[np.isfinite(x) & over])


@pytest.mark.parametrize("refused, words", [
    (lambda x: T.ieee_add(x, x, "up"), "Invalid rounding mode"),
    (lambda x: T.ieee_frsqrt(T.cast(x, "float64")), "frsqrt is not supported for float64"),
    (lambda x: T.ieee_mul(T.cast(x, "float16"), x, "rz"), "rounded to the nearest"), (lambda x: T.ieee_frcp(T.cast(x, "int32")), "int32"),
    (lambda x: T.cast(x, "float8_e4m3fn", round="up"), "Invalid round"), (lambda x: T.cast(x, "float8_e4m3fn", sat="no"), "Invalid sat"),
    (lambda x: T.cast(x, "float8_e4m3fn", round="rs"), "rbits is required"),
    (lambda x: T.cast(x, "float8_e4m3fn", round="rn", rbits=3), "rbits is only valid"),
    (lambda x: T.cast(x, "float8_e4m3fn", round="rs", rbits=3), "not part of this version"),
    (lambda x: T.cast(x, "float16", sat=False), "saturate"), (lambda x: T.cast(x, "float64", round="rz"), "narrower"),
    (lambda x: T.cast(T.cast(x, "int32"), "float16", round="rz"), "narrower"),
])
def test_refusals(refused, words):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
        @T.prim_func
        def program(A: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(8):
                    A[i] = T.Cast("float32", refused(A[i]))


@pytest.mark.parametrize("dtype", ["bool", "int16", "int32", "uint16", "uint32", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("name", ["exp", "exp10", "log", "log2", "log10", "tan", "cos", "sin"])
def test_fast_functions_take_floats(name, dtype):
    function = getattr(T, f"__{name}")
    value = T.Var("value", dtype)
    with pytest.raises(TypeError, match=rf"T\.{function.__name__} only supports floating-point inputs"):
        function(value)
    for taken in ("float16", "bfloat16", "float32", "float64"):
        assert function(T.Var("value", taken)).dtype == taken
