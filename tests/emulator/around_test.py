# SPDX-License-Identifier: Apache-2.0
"""Neighbours that begin anywhere in memory and are loaded by the two aligned vectors around them (ir::LoadForm::kAround): rows of odd lengths, parts
that begin or end within a row, tensors that end in the middle of a vector."""

import kiln.language as T
import numpy as np
import pytest
from emulated import BINARY, AsPtx
from regression_test import check

DECISION = "from the two aligned vectors around them"
TARGETS = ["emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
RNG = np.random.default_rng()
LENGTHS = [1, 7, 65, 255, 257, int(RNG.integers(2, 400)) * 2 + 1, int(RNG.integers(2, 400)) * 2 + 1]


def parts(n, dtype, first):
    """A row part by part; the last ends beyond it, as all do of rows that the tensor does not have."""
    @T.prim_func
    def program(A: T.Tensor((5, n), dtype), B: T.Tensor((6, 256), dtype)):
        with T.Kernel(6, threads=32) as b:
            T.annotate_safe_value({A: 3})
            t = T.alloc_fragment((256,), dtype)
            T.copy(B[b, 0], t)
            for k in T.serial(T.ceildiv(n, 256)):
                for j in T.Parallel(256):
                    t[j] = T.max(t[j], A[b, k * 256 + j + first])
            T.copy(t, B[b, 0])

    return program


def masked(n, dtype, first):
    """Where a mask does not hold, there is another value."""
    @T.prim_func
    def program(A: T.Tensor((5, n), dtype), B: T.Tensor((5, 256), dtype)):
        with T.Kernel(5, threads=16) as b:
            t = T.alloc_fragment((256,), dtype)
            for j in T.Parallel(256):
                t[j] = T.if_then_else((j + b) % 3 < 2, A[b, j + first], 2)
            T.copy(t, B[b, 0])

    return program


def squares(n, dtype, first):
    """Threads that have four neighbours each, of two rows of a block."""
    @T.prim_func
    def program(A: T.Tensor((3, 7, n), dtype), B: T.Tensor((3, 8, 128), "float32")):
        with T.Kernel(4, 3, threads=64) as (x, y):
            t = T.alloc_fragment((2, 128), "float32")
            for i, j in T.Parallel(2, 128):
                t[i, j] = T.cast(A[y, x * 2 + i, j + first], "float32")
            for i, j in T.Parallel(2, 128):
                t[i, j] = t[i, j] * t[i, j] + T.cast(A[y, x * 2 + i, j + first], "float32")
            T.copy(t, B[y, x * 2, 0])

    return program


def branches(n, dtype, first):
    """Under a condition, with masks, of a tensor whose size is known when the kernel runs, and may be 0."""
    m = T.dynamic("m")

    @T.prim_func
    def program(A: T.Tensor((m, n), dtype), B: T.Tensor((8, 256), dtype)):
        with T.Kernel(2, threads=64) as b:
            for i, j in T.Parallel(4, 256):
                if i + b * 4 < 6:
                    B[b * 4 + i, j] = T.if_then_else(j % 3 != 1, A[b * 4 + i, j + first], 2)

    return program


@pytest.fixture(scope="module")
def as_ptx(tmp_path_factory):
    emulator = AsPtx(BINARY, tmp_path_factory.mktemp("around"))
    yield emulator
    emulator.close()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("make", [parts, masked, squares])
def test_loads_of_odd_rows(emulator, make, dtype, first, n, target):
    check(emulator, make(n, dtype, first), target)


@pytest.mark.parametrize("target", ["emu:sm_80", "emu:sm_90a"])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("make", [parts, masked, squares])
def test_vectors_around_them(as_ptx, make, dtype, first, n, target):
    answer = check(as_ptx, make(n, dtype, first), target)
    assert any(DECISION in decision for decision in answer["decisions"]), answer["decisions"]


@pytest.mark.parametrize("rows", [0, 1, 5, 9])
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_conditions_and_sizes_of_run_time(as_ptx, dtype, rows):
    n, first = 61, 3
    rng = np.random.default_rng()
    a, b = rng.integers(-4, 5, (rows, n)).astype(dtype), rng.integers(-4, 5, (8, 256)).astype(dtype)
    after, answer = as_ptx.call(as_ptx.module(branches(n, dtype, first).serialized), "emu:sm_90a", [(a, dtype), (b, dtype)])
    assert "error" not in answer, answer["error"]
    assert any(DECISION in decision for decision in answer["decisions"]), answer["decisions"]
    wide = np.zeros((9, 256 + first), dtype)
    wide[:rows, :n] = a
    expected = np.where(np.arange(256) % 3 != 1, wide[:6, first:], 2)
    assert np.array_equal(after[1][:6], expected) and np.array_equal(after[1][6:], b[6:])
