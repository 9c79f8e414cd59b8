# SPDX-License-Identifier: Apache-2.0
"""Block pointers and tensor descriptors, against numpy."""

from typing import NamedTuple

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

rng = np.random.default_rng()


def matrix(*shape):
    return rng.normal(size=shape).astype(np.float32)


@triton.jit
def product_of_blocks(A, B, C, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    a = tl.make_block_ptr(A, (M, K), (sa, 1), (i, 0), (BM, BK), order=(1, 0))
    b = tl.make_block_ptr(B, (K, N), (sb, 1), (0, j), (BK, BN), order=(1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(a, boundary_check=(0, 1)), tl.load(b, boundary_check=(0, 1), padding_option="zero"), acc, input_precision="ieee")
        a = tl.advance(a, (0, BK))
        b = tl.advance(b, (BK, 0))
    c = tl.make_block_ptr(C, (M, N), (sc, 1), (i, j), (BM, BN), (1, 0))
    tl.store(c, acc, boundary_check=(0, 1))


@pytest.mark.parametrize("m, n, k", [(32, 32, 32), (40, 24, 50), (7, 33, 16)])
def test_a_product_of_block_pointers(m, n, k):
    a, b, c = matrix(m, k), matrix(k, n), np.full((m, n), np.nan, np.float32)
    product_of_blocks[(triton.cdiv(m, 32), triton.cdiv(n, 32))](a, b, c, m, n, k, k, n, n, 32, 32, 16)
    np.testing.assert_allclose(c, a @ b, atol=1e-4)


@triton.jit
def moved(X, Z, N, first, BLOCK: tl.constexpr, CHECK: tl.constexpr, PADDING: tl.constexpr):
    p = tl.make_block_ptr(X, [N], [1], [first], [BLOCK], [0])
    tl.store(Z + tl.arange(0, BLOCK), tl.load(p, boundary_check=CHECK, padding_option=PADDING))


@pytest.mark.parametrize("first", [-5, 0, 90])
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_outside_of_the_shape(first, padding):
    x, z = matrix(100), np.zeros(32, np.float32)
    moved[(1,)](x, z, 100, first, 32, (0,), padding)
    index = first + np.arange(32)
    inside = (index >= 0) & (index < 100)
    np.testing.assert_array_equal(z, np.where(inside, x[np.clip(index, 0, 99)], 0 if padding == "zero" else np.nan))


@triton.jit
def halved(X, Z, N: tl.constexpr):
    p = tl.make_block_ptr(Z, (N, N), (N, 1), (0, 0), (N, N), (1, 0))
    x = tl.load(tl.make_block_ptr(X, (N, N), (N, 1), (0, 0), (N, N), (1, 0))) / 2
    tl.static_assert(p.dtype.is_ptr() and p.type.element_ty.element_ty == Z.dtype.element_ty)
    tl.store(p, x.to(p.dtype.element_ty))


def test_the_type_that_a_block_pointer_points_to():
    x, z = matrix(16, 16), np.zeros((16, 16), np.float16)
    halved[(1,)](x, z, 16)
    np.testing.assert_array_equal(z, (x / 2).astype(np.float16))


@triton.jit
def chosen(X, Y, Z, which, N: tl.constexpr):
    p = tl.make_block_ptr(X, (N, N), (N, 1), (0, 0), (N, N), (1, 0))
    if which > 0:
        p = tl.advance(p, (2, 0))
    elif which < 0:
        p = tl.advance(p, (0, 3))
    tl.store(tl.make_block_ptr(Z, (N, N), (N, 1), (0, 0), (N, N), (1, 0)), tl.load(p, boundary_check=(0, 1)))


@pytest.mark.parametrize("which", [-1, 0, 1])
def test_a_block_pointer_behind_an_if(which):
    x, z = matrix(16, 16), np.zeros((16, 16), np.float32)
    chosen[(1,)](x, x.copy(), z, which, 16)
    wanted = np.zeros((16, 16), np.float32)
    down, right = (2, 0) if which > 0 else (0, 3) if which < 0 else (0, 0)
    wanted[: 16 - down, : 16 - right] = x[down:, right:]
    np.testing.assert_array_equal(z, wanted)


@triton.jit
def scaled_by_descriptor(X, Z, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(X, [M, N], [N, 1], [BM, BN])
    target = tl.make_tensor_descriptor(Z, [M, N], [N, 1], [BM, BN])
    tl.static_assert(source.dtype == tl.float32 and source.block_shape[1] == BN)
    for j in range(0, N, BN):
        target.store([tl.program_id(0) * BM, j], source.load([tl.program_id(0) * BM, j]) * 2)


def test_descriptors_that_a_kernel_makes():
    x, z = matrix(37, 50), np.zeros((37, 50), np.float32)
    scaled_by_descriptor[(5,)](x, z, 37, 50, 8, 16)
    np.testing.assert_array_equal(z, x * 2)


@triton.jit
def transposed(source, target, rows, BM: tl.constexpr, BN: tl.constexpr):
    for i in range(0, rows, BM):
        target.store([0, i], source.load([i, 0]).T)
    if isinstance(source, tl.tensor_descriptor):
        target.atomic_add([0, 0], tl.full((BN, BM), 1, tl.float32))


def test_descriptors_of_the_host():
    x, z = matrix(24, 16), np.zeros((16, 24), np.float32)
    transposed[(1,)](TensorDescriptor.from_tensor(x, [8, 16]), TensorDescriptor(z, z.shape, [24, 1], [16, 8]), 24, 8, 16)
    wanted = x.T.copy()
    wanted[:, :8] += 1
    np.testing.assert_array_equal(z, wanted)


@triton.jit
def rows_of(source, target, I, column, N: tl.constexpr):
    at = tl.load(I + tl.arange(0, N))
    target.scatter(source.gather(at, column), tl.arange(0, N), 0)


def test_rows_that_an_index_names():
    x, z, index = matrix(20, 32), np.zeros((8, 16), np.float32), rng.integers(-1, 22, 8).astype(np.int32)
    rows_of[(1,)](TensorDescriptor.from_tensor(x, [1, 16]), TensorDescriptor.from_tensor(z, [1, 16]), index, 8, 8)
    inside = (index >= 0) & (index < 20)
    np.testing.assert_array_equal(z, np.where(inside[:, None], x[np.clip(index, 0, 19), 8:24], 0))


class Pair(NamedTuple):
    x: object
    n: object


@triton.jit
def total(pair, Z, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(Z, tl.sum(tl.load(pair.x + at, at < pair.n, 0), 0))


def test_an_argument_with_names():
    x, z = matrix(50), np.zeros(1, np.float32)
    total[(1,)](Pair(x, 50), z, 64)
    np.testing.assert_allclose(z, x.sum(), atol=1e-4)


@triton.jit
def far(X, Z, first: tl.int64):
    block = tl.advance(tl.make_block_ptr(X, (1 << 40,), (1,), (first,), (16,), (0,)), (16,))
    tl.store(Z + tl.arange(0, 16), tl.load(block, boundary_check=(0,)))


def test_an_offset_of_64_bits_is_not_cut():
    z = np.ones(16, np.float32)
    far[(1,)](np.ones(64, np.float32), z, 1 << 32)
    assert not z.any()
