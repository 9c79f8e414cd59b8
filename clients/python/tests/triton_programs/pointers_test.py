# SPDX-License-Identifier: Apache-2.0
"""Pointers that are chosen, cast, or made of integers."""

import numpy as np
import pytest
import triton
import triton.language as tl
from kiln.errors import NoEffectWarning

rng = np.random.default_rng(8)


@triton.jit
def chosen(C, A, B, X, N: tl.constexpr):
    at = tl.arange(0, N)
    which = tl.load(C + tl.program_id(0)) != 0
    pointer = tl.where(which, A, B) + at
    tl.store(X + tl.program_id(0) * N + at, tl.load(pointer, mask=at < N - 3, other=7.0))
    each = tl.where(at % 2 == 0, A + at, tl.where(at % 3 == 0, B + at, X + at))
    tl.store(each, -1.0, mask=at < 6)
    tl.atomic_add(A + tl.program_id(0) * 0 if which else B, 100.0)


def test_a_pointer_that_is_chosen_among_arguments():
    c, a, b, x = np.array([1], np.int32), rng.normal(size=16).astype("f"), rng.normal(size=16).astype("f"), np.zeros(16, "f")
    expected_a, expected_b, expected_x = a.copy(), b.copy(), np.concatenate([a[:13], np.full(3, 7, "f")])
    expected_a[:6:2], expected_b[3], expected_x[1], expected_x[5] = -1, -1, -1, -1
    expected_a[0] += 100
    chosen[(1,)](c, a, b, x, 16)
    for found, expected in ((a, expected_a), (b, expected_b), (x, expected_x)):
        np.testing.assert_array_equal(found, expected)


@triton.jit
def cast_pointers(X, M, Z, Y, N: tl.constexpr):
    at = tl.arange(0, N)
    bits = tl.load(X.to(tl.pointer_type(tl.uint32)) + at, mask=at > 0, other=5)
    tl.store(Z + at, bits)
    tl.store((Y + at).to(tl.pointer_type(tl.float32), bitcast=True), bits.to(tl.float32, bitcast=True) * 2)
    tl.store(M.to(tl.pointer_type(tl.int8)) + at, tl.load(M.to(tl.pointer_type(tl.int8)) + at) ^ 1)


def test_a_pointer_to_elements_of_another_type():
    x, m, z, y = rng.normal(size=16).astype("f"), rng.random(16) < 0.5, np.zeros(16, np.uint32), np.zeros(16, np.int32)
    expected, before = x.view(np.uint32).copy(), m.copy()
    expected[0] = 5
    cast_pointers[(1,)](x, m, z, y, 16)
    np.testing.assert_array_equal(z, expected)
    np.testing.assert_array_equal(y.view("f"), expected.view("f") * 2)
    np.testing.assert_array_equal(m, ~before)


