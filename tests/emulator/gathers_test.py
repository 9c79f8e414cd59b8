# SPDX-License-Identifier: Apache-2.0
"""Transposed tiles, windows of convolutions, and values that threads combine along a dimension of the block."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "int8", "float64"])
@pytest.mark.parametrize("alloc", [T.alloc_shared, T.alloc_fragment])
def test_transpose(call, target, dtype, alloc):
    @T.prim_func
    def program(A: T.Tensor((40, 24), dtype), B: T.Tensor((24, 40), dtype)):
        with T.Kernel(2, 3, threads=64) as (bx, by):
            tile, turned = alloc((20, 8), dtype), alloc((1, 8, 20), dtype)
            T.copy(A[bx * 20 : (bx + 1) * 20, by * 8 : (by + 1) * 8], tile)
            T.transpose(tile, turned[0, :, :])
            T.copy(turned, B[by * 8 : (by + 1) * 8, bx * 20 : (bx + 1) * 20])

    a = np.random.default_rng(1).integers(-100, 100, (40, 24)).astype(dtype)
    np.testing.assert_array_equal(call(program, target, a, np.zeros((24, 40), dtype))[1], a.T)


def convolved(x, w, stride, dilation, pad):
    n, h, wide, c = x.shape
    k, _, _, f = w.shape
    padded = np.zeros((n, h + 2 * pad, wide + 2 * pad, c))
    padded[:, pad : pad + h, pad : pad + wide] = x
    oh, ow = ((size + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for size in (h, wide))
    result = np.zeros((n, oh, ow, f))
    for i in range(k):
        for j in range(k):
            part = padded[:, i * dilation :, j * dilation :][:, : (oh - 1) * stride + 1 : stride, : (ow - 1) * stride + 1 : stride]
            result += part @ w[i, j].astype(np.float64)
    return result


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size, channels, stride, dilation, pad", [((2, 7, 6), 16, 1, 1, 1), ((1, 9, 8), 20, 2, 1, 0), ((1, 8, 9), 16, 1, 2, 2)])
def test_convolution(call, target, size, channels, stride, dilation, pad):
    (n, h, w), k, f = size, 3, 16
    oh, ow = ((s + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for s in (h, w))
    m, block_m, block_k = n * oh * ow, 32, 32

    @T.prim_func
    def program(X: T.Tensor((n, h, w, channels), "float16"), W: T.Tensor((k, k, channels, f), "float16"), O: T.Tensor((n, oh, ow, f), "float32")):
        with T.Kernel(T.ceildiv(m, block_m), threads=64) as bx:
            x, weights = T.alloc_shared((block_m, block_k), "float16"), T.alloc_shared((block_k, f), "float16")
            total = T.alloc_fragment((block_m, f), "float32")
            flat, out = T.Tensor((k * k * channels, f), "float16", W.data), T.Tensor((m, f), "float32", O.data)
            T.clear(total)
            for step in T.Pipelined(T.ceildiv(k * k * channels, block_k), num_stages=2):
                T.im2col(X, x, bx, step, k, stride, dilation, pad)
                T.copy(flat[step * block_k, 0], weights)
                T.gemm(x, weights, total)
            T.copy(total, out[bx * block_m, 0])

    random = np.random.default_rng(3)
    x, weights = (random.integers(-4, 5, shape).astype(np.float16) for shape in ((n, h, w, channels), (k, k, channels, f)))
    after = call(program, target, x, weights, np.zeros((n, oh, ow, f), np.float32))
    np.testing.assert_array_equal(after[2], convolved(x, weights, stride, dilation, pad))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block, along", [((8, 16), 1), ((32, 4), 0), ((4, 4, 4), 2), ((64,), 0), ((3, 5), 1), ((16, 1), 1)])
@pytest.mark.parametrize("function, ufunc", [(lambda x, y: x + y, np.add), (lambda x, y: T.max(x, y), np.maximum), (lambda x, y: x * y, np.multiply)])
def test_threads_combine_along_a_dimension(call, target, block, along, function, ufunc):
    count = int(np.prod(block))
    x, y = block[0], block[1] if len(block) > 1 else 1

    @T.prim_func
    def program(A: T.Tensor((count,), "float32"), B: T.Tensor((count,), "float32")):
        with T.Kernel(1, threads=block):
            tx, ty, tz = T.get_thread_bindings()
            thread = tx + x * (ty + y * tz)
            mine, reduced = T.alloc_local((1,), "float32"), T.alloc_local((1,), "float32")
            mine[0] = A[thread]
            with T.attr(T.comm_reducer(function, [T.float32(1)]), "reduce_scope", T.reinterpret(T.uint64(0), dtype="handle")):
                T.evaluate(T.tvm_thread_allreduce(T.uint32(1), mine[0], True, reduced[0], T.get_thread_binding(along), dtype="handle"))
            B[thread] = reduced[0]

    a = np.random.default_rng(4).choice([1.0, 2.0, -1.0, -2.0], count).astype(np.float32)
    if ufunc is np.multiply:
        a = np.sign(a)
    shape = tuple(reversed([*block, 1, 1][:3]))
    axis = 2 - along
    expected = np.broadcast_to(ufunc.reduce(a.reshape(shape), axis=axis, keepdims=True), shape).reshape(-1)
    np.testing.assert_array_equal(call(program, target, a, np.zeros(count, np.float32))[1], expected)


@pytest.mark.parametrize("target", TARGETS)
def test_a_reduction_of_a_programs_own_goes_by_halves(call, target):
    @T.prim_func
    def program(A: T.Tensor((8,), "float16"), B: T.Tensor((8,), "float16")):
        with T.Kernel(1, threads=8):
            tx = T.get_thread_binding()
            mine, reduced = T.alloc_local((1,), "float16"), T.alloc_local((1,), "float16")
            mine[0] = A[tx]
            with T.attr(T.comm_reducer(lambda x, y: x * y, [T.float16(1)]), "reduce_scope", T.reinterpret(T.uint64(0), dtype="handle")):
                T.evaluate(T.tvm_thread_allreduce(T.uint32(1), mine[0], True, reduced[0], tx, dtype="handle"))
            B[tx] = reduced[0]

    a = np.array([5, 0.5, 13, 0.25, 11, 11, 0.25, 13], np.float16)  # one after another it would be rounded in other places
    halves = a
    while len(halves) > 1:
        halves = halves[: len(halves) // 2] * halves[len(halves) // 2 :]
    assert halves[0] != np.multiply.accumulate(a, dtype=np.float16)[-1]
    np.testing.assert_array_equal(call(program, target, a, np.zeros(8, np.float16))[1], np.full(8, halves[0]))


@pytest.mark.parametrize("target", TARGETS)
def test_a_slice_that_ends_where_the_launch_says_is_filled(call, target):
    @T.prim_func
    def program(A: T.Tensor((4, 40), "int32"), N: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=64) as bx:
            last = N[bx]
            T.fill(A[bx, 3:last], bx + 7)

    n = np.array([3, 4, 21, 50], np.int32)
    expected = np.zeros((4, 40), np.int32)
    for row, last in enumerate(n):
        expected[row, 3:last] = row + 7
    np.testing.assert_array_equal(call(program, target, np.zeros((4, 40), np.int32), n)[0], expected)
