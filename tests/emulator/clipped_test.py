# SPDX-License-Identifier: Apache-2.0
"""Aligned vectors of which a row's end or a condition leaves out some elements: loads that stop at the end (ir::LoadForm::kClipped), copies by
cp.async that do, stores of whole vectors but at either end (StorePlan::parted), loads around neighbours that begin before their row. On the
emulator, which moves these elements one by one, and as PTX, which moves vectors."""

import kiln.language as T
import numpy as np
import pytest
from emulated import BINARY, AsPtx
from regression_test import check

RNG = np.random.default_rng()
LENGTHS = [1, 9, 255, 1031, 2048, int(RNG.integers(2, 1000)) * 2 + 1, int(RNG.integers(2, 1000)) * 2 + 1]
TYPES = ["float16", "bfloat16", "int8", "float32"]
CLIPPED, PARTED = "of which some may lie beyond the row or the mask", "or one by one where some do not meet the condition"


def flat(n, dtype):
    """Blocks beyond the end, and one across it."""
    @T.prim_func
    def program(A: T.Tensor((n,), dtype), B: T.Tensor((n,), dtype)):
        with T.Kernel(n // 512 + 2, threads=64) as b:
            for j in T.Parallel(512):
                B[b * 512 + j] = A[b * 512 + j] + 1

    return program


def under_a_condition(n, dtype):
    @T.prim_func
    def program(A: T.Tensor((n,), dtype), B: T.Tensor((n,), dtype)):
        with T.Kernel(n // 512 + 2, threads=64) as b:
            for j in T.Parallel(512):
                if T.And(b * 512 + j >= 3, b * 512 + j < n - 2):
                    B[b * 512 + j] = T.if_then_else(b * 512 + j != 77, A[b * 512 + j], 2)

    return program


def parts_of_rows(n, dtype):
    """Rows of whole vectors, of which the first elements are added to."""
    width = n // 16 * 16 + 16

    @T.prim_func
    def program(A: T.Tensor((n,), dtype), B: T.Tensor((3, width), dtype)):
        with T.Kernel(3, threads=32) as b:
            for k in T.serial(T.ceildiv(width, 512)):
                for j in T.Parallel(512):
                    if k * 512 + j < n:
                        B[b, k * 512 + j] = A[k * 512 + j] + b

    return program


def shifted_rows(n, dtype):
    """Rows of a flat tensor, each from the vector in which it begins, and factors that begin with the row."""
    run = 16 if dtype == "int8" else 8
    count = (n + run - 1 + 511) // 512

    @T.prim_func
    def program(A: T.Tensor((5 * n,), dtype), w: T.Tensor((n,), dtype), B: T.Tensor((5 * n,), dtype)):
        with T.Kernel(5, threads=32) as b:
            row = T.alloc_shared((count * 512,), dtype)
            first, shift = b * n - b * n % run, b * n % run
            for k in T.serial(count):
                T.copy(A[first + k * 512], row[k * 512:k * 512 + 512])
            for k in T.serial(count):
                for j in T.Parallel(512):
                    if T.And(k * 512 + j >= shift, k * 512 + j < shift + n):
                        B[first + k * 512 + j] = row[k * 512 + j] + w[k * 512 + j - shift]

    return program


def read_and_written(n, dtype):
    @T.prim_func
    def program(A: T.Tensor((n,), dtype)):
        with T.Kernel(n // 512 + 1, threads=64) as b:
            for j in T.Parallel(512):
                if b * 512 + j < n - 2:
                    A[b * 512 + j] = A[b * 512 + j] + 1

    return program


@pytest.fixture(scope="module")
def as_ptx(tmp_path_factory):
    emulator = AsPtx(BINARY, tmp_path_factory.mktemp("clipped"))
    yield emulator
    emulator.close()


PROGRAMS = [flat, under_a_condition, parts_of_rows, shifted_rows, read_and_written]


@pytest.mark.parametrize("target", ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("make", PROGRAMS)
def test_elements(emulator, make, dtype, n, target):
    check(emulator, make(n, dtype), target)


@pytest.mark.parametrize("target", ["emu:sm_75", "emu:sm_80", "emu:sm_90a"])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("make", PROGRAMS)
def test_vectors(as_ptx, make, dtype, n, target):
    answer = check(as_ptx, make(n, dtype), target)
    said = " ".join(answer["decisions"])
    if n % 2 == 1 and n > 1 and make is not read_and_written:
        assert CLIPPED in said, answer["decisions"]
    if n % 2 == 1 and n > 1:
        assert PARTED in said, answer["decisions"]


@pytest.mark.parametrize("n", [0, 1, 2, 7, 61, 64])
@pytest.mark.parametrize("before", [1, 3, 9, 70])
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_neighbours_that_begin_before_their_row(as_ptx, dtype, before, n):
    @T.prim_func
    def program(A: T.Tensor((3, n), dtype), B: T.Tensor((4, 64), dtype)):
        with T.Kernel(4, threads=32) as b:
            for j in T.Parallel(64):
                B[b, j] = A[b, j - before]

    check(as_ptx, program, "emu:sm_90a")


@pytest.mark.parametrize("n", [0, 1, 512, 1023, 1500])
@pytest.mark.parametrize("dtype", TYPES)
def test_sizes_of_run_time(as_ptx, dtype, n):
    size = T.dynamic("size")

    @T.prim_func
    def program(A: T.Tensor((size,), dtype), B: T.Tensor((size,), dtype)):
        with T.Kernel(3, threads=64) as b:
            for j in T.Parallel(512):
                if b * 512 + j < size:
                    B[b * 512 + j] = A[b * 512 + j]

    a, b = (np.random.default_rng().integers(-4, 5, n).astype("uint16" if dtype == "bfloat16" else dtype) for _ in range(2))
    after, answer = as_ptx.call(as_ptx.module(program.serialized), "emu:sm_90a", [(a, dtype), (b, dtype)])
    assert "error" not in answer, answer["error"]
    assert PARTED in " ".join(answer["decisions"]), answer["decisions"]
    assert np.array_equal(after[1], a)


@pytest.mark.parametrize("target", ["emu:sm_80", "emu:sm_90a"])
@pytest.mark.parametrize("n", [65537, 65543, 88739])
def test_odd_rows_of_which_the_beginnings_are_read(as_ptx, n, target):
    """All columns that are read lie inside, and rows begin anywhere."""
    @T.prim_func
    def program(A: T.Tensor((2, n), "float16"), B: T.Tensor((2, 512), "float16")):
        with T.Kernel(2, threads=64) as b:
            for j in T.Parallel(512):
                B[b, j] = A[b, j]

    check(as_ptx, program, target)
