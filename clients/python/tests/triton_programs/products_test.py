# SPDX-License-Identifier: Apache-2.0
"""Kernels with tl.dot."""

import numpy as np
import pytest
import triton
import triton.language as tl
from numbers_of import argument, error, normal, rounded, stored, strides, values


@triton.jit
def leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, BM: tl.constexpr,
            BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, LEAKY: tl.constexpr):
    pid = tl.program_id(axis=0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (GROUP * columns)
    first = group * GROUP
    size = min(rows - first, GROUP)
    m = first + (pid % (GROUP * columns)) % size
    n = (pid % (GROUP * columns)) // size
    at_m = (m * BM + tl.arange(0, BM)) % M
    at_n = (n * BN + tl.arange(0, BN)) % N
    at_k = tl.arange(0, BK)
    a = a_ptr + (at_m[:, None] * stride_am + at_k[None, :] * stride_ak)
    b = b_ptr + (at_k[:, None] * stride_bk + at_n[None, :] * stride_bn)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        left = tl.load(a, mask=at_k[None, :] < K - k * BK, other=0.0)
        right = tl.load(b, mask=at_k[:, None] < K - k * BK, other=0.0)
        total = tl.dot(left, right, total)
        a += BK * stride_ak
        b += BK * stride_bk
    if LEAKY:
        total = leaky(total)
    c_m, c_n = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)
    c = c_ptr + stride_cm * c_m[:, None] + stride_cn * c_n[None, :]
    tl.store(c, total.to(c_ptr.dtype.element_ty), mask=(c_m[:, None] < M) & (c_n[None, :] < N))


CASES = [(64, 64, 64, "float16", 64, 32, 32, 4, ""), (77, 45, 93, "float16", 32, 32, 32, 2, ""), (77, 45, 93, "bfloat16", 64, 32, 16, 8, "at"),
         (33, 100, 20, "float32", 32, 32, 32, 1, "bt"), (1, 1, 1, "float16", 16, 16, 16, 8, ""), (130, 20, 64, "float16", 128, 16, 64, 3, "atbt")]


