# SPDX-License-Identifier: Apache-2.0
"""Scans, reductions by a function, and what takes elements from other places of a block: against numpy."""

import numpy as np
import pytest
import triton
import triton.language as tl

rng = np.random.default_rng()


@triton.jit
def running(X, Z, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr, PRODUCT: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(X + at)
    z = tl.cumprod(x, AXIS, REVERSE) if PRODUCT else tl.cumsum(x, AXIS, REVERSE)
    tl.store(Z + at, z)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.int8])
@pytest.mark.parametrize("shape, axis", [((8, 32), 0), ((8, 32), 1), ((5, 7), -1), ((1, 128), 1)])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("product", [False, True])
def test_running_sums_and_products(dtype, shape, axis, reverse, product):
    x = rng.integers(-3, 4, shape).astype(dtype) if not product else rng.choice([-1, 1, 2], shape, p=[0.3, 0.65, 0.05]).astype(dtype)
    wide = np.int32 if dtype == np.int8 and not product else dtype  # a running product keeps its type
    z = np.zeros(shape, np.int32 if dtype == np.int8 else dtype)
    running[(1,)](x, z, *shape, axis, reverse, product)
    turned = np.flip(x, axis) if reverse else x
    wanted = (np.cumprod if product else np.cumsum)(turned, axis, dtype=wide)
    np.testing.assert_allclose(z, np.flip(wanted, axis) if reverse else wanted)


