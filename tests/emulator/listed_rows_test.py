# SPDX-License-Identifier: Apache-2.0
"""Gathers whose rows an iteration loads into a fragment first: the list runs ahead of the rows, and these of the products. What the loop changes does
not, nor do iterations behind its end."""

import os
import pathlib
import subprocess

import kiln.language as T
import numpy as np
import pytest

BIN = pathlib.Path(os.environ["KILN_BUILD"]) / "bin"
ROWS, WIDTH, BLOCK = 100, 64, 64
TARGETS = ("emu:sm_80", "emu:sm_90a", "emu:sm_75", "emu:gfx942")
RNG = np.random.default_rng()


def products(stages, steps, threads=128, twice=False, written=False):
    """For each step, the products of A with the rows that a list names, where it names one; ``twice``: it is changed before the rows are taken;
    ``written``: the loop changes the list of the next step in memory."""

    @T.prim_func
    def program(A: T.Tensor((64, WIDTH), "float16"), K: T.Tensor((ROWS, WIDTH), "float16"), rows: T.Tensor((steps * BLOCK,), "int32"),
                count: T.Tensor((1,), "int32"), C: T.Tensor((64, BLOCK), "float32"), seen: T.Tensor((steps * BLOCK,), "int32")):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((64, WIDTH), "float16")
            tile = T.alloc_shared((BLOCK, WIDTH), "float16")
            ids = T.alloc_fragment((BLOCK,), "int32")
            total = T.alloc_fragment((64, BLOCK), "float32")
            T.copy(A, a)
            T.clear(total)
            for k in T.Pipelined(count[0], num_stages=stages):
                for i in T.Parallel(BLOCK):
                    ids[i] = rows[k * BLOCK + i]
                if twice:
                    for i in T.Parallel(BLOCK):
                        ids[i] = ids[i] + 1
                for i, j in T.Parallel(BLOCK, WIDTH):
                    tile[i, j] = T.if_then_else(T.And(ids[i] >= 0, ids[i] < ROWS), K[ids[i], j], 0)
                T.gemm(a, tile, total, transpose_B=True)
                for i in T.Parallel(BLOCK):
                    seen[k * BLOCK + i] = ids[i]
                if written:
                    for i in T.Parallel(BLOCK):
                        rows[(k + 1) % steps * BLOCK + i] = ids[i] + 1
            T.copy(total, C)

    return program


def expected(a, k, rows, count, twice=False, written=False):
    rows, total, seen = rows.copy().reshape(-1, BLOCK), np.zeros((64, BLOCK)), np.full(rows.size, -7, np.int32).reshape(-1, BLOCK)
    for step in range(count):
        ids = rows[step] + twice
        taken = np.where(((ids >= 0) & (ids < ROWS))[:, None], k[np.clip(ids, 0, ROWS - 1)], 0)
        total += a.astype(float) @ taken.astype(float).T
        seen[step] = ids
        if written:
            rows[(step + 1) % len(rows)] = ids + 1
    return total, seen.ravel()


def check(call, target, stages, steps, count, **how):
    a, k = (RNG.integers(-2, 3, shape).astype(np.float16) for shape in ((64, WIDTH), (ROWS, WIDTH)))
    rows = RNG.integers(-20, ROWS + 20, steps * BLOCK).astype(np.int32)
    threads = how.pop("threads", 128)
    *_, result, seen = call(products(stages, steps, threads, **how), target, a, k, rows, np.int32([count]), np.ones((64, BLOCK), np.float32),
                            np.full(steps * BLOCK, -7, np.int32))
    total, ids = expected(a, k, rows, count, **how)
    assert np.array_equal(result, total) and np.array_equal(seen, ids)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [0, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_rows_of_a_list_that_is_loaded_first(call, target, stages, count):
    check(call, target, stages, 7, count)


@pytest.mark.parametrize("target", TARGETS)
def test_more_threads_than_rows(call, target):
    check(call, target, 2, 5, 5, threads=256)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["twice", "written"])
