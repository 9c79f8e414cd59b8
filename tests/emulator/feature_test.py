# SPDX-License-Identifier: Apache-2.0
"""Statements and expressions other than the big kernels', on each family of targets, checked: results against numpy's."""

import math

import cases
import kiln.language as T
import numpy as np
import pytest
from data import fp8_values

RNG = np.random.default_rng()
TYPES = {np.dtype(np.float16): "float16", np.dtype(np.float32): "float32", np.dtype(np.float64): "float64", np.dtype(np.int32): "int32",
         np.dtype(np.int8): "int8", np.dtype(np.uint8): "uint8"}


@pytest.fixture(params=cases.TARGETS)
def call(emulator, request):
    def call(program, *arrays, clean=True, dtypes=None):
        tensors = [(array, (dtypes or {}).get(i, TYPES[array.dtype])) for i, array in enumerate(arrays)]
        after, answer = emulator.call(emulator.module(program.serialized), request.param, tensors, check=1, seed=int(RNG.integers(100)))
        assert "error" not in answer, answer["error"]
        assert answer["finished"]
        assert not clean or not answer["findings"], [finding["message"] for finding in answer["findings"]]
        return after

    return call


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind,reference", [
    ("sum", np.sum), ("max", np.max), ("min", np.min), ("absmax", lambda x, axis: np.abs(x).max(axis)),
    ("abssum", lambda x, axis: np.abs(x).sum(axis))])
@pytest.mark.parametrize("dim,shape", [(0, (48, 80)), (1, (48, 80)), (1, (3, 1000)), (0, (300, 7))])
def test_reductions(call, kind, reference, dim, shape):
    @T.prim_func
    def program(A: T.Tensor(shape, "float32"), B: T.Tensor((shape[1 - dim],), "float32")):
        with T.Kernel(1, threads=128):
            tile, result = T.alloc_fragment(shape, "float32"), T.alloc_fragment((shape[1 - dim],), "float32")
            T.copy(A, tile)
            T.reduce(tile, result, kind, dim)
            T.copy(result, B)

    a = floats(*shape)
    result = call(program, a, np.zeros(shape[1 - dim], np.float32))[1]
    assert np.allclose(result, reference(a.astype(np.float64), axis=dim), atol=1e-4)


def test_bit_reductions(call):
    @T.prim_func
    def program(A: T.Tensor((40, 64), "int32"), B: T.Tensor((3, 40), "int32")):
        with T.Kernel(1, threads=64):
            tile, result = T.alloc_fragment((40, 64), "int32"), T.alloc_fragment((40,), "int32")
            T.copy(A, tile)
            for index, kind in enumerate(("bitand", "bitor", "bitxor")):
                T.reduce(tile, result, kind, 1)
                T.copy(result, B[index, :])

    a = RNG.integers(-(2**31), 2**31, (40, 64)).astype(np.int32)
    result = call(program, a, np.zeros((3, 40), np.int32))[1]
    for row, function in enumerate((np.bitwise_and, np.bitwise_or, np.bitwise_xor)):
        assert np.array_equal(result[row], function.reduce(a, axis=1))


def test_transpose_and_gather(call):
    @T.prim_func
    def program(A: T.Tensor((64, 48), "float16"), I: T.Tensor((64,), "int32"), B: T.Tensor((48, 64), "float16"),
                C: T.Tensor((64, 48), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 48), "float16")
            T.copy(A, tile)
            for i, j in T.Parallel(48, 64):
                B[i, j] = tile[j, i]
            for i, j in T.Parallel(64, 48):
                C[i, j] = A[I[i], j]

    a, rows = floats(64, 48).astype(np.float16), RNG.permutation(64).astype(np.int32)
    _, _, b, c = call(program, a, rows, np.zeros((48, 64), np.float16), np.zeros((64, 48), np.float16))
    assert np.array_equal(b, a.T) and np.array_equal(c, a[rows])


def test_histogram_by_atomics(call):
    @T.prim_func
    def program(A: T.Tensor((1000,), "int32"), H: T.Tensor((10,), "int32"), L: T.Tensor((1,), "int32"), S: T.Tensor((1,), "float32")):
        with T.Kernel(8, threads=64) as bx:
            for i in T.Parallel(125):
                T.atomic_add(H[A[bx * 125 + i]], 1)
                T.atomic_max(L[0], A[bx * 125 + i])
                T.atomic_add(S[0], T.cast(A[bx * 125 + i], "float32"))

    a = RNG.integers(0, 10, 1000).astype(np.int32)
    _, histogram, largest, total = call(program, a, np.zeros(10, np.int32), np.full(1, -1, np.int32), np.zeros(1, np.float32))
    assert np.array_equal(histogram, np.bincount(a, minlength=10)) and largest[0] == a.max() and total[0] == a.sum()


def test_control_flow(call):
    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(64, threads=64) as bx:
            value, count = T.alloc_var("int32"), T.alloc_var("int32", 0)
            value = A[bx]
            while value != 1:
                if value % 2 == 0:
                    value //= 2
                else:
                    value = 3 * value + 1
                count += 1
            B[bx] = count

    def steps(n):
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    a = np.arange(1, 65, dtype=np.int32)
    assert list(call(program, a, np.zeros(64, np.int32))[1]) == [steps(int(n)) for n in a]


