# SPDX-License-Identifier: Apache-2.0
"""Buffers in shared memory: tle.gpu.alloc, views, pointers into them, copies and products."""

import numpy as np
import pytest
import triton
import triton.experimental.tle.language as tle
import triton.language as tl
from numbers_of import argument, error, normal, refused, rounded, stored
from triton.tools.tensor_descriptor import TensorDescriptor

import kiln


@triton.jit
def rows_of(x_ptr, M, N, m, n):
    """Pointers, and which of them are inside."""
    return x_ptr + m[:, None] * N + n[None, :], (m < M)[:, None] & (n < N)[None, :]


@triton.jit
def product(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HOW: tl.constexpr):
    m, n, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    a = tle.gpu.alloc([BM, BK], dtype=a_ptr.dtype.element_ty)
    b = tle.gpu.alloc([BN, BK] if HOW == "transposed" else [BK, BN], dtype=a_ptr.dtype.element_ty, scope=tle.gpu.smem)
    total = tl.zeros([BM, BN], tl.float32)
    for first in tl.range(0, K, BK):
        pointers, inside = rows_of(a_ptr, M, K, m, first + k)
        tle.gpu.copy(pointers, a, [BM, BK], mask=inside)
        if HOW == "transposed":  # b is stored as [N, K]
            pointers, inside = rows_of(b_ptr, N, K, n, first + k)
            tle.gpu.copy(pointers, b, (BN, BK), mask=inside)
        else:
            pointers, inside = rows_of(b_ptr, K, N, first + k, n)
            tle.gpu.copy(pointers, b, (BK, BN), mask=inside)
        if HOW == "dot":
            total = tl.dot(a.load(), tl.load(tle.gpu.local_ptr(b)), total)
        elif HOW == "block":
            total = tle.gpu.wgmma(tle.gpu.local_load(a) * 2, b, total)
        else:
            total = tle.gpu.wgmma(a, b, total, trans_b=HOW == "transposed")
    pointers, inside = rows_of(c_ptr, M, N, m, n)
    if HOW == "block":
        total = total / 2
    out = tle.gpu.alloc([BM, BN], tl.float32)
    out.store(total)
    tle.gpu.copy(out, pointers, [BM, BN], mask=inside)


@pytest.mark.parametrize("how", ["dot", "block", "buffers", "transposed"])
@pytest.mark.parametrize("m, n, k, dtype, bm, bn, bk", [(64, 64, 96, "float16", 64, 64, 32), (45, 77, 51, "bfloat16", 32, 64, 16)])
def test_a_product_of_buffers(how, m, n, k, dtype, bm, bn, bk):
    a, b = rounded(normal(1, m, k), dtype), rounded(normal(2, k, n), dtype)
    c = np.full((m, n), np.nan, np.float32)
    given = [argument(stored(x, dtype), dtype) for x in (a, b.T.copy() if how == "transposed" else b)]
    product[(triton.cdiv(m, bm), triton.cdiv(n, bn))](*given, c, m, n, k, BM=bm, BN=bn, BK=bk, HOW=how)
    assert error(c, a @ b) < 1e-5


