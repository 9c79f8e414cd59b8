# SPDX-License-Identifier: Apache-2.0
"""Elements that are stored in whole vectors though their rows begin anywhere (compiler/rows/align_stores.h): rows of odd lengths, tensors that end
in the middle of a vector, rows that a tensor does not have."""

import kiln.language as T
import numpy as np
import pytest
from regression_test import check

TARGETS = ["emu:sm_80", "emu:sm_90a", "emu:gfx942"]
RNG = np.random.default_rng()
LENGTHS = [65, 77, 131, int(RNG.integers(32, 300)) * 2 + 1, int(RNG.integers(32, 300)) * 2 + 1]
DECISION = "moves through shared memory in whole vectors"


def rows(n, dtype):
    """Each block stores three rows. The tensor does not have the last two."""
    @T.prim_func
    def program(A: T.Tensor((7, n), dtype), w: T.Tensor((n,), dtype), B: T.Tensor((7, n), dtype)):
        with T.Kernel(3, threads=64) as b:
            t = T.alloc_fragment((3, n), "float32")
            T.copy(A[b * 3, 0], t)
            for i, j in T.Parallel(3, n):
                t[i, j] = t[i, j] + T.cast(w[j], "float32")
            T.copy(t, B[b * 3, 0])

    return program


def shared(n, dtype):
    @T.prim_func
    def program(A: T.Tensor((2, 5, n), dtype), B: T.Tensor((2, 5, n), dtype)):
        with T.Kernel(5, 2, threads=128) as (x, y):
            s = T.alloc_shared((n,), dtype)
            T.copy(A[y, x, 0:n], s)
            for j in T.Parallel(n):
                B[y, x, j] = s[n - 1 - j]

    return program


def repeated(n, dtype):
    """A loop's iterations store behind each other, and use the same shared memory."""
    @T.prim_func
    def program(A: T.Tensor((9, n), dtype), B: T.Tensor((9, n), dtype)):
        with T.Kernel(3, threads=96) as b:
            for k in T.serial(3):
                for j in T.Parallel(n):
                    B[b * 3 + k, j] = A[b * 3 + k, n - 1 - j]

    return program


def picked(n, dtype):
    """Rows that a list names. The tensor has other elements between them, which stay."""
    @T.prim_func
    def program(L: T.Tensor((4,), "uint4"), A: T.Tensor((4, n), dtype), B: T.Tensor((17, n), dtype)):
        with T.Kernel(1, threads=64):
            for k in T.serial(4):
                for j in T.Parallel(n):
                    B[T.cast(L[k], "int32") * 4 + k, j] = A[k, j]

    return program


def parts(n, dtype):
    """Rows part by part. The last part ends beyond the row, where another block's row begins; the tensor does not have the last row."""
    @T.prim_func
    def program(A: T.Tensor((5, n), dtype), B: T.Tensor((4, n), dtype)):
        with T.Kernel(5, threads=64) as b:
            for k in T.serial(T.ceildiv(n, 64)):
                for j in T.Parallel(64):
                    B[b, k * 64 + j] = A[b, k * 64 + j] + 1

    return program


def beyond(n, dtype):
    """Parts that lie beyond their rows altogether, of which nothing is stored, and others that begin within vectors."""
    @T.prim_func
    def program(A: T.Tensor((5, n), dtype), B: T.Tensor((2, 5, n), dtype)):
        with T.Kernel(5, 2, threads=64) as (x, y):
            t = T.alloc_fragment((192,), dtype)
            T.copy(A[x, 0:192], t)
            for k in T.serial(T.ceildiv(n, 192) + 1):
                for j in T.Parallel(192):
                    B[y, x, k * 192 + x + j] = t[j]

    return program


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("make", [rows, shared, repeated, picked, parts, beyond])
def test_stores_of_odd_rows(emulator, make, dtype, n, target):
    answer = check(emulator, make(n, dtype), target)
    assert any(DECISION in decision for decision in answer["decisions"]) == ("sm_" in target), answer["decisions"]


def even(n, dtype):
    @T.prim_func
    def program(A: T.Tensor((4, 16 * n), dtype), B: T.Tensor((4, 16 * n), dtype)):
        with T.Kernel(4, threads=64) as b:
            for j in T.Parallel(16 * n):
                B[b, j] = A[b, 16 * n - 1 - j]

    return program


def masked(n, dtype):
    """A store under a condition leaves elements between others as they are."""
    @T.prim_func
    def program(A: T.Tensor((4, n), dtype), B: T.Tensor((4, n), dtype)):
        with T.Kernel(4, threads=32) as b:
            for j in T.Parallel(n):
                if j % 3 != 1:
                    B[b, j] = A[b, n - 1 - j]

    return program


def read_again(n, dtype):
    @T.prim_func
    def program(A: T.Tensor((4, n), dtype), B: T.Tensor((4, n), dtype)):
        with T.Kernel(4, threads=32) as b:
            for j in T.Parallel(n):
                B[b, j] = B[b, j] + A[b, n - 1 - j]

    return program


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("make", [even, masked, read_again])
def test_other_stores_stay(emulator, make, dtype, target):
    answer = check(emulator, make(77, dtype), target)
    assert not any(DECISION in decision for decision in answer["decisions"]), answer["decisions"]
