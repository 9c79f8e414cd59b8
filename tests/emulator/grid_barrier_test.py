# SPDX-License-Identifier: Apache-2.0
"""Barriers of all blocks: what one writes before, all read after."""

import kiln.language as T
import numpy as np
import pytest
from data import decode, random_array

BLOCKS, EACH = 4, 64
TARGETS = ["emu:sm_80", "emu:sm_90a"]


def run(emulator, program, target, tensors, **keys):
    return emulator.call(emulator.module(program.for_target(target).serialized), target, tensors, **keys)


def rounds(sync=True, absent=None, count=3):
    """In each round a block takes what its neighbour has, and adds one."""
    @T.prim_func
    def program(A: T.Tensor((BLOCKS, EACH), "int32")):
        with T.Kernel(BLOCKS, threads=64) as bx:
            mine = T.alloc_fragment((EACH,), "int32")
            for _ in T.serial(count):
                T.copy(A[(bx + 1) % BLOCKS, :], mine)
                if sync:
                    T.sync_grid()
                for i in T.Parallel(EACH):
                    A[bx, i] = mine[EACH - 1 - i] + 1
                if absent is None:
                    T.sync_grid()
                elif bx != absent:
                    T.sync_grid()

    return program


def of_rounds(a, count=3):
    for _ in range(count):
        a = np.roll(a, -1, axis=0)[:, ::-1] + 1
    return a


@pytest.mark.parametrize("target", TARGETS)
def test_rounds(emulator, target):
    a = random_array(np.random.default_rng(1), (BLOCKS, EACH), "int32")
    for seed in (0, 1):
        (after,), answer = run(emulator, rounds(), target, [(a, "int32")], check=1, seed=seed)
        assert "error" not in answer, answer["error"]
        assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
        assert (after == of_rounds(a)).all()
    assert any("must be on the device at one time" in decision for decision in answer["decisions"]), answer["decisions"]


def test_without_them_blocks_race(emulator):
    a = random_array(np.random.default_rng(2), (BLOCKS, EACH), "int32")
    _, answer = run(emulator, rounds(sync=False), "emu:sm_80", [(a, "int32")], check=1)
    assert any("of block (" in finding["message"] for finding in answer["findings"]), answer["findings"]


def test_a_block_that_does_not_come(emulator):
    a = random_array(np.random.default_rng(3), (BLOCKS, EACH), "int32")
    _, answer = run(emulator, rounds(absent=2, count=1), "emu:sm_90a", [(a, "int32")], check=1)
    assert not answer["finished"]
    assert any("wait for the barrier of the grid" in finding["message"] for finding in answer["findings"]), answer


def parts_of_products():
    """Each block multiplies a part of the depth; after the barrier each sums a part of the rows."""
    @T.prim_func
    def program(A: T.Tensor((64, BLOCKS * 128), "float16"), B: T.Tensor((BLOCKS * 128, 64), "float16"), P: T.Tensor((BLOCKS, 64, 64), "float32"),
                C: T.Tensor((64, 64), "float32")):
        with T.Kernel(BLOCKS, threads=128) as bx:
            a, b, c = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16"), T.alloc_fragment((64, 64), "float32")
            part, total = T.alloc_shared((16, 64), "float32"), T.alloc_fragment((16, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=3):
                T.copy(A[0, bx * 128 + k * 32], a)
                T.copy(B[bx * 128 + k * 32, 0], b)
                T.gemm(a, b, c)
            T.copy(c, P[bx, :, :])
            T.sync_grid()
            T.clear(total)
            for p in T.Pipelined(BLOCKS, num_stages=2):
                T.copy(P[p, bx * 16, 0], part)
                for i, j in T.Parallel(16, 64):
                    total[i, j] += part[i, j]
            T.copy(total, C[bx * 16, 0])

    return program


@pytest.mark.parametrize("target", TARGETS)
def test_parts_of_products(emulator, target):
    rng = np.random.default_rng(4)
    a, b = random_array(rng, (64, BLOCKS * 128), "float16"), random_array(rng, (BLOCKS * 128, 64), "float16")
    tensors = [(a, "float16"), (b, "float16"), (np.zeros((BLOCKS, 64, 64), np.float32), "float32"), (np.zeros((64, 64), np.float32), "float32")]
    expected = decode(a, "float16") @ decode(b, "float16")
    for seed in (0, 1):
        after, answer = run(emulator, parts_of_products(), target, tensors, check=1, seed=seed)
        assert "error" not in answer, answer["error"]
        assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
        assert np.abs(after[3] - expected).max() < 1e-2
    if target == "emu:sm_90a":
        assert any(decision.startswith("wgmma") for decision in answer["decisions"]), answer["decisions"]


def under(condition):
    @T.prim_func
    def program(A: T.Tensor((64,), "int32")):
        with T.Kernel(2, threads=64):
            tx = T.get_thread_binding()
            if condition(tx, A):
                T.sync_grid()

    return program


@pytest.mark.parametrize("condition, words", [(lambda tx, A: tx < 32, "only threads 0 to 31 reach"),
                                              (lambda tx, A: A[tx] > 0, "only some threads reach")])
def test_all_threads_come(emulator, condition, words):
    _, answer = run(emulator, under(condition), "emu:sm_80", [(np.zeros(64, np.int32), "int32")])
    assert words in answer["error"]


def test_other_targets_refuse_them(emulator):
    _, answer = run(emulator, rounds(), "emu:gfx942", [(np.zeros((BLOCKS, EACH), np.int32), "int32")])
    assert "a barrier of all blocks" in answer["error"], answer


@pytest.mark.parametrize("target", TARGETS)
def test_groups_with_barriers_of_their_own(emulator, target):
    """One group loads, the other computes; after the barrier of the grid they read what other blocks have written."""
    @T.prim_func
    def program(A: T.Tensor((2, 64, 64), "float16"), B: T.Tensor((2, 64, 64), "float16")):
        with T.Kernel(2, threads=256) as bx:
            tile, out = T.alloc_shared((64, 64), "float16"), T.alloc_fragment((64, 64), "float16")
            ready, free = T.alloc_barrier(128), T.alloc_barrier(128)
            for turn in T.serial(2):
                with T.ws(0):
                    T.barrier_wait(free, (turn + 1) % 2)
                    T.tma_copy(A[(bx + turn) % 2, :, :], tile, barrier=ready)
                    T.barrier_arrive(ready)
                with T.ws(1):
                    T.barrier_wait(ready, turn % 2)
                    for i, j in T.Parallel(64, 64):
                        out[i, j] = tile[i, j] + 1
                    T.copy(out, A[(bx + turn) % 2, :, :])
                    T.barrier_arrive(free)
                T.sync_grid()
            T.copy(A[bx, :, :], B[bx, :, :])

    a = random_array(np.random.default_rng(9), (2, 64, 64), "float16")
    after, answer = run(emulator, program, target, [(a, "float16"), (np.zeros_like(a), "float16")], check=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    assert np.abs(after[1] - (a + 2)).max() < 0.05