def test_what_the_loop_changes_is_not_loaded_ahead(call, target, how):
    check(call, target, 3, 5, 5, **{how: True})


@pytest.mark.parametrize("how, ahead", [({}, True), ({"twice": True}, False), ({"written": True}, False)])
def test_what_runs_ahead(tmp_path, how, ahead):
    source = tmp_path / "program"
    source.write_bytes(products(2, 5, **how).serialized)
    said = subprocess.run([BIN / "kiln", "explain", source, "-t", "cuda:sm_90a", "--local", "--text"], timeout=300, capture_output=True, text=True,
                          check=True).stdout
    assert ("loaded ahead of the gathers" in said) == ahead, said
    assert ("filled by cp.async" in said) == ahead, said


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows_of_a", [32, 64])
@pytest.mark.parametrize("stages", [2, 3])
def test_boxes_beside_gathers(call, target, rows_of_a, stages):
    """Both run ahead, the boxes by copies of their own."""
    steps = 5

    @T.prim_func
    def program(A: T.Tensor((rows_of_a, steps * WIDTH), "float16"), K: T.Tensor((ROWS, WIDTH), "float16"),
                rows: T.Tensor((steps * BLOCK,), "int32"), C: T.Tensor((rows_of_a, BLOCK), "float32")):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((rows_of_a, WIDTH), "float16")
            tile = T.alloc_shared((BLOCK, WIDTH), "float16")
            ids = T.alloc_fragment((BLOCK,), "int32")
            total = T.alloc_fragment((rows_of_a, BLOCK), "float32")
            T.clear(total)
            for k in T.Pipelined(steps, num_stages=stages):
                T.copy(A[0, k * WIDTH], a)
                for i in T.Parallel(BLOCK):
                    ids[i] = rows[k * BLOCK + i]
                for i, j in T.Parallel(BLOCK, WIDTH):
                    tile[i, j] = K[ids[i], j]
                T.gemm(a, tile, total, transpose_B=True)
            T.copy(total, C)

    a, k = (RNG.integers(-2, 3, shape).astype(np.float16) for shape in ((rows_of_a, steps * WIDTH), (ROWS, WIDTH)))
    rows = RNG.integers(0, ROWS, steps * BLOCK).astype(np.int32)
    *_, result = call(program, target, a, k, rows, np.ones((rows_of_a, BLOCK), np.float32))
    taken = k[rows].reshape(steps, BLOCK, WIDTH).astype(float)
    assert np.array_equal(result, sum(a[:, i * WIDTH:(i + 1) * WIDTH].astype(float) @ taken[i].T for i in range(steps)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("by_rows", [False, True])
def test_a_place_that_the_loop_counts_in_memory(call, target, by_rows):
    """What a let has read before the count goes on is not read again behind that."""
    steps = 5

    @T.prim_func
    def program(A: T.Tensor((64, WIDTH), "float16"), K: T.Tensor((64 * (steps + 1), WIDTH), "float16"), at: T.Tensor((1,), "int32"),
                C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, WIDTH), "float16")
            tile = T.alloc_shared((64, WIDTH), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.clear(total)
            for k in T.Pipelined(steps, num_stages=2):
                place = at[0]
                at[0] = place + 1
                if by_rows:
                    for i, j in T.Parallel(64, WIDTH):
                        tile[i, j] = K[place * 64 + i, j]
                else:
                    T.copy(K[place * 64, 0], tile)
                T.gemm(a, tile, total, transpose_B=True)
            T.copy(total, C)

    a, k = (RNG.integers(-2, 3, shape).astype(np.float16) for shape in ((64, WIDTH), (64 * (steps + 1), WIDTH)))
    *_, at, result = call(program, target, a, k, np.int32([0]), np.ones((64, 64), np.float32))
    assert at[0] == steps and np.array_equal(result, sum(a.astype(float) @ k[i * 64:(i + 1) * 64].astype(float).T for i in range(steps)))
