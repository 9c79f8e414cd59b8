# SPDX-License-Identifier: Apache-2.0
"""What loops load is copied ahead where the launcher does not know which rows it is (``regions`` in compiler/PASSES.md), and rewrites beside it:
blocks of another shape, pairs of elements, kernels of scalars, changes of memory that order others, quotients."""

import re
from fractions import Fraction

import kiln
import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language.extra import libdevice

rng = np.random.default_rng()


@triton.jit
def recurrence(Q, K, V, G, B, O, H0, HT, STARTS, H: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr):
    sequence, head = tl.program_id(0) // H, tl.program_id(0) % H
    begin, end = tl.load(STARTS + sequence).to(tl.int64), tl.load(STARTS + sequence + 1).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    inside = (d[:, None] < D) & (e[None, :] < E)
    state = tl.program_id(0) * D * E + d[:, None] * E + e[None, :]
    h = tl.load(H0 + state, mask=inside, other=0.0)
    row = begin * H + head
    for _ in range(0, end - begin):
        q = tl.load(Q + row * D + d, mask=d < D, other=0.0).to(tl.float32)
        k = tl.load(K + row * D + d, mask=d < D, other=0.0).to(tl.float32)
        v = tl.load(V + row * E + e, mask=e < E, other=0.0).to(tl.float32)
        g = tl.load(G + row * D + d, mask=d < D, other=0.0)
        b = tl.load(B + row)
        h = h * tl.exp(g)[:, None] + k[:, None] * (v * b)[None, :]
        tl.store(O + row * E + e, tl.sum(h * q[:, None], 0), mask=e < E)
        row += H
    tl.store(HT + state, h, mask=inside)


