# SPDX-License-Identifier: Apache-2.0
"""``a, b = b, a`` and ``a = b = value``: all that is assigned is read before the first target changes, as Python does it."""

import numpy as np

import kiln.language as T
from interpreter import interpret


def run(body):
    """What the body makes of 1, 2, 3, 4."""

    @T.prim_func
    def program(A: T.Tensor((4,), "int32"), after: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=1):
            body(A)
            for i in T.serial(4):
                after[i] = A[i]

    return interpret(program.with_outputs([1]), np.arange(1, 5, dtype="int32"))[0].tolist()


def test_elements():
    @T.macro
    def body(A):
        A[0], A[1] = A[1], A[0]
        A[2], A[3] = A[3] + A[0], A[2] + A[0]

    assert run(body) == [2, 1, 6, 5]


def test_elements_of_a_local_array():
    @T.macro
    def body(A):
        pair = T.alloc_local((2,), "int32")
        pair[0] = 7
        pair[1] = 8
        pair[0], pair[1] = pair[1], pair[0]
        A[0], A[1] = pair[0], pair[1]

    assert run(body) == [8, 7, 3, 4]


def test_variables_in_a_loop_that_runs():
    @T.macro
    def body(A):
        a = T.alloc_var("int32", 0)
        b = T.alloc_var("int32", 1)
        for _ in T.serial(10):
            a, b = b, a + b
        A[0], A[1] = a, b

    assert run(body) == [55, 89, 3, 4]


def test_a_pair_in_a_pair():
    @T.macro
    def body(A):
        (A[0], A[1]), A[2] = (A[1], A[2]), A[0]

    assert run(body) == [2, 3, 1, 4]


def test_names_hold_what_the_elements_were():
    @T.macro
    def body(A):
        first, second = A[0], A[1]
        A[0] = 9
        A[1] = 9
        A[2], A[3] = first, second

    assert run(body) == [9, 9, 1, 2]


def test_one_value_for_several_targets():
    @T.macro
    def body(A):
        A[0] = A[1] = A[0] + 1
        a = T.alloc_var("int32", 5)
        b = T.alloc_var("int32", 6)
        a = b = a + 1
        A[2] = a * 10 + b

    assert run(body) == [2, 2, 66, 4]


def test_tiles_change_names():
    """Buffers are objects: their names change places while the program is traced."""

    @T.macro
    def body(A):
        one, two = T.alloc_local((1,), "int32"), T.alloc_local((1,), "int32")
        one[0] = 1
        two[0] = 2
        one, two = two, one
        A[0], A[1] = one[0], two[0]

    assert run(body) == [2, 1, 3, 4]
