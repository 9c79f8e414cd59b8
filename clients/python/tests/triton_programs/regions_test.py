# SPDX-License-Identifier: Apache-2.0
"""Blocks of pointers that are tiles of a tensor: what is copied as such (``regions`` in compiler/PASSES.md), and that nothing changes by it."""

import os

import numpy as np
import pytest
import random_trials
import triton
import triton.language as tl
from numbers_of import BOUND, error, normal, rounded, strides
from products_test import attention, product
from triton.tools.tensor_descriptor import TensorDescriptor

_FIRST, _COUNT = map(int, os.environ.get("KILN_TRITON_SEEDS", "1:40").split(":"))


def matrix(seed, rows, columns, apart=None, before=0):
    """float16 with rows ``apart`` elements from each other, from element ``before`` of its memory on."""
    apart = apart or columns
    memory = rounded(normal(seed, before + rows * apart), "float16").astype(np.float16)
    return memory[before:].reshape(rows, apart)[:, :columns]


def seen(kernel) -> tuple:
    """(views, tensor maps) of a kernel."""
    return len(kernel.artifact.launch.views), len(kernel.artifact.launch.tensor_maps)


def multiplied(a, b, m, n, k, kernel=product, **more):
    c = np.full((m, (n + 15) // 16 * 16), 77, np.float16)
    found = kernel[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](
        a, b, c, m, n, k, *strides(a), *strides(b), *strides(c), BM=64, BN=64, BK=32, GROUP=2, **{"LEAKY": False, "num_warps": 4, **more})
    assert (c[:, n:] == 77).all()
    return c[:, :n], found


def stored_tiles(n):
    """How many of a product's three tensors are copied by tiles. The tensor unit stores whole pieces of 16 bytes, so rows must end with one."""
    return (3, 3) if n % 16 == 0 else (2, 2)


def check(a, b, c):
    assert error(c, a.astype(np.float64) @ b.astype(np.float64)) < BOUND["float16"]


@pytest.mark.parametrize("m, n, k, apart", [(64, 64, 64, 64), (100, 72, 80, 80), (77, 45, 93, 96), (2, 3, 5, 16), (130, 20, 50, 64)])
def test_a_product_copies_tiles_of_three_tensors(m, n, k, apart):
    a, b = matrix(1, m, k, apart), matrix(2, k, n, 80)
    c, kernel = multiplied(a, b, m, n, k)
    check(a, b, c)
    assert seen(kernel) == stored_tiles(n)


@pytest.mark.parametrize("m, n, k", [(64, 64, 64), (77, 45, 93)])
def test_operands_may_be_transposed(m, n, k):
    a, b = matrix(3, k, m, 80).T, matrix(4, n, k, 96).T
    c, kernel = multiplied(a, b, m, n, k)
    check(a, b, c)
    assert seen(kernel) == stored_tiles(n)


@pytest.mark.parametrize("before, tiles", [(8, 3), (3, 3)])
def test_pointers_into_the_middle_of_memory(before, tiles):
    a, b = matrix(5, 70, 64, before=before), matrix(6, 64, 80, 80, before=before)
    c, kernel = multiplied(a, b, 70, 80, 64)
    check(a, b, c)
    assert seen(kernel)[0] == tiles  # what starts between 16-byte addresses is launched by a kernel that copies no tiles


def test_no_columns_of_a_give_zeros():
    a, b = np.ones((70, 16), np.float16), np.ones((16, 70), np.float16)
    c = np.full((70, 80), 77, np.float16)
    product[(4,)](a, b, c, 70, 70, 0, 16, 1, 80, 1, 80, 1, BM=64, BN=64, BK=32, GROUP=2, LEAKY=False)
    assert (c[:, :70] == 0).all() and (c[:, 70:] == 77).all()


def test_rows_beyond_the_storage_are_zero():
    a, b = matrix(7, 40, 64), matrix(8, 64, 64)
    whole = np.zeros((100, 64), np.float16)
    whole[:40] = a
    c, kernel = multiplied(a, b, 100, 64, 64)
    check(whole, b, c)
    assert seen(kernel) == (3, 3)


def test_rows_that_are_not_16_bytes_apart_are_loaded_by_elements():
    a, b = matrix(9, 64, 33, 33), matrix(10, 33, 64)
    c, kernel = multiplied(a, b, 64, 64, 33)
    check(a, b, c)
    assert seen(kernel) == (2, 2)


def test_the_result_may_lie_in_an_operand():
    a = matrix(11, 64, 64)
    b, before = matrix(12, 64, 64), a.copy()
    kernel = product[(1,)](a, b, a, 64, 64, 64, 64, 1, 64, 1, 64, 1, BM=64, BN=64, BK=64, GROUP=2, LEAKY=False)
    check(before, b, a)
    assert seen(kernel) == (0, 0)


@triton.jit
def odd_product(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, BM: tl.constexpr,
                BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, LEAKY: tl.constexpr, HOW: tl.constexpr):
    columns = tl.cdiv(N, BN)
    m, n = tl.program_id(0) // columns, tl.program_id(0) % columns
    c_m, c_n, at_k = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + at_k
        rows = c_m % M
        if HOW == "chosen":
            rows = tl.where(c_m < M, c_m, 0)
        if HOW == "least":
            rows = tl.minimum(c_m, M - 1)
        a_mask = k[None, :] < K
        if HOW == "even":
            a_mask = a_mask & (k[None, :] % 2 == 0)
        if HOW == "diagonal":
            a_mask = a_mask & (k[None, :] <= c_m[:, None])
        if HOW == "quotient":
            a = tl.load(a_ptr + (c_m // 2)[:, None] * stride_am + k[None, :] * stride_ak, mask=a_mask & (c_m[:, None] < M), other=0.0)
        else:
            a = tl.load(a_ptr + rows[:, None] * stride_am + k[None, :] * stride_ak, mask=a_mask, other=1.0 if HOW == "other" else 0.0)
        b = tl.load(b_ptr + k[:, None] * stride_bk + c_n[None, :] * stride_bn, mask=(k[:, None] < K) & (c_n[None, :] < N), other=0.0)
        total = tl.dot(a, b, total)
    c = c_ptr + stride_cm * c_m[:, None] + stride_cn * c_n[None, :]
    if HOW == "wrap":
        tl.store(c, total.to(tl.float16), mask=(c_m[:, None] < M + 5) & (c_n[None, :] < N))
    else:
        tl.store(c, total.to(tl.float16), mask=(c_m[:, None] < M) & (c_n[None, :] < N))


_ODD = {"even": lambda a: a * (np.arange(48) % 2 == 0), "diagonal": lambda a: a * (np.arange(48) <= np.arange(64)[:, None]),
        "quotient": lambda a: a[np.arange(64) // 2], "other": lambda a: a, "wrap": lambda a: a[np.arange(55) % 50]}


@pytest.mark.parametrize("how", ["", "chosen", "least"])
def test_rows_that_nothing_needs_may_be_any(how):
    a, b = matrix(18, 50, 48), matrix(19, 48, 64)
    c = np.full((64, 64), 77, np.float16)
    kernel = odd_product[(1,)](a, b, c, 50, 64, 48, *strides(a), *strides(b), *strides(c), BM=64, BN=64, BK=32, GROUP=1, LEAKY=False, HOW=how)
    check(a, b, c[:50])
    assert (c[50:] == 77).all() and seen(kernel) == (3, 3)


@pytest.mark.parametrize("how", list(_ODD))
def test_what_is_no_tile_is_loaded_by_elements(how):
    m = 50 if how == "wrap" else 64
    a, b = matrix(13, m, 48), matrix(14, 48, 64)
    c = np.full((64, 64), 77, np.float16)
    kernel = odd_product[(1,)](a, b, c, m, 64, 48, *strides(a), *strides(b), *strides(c), BM=64, BN=64, BK=32, GROUP=1, LEAKY=False, HOW=how)
    wanted = _ODD[how](a.astype(np.float64)) @ b.astype(np.float64)
    assert error(c[: len(wanted)], wanted) < BOUND["float16"] and (c[len(wanted) :] == 77).all()
    assert seen(kernel) == (2, 2)  # the right operand and the result


@triton.jit
def until(a_ptr, b_ptr, c_ptr, K, E, N: tl.constexpr, BK: tl.constexpr, HOW: tl.constexpr):
    """The sum over the columns of a up to a bound that a division says; both divisions go towards zero."""
    m, n = tl.arange(0, N), tl.arange(0, N)
    end = K - E // 2 if HOW == "//" else K - E % 4
    total = tl.zeros((N, N), dtype=tl.float32)
    for start in range(0, N, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(a_ptr + m[:, None] * N + k[None, :], mask=k[None, :] < end, other=0.0)
        total = tl.dot(a, tl.load(b_ptr + k[:, None] * N + n[None, :]), total)
    tl.store(c_ptr + m[:, None] * N + n[None, :], total.to(tl.float16))


@pytest.mark.parametrize("how", ["//", "%"])
@pytest.mark.parametrize("number", [-3, 3])
def test_bounds_are_divided_as_the_kernel_divides(how, number):
    a = b = np.ones((64, 64), np.float16)
    c = np.zeros((64, 64), np.float16)
    until[(1,)](a, b, c, 40, number, N=64, BK=32, HOW=how)
    assert (c == 40 - (int(number / 2) if how == "//" else int(np.fmod(number, 4)))).all()


@triton.jit
def place(tile, per_group, rows, GROUP: tl.constexpr):
    group = tile // per_group
    first = group * GROUP
    size = min(rows - first, GROUP)
    return first + tile % size, (tile % per_group) // size


@triton.jit
def persistent(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, BM: tl.constexpr, BN: tl.constexpr,
               BK: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr, HOW: tl.constexpr):
    """Each program has a tile in PROGRAMS. What is stored counts its tiles by itself."""
    first, step = tl.program_id(0), tl.num_programs(0) if PROGRAMS is None else PROGRAMS
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    stored, at_k, per_group = first - step, tl.arange(0, BK), GROUP * columns
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for tile in tl.range(first, rows * columns, step):
        m, n = place(tile, per_group, rows, GROUP)
        a_m, b_n = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)
        if HOW == "chosen":
            a_m, b_n = tl.where(a_m < M, a_m, 0), tl.where(b_n < N, b_n, 0)
        if HOW == "%" or HOW == "added":
            a_m, b_n = a_m % M, b_n % N
        if HOW != "added":
            total = tl.zeros((BM, BN), dtype=tl.float32)
        for turn in range(tl.cdiv(K, BK)):
            k = turn * BK + at_k
            a_mask, b_mask = at_k[None, :] < K - turn * BK, at_k[:, None] < K - turn * BK
            if HOW == "masks":
                a_mask, b_mask = a_mask & (a_m[:, None] < M), b_mask & (b_n[None, :] < N)
            a = tl.load(a_ptr + (a_m[:, None] * stride_am + k[None, :] * stride_ak), mask=a_mask, other=0.0)
            b = tl.load(b_ptr + (k[:, None] * stride_bk + b_n[None, :] * stride_bn), mask=b_mask, other=0.0)
            total = tl.dot(a, b, total)
        stored += step
        m, n = place(stored, per_group, rows, GROUP)
        c_m, c_n = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)
        mask = (c_m[:, None] < M) & (c_n[None, :] < N)
        tl.store(c_ptr + stride_cm * c_m[:, None] + stride_cn * c_n[None, :], total.to(tl.float16), mask=mask)


def persistently(how, programs, m=200, n=144, k=96):
    a, b, c = matrix(20, m, k), matrix(21, k, n), np.full((m, n), 77, np.float16)
    kernel = persistent[(3,)](a, b, c, m, n, k, *strides(a), *strides(b), *strides(c), BM=64, BN=64, BK=32, GROUP=2, PROGRAMS=programs, HOW=how)
    return a, b, c, seen(kernel)[0]


@pytest.mark.parametrize("programs", [3, None])
@pytest.mark.parametrize("how", ["masks", "chosen", "%"])
def test_a_persistent_loop_copies_tiles(how, programs):
    a, b, c, views = persistently(how, programs)
    check(a, b, c)
    assert views == 3


def test_a_wrap_stays_where_a_sum_goes_on_from_tile_to_tile():
    """What one tile has in rows that it does not store is stored with the next one."""
    a, b, c, views = persistently("added", 3)
    assert views == 1
    rows, columns = np.arange(4 * 64) % 200, np.arange(3 * 64) % 144
    whole, wanted = a.astype(np.float64)[rows] @ b.astype(np.float64)[:, columns], np.zeros((256, 192))
    for first in range(3):
        total = np.zeros((64, 64))
        for tile in range(first, 12, 3):
            group = tile // 6
            y, x = (group * 2 + tile % 2) * 64, tile % 6 // 2 * 64
            total = total + whole[y : y + 64, x : x + 64]
            wanted[y : y + 64, x : x + 64] = total
    assert error(c, wanted[:200, :144]) < BOUND["float16"]


@triton.jit
def counted_rows(a_desc, b_desc, c_desc, HEADS, ROWS, BM: tl.constexpr, D: tl.constexpr):
    """Heads of batches, whose rows are counted through all of them."""
    batch, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    first = batch * (ROWS * HEADS) + head * ROWS
    row = first + tl.program_id(0) * BM
    a, b = a_desc.load([row, 0]), b_desc.load([first, 0])
    c_desc.store([row, 0], tl.dot(a, b.T).to(tl.float16))


def test_rows_that_are_counted_through_batches():
    batches, heads, rows, d = 2, 3, 128, 64
    a, b = (rounded(normal(s, batches, heads, rows, d), "float16").astype(np.float16) for s in (22, 23))
    c = np.zeros((batches, heads, rows, 64), np.float16)
    flat = [TensorDescriptor(x.reshape(-1, 64), [batches * heads * rows, 64], [64, 1], [64, 64]) for x in (a, b, c)]
    kernel = counted_rows[(rows // 64, batches * heads)](*flat, heads, rows, BM=64, D=d)
    wanted = a.astype(np.float64) @ b.astype(np.float64)[..., :64, :].transpose(0, 1, 3, 2)
    assert error(c, wanted) < BOUND["float16"] and seen(kernel)[0] == 3


@pytest.mark.parametrize("transposed, maps", [(True, 3), (False, 0)])
def test_products_in_tf32_copy_tiles(transposed, maps):
    a, b = normal(24, 100, 80).astype(np.float32), normal(25, 80, 80).astype(np.float32)
    b = b.T if transposed else b
    c, kernel = multiplied(a, b, 100, 80, 80)
    assert error(c, a.astype(np.float64) @ b.astype(np.float64)) < 2.0**-9 and seen(kernel) == (3, maps)


def test_attention_copies_tiles_of_each_head():
    q, k, v = (rounded(normal(s, 2, 100, 64), "float16").astype(np.float16) for s in (15, 16, 17))
    out = np.zeros_like(q)
    kernel = attention[(2, 2)](q, k, v, out, 100, 0.125, CAUSAL=False, D=64, BM=64, BN=32)
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) * 0.125
    p = np.exp(scores - scores.max(-1, keepdims=True))
    assert error(out, p / p.sum(-1, keepdims=True) @ v.astype(np.float64)) < 4e-3
    assert seen(kernel)[0] == 4


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))
def test_random_products_agree_with_numpy(seed, tmp_path):
    found.append(seen(random_trials.products(seed, tmp_path))[0])


found: list = []


def test_random_products_copy_tiles():
    if len(found) < 40:
        pytest.skip("only some of the programs ran")
    assert sum(found) > len(found), f"{sum(found)} views in {len(found)} programs"


@triton.jit
def scores(Q, K, S, CU, stride, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Q Kᵀ of each sequence, whose place and length the device loads."""
    first, last = tl.load(CU + tl.program_id(0)), tl.load(CU + tl.program_id(0) + 1)
    m, d = tl.arange(0, M), tl.arange(0, D)
    q = tl.load(Q + (first + m)[:, None] * stride + d[None, :], mask=m[:, None] < last - first, other=0.0)
    for j in range(0, last - first, N):
        n = j + tl.arange(0, N)
        k = tl.load(K + (first + n)[None, :] * stride + d[:, None], mask=n[None, :] < last - first, other=0.0)
        tl.store(S + (tl.program_id(0) * M + m)[:, None] * 64 + n[None, :], tl.dot(q, k))


def test_rows_of_sequences_are_held_turned():
    q, k, cu = matrix(1, 80, 64, 80), matrix(2, 80, 64, 80), np.array([0, 20, 25, 80], np.int32)
    s = np.full((3, 64, 64), 77, np.float32)
    kernel = scores[(3,)](q, k, s, cu, 80, D=64, M=64, N=32, num_warps=4)
    assert any(d.decision == "held turned" for d in kernel.report.decisions)
    for b, (first, last) in enumerate(zip(cu, cu[1:])):
        wanted = q[first:last].astype(np.float64) @ k[first:last].astype(np.float64).T
        n = last - first
        assert error(s[b, :n, :n], wanted) < 1e-5 and not s[b, n:, :n].any()


@triton.jit
def listed_rows(a_ptr, b_ptr, rows_ptr, c_ptr, M, N, K, sam, sbn, scm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    at_m, at_n, at_k = tl.arange(0, BM), (tl.program_id(0) * BN + tl.arange(0, BN)) % N, tl.arange(0, BK)
    rows = tl.load(rows_ptr + at_m % M)
    a, b = a_ptr + rows[:, None] * sam + at_k[None, :], b_ptr + at_n[None, :] * sbn + at_k[:, None]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        mask = at_k < K - k * BK
        total += tl.dot(tl.load(a, mask=mask[None, :], other=0), tl.load(b, mask=mask[:, None], other=0))
        a += BK
        b += BK
    c_n = tl.program_id(0) * BN + tl.arange(0, BN)
    tl.store(c_ptr + rows[:, None] * scm + c_n[None, :], total, mask=at_m[:, None] < M)


@pytest.mark.parametrize("m, n, k, warps, stages", [(32, 64, 96, 4, 2), (19, 37, 80, 4, 3), (7, 50, 33, 8, 2)])
def test_rows_of_a_list_and_columns_that_wrap_are_copied_asynchronously(m, n, k, warps, stages):
    a, b = matrix(40, 48, k, 96), matrix(41, n, k, 112)
    rows, c = np.random.default_rng(42).permutation(48)[:m].astype(np.int32), np.full((48, 80), 77, np.float32)
    kernel = listed_rows[(4,)](a, b, rows, c, m, n, k, 96, 112, 80, BM=32, BN=16, BK=32, num_warps=warps, num_stages=stages)
    wanted = a[rows].astype(np.float64) @ b[np.arange(64) % n].astype(np.float64).T
    assert error(c[rows, :64], wanted) < BOUND["float16"]
    c[rows, :64] = 77
    assert (c == 77).all()
    gathered = [d.decision for d in kernel.report.decisions if getattr(d, "pass") == "gathers"]
    assert gathered == (["asynchronous copies of 16 bytes"] * 2 if k % 16 == 0 else [])
