# SPDX-License-Identifier: Apache-2.0
"""Loops, branches, calls and tuples."""

from typing import NamedTuple

import numpy as np
import pytest
import triton
import triton.language as tl
from numbers_of import error, normal


@triton.jit
def exchanged(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    s, t = 0.0, 1.0
    for _ in range(n):
        a, b = b, a + b
        s, t = t, s + t
    tl.store(out + at, a)
    tl.store(out + BLOCK + at, b)
    tl.store(out + 2 * BLOCK, s)
    tl.store(out + 2 * BLOCK + 1, t)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_what_a_loop_carries_changes_at_once(n):
    a, b = normal(1, 32).astype(np.float32), normal(2, 32).astype(np.float32)
    out = np.zeros(66, np.float32)
    exchanged[(1,)](a, b, out, n, BLOCK=32)
    s, t = 0.0, 1.0
    for _ in range(n):
        a, b, s, t = b, a + b, t, s + t
    assert error(out, np.concatenate([a, b, [s, t]])) < 1e-6


@triton.jit
def turned(x, out, n, BLOCK: tl.constexpr):
    r = tl.arange(0, BLOCK)
    at = r[:, None] * BLOCK + r[None, :]
    a = tl.load(x + at)
    for i in range(n):
        a = tl.trans(a) + i
    tl.store(out + at, a)


def test_a_carried_block_may_be_turned():
    x, out = normal(3, 16, 16).astype(np.float32), np.zeros((16, 16), np.float32)
    turned[(1,)](x, out, 3, BLOCK=16)
    assert error(out, ((x.T + 0).T + 1).T + 2) < 1e-6


@triton.jit
def until(x, out, limit_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    i = 0
    total = tl.zeros([BLOCK], tl.float32)
    p = x + at
    while i < tl.load(limit_ptr):
        total += tl.load(p)
        p += BLOCK
        i += 1
    tl.store(out + at, total)


@pytest.mark.parametrize("limit", [0, 1, 6])
def test_while(limit):
    x, out = normal(4, 7, 64).astype(np.float32), np.ones(64, np.float32)
    until[(1,)](x, out, np.array([limit], np.int32), BLOCK=64)
    assert error(out, x[:limit].sum(0)) < 1e-6


@triton.jit
def returning(x, out, n):
    pid = tl.program_id(0)
    if pid >= n:
        return
    v = tl.load(x + pid)
    if v < 0:
        tl.store(out + pid, -1.0)
        return
    elif v > 1:
        w = v * 2
    else:
        w = v
    tl.store(out + pid, w if pid % 2 == 0 else -w)


def test_an_early_return():
    x, out = np.array([-1, 2, 0.5, 3, 0.25, -3, 1.5], np.float32), np.zeros(9, np.float32)
    returning[(9,)](x, out, 7)
    sign = np.where(np.arange(7) % 2 == 0, 1, -1)
    assert np.array_equal(out, [*np.where(x < 0, -1, np.where(x > 1, x * 2, x) * sign), 0, 0])


@triton.jit
def branching(x, out, flag, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at)
    p = out + at
    if flag > 3:
        v = v * 2.0
        p += BLOCK
    elif flag == 3:
        v, p = v + 1, p
    else:
        v = tl.sum(tl.trans(v[:, None] + v[None, :]), 1)
    tl.store(p, v)


@pytest.mark.parametrize("flag", [2, 3, 5])
def test_branches_carry_blocks_and_pointers(flag):
    x, out = normal(5, 16).astype(np.float32), np.zeros(32, np.float32)
    branching[(1,)](x, out, flag, BLOCK=16)
    wanted = x * 2 if flag > 3 else x + 1 if flag == 3 else (x[:, None] + x).sum(0)
    assert error(out[16:] if flag > 3 else out[:16], wanted) < 1e-6 and not (out[:16] if flag > 3 else out[16:]).any()


@triton.jit
def two(a, b, K: tl.constexpr = 2):
    if K == 3:
        return a, b
    return a + b, a * K


@triton.jit
def choose(x, limit):
    if limit > 10:
        return x + 1
    return x - 1


@triton.jit
def calling(x, out, limit, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at)
    pair = two(v, 3.0)
    for k in tl.static_range(3):
        pair = (pair[1], pair[0] + k)
    tl.store(out + at, pair[0])
    tl.store(out + BLOCK + at, choose(pair[1], limit))


@pytest.mark.parametrize("limit", [3, 30])
def test_calls_tuples_and_unrolled_loops(limit):
    x, out = normal(6, 16).astype(np.float32), np.zeros(32, np.float32)
    calling[(1,)](x, out, limit, BLOCK=16)
    pair = (x + 3, x * 2)
    for k in range(3):
        pair = (pair[1], pair[0] + k)
    assert error(out, np.concatenate([pair[0], pair[1] + (1 if limit > 10 else -1)])) < 1e-6


@triton.jit
def nested(x, out, n, m, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    row = x + at
    count = 0
    for i in range(n - 1, -1, -1):
        part = tl.zeros([BLOCK], tl.float32)
        p = row
        for j in range(0, m, 2):
            part += tl.load(p) * (i + 1)
            p += 2 * BLOCK
            if j > 0:
                count += 1
        total = total * 0.5 + part
    tl.store(out + at, total + count)


@pytest.mark.parametrize("n, m", [(3, 5), (0, 4), (2, 0), (1, 1)])
def test_loops_in_loops_and_backwards(n, m):
    x, out = normal(7, 6, 32).astype(np.float32), np.zeros(32, np.float32)
    nested[(1,)](x, out, n, m, BLOCK=32)
    total, count = np.zeros(32), 0
    for i in range(n - 1, -1, -1):
        total = total * 0.5 + x[0:m:2].sum(0, dtype=np.float64) * (i + 1)
        count += max(len(range(0, m, 2)) - 1, 0)
    assert error(out, total + count) < 3e-6


@triton.jit
def in_a_loop_with_branches(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    place = tl.zeros([BLOCK], tl.int32)
    for i in range(n):
        v = tl.load(x + i * BLOCK + at)
        if i % 3 == 1:
            v = -v
        better = v > best
        best = tl.where(better, v, best)
        place = tl.where(better, i, place)
    tl.store(out + at, best)
    tl.store(out + BLOCK + at, place)


def test_a_search():
    x, out = normal(8, 10, 64).astype(np.float32), np.zeros((2, 64), np.float32)
    in_a_loop_with_branches[(1,)](x, out, 10, BLOCK=64)
    v = np.where(np.arange(10)[:, None] % 3 == 1, -x, x)
    assert np.array_equal(out[0], v.max(0)) and np.array_equal(out[1], v.argmax(0))


@triton.jit
def of_tuples(pair, sizes, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, out = pair
    tl.store(out + at, tl.load(x + at, at < sizes[0], other=0) * sizes[1], at < sizes[0])


def test_a_parameter_may_be_a_tuple():
    x, out = normal(9, 20).astype(np.float32), np.zeros(20, np.float32)
    of_tuples[(1,)]((x, out), (20, 3), BLOCK=32)
    assert error(out, x * 3) < 1e-6


class Point(NamedTuple):
    x: tl.constexpr
    at: tuple


@triton.jit
def of_a_shape(out, shape: tl.constexpr):
    rows: tl.constexpr
    columns: tl.constexpr
    (rows, columns), count = shape, 1
    count += rows
    point = Point(x=columns, at=(count, 5))
    at = tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :]
    tl.store(out + at, tl.full((rows, columns), point.at[0] * point.x, tl.int32))


def test_a_bare_annotation_makes_constants_of_what_is_assigned_next():
    out = np.zeros((2, 4), np.int32)
    of_a_shape[(1,)](out, (2, 4))
    assert (out == 12).all()



@triton.jit
def of_a_number(out, n, AS_BLOCK: tl.constexpr):
    rows: tl.constexpr
    rows = n
    twice: tl.constexpr = 2 * rows
    tl.store(out, twice)
    if AS_BLOCK:
        tl.store(out + tl.arange(0, rows), 1)


def test_a_name_annotated_as_a_constant_may_be_known_only_when_the_kernel_runs():
    out = np.zeros(1, np.int32)
    of_a_number[(1,)](out, 7, False)
    assert out[0] == 14
    with pytest.raises(triton.CompilationError, match=r"the end of tl.arange must be an integer that is known"):
        of_a_number.program(out, 7, True)


@triton.jit
def counted(n_ptr, out, first, KIND: tl.constexpr):
    for i in range(first, tl.load(n_ptr)):
        tl.static_assert(i.dtype == KIND)
        tl.store(out, ((i - 5) // 2).to(tl.int64))


@pytest.mark.parametrize("dtype, element", [(np.uint32, tl.uint32), (np.int16, tl.int32), (np.int64, tl.int64), (np.uint64, tl.uint64)])
def test_the_variable_of_a_loop_has_the_type_in_which_its_bounds_meet(dtype, element):
    out = np.zeros(1, np.int64)
    counted[(1,)](np.array([4], dtype), out, 2, element)
    width = {np.uint32: 1 << 32, np.uint64: 1 << 64}.get(dtype)
    wanted = -1 if width is None else (width - 2) // 2  # of 3 - 5
    assert out[0] == wanted


@triton.jit
def asked(x, out, BLOCK: tl.constexpr):
    v = tl.load(x)
    if hasattr(v, "shape") and not hasattr(v, "no_such") and getattr(v, "no_such", 5) == 5:
        tl.store(out, BLOCK / 2)


def test_attributes_of_values_are_asked_for_and_constants_of_numpy_are_numbers():
    out = np.zeros(1, np.float32)
    made = [asked[(1,)](np.ones(1, np.float32), out, block) for block in (np.int64(3), 3, np.float32(3), np.bool_(True))]
    assert made[0] is made[1] and len({id(kernel) for kernel in made}) == 3 and out[0] == 0.5


@triton.jit
def bounded(x, LIMIT: tl.constexpr, NAMES: tl.constexpr = None):
    return tl.minimum(x, LIMIT)


@triton.jit
def within(OUT, n):
    tl.store(OUT + tl.arange(0, 16), bounded(tl.arange(0, 16), n))


def test_what_only_the_run_knows_may_be_given_for_a_constant_of_a_called_function():
    out = np.zeros(16, np.int32)
    within[(1,)](out, 5)
    assert np.array_equal(out, np.minimum(np.arange(16), 5))


@triton.jit
def of_unknown_length(OUT, n):
    filled(OUT, n)


@triton.jit
def filled(OUT, N: tl.constexpr):
    tl.store(OUT + tl.arange(0, N), 1)


def test_what_needs_a_constant_refuses_it():
    with pytest.raises(triton.CompilationError, match="the end of tl.arange"):
        of_unknown_length.program(np.zeros(16, np.int32), 5)


@triton.jit
def of_sequences(X, OUT, CU, D: tl.constexpr, B: tl.constexpr):
    """Twice each row of a sequence. The body gives ``d`` what it had, and ``t`` is made of numbers that are loaded."""
    first, last = tl.load(CU + tl.program_id(0)), tl.load(CU + tl.program_id(0) + 1)
    d, far = tl.arange(0, D), D + tl.arange(0, D)
    for i in range(0, last - first, B):
        t = first + i + tl.arange(0, B)
        mask = (t < last)[:, None]
        near = tl.load(X + t[:, None] * (2 * D) + d[None, :], mask=mask, other=0)
        d = tl.arange(0, D)
        beyond = tl.load(X + t[:, None] * (2 * D) + far[None, :], mask=mask, other=0)
        far = D + d
        tl.store(OUT + t[:, None] * (2 * D) + d[None, :], near + near, mask=mask)
        tl.store(OUT + t[:, None] * (2 * D) + far[None, :], beyond + beyond, mask=mask)


def test_indices_of_loaded_numbers_and_of_the_same_numbers_again_are_in_no_fragment():
    x, out, cu = normal(1, 20, 32).astype(np.float32), np.full((21, 32), 77, np.float32), np.array([0, 7, 7, 20], np.int32)
    of_sequences[(3,)](x, out, cu, D=16, B=4)
    assert np.array_equal(out[:20], x + x) and (out[20] == 77).all()
    text = of_sequences.program(x, out, cu, D=16, B=4).script()
    assert "fragment float32" in text and "fragment int" not in text


@triton.jit
def like_and_unlike(OUT, n):
    """Blocks that the body gives other numbers than they had, of the same operations."""
    a, b = tl.arange(0, 8), 8 + tl.arange(0, 8)
    for i in range(n):
        tl.store(OUT + i * 16 + a, a)
        tl.store(OUT + i * 16 + 8 + tl.arange(0, 8), b)
        a, b = (tl.arange(0, 8) + 1) % 8, a + tl.arange(0, 8)


def test_what_only_looks_like_what_it_had_is_carried():
    out = np.full((3, 16), 77, np.int32)
    like_and_unlike[(1,)](out, 3)
    i = np.arange(8)
    turned = (i + 1) % 8
    wanted = np.zeros((3, 16), np.int32)
    for row, a, b in ((0, i, 8 + i), (1, turned, i + i), (2, turned, turned + i)):
        wanted[row, a], wanted[row, 8:] = a, b
    assert np.array_equal(out, wanted)


@triton.jit
def changed_under_a_condition(x, flags, out, n, BLOCK: tl.constexpr, HOW: tl.constexpr):
    """Each name is changed on one side and kept on the other; both sides, and what stands behind, read what was there before."""
    at = tl.arange(0, BLOCK)
    a, b, s = tl.load(x + at), tl.load(x + BLOCK + at), 1.0
    kept, always = a * 3, tl.zeros([BLOCK], tl.float32)
    for i in range(n):
        if HOW == "kept":
            old = a + i
        if tl.load(flags + i) > 0:
            if HOW == "exchanged":
                a, b = b, a
            elif HOW == "twice":
                a = a * tl.sum(a) + a
                b = tl.flip(b) - a
            else:
                a = a * 2
                a = a + b
            s = s * 2 + tl.max(a)
        else:
            if HOW == "both":
                b = b + a * s
        if HOW == "kept":
            always += old
    tl.store(out + at, a)
    tl.store(out + BLOCK + at, b)
    tl.store(out + 2 * BLOCK + at, kept + s)
    tl.store(out + 3 * BLOCK + at, always)


@pytest.mark.parametrize("how", ["one", "both", "exchanged", "twice", "kept"])
def test_branches_change_what_a_loop_carries_in_its_place(how):
    x, flags = normal(3, 2, 32).astype(np.float32), np.array([1, 0, 1, 1, 0], np.int32)
    out = np.zeros((4, 32), np.float32)
    changed_under_a_condition[(1,)](x, flags, out, 5, BLOCK=32, HOW=how)
    (a, b), s, always = x.astype(np.float64), 1.0, np.zeros(32)
    kept = a * 3
    for i, flag in enumerate(flags):
        always += a + i if how == "kept" else 0
        if flag:
            if how == "exchanged":
                a, b = b, a
            elif how == "twice":
                a = a * a.sum() + a
                b = b[::-1] - a
            else:
                a = a * 2 + b
            s = s * 2 + a.max()
        elif how == "both":
            b = b + a * s
    for row, wanted in zip(out, (a, b, kept + s, always)):
        assert error(row, wanted) < 1e-5


def test_a_sum_under_a_condition_has_one_place():
    text = changed_under_a_condition.program(*(np.zeros(128, np.float32),) * 3, 5, BLOCK=32, HOW="one").script()
    assert text.count("fragment float32[32]") == 4 and "else:" not in text, text
