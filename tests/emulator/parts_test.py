# SPDX-License-Identifier: Apache-2.0
"""Parts of fragments that begin where a variable says: they are read and written in place, for the iterations of the part alone."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]


def program_of(rows, columns, height, width):
    @T.prim_func
    def program(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_fragment((rows, columns), "float32")
            part = T.alloc_shared((height, width), "float32")
            T.copy(A, tile)
            for s in T.serial(rows // height):
                for u in T.serial(columns // width):
                    for i, j in T.Parallel(height, width):
                        tile[i + s * height, u * width + j] = tile[s * height + i, j + u * width] * 2 + T.cast(s, "float32")
                    for i, j in T.Parallel(rows, width):
                        if i < height:
                            part[i, j] = tile[i + s * height, j + width * u]
                    T.copy(part, B[s * height : (s + 1) * height, u * width : (u + 1) * width])
                    T.copy(part, tile[s * height : (s + 1) * height, u * width : (u + 1) * width])
            T.copy(tile, A)

    return program


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [(32, 64, 16, 64), (32, 64, 8, 16), (48, 40, 12, 10), (3, 256, 1, 64), (128, 4, 64, 2)])
def test_read_and_written_in_place(call, target, sizes):
    rows, columns, height, width = sizes
    a = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    after, parts = call(program_of(*sizes), target, a, np.full_like(a, -1))
    want = a * 2 + (np.arange(rows) // height)[:, None]
    assert (after == want).all() and (parts == want).all()


def beyond_the_end(form):
    @T.prim_func
    def program(A: T.Tensor((64, 32), "float32"), B: T.Tensor((3, 32, 32), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((64, 32), "float32")
            T.copy(A, tile)
            for s in T.serial(3):
                for i, j in T.Parallel(32, 32):
                    if form == "mask":
                        B[s, i, j] = T.if_then_else(i + s * 20 < 64, tile[i + s * 20, j], 0)
                    elif form == "branches":
                        if i + s * 20 < 64:
                            B[s, i, j] = tile[i + s * 20, j]
                        else:
                            B[s, i, j] = 0
                    elif form == "before":
                        B[s, i, j] = 0
                        if i + s * 20 < 64:
                            B[s, i, j] = tile[i + s * 20, j]
                    else:
                        if T.And(i + s * 20 < 64, tile[i + s * 20, j] > 0):
                            B[s, i, j] = 1
                        else:
                            B[s, i, j] = 0

    return program


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ["mask", "branches", "before", "condition"])
def test_iterations_beyond_the_end_of_the_fragment(call, target, form):
    """They do not look at it, but do something else."""
    a = np.arange(1, 64 * 32 + 1, dtype=np.float32).reshape(64, 32)
    _, b = call(beyond_the_end(form), target, a, np.full((3, 32, 32), -1, np.float32))
    rows = np.concatenate([a, np.zeros((8, 32), np.float32)])
    want = np.stack([rows[s * 20 : s * 20 + 32] for s in range(3)])
    assert (b == (want > 0 if form == "condition" else want)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_a_window_that_moves_within_an_iteration(call, target):
    """Its place is no variable of a loop around: each iteration looks at several elements, those of other threads among them."""
    @T.prim_func
    def program(A: T.Tensor((72, 32), "float32"), B: T.Tensor((64, 32), "float32")):
        with T.Kernel(1, threads=64):
            tile, sums = T.alloc_fragment((72, 32), "float32"), T.alloc_fragment((64, 32), "float32")
            T.copy(A, tile)
            T.clear(sums)
            for s in T.serial(2):
                for i, j in T.Parallel(64, 32):
                    for k in T.serial(3 + s):
                        sums[i, j] = sums[i, j] + tile[i + s * 4 + k, j]
            T.copy(sums, B)

    a = np.arange(72 * 32, dtype=np.float32).reshape(72, 32)
    _, b = call(program, target, a, np.zeros((64, 32), np.float32))
    assert (b == sum(a[s * 4 + k : s * 4 + k + 64] for s in range(2) for k in range(3 + s))).all()
