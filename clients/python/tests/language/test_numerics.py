# SPDX-License-Identifier: Apache-2.0
"""The programs of the library and of the examples compute what they say: run with numpy (see ``interpreter``) on fresh random data and
compared with float64."""

import numpy as np
import pytest
from interpreter import interpret, rounded

import kiln
import kiln.language as T
from kiln.examples.add import add
from kiln.examples.attention import attention
from kiln.library.programs.gemm import gemm
from kiln.library.programs.rms_norm import rms_norm
from kiln.library.programs.softmax import softmax, softmax_online

RNG = np.random.default_rng()
BOUND = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "int32": 0, "tfloat32": 1e-5}


def random(shape, dtype):
    if dtype.startswith("int"):
        return RNG.integers(-8, 8, shape).astype(dtype)
    return rounded(RNG.standard_normal(shape), dtype)


def relative_error(actual, expected):
    return np.linalg.norm(actual.astype(np.float64) - expected) / max(np.linalg.norm(expected), 1e-30)


def erf(x):
    import math

    return np.vectorize(math.erf)(x)


ACTIVATION = {None: lambda x: x, "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x)),
              "gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2)))}


@pytest.mark.parametrize("shape, options", [
    ((64, 64, 64), {}),
    ((50, 37, 33), {"bias": True, "activation": "relu"}),
    ((50, 37, 33), {"bias": True, "activation": "gelu", "in_dtype": "bfloat16"}),
    ((50, 37, 33), {"activation": "silu", "trans_a": True}),
    ((33, 17, 65), {"trans_b": True, "swizzle": 4}),
    ((33, 17, 65), {"trans_a": True, "trans_b": True, "out_dtype": "float32"}),
    ((40, 40, 40), {"in_dtype": "int8", "trans_b": True}),
    ((40, 40, 40), {"in_dtype": "tfloat32"}),
    (None, {"bias": True}),
])
def test_gemm(shape, options):
    m, n, k = shape or (45, 23, 31)
    func = gemm(*(shape or ()), block_m=32, block_n=16, block_k=16, **options)
    in_dtype, out_dtype = options.get("in_dtype", "float16"), func.params[-1].buffer.dtype
    a = random((k, m) if options.get("trans_a") else (m, k), in_dtype)
    b = random((n, k) if options.get("trans_b") else (k, n), in_dtype)
    tensors = [a, b] + ([random((n,), out_dtype)] if options.get("bias") else [])
    expected = (a.T if options.get("trans_a") else a).astype(float) @ (b.T if options.get("trans_b") else b).astype(float)
    if options.get("bias"):
        expected = expected + tensors[2]
    (actual,) = interpret(func, *tensors)
    assert relative_error(actual, ACTIVATION[options.get("activation")](expected)) <= BOUND[out_dtype]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq_len, dim, symbolic", [(64, 16, False), (75, 24, False), (33, 16, True)])
def test_attention(causal, seq_len, dim, symbolic):
    func = attention(1, 2, None if symbolic else seq_len, dim, causal, block_m=32, block_n=16)
    q, k, v = (random((1, seq_len, 2, dim), "float16") for _ in range(3))
    scores = np.einsum("bihd,bjhd->bhij", q.astype(float), k.astype(float)) / np.sqrt(dim)
    if causal:
        scores = np.where(np.tri(seq_len, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), v.astype(float))
    (actual,) = interpret(func, q, k, v)
    assert relative_error(actual, expected) <= 2e-3


@pytest.mark.parametrize("rows, dtype", [(1, "float16"), (2, "float32")])
def test_rows(rows, dtype):
    x, w = random((7, 50), dtype), random((50,), dtype)
    wide = x.astype(float)
    (actual,) = interpret(rms_norm(7, 50, dtype, rows=rows), x, w)
    assert relative_error(actual, wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * w) <= BOUND[dtype]
    expected = np.exp(wide - wide.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    (actual,) = interpret(softmax(None, 50, dtype, rows=rows), x)
    assert relative_error(actual, expected) <= BOUND[dtype]
    (actual,) = interpret(softmax_online(dtype=dtype, columns=16), x)
    assert relative_error(actual, expected) <= BOUND[dtype]
    (actual,) = interpret(add(dtype=dtype), x, x)
    assert np.array_equal(actual, x + x)


def test_control_flow_and_variables():
    @kiln.jit
    def collatz(A):
        n = T.const("n")
        A: T.Tensor((n,), "int32")
        steps = T.empty((n,), "int32")
        with T.Kernel(n) as bx:
            value, count = T.alloc_var("int32"), T.alloc_var("int32", 0)
            value = A[bx]
            while value != 1:
                if value % 2 == 0:
                    value //= 2
                else:
                    value = 3 * value + 1
                count += 1
            steps[bx] = count if bx >= 0 else -1
        return steps

    func = collatz.get_tir(n=9)
    (actual,) = interpret(func, np.array([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert list(actual) == [0, 1, 7, 2, 5, 8, 16, 3, 19]


def test_steps_grids_and_persistent_tiles():
    @T.prim_func
    def f(A: T.Tensor((20,), "int32"), B: T.Tensor((6, 10), "int32"), workers: T.int32):
        with T.Kernel(3, threads=1) as bx:
            for i in T.serial(17, 1, -4):
                T.atomic_add(A[i], 1)
            for m, n in T.Persistent([6, 10], workers, bx, group_size=4):
                T.atomic_add(B[m, n], 1)

    a, b = interpret(f.with_outputs([0, 1]), scalars=[3])
    assert [i for i, n in enumerate(a) if n] == [5, 9, 13, 17] and a.max() == 3
    assert (b == 1).all(), "each tile once"


@pytest.mark.parametrize("dim, reverse", [(0, False), (1, True), (-1, False)])
def test_scans(dim, reverse):
    @T.prim_func
    def f(A: T.Tensor((8, 12), "float32"), B: T.Tensor((8, 12), "float32"), C: T.Tensor((8, 12), "float32")):
        with T.Kernel(1):
            a, c = T.alloc_fragment((8, 12), "float32"), T.alloc_shared((8, 12), "float32")
            T.copy(A, a)
            T.cumsum(a, dim=dim, reverse=reverse)
            T.copy(a, B)
            T.copy(A, c)
            T.cummax(c, c, dim=dim, reverse=reverse)
            T.copy(c, C)

    a = random((8, 12), "float32")
    total, largest = interpret(f.with_outputs([1, 2]), a)
    turned = np.flip(a, dim) if reverse else a
    for actual, expected in ((total, np.cumsum(turned, dim)), (largest, np.maximum.accumulate(turned, dim))):
        assert np.allclose(actual, np.flip(expected, dim) if reverse else expected, atol=1e-5)


def test_reductions_of_private_arrays():
    @T.prim_func
    def f(A: T.Tensor((3, 4), "int32"), B: T.Tensor((4,), "int32"), C: T.Tensor((3,), "int32")):
        with T.Kernel(1):
            a, b, c = T.alloc_local((3, 4), "int32"), T.alloc_local((1, 4), "int32"), T.alloc_local((3,), "int32")
            T.copy(A, a)
            T.reduce_max(a, b, dim=0)
            T.fill(c, 100)
            T.reduce_abssum(a, c, dim=1)
            T.reduce_sum(a, c, dim=1, clear=False)
            T.copy(b, B)
            T.copy(c, C)

    a = random((3, 4), "int32")
    largest, total = interpret(f.with_outputs([1, 2]), a)
    assert np.array_equal(largest, a.max(0)) and np.array_equal(total, np.abs(a).sum(1) + a.sum(1))


def test_rounding_away_from_zero():
    @T.prim_func
    def f(A: T.Tensor((6,), "float32"), B: T.Tensor((6,), "float32")):
        with T.Kernel(6) as bx:
            B[bx] = T.round(A[bx], "ties-away-from-zero")

    (actual,) = interpret(f.with_outputs(1), np.array([0.5, 1.5, -0.5, -2.5, 0.49999997, 3.2]))
    assert list(actual) == [1, 2, -1, -3, 0, 3]


def test_split_k_over_two_kernels():
    @T.prim_func
    def f(A: T.Tensor((16, 64), "float16"), B: T.Tensor((64, 16), "float16"), C: T.Tensor((16, 16), "float32")):
        W = T.alloc_global((4, 16, 16), "float32")
        with T.Kernel(4) as bx:
            a, b = T.alloc_shared((16, 16), "float16"), T.alloc_shared((16, 16), "float16")
            c = T.alloc_fragment((16, 16), "float32")
            T.copy(A[:, bx * 16 : (bx + 1) * 16], a)
            T.copy(B[bx * 16, 0], b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, W[bx, :, :])
        with T.Kernel(1) as bx:
            total = T.alloc_fragment((16, 16), "float32")
            T.clear(total)
            for s in T.serial(4):
                for i, j in T.Parallel(16, 16):
                    total[i, j] += W[s, i, j]
            T.copy(total, C)

    a, b = random((16, 64), "float16"), random((64, 16), "float16")
    (actual,) = interpret(f.with_outputs(2), a, b)
    assert relative_error(actual, a.astype(float) @ b.astype(float)) < 1e-6
