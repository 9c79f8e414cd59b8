# SPDX-License-Identifier: Apache-2.0
"""Random numbers of kernels: bit for bit those of Philox, against a reference in Python's integers."""

import numpy as np
import pytest
import triton
import triton.language as tl

rng = np.random.default_rng()


def philox(counter, key, width: int):
    """Ten rounds; Python's integers."""
    rounds = {32: (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85),
              64: (0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)}[width]
    mask = (1 << width) - 1
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = rounds[0] * c[0], rounds[1] * c[2]
        c = [(second >> width) ^ c[1] ^ k[0], second & mask, (first >> width) ^ c[3] ^ k[1], first & mask]
        k = [(k[0] + rounds[2]) & mask, (k[1] + rounds[3]) & mask]
    return c


@triton.jit
def integers(Z, seed, first, N: tl.constexpr, DTYPE: tl.constexpr):
    at = tl.arange(0, N)
    if DTYPE == tl.uint64:  # counters of 64 bits
        a, b, c, d = tl.philox(seed, (at + first).to(DTYPE), (at * 0).to(DTYPE), (at * 0).to(DTYPE), (at * 0).to(DTYPE))
    else:
        a, b, c, d = tl.randint4x(seed, (at + first).to(DTYPE))
    tl.store(Z + at, a)
    tl.store(Z + N + at, b)
    tl.store(Z + 2 * N + at, c)
    tl.store(Z + 3 * N + at, d)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_integers(dtype):
    seed, first = int(rng.integers(0, 1 << 62)), int(rng.integers(0, 1 << 30 if dtype == "int32" else 1 << 60))
    width = 64 if dtype == "uint64" else 32
    z = np.zeros((4, 64), f"uint{width}")
    integers[(1,)](z, seed, first, 64, getattr(tl, dtype))
    key = (seed & 0xFFFFFFFF, seed >> 32) if width == 32 else (seed, 0)
    counters = [(first + i, 0, 0, 0) if dtype != "int64" else ((first + i) & 0xFFFFFFFF, (first + i) >> 32, 0, 0) for i in range(64)]
    wanted = np.array([philox(counter, key, width) for counter in counters], object).T
    assert (z == wanted).all()


@triton.jit
def floats(U, V, W, seed, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(U + at, tl.rand(seed, at))
    tl.store(V + at, tl.randn(seed, at))
    tl.store(W + at, tl.randint(seed, at))


def test_uniform_and_normal_numbers():
    n, seed = 1024, int(rng.integers(0, 1 << 31))
    u, v, w = np.zeros(4 * n, np.float32), np.zeros(4 * n, np.float32), np.zeros(4 * n, np.uint32)
    floats[(4,)](u, v, w, seed, n)
    words = np.array([philox((i, 0, 0, 0), (seed, 0), 32)[:2] for i in range(4 * n)], np.uint32)
    signed = words.view(np.int32).astype(np.float64)
    uniform = np.where(signed < 0, -signed - 1, signed) * 4.6566127342e-10
    assert (w == words[:, 0]).all() and 0 <= u.min() and u.max() < 1
    np.testing.assert_allclose(u, uniform[:, 0], rtol=1e-6)
    normal = np.sqrt(-2 * np.log(np.maximum(1e-7, uniform[:, 0]))) * np.cos(2 * np.pi * uniform[:, 1])
    np.testing.assert_allclose(v, normal, atol=5e-5)


@triton.jit
def halves(X, Y, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(Z + at, tl.umulhi(tl.load(X + at), tl.load(Y + at)))


@pytest.mark.parametrize("dtype", ["uint32", "uint64", "int32", "int64"])
def test_the_upper_half_of_a_product(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x, y = (rng.integers(low, high, 128, dtype=dtype, endpoint=True) for _ in range(2))
    x[:2], y[:2] = (low, high), (low, low)
    z = np.zeros(128, dtype)
    halves[(1,)](x, y, z, 128)
    bits = np.iinfo(dtype).bits  # which are multiplied as numbers without a sign
    assert [(int(a) % 2**bits) * (int(b) % 2**bits) >> bits for a, b in zip(x, y)] == [int(v) % 2**bits for v in z]


@triton.jit
def swizzled(I, J, M: tl.constexpr, N: tl.constexpr, G: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    a, b = tl.swizzle2d(i, j, M, N, G)
    tl.store(I + i * N + j, a)
    tl.store(J + i * N + j, b)


def test_the_order_of_programs():
    i, j = np.zeros((5, 7), np.int32), np.zeros((5, 7), np.int32)
    swizzled[(1,)](i, j, 5, 7, 2)
    wanted = [(row, column) for first in range(0, 5, 2) for column in range(7) for row in range(first, min(first + 2, 5))]
    assert list(zip(i.ravel().tolist(), j.ravel().tolist())) == wanted
