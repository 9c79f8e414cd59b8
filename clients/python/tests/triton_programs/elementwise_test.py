# SPDX-License-Identifier: Apache-2.0
"""Elementwise kernels: masks, pointers, types, and arguments that share memory."""

import numpy as np
import pytest
import triton
import triton.language as tl
from numbers_of import BOUND, argument, error, normal, rounded, stored, values


@triton.jit
def sum_of_two(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    first = tl.program_id(axis=0) * BLOCK
    at = first + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    y = tl.load(y_ptr + at, mask=inside, other=0.0)
    tl.store(out_ptr + at, x + y, mask=inside)


def blocks(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n, block", [(1, 64), (1000, 256), (1024, 128), (777, 1024)])
def test_a_sum_of_two_vectors(dtype, n, block):
    x, y = rounded(normal(1, n), dtype), rounded(normal(2, n), dtype)
    out = np.full(n + 5, 7, stored(x, dtype).dtype)
    sum_of_two[blocks(n)](argument(stored(x, dtype), dtype), argument(stored(y, dtype), dtype), argument(out, dtype), n, BLOCK=block)
    assert error(values(out[:n], dtype), rounded(x + y, dtype)) < BOUND[dtype] and (out[n:] == 7).all()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32"])
def test_integers_wrap(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x, y = (np.random.default_rng(s).integers(low, high, 300, dtype, endpoint=True) for s in (1, 2))
    out = np.zeros_like(x)
    sum_of_two[blocks(300)](x, y, out, 300, BLOCK=128)
    assert np.array_equal(out, x + y)


@pytest.mark.parametrize("place", [0, 3, 16])
def test_an_argument_may_be_the_result_or_overlap_it(place):
    """x is read where out is written, or a few elements before it: a program reads its block before it writes."""
    memory = normal(3, 200).astype(np.float32)
    before = memory.copy()
    y = normal(4, 128).astype(np.float32)
    sum_of_two[(1,)](memory[place:], y, memory, 128, BLOCK=128)
    assert np.array_equal(memory[:128], before[place : place + 128] + y) and np.array_equal(memory[128:], before[128:])


def test_arguments_that_are_only_read_may_overlap():
    x, out = normal(5, 130).astype(np.float32), np.zeros(128, np.float32)
    kernel = sum_of_two[(1,)](x, x[1:], out, 128, BLOCK=128)
    assert np.array_equal(out, x[:128] + x[1:129]) and not any(p.may_alias for p in kernel.artifact.launch.params)


@triton.jit
def strided(x_ptr, out_ptr, rows, columns, stride_r, stride_c, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = (r < rows) & (c < columns)
    tl.store(out_ptr + r * columns + c, tl.load(x_ptr + r * stride_r + c * stride_c, keep, other=-1), keep)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.T, lambda x: x[1:, 3:], lambda x: x[::2, ::3]])
def test_pointers_reach_all_of_the_storage_of_a_view(view):
    x = view(normal(6, 40, 52).astype(np.float32))
    out = np.zeros(x.shape, np.float32)
    strided[(x.shape[0], triton.cdiv(x.shape[1], 32))](x, out, *x.shape, *(s // 4 for s in x.strides), BLOCK=32)
    assert np.array_equal(out, x)


@triton.jit
def guarded(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + at, at < n, other=0)
    tl.store(out_ptr + at, tl.load(x_ptr + index, mask=index >= 0, other=float("nan")))


def test_a_load_reads_nothing_where_its_mask_is_false():
    index = np.array([3, -(1 << 30), 0, 5, -1, 2, 1, -9], np.int32)
    x, out = normal(7, 6).astype(np.float32), np.zeros(8, np.float32)
    guarded[(1,)](x, index, out, 8, BLOCK=8)
    assert np.array_equal(out, np.where(index >= 0, x[np.maximum(index, 0)], np.nan), equal_nan=True)


@triton.jit
def typed(x_ptr, y_ptr, out_ptr, OP: tl.constexpr, EXPECTED: tl.constexpr):
    x, y = tl.load(x_ptr), tl.load(y_ptr)
    if OP == "+":
        z = x + y
    elif OP == "/":
        z = x / y
    elif OP == "%":
        z = x % y
    elif OP == "number":
        z = x * 3
    elif OP == "float":
        z = x * 2.5
    elif OP == "named":
        half = 0.5
        z = x * half
    elif OP == "max":
        z = tl.maximum(x, y)
    elif OP == "max of a number":
        z = tl.maximum(x, 4)
    elif OP == "min of a float":
        z = tl.minimum(x, 2.5)
    elif OP == "clamp":
        z = tl.clamp(x, 0, y)
    elif OP == "fma":
        z = tl.fma(x, y, -4.5)
    else:
        z = tl.where(x > 0, x, y)
    tl.static_assert(z.dtype == EXPECTED, f"{OP} gives {z.dtype}")
    tl.store(out_ptr, z)


TYPES = [("float16", "float16", "+", tl.float16), ("float16", "bfloat16", "+", tl.float16), ("bfloat16", "bfloat16", "+", tl.bfloat16),
         ("bfloat16", "float32", "+", tl.float32), ("float16", "float16", "/", tl.float32), ("int32", "int32", "/", tl.float32),
         ("int32", "float16", "+", tl.float16), ("int8", "int64", "+", tl.int64), ("int32", "uint32", "+", tl.uint32),
         ("uint8", "int32", "+", tl.int32),
         ("float64", "float32", "+", tl.float64), ("float16", "float16", "number", tl.float16), ("float16", "float16", "float", tl.float16),
         ("float16", "float16", "named", tl.float32), ("int32", "int32", "float", tl.float32), ("int8", "int8", "number", tl.int8),
         ("bfloat16", "bfloat16", "max", tl.float32), ("float16", "bfloat16", "max", tl.float32), ("float16", "float16", "max", tl.float16),
         ("float16", "float16", "max of a number", tl.float16), ("int8", "int8", "max of a number", tl.int32),
         ("uint32", "uint32", "max of a number", tl.uint32), ("bfloat16", "bfloat16", "max of a number", tl.float32),
         ("float16", "float16", "min of a float", tl.float32), ("int64", "int64", "min of a float", tl.float32),
         ("float16", "float16", "clamp", tl.float16), ("float16", "bfloat16", "clamp", tl.float32), ("float16", "float16", "fma", tl.float32),
         ("int32", "int32", "%", tl.int32), ("float16", "float16", "%", tl.float32),
         ("bfloat16", "float16", "where", tl.float16)]


@pytest.mark.parametrize("left, right, op, expected", TYPES)
def test_values_meet_in_the_types_of_triton(left, right, op, expected):
    x, y = stored([3], left), stored([2], right)
    out = np.zeros(1, np.float64)
    typed[(1,)](argument(x, left), argument(y, right), out, OP=op, EXPECTED=expected)
    assert out[0] == {"+": 5, "/": 1.5, "%": 1, "number": 9, "float": 7.5, "named": 1.5, "max of a number": 4, "min of a float": 2.5,
                      "clamp": 2, "fma": 1.5}.get(op, 3)


@triton.jit
def divided(x_ptr, y_ptr, q_ptr, r_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + at, at < n, other=1), tl.load(y_ptr + at, at < n, other=1)
    tl.store(q_ptr + at, x // y, at < n)
    tl.store(r_ptr + at, x % y, at < n)


def test_integer_division_cuts_towards_zero():
    x, y = np.array([7, -7, 7, -7, 0, 9], np.int32), np.array([2, 2, -2, -2, 5, 3], np.int32)
    q, r = np.zeros_like(x), np.zeros_like(x)
    divided[(1,)](x, y, q, r, 6, BLOCK=8)
    assert np.array_equal(q, np.trunc(x / y)) and np.array_equal(r, np.fmod(x, y))


@triton.jit
def functions(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, at < n, other=1.0)
    p = out_ptr + at
    tl.store(p, tl.exp(x), at < n)
    tl.store(p + n, tl.log(x), at < n)
    tl.store(p + 2 * n, tl.sqrt(x) + tl.rsqrt(x), at < n)
    tl.store(p + 3 * n, tl.sin(x) * tl.cos(x), at < n)
    tl.store(p + 4 * n, tl.exp2(x) - tl.log2(x), at < n)
    tl.store(p + 5 * n, tl.sigmoid(x) + tl.erf(x), at < n)
    tl.store(p + 6 * n, tl.floor(x * 3) + tl.ceil(x * 3) + tl.abs(-x), at < n)
    tl.store(p + 7 * n, tl.fma(x, x, 1.0) + tl.clamp(x, 0.5, 1.5) + tl.minimum(x, 0.75), at < n)


def test_functions():
    from math import erf

    n = 100
    x = (np.abs(normal(8, n)) + 0.01).astype(np.float32)
    out = np.zeros((8, n), np.float32)
    functions[blocks(n)](x, out, n, BLOCK=64)
    v = x.astype(np.float64)
    expected = [np.exp(v), np.log(v), np.sqrt(v) + v**-0.5, np.sin(v) * np.cos(v), np.exp2(v) - np.log2(v),
                1 / (1 + np.exp(-v)) + [erf(e) for e in v], np.floor(v * 3) + np.ceil(v * 3) + v,
                v * v + 1 + np.clip(v, 0.5, 1.5) + np.minimum(v, 0.75)]
    for row, wanted in zip(out, expected):
        assert error(row, wanted) < 3e-6


@triton.jit
def bits(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    word = x.to(tl.int32, bitcast=True)
    sign = (word >> 31) & 1
    tl.store(out_ptr + at, ((word & 0x7FFFFFFF) ^ (sign << 31)).to(tl.float32, bitcast=True))
    tl.store(out_ptr + BLOCK + at, (x > 0).to(tl.float32) + (~(x > 1)).to(tl.float32))


def test_bits_and_bools():
    x, out = normal(9, 64).astype(np.float32), np.zeros((2, 64), np.float32)
    bits[(1,)](x, out, BLOCK=64)
    assert np.array_equal(out[0], x) and np.array_equal(out[1], (x > 0) + 1.0 * ~(x > 1))


@triton.jit
def chosen(x_ptr, bias_ptr, out_ptr, scale, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + at)
    tl.store(out_ptr + at, x * scale)


@pytest.mark.parametrize("biased", [False, True])
def test_none_is_known_when_a_kernel_is_compiled(biased):
    x, bias, out = normal(10, 32).astype(np.float32), normal(11, 32).astype(np.float32), np.zeros(32, np.float32)
    chosen[(1,)](x, bias if biased else None, out, 0.5, BLOCK=32)
    assert error(out, (x + biased * bias) * 0.5) < 1e-6


@triton.jit
def of_bools(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    flag = tl.load(x_ptr + at, at < n, other=False)
    tl.store(out_ptr + at, flag ^ (at % 2 == 0), at < n)


def test_tensors_of_bools():
    x, out = normal(12, 50) > 0, np.zeros(50, bool)
    of_bools[(1,)](x, out, 50, BLOCK=64)
    assert np.array_equal(out, x ^ (np.arange(50) % 2 == 0))


@triton.jit
def backwards_from(x_ptr, out_ptr, STEP: tl.constexpr):
    back = tl.load(x_ptr)  # unsigned
    tl.store(out_ptr + 4 - back, 7)
    total = 0
    for k in range(-2147483648, 2147483647, STEP):
        total += 1
    tl.store(out_ptr + 5, total)


def test_an_unsigned_offset_is_subtracted_and_a_wide_range_is_counted():
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        out = np.zeros(8, np.int32)
        backwards_from[(1,)](np.array([3], dtype), out, STEP=1 << 30)
        assert out.tolist() == [0, 7, 0, 0, 0, 4, 0, 0], dtype


@triton.jit
def stepped(out_ptr, step):
    count = 0
    for k in range(4, -1, step):
        count += 1
    tl.store(out_ptr, count)


@triton.jit
def largest_squared(x_ptr, out_ptr):
    m = tl.max(tl.load(x_ptr + tl.arange(0, 16)), 0)
    tl.store(out_ptr, m * m)


@triton.jit
def divided_by(out_ptr, D: tl.constexpr):
    tl.store(out_ptr, tl.load(out_ptr) / D)


def test_steps_types_and_keys_are_tritons():
    out = np.array([9], np.int32)
    stepped[(1,)](out, -1)
    assert out[0] == 0, "a step that is known at launch only goes upwards"
    large, wide = np.full(16, 300, np.float16), np.zeros(1, np.float32)
    largest_squared[(1,)](large, wide)
    assert wide[0] == 90000, "the largest of halves is a float32"
    signs = []
    for zero in (0.0, -0.0):
        one = np.ones(1, np.float32)
        divided_by[(1,)](one, D=zero)
        signs.append(float(one[0]))
    assert signs == [float("inf"), float("-inf")]


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def tripled(x):
    return x * 3


changed = doubled


@triton.jit
def changes(x_ptr):
    tl.store(x_ptr, changed(tl.load(x_ptr)))


def test_a_name_that_means_something_else_compiles_anew():
    global changed
    x = np.ones(1, np.float32)
    changes[(1,)](x)
    changed = tripled
    changes[(1,)](x)
    assert x[0] == 6
    helper = doubled

    @triton.jit
    def within(x_ptr):
        tl.store(x_ptr, helper(tl.load(x_ptr)))

    within[(1,)](x)
    helper = tripled
    within[(1,)](x)
    assert x[0] == 36



@triton.jit
def shifted(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) >> tl.load(y_ptr + at))


@pytest.mark.parametrize("left", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
@pytest.mark.parametrize("right", ["int8", "int32", "uint16", "uint32"])
def test_the_left_side_says_whether_a_shift_keeps_the_sign(left, right):
    x = np.random.default_rng(6).integers(np.iinfo(left).min, np.iinfo(left).max, 64, left, endpoint=True)
    y = np.random.default_rng(7).integers(0, 8, 64).astype(right)
    out = np.zeros(64, np.int64)
    shifted[(1,)](x, y, out, BLOCK=64)
    # The common type is the wider one; of two that are alike, the unsigned one.
    common = max((np.dtype(left), np.dtype(right)), key=lambda of: (of.itemsize, of.kind))
    expected = x.astype(np.int64) >> y.astype(np.int64)
    assert np.array_equal(out, expected % (1 << 8 * common.itemsize) if common.kind == "u" else expected)


@triton.jit
def narrowed(x_ptr, out_ptr, TYPE: tl.constexpr, HOW: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(TYPE, fp_downcast_rounding=HOW).to(tl.float32))


@pytest.mark.parametrize("name, digits, least, largest", [("float16", 10, -14, 65504.0), ("bfloat16", 7, -126, (2 - 2**-7) * 2.0**127),
                                                         ("float8e4nv", 3, -6, 448.0), ("float8e5", 2, -14, 57344.0)])
def test_a_cast_may_round_towards_zero(name, digits, least, largest):
    x = (normal(9, 64) * 2.0 ** np.random.default_rng(2).integers(-20, 15, 64)).astype(np.float32)
    x[:6] = 0, -0.0, largest, -1.003 * largest, 3e38, 2.0**-30
    out = np.zeros(64, np.float32)
    narrowed[(1,)](x, out, getattr(tl, name), "rtz", 64)
    quantum = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(np.abs(x.astype(np.float64)), 1e-300))), least) - digits)
    wanted = np.copysign(np.minimum(np.floor(np.abs(x) / quantum) * quantum, largest), x)
    np.testing.assert_array_equal(out, wanted)
    with pytest.raises(triton.CompilationError, match="only for truncating fp conversions"):
        narrowed.program(x, out, tl.float64, "rtz", 64)
