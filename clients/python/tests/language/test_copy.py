# SPDX-License-Identifier: Apache-2.0
"""Operand forms of T.copy and T.fill: which boxes they name."""

import pytest

import kiln.language as T
from kiln.language.trace import TraceError


def traced(statement, shape=(4, 100, 8, 64), tile=(32, 64), dtype="float16"):
    """The last statement of a kernel whose body is ``statement(A, tile, bx)``, as text."""

    @T.macro
    def run(A, s, bx):
        statement(A, s, bx)

    @T.prim_func
    def f(A: T.Tensor(shape, dtype)):
        with T.Kernel(4) as bx:
            s = T.alloc_shared(tile, dtype)
            run(A, s, bx)

    return f.script().rstrip().splitlines()[-1].strip()


@pytest.mark.parametrize("statement, expected", [
    (lambda A, s, b: T.copy(A[0, b, 0, 0], s), "copy A[0, bx, 0:+32, 0:+64] -> s[0:+32, 0:+64]"),
    (lambda A, s, b: T.copy(A[b, 32:64, 3, :], s), "copy A[bx, 32:+32, 3, 0:+64] -> s[0:+32, 0:+64]"),
    (lambda A, s, b: T.copy(A[0, b * 32 : (b + 1) * 32, 3, :], s), "copy A[0, (bx * 32):+32, 3, 0:+64] -> s[0:+32, 0:+64]"),
    (lambda A, s, b: T.copy(A[0, b * 32 : b * 32 + 32, 3, 0:64], s), "copy A[0, (bx * 32):+32, 3, 0:+64] -> s[0:+32, 0:+64]"),
    (lambda A, s, b: T.copy(s, A[1, 32:64, b, :]), "copy s[0:+32, 0:+64] -> A[1, 32:+32, bx, 0:+64]"),
    (lambda A, s, b: T.copy(s[0:8, :], A[1, b, 0, 0]), "copy s[0:+8, 0:+64] -> A[1, bx, 0:+8, 0:+64]"),
    (lambda A, s, b: T.copy(A[b, 1, 2, :], s[5, :]), "copy A[bx, 1, 2, 0:+64] -> s[5, 0:+64]"),
    (lambda A, s, b: T.copy(A[b, 1, 2, :], s[5, 0]), "copy A[bx, 1, 2, 0:+64] -> s[5, 0:+64]"),
    (lambda A, s, b: T.copy(A[b, 1], s[0:8, :]), "copy A[bx, 1, 0:+8, 0:+64] -> s[0:+8, 0:+64]"),
    (lambda A, s, b: T.copy(A[-1, 1, 2, :], s[-1, :]), "copy A[3, 1, 2, 0:+64] -> s[31, 0:+64]"),
    (lambda A, s, b: T.copy(A[b, 10:42, 3, :][0:32, :], s), "copy A[bx, 10:+32, 3, 0:+64] -> s[0:+32, 0:+64]"),
    (lambda A, s, b: T.copy(A[0, 0, 0, b], s[1, 2]), "s[1, 2] = A[0, 0, 0, bx]"),
    (lambda A, s, b: T.fill(s[0:4, :], 1), "fill s[0:+4, 0:+64] = 1.0"),
    (lambda A, s, b: T.clear(s), "fill s[0:+32, 0:+64] = 0.0"),
])
def test_operand_forms(statement, expected):
    assert traced(statement) == expected


def test_a_symbolic_dimension_takes_the_other_operands_size():
    n = T.dynamic("n")
    assert traced(lambda A, s, b: T.copy(A[b, :], s[0, :]), (4, n)) == "copy A[bx, 0:+64] -> s[0, 0:+64]"
    assert traced(lambda A, s, b: T.copy(A, s), (32, n)) == "copy A[0:+32, 0:+64] -> s[0:+32, 0:+64]"


def test_a_row_is_broadcast_over_a_tile():
    @T.prim_func
    def f(bias: T.Tensor((64,), "float32")):
        with T.Kernel(4):
            c = T.alloc_fragment((32, 64), "float32")
            T.copy(bias[0], c)
            T.copy(bias[0:64], c)

    assert f.script().rstrip().splitlines()[-1].strip() == "c[i, j] = bias[j]"


@pytest.mark.parametrize("statement, says", [
    (lambda A, s, b: T.copy(A[0, 0:31, 0, :], s), "the extents differ"),
    (lambda A, s, b: T.copy(A[0, b : b * 2, 0, :], s[0:8, 0:9]), "is not a compile-time constant"),
    (lambda A, s, b: T.copy(A[0, 5:5, 0, :], s), "of extents [1, 0, 1, 64]"),
    (lambda A, s, b: T.copy(A[0, 5:4, 0, :], s), "ends before it begins"),
    (lambda A, s, b: T.copy(A[0, 0:10:2, 0, :], s), "step 2"),
    (lambda A, s, b: T.copy(A[0, 0, 0, 0, 0], s), "has 4 dimensions here and is indexed with 5"),
    (lambda A, s, b: T.copy(A[9, 0, 0, 0], s), "index 9 is outside dimension 0"),
    (lambda A, s, b: T.copy(A[0, 0, 0, 0.5], s), "is no integer"),
    (lambda A, s, b: T.copy("A", s), "must be a buffer"),
    (lambda A, s, b: T.reduce_sum(A[0, b : b * 2, 0, :], s), "is not a compile-time constant"),
    (lambda A, s, b: T.copy(A[0, b : b * 2, 0, :][2:, :], s), "is not a compile-time constant"),
    (lambda A, s, b: T.copy(A[0, b : b * 2, 0, :][-1, 0:64], s), "is not a compile-time constant"),
    (lambda A, s, b: T.gemm(A[0, 0, 0:8, 0:64], s, s), "the inner sizes differ"),
    (lambda A, s, b: T.gemm(A[0:2, 0:32, 0, 0:64], s, s), "must be a matrix"),
    (lambda A, s, b: T.reduce_sum(s, s, dim=3), "over dimension 3"),
    (lambda A, s, b: T.reduce_sum(s, s, dim=1), "over dimension 1 gives [32]"),
])
def test_refusals(statement, says):
    with pytest.raises((TraceError, ValueError, IndexError, TypeError)) as failure:
        traced(statement)
    assert says in str(failure.value)
