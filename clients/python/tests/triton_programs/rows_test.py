# SPDX-License-Identifier: Apache-2.0
"""Kernels that reduce rows, and reductions one by one."""

import numpy as np
import pytest
import triton
import triton.language as tl
from numbers_of import BOUND, argument, error, normal, rounded, stored, values


@triton.jit
def softmax_of_rows(out_ptr, x_ptr, stride_x, stride_out, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        at = tl.arange(0, BLOCK)
        inside = at < columns
        x = tl.load(x_ptr + row * stride_x + at, mask=inside, other=-float("inf")).to(tl.float32)
        weights = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * stride_out + at, weights / tl.sum(weights, axis=0), mask=inside)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rows, columns, programs, stages", [(7, 100, 3, 2), (1, 1, 1, 4), (33, 257, 8, 1)])
def test_softmax(dtype, rows, columns, programs, stages):
    x = rounded(normal(1, rows, columns) * 3, dtype)
    out = stored(np.zeros((rows, columns)), dtype)
    softmax_of_rows[(programs,)](argument(out, dtype), argument(stored(x, dtype), dtype), columns, columns, rows, columns,
                                 BLOCK=triton.next_power_of_2(columns), STAGES=stages, num_warps=2)
    expected = np.exp(x - x.max(1, keepdims=True))
    assert error(values(out, dtype), expected / expected.sum(1, keepdims=True)) < BOUND[dtype]


@triton.jit
def normalised(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    y_ptr += row * stride
    x_ptr += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
        x = tl.where(at < n, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < n
        w, b = tl.load(w_ptr + at, mask=inside), tl.load(b_ptr + at, mask=inside)
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + at, (x - mean) * rstd * w + b, mask=inside)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [5, 128, 300])
def test_layer_norm(dtype, n):
    rows = 3
    x, w, b = rounded(normal(2, rows, n) + 1, dtype), rounded(normal(3, n), dtype), rounded(normal(4, n), dtype)
    y = stored(np.zeros((rows, n)), dtype)
    mean, rstd = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    tensors = [argument(a, dtype) for a in (stored(x, dtype), y, stored(w, dtype), stored(b, dtype))]
    normalised[(rows,)](*tensors, mean, rstd, n, n, 1e-5, BLOCK=64)
    deviation = np.sqrt(x.var(1) + 1e-5)
    assert error(mean, x.mean(1)) < 1e-5 and error(rstd, 1 / deviation) < 1e-5
    assert error(values(y, dtype), (x - x.mean(1)[:, None]) / deviation[:, None] * w + b) < 2 * BOUND[dtype]


@triton.jit
def least(a, b):
    return tl.minimum(a, b)


