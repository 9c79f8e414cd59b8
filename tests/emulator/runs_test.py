# SPDX-License-Identifier: Apache-2.0
"""Elements that begin anywhere and move in whole vectors (compiler/rows/align_runs.h): rows of odd lengths, tensors that end in the middle of
a vector, values for what lies outside."""

import kiln.language as T
import numpy as np
import pytest
from regression_test import check

TARGETS = ["emu:sm_80", "emu:sm_90a", "emu:gfx942"]
RNG = np.random.default_rng()
LENGTHS = [64, 65, 77, 131, int(RNG.integers(64, 600)), int(RNG.integers(64, 600))]


def rows(n, dtype):
    """Each block scales a row, the last two of which it does not have."""
    @T.prim_func
    def program(A: T.Tensor((7, n), dtype), w: T.Tensor((n,), dtype), B: T.Tensor((7, n), dtype)):
        with T.Kernel(3, threads=64) as b:
            t = T.alloc_fragment((3, n), "float32")
            T.copy(A[b * 3, 0], t)
            for i, j in T.Parallel(3, n):
                t[i, j] = t[i, j] + T.cast(w[j], "float32")
            T.copy(t, B[b * 3, 0])

    return program


def through_shared(n, dtype):
    @T.prim_func
    def program(A: T.Tensor((2, 5, n), dtype), B: T.Tensor((2, 5, n), dtype)):
        with T.Kernel(5, 2, threads=128) as (x, y):
            s = T.alloc_shared((n,), dtype)
            T.copy(A[y, x, 0:n], s)
            for j in T.Parallel(n):
                B[y, x, j] = s[n - 1 - j]

    return program


def parts(n, dtype):
    """Sums of parts that go beyond the row: what lies there is 3. The tensor's own last elements are read once more."""
    @T.prim_func
    def program(A: T.Tensor((5, n), dtype), B: T.Tensor((5, 128), "float32")):
        with T.Kernel(5, threads=64) as b:
            T.annotate_safe_value({A: 3})
            s = T.alloc_shared((128,), dtype)
            t = T.alloc_fragment((128,), "float32")
            T.clear(t)
            for k in T.serial(T.ceildiv(n, 128) + 1):
                for j in T.Parallel(128):
                    s[j] = A[b, k * 128 + j]
                for j in T.Parallel(128):
                    t[j] += T.cast(s[127 - j], "float32")
            for j in T.Parallel(128):
                t[j] += T.cast(A[4, n - 1 - j % 8], "float32")
            T.copy(t, B[b, 0])

    return program


def flat(n, dtype):
    """A tensor whose length no block divides, by elements in another order than the loop's."""
    @T.prim_func
    def program(A: T.Tensor((n,), dtype), B: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, 256), threads=64) as b:
            for i, j in T.Parallel(4, 64):
                B[b * 256 + i * 64 + j] = A[b * 256 + j * 4 + i] + A[b * 256 + i * 64 + j]

    return program


def masked(n, dtype):
    """Stores under a condition stay as they are; loads under one do not come to what lies outside."""
    @T.prim_func
    def program(A: T.Tensor((4, n), dtype), B: T.Tensor((4, n), dtype), C: T.Tensor((4, n), dtype)):
        with T.Kernel(4, threads=32) as b:
            s = T.alloc_shared((n,), dtype)
            for j in T.Parallel(n):
                s[j] = T.if_then_else(j > 5, A[b, j - 5], A[b, j])
            for j in T.Parallel(n):
                if j % 3 != 1:
                    B[b, j] = s[n - 1 - j]
                C[b, j] = A[b, n - 1 - j]

    return program


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("make", [rows, through_shared, parts, flat, masked])
def test_runs(emulator, make, dtype, n, target):
    check(emulator, make(n, dtype), target)
