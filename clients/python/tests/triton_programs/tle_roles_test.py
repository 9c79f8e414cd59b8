# SPDX-License-Identifier: Apache-2.0
"""Groups of warps: tle.gpu.warp_specialize, barriers between groups, and tle.pipe."""

import warnings

import numpy as np
import pytest
import triton
import triton.experimental.tle.language as tle
import triton.language as tl
from numbers_of import argument, error, normal, refused, rounded, stored
from triton.tools.tensor_descriptor import TensorDescriptor

import kiln
import kiln.language as T


@triton.jit
def fill(a_desc, b_desc, a, b, full, free, m, n, count, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    for k in range(count):
        slot = k % STAGES
        tle.gpu.barrier_wait(free[slot], k // STAGES)
        tle.gpu.copy(a_desc, a.slot(slot), [BM, BK], [m, k * BK], barrier=full[slot])
        tle.gpu.copy(b_desc, b.slot(slot), [BK, BN], [k * BK, n], barrier=full[slot])


@triton.jit
def multiply(a, b, full, free, count, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr):
    total = tl.zeros([BM, BN], tl.float32)
    for k in range(count):
        slot = k % STAGES
        tle.gpu.barrier_wait(full[slot], k // STAGES)
        total = tle.gpu.wgmma(a.slot(slot), b.slot(slot), total)
        tle.gpu.barrier_arrive(free[slot])
    return total


@triton.jit
def product_by_groups(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, WARPS: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    a, b = tle.gpu.alloc([STAGES, BM, BK], tl.float16), tle.gpu.alloc([STAGES, BK, BN], tl.float16)
    full = tle.gpu.alloc_barriers(STAGES, expect_bytes=2 * BK * (BM + BN))
    free = tle.gpu.alloc_barriers(STAGES, init=tle.gpu.READY)
    count = tl.cdiv(K, BK)
    total = tle.gpu.warp_specialize([(multiply, (a, b, full, free, count, BM, BN, STAGES)),
                                     (fill, (a_desc, b_desc, a, b, full, free, m, n, count, BM, BN, BK, STAGES))], [WARPS], [40])
    c_desc.store([m, n], total.to(tl.float16))


@pytest.mark.parametrize("m, n, k, bm, bn, bk, stages, warps", [(128, 128, 320, 128, 64, 64, 2, 4), (80, 72, 104, 64, 32, 32, 2, 1)])
def test_a_product_by_groups_of_warps(m, n, k, bm, bn, bk, stages, warps):
    a, b = rounded(normal(1, m, k), "float16"), rounded(normal(2, k, n), "float16")
    c = np.full((m, n), np.nan, np.float16)
    given = ((stored(a, "float16"), [bm, bk]), (stored(b, "float16"), [bk, bn]), (c, [bm, bn]))
    blocks = [TensorDescriptor.from_tensor(x, block) for x, block in given]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        product_by_groups[(triton.cdiv(m, bm), triton.cdiv(n, bn))](*blocks, k, BM=bm, BN=bn, BK=bk, STAGES=stages, WARPS=warps)
    assert [str(w.message).split(" in Kiln")[0] for w in said if w.category is kiln.NoEffectWarning] == (
        [] if warps % 4 == 0 else ["worker_num_regs of tle.gpu.warp_specialize has no effect"])
    assert error(c, a @ b) < 2e-3


def test_groups_in_an_order_where_a_target_has_no_barriers(monkeypatch):
    monkeypatch.setenv("KILN_TARGET", "emu:sm_80")
    test_a_product_by_groups_of_warps(80, 72, 104, 64, 32, 32, 2, 4)


@triton.jit
def of_its_own(x, y, out_ptr, done, N: tl.constexpr, K: tl.constexpr):
    tl.store(out_ptr + K * N + tl.arange(0, N), x * y + K)
    if K == 0:
        tle.gpu.barrier_wait(done, 0)
    else:
        tle.gpu.barrier_arrive(done)


@triton.jit
def blocks_of_all_threads(x_ptr, first_ptr, second_ptr, s, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    done = tle.gpu.alloc_barrier()
    y = x * 2 + tl.sum(x) * s
    z = y + tl.exp(x)
    tle.gpu.warp_specialize([(of_its_own, (z, y, first_ptr, done, N, 0)), (of_its_own, (z, y, second_ptr, done, N, 1))], [4])


@pytest.mark.parametrize("n", [128, 96, 512])
def test_groups_take_blocks_that_all_threads_have_made(n):
    x, first, second = normal(1, n).astype(np.float32), np.zeros(n, np.float32), np.zeros(2 * n, np.float32)
    blocks_of_all_threads[(1,)](x, first, second, 0.5, N=n)
    y = 2 * x + x.sum() * 0.5
    z = y + np.exp(x)
    assert error(first, z * y) < 1e-5 and error(second[n:], z * y + 1) < 1e-5


@triton.jit
def half(a, b, c_ptr, ldc, full, free, m, n, count, R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    total = tl.zeros([BM, BN], tl.float32)
    for k in range(count):
        slot = k % STAGES
        tle.gpu.barrier_wait(full[slot], k // STAGES)
        total = tle.gpu.wgmma(a.slot(slot).subslice((R * BM, 0), (BM, BK)), b.slot(slot), total)
        tle.gpu.barrier_arrive(free[slot])
    tl.store(c_ptr + (m + R * BM + tl.arange(0, BM))[:, None] * ldc + (n + tl.arange(0, BN))[None, :], total)


@triton.jit
def product_by_halves(a_desc, b_desc, c_ptr, d_ptr, ldc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    a, b = tle.gpu.alloc([STAGES, BM, BK], tl.float16), tle.gpu.alloc([STAGES, BK, BN], tl.float16)
    full = tle.gpu.alloc_barriers(STAGES, expect_bytes=2 * BK * (BM + BN))
    free = tle.gpu.alloc_barriers(STAGES, arrive_count=2, init=tle.gpu.READY)
    count = tl.cdiv(K, BK)
    tle.gpu.warp_specialize([(half, (a, b, c_ptr, ldc, full, free, m, n, count, 0, BM // 2, BN, BK, STAGES)),
                             (half, (a, b, d_ptr, ldc, full, free, m, n, count, 1, BM // 2, BN, BK, STAGES)),
                             (fill, (a_desc, b_desc, a, b, full, free, m, n, count, BM, BN, BK, STAGES))], [4, 4], [208, 40])


def test_two_groups_multiply_what_a_third_one_copies():
    a, b = rounded(normal(1, 128, 192), "float16"), rounded(normal(2, 192, 128), "float16")
    c, d = np.zeros((128, 128), np.float32), np.zeros((128, 128), np.float32)
    left, right = (TensorDescriptor.from_tensor(stored(x, "float16"), block) for x, block in ((a, [128, 32]), (b, [32, 64])))
    product_by_halves[(1, 2)](left, right, c, d, 128, 192, BM=128, BN=64, BK=32, STAGES=2)
    assert error(c + d, a @ b) < 1e-5 and not c[64:].any() and not d[:64].any()


@triton.jit
def send(x_ptr, ring, rows, N: tl.constexpr):
    writer, n = ring.writer(), tl.arange(0, N)
    for i in range(rows):
        slot = writer.acquire(i)
        tle.gpu.copy(x_ptr + i * N + n, slot.x, [N])
        slot.twice.store(2 * tl.load(x_ptr + i * N + n))
        writer.commit(i)


@triton.jit
def sum_of(ring, out_ptr, rows, N: tl.constexpr):
    reader, total = ring.reader("sums"), tl.zeros([N], tl.float32)
    for i in range(rows):
        slot, closed = reader.wait(i)
        total += slot.x.load() * (i + 1) + slot.twice.load()
        reader.release(i)
    tl.store(out_ptr + tl.arange(0, N), total)


@triton.jit
def largest_of(ring, out_ptr, rows, N: tl.constexpr):
    reader, best = ring.reader("largest", fields=("twice",)), tl.full([N], float("-inf"), tl.float32)
    for i in range(rows):
        slot, _ = reader.wait(i)
        best = tl.maximum(best, slot.twice.load())
        reader.release(i)
    tl.store(out_ptr + tl.arange(0, N), best)


@triton.jit
def two_readers(x_ptr, sum_ptr, best_ptr, rows, N: tl.constexpr, SLOTS: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    x, twice = tle.gpu.alloc([SLOTS, N], tl.float32), tle.gpu.alloc([SLOTS, N], tl.float32)
    ring = tle.pipe(capacity=SLOTS, name="rows", readers=("sums", "largest"), x=x, twice=twice)
    tle.gpu.warp_specialize([(sum_of, (ring, sum_ptr, rows, N)), (send, (x_ptr, ring, rows, N)), (largest_of, (ring, best_ptr, rows, N))],
                            worker_num_warps=[FIRST, SECOND], worker_num_regs=None)


@pytest.mark.parametrize("rows, n, slots, warps, target", [
    (9, 256, 2, (4, 4), "emu:sm_90a"), (5, 96, 3, (1, 2), "emu:sm_90a"), (1, 64, 4, (8, 1), "emu:sm_90a"), (6, 128, 2, (4, 4), "emu:sm_80")])
def test_a_pipe_with_two_readers(rows, n, slots, warps, target, monkeypatch):
    monkeypatch.setenv("KILN_TARGET", target)
    x = np.random.default_rng(rows).standard_normal((rows, n)).astype(np.float32)
    sums, best = np.zeros(n, np.float32), np.zeros(n, np.float32)
    two_readers[(1,)](x, sums, best, rows, N=n, SLOTS=slots, FIRST=warps[0], SECOND=warps[1])
    weights = np.arange(rows)[:, None] + 3.0
    assert error(sums, (x * weights).sum(axis=0)) < 1e-5 and (best == 2 * x.max(axis=0)).all()


@triton.jit
def send_keys(k_ptr, v_ptr, ring, length, D: tl.constexpr, BN: tl.constexpr):
    writer, n, d = ring.writer(), tl.arange(0, BN), tl.arange(0, D)
    for i in range(tl.cdiv(length, BN)):
        slot = writer.acquire(i)
        at, inside = (i * BN + n)[:, None] * D + d[None, :], (i * BN + n < length)[:, None]
        tle.gpu.copy(k_ptr + at, slot.k, [BN, D], mask=inside)
        tle.gpu.copy(v_ptr + at, slot.v, [BN, D], mask=inside)
        writer.commit(i)


@triton.jit
def attend(q, ring, length, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    reader, high, weight = ring.reader(), tl.full([BM], float("-inf"), tl.float32), tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, D], tl.float32)
    for i in range(tl.cdiv(length, BN)):
        slot, closed = reader.wait(i)
        scores = tle.gpu.wgmma_wait(0, tle.gpu.wgmma(q, slot.k, trans_b=True)) * (scale * 1.44269504)
        scores = tl.where((i * BN + tl.arange(0, BN) < length)[None, :], scores, float("-inf"))
        top = tl.maximum(high, tl.max(scores, 1))
        p, alpha = tl.exp2(scores - top[:, None]), tl.exp2(high - top)
        weight = weight * alpha + tl.sum(p, 1)
        out = tle.gpu.wgmma(p.to(tl.float16), slot.v, out * alpha[:, None])
        reader.release(i)
        high = top
    return out / weight[:, None]


@triton.jit
def attention_by_groups(q_ptr, k_ptr, v_ptr, out_ptr, length, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SLOTS: tl.constexpr):
    m, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    at, inside = m[:, None] * D + d[None, :], (m < length)[:, None]
    q = tle.gpu.alloc([BM, D], tl.float16)
    tle.gpu.copy(q_ptr + at, q, [BM, D], mask=inside)
    ring = tle.pipe(capacity=SLOTS, name="keys", k=tle.gpu.alloc([SLOTS, BN, D], tl.float16), v=tle.gpu.alloc([SLOTS, BN, D], tl.float16))
    out = tle.gpu.warp_specialize([(attend, (q, ring, length, scale, D, BM, BN)), (send_keys, (k_ptr, v_ptr, ring, length, D, BN))], [4], [40])
    tl.store(out_ptr + at, out, mask=inside)


@pytest.mark.parametrize("length, d, bm, bn, slots, warps", [(150, 64, 64, 32, 2, 4), (64, 32, 64, 64, 3, 8), (37, 64, 32, 16, 2, 2)])
def test_attention_by_groups_of_warps(length, d, bm, bn, slots, warps):
    q, k, v = (rounded(normal(length + i, length, d), "float16") for i in range(3))
    out = np.full((length, d), np.nan, np.float32)
    with pytest.warns(kiln.NoEffectWarning, match="wgmma_wait"):
        attention_by_groups[(triton.cdiv(length, bm),)](*(stored(x, "float16") for x in (q, k, v)), out, length, 0.3, D=d, BM=bm, BN=bn, SLOTS=slots,
                                                        num_warps=warps)
    scores = np.exp((q @ k.T) * 0.3)
    assert error(out, scores @ v / scores.sum(axis=1, keepdims=True)) < 2e-3


@triton.jit
def send_until(x_ptr, ring, last_ptr, N: tl.constexpr):
    writer, i, last = ring.writer(), 0, tl.load(last_ptr)
    while i < last:
        tle.gpu.copy(x_ptr + i * N + tl.arange(0, N), writer.acquire(i).x, [N])
        writer.commit(i)
        i += 1
    writer.close(i)


@triton.jit
def sum_until(ring, out_ptr, N: tl.constexpr):
    reader, total, i = ring.reader(), tl.zeros([N], tl.float32), 0
    slot, closed = reader.wait(i)
    while closed == 0:
        total += slot.x.load()
        reader.release(i)
        i += 1
        slot, closed = reader.wait(i)
    tl.store(out_ptr + tl.arange(0, N), total + i)


@triton.jit
def closed_pipe(x_ptr, last_ptr, out_ptr, N: tl.constexpr, SLOTS: tl.constexpr):
    ring = tle.pipe(capacity=SLOTS, x=tle.gpu.alloc([SLOTS, N], tl.float32))
    tle.gpu.warp_specialize([(sum_until, (ring, out_ptr, N)), (send_until, (x_ptr, ring, last_ptr, N))], [4])


@pytest.mark.parametrize("last, slots", [(7, 2), (0, 3), (3, 4)])
def test_a_pipe_is_closed(last, slots, monkeypatch):
    monkeypatch.setenv("KILN_TARGET", "emu:sm_90a")
    x, out = np.random.default_rng(last).standard_normal((8, 64)).astype(np.float32), np.zeros(64, np.float32)
    closed_pipe[(1,)](x, np.array([last], np.int32), out, N=64, SLOTS=slots)
    assert error(out, x[:last].sum(axis=0) + last) < 1e-5


@triton.jit
def ring_of_one_group(x_ptr, out_ptr, rows, N: tl.constexpr, SLOTS: tl.constexpr):
    """Two rows ahead."""
    ring = tle.pipe(capacity=SLOTS, x=tle.gpu.alloc([SLOTS, N], tl.float32))
    writer, reader, n = ring.writer(), ring.reader(), tl.arange(0, N)
    for i in tl.static_range(2):
        tle.gpu.copy(x_ptr + i * N + n, writer.acquire(i).x, [N], mask=(i < rows) & (n >= 0))
        writer.commit(i)
    for i in range(rows):
        tle.gpu.copy(x_ptr + (i + 2) * N + n, writer.acquire(i + 2).x, [N], mask=(i + 2 < rows) & (n >= 0))
        writer.commit(i + 2)
        slot, closed = reader.wait(i)
        if closed == 0:
            tl.store(out_ptr + i * N + n, slot.x.load() + i)
        reader.release(i)


@pytest.mark.parametrize("rows, n, slots", [(7, 64, 3), (1, 48, 4)])
def test_a_pipe_of_one_group_is_a_ring(rows, n, slots):
    x = np.random.default_rng(rows).standard_normal((rows, n)).astype(np.float32)
    out = np.zeros_like(x)
    ring_of_one_group[(1,)](x, out, rows, N=n, SLOTS=slots)
    assert (out == x + np.arange(rows, dtype=np.float32)[:, None]).all()


@triton.jit
def add_up(x, y, done, out_ptr, N: tl.constexpr):
    tle.gpu.barrier_wait(done, 0)
    total = x.load() + tl.load(tle.gpu.local_ptr(y))
    tl.store(out_ptr + tl.arange(0, N), total)
    return tl.sum(total), tl.max(total)


@triton.jit
def square(block, into, done, N: tl.constexpr, TIMES: tl.constexpr):
    x = block.load()
    into.store(x * x)
    tle.gpu.barrier_arrive(done, TIMES)


@triton.jit
def of_different_sizes(x_ptr, out_ptr, sums_ptr, factor, N: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """What stands before the call all groups have done; what stands behind it is the first group's."""
    n = tl.arange(0, N)
    given, x, y = tle.gpu.alloc([N], tl.float32), tle.gpu.alloc([N], tl.float32), tle.gpu.alloc([N], tl.float32)
    kept = tl.load(x_ptr + n)
    given.store(kept * factor)
    done = tle.gpu.alloc_barrier(arrive_count=3)
    total, largest = tle.gpu.warp_specialize([(add_up, (x, y, done, out_ptr, N)), (square, (given, x, done, N, 1)),
                                              (square, (given.subslice(0, N), y, done, N, 2))], [FIRST, SECOND])
    tl.store(sums_ptr, total)
    tl.store(sums_ptr + 1, largest)
    tl.store(sums_ptr + 2 + n, kept + total)


@pytest.mark.parametrize("n, warps", [(128, (4, 4)), (80, (1, 2)), (512, (2, 8))])
def test_groups_of_different_sizes_arrive_at_one_barrier(n, warps):
    x, out, sums = normal(n, n).astype(np.float32), np.zeros(n, np.float32), np.zeros(2 + n, np.float32)
    of_different_sizes[(1,)](x, out, sums, 3.0, N=n, FIRST=warps[0], SECOND=warps[1])
    expected = 2 * (3 * x.astype(np.float64)) ** 2
    assert error(out, expected) < 1e-6 and error(sums[:2], [expected.sum(), expected.max()]) < 1e-5
    assert error(sums[2:], x + expected.sum()) < 1e-5


@triton.jit
def reads(x, done, out_ptr, N: tl.constexpr):
    tle.gpu.barrier_wait(done, phaseIdx=0)
    tl.store(out_ptr + tl.arange(0, N), x.load())


@triton.jit
def writes(x, done, N: tl.constexpr):
    x.store(tl.arange(0, N).to(tl.float32))
    tle.gpu.barrier_arrive(done, phaseIdx=0)


@triton.jit
def one_writes(out_ptr, N: tl.constexpr, IS_OVER: tl.constexpr):
    x, done = tle.gpu.alloc([N], tl.float32), tle.gpu.alloc_barrier(init=tle.gpu.READY if IS_OVER else tle.gpu.PENDING)
    tle.gpu.warp_specialize([(reads, (x, done, out_ptr, N)), (writes, (x, done, N))], [4], [24])


def test_a_pipe_that_is_closed_needs_barriers(monkeypatch):
    monkeypatch.setenv("KILN_TARGET", "emu:sm_80")
    with pytest.raises(T.TraceError, match=r"tle_roles_test.py:\d+: which barrier is meant is known at run time only"):
        closed_pipe[(1,)](np.zeros((8, 64), np.float32), np.zeros(1, np.int32), np.zeros(64, np.float32), N=64, SLOTS=2)


def test_a_wait_for_a_turn_that_is_over_is_a_race(monkeypatch):
    monkeypatch.setenv("KILN_TARGET", "emu:sm_90a")
    out = np.zeros(256, np.float32)
    one_writes[(1,)](out, N=256, IS_OVER=False)
    assert (out == np.arange(256)).all()
    with pytest.raises(kiln.KilnError, match="race"):
        one_writes[(1,)](out, N=256, IS_OVER=True)


def test_registers_and_sizes_of_groups():
    text = one_writes.program(np.zeros(256, np.float32), N=256, IS_OVER=False).script()
    assert "threads=256" in text and "registers 240" in text and "registers 24" in text and "alloc done: barrier" in text, text
    text = of_different_sizes.program(*(np.zeros(64, np.float32),) * 3, 1.0, N=64, FIRST=1, SECOND=4, num_warps=2).script()
    assert "threads=224" in text and "(tx >= 64) and (tx < 192)" in text and "(tx >= 192) and (tx < 224)" in text, text
    assert text.count("arrive done[0]") == 4 + 2, text  # of 32 threads, four times; twice of 128


@triton.jit
def lets_go(ring):
    ring.reader().release(0)


@triton.jit
def released_by_two(x):
    ring = tle.pipe(capacity=2, a=tle.gpu.alloc([2, 8], tl.float32))
    tle.gpu.warp_specialize([(lets_go, (ring,)), (lets_go, (ring,))], [4])


def test_one_reader_is_one_group():
    with pytest.raises(triton.CompilationError, match=r"tle_roles_test.py:\d+: a pipe's slots are released as by one reader by several groups"):
        released_by_two.program(np.zeros(8, np.float32))


# What is refused. Each kernel has a comment "here:" in the line that is refused, and what the text must hold.


@triton.jit
def nothing(x):
    pass


@triton.jit
def returns(x):
    return tl.load(x)


@triton.jit
def in_a_loop(x, n):
    for i in range(n):
        tle.gpu.warp_specialize([(nothing, (x,)), (nothing, (x,))], [4])  # here: call it once in a kernel, and write the loops in its functions


@triton.jit
def twice(x, n):
    tle.gpu.warp_specialize([(nothing, (x,)), (nothing, (x,))], [4])
    tle.gpu.warp_specialize([(nothing, (x,)), (nothing, (x,))], [4])  # here: call it once in a kernel


@triton.jit
def too_few_numbers(x, n):
    tle.gpu.warp_specialize([(nothing, (x,)), (nothing, (x,))], [])  # here: and each other needs its numbers


@triton.jit
def too_many_warps(x, n):
    tle.gpu.warp_specialize([(nothing, (x,)), (nothing, (x,))], [29])  # here: of 4 and 29 warps; a block has at most 32


@triton.jit
def odd_registers(x, n):
    tle.gpu.warp_specialize([(nothing, (x,)), (nothing, (x,))], [4], [100])  # here: a number is a multiple of 8 from 24 to 256


@triton.jit
def too_many_registers(x, n):
    tle.gpu.warp_specialize([(nothing, (x,)), (nothing, (x,))], [8], [256])  # here: leaves the kernel's 4 warps less than 24 registers


@triton.jit
def returning_worker(x, n):
    tle.gpu.warp_specialize([(nothing, (x,)), (returns, (x,))], [4])  # here: it writes its results to buffers


@triton.jit
def no_pairs(x, n):
    tle.gpu.warp_specialize([nothing, nothing], [4])  # here: takes pairs of a function and a tuple of its arguments


@triton.jit
def no_ring(x, n):
    tle.pipe(capacity=2, a=tle.gpu.alloc([3, 8], tl.float32))  # here: a buffer of two dimensions or more is needed, the first of them the capacity


@triton.jit
def of_a_cluster(x, n):
    tle.pipe(capacity=2, scope="cluster", a=tle.gpu.alloc([2, 8], tl.float32))  # here: a pipe is one block's


@triton.jit
def another_reader(x, n):
    tle.pipe(capacity=2, readers=("a", "b"), x=tle.gpu.alloc([2, 8], tl.float32)).reader("c")  # here: whose readers are 'a', 'b'


@triton.jit
def another_field(x, n):
    tle.pipe(capacity=2, x=tle.gpu.alloc([2, 8], tl.float32)).reader(fields=("y",))  # here: names 'y'; the pipe has x


@triton.jit
def arrives_for_bytes(x, n):
    tle.gpu.barrier_arrive(tle.gpu.alloc_barrier(expect_bytes=64))  # here: at which copies arrive


@triton.jit
def which_barrier(x, n):
    bars = tle.gpu.alloc_barriers(2)
    tle.gpu.barrier_wait(bars, 0)  # here: name one, as bars[i]


@triton.jit
def no_such_barrier(x, n):
    tle.gpu.barrier_wait(tle.gpu.alloc_barriers(num_barriers=2)[2], 0)  # here: barrier 2 of 2


@pytest.mark.parametrize("kernel", [
    in_a_loop, twice, too_few_numbers, too_many_warps, odd_registers, too_many_registers, returning_worker, no_pairs, no_ring, of_a_cluster,
    another_reader, another_field, arrives_for_bytes, which_barrier, no_such_barrier])
def test_refusals(kernel):
    refused(kernel, np.zeros(64, np.float32), 3)
