# SPDX-License-Identifier: Apache-2.0
"""Kernels that are written for too few warps."""

import numpy as np
import pytest
import triton
import triton.language as tl


def seven_tiles():
    """Seven tiles that a loop changes: with one warp, 896 registers of each thread."""
    @triton.jit
    def kernel(x, out, n, SIZE: tl.constexpr):
        at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
        a = tl.zeros((SIZE, SIZE), tl.float32) + tl.load(x)  # elements that are alike are quick to compile
        b, c, d, e, f, g = a, a, a, a, a, a
        for i in range(n):
            a += 1.0
            b += a
            c += b
            d += c
            e += d
            f += e
            g += f
        tl.store(out + at, g)

    return kernel


def test_too_few_warps_spill_where_no_other_configuration_serves():
    x, out = np.array([3], np.float32), np.zeros((64, 64), np.float32)
    kernel = triton.autotune([triton.Config({}, num_warps=1, num_stages=s) for s in (1, 2)], key=[])(seven_tiles())
    with pytest.warns(UserWarning, match="the first configuration that compiles"):
        made = kernel[(1,)](x, out, 2, 64)
    assert (out == 3 * 28 + 8).all() and made.prim_func.kernels[0].threads == 32


def test_too_few_warps_spill():
    """A launch of its own; an autotuner still prefers a configuration that needs no spilling."""
    x, out = np.array([3], np.float32), np.zeros((64, 64), np.float32)
    kernel = seven_tiles()
    made = kernel[(1,)](x, out, 2, 64, num_warps=1)
    assert (out == 3 * 28 + 8).all() and "max_fragment_registers" in str(made.refusal)
    tuned = triton.autotune([triton.Config({}, num_warps=w) for w in (1, 2)], key=[])(kernel)
    with pytest.warns(UserWarning, match="the first configuration that compiles"):
        assert tuned[(1,)](x, out, 2, 64).prim_func.kernels[0].threads == 64
