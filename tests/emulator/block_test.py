# SPDX-License-Identifier: Apache-2.0
"""A block acts as one: what stands outside of parallel loops happens once, whatever the threads; iterations that several threads run are one
iteration; conditions see memory as it was when the block came to them."""

import kiln.language as T
import numpy as np
import pytest

N, THREADS = 40, 128


@pytest.fixture(params=["emu:sm_90a", "emu:gfx942"])
def call(emulator, request):
    def call(program, *arrays):
        tensors = [(array, str(array.dtype)) for array in arrays]
        after, answer = emulator.call(emulator.module(program.serialized), request.param, tensors, check=1, seeds=3)
        assert "error" not in answer, answer["error"]
        assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
        return after

    return call


def numbers(count=N):
    return np.arange(count, dtype=np.int32)


def test_an_element_changes_once(call):
    @T.prim_func
    def program(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=THREADS):
            s = T.alloc_shared((N,), "int32")
            T.copy(A, s)
            s[3] = s[3] + 1
            s[4] += s[5]
            A[2] = A[2] + 5
            for k in T.serial(3):
                T.atomic_add(A[0], s[4] + k)
            T.copy(s, B)

    before = numbers()
    a, b = call(program, before, np.zeros(N, np.int32))
    assert a[2] == before[2] + 5 and a[0] == before[0] + THREADS * (3 * 9 + 3)
    expected = before.copy()
    expected[3:5] = 4, 9
    assert (b == expected).all()


def test_each_thread_does_what_it_says_of_itself(call):
    @T.prim_func
    def program(A: T.Tensor((N,), "int32"), B: T.Tensor((THREADS,), "int32")):
        with T.Kernel(1, threads=THREADS):
            thread, own, half = T.get_thread_binding(0), T.alloc_var("int32", 0), T.alloc_var("int32", 0)
            own = thread * 2
            if thread >= THREADS // 2:
                half = 1
            for _ in T.serial(5):
                if thread % 2 == 0:
                    T.loop_break()
                T.atomic_add(A[0], 1)
                T.loop_break()
            T.atomic_add(A[1], half)
            B[thread] = own

    a, b = call(program, np.zeros(N, np.int32), np.zeros(THREADS, np.int32))
    assert (b == 2 * np.arange(THREADS)).all()
    assert a[0] == a[1] == THREADS // 2


def test_conditions_are_read_before_memory_changes(call):
    @T.prim_func
    def program(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=THREADS):
            s = T.alloc_shared((N,), "int32")
            T.copy(A, s)
            while s[0] < 5:
                s[0] = s[0] + 1
                for i in T.Parallel(N):
                    if i > 0:
                        s[i] = s[i] + 1
            if s[0] > 2:
                s[0] = 0
                s[1] = 77
            T.copy(s, B)

    expected = numbers() + 5
    expected[:2] = 0, 77
    assert (call(program, numbers(), np.zeros(N, np.int32))[1] == expected).all()


# Fewer iterations than threads: several threads run each, and hold the fragment.
@pytest.mark.parametrize("writes_first", [True, False])
@pytest.mark.parametrize("guarded", [True, False])
def test_an_iteration_finds_in_memory_what_it_wrote(call, writes_first, guarded):
    @T.prim_func
    def program(A: T.Tensor((N,), "int32"), B: T.Tensor((N, 8), "int32")):
        with T.Kernel(1, threads=THREADS):
            s, f = T.alloc_shared((N,), "int32"), T.alloc_fragment((N,), "int32")
            T.fill(s, 50)
            T.fill(f, 7)
            for i in T.Parallel(N):
                if not guarded or i % 3 == 0:
                    if writes_first:
                        s[i] = A[i]
                        f[i] = s[i] + 1
                    else:
                        f[i] = s[i] + A[i]
                        s[i] = 0
            for i, j in T.Parallel(N, 8):
                B[i, j] = f[i] + s[i]

    a = numbers()
    done = (np.arange(N) % 3 == 0) | (not guarded)
    expected = np.where(done, a + 1 + a if writes_first else 50 + a, 57)
    assert (call(program, a, np.zeros((N, 8), np.int32))[1] == expected[:, None]).all()


def test_an_element_in_place_changes_once(call):
    @T.prim_func
    def program(A: T.Tensor((3, N), "int32"), B: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=THREADS):
            s = T.alloc_shared((N,), "int32")
            T.copy(A[0, :], s)
            for k in T.serial(3):
                for i in T.Parallel(N):
                    if i >= 8:
                        s[i] = T.max(s[i] * 2, A[k, i])
            T.copy(s, B)

    a = np.random.default_rng(1).integers(0, 9, (3, N)).astype(np.int32)
    expected = a[0].copy()
    for k in range(3):
        expected[8:] = np.maximum(expected[8:] * 2, a[k, 8:])
    assert (call(program, a, np.zeros(N, np.int32))[1] == expected).all()


# What lies outside of a tensor is not read, so that it races with no block.
def test_blocks_read_back_their_part(call):
    @T.prim_func
    def program(A: T.Tensor((100, 40), "int32"), B: T.Tensor((100, 40), "int32")):
        with T.Kernel(3, threads=THREADS) as bx:
            s = T.alloc_shared((48, 40), "int32")
            T.copy(A[bx * 48, 0], s)
            T.copy(s, B[bx * 48, 0])
            T.fill(s, 5)
            T.copy(B[bx * 48, 0], s)
            for i, j in T.Parallel(48, 40):
                s[i, j] = s[i, j] + 1
            T.copy(s, B[bx * 48, 0])

    a = np.random.default_rng(2).integers(0, 9, (100, 40)).astype(np.int32)
    assert (call(program, a, np.zeros((100, 40), np.int32))[1] == a + 1).all()


# A tile that comes by tensor copies and that no product of this step reads: all threads see it come before its place is filled again.
@pytest.mark.parametrize("threads", [128, 256])
def test_a_product_that_a_step_skips(emulator, threads):
    steps = 6

    @T.prim_func
    def program(A: T.Tensor((64, 64 * steps), "float16"), B: T.Tensor((128, 64 * steps), "float16"), C: T.Tensor((64, 128), "float32")):
        with T.Kernel(1, threads=threads):
            a, b, c = T.alloc_shared((64, 64), "float16"), T.alloc_shared((128, 64), "float16"), T.alloc_fragment((64, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(steps, num_stages=3):
                T.copy(A[0, k * 64], a)
                T.copy(B[0, k * 64], b)
                if k % 3 == 2:
                    T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    rng = np.random.default_rng(3)
    a, b = (rng.integers(-2, 3, (rows, 64 * steps)).astype(np.float16) for rows in (64, 128))
    tensors = [(a, "float16"), (b, "float16"), (np.zeros((64, 128), np.float32), "float32")]
    after, answer = emulator.call(emulator.module(program.serialized), "emu:sm_90a", tensors, check=1, seeds=3)
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    assert answer["wgmma"] > 0 and answer["tensor_loads"] > 0
    used = np.arange(64 * steps) // 64 % 3 == 2
    assert (after[2] == a[:, used].astype(np.float64) @ b[:, used].astype(np.float64).T).all()
