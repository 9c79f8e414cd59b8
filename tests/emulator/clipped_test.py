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
CLIPPED, PARTED = "of which some may lie beyond the row or the mask", "or one by one where not all are to be stored"


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


def beside_a_fragment(n, dtype):
    """Under a condition that all neighbours share, registers are written, too."""
    @T.prim_func
    def program(A: T.Tensor((n,), dtype), B: T.Tensor((n,), dtype), C: T.Tensor((3, 512), dtype)):
        with T.Kernel(3, threads=64) as b:
            f = T.alloc_fragment((512,), dtype)
            T.clear(f)
            for j in T.Parallel(512):
                if b < 2:
                    f[j] = A[b * 512 + j] * 2
                    B[b * 512 + j] = A[b * 512 + j]
            T.copy(f, C[b, 0])

    return program


def under_several_conditions(n, dtype):
    """Widths and places that only a condition guarantees; a tile that has elements for some neighbours alone; a quotient that has to be guarded."""
    @T.prim_func
    def program(A: T.Tensor((n,), dtype), s: T.Tensor((4,), "int32"), B: T.Tensor((n,), dtype), C: T.Tensor((n,), "int32"),
                D: T.Tensor((n,), dtype)):
        with T.Kernel(4, threads=32) as b:
            tile = T.alloc_shared((64,), dtype)
            T.copy(A[0:64], tile)
            for j in T.Parallel(256):
                if T.And(b == 0, s[b] % 8 == 0):
                    B[s[b] + j] = A[s[b] + j] + 1
            for j in T.Parallel(256):
                if T.And(s[b] > 2, b * 256 + j < n - 3):
                    C[b * 256 + j] = T.cast(A[b * 256 + j], "int32") // (n - 3 - b * 256 - j)
            for j in T.Parallel(256):
                if T.And(b == 3, j < 61):
                    D[j] = tile[j]

    return program


def masked_tiles(n, dtype):
    """Masks that differ between neighbours of a tile, in rows under a condition."""
    @T.prim_func
    def program(A: T.Tensor((32, 64), dtype), B: T.Tensor((40, 64), dtype)):
        with T.Kernel(2, threads=64) as b:
            tile = T.alloc_shared((32, 64), dtype)
            T.copy(A, tile)
            for i, j in T.Parallel(32, 64):
                if b * 32 + i < 37:
                    B[b * 32 + i, j] = T.if_then_else(j + n % 64 < 64, tile[i, j], 1)

    return program


@pytest.fixture(scope="module")
def as_ptx(tmp_path_factory):
    emulator = AsPtx(BINARY, tmp_path_factory.mktemp("clipped"))
    yield emulator
    emulator.close()


PROGRAMS = [flat, under_a_condition, parts_of_rows, shifted_rows, read_and_written]
OTHERS = [beside_a_fragment, under_several_conditions, masked_tiles]


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


@pytest.mark.parametrize("n", [LENGTHS[3], *LENGTHS[5:]])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("make", OTHERS)
def test_other_conditions(emulator, as_ptx, make, dtype, n):
    for target in ("emu:sm_80", "emu:sm_90a"):
        check(as_ptx, make(n, dtype), target)
    check(emulator, make(n, dtype), "emu:sm_90a")


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


@pytest.mark.parametrize("n", [0, 1, 47, 480, 961, 1100])
@pytest.mark.parametrize("dtype", TYPES)
def test_masks_over_rows_that_quotients_find(as_ptx, dtype, n):
    """Elements are counted through rows of 96, which lie 112 apart; how many there are is known when the kernel runs."""
    size, count = T.dynamic("size"), T.dynamic("count")

    @T.prim_func
    def program(A: T.Tensor((size,), dtype), B: T.Tensor((1536,), dtype), C: T.Tensor((count,), "int8")):
        with T.Kernel(3, threads=64) as b:
            T.assume(size % 16 == 0)
            t = T.alloc_fragment((512,), dtype)
            for j in T.Parallel(512):
                t[j] = T.masked(b * 512 + j < count, A[(b * 512 + j) // 96 * 112 + (b * 512 + j) % 96], 2)
            T.copy(t, B[b * 512])

    a, b = (np.random.default_rng().integers(-4, 5, many).astype("uint16" if dtype == "bfloat16" else dtype) for many in (12 * 112, 1536))
    after, answer = as_ptx.call(as_ptx.module(program.serialized), "emu:sm_90a", [(a, dtype), (b, dtype), (np.zeros(n, "int8"), "int8")])
    assert "error" not in answer, answer["error"]
    assert CLIPPED in " ".join(answer["decisions"]), answer["decisions"]
    assert np.array_equal(after[1][:n], a.reshape(-1, 112)[:, :96].reshape(-1)[:n])
    assert dtype == "bfloat16" or (after[1][n:] == 2).all()
