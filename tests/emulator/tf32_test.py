# SPDX-License-Identifier: Apache-2.0
"""Products of float32 that may leave out the low bits of their operands: the matrix units' where a target has them, else exact ones."""

import kiln.language as T
import numpy as np
import pytest

M, N, K = 64, 64, 64
HAVE = ("emu:sm_80", "emu:sm_90a", "emu:gfx942")
HAVE_NONE = ("emu:sm_75", "emu:gfx90a", "emu:gfx1100")


def product(a_space, b_space, trans_a, trans_b, allow_tf32, threads=128):
    a_shape, b_shape = (K, M) if trans_a else (M, K), (N, K) if trans_b else (K, N)
    alloc = {"shared": T.alloc_shared, "fragment": T.alloc_fragment}

    @T.prim_func
    def program(A: T.Tensor(a_shape, "float32"), B: T.Tensor(b_shape, "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(1, threads=threads):
            a, b = alloc[a_space](a_shape, "float32"), alloc[b_space](b_shape, "float32")
            c = T.alloc_fragment((M, N), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c, transpose_A=trans_a, transpose_B=trans_b, allow_tf32=allow_tf32)
            T.copy(c, C)

    return program


def error(call, target, **form):
    """Of the result, and of exact products of operands without the low 13 bits."""
    rng = np.random.default_rng()
    a, b = (rng.standard_normal((M, K)).astype(np.float32) for _ in range(2))
    program = product(**form)
    *_, c = call(program, target, a.T.copy() if form["trans_a"] else a, b if form["trans_b"] else b.T.copy(), np.full((M, N), np.nan, np.float32))
    cut = lambda x: (x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
    norm = lambda x: np.linalg.norm(x) / np.linalg.norm(c)
    return norm(c - a.astype(np.float64) @ b.T.astype(np.float64)), norm(c - cut(a) @ cut(b).T)


@pytest.mark.parametrize("target", HAVE)
@pytest.mark.parametrize("trans_a, trans_b", [(False, True), (False, False), (True, False), (True, True)])
@pytest.mark.parametrize("a_space, b_space", [("shared", "shared"), ("fragment", "shared"), ("shared", "fragment")])
def test_the_low_bits_are_left_out(call, target, a_space, b_space, trans_a, trans_b):
    exact, cut = error(call, target, a_space=a_space, b_space=b_space, trans_a=trans_a, trans_b=trans_b, allow_tf32=True)
    assert exact > 1e-5 and cut < 1e-6


@pytest.mark.parametrize("target", HAVE_NONE)
def test_a_target_without_tf32_computes_in_float32(call, target):
    exact, _ = error(call, target, a_space="shared", b_space="shared", trans_a=False, trans_b=True, allow_tf32=True)
    assert exact < 1e-6


@pytest.mark.parametrize("target", HAVE)
def test_products_are_exact_where_nobody_allows_less(call, target):
    exact, _ = error(call, target, a_space="shared", b_space="shared", trans_a=False, trans_b=True, allow_tf32=False)
    assert exact < 1e-6
