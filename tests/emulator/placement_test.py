# SPDX-License-Identifier: Apache-2.0
"""Tensors whose elements lie where the program says (T.annotate_layout): sums by atomics into one, as backward passes make them, and back."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
ROWS, COLUMNS, BLOCK = 50, 32, 16


def layout(tensor):
    """Eight rows' pairs of columns lie together."""
    return T.Layout(tensor.shape, lambda b, i, j: [b, i // 2, j // 8, j % 2, 4 * (i % 2) + (j % 8) // 2])


@T.prim_func
def gather(X: T.Tensor((2, ROWS, COLUMNS), "float32"), Q: T.Tensor((2, ROWS, COLUMNS), "float32")):
    with T.Kernel(T.ceildiv(ROWS, BLOCK), 2, threads=64) as (bx, b):
        T.annotate_layout({Q: layout(Q)})
        tile = T.alloc_fragment((BLOCK, COLUMNS), "float32")
        T.copy(X[b, bx * BLOCK : (bx + 1) * BLOCK, :], tile)
        for i, j in T.Parallel(BLOCK, COLUMNS):
            T.atomic_add(Q[b, bx * BLOCK + i, j], tile[i, j] * 2)


@T.prim_func
def spread(Q: T.Tensor((2, ROWS, COLUMNS), "float32"), Y: T.Tensor((2, ROWS, COLUMNS), "float16")):
    with T.Kernel(T.ceildiv(ROWS, BLOCK), 2, threads=64) as (bx, b):
        T.annotate_layout({Q: layout(Q)})
        T.copy(Q[b, bx * BLOCK : (bx + 1) * BLOCK, :], Y[b, bx * BLOCK : (bx + 1) * BLOCK, :])


@pytest.mark.parametrize("target", TARGETS)
def test_there_and_back(call, target):
    """The last block of rows ends outside of the tensor."""
    x = np.random.default_rng(11).integers(-50, 50, (2, ROWS, COLUMNS)).astype(np.float32)
    _, q = call(gather, target, x, np.ones_like(x))
    b, i, j = np.indices(x.shape)
    place = (((b * (ROWS // 2) + i // 2) * (COLUMNS // 8) + j // 8) * 2 + j % 2) * 8 + 4 * (i % 2) + (j % 8) // 2
    expected = np.zeros(x.size, np.float32)
    expected[place.reshape(-1)] = (1 + 2 * x).reshape(-1)
    np.testing.assert_array_equal(q.reshape(-1), expected)
    _, y = call(spread, target, q, np.zeros(x.shape, np.float16))
    np.testing.assert_array_equal(y, 1 + 2 * x)