@pytest.mark.parametrize("lengths", [(9, 1, 0, 4), (2, 17)])
@pytest.mark.parametrize("d, e, bd, be, warps", [(16, 16, 16, 16, 1), (20, 12, 32, 16, 4), (36, 20, 64, 32, 2)])
def test_a_recurrence_over_rows_of_its_own(lengths, d, e, bd, be, warps):
    starts, heads = np.cumsum([0, *lengths]), 2
    total = int(starts[-1])
    q, k = (rng.normal(size=(total, heads, d)).astype(np.float32) for _ in range(2))
    v = rng.normal(size=(total, heads, e)).astype(np.float16)
    g, b = -rng.random((total, heads, d)).astype(np.float32), rng.random((total, heads)).astype(np.float32)
    h0 = rng.normal(size=(len(lengths), heads, d, e)).astype(np.float32)
    o, ht = np.full((total, heads, e), np.nan, np.float32), np.full_like(h0, np.nan)
    recurrence[(len(lengths) * heads,)](q, k, v, g, b, o, h0, ht, starts, heads, d, e, bd, be, num_warps=warps)
    for n in range(len(lengths)):
        for i in range(heads):
            h = h0[n, i].astype(np.float64)
            for t in range(starts[n], starts[n + 1]):
                h = h * np.exp(g[t, i].astype(np.float64))[:, None] + np.outer(k[t, i], v[t, i].astype(np.float64) * b[t, i])
                np.testing.assert_allclose(o[t, i], q[t, i].astype(np.float64) @ h, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(ht[n, i], h, rtol=1e-4, atol=1e-4)


def test_vectors_of_a_recurrence_are_copied_ahead():
    x, h = np.zeros((8, 2, 64), np.float32), np.zeros((1, 2, 64, 64), np.float32)
    b, starts = np.zeros((8, 2), np.float32), np.array([0, 8])
    program = recurrence.program(x, x.copy(), x.copy(), x.copy(), b, x.copy(), h, h.copy(), starts, 2, 64, 64, 64, 64, grid=(2,))
    ptx = kiln.compile(program, target="cuda:sm_90a").get_kernel_source()
    loop = ptx[re.search(r"cp.async.wait_group\s+2;", ptx).end():]
    assert loop.count("cp.async.cg.shared.global") == 4 and not re.search(r"cp.async.wait_group\s+0;", loop[:loop.index("bar.sync")])


@triton.jit
def packed_product(A, B, Z, S, C, M, N, K, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """B has eight weights of four bits in a word, along its rows; Z the same of their zeros, a row for GROUP of B's, and S their scales."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    words, shifts = tl.program_id(1) * (BN // 8) + tl.arange(0, BN // 8), (tl.arange(0, BN) % 8 * 4)[None, :]
    total = tl.zeros([BM, BN], tl.float32)
    for i in range(tl.cdiv(K, BK)):
        k = i * BK + tl.arange(0, BK)
        a = tl.load(A + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(B + k[:, None] * (N // 8) + words[None, :], mask=(k[:, None] < K) & (words[None, :] < N // 8), other=0)
        row = i * BK // GROUP + tl.arange(0, 1)
        z = tl.load(Z + row[:, None] * (N // 8) + words[None, :], mask=words[None, :] < N // 8, other=0)
        s = tl.load(S + row[:, None] * N + n[None, :], mask=n[None, :] < N, other=0.0)
        for _ in tl.static_range(3):
            b, z = tl.interleave(b, b), tl.interleave(z, z)
        weights = ((b >> shifts & 15) - (tl.broadcast_to(z, [BK, BN]) >> shifts & 15)) * tl.broadcast_to(s, [BK, BN])
        total = tl.dot(a, weights.to(tl.float16), total)
    tl.store(C + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


def packed(weights):
    words = weights.astype(np.uint32).reshape(len(weights), -1, 8) << np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(words, 2).view(np.int32)


@pytest.mark.parametrize("m, n, k, group", [(20, 40, 96, 32), (32, 64, 70, 32), (1, 8, 32, 64)])
@pytest.mark.parametrize("warps, stages", [(1, 2), (4, 3)])
def test_weights_of_four_bits(m, n, k, group, warps, stages):
    a = rng.integers(-2, 3, (m, k)).astype(np.float16)
    b, z, s = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (-(-k // group), n)), rng.integers(1, 4, (-(-k // group), n)).astype(np.float16)
    c = np.full((m, n), np.nan, np.float32)
    packed_product[(triton.cdiv(m, 32), triton.cdiv(n, 32))](a, packed(b), packed(z), s, c, m, n, k, group, 32, 32, 32, num_warps=warps,
                                                             num_stages=stages)
    of = np.arange(k) // group
    np.testing.assert_array_equal(c, a.astype(np.float64) @ ((b - z[of]) * s[of].astype(np.float64)))


@pytest.mark.parametrize("size, ahead", [(32, True), (64, False)])
def test_packed_weights_are_copied_ahead_where_no_ring_takes_the_others(size, ahead):
    """Groups of warps multiply tiles of 64 rows: tensor copies fill a ring with A, and a ring takes no other copies."""
    a, b, s, c = np.zeros((256, 512), np.float16), np.zeros((512, 32), np.int32), np.zeros((16, 256), np.float16), np.zeros((256, 256), np.float32)
    program = packed_product.program(a, b, b.copy(), s, c, 256, 256, 512, 32, size, size, 32, grid=(4, 4), num_warps=4, num_stages=3)
    ptx = kiln.compile(program, target="cuda:sm_90a").get_kernel_source()
    assert ("cp.async.bulk.tensor.2d.shared" in ptx) == (not ahead)
    assert not ahead or "ld.global" not in ptx and re.search(r"cp.async.wait_group\s+1;", ptx)


@triton.jit
def scaled_products(Q, V, G, O, STARTS, H: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    sequence, head = tl.program_id(0) // H, tl.program_id(0) % H
    begin, end = tl.load(STARTS + sequence).to(tl.int64), tl.load(STARTS + sequence + 1).to(tl.int64)
    d = tl.arange(0, BD)
    total = tl.zeros([BD, BD], tl.float32)
    for i in range(tl.cdiv(end - begin, BT) - 1, -1, -1):
        t = i * BT + tl.arange(0, BT)
        rows = (begin + t) * H + head
        q = tl.load(Q + rows[None, :] * D + d[:, None], mask=(d[:, None] < D) & (t[None, :] < end - begin), other=0.0)
        v = tl.load(V + rows[:, None] * D + d[None, :], mask=(d[None, :] < D) & (t[:, None] < end - begin), other=0.0)
        g = tl.load(G + rows, mask=t < end - begin, other=0.0)
        last = tl.load(G + (begin + tl.minimum(i * BT + BT, end - begin) - 1) * H + head)
        total = total * last + tl.dot((q * g[None, :]).to(q.dtype), v)
    tl.store(O + tl.program_id(0) * D * D + d[:, None] * D + d[None, :], total, mask=(d[:, None] < D) & (d[None, :] < D))


@pytest.mark.parametrize("lengths", [(40, 16, 1), (70,)])
@pytest.mark.parametrize("d, warps, stages", [(28, 1, 2), (32, 4, 3), (20, 2, 4)])
def test_tiles_of_rows_that_the_device_finds(lengths, d, warps, stages):
    starts, heads, block = np.cumsum([0, *lengths]), 2, 16
    q, v = (rng.normal(size=(starts[-1], heads, d)).astype(np.float16) for _ in range(2))
    g = rng.choice([0.5, 1.0], (starts[-1], heads)).astype(np.float32)
    o = np.full((len(lengths), heads, d, d), np.nan, np.float32)
    scaled_products[(len(lengths) * heads,)](q, v, g, o, starts, heads, d, block, 32, num_warps=warps, num_stages=stages)
    for n, length in enumerate(lengths):
        for h in range(heads):
            x, y, z = (a[starts[n]:starts[n + 1], h].astype(np.float64) for a in (q, v, g))
            wanted = np.zeros((d, d))
            for begin in range((length - 1) // block * block, -1, -block):
                at = slice(begin, min(begin + block, length))
                wanted = wanted * z[at.stop - 1] + (x[at] * z[at, None]).T @ y[at]
            np.testing.assert_allclose(o[n, h], wanted, rtol=2e-3, atol=2e-2)


@triton.jit
def reshaped(X, Z, FIRST: tl.constexpr, SECOND: tl.constexpr, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    y = tl.trans(tl.reshape(x, FIRST))
    y = tl.reshape(tl.reshape(y, SECOND) * 2, (N,))
    tl.store(Z + tl.arange(0, N), y)


@pytest.mark.parametrize("first, second", [((4, 16), (2, 2, 16)), ((32, 2), (64,)), ((8, 8), (1, 4, 16)), ((2, 32), (16, 1, 4)), ((64, 1), (2, 32))])
def test_blocks_of_other_shapes(first, second):
    x, z = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    reshaped[(1,)](x, z, first, second, 64)
    np.testing.assert_array_equal(z, x.reshape(first).T.ravel() * 2)


@triton.jit
def ordered(X, I, Z, J, N: tl.constexpr):
    """Neighbours in order, by sums over pairs."""
    x, i = tl.load(X + tl.arange(0, N)), tl.load(I + tl.arange(0, N))
    for step in tl.static_range(3):
        shape: tl.constexpr = [N >> (step + 1), 2, 1 << step]
        y, k = tl.reshape(x, shape), tl.reshape(i, shape)
        right = tl.arange(0, 2)[None, :, None]
        a = tl.reshape(tl.broadcast_to(tl.sum(y * (1 - right), 1)[:, None, :], shape), (N,))
        b = tl.reshape(tl.broadcast_to(tl.sum(y * right, 1)[:, None, :], shape), (N,))
        c = tl.reshape(tl.broadcast_to(tl.max(k, 1)[:, None, :], shape), (N,))
        x, i = tl.where(a > b, a - b + x, x), i + c
    tl.store(Z + tl.arange(0, N), x)
    tl.store(J + tl.arange(0, N), i)


@pytest.mark.parametrize("n, warps", [(32, 1), (64, 1), (16, 4), (128, 2)])
def test_pairs_are_taken_together(n, warps):
    x, i = rng.integers(-50, 50, n).astype(np.float32), rng.integers(0, 9, n).astype(np.int32)
    z, j = np.zeros_like(x), np.zeros_like(i)
    ordered[(1,)](x, i, z, j, n, num_warps=warps)
    for step in range(3):
        y, k = x.reshape(-1, 2, 1 << step), i.reshape(-1, 2, 1 << step)
        a, b = (np.repeat(y[:, p : p + 1], 2, 1).ravel() for p in range(2))
        x, i = np.where(a > b, a - b + x, x), i + np.repeat(k.max(1, keepdims=True), 2, 1).ravel()
    np.testing.assert_array_equal(z, x)
    np.testing.assert_array_equal(j, i)


@triton.jit
def counted(C, N: tl.constexpr):
    total = 0
    for i in range(1, N + 1):
        total += tl.load(C + i * N + tl.program_id(0))
        tl.store(C + i * N + tl.program_id(0), total)


def test_a_kernel_of_scalars_has_one_thread():
    c = rng.integers(0, 9, (9, 8)).astype(np.int32)
    wanted = np.cumsum(c[1:], 0)
    kernel = counted[(8,)](c, 8)
    np.testing.assert_array_equal(c[1:], wanted)
    assert "threads=1 " in kernel.prim_func.script()


@triton.jit
def added(X, S, F, N: tl.constexpr, BLOCK: tl.constexpr, ORDER: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(S + at, tl.load(X + tl.program_id(0) * N + at, at < N, other=0.0), at < N, sem=ORDER)
    tl.atomic_add(F, 1)


@pytest.mark.parametrize("order", ["acq_rel", "release", "acquire", "relaxed"])
def test_changes_of_a_block_are_ordered_together(order):
    x, s, f = rng.integers(-9, 9, (5, 100)).astype(np.float32), np.zeros(100, np.float32), np.zeros(1, np.int32)
    added[(5,)](x, s, f, 100, 128, order, num_warps=1)
    np.testing.assert_array_equal(s, x.sum(0))
    assert f[0] == 5


def test_fences_stand_around_all_changes_of_a_block():
    def fences(order):
        source = triton.compiler.ASTSource(added, {"X": "*fp32", "S": "*fp32", "F": "*i32"}, {"N": 1024, "BLOCK": 1024, "ORDER": order})
        ptx = triton.compile(source, triton.backends.compiler.GPUTarget("cuda", 90, 32), {"num_warps": 1}).asm["ptx"]
        assert ptx.count("atom.global.add.f32") == 32
        return ptx.count("fence.acq_rel.gpu")

    assert fences("acq_rel") == fences("relaxed") + 2


@triton.jit
def divided(X, Y, Z, W, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(X + at), tl.load(Y + at)
    tl.store(Z + at, x / y)
    tl.store(W + at, tl.math.div_rn(x, y))


def test_a_quotient_is_off_by_little_and_div_rn_by_nothing():
    x, y = (rng.normal(size=256).astype(np.float32) for _ in range(2))
    z, w = np.zeros_like(x), np.zeros_like(x)
    kernel = divided[(1,)](x, y, z, w, 256)
    np.testing.assert_array_max_ulp(z, x / y, 2)
    np.testing.assert_array_equal(w, x / y)
    assert "div_full(" in kernel.prim_func.script()


@triton.jit
def divided_towards(X, Y, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(X + at), tl.load(Y + at)
    tl.store(Z + at, libdevice.div_rz(x, y))
    tl.store(Z + N + at, libdevice.div_rd(x, y))
    tl.store(Z + 2 * N + at, libdevice.div_ru(x, y))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quotients_are_rounded_as_asked(dtype):
    x, y = rng.normal(size=256).astype(dtype), rng.normal(size=256).astype(dtype)
    x[:64], y[:64] = rng.integers(-40, 40, 64), rng.integers(1, 9, 64)
    big, tiny = np.finfo(dtype).max, np.finfo(dtype).tiny
    x[64:68], y[64:68] = (big, -big, tiny, -tiny), (0.1, 0.1, big, big)
    z = np.zeros((3, 256), dtype)
    divided_towards[(1,)](x, y, z, 256)
    least = np.nextafter(dtype(0), dtype(1))
    np.testing.assert_array_equal(z[:, 64:68], [[big, -big, 0, 0], [big, -np.inf, 0, -least], [np.inf, -big, least, 0]])
    for i in (*range(64), *range(68, 256)):
        exact = Fraction(float(x[i])) / Fraction(float(y[i]))
        nearest = x[i] / y[i]
        down = nearest if Fraction(float(nearest)) <= exact else np.nextafter(nearest, dtype(-np.inf))
        up = nearest if Fraction(float(nearest)) >= exact else np.nextafter(nearest, dtype(np.inf))
        assert tuple(z[:, i]) == (down if exact > 0 else up, down, up), (x[i], y[i])
