# SPDX-License-Identifier: Apache-2.0
"""Types, constants and sharing of scalar expressions."""

import math
import struct

import pytest

import kiln.language as T
from kiln.language import math as tm
from kiln.language.affine import difference
from kiln.language.dtypes import as_dtype, promote
from kiln.language.expr import Var, as_expr, const


def var(dtype, name="x"):
    return Var("SCALAR", as_dtype(dtype), name).expr


@pytest.mark.parametrize("a, b, result", [
    ("int32", "float32", "float32"),
    ("int64", "float16", "float16"),
    ("float16", "float32", "float32"),
    ("bfloat16", "float16", "float32"),
    ("float8_e4m3fn", "float16", "float16"),
    ("int8", "int32", "int32"),
    ("uint8", "int32", "int32"),
    ("uint32", "int32", "uint32"),
    ("int32", "int64", "int64"),
    ("bool", "int8", "int8"),
    ("bool", "float32", "float32"),
])
def test_promotion(a, b, result):
    assert promote(as_dtype(a), as_dtype(b)) == result
    assert promote(as_dtype(b), as_dtype(a)) == result
    node = var(a) * var(b, "y")
    assert node.dtype == result and all(x.dtype == result for x in node.args)


@pytest.mark.parametrize("dtype, literal, result", [
    ("float32", 2, "float32"), ("float16", 2, "float16"), ("float16", 0.5, "float32"), ("int32", 2, "int32"), ("int8", 2, "int32"),
    ("int64", 2, "int64"), ("int32", 0.5, "float32"), ("int32", 1 << 40, "int64"), ("uint32", 1, "uint32"),
])
def test_literals(dtype, literal, result):
    assert (var(dtype) + literal).dtype == result
    assert (literal + var(dtype)).dtype == result


def test_equal_structure_is_one_object():
    x, y = var("int32"), var("int32", "y")
    assert x * 2 + y is x * 2 + y
    assert x + y is not y + x
    assert const(0.0) is not const(-0.0)
    assert const(1, "int32") is not const(1, "int64")


def test_integers_fold_and_floats_keep_their_meaning():
    x, f = var("int32"), var("float32", "f")
    assert x + 0 is x and x * 1 is x and x // 1 is x and 0 + x is x
    assert (x * 0).value == 0 and (x % 1).value == 0
    assert (f * 0.0).op == "MUL" and (f + 0.0).op == "ADD"
    assert T.cast(3, "float16").op == "CONST_FLOAT"
    assert T.truncdiv(T.int32(-7), 2).value == -3 and T.floordiv(T.int32(-7), 2).value == -4
    assert T.truncmod(T.int32(-7), 2).value == -1 and T.floormod(T.int32(-7), 2).value == 1
    assert T.int8(200).value == -56 and T.uint8(-1).value == 255
    assert math.isinf((-T.infinity("float32")).value)
    assert (T.int32(1) / T.float32(0)).op == "DIV"


def test_constants_are_rounded_to_their_type():
    assert const(0.1, "float32") is const(0.10000000149011612, "float32")
    assert const(1e9, "float16").value == math.inf
    assert const(0.1, "float64").value == 0.1


# Digits behind the first, exponent of the smallest normal number, code of the largest one, what is beyond it, whether there is a -0.
FORMATS = {
    "float16": (10, -14, 0x7BFF, math.inf, True),
    "bfloat16": (7, -126, 0x7F7F, math.inf, True),
    "tfloat32": (10, -126, 0x3FBFF, math.inf, True),
    "float8_e4m3fn": (3, -6, 0x7E, 448.0, True),
    "float8_e5m2": (2, -14, 0x7B, 57344.0, True),
    "float8_e4m3fnuz": (3, -7, 0x7F, 240.0, False),
    "float8_e5m2fnuz": (2, -15, 0x7F, 57344.0, False),
}


