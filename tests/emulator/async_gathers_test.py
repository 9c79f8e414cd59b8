# SPDX-License-Identifier: Apache-2.0
"""Rows gathered into shared memory by cp.async: by lists in memory and in tiles, of pages, masked, in a pipeline and out of one; on targets without
cp.async they are loads and stores. Lists name rows that are none."""

import kiln.language as T
import numpy as np
import pytest

ROWS, WIDTH, BLOCK, STEPS = 100, 48, 16, 5
TARGETS = ("emu:sm_80", "emu:sm_90a", "emu:sm_75", "emu:gfx942")
RNG = np.random.default_rng(5)


def cache():
    return RNG.standard_normal((ROWS, WIDTH)).astype(np.float16)


def lists():
    """More rows than there are, in both directions, and some of them twice."""
    return RNG.integers(-20, ROWS + 20, STEPS * BLOCK).astype(np.int32)


def taken(source, rows, mask=None):
    inside = (rows >= 0) & (rows < ROWS)
    if mask is not None:
        inside &= mask
    return np.where(inside[:, None], source[np.clip(rows, 0, ROWS - 1)], 0)


def gather(stages, masked, in_tile, threads=64, reads=ROWS):
    count = STEPS * BLOCK

    @T.prim_func
    def program(A: T.Tensor((ROWS, WIDTH), "float16"), rows: T.Tensor((count,), "int32"), C: T.Tensor((count, WIDTH), "float16")):
        with T.Kernel(1, threads=threads):
            places = T.alloc_shared((count,), "int32")
            tile = T.alloc_shared((BLOCK, WIDTH), "float16")
            T.copy(rows, places)
            for k in T.Pipelined(STEPS, num_stages=stages):
                for i, j in T.Parallel(BLOCK, WIDTH):
                    row = places[k * BLOCK + i] if in_tile else rows[k * BLOCK + i]
                    if masked:
                        tile[i, j] = T.if_then_else(T.And(row >= 3, k * BLOCK + i < count - 5), A[row, j], 0)
                    else:
                        tile[i, j] = A[row, j]
                T.copy(tile, C[k * BLOCK, 0])

    return program


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [0, 1, 2, 4])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("in_tile", [False, True])
def test_rows_of_a_list(call, target, stages, masked, in_tile):
    source, rows = cache(), lists()
    _, _, result = call(gather(stages, masked, in_tile), target, source, rows, np.ones((STEPS * BLOCK, WIDTH), np.float16))
    mask = (rows >= 3) & (np.arange(STEPS * BLOCK) < STEPS * BLOCK - 5) if masked else None
    assert np.array_equal(result, taken(source, rows, mask))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [32, 96, 128, 256])
