# SPDX-License-Identifier: Apache-2.0
"""What the tracer refuses, where, and what it says."""

import pathlib

import pytest

import kiln.language as T
from kiln.language.trace import TraceError


def located(line_text):
    """An error whose text begins with this file and the line that holds ``line_text``."""
    for number, line in enumerate(open(__file__, encoding="utf-8"), 1):
        if line_text in line and "located" not in line:
            return f"{pathlib.Path(__file__).name}:{number}: "
    raise AssertionError(line_text)


def refused(define, line_text, says, kind=TraceError):
    with pytest.raises(kind) as failure:
        func = define()
        func.module
    text = str(failure.value)
    assert located(line_text) in text and says in text, text


def test_errors_name_the_line():
    def outside():
        @T.prim_func
        def f(A: T.Tensor((8,), "float32")):
            A[0] = 1.0  # outside

        return f

    def forever():
        @T.prim_func
        def f(A: T.Tensor((8,), "float32")):
            with T.Kernel(1) as bx:
                while True:  # forever
                    A[0] = 1.0

    def mismatch():
        @T.prim_func
        def f(A: T.Tensor((8, 8), "float32")):
            with T.Kernel(1) as bx:
                s, c = T.alloc_shared((8, 4), "float16"), T.alloc_fragment((8, 8), "float32")
                T.gemm(s, s, c)  # mismatch

    def whole():
        @T.prim_func
        def f(A: T.Tensor((8, 8), "float32")):
            with T.Kernel(1) as bx:
                A += 1  # whole

    def unreachable():
        @T.prim_func
        def f(A: T.Tensor((8,), "float32")):
            with T.Kernel(1) as bx:
                for i in T.serial(8):
                    break
                    A[i] = 1.0  # unreachable

    refused(outside, "# outside", "needs a kernel around it")
    refused(forever, "# forever", "Infinite while loop detected")
    refused(mismatch, "# mismatch", "A 8×4 and B 8×4 into C 8×8: the inner sizes differ")
    refused(whole, "# whole", "on a whole buffer")
    refused(unreachable, "# unreachable", "never reached")


def test_a_variable_does_not_leave_its_loop():
    def define():
        @T.prim_func
        def f(A: T.Tensor((8,), "float32")):
            with T.Kernel(1) as bx:
                for i in T.serial(8):
                    last = i + 1
                A[0] = last  # escaped

        return f

    refused(define, "# escaped", "used outside the loop or block that defines it", RuntimeError)


def test_return_under_a_condition():
    @T.macro
    def early(A, i):
        if A[i] > 0:
            return i
        return i + 1

    with pytest.raises(NotImplementedError, match="T.alloc_var"):
        @T.prim_func
        def f(A: T.Tensor((8,), "float32")):
            with T.Kernel(1) as bx:
                A[0] = early(A, bx)


def test_barriers_of_a_part_of_the_block_are_refused():
    def named():
        @T.prim_func
        def f(A: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=256):
                T.sync_threads(1, 128)

        return f

    refused(named, "T.sync_threads(1, 128)", "places each barrier that the program needs")


def program_of(statement):
    @T.prim_func
    def f(A: T.Tensor((8,), "float32"), B: T.Tensor((8, 8), "float32")):
        with T.Kernel(1) as bx:
            tile, row = T.alloc_fragment((8, 8), "float32"), T.alloc_fragment((8,), "float32")
            statement(A, bx, tile, row)

    return f


@pytest.mark.parametrize("statement, says", [
    (lambda A, i, tile, row: T.atomic_add(A[i], 1, memory_order="released"), "does not support memory_order"),
    (lambda A, i, tile, row: T.atomic_max(A, row, return_prev=True), "of a tile"),
])
def test_what_would_change_results_is_refused(statement, says):
    with pytest.raises(TraceError, match=says):
        program_of(statement)


def test_arguments_that_ask_for_what_is_done_anyway():
    relaxed = program_of(lambda A, i, tile, row: T.atomic_add(A[i], 1, memory_order="relaxed"))
    assert relaxed.serialized == program_of(lambda A, i, tile, row: T.atomic_add(A[i], 1)).serialized
    summed = program_of(lambda A, i, tile, row: T.reduce_max(tile, row, nan_propagate=False))
    assert summed.serialized == program_of(lambda A, i, tile, row: T.reduce_max(tile, row)).serialized


@pytest.mark.parametrize("statement, says", [
    (lambda A, i, tile, row: T.print(A[i], "x"), "T.print is left out: device output"),
    (lambda A, i, tile, row: T.device_assert(A[i] > 0), "T.device_assert is left out: assertions are not checked"),
])
def test_what_is_left_out_is_said(statement, says):
    with pytest.warns(UserWarning, match=says):
        program_of(statement)


def test_asserts_of_run_time_values_are_left_out():
    with pytest.warns(UserWarning, match="this assert is left out") as said:
        @T.prim_func
        def f(A: T.Tensor((8,), "float32")):
            with T.Kernel(8) as bx:
                assert A[bx] > 0
                assert A.shape[0] == 8

    assert len(said) == 1 and said[0].filename == __file__


def test_unknown_names_are_named():
    with pytest.raises(AttributeError, match="T.named_barrier_arrive is not part of Kiln's tile language.*T.copy"):
        T.named_barrier_arrive
    with pytest.raises(AttributeError, match="T.sync_global is not part of Kiln's tile language.*use T.sync_grid"):
        T.sync_global
    with pytest.raises(AttributeError, match="T.no_such_thing"):
        T.no_such_thing
