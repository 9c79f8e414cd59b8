# SPDX-License-Identifier: Apache-2.0
"""Values of vectors' types: T.bfloat16x2(x, y), T.alloc_var of one, T.extract_lane."""

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from needs import needs_kilnd as emulated


@emulated
def test_lanes_are_read_and_written(address):
    @T.prim_func
    def main(A: T.Tensor((8,), T.float32), B: T.Tensor((8,), T.float32)):
        with T.Kernel(1, threads=32):
            x = T.alloc_var(T.float16x2, init=T.float16x2(1.5))
            y = T.alloc_var(T.int32x4)
            B[0] = T.extract_lane(x, 0) + T.extract_lane(x, 1)
            x = T.float16x2(A[0], A[1])
            x = T.float16x2(T.extract_lane(x, 1), T.extract_lane(x, 0))
            B[1] = T.extract_lane(x, 0)
            B[2] = T.extract_lane(x, 1)
            y = T.int32x4(A[0], A[1], A[2], A[3])
            B[3] = T.extract_lane(y, 3)
            B[4] = T.extract_lane(A[T.Ramp(4, 1, 2)], 1)
            z = T.alloc_var(T.float16x2)
            z = x
            x = T.float16x2(0)
            B[5] = T.extract_lane(z, 0)

    a, b = np.arange(1, 9, dtype="float32") + 0.25, np.zeros(8, "float32")
    with Client(address) as client, kiln.emulation(check=True):
        kiln.compile(main, target="emu:sm_90a", client=client)(a, b)
    assert b[:6].tolist() == [3, 2.25, 1.25, 4, 6.25, 2.25]


def test_lanes_of_expressions(tilelang):  # noqa: F811
    from tilelang.language.tir import ir
    from tvm import tirx

    assert T.Shuffle is tirx.Shuffle is ir.Shuffle and ir.extract_lane is T.extract_lane
    vector = tirx.Var("v", "int8x4")
    lane = T.extract_lane(vector, tirx.IntImm("int32", 2))
    assert isinstance(lane, tirx.Shuffle) and not isinstance(vector, tirx.Shuffle) and lane.dtype == "int8"
    assert lane.vectors[0].same_as(vector) and lane.indices[0].value == 2 and tirx.Shuffle([vector], [2]) is lane
    with pytest.raises(AttributeError, match="no lane of a vector"):
        vector.vectors
    for value, number, error, problem in [(1, 0, TypeError, "expects a PrimExpr"), (T.float32(1), 0, ValueError, "expects a vector expression"),
                                          (vector, T.dynamic("i"), TypeError, "compile-time integer"), (vector, -1, IndexError, "out of bounds"),
                                          (vector, 4, IndexError, "out of bounds: the vector has 4")]:
        with pytest.raises(error, match=problem):
            T.extract_lane(value, number)


def test_vectors_are_no_scalars():
    def traced(body):
        @T.prim_func
        def main(A: T.Tensor((8,), T.float32)):
            with T.Kernel(1, threads=32):
                body(A)

    def added(A):
        T.alloc_var(T.float32x2) + 1

    def assigned(A):
        T.alloc_var(T.float32x2, init=1.0)

    for body, error, problem in [(added, TypeError, "T.extract_lane"), (assigned, T.TraceError, "is a float32x2, and takes one")]:
        with pytest.raises(error, match=problem):
            traced(body)
