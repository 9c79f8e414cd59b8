# SPDX-License-Identifier: Apache-2.0
"""What threads write to elements of a fragment of their own, whoever reads them, and under whatever condition. A fragment is one tile of the block:
an element has one value for all threads."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
N = 64
I = np.arange(N)


def program_of(statements, size, threads=N):
    @T.prim_func
    def program(A: T.Tensor((size,), "int32"), B: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=threads):
            f = T.alloc_fragment((size,), "int32")
            T.fill(f, 7)
            statements(f, T.get_thread_binding(), A, B)

    return program


def mirrored(f, tx, A, B):
    f[tx] = tx
    B[tx] = f[63 - tx]


def added_up(f, tx, A, B):
    f[tx] = tx
    total = T.alloc_var("int32", 0)
    for u in T.serial(64):
        total += f[u]
    B[tx] = total


def copied_to_a_local(f, tx, A, B):
    f[tx] = tx
    own, total = T.alloc_local((64,), "int32"), T.alloc_var("int32", 0)
    T.copy(f[0:64], own)
    for u in T.serial(64):
        total += own[u]
    B[tx] = total


def at_places_in_variables(f, tx, A, B):
    at = T.alloc_var("int32", 0)
    at = tx
    f[at] = tx
    at = (tx + 1) % 64
    B[tx] = f[at]


def where_another_iteration_wrote(f, tx, A, B):
    last = T.alloc_var("int32", 0)
    for u in T.serial(4):
        last = f[(tx + u) % 64]
        f[(tx + u) % 64] = tx + u
    B[tx] = last


def through_a_view(f, tx, A, B):
    T.reshape(f, (f.shape[0] // 8, 8))[tx // 8, tx % 8] = tx
    B[tx] = f[63 - tx]


def register_of_each_thread(f, tx, A, B):
    for u in T.serial(3):
        f[u] = tx + u
    B[tx] = f[0] + f[2]


READ = {mirrored: 63 - I, added_up: np.full(N, 2016), copied_to_a_local: np.full(N, 2016), at_places_in_variables: (I + 1) % N,
        where_another_iteration_wrote: (I + 1) % N + 2, through_a_view: 63 - I}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [64, 4096])  # every thread holds a small one whole
@pytest.mark.parametrize("statements", READ, ids=lambda f: f.__name__)
def test_single_threads_read_what_others_wrote(call, target, size, statements):
    _, b = call(program_of(T.macro(statements), size), target, np.zeros(size, np.int32), np.zeros(N, np.int32))
    np.testing.assert_array_equal(b, READ[statements])


@pytest.mark.parametrize("target", TARGETS)
def test_what_each_thread_writes_to_one_element_it_reads_itself(call, target):
    _, b = call(program_of(T.macro(register_of_each_thread), 64), target, np.zeros((64,), np.int32), np.zeros(N, np.int32))
    np.testing.assert_array_equal(b, 2 * I + 2)


def threads_with_gaps(f, tx, A, B):
    if tx % 2 == 0:
        f[tx] = tx
        B[tx] = f[tx]
    T.copy(f, A)


def part_of_two_warps(f, tx, A, B):
    if tx < 48:
        f[tx] = tx
        B[tx] = f[tx]
    else:
        B[tx] = 5
    T.copy(f, A)


def both_branches(f, tx, A, B):
    if tx % 3 == 1:
        f[tx] = tx
    else:
        f[tx] = tx + 100
    T.copy(f, A)


def within_another(f, tx, A, B):
    if tx % 2 == 0:
        if tx > 20:
            f[tx] = tx
    T.copy(f, A)


def iterations_of_its_own(f, tx, A, B):
    for u in T.serial(tx % 3):
        f[tx] = u + 11
    T.copy(f, A)


def while_it_likes(f, tx, A, B):
    turns = T.alloc_var("int32", 0)
    while turns < tx % 3:
        f[tx] = f[tx] + 1
        turns += 1
    T.copy(f, A)


def left_early(f, tx, A, B):
    for u in T.serial(5):
        f[tx] = f[tx] + 1
        if u == tx % 3:
            T.loop_break()
    T.copy(f, A)


def beside_a_range(f, tx, A, B):
    if tx < 32:
        for i in T.Parallel(32):
            B[i] = 7
    else:
        f[tx] = tx
    T.copy(f, A)


def read_beside_a_range(f, tx, A, B):
    for i in T.Parallel(64):
        f[i] = i + 3
    if tx < 32:
        for i in T.Parallel(32):
            B[i] = 9
    else:
        B[tx] = f[tx]
    T.copy(f, A)


CONDITIONS = {
    threads_with_gaps: (np.where(I % 2 == 0, I, 7), np.where(I % 2 == 0, I, 0)),
    part_of_two_warps: (np.where(I < 48, I, 7), np.where(I < 48, I, 5)),
    both_branches: (np.where(I % 3 == 1, I, I + 100), 0 * I),
    within_another: (np.where((I % 2 == 0) & (I > 20), I, 7), 0 * I),
    iterations_of_its_own: (np.where(I % 3 > 0, I % 3 + 10, 7), 0 * I),
    while_it_likes: (7 + I % 3, 0 * I),
    left_early: (8 + I % 3, 0 * I),
    beside_a_range: (np.where(I < 32, 7, I), np.where(I < 32, 7, 0)),
    read_beside_a_range: (I + 3, np.where(I < 32, 9, I + 3)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [64, 4096])
@pytest.mark.parametrize("statements", CONDITIONS, ids=lambda f: f.__name__)
def test_threads_write_their_elements_under_any_condition(call, target, size, statements):
    a, b = call(program_of(T.macro(statements), size), target, np.zeros(size, np.int32), np.zeros(N, np.int32))
    expected, marks = CONDITIONS[statements]
    np.testing.assert_array_equal(a[:N], expected)
    assert (a[N:] == 7).all()
    np.testing.assert_array_equal(b, marks)


def strided(f, tx, A, B):
    for u in T.serial(2):
        f[tx + 32 * u] = (tx + 32 * u) * 2
    B[tx] = f[(tx + 1) % 32]


@pytest.mark.parametrize("target", TARGETS)
def test_threads_write_several_elements_each(call, target):
    _, b = call(program_of(T.macro(strided), 64, threads=32), target, np.zeros(64, np.int32), np.zeros(N, np.int32))
    np.testing.assert_array_equal(b[:32], (I[:32] + 1) % 32 * 2)


def decided_by_a_reduction_of_copies(f, tx, A, B):
    total = T.alloc_fragment((1,), "int32")
    for u in T.serial(4):
        f[u] = tx
    T.reduce_sum(f, total, dim=0)
    if total[0] > 100:
        T.fill(A, 3)


def test_a_reduction_of_copies_that_differ_decides_for_no_block(emulator):
    module = emulator.module(program_of(T.macro(decided_by_a_reduction_of_copies), 64).serialized)
    _, answer = emulator.call(module, "emu:sm_90a", [(np.zeros(64, np.int32), "int32")] * 2, check=1)
    assert "only some threads reach, under if %total[0] > 100" in answer.get("error", ""), answer


@pytest.mark.parametrize("target", ["emu:sm_90a", "emu:gfx942"])
def test_an_element_of_another_thread_is_not_read_while_it_may_be_written(emulator, target):
    @T.prim_func
    def program(A: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            f, tx = T.alloc_fragment((128,), "int32"), T.get_thread_binding()
            for i in T.Parallel(128):
                f[i] = i
            if tx % 4 != 3:
                f[tx] = f[tx + 1] + 100
            for i in T.Parallel(128):
                A[i] = f[i]

    _, answer = emulator.call(emulator.module(program.serialized), target, [(np.zeros(128, np.int32), "int32")], check=1)
    assert "threads exchange data here" in answer["error"], answer