@triton.jit
def product_of_descriptors(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    left, right = tle.gpu.alloc([BM, BK], tl.float16), tle.gpu.alloc([BK, BN], tl.float16)
    there = tle.gpu.alloc_barrier(expect_bytes=2 * BK * (BM + BN))
    total = tl.zeros([BM, BN], tl.float32)
    for k in range(tl.cdiv(K, BK)):
        tle.gpu.copy(a, left, [BM, BK], [m, k * BK], barrier=there)
        tle.gpu.copy(b, right, [BK, BN], [k * BK, n], barrier=there)
        tle.gpu.barrier_wait(there, k)
        total = tle.gpu.wgmma_wait(0, tle.gpu.wgmma(left, right, total))
    out = tle.gpu.alloc([BM, BN], tl.float16)
    out.store(total)
    tle.gpu.copy(out, c, [BM, BN], offsets=[m, n])


def test_copies_of_descriptors():
    a, b = rounded(normal(3, 80, 72), "float16"), rounded(normal(4, 72, 88), "float16")
    c = np.full((80, 88), np.nan, np.float16)
    given = ((stored(a, "float16"), [64, 32]), (stored(b, "float16"), [32, 32]), (c, [64, 32]))
    blocks = [TensorDescriptor.from_tensor(x, block) for x, block in given]
    with pytest.warns(kiln.NoEffectWarning) as warned:
        product_of_descriptors[(2, 3)](*blocks, 72, BM=64, BN=32, BK=32)
    assert error(c, a @ b) < 2e-3
    assert sorted({str(w.message).split(" has")[0] for w in warned}) == ["tle.gpu.barrier_wait", "tle.gpu.wgmma_wait(0)"]


@triton.jit
def through_views(x_ptr, out_ptr, where, M: tl.constexpr, N: tl.constexpr):
    """out[0] = x of two slots in the other order; out[1] = x with a part of it negative; out[2] = xᵀ as a row of numbers; out[3] = another name."""
    i, m, n = tl.arange(0, 2), tl.arange(0, M), tl.arange(0, N)
    at = m[:, None] * N + n[None, :]
    slots = tle.gpu.alloc([2, M, N], tl.float32, init_value=-1)
    slots.slot(where).store(tl.load(x_ptr + at))
    slots.slot(1 - where).store(tl.load(x_ptr + M * N + at))
    cube = tl.load(tle.gpu.local_ptr(slots))
    tl.store(out_ptr + i[:, None, None] * (M * N) + at[None, :, :], cube)
    part = slots.slot(where).subslice((where, 4), (M // 2, 2))
    part.store(-part.load())
    row = slots.subslice(0, 1).slice(2, 3, dim=-1).slot(0)
    row.store(row.load() + 100)
    tl.store(out_ptr + 2 * M * N + i[:, None, None] * (M * N) + at[None, :, :], slots.load())
    flat = slots.reshape(2 * M * N)
    turned = tle.gpu.local_ptr(flat, [tl.arange(0, N)[:, None] + tl.arange(0, 2 * M)[None, :] * N])
    tl.store(out_ptr + 4 * M * N + tl.arange(0, N)[:, None] * (2 * M) + tl.arange(0, 2 * M)[None, :], tl.load(turned))
    other = tle.gpu.alloc([M, N // 2], tl.float32, alias=slots, alias_offset_bytes=4 * N)
    tl.store(out_ptr + 6 * M * N + m[:, None] * (N // 2) + tl.arange(0, N // 2)[None, :], other.load())


@pytest.mark.parametrize("m, n, where", [(8, 16, 1), (6, 10, 0)])
def test_views_of_a_buffer(m, n, where):
    x = np.random.default_rng(m).standard_normal((2, m, n)).astype(np.float32)
    out = np.full(6 * m * n + m * n // 2, np.nan, np.float32)
    through_views[(1,)](x, out, where, M=m, N=n)
    slots = x[::-1].copy() if where else x.copy()
    assert (out[: 2 * m * n] == slots.ravel()).all()
    slots[where, where : where + m // 2, 4:6] *= -1
    slots[0, :, 2:5] += 100
    assert (out[2 * m * n : 4 * m * n] == slots.ravel()).all()
    assert (out[4 * m * n : 6 * m * n] == slots.reshape(2 * m, n).T.ravel()).all()
    assert (out[6 * m * n :] == slots.ravel()[n : n + m * n // 2]).all()


@triton.jit
def by_pointers(x_ptr, counts_ptr, out_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    """Counts in shared memory; what each element found before it; one element by scalars, and by a distance."""
    bins = tle.gpu.alloc([BINS], tl.int32, init_value=0)
    best = tle.gpu.alloc([1, 2], tl.int32, init_value=0)
    for first in tle.gpu.pipeline(0, n, BLOCK, num_stages=2):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, other=0)
        old = tl.atomic_add(tle.gpu.local_ptr(bins, (x,)), 1, mask=at < n, sem="relaxed")
        tl.atomic_max(tle.gpu.local_ptr(best, (tl.zeros_like(x), x % 2)), x, mask=(at < n) & (old >= 0))
    tl.store(counts_ptr + tl.arange(0, BINS), tl.load(tle.gpu.local_ptr(bins)))
    tl.store(tle.gpu.local_ptr(bins, (3,)), 1000)
    tl.store(out_ptr, tl.load(tle.gpu.local_ptr(bins, (n % BINS,))))
    tl.store(out_ptr + 1, tl.load(tle.gpu.local_ptr(bins, 1) + 2))
    tl.store(out_ptr + 2 + tl.arange(0, 2), tl.reshape(best.load(), [2]))
    some = tl.load(tle.gpu.local_ptr(bins, offsets=tl.arange(0, 4) * 5), mask=tl.arange(0, 4) != 2, other=-7)
    tl.store(out_ptr + 4 + tl.arange(0, 4), some)


def test_pointers_into_a_buffer():
    x = np.random.default_rng(8).integers(0, 20, 333).astype(np.int32)
    counts, out = np.zeros(20, np.int32), np.zeros(8, np.int32)
    by_pointers[(1,)](x, counts, out, 333, BINS=20, BLOCK=64)
    expected = np.bincount(x, minlength=20)
    assert (counts == expected).all()
    expected[3] = 1000
    assert out.tolist() == [expected[333 % 20], 1000, x[x % 2 == 0].max(), x[x % 2 == 1].max(), expected[0], expected[5], -7, expected[15]]


@triton.jit
def slots_in_turns(x_ptr, out_ptr, n, N: tl.constexpr):
    """A view that a loop carries, of a buffer that its branches write."""
    rows = tle.gpu.alloc([2, N], tl.float32, init_value=0.0)
    i, last = 0, rows.slot(0)
    while i < n:
        if i % 2 == 0:
            rows.slot(i % 2).store(tl.load(x_ptr + i * N + tl.arange(0, N)))
        else:
            tle.gpu.copy(x_ptr + i * N + tl.arange(0, N), rows.slot(1), [N])
        last = rows.slot(i % 2)
        i += 1
    tl.store(out_ptr + tl.arange(0, N), last.load())
    tl.store(out_ptr + N + tl.arange(0, N), tl.sum(rows.load(), 0))


def test_a_view_that_a_loop_carries():
    x, out = np.random.default_rng(1).standard_normal((5, 32)).astype(np.float32), np.zeros((2, 32), np.float32)
    for n in (1, 2, 5):
        slots_in_turns[(1,)](x, out, n, N=32)
        assert (out[0] == x[n - 1]).all() and error(out[1], x[n - 1] + (x[n - 2] if n > 1 else 0)) < 1e-6


@triton.jit
def changed_before_it_is_used(x_ptr, out_ptr, N: tl.constexpr):
    """A block that a product takes is what the buffer held when it was loaded."""
    n = tl.arange(0, N)
    at = n[:, None] * N + n[None, :]
    buffer = tle.gpu.alloc([N, N], tl.float16)
    tle.gpu.copy(x_ptr + at, buffer, [N, N])
    before = buffer.load()
    buffer.store(0)
    tl.store(out_ptr + at, tl.dot(before, before))


def test_a_load_of_a_buffer_has_what_it_held():
    x, out = rounded(normal(5, 32, 32), "float16"), np.zeros((32, 32), np.float32)
    changed_before_it_is_used[(1,)](stored(x, "float16"), out, N=32)
    assert error(out, x @ x) < 1e-5


# What is refused. Each kernel has a comment "here:" in the line that is refused, and what the text must hold.


@triton.jit
def in_tensor_memory(x, n):
    tle.gpu.alloc([8, 8], tl.float32, scope=tle.gpu.tmem)  # here: buffers are in shared memory


@triton.jit
def with_a_layout(x, n):
    tle.gpu.alloc([8, 8], tl.float32, layout=tle.gpu.swizzled_shared_layout.make_default(2))  # here: tle.gpu.swizzled_shared_layout is not part


@triton.jit
def with_another_layout(x, n):
    tle.gpu.alloc([8, 8], tl.float32, layout=1)  # here: leave layout out


@triton.jit
def of_pointers(x, n):
    tle.gpu.alloc([8, 8], tl.pointer_type(tl.float32))  # here: elements are numbers such as tl.float16


@triton.jit
def another_dtype(x, n):
    tle.gpu.alloc([8], tl.int32, alias=tle.gpu.alloc([8], tl.float32))  # here: share their bytes anyway, so leave alias out


@triton.jit
def too_far(x, n):
    tle.gpu.alloc([8], tl.float32, alias=tle.gpu.alloc([8], tl.float32), alias_offset_bytes=4)  # here: at byte 4 of a buffer of shape [8] and fp32


@triton.jit
def no_slot(x, n):
    tle.gpu.alloc([2, 8], tl.float32).slot(2)  # here: 1 elements from 2 on in dimension 0


@triton.jit
def wrong_shape(x, n):
    tle.gpu.copy(x + tl.arange(0, 8), tle.gpu.alloc([8], tl.float32), [4])  # here: tle.gpu.copy of shape [4] with a buffer of shape [8] and fp32


@triton.jit
def wrong_dtype(x, n):
    tle.gpu.copy(x + tl.arange(0, 8), tle.gpu.alloc([8], tl.float16), [8])  # here: buf.store(tl.load(…)) does


@triton.jit
def between_buffers(x, n):
    tle.gpu.copy(tle.gpu.alloc([8], tl.float32), tle.gpu.alloc([8], tl.float32), [8])  # here: one is a buffer of tle.gpu.alloc, the other a block of


@triton.jit
def no_offsets(x, n):
    d = tl.make_tensor_descriptor(x, [n], [1], [8])
    tle.gpu.copy(d, tle.gpu.alloc([8], tl.float32), [8])  # here: needs offsets=, where its block begins


@triton.jit
def barrier_of_pointers(x, n):
    bar = tle.gpu.alloc_barrier()
    tle.gpu.copy(x + tl.arange(0, 8), tle.gpu.alloc([8], tl.float32), [8], barrier=bar)  # here: belongs to copies from a tensor descriptor


@triton.jit
def indices_of_two_shapes(x, n):
    buffer = tle.gpu.alloc([8, 8], tl.float32)
    tle.gpu.local_ptr(buffer, (tl.arange(0, 8), tl.arange(0, 4)))  # here: broadcast them to one


@triton.jit
def carried_pointer(x, n):
    p = tle.gpu.local_ptr(tle.gpu.alloc([8], tl.float32), (0,))
    for i in range(n):
        tl.store(p, 1.0)  # here: keep its indices, and make the pointer where it is read or written
        p += 1


@triton.jit
def block_as_second_operand(x, n):
    tle.gpu.wgmma(tle.gpu.alloc([16, 16], tl.float16), tl.zeros([16, 16], tl.float16))  # here: tl.dot takes blocks


@triton.jit
def named_barrier(x, n):
    tle.gpu.barrier_wait(tle.gpu.alloc_barrier())  # here: give phaseIdx=, the number of the turn


@triton.jit
def two_names(x, n):
    buffer = tle.gpu.alloc([8], tl.float32)
    tle.gpu.local_ptr(buffer, indices=0, offsets=0)  # here: which is the older name of the former


@triton.jit
def of_other_devices(x, n):
    tle.dsa.alloc([8], tl.float32)  # here: tle.dsa is not part of Kiln: it is of other devices


@triton.jit
def of_clusters(x, n):
    tle.remote(x, n)  # here: exchange data between the blocks of a cluster


@pytest.mark.parametrize("kernel", [
    in_tensor_memory, with_a_layout, with_another_layout, of_pointers, another_dtype, too_far, no_slot, wrong_shape, wrong_dtype, between_buffers,
    no_offsets, barrier_of_pointers, indices_of_two_shapes, carried_pointer, block_as_second_operand, named_barrier, two_names, of_other_devices,
    of_clusters])
def test_refusals(kernel):
    refused(kernel, np.zeros(64, np.float32), 3)


def test_what_has_no_effect_is_told():
    @triton.jit
    def kernel(x_ptr):
        x = tle.gpu.memory_space(tl.load(x_ptr + tl.arange(0, 8)), "shared_memory")
        buffer = tle.gpu.alloc([8], tl.float32, nv_mma_shared_layout=False, alignment=128)
        tle.gpu.copy(x_ptr + tl.arange(0, 8), buffer, [8], is_async=True, eviction_policy="evict_first")
        buffer.store(x)

    with pytest.warns(kiln.NoEffectWarning) as warned:
        kernel.program(np.zeros(8, np.float32))
    assert [str(w.message).split(" has")[0] for w in warned] == [
        "tle.gpu.memory_space", "tle.gpu.alloc(nv_mma_shared_layout=False)", "tle.gpu.alloc(alignment=128)",
        "tle.gpu.copy(eviction_policy='evict_first')"]


@triton.jit
def kept_in_a_buffer(q_ptr, k_ptr, out_ptr, count, N: tl.constexpr, CHANGES: tl.constexpr):
    """A block of a buffer that a product in a loop takes."""
    n = tl.arange(0, N)
    at = n[:, None] * N + n[None, :]
    q, k = tle.gpu.alloc([N, N], tl.float16), tle.gpu.alloc([2, N, N], tl.float16)
    q.store(tl.load(q_ptr + at))
    block = q.load()
    for i in range(count):
        tle.gpu.copy(k_ptr + i * N * N + at, k.slot(i % 2), [N, N])
        if CHANGES:
            q.store(0)
        tl.store(out_ptr + i * N * N + at, tl.dot(block, tl.trans(k.slot(i % 2).load())))


@pytest.mark.parametrize("changes", [False, True])
def test_a_block_stays_in_its_buffer_as_long_as_that_holds_it(changes):
    q, k = rounded(normal(6, 32, 32), "float16"), rounded(normal(7, 3, 32, 32), "float16")
    out = np.zeros((3, 32, 32), np.float32)
    kept_in_a_buffer[(1,)](stored(q, "float16"), stored(k, "float16"), out, 3, N=32, CHANGES=changes)
    assert error(out, q @ k.transpose(0, 2, 1)) < 1e-5
    text = kept_in_a_buffer.program(stored(q, "float16"), stored(k, "float16"), out, 3, N=32, CHANGES=changes).script()
    assert text.count("shared float16") == (3 if changes else 2), text