@pytest.mark.parametrize("dtype", FORMATS)
def test_constants_are_the_nearest_number_of_their_type(dtype):
    digits, least, last, beyond, negative_zero = FORMATS[dtype]

    def number(code):
        exponent, rest = code >> digits, code & (1 << digits) - 1
        return math.ldexp(rest + (exponent > 0) * 2**digits, max(exponent, 1) - 1 + least - digits)

    def check(value, result):
        assert struct.pack("d", const(value, dtype).value) == struct.pack("d", result), value
        negative = -result if result or negative_zero else 0.0
        assert struct.pack("d", const(-value, dtype).value) == struct.pack("d", negative), -value

    for code in [*range(min(last, 1 << 12)), *range(0, last, 997), *range(last - 1000, last)]:
        if not 0 <= code < last:
            continue
        low, high = number(code), number(code + 1)
        middle = (low + high) / 2
        check(low, low)
        check(middle, low if code % 2 == 0 else high)
        check(math.nextafter(middle, 0), low)
        check(math.nextafter(middle, math.inf), high)
    end = number(last) + (number(last) - number(last - 1)) / 2
    assert number(last) == beyond or beyond == math.inf
    check(math.nextafter(end, 0), number(last))
    for value in (end, math.nextafter(end, math.inf), 1e300, math.inf):
        check(value, beyond)
    assert math.isnan(const(math.nan, dtype).value)


def test_arithmetic_of_constants_is_that_of_their_type():
    third = T.bfloat16(1 / 3)
    assert third.value == 0.333984375 and T.cast(third, "float32").value == 0.333984375
    assert (third + T.bfloat16(2.0)).value == 2.328125 and (third * 3.0).value == 1.001953125
    assert (T.bfloat16(1.001) == T.bfloat16(1.0)).value == 1
    assert T.cast(T.bfloat16(1.999), "int32").value == 2
    assert (T.float8_e4m3fn(400.0) + T.float8_e4m3fn(400.0)).value == 448 and T.float8_e5m2(1e9).value == 57344
    assert T.max(T.bfloat16(1.001), T.bfloat16(1.0)).value == 1.0


@pytest.mark.parametrize("number, dtype, result", [
    (2**60 + 2**36 + 1, "float32", 2**60 + 2**37), (-(2**60) - 2**36 - 1, "float32", -(2**60) - 2**37), (2**60 + 2**36, "float32", 2**60),
    (2**60 + 2**52 + 1, "bfloat16", 2**60 + 2**53), (2**63 - 1, "float64", 2**63), (2**53 + 1, "float64", 2**53), (True, "float16", 1),
])
def test_integers_are_rounded_once(number, dtype, result):
    assert const(number, dtype).value == result and T.cast(const(number), dtype).value == result


def test_literals_keep_their_digits_in_wider_types():
    x = var("float64")
    assert (x * 0.1).args[1].value == 0.1 and T.cast(0.1, "float64").value == 0.1 and T.float64(1e300).value == 1e300
    assert (var("float32") * 0.1).args[1].value == 0.10000000149011612


def test_constant_floats_become_integers_as_casts_at_run_time_do():
    expected = {
        "int8": [(1e20, 127), (-1e20, -128), (-128.9, -128), (127.9, 127), (math.inf, 127), (-math.inf, -128), (math.nan, 0), (-0.9, 0)],
        "int32": [(1e20, 2**31 - 1), (-1e20, -(2**31)), (1.9, 1)],
        "uint8": [(-1.0, 0), (300.0, 255), (255.9, 255)],
        "uint64": [(1e20, 2**64 - 1), (-math.inf, 0)],
        "int64": [(1e19, 2**63 - 1), (-1e19, -(2**63))],
        "bool": [(0.5, 1), (-0.0, 0), (math.nan, 1), (math.inf, 1)],
    }
    for dtype, pairs in expected.items():
        for number, result in pairs:
            for value in (number, T.float32(number)):
                assert T.cast(value, dtype) is const(result, dtype), (number, dtype)
    assert T.cast(300, "uint8").value == 44 and T.cast(-1, "uint8").value == 255, "integers keep the low bits"
    assert T.cast(T.int32(300), "int8").value == 44
    assert const(1e20, "int32").value == 2**31 - 1
    with pytest.raises(TypeError, match="inf has no value of type int32"):
        T.infinity("int32")


def test_extremes_of_numbers_leave_nan_out():
    for number in (1, 1.5, -2.0):
        assert T.max(math.nan, number) == T.max(number, math.nan) == T.min(math.nan, number) == T.min(number, math.nan) == number
    assert T.clamp(math.nan, -1.0, 1.0) == -1.0 and T.clamp(5, -1, 1) == 1 and T.clamp(-5, -1, 1) == -1
    assert math.isnan(T.max(math.nan, math.nan)) and T.max(2, 3.0) == 3.0 and T.min(2, 3.0) == 2


