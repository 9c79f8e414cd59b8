# SPDX-License-Identifier: Apache-2.0
"""What the reference of the random programs (tests/interpreter.py) makes of single threads, where each result is known by hand."""

import interpreter
import kiln.language as T
import numpy as np
import pytest
from kiln.language import program as ir

N = 64


def run(program, *arrays, places=None):
    done = interpreter.Interpreter(program, arrays, (), places)
    done.run()
    return [done.memory[param.buffer] for param in program.params]


def test_every_statement_has_a_meaning():
    names = {kind.__name__.lower() for kind in ir.Stmt.__subclasses__() if kind.__module__ == ir.__name__}  # others end before a program does
    assert "fill" in names
    assert {n for n in names if n not in interpreter.ELEMENTWISE and not hasattr(interpreter.Interpreter, f"do_{n}")} == set()


def test_threads_of_three_dimensions_under_conditions():
    @T.prim_func
    def program(A: T.Tensor((4, 2, 8), "int32")):
        with T.Kernel(1, threads=(8, 2, 4)):
            tx, ty, tz = T.get_thread_bindings()
            if 2 <= tx < 5 and ty == 1:
                A[tz, ty, tx] = tx * 100 + tz
            else:
                A[tz, ty, tx] = -1

    (a,) = run(program, np.zeros((4, 2, 8), np.int32))
    z, y, x = np.indices((4, 2, 8))
    assert (a == np.where((x >= 2) & (x < 5) & (y == 1), x * 100 + z, -1)).all()


def test_arrays_and_loops_of_each_thread():
    @T.prim_func
    def program(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            tx = T.get_thread_binding()
            own, steps = T.alloc_local((4,), "int32"), T.alloc_var("int32", 0)
            for v in T.serial(4):
                own[v] = tx * 10 + v
            for u in T.serial(tx % 5):
                if u == 1:
                    continue
                if u == 3:
                    T.loop_break()
                own[u % 4] = own[u % 4] + 1000
            while steps < tx % 3:
                steps += 1
                if steps == 2:
                    T.loop_break()
                steps += 0
            A[tx] = own[0] + own[1] + own[2] + own[3]
            B[tx] = steps

    a, b = run(program, np.zeros(N, np.int32), np.zeros(N, np.int32))
    for tx in range(N):
        added = sum(1000 for u in range(tx % 5) if u in (0, 2))
        assert a[tx] == 40 * tx + 6 + added and b[tx] == tx % 3


def test_atomics_are_of_the_threads_that_do_them():
    @T.prim_func
    def program(A: T.Tensor((4,), "int32")):
        with T.Kernel(2, threads=N):
            tx = T.get_thread_binding()
            if tx < 10:
                T.atomic_add(A[tx % 4], 1)

    (a,) = run(program, np.zeros(4, np.int32))
    assert list(a) == [6, 6, 4, 4]


def test_a_tensor_within_another():
    @T.prim_func
    def program(A: T.Tensor((8,), "int32"), B: T.Tensor((4,), "int32")):
        T.annotate_restrict_buffers(A, B)
        with T.Kernel(1, threads=N):
            for k in T.serial(3):
                B[k + 1] = A[k + 2] * 2

    a, b = run(program, np.arange(8, dtype=np.int32), np.arange(2, 6, dtype=np.int32), places={1: (0, 2)})
    assert list(a) == [0, 1, 2, 4, 8, 16, 6, 7] and list(b) == list(a[2:6])


def test_lanes_that_disagree_are_found():
    @T.prim_func
    def program(A: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=N):
            A[0] = T.get_thread_binding()

    with pytest.raises(AssertionError, match="different values"):
        run(program, np.zeros(4, np.int32))


def test_each_thread_does_tile_operations_on_its_own_arrays():
    @T.prim_func
    def program(A: T.Tensor((N, 4), "int32"), B: T.Tensor((N, 2, 2), "int32")):
        with T.Kernel(1, threads=N):
            tx = T.get_thread_binding()
            own, square = T.alloc_local((4,), "int32"), T.alloc_local((2, 2), "int32")
            T.fill(own, tx)
            T.fill(square, 7)
            if tx % 2 == 0:
                T.copy(A[tx, 1:3], own[2:4])
                T.fill(square[tx // 2 % 2, 0:2], tx + 1)
            T.copy(own, A[tx, :])
            T.copy(square, B[tx, :, :])

    before = np.arange(N * 4, dtype=np.int32).reshape(N, 4)
    a, b = run(program, before, np.zeros((N, 2, 2), np.int32))
    threads = np.arange(N)
    expected = np.repeat(threads[:, None], 4, 1)
    expected[::2, 2:] = before[::2, 1:3]
    assert (a == expected).all()
    squares = np.full((N, 2, 2), 7)
    for thread in threads[::2]:
        squares[thread, thread // 2 % 2] = thread + 1
    assert (b == squares).all()


def test_an_operand_that_differs_between_threads_has_no_meaning():
    @T.prim_func
    def program(A: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            T.fill(A, T.get_thread_binding())

    with pytest.raises(AssertionError, match="differs between threads"):
        run(program, np.zeros(N, np.int32))


def test_threads_that_write_one_element_write_one_value():
    @T.prim_func
    def program(A: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            own = T.alloc_local((2,), "int32")
            T.fill(own, T.get_thread_binding())
            T.copy(own, A[0:2])

    with pytest.raises(AssertionError, match="different values"):
        run(program, np.zeros(N, np.int32))


@pytest.mark.parametrize("index", ["behind", "in front"])
def test_a_private_buffer_is_read_inside(index):
    @T.prim_func
    def program(A: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            tx, s = T.get_thread_binding(), T.alloc_shared((N,), "int32")
            T.fill(s, 1)
            A[tx] = s[tx + 1] if index == "behind" else s[tx - 1]

    with pytest.raises(AssertionError, match="read outside"):
        run(program, np.zeros(N, np.int32))


def test_numbers_of_four_bits():
    """Halfway goes to the even code, what is too large to the largest; integers wrap, and floats that become integers end at the type's ends."""
    given = np.array([0.25, 0.3, 0.75, 2.5, -2.5, 3.5, 5, -5.1, 7, np.inf, -0.1])
    assert interpreter.rounded(given, "float4_e2m1fn").tolist() == [0, 0.5, 1, 2, -2, 4, 4, -6, 6, 6, 0]
    assert interpreter.rounded(np.array([7, 8, -8, -9, 23]), "int4").tolist() == [7, -8, -8, 7, 7]
    assert interpreter.rounded(np.array([15, 16, -1]), "uint4").tolist() == [15, 0, 15]
    assert interpreter.rounded(np.array([9.7, -9.7, 1.9]), "int4").tolist() == [7, -8, 1]
