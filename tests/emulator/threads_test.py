# SPDX-License-Identifier: Apache-2.0
"""What single threads do: blocks of threads in two and three dimensions, and what only some of them may."""

import interpreter
import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]


def call(emulator, program, target, *arrays):
    after, answer = emulator.call(emulator.module(program.serialized), target, [(a, str(a.dtype)) for a in arrays], check=1)
    if "error" in answer:
        return answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    return after


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("block", [(128,), (32, 4), (4, 32), (8, 4, 4), (1, 64), (1, 1, 64), (64, 1, 2), (16, 8, 1)])
def test_threads_of_every_dimension(emulator, target, block):
    x, y, z = [*block, 1, 1][:3]

    @T.prim_func
    def program(A: T.Tensor((z, y, x), "int32"), B: T.Tensor((z, y, x, 3), "int32")):
        with T.Kernel(1, threads=block):
            tx, ty, tz = T.get_thread_bindings()
            assert (T.get_thread_extent(0), T.get_thread_extent(1), T.get_thread_extent(2)) == (x, y, z) == tuple(T.get_thread_extents())
            A[tz, ty, tx] += 1
            B[tz, ty, tx, 0] = tx
            B[tz, ty, tx, 1] = ty
            B[tz, ty, tx, 2] = T.get_thread_binding(2)

    a, b = call(emulator, program, target, np.zeros((z, y, x), np.int32), np.full((z, y, x, 3), -1, np.int32))
    assert (a == 1).all()
    k, j, i = np.indices((z, y, x))
    np.testing.assert_array_equal(b, np.stack([i, j, k], axis=-1))


def test_a_block_has_three_dimensions():
    with pytest.raises(Exception, match="up to three along x, y and z"):
        @T.prim_func
        def four(A: T.Tensor((1,), "int32")):
            with T.Kernel(1, threads=(2, 2, 2, 2)):
                A[0] = 1
    with pytest.raises(Exception, match=r"0 \(x\), 1 \(y\) and 2 \(z\)"):
        @T.prim_func
        def other(A: T.Tensor((1,), "int32")):
            with T.Kernel(1, threads=64):
                A[0] = T.get_thread_binding(3)


def statements():
    def copy(s, r, A):
        T.copy(A, s)

    def fill(s, r, A):
        T.fill(s, 1.0)

    def loop(s, r, A):
        for i in T.Parallel(128):
            s[i] = 1.0

    def atomics(s, r, A):
        for i in T.Parallel(128):
            T.atomic_add(s[i], 1.0)

    def reduce(s, r, A):
        T.reduce_sum(s, r, dim=0)

    return [copy, fill, loop, atomics, reduce]