def test_functions_keep_the_type_of_a_float():
    functions = (T.exp, T.log, T.log1p, T.sinh, T.cosh, T.tanh, T.tan, T.log10, T.exp10, T.sigmoid, T.erf)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        assert {function(var(dtype)).dtype for function in functions} == {dtype}
    assert {function(var("int8")).dtype for function in functions} == {"float32"}


def test_rounding_modes():
    x, n = var("float32"), var("int32", "n")
    assert all(T.round(n, mode) is n for mode in ("ties-to-even", "ties-away-from-zero"))
    assert T.round(x).op == "ROUND" and T.round(x, "ties-away-from-zero").op == "SELECT"
    with pytest.raises(ValueError, match="ties-to-even, ties-away-from-zero"):
        T.round(x, "up")


def test_comparisons_and_logic_are_bool():
    x = var("int32")
    assert (x < 3).dtype == "bool" and (x < 3).op == "LT"
    assert (~(x < 3)).op == "NOT"
    assert ((x < 3) & (x > 1)).op == "AND"
    assert T.And(x < 3, x > 1).op == "AND"
    assert (x == None) is False and (x != None) is True  # noqa: E711


def test_integer_division_must_say_which():
    with pytest.raises(TypeError, match="write // for the floor"):
        var("int32") / 2
    with pytest.raises(TypeError, match="bit_and needs integers"):
        var("float32") & 1


def test_values_are_not_python_conditions():
    with pytest.raises(TypeError, match="not known while the program is traced"):
        bool(var("int32") < 3)
    with pytest.raises(TypeError, match="compile-time integer"):
        range(var("int32"))


def test_affine_differences():
    x, n = var("int32"), var("int32", "n")
    assert difference((x + 1) * 128, x * 128) == 128
    assert difference(x + n + 4, n + x) == 4
    assert difference((x + 1) * n, x * n + n) == 0
    assert difference(x * 2, x) is None
    assert difference(x // 2 + 3, x // 2) == 3


def test_functions():
    x, h = var("int32"), var("float16", "h")
    assert T.exp2(x).dtype == "float32" and T.exp2(h).dtype == "float16"
    assert T.max(h, 0).dtype == "float16" and T.max(3, 4) == 4
    assert T.ceildiv(10, 4) == 3 and T.ceildiv(x, 4).op == "FLOOR_DIV"
    assert T.reinterpret(T.uint16, h).dtype == "uint16"
    with pytest.raises(TypeError, match="widths must be equal"):
        T.reinterpret(T.uint32, h)
    assert tm.isfinite(h).dtype == "bool"
    assert T.if_then_else(True, 1, 2) == 1
    with pytest.raises(TypeError, match="no element of a tensor or tile"):
        T.masked(x > 0, x, 1)
    assert T.fma(h, x, 1.0).dtype == "float32"


def test_dtypes_are_names():
    assert T.float16 == "float16" and T.half is T.float16 and f"{T.bfloat16}" == "bfloat16"
    assert as_dtype("torch.float8_e4m3fn") is T.float8_e4m3fn and as_dtype(float) is T.float32
    assert T.float(2).dtype == "float32" and T.int8.bits == 8 and T.bool.itemsize == 1
    with pytest.raises(TypeError, match="is not a dtype that Kiln knows"):
        as_dtype("float17")
    import pickle

    assert pickle.loads(pickle.dumps(T.float16)) is T.float16


def test_every_operation_is_in_the_wire_format():
    """The names that the front end uses are names of ExprOp."""
    import inspect
    import re

    import kiln.language.expr as expr
    from kiln import _proto

    known = {v.name for v in _proto.messages().enums["ExprOp"].values}
    source = inspect.getsource(expr) + inspect.getsource(tm)
    used = set(re.findall(r"(?:binary|unary|make|_float_function|_rounding|logical)\(\"([A-Z_0-9]+)\"", source))
    used |= set(expr._FOLD) | set(expr._INT_FOLD)
    assert used and used <= known, used - known


def test_as_expr_refuses_what_is_no_scalar():
    with pytest.raises(TypeError, match="cannot be used as a scalar"):
        as_expr("three")