@pytest.mark.parametrize("dim,reverse", [(0, False), (1, True)])
def test_scans(call, dim, reverse):
    @T.prim_func
    def program(A: T.Tensor((24, 40), "float32"), B: T.Tensor((24, 40), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((24, 40), "float32")
            T.copy(A, tile)
            T.cumsum(tile, dim=dim, reverse=reverse)
            T.copy(tile, B)

    a = floats(24, 40)
    turned = np.flip(a, dim) if reverse else a
    expected = np.cumsum(turned.astype(np.float64), dim)
    assert np.allclose(call(program, a, np.zeros_like(a))[1], np.flip(expected, dim) if reverse else expected, atol=1e-4)


def test_split_k_over_two_kernels(call):
    @T.prim_func
    def program(A: T.Tensor((64, 256), "float16"), B: T.Tensor((256, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        W = T.alloc_global((4, 64, 64), "float32")
        with T.Kernel(4) as bx:
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A[:, bx * 64 : (bx + 1) * 64], a)
            T.copy(B[bx * 64, 0], b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, W[bx, :, :])
        with T.Kernel(1) as bx:
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            for s in T.serial(4):
                for i, j in T.Parallel(64, 64):
                    total[i, j] += W[s, i, j]
            T.copy(total, C)

    a, b = floats(64, 256).astype(np.float16), floats(256, 64).astype(np.float16)
    result = call(program, a, b, np.zeros((64, 64), np.float32))[2]
    assert np.allclose(result, a.astype(np.float64) @ b.astype(np.float64), atol=1e-3)


FUNCTIONS = {"exp": np.exp, "exp2": np.exp2, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
             "erf": np.vectorize(math.erf), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "floor": np.floor, "rsqrt": lambda x: 1 / np.sqrt(x)}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_functions(call, dtype):
    @T.prim_func
    def program(A: T.Tensor((256,), dtype), B: T.Tensor((len(FUNCTIONS), 256), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(256):
                for index, name in enumerate(FUNCTIONS):
                    B[index, i] = getattr(T, name)(A[i])

    a = RNG.uniform(0.1, 6, 256).astype(dtype)
    result = call(program, a, np.zeros((len(FUNCTIONS), 256), dtype))[1]
    for row, (name, function) in enumerate(FUNCTIONS.items()):
        expected = function(a.astype(np.float64))
        tolerance = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-12}[dtype]
        assert np.allclose(result[row], expected, rtol=tolerance, atol=tolerance), name


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_conversions_of_8_bit_floats(call, dtype):
    """Every value widened and narrowed again; halfway values to even."""

    @T.prim_func
    def program(A: T.Tensor((256,), dtype), B: T.Tensor((256,), "float32"), C: T.Tensor((256,), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(256):
                B[i] = T.cast(A[i], "float32")
            for i in T.Parallel(256):
                C[i] = T.cast(T.cast(A[i], "float32"), dtype)

    a, values = np.arange(256, dtype=np.uint8), fp8_values(dtype)
    _, b, c = call(program, a, np.zeros(256, np.float32), np.zeros(256, np.uint8), dtypes={0: dtype, 2: dtype})
    finite = ~np.isnan(values)
    assert np.array_equal(b[finite], values[finite].astype(np.float32)) and np.array_equal(c[finite], a[finite])


def test_product_of_a_fragment(call):
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_fragment((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c, d = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c)
            for i, j in T.Parallel(64, 64):
                a[i, j] = T.cast(c[i, j] * 0.125, "float16")
            T.clear(d)
            T.gemm(a, b, d, transpose_B=True)
            T.copy(d, C)

    a, b = floats(64, 64).astype(np.float16), floats(64, 64).astype(np.float16)
    wide = b.astype(np.float64)
    result = call(program, a, b, np.zeros((64, 64), np.float32))[2]
    assert np.allclose(result, (a.astype(np.float64) @ wide * 0.125) @ wide.T, atol=0.1)


def test_rows_of_a_swizzled_tile_from_a_loop_variable(call):
    """Its bits may carry into the swizzle's."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32"),
                D: T.Tensor((48, 4, 16, 64), "float16")):
        with T.Kernel(1, threads=128):
            a, b, c = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16"), T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)
            for k in T.serial(T.cast(48, "int64")):
                for i, again, j in T.Parallel(4, 16, 64):
                    D[k, i, again, j] = a[i + k, j]

    a, b = floats(64, 64).astype(np.float16), floats(64, 64).astype(np.float16)
    result = call(program, a, b, np.zeros((64, 64), np.float32), np.zeros((48, 4, 16, 64), np.float16))[3]
    assert all(np.array_equal(result[k, i], np.broadcast_to(a[i + k], (16, 64))) for k in range(48) for i in range(4))


def test_elements_of_fragments_outside_of_parallel_loops(call):
    """Between loops that hold the same elements in registers."""
    @T.prim_func
    def program(A: T.Tensor((64,), "float32"), B: T.Tensor((4,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            row, total, kept = T.alloc_fragment((64,), "float32"), T.alloc_fragment((1,), "float32"), T.alloc_fragment((4,), "float32")
            T.copy(A, row)
            T.reduce_sum(row, total, dim=0)
            kept[0] = total[0]
            for i in T.Parallel(1):
                total[i] = total[i] * 2
            kept[1] = total[0]
            T.fill(total, 5.0)
            kept[2] = total[0] + kept[0]
            kept[3] = 1.0
            T.fill(total, 6.0)
            for k in T.serial(4):
                total[0] = total[0] + kept[k]
            for i in T.Parallel(4):
                kept[i] = kept[i] + total[0]
            for i in T.Parallel(64):
                C[i] = row[i] + kept[0]
            T.copy(kept, B)

    a = RNG.integers(0, 100, 64).astype(np.float32)
    _, b, c = call(program, a, np.zeros(4, np.float32), np.zeros(64, np.float32))
    kept = np.array([a.sum(), 2 * a.sum(), 5 + a.sum(), 1])
    assert np.array_equal(b, kept + 6 + kept.sum()) and np.array_equal(c, a + b[0])