@triton.jit
def then(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@triton.jit
def recurrence(A, B, Z, W, N: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, N)
    _, z = tl.associative_scan((tl.load(A + at), tl.load(B + at)), 0, then, reverse=REVERSE)
    tl.store(Z + at, z)
    a, b = tl.reduce((tl.load(A + at), tl.load(B + at)), 0, then)
    tl.store(W, a)
    tl.store(W + 1, b)


@pytest.mark.parametrize("n", [1, 2, 13, 64, 256])
@pytest.mark.parametrize("reverse", [False, True])
def test_functions_that_do_not_commute_keep_the_order(n, reverse):
    a, b = rng.uniform(-1, 1, n).astype(np.float32), rng.uniform(-1, 1, n).astype(np.float32)
    z, w = np.zeros(n, np.float32), np.zeros(2, np.float32)
    recurrence[(1,)](a, b, z, w, n, reverse)
    state, wanted = 0.0, np.zeros(n)
    for i in reversed(range(n)) if reverse else range(n):
        state = state * a[i] + b[i]
        wanted[i] = state
    np.testing.assert_allclose(z, wanted, atol=1e-5)
    np.testing.assert_allclose(w[0], np.prod(a.astype(np.float64)), atol=1e-6)
    state = 0.0
    for i in range(n):
        state = state * a[i] + b[i]
    np.testing.assert_allclose(w[1], state, atol=1e-5)


@triton.jit
def larger(v0, i0, v1, i1):
    first = (v0 > v1) | ((v0 == v1) & (i0 < i1))
    return tl.where(first, v0, v1), tl.where(first, i0, i1)


@triton.jit
def best(X, V, I, M: tl.constexpr, N: tl.constexpr, KEEP: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(X + rows[:, None] * N + columns[None, :])
    value, index = tl.reduce((x, tl.broadcast_to(columns[None, :], (M, N))), 1, larger, keep_dims=KEEP)
    if KEEP:
        value, index = tl.reshape(value, (M,)), tl.reshape(index, (M,))
    tl.store(V + rows, value)
    tl.store(I + rows, index)


@pytest.mark.parametrize("shape", [(4, 32), (3, 21)])
@pytest.mark.parametrize("keep", [False, True])
def test_a_reduction_of_pairs(shape, keep):
    x = rng.integers(0, 5, shape).astype(np.float32)
    v, i = np.zeros(shape[0], np.float32), np.zeros(shape[0], np.int32)
    best[(1,)](x, v, i, *shape, keep)
    assert (v == x.max(1)).all() and (i == x.argmax(1)).all()


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def product(X, Z, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(Z, tl.reduce(x, None, multiply))
    tl.store(Z + 1, tl.sum(tl.reduce(x, 0, multiply), 0))


def test_a_product_of_all_elements():
    x = rng.uniform(0.8, 1.25, (4, 16)).astype(np.float32)
    z = np.zeros(2, np.float32)
    product[(1,)](x, z, 4, 16)
    np.testing.assert_allclose(z, [x.prod(), x.prod(0).sum()], rtol=1e-5)


@triton.jit
def rearranged(X, Y, I, Z, M: tl.constexpr, N: tl.constexpr, WHAT: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x, y = tl.load(X + at), tl.load(Y + at)
    if WHAT == "gather0":
        tl.store(Z + at, tl.gather(x, tl.load(I + at), 0))
    elif WHAT == "gather1":
        tl.store(Z + at, x.gather(tl.load(I + at), 1))
    elif WHAT == "flip":
        tl.store(Z + at, tl.flip(x, 1))
    elif WHAT == "flip last":
        tl.store(Z + at, tl.flip(x))
    elif WHAT == "join":
        tl.store(Z + at[:, :, None] * 2 + tl.arange(0, 2)[None, None, :], tl.join(x, y))
    elif WHAT == "interleave":
        tl.store(Z + tl.arange(0, M)[:, None] * 2 * N + tl.arange(0, 2 * N)[None, :], tl.interleave(x, y))
    elif WHAT == "cat":
        tl.store(Z + tl.arange(0, 2 * M * N), tl.cat(tl.ravel(x), tl.ravel(y)))
    elif WHAT == "split":
        a, b = tl.split(tl.reshape(x, (M, N // 2, 2)))
        tl.store(Z + tl.arange(0, M)[:, None] * (N // 2) + tl.arange(0, N // 2)[None, :], a - b)
    else:
        tl.store(Z + at, tl.sort(x, descending=WHAT == "descending"))


@pytest.mark.parametrize("what", ["gather0", "gather1", "flip", "flip last", "join", "interleave", "cat", "split", "sort", "descending"])
@pytest.mark.parametrize("shape", [(4, 16), (2, 64)])
def test_elements_from_other_places(what, shape):
    x, y = (rng.integers(-50, 50, shape).astype(np.float32) for _ in range(2))
    index = rng.integers(0, shape[what == "gather1"], shape).astype(np.int32)
    wanted = {
        "gather0": lambda: np.take_along_axis(x, index, 0), "gather1": lambda: np.take_along_axis(x, index, 1), "flip": lambda: np.flip(x, 1),
        "flip last": lambda: np.flip(x, 1), "join": lambda: np.stack([x, y], 2), "interleave": lambda: np.stack([x, y], 2).reshape(shape[0], -1),
        "cat": lambda: np.concatenate([x.ravel(), y.ravel()]), "split": lambda: x[:, 0::2] - x[:, 1::2], "sort": lambda: np.sort(x, 1),
        "descending": lambda: -np.sort(-x, 1)}[what]()
    z = np.zeros(wanted.shape, np.float32)
    rearranged[(1,)](x, y, index, z, *shape, what)
    np.testing.assert_array_equal(z, wanted)


@triton.jit
def counted(X, Z, N: tl.constexpr, BINS: tl.constexpr, LIMIT: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    tl.store(Z + tl.arange(0, BINS), tl.histogram(x, BINS) if LIMIT is None else tl.histogram(x, BINS, x < LIMIT))


@pytest.mark.parametrize("limit", [None, 5])
def test_a_histogram(limit):
    x = rng.integers(0, 16, 300).astype(np.int32)
    z = np.zeros(16, np.int32)
    counted[(1,)](x, z, 300, 16, limit)
    assert (z == np.bincount(x if limit is None else x[x < limit], minlength=16)).all()


@triton.jit
def largest(X, Z, N: tl.constexpr, K: tl.constexpr):
    tl.store(Z + tl.arange(0, K), tl.topk(tl.load(X + tl.arange(0, N)), K))


def test_the_largest_elements():
    x, z = rng.normal(size=64).astype(np.float32), np.zeros(8, np.float32)
    largest[(1,)](x, z, 64, 8)
    assert (z == -np.sort(-x)[:8]).all()
