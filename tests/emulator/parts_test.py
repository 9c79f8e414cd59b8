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