def test_threads_that_do_not_divide_the_tile(call, target, threads):
    source, rows = cache(), lists()
    _, _, result = call(gather(3, True, False, threads), target, source, rows, np.ones((STEPS * BLOCK, WIDTH), np.float16))
    assert np.array_equal(result, taken(source, rows, (rows >= 3) & (np.arange(STEPS * BLOCK) < STEPS * BLOCK - 5)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_list_shorter_than_the_tiles(call, target):
    """The mask keeps the list's index inside; what it leaves out is not loaded, neither from the list nor from the rows."""
    count = STEPS * BLOCK - 7

    @T.prim_func
    def program(A: T.Tensor((ROWS, WIDTH), "float16"), rows: T.Tensor((count,), "int32"), C: T.Tensor((STEPS * BLOCK, WIDTH), "float16")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((BLOCK, WIDTH), "float16")
            for k in T.Pipelined(STEPS, num_stages=3):
                for i, j in T.Parallel(BLOCK, WIDTH):
                    tile[i, j] = T.if_then_else(k * BLOCK + i < count, A[rows[k * BLOCK + i], j], 0)
                T.copy(tile, C[k * BLOCK, 0])

    source, rows = cache(), lists()[:count]
    _, _, result = call(program, target, source, rows, np.ones((STEPS * BLOCK, WIDTH), np.float16))
    assert np.array_equal(result, np.concatenate([taken(source, rows), np.zeros((7, WIDTH))]))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [0, 3])
def test_a_list_in_a_tile_shorter_than_the_tiles(call, target, stages):
    """Behind the end of a tile is other memory, which may hold anything or not be there: where the mask does not hold, the list is not read."""
    count = STEPS * BLOCK - 7

    @T.prim_func
    def program(A: T.Tensor((ROWS, WIDTH), "float16"), rows: T.Tensor((count,), "int32"), C: T.Tensor((STEPS * BLOCK, WIDTH), "float16")):
        with T.Kernel(1, threads=64):
            places = T.alloc_shared((count,), "int32")
            tile = T.alloc_shared((BLOCK, WIDTH), "float16")
            T.copy(rows, places)
            for k in T.Pipelined(STEPS, num_stages=stages):
                for i, j in T.Parallel(BLOCK, WIDTH):
                    tile[i, j] = T.if_then_else(k * BLOCK + i < count, A[places[k * BLOCK + i], j], 0)
                T.copy(tile, C[k * BLOCK, 0])

    source, rows = cache(), lists()[:count]
    _, _, result = call(program, target, source, rows, np.ones((STEPS * BLOCK, WIDTH), np.float16))
    assert np.array_equal(result, np.concatenate([taken(source, rows), np.zeros((7, WIDTH))]))


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_the_loop_changes(call, target):
    """The list of the next step is written in this one, and so are the rows: neither may be read ahead."""

    @T.prim_func
    def program(A: T.Tensor((BLOCK, WIDTH), "float16"), rows: T.Tensor((BLOCK,), "int32"), C: T.Tensor((STEPS * BLOCK, WIDTH), "float16")):
        with T.Kernel(1, threads=64):
            places = T.alloc_shared((BLOCK,), "int32")
            tile = T.alloc_shared((BLOCK, WIDTH), "float16")
            T.copy(rows, places)
            for k in T.Pipelined(STEPS, num_stages=3):
                for i, j in T.Parallel(BLOCK, WIDTH):
                    tile[i, j] = A[places[i], j]
                T.copy(tile, C[k * BLOCK, 0])
                for i, j in T.Parallel(BLOCK, WIDTH):
                    A[i, j] = tile[i, j] + T.cast(1, "float16")
                for i in T.Parallel(BLOCK):
                    places[i] = (places[i] + 3) % BLOCK

    source, rows = RNG.integers(0, 50, (BLOCK, WIDTH)).astype(np.float16), RNG.permutation(BLOCK).astype(np.int32)
    _, _, result = call(program, target, source, rows, np.ones((STEPS * BLOCK, WIDTH), np.float16))
    now, at = source.copy(), rows.copy()
    for k in range(STEPS):
        tile = now[at]
        assert np.array_equal(result[k * BLOCK:(k + 1) * BLOCK], tile)
        now, at = tile + np.float16(1), (at + 3) % BLOCK


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("width", [4, 6, 7])
def test_narrow_and_odd_rows(call, target, dtype, width):
    """Of four bytes and more together where rows are aligned for that, element by element where not."""

    @T.prim_func
    def program(A: T.Tensor((ROWS, width), dtype), rows: T.Tensor((BLOCK * 2,), "int32"), C: T.Tensor((BLOCK * 2, width), dtype)):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((BLOCK, width), dtype)
            for k in T.Pipelined(2, num_stages=2):
                for i, j in T.Parallel(BLOCK, width):
                    tile[i, j] = A[rows[k * BLOCK + i], j]
                T.copy(tile, C[k * BLOCK, 0])

    source, rows = RNG.integers(-100, 100, (ROWS, width)).astype(dtype), lists()[:BLOCK * 2]
    _, _, result = call(program, target, source, rows, np.ones((BLOCK * 2, width), dtype))
    assert np.array_equal(result, taken(source, rows))


@pytest.mark.parametrize("target", ["emu:sm_80", "emu:sm_90a"])
def test_operands_of_a_product(call, target):
    """Pages of a table: on sm_90a wgmma reads the gathered tiles, of one of which it takes whole panels of the columns."""
    page, tokens, keys, width, values = 8, 64, 192, 192, 128

    @T.prim_func
    def program(A: T.Tensor((tokens, width), "float16"), K: T.Tensor((keys // page, page, width), "float16"),
                table: T.Tensor((keys // page,), "int32"), C: T.Tensor((tokens, values), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((tokens, width), "float16")
            rows = T.alloc_shared((64, width), "float16")
            scores = T.alloc_fragment((tokens, 64), "float32")
            weights = T.alloc_shared((tokens, 64), "float16")
            total = T.alloc_fragment((tokens, values), "float32")
            T.copy(A, a)
            T.clear(total)
            for k in T.Pipelined(keys // 64, num_stages=2):
                for i, j in T.Parallel(64, width):
                    rows[i, j] = K[table[(k * 64 + i) // page], (k * 64 + i) % page, j]
                T.clear(scores)
                T.gemm(a, rows, scores, transpose_B=True)
                T.copy(scores, weights)
                T.gemm(weights, rows[:, 0:values], total)
            T.copy(total, C)

    a, k = (RNG.integers(-2, 3, shape).astype(np.float16) for shape in ((tokens, width), (keys // page, page, width)))
    table = RNG.permutation(keys // page).astype(np.int32)
    *_, result = call(program, target, a, k, table, np.ones((tokens, values), np.float32))
    rows = k[table].reshape(keys, width).astype(float)
    assert np.array_equal(result, (a.astype(float) @ rows.T) @ rows[:, :values])


@pytest.mark.parametrize("target", TARGETS)
def test_the_last_iteration_that_writes_an_element_has_the_say(call, target):
    """Elements that several iterations, or several threads, write: neither vectors nor asynchronous copies have an order."""

    @T.prim_func
    def program(A: T.Tensor((64, 16), "float32"), B: T.Tensor((64, 8), "float32"), C: T.Tensor((520,), "float32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            again = T.alloc_shared((64, 8), "float32")
            beside = T.alloc_shared((520,), "float32")
            for i in T.serial(16):
                again[t, i % 8] = A[t, i]
            for i in T.serial(16):
                beside[t * 8 + i] = A[t, i]
            T.copy(again, B)
            T.copy(beside, C)

    a = RNG.standard_normal((64, 16)).astype(np.float32)
    _, b, c = call(program, target, a, np.zeros((64, 8), np.float32), np.zeros(520, np.float32))
    assert np.array_equal(b, a[:, 8:])
    expected = np.zeros(520, np.float32)
    for i in range(16):
        expected[np.arange(64) * 8 + i] = a[:, i]
    assert np.array_equal(c, expected)
