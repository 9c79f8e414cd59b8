# SPDX-License-Identifier: Apache-2.0
"""Warp groups whose barriers are the program's: such kernels keep them on targets that have mbarriers, and the emulator finds where they are not
enough. Elsewhere the groups' statements go in an order that the barriers allow."""

import kiln.language as T
import numpy as np
import pytest
from data import decode, random_array

M = N = 128
STEP, STEPS = 64, 4
HALF = "float16"
PINNED = ["emu:sm_90a", "emu:sm_90"]


def in_one_loop(wait=True, done=True, late=0):
    @T.prim_func
    def program(A: T.Tensor((M, STEPS * STEP), HALF), B: T.Tensor((STEPS * STEP, N), HALF), C: T.Tensor((M, N), HALF)):
        with T.Kernel(1, threads=256):
            a, b = T.alloc_shared((M, STEP), HALF), T.alloc_shared((STEP, N), HALF)
            c = T.alloc_fragment((M, N), T.float32)
            ready, free = T.alloc_barrier(128), T.alloc_barrier(128)
            with T.ws(1):
                T.clear(c)
            for k in T.serial(STEPS):
                with T.ws(0):
                    if done:
                        T.barrier_wait(free, (k + 1) % 2)
                    T.tma_copy(A[0, k * STEP], a, barrier=ready)
                    T.tma_copy(B[k * STEP, 0], b, barrier=ready)
                    T.barrier_arrive(ready)
                with T.ws(1):
                    if wait:
                        T.barrier_wait(ready, (k + late) % 2)
                    T.gemm(a, b, c)
                    T.barrier_arrive(free)
            with T.ws(1):
                T.copy(c, C)

    return program


