# SPDX-License-Identifier: Apache-2.0
"""Arrays of each thread's own in parallel loops, whose iterations do not come out even over the threads."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
SHAPES = [(7, 61), (2, 8), (4, 128), (5, 33), (61, 7), (3, 100)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("check", [0, 1])
def test_an_array_that_nobody_set(emulator, target, shape, check):
    """What is read there goes nowhere; a checked run says that it is read."""
    @T.prim_func
    def program(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            few = T.alloc_local(shape, "float32")
            for i, j in T.Parallel(*shape):
                few[i, j] = few[i, j] * T.cast(i, "float32")
            B[tx] = A[tx]

    given = [(np.arange(128, dtype=np.float32), "float32"), (np.zeros(128, np.float32), "float32")]
    (a, b), answer = emulator.call(emulator.module(program.serialized), target, given, check=check)
    assert answer["finished"] and (a == b).all()
    assert {(found["kind"], found["buffer"]) for found in answer["findings"]} == ({("uninitialised read", "few")} if check else set())


@pytest.mark.parametrize("target", TARGETS)
def test_a_variable_that_a_condition_sets_is_read_where_it_did_not(emulator, target):
    @T.prim_func
    def program(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx, one = T.get_thread_binding(), T.alloc_var("float32")
            if A[tx] > 99.0:
                one = A[tx]
            if A[tx] > 98.0:
                B[tx] = one

    given = [(np.arange(128, dtype=np.float32), "float32"), (np.zeros(128, np.float32), "float32")]
    _, answer = emulator.call(emulator.module(program.serialized), target, given, check=1)
    assert [(found["kind"], found["buffer"]) for found in answer["findings"]] == [("uninitialised read", "one")]
    assert "thread 99 of" in answer["findings"][0]["message"] and "nobody wrote" in answer["findings"][0]["message"]


@pytest.mark.parametrize("target", TARGETS)
def test_elements_that_are_not_read_need_no_value(call, target):
    """Behind a condition, in an arm of a choice, behind the first operand of `and`, and in a parallel loop."""
    @T.prim_func
    def program(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            few, last, count = T.alloc_local((4,), "float32"), T.alloc_var("float32"), T.alloc_var("int32", 0)
            for i in T.serial(4):
                if A[tx * 4 + i] > 0.0:
                    few[count] = A[tx * 4 + i]
                    count += 1
            for i in T.serial(4):
                B[tx * 4 + i] = T.if_then_else(i < count, few[i], 0.0)
                if i > 0 and i <= count and last > few[i - 1]:
                    B[tx * 4 + i] += 1.0
                last = A[tx * 4 + i]
            for i in T.Parallel(100):
                if count > 3:
                    B[i] += few[i % 4] * 0.0

    data = np.where(np.arange(256) % 3 == 0, -1.0, np.arange(256)).astype(np.float32)
    call(program, target, data, np.zeros(256, np.float32), check=1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] * shape[1] >= 128])  # of fewer, several threads may have copies
def test_each_iteration_stores_one_element(call, target, shape):
    """A thread's array keeps what the iterations of others would have stored, and its neighbours keep theirs."""
    p, q = shape

    @T.prim_func
    def program(B: T.Tensor((p * q,), "int32"), C: T.Tensor((128, 4), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            before, few, behind = T.alloc_local((1,), "int32"), T.alloc_local(shape, "int32"), T.alloc_local((1,), "int32")
            last, own = T.alloc_var("int32", 0), T.alloc_var("int32", 0)
            before[0] = 17
            behind[0] = 19
            for i in T.serial(p):
                for j in T.serial(q):
                    few[i, j] = 1
            for i, j in T.Parallel(p, q):
                few[i, j] = few[i, j] + i * q + j + 1
                last = 1
            for i in T.serial(p):
                for j in T.serial(q):
                    if few[i, j] != 1:
                        own = 1
                        T.atomic_add(B[i * q + j], few[i, j])
            C[tx, 0] = before[0]
            C[tx, 1] = behind[0]
            C[tx, 2] = last
            C[tx, 3] = own

    b, c = call(program, target, np.zeros(p * q, np.int32), np.zeros((128, 4), np.int32))
    assert (b == np.arange(p * q) + 2).all()
    assert (c[:, 0] == 17).all() and (c[:, 1] == 19).all() and (c[:, 2] == c[:, 3]).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("memory", [T.alloc_fragment, T.alloc_shared])
@pytest.mark.parametrize("size", [64, 256, 1000])
def test_an_iteration_reads_what_it_kept(call, target, memory, size):
    """Also where a thread stores several neighbours at once."""
    @T.prim_func
    def program(A: T.Tensor((size,), "int32"), B: T.Tensor((size,), "int32"), C: T.Tensor((size,), "int32")):
        with T.Kernel(1, threads=64):
            tile, one, few = memory((size,), "int32"), T.alloc_var("int32"), T.alloc_local((2,), "int32")
            for i in T.Parallel(size):
                one = A[i] * 2
                tile[i] = one + 1
            for i in T.Parallel(size):
                few[1] = tile[i]
                if few[1] > 99:
                    few[1] = 99
                B[i] = few[1]
            few[0] = 0
            for i in T.Parallel(size):
                few[0] += A[i] + 1
            for i in T.Parallel(64):
                T.atomic_add(C[i], few[0])

    a, b, c = call(program, target, np.arange(size, dtype=np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32))
    np.testing.assert_array_equal(b, np.minimum(2 * a + 1, 99))
    assert c.sum() == (a + 1).sum()


@pytest.mark.parametrize("target", TARGETS)
def test_a_store_beyond_a_tensor_reads_nothing(emulator, target):
    @T.prim_func
    def program(A: T.Tensor((100,), "float32"), C: T.Tensor((100,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            own = T.alloc_local((4,), "float32")
            for i in T.serial(4):
                if tx * 4 + i < 100:
                    own[i] = A[tx * 4 + i]
            for i in T.serial(4):
                C[tx * 4 + i] = own[i]

    a = np.random.default_rng().standard_normal(100).astype(np.float32)
    (_, c), answer = emulator.call(emulator.module(program.serialized), target, [(a, "float32"), (np.zeros_like(a), "float32")], check=1)
    assert answer["finished"] and not answer["findings"] and np.array_equal(a, c)