@pytest.mark.parametrize("warps, is_leaky", [(4, False), (2, True)])
@pytest.mark.parametrize("m, n, k, dtype, bm, bn, bk, group, how", CASES)
def test_a_product_of_matrices(m, n, k, dtype, bm, bn, bk, group, how, warps, is_leaky):
    a, b = rounded(normal(1, m, k), dtype), rounded(normal(2, k, n), dtype)
    left = stored(a.T.copy(), dtype).T if "at" in how else stored(a, dtype)
    right = stored(b.T.copy(), dtype).T if "bt" in how else stored(b, dtype)
    c = np.zeros((m, n), np.float16)
    grid = lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)  # noqa: E731
    product[grid](argument(left, dtype), argument(right, dtype), c, m, n, k, *strides(left), *strides(right), *strides(c), BM=bm, BN=bn, BK=bk,
                  GROUP=group, LEAKY=is_leaky, num_warps=warps)
    expected = a @ b
    assert error(c, np.where(expected >= 0, expected, 0.01 * expected) if is_leaky else expected) < 2e-3


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, out_ptr, length, scale, CAUSAL: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    start, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * length * D
    at_m, at_n, at_d = start * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    q = tl.load(q_ptr + base + at_m[:, None] * D + at_d[None, :], mask=at_m[:, None] < length, other=0.0)
    high = tl.full([BM], float("-inf"), dtype=tl.float32)
    weight = tl.zeros([BM], dtype=tl.float32)
    out = tl.zeros([BM, D], dtype=tl.float32)
    last = tl.minimum(length, (start + 1) * BM) if CAUSAL else length
    for first in range(0, last, BN):
        columns = first + at_n
        k = tl.load(k_ptr + base + columns[:, None] * D + at_d[None, :], mask=columns[:, None] < length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * (scale * 1.44269504)
        keep = columns[None, :] < length
        if CAUSAL:
            keep = keep & (columns[None, :] <= at_m[:, None])
        scores = tl.where(keep, scores, float("-inf"))
        higher = tl.maximum(high, tl.max(scores, 1))
        p = tl.exp2(scores - higher[:, None])
        factor = tl.exp2(high - higher)
        weight = weight * factor + tl.sum(p, 1)
        out = out * factor[:, None]
        v = tl.load(v_ptr + base + columns[:, None] * D + at_d[None, :], mask=columns[:, None] < length, other=0.0)
        out = tl.dot(p.to(v.dtype), v, out)
        high = higher
    out = out / weight[:, None]
    tl.store(out_ptr + base + at_m[:, None] * D + at_d[None, :], out.to(out_ptr.dtype.element_ty), mask=at_m[:, None] < length)


@pytest.mark.parametrize("dtype, length, causal, d", [("float16", 128, False, 64), ("float16", 100, True, 32), ("bfloat16", 77, True, 64)])
def test_attention(dtype, length, causal, d):
    heads = 2
    q, k, v = (rounded(normal(s, heads, length, d), dtype) for s in (3, 4, 5))
    out = stored(np.zeros((heads, length, d)), dtype)
    attention[(triton.cdiv(length, 64), heads)](*(argument(stored(x, dtype), dtype) for x in (q, k, v)), argument(out, dtype), length, d**-0.5,
                                                CAUSAL=causal, D=d, BM=64, BN=32)
    scores = q @ k.transpose(0, 2, 1) * d**-0.5
    if causal:
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    assert error(values(out, dtype), p / p.sum(-1, keepdims=True) @ v) < (4e-3 if dtype == "float16" else 2e-2)


@triton.jit
def small(a_ptr, b_ptr, c_ptr, HOW: tl.constexpr, N: tl.constexpr):
    r = tl.arange(0, N)
    at = r[:, None] * N + r[None, :]
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    c = tl.load(c_ptr + at)
    if HOW == "plus":
        c += tl.dot(a, b)
    elif HOW == "twice":
        c = tl.dot(tl.dot(a, b).to(a.dtype), b) + c
    elif HOW == "both":
        p = tl.dot(a, a)
        c = p + tl.dot(a, b, p)
    elif HOW == "turned":
        c += tl.dot(tl.trans(a), tl.trans(b))
    elif HOW == "computed":
        c += tl.dot((a * 2).to(a.dtype), (b + a).to(a.dtype), input_precision="ieee")
    tl.store(c_ptr + at, c)


HOWS = {"plus": lambda a, b, c: c + a @ b, "twice": lambda a, b, c: c + (a @ b) @ b, "both": lambda a, b, c: 2 * (a @ a) + a @ b,
        "turned": lambda a, b, c: c + a.T @ b.T, "computed": lambda a, b, c: c + 2 * a @ (a + b)}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("how", list(HOWS))
def test_products_in_expressions(how, dtype):
    a, b = (rounded(normal(s, 32, 32), dtype) / 4 for s in (6, 7))
    c = normal(8, 32, 32).astype(np.float32)
    before = c.astype(np.float64)
    small[(1,)](a.astype(dtype), b.astype(dtype), c, HOW=how, N=32)
    assert error(c, HOWS[how](a, b, before)) < 3e-3


@triton.jit
def of_bytes(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    r = tl.arange(0, N)
    at = r[:, None] * N + r[None, :]
    tl.store(c_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


def test_products_of_bytes_are_exact():
    a, b = (np.random.default_rng(s).integers(-128, 128, (32, 32), np.int8) for s in (1, 2))
    c = np.zeros((32, 32), np.int32)
    of_bytes[(1,)](a, b, c, N=32)
    assert np.array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


@triton.jit
def of_two_precisions(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    r = tl.arange(0, N)
    at = r[:, None] * N + r[None, :]
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    tl.store(c_ptr + at, tl.dot(a, b))
    tl.store(c_ptr + N * N + at, tl.dot(a, b, input_precision="ieee"))


def test_operands_of_two_products_are_rounded_for_each():
    a, b = normal(1, 32, 32).astype(np.float32), normal(2, 32, 32).astype(np.float32)
    c = np.zeros((2, 32, 32), np.float32)
    of_two_precisions[(1,)](a, b, c, N=32)
    wanted = a.astype(np.float64) @ b
    assert error(c[1], wanted) < 1e-6 and 1e-6 < error(c[0], wanted) < 2e-3


@triton.jit
def typed_product(a_ptr, b_ptr, acc_ptr, c_ptr, OUT: tl.constexpr, EXPECTED: tl.constexpr, N: tl.constexpr):
    r = tl.arange(0, N)
    at = r[:, None] * N + r[None, :]
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    c = tl.dot(a, b, out_dtype=OUT)
    tl.static_assert(c.dtype == EXPECTED)
    with_acc = tl.dot(a, b, tl.load(acc_ptr + at))
    tl.static_assert(with_acc.dtype == acc_ptr.dtype.element_ty)
    tl.store(c_ptr + at, with_acc - c)


@pytest.mark.parametrize("dtype, out, expected", [("float16", tl.float16, tl.float16), ("float16", tl.float32, tl.float32),
                                                  ("bfloat16", tl.float16, tl.float32), ("float32", tl.float16, tl.float32)])
def test_the_type_of_a_product(dtype, out, expected):
    a, b = (stored(normal(s, 16, 16), dtype) for s in (1, 2))
    acc = np.arange(256).reshape(16, 16).astype(np.float16 if expected is tl.float16 else np.float32)
    c = np.zeros((16, 16), np.float32)
    typed_product[(1,)](argument(a, dtype), argument(b, dtype), acc, c, out, expected, 16)
    assert np.abs(c - acc.astype(np.float32)).max() < 0.3


@triton.jit
def of_many(a_ptr, b_ptr, acc_ptr, c_ptr, SHAPE: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    a, b, acc = (tl.load(a_ptr + at).reshape(SHAPE), tl.load(b_ptr + at).reshape(SHAPE), tl.load(acc_ptr + at).reshape(SHAPE))
    tl.store(c_ptr + at, tl.dot(tl.trans(a), b, acc, input_precision="ieee").reshape(SIZE))


@pytest.mark.parametrize("batches", [(2,), (2, 2), (1, 2, 1, 2)])
def test_a_product_of_many_dimensions(batches):
    shape = (*batches, 16, 16)
    a, b, acc = (normal(s, *shape).astype(np.float32) for s in (1, 2, 3))
    c = np.zeros(shape, np.float32)
    of_many[(1,)](a, b, acc, c, shape, c.size)
    assert error(c, acc + np.swapaxes(a, -1, -2).astype(np.float64) @ b) < 1e-6


@triton.jit
def products_of_doubles(A, B, C, N: tl.constexpr, K: tl.constexpr):
    batch, row, column = tl.arange(0, 2)[:, None, None], tl.arange(0, N)[None, :, None], tl.arange(0, N)[None, None, :]
    a = tl.load(A + batch * N * K + row * K + tl.arange(0, K)[None, None, :])
    b = tl.load(B + batch * N * K + tl.arange(0, K)[None, :, None] * N + column)
    tl.store(C + batch * N * N + row * N + column, tl.dot(a, b, out_dtype=tl.float64))


def test_products_of_doubles_fit_into_one_warp():
    a, b, c = normal(1, 2, 32, 64), normal(2, 2, 64, 32), np.zeros((2, 32, 32))
    products_of_doubles[(1,)](a, b, c, 32, 64, num_warps=1)
    np.testing.assert_allclose(c, a @ b, rtol=1e-12)


@triton.jit
def by_parts(A, B, C, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, HOW: tl.constexpr):
    a = tl.load(A + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :])
    b = tl.load(B + tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :])
    c = tl.load(C + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(C + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], tl.dot(a, b, c, input_precision=HOW))


@pytest.mark.parametrize("m, n, k, warps", [(16, 16, 16, 1), (64, 32, 64, 4), (128, 64, 32, 8)])
def test_three_products_of_tf32_are_nearly_one_of_float32(m, n, k, warps):
    a, b, c = normal(1, m * k).reshape(m, k), normal(2, k * n).reshape(k, n), normal(3, m * n).reshape(m, n)
    a, b, c = (x.astype(np.float32) for x in (a, b, c))
    a[0, 0], b[0, 1] = np.inf, abs(b[0, 1]) + 1
    wanted = a.astype(np.float64) @ b.astype(np.float64) + c
    by_parts[(1,)](a, b, c, m, n, k, "tf32x3", num_warps=warps)
    assert np.isinf(c[0, 1]) and np.isinf(wanted[0, 1])
    np.testing.assert_allclose(c[1:], wanted[1:], rtol=1e-5, atol=2e-5 * np.sqrt(k))


@triton.jit
def sums_begin_from(x_ptr, out_ptr, flags_ptr, n, N: tl.constexpr, HOW: tl.constexpr):
    """A product that begins from what is made of the sum before: of its elements, of its transpose, of it and of another thing that it makes."""
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    total, kept = tl.zeros([N, N], tl.float32) + 1, tl.zeros([N, N], tl.float32)
    for i in range(n):
        if HOW == "scaled":
            total = tl.dot(x, x, total * tl.load(flags_ptr + i))
        elif HOW == "turned":
            total = tl.dot(x, x, tl.trans(total))
        elif HOW == "kept":
            kept = total * 2
            total = tl.dot(x, x, total * 0.5)
        else:
            if tl.load(flags_ptr + i) > 0:
                total = tl.dot(x, x, total * 0.5)
    tl.store(out_ptr + at, total + kept)


@pytest.mark.parametrize("how", ["scaled", "turned", "kept", "under a condition"])
def test_what_a_product_begins_from_is_changed_in_its_place(how):
    x, flags = rounded(normal(11, 32, 32) / 4, "float16"), np.array([2, -1, 0.5, 3], np.float32)
    out = np.zeros((32, 32), np.float32)
    sums_begin_from[(1,)](stored(x, "float16"), out, flags, 4, N=32, HOW=how)
    total, kept = np.ones((32, 32)), 0
    for i, flag in enumerate(flags):
        if how == "kept":
            kept = total * 2
        if how in ("scaled", "turned"):
            total = (total * flag if how == "scaled" else total.T) + x @ x
        elif how == "kept" or flag > 0:
            total = total / 2 + x @ x
    assert error(out, total + kept) < 1e-5
    text = sums_begin_from.program(stored(x, "float16"), out, flags, 4, N=32, HOW=how).script()
    assert text.count("fragment float32[32, 32]") == {"scaled": 1, "turned": 2, "kept": 3}.get(how, 1), text
