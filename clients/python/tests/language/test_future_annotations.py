# SPDX-License-Identifier: Apache-2.0
"""Annotations that Python keeps as text."""

from __future__ import annotations

import kiln
import kiln.language as T


def eager(dtype, columns, wide):
    @kiln.jit
    def f(A):
        M = T.const("M")
        A: T.Tensor((M, columns), dtype)
        B = T.empty((M,), "float32")
        with T.Kernel(M) as bx:
            x: wide = A[bx, 0]
            B[bx] = x
        return B

    return f


def lazy(rows, dtype):
    @T.macro
    def put(A, at: T.Ref, value: dtype):
        A[at] = value

    @T.prim_func
    def main(A: T.Tensor((rows,), dtype), s: T.int32):
        with T.Kernel(4) as bx:
            put(A, bx, s)

    return main


def test_names_that_only_annotations_use():
    for columns in (3, 5):
        func = eager("float16", columns, T.float64).get_tir(M=4)
        assert func.params[0].buffer.shape == (4, columns)
        assert "let x: float64 = float64(A[bx, 0])" in func.script()
    func = lazy(8, "float32")
    assert func.params[0].buffer.shape == (8,) and func.params[1].var.dtype == "int32"