@triton.jit
def as_integers(C, A, B, X, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(A + at).to(tl.pi32_t), tl.load(B + at).to(tl.pointer_type(tl.int32))
    tl.store(X + at, tl.where(tl.load(C + at), a + 1, b))


def test_a_pointer_is_an_integer_again():
    c, a, b, x = rng.random(16) < 0.5, rng.integers(0, 1 << 40, 16), rng.integers(0, 1 << 40, 16), np.zeros(16, np.int64)
    as_integers[(1,)](c, a, b, x, 16)
    np.testing.assert_array_equal(x, np.where(c, a + 4, b))


@triton.jit
def through(POINTERS, X, N: tl.constexpr):
    pointer = tl.load(POINTERS + tl.program_id(0)).to(tl.pointer_type(tl.float16))
    for i in range(4):
        tl.store(X + tl.arange(0, N), tl.load(pointer + tl.arange(0, N)))
        pointer += N


def test_a_pointer_that_is_loaded_leads_to_the_memory_of_its_process():
    pointers, x = np.zeros(1, np.int64), np.zeros(16, np.float16)
    text = through.program(pointers, x, 16).script()
    assert "memory_float16" in text and "4096" in text
    with pytest.raises(ValueError, match="run it on a GPU"):
        through[(1,)](pointers, x, 16)


@triton.jit
def an_argument_as_a_number(X, Z):
    tl.store(Z, X.to(tl.int64))


def test_what_a_pointer_may_not_become():
    x, z = np.zeros(4, np.float32), np.zeros(1, np.int64)
    with pytest.raises(triton.CompilationError, match="do not see where a tensor lies"):
        an_argument_as_a_number[(1,)](x, z)


@triton.jit
def with_a_bias(X, BIAS, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(X + at)
    if BIAS:
        x += tl.load(BIAS + at)
    if not BIAS:
        x *= 3
    first = tl.load(X)
    tl.store(Z + at, x + (2 if BIAS + 1 else 0) + first[None, :])


def test_whether_there_is_a_tensor():
    x, bias, z = rng.normal(size=16).astype("f"), rng.normal(size=16).astype("f"), np.zeros(16, "f")
    with_a_bias[(1,)](x, bias, z, 16)
    np.testing.assert_allclose(z, x + bias + 2 + x[0], rtol=1e-6)


@triton.jit
def perhaps(POINTERS, Z, N: tl.constexpr):
    for i in range(N):
        pointer = tl.load(POINTERS + i).to(tl.pointer_type(tl.float32))
        if pointer:
            tl.store(Z + i, 1)


def test_whether_an_address_is_0():
    pointers, z = np.array([0, 4096, 0, 8], np.int64), np.zeros(4, np.int32)
    perhaps[(1,)](pointers, z, 4)
    assert z.tolist() == [0, 1, 0, 1]


@triton.jit
def joined(A, B, C, Z, a, b, c, N: tl.constexpr):
    which = tl.program_id(0)
    if which == 0:
        source = A
        count = a
    elif which == 1:
        source = B + tl.load(Z + 3 * N).to(tl.int32) * 0
        count = b
    else:
        shift = c * 0
        source = C + shift
        count = c
    at = tl.arange(0, N)
    tl.store(Z + which * N + at, tl.load(source + at, at < count, other=9))
    for _ in range(2):
        old = tl.atomic_add(source, 1)
        tl.store(Z + which * N, old + 1)


def test_a_pointer_that_branches_choose():
    a, b, c = (rng.integers(0, 100, n).astype(np.int32) for n in (5, 16, 9))
    before, z = [x.copy() for x in (a, b, c)], np.zeros(64, np.int32)
    joined[(3,)](a, b, c, z, 5, 16, 9, 16)
    for i, (x, old) in enumerate(zip((a, b, c), before)):
        assert x[0] == old[0] + 2 and z[16 * i] == x[0]
        np.testing.assert_array_equal(z[16 * i + 1 : 16 * i + 16], np.concatenate([old, np.full(16 - len(old), 9)])[1:])


@triton.jit
def waits(FLAG, X, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    if tl.program_id(0) == 0:
        while tl.load(FLAG, volatile=True) == 0:
            pass
        tl.store(Z + at, tl.load(X + at, mask=at > 2, other=5.0, volatile=True))
    else:
        for i in range(N):
            tl.atomic_xchg(X + i, i * 1.0, sem="relaxed")
        tl.atomic_xchg(FLAG, 1, sem="release")


def test_a_volatile_load_sees_what_another_program_stores():
    flag, x, z = np.zeros(1, np.int32), np.zeros(8, np.float32), np.zeros(8, np.float32)
    waits[(2,)](flag, x, z, 8)
    np.testing.assert_array_equal(z, np.where(np.arange(8) > 2, np.arange(8), 5))


@triton.jit
def of_many_widths(W, X, Z, place, N: tl.constexpr):
    wide = (W + place).to(tl.pointer_type(tl.uint64)) + tl.program_id(0)
    tl.atomic_add(wide, tl.full([], 5, tl.uint64) << 32)
    at = tl.arange(0, N)
    if tl.program_id(0) == 0:
        tl.store(W.to(tl.pointer_type(tl.int32)) + 16 + at, tl.load(X + at))
        tl.store(Z + at, tl.load(X.to(tl.pointer_type(tl.uint8)) + at))


@triton.jit
def there_and_back(W, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    words = W.to(tl.pointer_type(tl.int32)) + 1
    z = tl.load(words.to(tl.pointer_type(tl.uint8)) + at).to(tl.int32)
    tl.store(Z + at, z + (tl.load((words + 1).to(tl.pointer_type(tl.int16)) + at).to(tl.int32) << 8))


def test_a_pointer_that_was_cast_is_cast_again():
    w, z = np.arange(64, dtype=np.uint8), np.zeros(8, np.int32)
    there_and_back[(1,)](w, z, N=8)
    assert z.tolist() == (w[4:12].astype(np.int32) + (w[8:24].view(np.int16).astype(np.int32) << 8)).tolist()


def test_an_argument_has_elements_of_several_widths():
    w, x, z = np.zeros(251, np.uint8), np.arange(1000, 1016, dtype=np.int32), np.zeros(16, np.uint8)
    of_many_widths[(3,)](w, x, z, 8, N=16)
    assert w[:48].view(np.uint64).tolist() == [0, 5 << 32, 5 << 32, 5 << 32, 0, 0] and w[64:128].view(np.int32).tolist() == x.tolist()
    assert z.tolist() == x.view(np.uint8)[:16].tolist() and not w[128:].any()


@triton.jit
def promised(X, Z, stride, N: tl.constexpr):
    x = tl.multiple_of(X + tl.program_id(0) * stride, N)
    tl.store(Z + tl.program_id(0) * N + tl.arange(0, N), tl.load(tl.multiple_of(x + tl.arange(0, N), [N])))


def test_promises_of_pointers():
    x, z = rng.normal(size=(3, 32)).astype("f"), np.zeros((3, 16), "f")
    with pytest.warns(NoEffectWarning, match="multiple_of of pointers"):
        promised[(3,)](x, z, 32, 16)
    np.testing.assert_array_equal(z, x[:, :16])