def loops_of_their_own(stages=2, by_hand=False):
    @T.prim_func
    def program(A: T.Tensor((M, STEPS * STEP), HALF), B: T.Tensor((STEPS * STEP, N), HALF), C: T.Tensor((M, N), HALF)):
        with T.Kernel(1, threads=256):
            a, b = T.alloc_shared((stages, M, STEP), HALF), T.alloc_shared((stages, STEP, N), HALF)
            c = T.alloc_fragment((M, N), T.float32)
            ready, free = T.alloc_barrier([128] * stages), T.alloc_barrier([128] * stages)
            tx = T.get_thread_binding()
            if tx < 128:
                for k in T.serial(STEPS):
                    T.mbarrier_wait_parity(free[k % stages], (k // stages + 1) % 2)
                    if by_hand:
                        for j in T.serial(STEP // 8):
                            T.ptx_cp_async(T.access_ptr(a[k % stages, tx, j * 8], "w", 8), T.access_ptr(A[tx, k * STEP + j * 8], "r", 8), 8)
                    else:
                        T.tma_copy(A[0, k * STEP], a[k % stages, :, :], barrier=ready[k % stages])
                    T.copy(B[k * STEP : (k + 1) * STEP, :], b[k % stages, :, :])
                    T.mbarrier_arrive(ready[k % stages])
            else:
                T.clear(c)
                for k in T.serial(STEPS):
                    T.mbarrier_wait_parity(ready[k % stages], k // stages % 2)
                    T.gemm(a[k % stages, :, :], b[k % stages, :, :], c)
                    T.mbarrier_arrive(free[k % stages])
                T.copy(c, C)

    return program


def loops_of_different_lengths():
    """The filling group takes two steps in each turn of its loop: no order of whole turns."""

    @T.prim_func
    def program(A: T.Tensor((M, STEPS * STEP), HALF), B: T.Tensor((STEPS * STEP, N), HALF), C: T.Tensor((M, N), HALF)):
        with T.Kernel(1, threads=256):
            a, b = T.alloc_shared((2, M, STEP), HALF), T.alloc_shared((2, STEP, N), HALF)
            c = T.alloc_fragment((M, N), T.float32)
            ready, free = T.alloc_barrier([128, 128]), T.alloc_barrier([128, 128])
            with T.ws(0):
                for k in T.serial(STEPS // 2):
                    for stage in T.serial(2):
                        T.barrier_wait(free[stage], (k + 1) % 2)
                        T.tma_copy(A[0, (2 * k + stage) * STEP], a[stage, :, :], barrier=ready[stage])
                        T.tma_copy(B[(2 * k + stage) * STEP, 0], b[stage, :, :], barrier=ready[stage])
                        T.barrier_arrive(ready[stage])
            with T.ws(1):
                T.clear(c)
                for k in T.serial(STEPS):
                    T.barrier_wait(ready[k % 2], k // 2 % 2)
                    T.gemm(a[k % 2, :, :], b[k % 2, :, :], c)
                    T.barrier_arrive(free[k % 2])
                T.copy(c, C)

    return program


def product(rng):
    a, b = random_array(rng, (M, STEPS * STEP), HALF), random_array(rng, (STEPS * STEP, N), HALF)
    return [(a, HALF), (b, HALF), (np.zeros((M, N), np.float16), HALF)], decode(a, HALF) @ decode(b, HALF)


def run(emulator, program, target, tensors, **keys):
    return emulator.call(emulator.module(program.for_target(target).serialized), target, tensors, **keys)


def agrees(emulator, program, target):
    tensors, expected = product(np.random.default_rng(3))
    for seed in (0, 1):
        after, answer = run(emulator, program, target, tensors, check=1, seed=seed)
        assert "error" not in answer, answer["error"]
        assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
        assert np.abs(after[2].astype("float64") - expected).max() < 0.1


@pytest.mark.parametrize("target", [*PINNED, "emu:sm_80"])
@pytest.mark.parametrize("program", [in_one_loop(), loops_of_their_own(), loops_of_their_own(by_hand=True)], ids=["one", "own", "by_hand"])
def test_products(emulator, program, target):
    agrees(emulator, program, target)


def test_products_of_groups_in_turns(emulator):
    for program in (in_one_loop(), loops_of_their_own()):
        agrees(emulator, program, "emu:gfx942")


@pytest.mark.parametrize("target", PINNED)
def test_groups_whose_loops_differ(emulator, target):
    agrees(emulator, loops_of_different_lengths(), target)


def test_tiles_of_several_stages_are_read_by_the_matrix_unit(emulator):
    tensors, _ = product(np.random.default_rng(9))
    for program in (in_one_loop(), loops_of_their_own(), loops_of_different_lengths()):
        _, answer = run(emulator, program, "emu:sm_90a", tensors)
        assert any(decision.startswith("wgmma") for decision in answer["decisions"]), answer["decisions"]
        assert any(decision.startswith("tensor copy (TMA)") for decision in answer["decisions"]), answer["decisions"]


@pytest.mark.parametrize("program", [in_one_loop(), loops_of_their_own(), loops_of_their_own(by_hand=True), loops_of_different_lengths()],
                         ids=["one", "own", "by_hand", "lengths"])
def test_as_ptx(emulator, program):
    tensors, expected = product(np.random.default_rng(4))
    after, answer = run(emulator, program, "cuda:sm_90a", tensors)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and np.abs(after[2].astype("float64") - expected).max() < 0.1


@pytest.mark.parametrize("wrong", [{"wait": False}, {"done": False}], ids=str)
def test_a_missing_wait_is_found(emulator, wrong):
    tensors, _ = product(np.random.default_rng(5))
    found = [run(emulator, in_one_loop(**wrong), "emu:sm_90a", tensors, check=1, seed=seed)[1] for seed in range(3)]
    assert any(answer["findings"] for answer in found), found


def test_no_barrier_joins_a_group_that_waits_in_its_branch_for_a_later_one(emulator):
    @T.prim_func
    def program(A: T.Tensor((M, STEP), HALF), C: T.Tensor((M, STEP), HALF)):
        with T.Kernel(1, threads=256):
            a, ready = T.alloc_shared((M, STEP), HALF), T.alloc_barrier(128)
            with T.ws(1):
                T.barrier_wait(ready, 0)
                T.copy(a, C)
            with T.ws(0):
                T.copy(A, a)
                T.barrier_arrive(ready)

    given = random_array(np.random.default_rng(), (M, STEP), HALF)
    after, answer = run(emulator, program, "emu:sm_90a", [(given, HALF), (np.zeros_like(given), HALF)], check=1)
    assert "error" not in answer and answer["finished"] and not answer["findings"], answer
    assert (after[1] == given).all()


def test_groups_that_wait_for_each_other_are_found(emulator):
    tensors, _ = product(np.random.default_rng(6))
    _, answer = run(emulator, in_one_loop(late=1), "emu:sm_90a", tensors, check=1)
    messages = " ".join(finding["message"] for finding in answer["findings"])
    assert "ready[0]" in messages and "wait" in messages, answer


def hand_over(arrive_of_one):
    """A group's tile of sums goes through shared memory: within the group between its threads, and then to the other group. ``arrive_of_one``: one
    thread arrives for all."""

    @T.prim_func
    def program(A: T.Tensor((64, 64), T.float32), C: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=256):
            tile, sums = T.alloc_shared((64, 64), T.float32), T.alloc_shared((64,), T.float32)
            x, total = T.alloc_fragment((64, 64), T.float32), T.alloc_fragment((64,), T.float32)
            y = T.alloc_fragment((64, 64), T.float32)
            ready, free = T.alloc_barrier(1 if arrive_of_one else 128), T.alloc_barrier(128)
            tx = T.get_thread_binding()
            with T.ws(0):
                for k in T.serial(3):
                    T.barrier_wait(free, (k + 1) % 2)
                    T.copy(A, tile)
                    T.copy(tile, x)
                    T.reduce_sum(x, total, dim=0)
                    for j in T.Parallel(64):
                        sums[j] = total[j] * (k + 1)
                    if arrive_of_one:
                        if tx == 0:
                            T.barrier_arrive(ready)
                    else:
                        T.barrier_arrive(ready)
            with T.ws(1):
                T.clear(y)
                for k in T.serial(3):
                    T.barrier_wait(ready, k % 2)
                    for i, j in T.Parallel(64, 64):
                        y[i, j] += sums[j]
                    T.barrier_arrive(free)
                T.copy(y, C)

    return program


@pytest.mark.parametrize("arrive_of_one, target", [(one, target) for one in (False, True) for target in PINNED] + [(False, "emu:sm_80")])
def test_what_a_group_computes_reaches_the_other(emulator, arrive_of_one, target):
    a = random_array(np.random.default_rng(7), (64, 64), "float32")
    for seed in (0, 1):
        after, answer = run(emulator, hand_over(arrive_of_one), target, [(a, "float32"), (np.zeros_like(a), "float32")], check=1, seed=seed)
        assert "error" not in answer, answer["error"]
        assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
        assert np.abs(after[1] - 6 * a.sum(0)[None, :]).max() < 1e-3


def test_other_targets_refuse_the_barriers(emulator):
    tensors, _ = product(np.random.default_rng(8))
    for target in ("emu:sm_80", "emu:gfx942"):
        _, answer = emulator.call(emulator.module(in_one_loop().serialized), target, tensors)
        assert "has no mbarriers" in answer["error"], answer


def with_registers(first, second):
    @T.prim_func
    def program(A: T.Tensor((256,), T.float32)):
        with T.Kernel(1, threads=256):
            tx, bar = T.get_thread_binding(), T.alloc_barrier(128)
            with T.ws(0):
                T.set_max_nreg(first, 0)
                A[tx] = 1.0
                T.barrier_arrive(bar)
            with T.ws(1):
                T.set_max_nreg(second, 1)
                T.barrier_wait(bar, 0)
                A[tx] = A[tx - 128] + 1.0

    return program


@pytest.mark.parametrize("first, second", [(24, 256), (256, 24), (240, 240)])
def test_registers_that_are_not_there_have_no_effect(emulator, first, second):
    (after,), answer = run(emulator, with_registers(first, second), "emu:sm_90a", [(np.zeros(256, np.float32), "float32")], check=1)
    assert "error" not in answer and answer["finished"] and not answer["findings"], answer
    assert (after[:128] == 1).all() and (after[128:] == 2).all()
