# SPDX-License-Identifier: Apache-2.0
"""tl.map_elementwise."""

import numpy as np
import pytest
import triton
import triton.language as tl

rng = np.random.default_rng(5)


@triton.jit
def compared(x, y):
    if x < y:
        return -1
    elif x == y:
        return 0
    else:
        return 1


@triton.jit
def steps(x, limit):
    """Of Collatz's sequence until 1 or the limit."""
    count = 0
    while (x != 1) & (count < limit):
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        count += 1
    return count, x


@triton.jit
def power(x, n):
    result = 1.0
    for _ in range(n):
        result *= x
    return result


@triton.jit
def divided(a0, a1, b0, b1):
    return a0 // b0, a1 // b1, a0 % b0, a1 % b1


@triton.jit
def mapped(X, Y, A, B, C, D, E, F, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x, y = tl.load(X + at), tl.load(Y + at)
    tl.store(A + at, tl.map_elementwise(compared, x, tl.load(Y + tl.arange(0, N))))
    count, last = tl.map_elementwise(steps, x, 20)
    tl.store(B + at, count)
    tl.store(C + at, last)
    tl.store(D + at, tl.map_elementwise(power, x.to(tl.float32) / 64, y & 3))
    quotient, rest = tl.map_elementwise(divided, x, y, pack=2)
    tl.store(E + at, quotient)
    tl.store(F + at, rest)


def collatz(x):
    count = 0
    while x != 1 and count < 20:
        x, count = (x // 2 if x % 2 == 0 else 3 * x + 1), count + 1
    return count, x


@pytest.mark.parametrize("warps", [1, 4])
def test_a_function_of_scalars_is_run_for_each_element(warps):
    x, y = (rng.integers(1, 60, (8, 32)).astype(np.int32) for _ in range(2))
    a, b, c, e, f = (np.zeros_like(x) for _ in range(5))
    d = np.zeros(x.shape, np.float32)
    mapped[(1,)](x, y, a, b, c, d, e, f, *x.shape, num_warps=warps)
    assert np.array_equal(a, np.sign(x - y[0])) and np.array_equal(e, x // y) and np.array_equal(f, x % y)
    wanted = np.array([collatz(int(v)) for v in x.ravel()])
    assert np.array_equal(b.ravel(), wanted[:, 0]) and np.array_equal(c.ravel(), wanted[:, 1])
    np.testing.assert_allclose(d, (x / 64.0) ** (y & 3), rtol=1e-5)


@triton.jit
def stored(x):
    tl.debug_barrier()
    return x


@triton.jit
def of_two(x, y):
    return x, y, x + y


@pytest.mark.parametrize("function, more, words", [
    (stored, {}, "computes with one element of each block"), (of_two, {"pack": 2}, "returns 3 values, and with pack=2"),
    (compared, {"pack": 3}, "pack=3 of 16 elements"), (compared, {"pack": 0}, "a number from 1 on")])
def test_what_a_mapped_function_may_not_do(function, more, words):
    @triton.jit
    def kernel(X, PACK: tl.constexpr):
        x = tl.load(X + tl.arange(0, 16))
        if PACK == 2:
            tl.map_elementwise(function, x, pack=PACK)
        elif PACK is None:
            tl.map_elementwise(function, x)
        else:
            tl.map_elementwise(function, x, x, pack=PACK)

    with pytest.raises(triton.CompilationError, match=words):
        kernel.program(np.zeros(16, np.int32), more.get("pack"))