@triton.jit
def reduced(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, HOW: tl.constexpr, AXIS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    if HOW == "sum":
        y = tl.sum(x, AXIS)
    elif HOW == "max":
        y = tl.max(x, axis=AXIS)
    elif HOW == "min":
        y = tl.reduce(x, AXIS, least)
    elif HOW == "argmax":
        y = tl.argmax(x, axis=AXIS)
    elif HOW == "argmin":
        _, y = tl.min(x, axis=AXIS, return_indices=True)
    elif HOW == "xor":
        y = tl.xor_sum(x, AXIS)
    elif HOW == "keep":
        y = tl.sum(x - tl.max(x, axis=AXIS, keep_dims=True), axis=AXIS)
    if AXIS is None:
        tl.store(out_ptr, y)
    elif AXIS == 0:
        tl.store(out_ptr + tl.arange(0, N), y)
    else:
        tl.store(out_ptr + tl.arange(0, M), y)


NUMPY = {"sum": np.sum, "max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin, "xor": np.bitwise_xor.reduce,
         "keep": lambda x, axis: (x - x.max(axis, keepdims=True)).sum(axis)}
HOWS = [(how, axis, dtype) for how, dtype in [("sum", "float32"), ("max", "float32"), ("min", "float16"), ("argmax", "float32"), ("argmin", "int32"),
                                              ("xor", "int32"), ("keep", "float32"), ("sum", "int8")] for axis in (None, 0, 1)]


@pytest.mark.parametrize("how, axis, dtype", [h for h in HOWS if not (h[0] in ("xor",) and h[1] is None)])
def test_reductions(how, axis, dtype):
    x = (normal(5, 16, 32) * 30).astype(dtype)
    expected = NUMPY[how](x.astype(np.int64 if dtype.startswith("int") else np.float64), axis=axis)
    out = np.zeros(np.shape(expected) or 1, np.float64)
    reduced[(1,)](x, out, M=16, N=32, HOW=how, AXIS=axis)
    assert error(out, np.reshape(expected, out.shape)) < 1e-5


@triton.jit
def reshaped(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    pairs = tl.reshape(x, [N // 2, 2])
    turned = tl.trans(pairs) + tl.sum(pairs, 1)[None, :]
    flat = tl.ravel(tl.permute(turned, (1, 0)))
    wide = tl.broadcast_to(tl.expand_dims(flat, 0), (2, N)) + tl.full([2, 1], 1.0, tl.float32)
    tl.store(out_ptr + tl.arange(0, 2)[:, None] * N + tl.arange(0, N)[None, :], wide)


def test_shapes():
    x, out = normal(6, 64).astype(np.float32), np.zeros((2, 64), np.float32)
    reshaped[(1,)](x, out, N=64)
    pairs = x.reshape(32, 2)
    assert error(out, np.broadcast_to((pairs + pairs.sum(1, keepdims=True)).reshape(-1) + 1, (2, 64))) < 1e-6


@triton.jit
def softmax_in_one(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.softmax(tl.load(x_ptr + at)))


def test_softmax_of_the_language():
    x, out = normal(7, 64).astype(np.float32), np.zeros(64, np.float32)
    softmax_in_one[(1,)](x, out, N=64)
    assert error(out, np.exp(x) / np.exp(x).sum()) < 3e-6


@triton.jit
def counted(x_ptr, bins_ptr, high_ptr, total_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, at < n, other=0)
    tl.atomic_add(bins_ptr + x, 1, mask=at < n)
    tl.atomic_max(high_ptr, tl.max(x, 0), sem="relaxed")
    tl.atomic_min(high_ptr + 1, tl.min(x, 0))
    tl.atomic_add(total_ptr, tl.sum(x.to(tl.float32), 0))


def test_atomics_whose_result_nothing_uses():
    x = np.random.default_rng(8).integers(1, 20, 300, np.int32)
    bins, high, total = np.zeros(20, np.int32), np.array([0, 99], np.int32), np.zeros(1, np.float32)
    counted[(triton.cdiv(300, 64),)](x, bins, high, total, 300, BLOCK=64)
    assert np.array_equal(bins, np.bincount(x, minlength=20)) and high[0] == x.max() and high[1] == 0 and total[0] == x.sum()


@triton.jit
def numbered(x_ptr, count_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, at < n, other=0)
    place = tl.atomic_add(count_ptr + x % 2, 1, mask=at < n)
    tl.store(out_ptr + (x % 2) * n + place, x, mask=at < n)


def test_the_result_of_an_atomic_is_a_place_of_ones_own():
    x = np.random.default_rng().permutation(np.arange(1, 301, dtype=np.int32))
    count, out = np.zeros(2, np.int32), np.zeros(600, np.int32)
    numbered[(triton.cdiv(300, 64),)](x, count, out, 300, BLOCK=64)
    assert count.tolist() == [150, 150]
    assert sorted(out[:150]) == list(range(2, 301, 2)) and sorted(out[300:450]) == list(range(1, 300, 2))


@triton.jit
def last_adds_up(x_ptr, parts_ptr, ticket_ptr, out_ptr, BLOCK: tl.constexpr):
    pid, programs = tl.program_id(0), tl.num_programs(0)
    tl.store(parts_ptr + pid, tl.sum(tl.load(x_ptr + pid * BLOCK + tl.arange(0, BLOCK)), 0))
    if tl.atomic_add(ticket_ptr, 1) == programs - 1:
        at = tl.arange(0, 32)
        tl.store(out_ptr, tl.sum(tl.load(parts_ptr + at, at < programs, other=0.0), 0))


def test_the_last_program_sees_what_the_others_have_stored():
    x, parts, ticket, out = normal(5 * 64), np.zeros(5, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)
    x = x.astype(np.float32)
    last_adds_up[(5,)](x, parts, ticket, out, BLOCK=64)
    assert abs(out[0] - x.sum(dtype=np.float64)) < 1e-4


@triton.jit
def of_bits(bits_ptr, swap_ptr, old_ptr):
    pid = tl.program_id(0)
    tl.atomic_or(bits_ptr, 1 << pid)
    tl.atomic_and(bits_ptr + 1, ~(1 << pid))
    tl.atomic_xor(bits_ptr + 2, 3 << pid)
    tl.store(old_ptr + pid, tl.atomic_xchg(swap_ptr, pid + 1))
    tl.store(old_ptr + 8 + pid, tl.atomic_cas(swap_ptr + 1, pid, pid + 1, sem="relaxed"))


def test_the_other_atomics():
    bits, swap, old = np.array([0, -1, 0], np.int32), np.zeros(2, np.int32), np.zeros(16, np.int32)
    of_bits[(6,)](bits, swap, old)
    assert bits.tolist() == [63, ~63, 0b1000001]
    assert sorted([*old[:6], swap[0]]) == list(range(7)) and swap[1] >= 1


@triton.jit
def one_after_the_other(lock_ptr, sum_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(sum_ptr, tl.load(sum_ptr) + tl.program_id(0) + 1)
    tl.atomic_xchg(lock_ptr, 0)


def test_programs_wait_for_a_lock():
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    one_after_the_other[(5,)](lock, total)
    assert total[0] == 15 and lock[0] == 0

