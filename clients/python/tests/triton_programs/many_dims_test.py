# SPDX-License-Identifier: Apache-2.0
"""Blocks of more dimensions than buffers have."""

import numpy as np
import triton
import triton.language as tl


@triton.jit
def cubes(X, TURNED, SUMS, LARGEST, SHAPE: tl.constexpr, ORDER: tl.constexpr):
    at = tl.arange(0, 1024)
    cube = tl.reshape(tl.load(X + at), SHAPE)
    tl.store(TURNED + at, tl.reshape(tl.permute(cube, ORDER), (1024,)))
    tl.store(SUMS + tl.arange(0, 512), tl.reshape(tl.sum(cube, axis=1), (512,)))
    tl.store(LARGEST, tl.max(cube))
    carried = tl.zeros_like(cube)
    for i in range(3):
        carried = carried + tl.flip(cube, 9) * i
    tl.store(X + at, tl.reshape(carried, (1024,)))


def test_a_cube_of_ten_dimensions():
    shape, order = (2,) * 10, (3, 1, 9, 0, 2, 5, 8, 4, 7, 6)
    x = np.random.default_rng(1).integers(-99, 99, 1024).astype(np.int32)
    cube = x.reshape(shape).copy()
    turned, sums, largest = np.zeros(1024, np.int32), np.zeros(512, np.int32), np.zeros(1, np.int32)
    cubes[(1,)](x, turned, sums, largest, shape, order)
    assert np.array_equal(turned, cube.transpose(order).ravel()) and np.array_equal(sums, cube.sum(1).ravel())
    assert largest[0] == cube.max() and np.array_equal(x, (np.flip(cube, 9) * 3).ravel())