@pytest.mark.parametrize("target", [*TARGETS, "emu:gfx90a"])
@pytest.mark.parametrize("statement", statements(), ids=lambda f: f.__name__)
@pytest.mark.parametrize("condition", ["warps", "data", "left"])
def test_tile_operations_of_threads_that_are_no_known_range_are_refused(emulator, target, statement, condition):
    @T.prim_func
    def program(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s, r = T.alloc_shared((128,), "float32"), T.alloc_fragment((1,), "float32")
            T.fill(s, 0.0)
            if condition == "left":
                for i in T.serial(4):
                    if i == tx:
                        T.loop_break()
                    statement(s, r, A)
            else:
                if {"warps": tx % 64 < 32, "data": A[tx] > 0}[condition]:
                    statement(s, r, A)
            T.copy(s, B)

    error = call(emulator, program, target, *np.zeros((2, 128), np.float32))
    assert isinstance(error, str) and "only some threads reach" in error, error


@pytest.mark.parametrize("target", TARGETS)
def test_single_threads_write_under_any_condition(emulator, target):
    @T.prim_func
    def program(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s = T.alloc_shared((128,), "float32")
            T.copy(A, s)
            if tx < 64:
                s[tx] = 5.0
            T.copy(s, B)

    a, b = call(emulator, program, target, np.arange(128, dtype=np.float32), np.zeros(128, np.float32))
    assert (b == np.where(np.arange(128) < 64, 5, a)).all()


def of_threads(statements):
    """A program whose threads each run these statements, and what is in memory then, after one step of all threads at a time."""
    @T.prim_func
    def program(A: T.Tensor((256,), "int32")):
        with T.Kernel(1, threads=128):
            tx, s = T.get_thread_binding(), T.alloc_shared((256,), "int32")
            T.fill(s, 3)
            statements(A, s, tx)

    run = interpreter.Interpreter(program, [np.zeros(256, np.int32)], ())
    run.run()
    return program, run.memory[program.params[0].buffer]


def own_again(A, s, tx):
    if tx < 50:
        s[tx * 2 + 1] = tx
        s[tx * 2 + 1] = s[tx * 2 + 1] + 7
    A[tx] = s[tx]


def own_digits(A, s, tx):
    for u in T.serial(tx % 3):
        s[tx * 2 + u] = tx + u
        A[tx * 2 + u] = s[tx * 2 + u] + 1


def reads_before(A, s, tx):
    total = T.alloc_var("int32", 0)
    s[tx] = tx
    for u in T.serial(tx % 5):
        total += s[(tx + u) % 128]
    A[tx] = total


def reads_in_while(A, s, tx):
    total = T.alloc_var("int32", 0)
    s[tx] = tx + 1
    while total < tx % 7:
        total += s[(tx + 64) % 128]
    A[tx] = total


def reads_in_a_branch_of_a_loop(A, s, tx):
    for k in T.serial(3):
        for i in T.Parallel(64):
            s[i] = k * 10 + i
        if tx > 32 and tx % 2 == 1:
            A[tx] = 5
        else:
            A[tx + 128] = s[tx // 2]


def own_two_apart_in_no_whole_warps(A, s, tx):
    if tx < 80:
        s[tx] = tx
        s[tx + 128] = 2
        A[tx] = s[tx] + s[tx + 128]


def others_of_other_iterations(A, s, tx):
    for u in T.serial(4):
        A[tx + u * 32] = u * 1000 + tx


def within_a_warp(A, s, tx):
    if tx < 32:
        s[tx] = tx + 1
        A[tx] = s[31 - tx]


def within_the_last_warp(A, s, tx):
    f = T.alloc_fragment((32,), "int32")
    if tx >= 96:
        f[tx - 96] = tx
        A[tx] = f[127 - tx]
        if tx >= 112:
            A[tx + 128] = f[tx - 112]


def back_to_all(A, s, tx):
    f, g = T.alloc_fragment((128,), "int32"), T.alloc_fragment((128,), "int32")
    T.fill(f, 5)
    T.fill(g, 7)
    if tx < 32:
        f[tx] = tx
        g[tx] = f[31 - tx]
    T.copy(g, A[0:128])


def own_pairs_of_both_branches(A, s, tx):
    f = T.alloc_fragment((128, 2), "int32")
    if tx < 40:
        s[2 * tx] = tx
        s[2 * tx + 1] = 3
        f[tx, 0] = s[2 * tx]
        f[tx, 1] = s[2 * tx + 1]
        A[tx] = f[tx, 0] * f[tx, 1]
    else:
        f[tx, 0] = 4
        f[tx, 1] = tx
        A[tx] = f[tx, 0] + f[tx, 1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("statements", [own_again, own_digits, reads_before, reads_in_while, reads_in_a_branch_of_a_loop,
                                        own_two_apart_in_no_whole_warps, others_of_other_iterations, within_a_warp, within_the_last_warp, back_to_all,
                                        own_pairs_of_both_branches], ids=lambda f: f.__name__)
def test_threads_meet_where_they_must_and_can(emulator, target, statements):
    program, expected = of_threads(T.macro(statements))
    (a,) = call(emulator, program, target, np.zeros(256, np.int32))
    np.testing.assert_array_equal(a, expected)


def left_early(A, s, tx):
    total = T.alloc_var("int32", 0)
    for u in T.serial(4):
        s[tx] = u + tx
        total += s[(tx + 1) % 128]
        if tx % 4 == u:
            T.loop_break()
    A[tx] = total


def gone_on_early(A, s, tx):
    total = T.alloc_var("int32", 0)
    for u in T.serial(4):
        if tx % 4 == u:
            continue
        s[tx] = u + tx
        total += s[(tx + 1) % 128]
    A[tx] = total


def no_own_elements(A, s, tx):
    if tx < 50:
        s[tx // 2] = tx // 2
        A[tx] = s[tx // 2]
        s[tx // 2] = 1 + tx // 2


def no_whole_warps(A, s, tx):
    if tx < 80:
        s[tx] = tx
        A[tx] = s[79 - tx]


def shifted(A, s, tx):
    for u in T.serial(tx % 4):
        A[tx + u] = u


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("statements", [left_early, gone_on_early, no_own_elements, no_whole_warps, shifted], ids=lambda f: f.__name__)
def test_an_exchange_that_not_all_threads_come_to_is_refused(emulator, target, statements):
    program, _ = of_threads(T.macro(statements))
    error = call(emulator, program, target, np.zeros(256, np.int32))
    assert isinstance(error, str) and "threads exchange data here through memory" in error, error


def own_elements(f, s, tx):
    f[63 - tx] = tx + 100


def own_elements_in_a_loop(f, s, tx):
    for u in T.serial(4):
        turn = f[(tx + 1) % 64] + u  # of the turn before
        f[tx] = turn


def own_elements_of_others(f, s, tx):
    f[tx] = tx
    f[tx] = f[63 - tx] + 1


def own_element_that_decides(f, s, tx):
    f[tx] = tx
    if f[5] == 5:
        for i in T.Parallel(64):
            f[i] += 1


def of_fragments(statements, size):
    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            f, s = T.alloc_fragment((size,), "int32"), T.alloc_fragment((1,), "int32")
            T.fill(f, 7)
            T.fill(s, 7)
            statements(f, s, T.get_thread_binding())
            T.copy(f[0:64], A)
            for i in T.Parallel(64):
                B[i] = s[0]

    return program


EXPECTED = {own_elements: 163 - np.arange(64), own_elements_in_a_loop: np.full(64, 13),
            own_elements_of_others: 64 - np.arange(64), own_element_that_decides: np.arange(64) + 1}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [64, 8192])  # small ones are held by every thread whole
@pytest.mark.parametrize("statements", EXPECTED, ids=lambda f: f.__name__)
def test_what_a_thread_writes_to_its_element_of_a_fragment_the_others_read(emulator, target, size, statements):
    a, _ = call(emulator, of_fragments(T.macro(statements), size), target, *np.zeros((2, 64), np.int32))
    np.testing.assert_array_equal(a, EXPECTED[statements])


def decided_in_a_range(f, s, tx):
    if tx < 32:
        for i in T.Parallel(1):
            s[i] = 3
        while s[0] > 0:
            for i in T.Parallel(64):
                f[i] += i
            for i in T.Parallel(1):
                s[i] -= 1


def decided_by_what_iterations_keep(f, s, tx):
    v, w = T.alloc_var("int32"), T.alloc_local((1,), "int32")
    for i in T.Parallel(64):
        v = 2 * i
        w[0] = v + 1
        if w[0] < 10:
            v = 0
        f[i] = v + w[0]
    if f[9] > 5:
        T.fill(s, 0)


def decided_by_what_threads_keep(f, s, tx):
    w = T.alloc_local((1,), "int32")
    w[0] = 0
    for i in T.Parallel(64):
        w[0] += i
        f[i] = w[0]
    if f[9] > 5:
        T.fill(s, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_what_iterations_keep_is_no_threads_own(emulator, target):
    a, b = call(emulator, of_fragments(T.macro(decided_by_what_iterations_keep), 64), target, *np.zeros((2, 64), np.int32))
    i = np.arange(64)
    np.testing.assert_array_equal(a, np.where(i < 5, 2 * i + 1, 4 * i + 1))
    assert (b == 0).all()


@pytest.mark.parametrize("target", TARGETS)
def test_threads_of_a_range_agree_on_their_fragment(emulator, target):
    a, b = call(emulator, of_fragments(T.macro(decided_in_a_range), 64), target, *np.zeros((2, 64), np.int32))
    np.testing.assert_array_equal(a, 7 + 3 * np.arange(64))
    assert (b == 0).all()


def decided_by_a_copy(f, s, tx):
    s[0] = tx
    if s[0] > 5:
        T.fill(f, 3)


def decided_by_an_iteration(f, s, tx):
    for i in T.Parallel(64):
        f[i] = tx
    if f[5] > 5:
        T.fill(s, 8)


@pytest.mark.parametrize("statements", [decided_by_a_copy, decided_by_an_iteration, decided_by_what_threads_keep], ids=lambda f: f.__name__)
def test_threads_do_not_wait_where_their_copies_decide(emulator, statements):
    error = call(emulator, of_fragments(T.macro(statements), 64), "emu:sm_90a", *np.zeros((2, 64), np.int32))
    assert isinstance(error, str) and "only some threads reach" in error, error
