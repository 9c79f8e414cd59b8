# SPDX-License-Identifier: Apache-2.0
"""What random programs found, each by itself: programs that were refused, crashed the compiler, or gave wrong results."""

import interpreter
import kiln.language as T
import numpy as np
import pytest
from data import SHORT, decode
from random_run import stored

TARGETS = ["emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]


def check(emulator, program, target):
    """All parameters start with small integers, and end as numpy says. Returns the emulator's answer."""
    rng, given = np.random.default_rng(7), []
    for parameter in program.params:
        least = 0 if parameter.buffer.dtype == "uint4" else -4
        given.append(rng.integers(least, 5, parameter.buffer.shape).astype(np.float64))
    types = [str(parameter.buffer.dtype) for parameter in program.params]
    run = interpreter.Interpreter(program, given, ())
    run.run()
    arguments = [(stored(a, t), "uint8" if t in SHORT else t) for a, t in zip(given, types)]
    after, answer = emulator.call(emulator.module(program.serialized), target, arguments, check=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    for parameter, array, dtype in zip(program.params, after, types):
        assert np.array_equal(decode(array, dtype), run.memory[parameter.buffer].astype(np.float64)), parameter.name
    return answer


@pytest.mark.parametrize("target", TARGETS)
def test_runs_that_no_vector_divides(emulator, target):
    """A thread that has twenty neighbours stores them by fours: eight do not divide them."""
    @T.prim_func
    def program(A: T.Tensor((40, 64), "int32"), B: T.Tensor((64, 40), "bfloat16")):
        with T.Kernel(1, threads=64):
            a, b = T.alloc_shared((40, 64), "int32"), T.alloc_shared((64, 40), "bfloat16")
            T.copy(A, a)
            T.clear(b)
            for i, j in T.Parallel(64, 20):
                b[i, j] = T.cast(a[j, i], "bfloat16")
            T.copy(b, B)

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_elements_of_a_large_fragment(emulator, target):
    """Read by conditions and lets, written one by one: not held by every thread."""
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            for k in T.serial(4):
                if a[k, 63] > 0:
                    a[5, k] = a[k, 2] + 1
                    T.copy(a[0:8, :], a[8:16, :])
            k = T.alloc_var("int32", 0)
            while a[3, k] < 4:
                k += 1
                a[3, k + 1] = a[3, k + 1] + 1
                if k > 20:
                    continue
                if k > 30:
                    T.loop_break()
            first = a[0, 0]
            for i, j in T.Parallel(64, 64):
                a[i, j] += first
            T.copy(a, B)

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_of_the_loop_that_a_pipeline_fills(emulator, target):
    @T.prim_func
    def program(A: T.Tensor((64, 256), "float16"), B: T.Tensor((64, 256), "float16")):
        with T.Kernel(1, threads=128):
            for k in T.Pipelined(4, num_stages=3):
                a = T.alloc_shared((64, 64), "float16")
                T.copy(A[0, k * 64], a)
                for i, j in T.Parallel(64, 64):
                    B[i, k * 64 + j] = a[i, j] * 2

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows, blocks", [(0, 1), (64, 0)])
def test_a_grid_of_no_blocks(emulator, target, rows, blocks):
    """Known when the program is compiled, as where a symbol turns out to be 0: nothing runs."""
    @T.prim_func
    def program(A: T.Tensor((rows, 2048), "float16"), B: T.Tensor((64, 2048), "float16"), C: T.Tensor((rows, 64), "float16")):
        with T.Kernel(T.ceildiv(rows, 64), blocks, threads=128) as (by, bx):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(32, num_stages=3):
                T.copy(A[by * 64, k * 64], a)
                T.copy(B[bx * 64, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 64, bx * 64])

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_an_element_beyond_the_other_operand(emulator, target):
    """A product reads two tiles from the same offsets: how far it reads the one says nothing of the other."""
    @T.prim_func
    def program(A: T.Tensor((48, 64), "float16"), B: T.Tensor((64, 80), "float16"), C: T.Tensor((48, 80), "float32"),
                D: T.Tensor((64, 80), "float16")):
        with T.Kernel(1, threads=64):
            a, b, c = T.alloc_shared((48, 64), "float16"), T.alloc_shared((64, 80), "float16"), T.alloc_fragment((48, 80), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            b[9, 72] = 1
            T.copy(c, C)
            T.copy(b, D)

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_an_iteration_that_ends_early_in_a_pipeline(emulator, target):
    """The next tile does not come behind what was skipped."""
    @T.prim_func
    def program(A: T.Tensor((8, 64), "bfloat16"), B: T.Tensor((8, 64), "float16"), C: T.Tensor((64,), "float32"), D: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            a, b, c = T.alloc_shared((64,), "float16"), T.alloc_shared((64,), "float16"), T.alloc_fragment((64,), "float32")
            T.clear(c)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[k, 0:64], a)
                T.copy(B[k, 0:64], b)
                for j in T.Parallel(64):
                    c[j] = c[j] + a[j] * b[j]
                if k % 3 < 2:
                    continue
                T.copy(c, D)
            T.copy(c, C)

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_part_of_a_larger_tile_is_written(emulator, target):
    """The layout of 20 columns reaches over 32: the threads of those that are too many hold elements of the larger tile."""
    @T.prim_func
    def program(A: T.Tensor((40, 32), "float16"), B: T.Tensor((40, 20), "float16"), C: T.Tensor((40, 32), "float16")):
        with T.Kernel(1, threads=192):
            a, b = T.alloc_fragment((40, 32), "float16"), T.alloc_fragment((40, 20), "float64")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(b[0:40, 0:20], a[0:40, 0:20])
            T.copy(a, C)

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_loop_assumes_does_not_hold_behind_it(emulator, target):
    """The loop does not run, so the bounds of the tensor are checked."""
    @T.prim_func
    def program(A: T.Tensor((1,), "int32"), B: T.Tensor((40,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            while A[0] > 10:
                T.assume(t < 40)
                A[0] = A[0] - 1
            B[t] = 1

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_what_an_iteration_assumes_does_not_hold_in_the_next(emulator, target):
    """Loops that are written out, and parallel loops with conditions."""
    @T.prim_func
    def program(A: T.Tensor((100,), "int32"), B: T.Tensor((100,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            for i in T.unroll(2):
                if i == 0:
                    T.assume(i * 64 + t < 100)
                A[i * 64 + t] = 1
            for i, j in T.Parallel(2, 64):
                if i == 0:
                    T.assume(i * 64 + j < 100)
                B[i * 64 + j] = 2

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_beyond_the_break_is_not_copied_as_its_iteration_assumes(emulator, target):
    """The last iteration leaves before it assumes anything, so that a copy which runs ahead may not rely on it there."""
    @T.prim_func
    def program(A: T.Tensor((16, 64), "float16"), B: T.Tensor((16, 32), "float16")):
        with T.Kernel(1, threads=64):
            a, b = T.alloc_shared((16, 32), "float16"), T.alloc_fragment((16, 32), "float16")
            T.clear(b)
            for k in T.Pipelined(4, num_stages=2):
                first = T.if_then_else(k < 3, k * 8, 13)
                if k == 3:
                    T.loop_break()
                T.assume(first % 8 == 0)
                T.copy(A[0:16, first : first + 32], a)
                for i, j in T.Parallel(16, 32):
                    b[i, j] += a[i, j]
            T.copy(b, B)

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_that_a_condition_reads_again(emulator, target):
    """It lives until the loop ends: what the body exchanges takes other bytes."""
    @T.prim_func
    def program(A: T.Tensor((64, 32), "int32"), B: T.Tensor((32, 64), "float32"), C: T.Tensor((32, 64), "float32")):
        with T.Kernel(1, threads=128):
            turns, f, s = T.alloc_shared((64, 32), "int32"), T.alloc_fragment((32, 64), "float32"), T.alloc_shared((32, 64), "float32")
            T.copy(A, turns)
            T.copy(B, f)
            k = T.alloc_var("int32", 0)
            while k < T.abs(turns[49, 5]) % 3 + 2:
                k += 1
                for i, j in T.Parallel(32, 64):
                    s[i, j] = f[i, 63 - j] + 1
                T.copy(s, f)
            T.copy(f, C)

    check(emulator, program, target)


def of_one_thread_each(statement):
    @T.prim_func
    def program(A: T.Tensor((256,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx, own = T.get_thread_binding(), T.alloc_local((4,), "int32")
            s, r, sum = T.alloc_shared((128,), "int32"), T.alloc_fragment((64,), "int32"), T.alloc_fragment((1,), "int32")
            T.clear(own)
            T.clear(r)
            T.copy(A[0:128], s)
            statement(A, B, s, r, sum, own, tx)
            T.copy(r, B)

    return program


def count(own, tx):
    for _ in T.serial(tx % 5):
        own[0] += 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("statement, operand", [
    (lambda A, B, s, r, sum, own, tx: T.fill(A, tx), "the value of a fill"),
    (lambda A, B, s, r, sum, own, tx: T.fill(s[tx // 2 : tx // 2 + 64], 1), "an offset of the dst of a fill"),
    (lambda A, B, s, r, sum, own, tx: T.fill(r, A[tx]), "the value of a fill"),
    (lambda A, B, s, r, sum, own, tx: (count(own, tx), T.fill(r, own[0])), "the value of a fill"),
    (lambda A, B, s, r, sum, own, tx: T.copy(A[tx : tx + 64], r), "an offset of the src of a copy"),
    (lambda A, B, s, r, sum, own, tx: T.copy(r, A[tx : tx + 64]), "an offset of the dst of a copy"),
    (lambda A, B, s, r, sum, own, tx: T.reduce_sum(s[tx : tx + 64], sum, dim=0), "an offset of the src of a reduce"),
], ids=["value", "where it fills", "element", "local", "where it reads", "where it writes", "where it sums"])
def test_an_operand_that_differs_between_threads_is_refused(emulator, target, statement, operand):
    """Each element would get what the thread that happens to hold it sees."""
    module = emulator.module(of_one_thread_each(statement).serialized)
    _, answer = emulator.call(module, target, [(np.zeros(256, np.int32), "int32"), (np.zeros(64, np.int32), "int32")], check=1)
    assert f"{operand} is " in answer["error"] and "may differ between threads" in answer["error"], answer


@pytest.mark.parametrize("target", TARGETS)
def test_operands_of_what_each_thread_does_for_itself(emulator, target):
    """A thread's own array takes its thread's values, and so does a statement where the threads that come agree on them."""
    @T.macro
    def statements(A, B, s, r, sum, own, tx):
        T.fill(own, tx)
        T.copy(s[tx : tx + 2], own[2:4])
        T.copy(own, A[tx * 4 : tx * 4 + 4])
        if tx < 32:
            T.fill(s[tx // 32 : tx // 32 + 64], tx // 32 + 3)
            T.copy(s[0:64], r)

    check(emulator, of_one_thread_each(statements), target)


@pytest.mark.parametrize("target", TARGETS)
def test_values_that_threads_agree_on(emulator, target):
    """What a warp or a range computed together is one value to it, and so is what its threads compute from their numbers alike."""
    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), Table: T.Tensor((8,), "int32"), B: T.Tensor((6, 64), "int32"), C: T.Tensor((1, 64), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            x = T.warp_reduce_sum(A[tx])
            T.fill(B[0, 0:64], x)
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            if tx < 32:
                fifth = T.shfl_sync(A[tx], 5)
                T.fill(B[1, 0:64], fifth)
            warp = tx // 32
            if warp == 1:
                page = Table[warp * 4]
                T.copy(A[page : page + 64], B[2, 0:64])
            first = Table[tx // 128]
            T.copy(A[first : first + 64], B[3, 0:64])
        with T.Kernel(1, threads=256):
            tx, group = T.get_thread_binding(), T.alloc_var("int32")
            group = tx // 128
            if tx < 128:
                T.copy(A[group * 16 : group * 16 + 64], B[4, 0:64])
            else:
                T.copy(A[group * 16 : group * 16 + 64], B[5, 0:64])
                group += 1
                T.copy(A[group : group + 64], C[group - 2, 0:64])

    a, table = np.arange(64, dtype=np.int32), np.array([3, 0, 0, 0, 7, 0, 0, 0], np.int32)
    after, answer = emulator.call(emulator.module(program.serialized), target,
                                  [(x, "int32") for x in (a, table, np.zeros((6, 64), np.int32), np.zeros((1, 64), np.int32))], check=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], answer["findings"]
    padded = np.concatenate([a, np.zeros(64, np.int32)])
    assert np.array_equal(after[2], [np.full(64, 496), np.full(64, 5), padded[7:71], padded[3:67], padded[0:64], padded[16:80]])
    assert np.array_equal(after[3], [padded[2:66]])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("statement", [
    lambda A, B, s, r, sum, own, tx: T.fill(r, T.warp_reduce_sum(A[tx])),
    lambda A, B, s, r, sum, own, tx: T.fill(r, T.shfl_xor(A[tx], 1)),
], ids=["two warps", "each lane"])
def test_what_warps_computed_differs_between_them(emulator, target, statement):
    test_an_operand_that_differs_between_threads_is_refused(emulator, target, statement, "the value of a fill")


@pytest.mark.parametrize("target", TARGETS)
def test_each_thread_copies_an_element_of_its_own(emulator, target):
    @T.prim_func
    def program(A: T.Tensor((64, 16), "int32"), B: T.Tensor((100,), "int32"), C: T.Tensor((80,), "float32"), D: T.Tensor((64, 16), "int32")):
        with T.Kernel(1, threads=64):
            tx, s = T.get_thread_binding(), T.alloc_shared((64, 1), "int32")
            for i in T.serial(16):
                T.copy(A[tx, i : i + 1], s[tx, 0:1])
                D[tx, i] = s[tx, 0] + 1
            T.copy(B[tx + 40 : tx + 41], C[tx + 20 : tx + 21])  # partly outside of both

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("statement", [
    lambda A, B, s, r, sum, own, tx: (T.fill(own, tx), T.copy(own, s[0:4])),
    lambda A, B, s, r, sum, own, tx: (T.fill(own, tx), T.copy(own, A[0:4])),
    lambda A, B, s, r, sum, own, tx: (T.fill(own, tx), T.copy(own, r[0:4])),
    lambda A, B, s, r, sum, own, tx: T.copy(own[tx % 3 : tx % 3 + 1], s[0:1]),
], ids=["shared", "global", "fragment", "where it reads"])
def test_threads_that_copy_their_own_to_one_place_are_refused(emulator, target, statement):
    module = emulator.module(of_one_thread_each(statement).serialized)
    _, answer = emulator.call(module, target, [(np.zeros(256, np.int32), "int32"), (np.zeros(64, np.int32), "int32")], check=1)
    assert "all threads do a copy from %own" in answer["error"], answer


@pytest.mark.parametrize("target", TARGETS)
def test_what_threads_may_copy_to_one_place(emulator, target):
    """What they agree on, and what one of them has."""
    @T.macro
    def statements(A, B, s, r, sum, own, tx):
        same = T.alloc_local((4,), "int32")
        T.fill(same, 7)
        T.copy(same, s[0:4])
        T.fill(same[0:2], tx // 64)
        T.copy(same, s[4:8])
        T.copy(A[0:4], same)
        T.copy(same, r[0:4])
        T.fill(own, tx)
        if tx == 3:
            T.copy(own, s[8:12])
        T.copy(s[0:12], A[0:12])

    check(emulator, of_one_thread_each(statements), target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_condition_is_read_for_its_own_statement(emulator, target):
    """Where the iterations of a thread take a condition one after the other, what the condition reads is no read of the store before it."""
    @T.prim_func
    def program(A: T.Tensor((32, 16), "int32"), B: T.Tensor((32, 16), "float16"), C: T.Tensor((32, 16), "float16")):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((32, 16), "int32")
            T.copy(A, a)
            b = T.alloc_fragment((32, 16), "float16")
            T.copy(B, b)
            c = T.alloc_fragment((32, 16), "float16")
            T.clear(c)
            for i, j in T.Parallel(32, 16):
                if a[31 - i, j] > 0:
                    c[31 - i, j] = b[i, 15 - j]
            T.copy(c, C)

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_elements_of_a_fragment_that_threads_hold_column_by_column(emulator, target, dtype):
    """Every thread holds `a`, for its element is read. So the loop gives every thread all of `b`, too, in the order of `a`."""
    @T.prim_func
    def program(A: T.Tensor((8, 24), "int8"), B: T.Tensor((24, 8), dtype), C: T.Tensor((64,), dtype), D: T.Tensor((64,), "int8")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            a, b = T.alloc_fragment((8, 24), "int8"), T.alloc_fragment((24, 8), dtype)
            T.copy(A, a)
            for i, j in T.Parallel(24, 8):
                b[i, j] = a[j, i]
            D[tx] = a[2, 2]
            C[tx] = b[tx % 24, tx // 24]
            b[3, 5] = 7
            b[tx % 24, tx // 24] = tx
            T.copy(b, B)

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_the_sign_of_a_rounded_number(emulator, target):
    """Of a bf16 alone the sign is wanted, as of a number that becomes one of four bits: the host's code took it for a float's."""
    @T.prim_func
    def program(A: T.Tensor((256,), "bfloat16"), B: T.Tensor((256,), "int32"), C: T.Tensor((256,), "float4_e2m1fn")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(256):
                B[i] = T.Select(T.reinterpret(T.max(A[i], -3), "int16") < 0, 1, 0)
            for i in T.Parallel(256):
                C[i] = T.cast(T.max(A[i], -3), "float4_e2m1fn")

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int4", "float4_e2m1fn"])
def test_threads_copy_arrays_of_their_own_of_four_bits(emulator, target, dtype):
    """Each thread does all of such a copy."""
    @T.prim_func
    def program(A: T.Tensor((64, 6), dtype), B: T.Tensor((64, 6), dtype), C: T.Tensor((64, 3), "float16"), D: T.Tensor((8,), dtype)):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            own, part = T.alloc_local((6,), dtype), T.alloc_local((3,), "float16")
            T.copy(A[tx, 0:6], own)
            own[tx % 6] = T.cast(2, dtype)
            T.copy(own, B[tx, 0:6])
            T.copy(own[1:4], part)
            T.copy(part, C[tx, 0:3])
            same = T.alloc_local((8,), dtype)
            T.fill(same, 3)
            T.copy(same, D)

    check(emulator, program, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", [T.serial, T.unroll])
def test_iterations_store_the_halves_of_their_own_bytes(emulator, target, kind):
    """Of several elements, of which each iteration stores whole bytes, and of every other one."""
    @T.prim_func
    def program(A: T.Tensor((16, 64), "int8"), B: T.Tensor((16, 64), "int4"), C: T.Tensor((64,), "uint4"), D: T.Tensor((32,), "int4")):
        with T.Kernel(1, threads=64):
            for i, j in T.Parallel(16, 16):
                for v in kind(4):
                    B[i, j * 4 + v] = T.cast(A[i, j * 4 + 3 - v], "int4")
            for i, j in T.Parallel(4, 4):
                for v in kind(2):
                    for w in kind(2):
                        C[i * 16 + j * 4 + v * 2 + w] = T.cast(T.abs(A[i, j * 4 + w]) + v, "uint4")
            for i in T.Parallel(16):
                D[i * 2 + 1] = T.cast(A[i, 0], "int4")

    check(emulator, program, target)


@pytest.mark.parametrize("depth", (96, 160, 192))
def test_groups_of_warps_take_parts_of_k_from_panels(emulator, depth):
    """The first product decides how A lies in registers, so the second one's groups read A from shared memory: half of its columns each, and no
    group may begin within a panel there and end beyond it."""
    @T.prim_func
    def program(A: T.Tensor((64, 2 * depth), "bfloat16"), B: T.Tensor((2 * depth, 96), "bfloat16"), C: T.Tensor((64, 96), "float32")):
        with T.Kernel(1, threads=256):
            a, first = T.alloc_shared((64, depth), "bfloat16"), T.alloc_shared((depth, 96), "bfloat16")
            second = T.alloc_shared((depth, 96), "bfloat16")
            own = T.alloc_fragment((64, depth), "bfloat16")
            part, total = T.alloc_fragment((64, 96), "float32"), T.alloc_fragment((64, 96), "float32")
            T.clear(total)
            for k in T.serial(2):
                T.copy(A[0, k * depth], a)
                T.copy(B[0, 0], first)
                T.copy(B[k * depth, 0], second)
                T.copy(a, own)
                T.gemm(own, first, part, policy=T.GemmWarpPolicy.FullCol, clear_accum=True)
                T.gemm(own, second, total, policy=T.GemmWarpPolicy.FullCol)
            T.copy(total, C)

    check(emulator, program, "emu:sm_90a")


@pytest.mark.parametrize("target", TARGETS)
def test_two_conditions_store_to_one_element(emulator, target):
    """LLVM makes one store of two under either condition, which is then a store of the loop's, whose tile is another."""
    @T.prim_func
    def program(A: T.Tensor((64,), "int16"), B: T.Tensor((48, 64), "int8")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding(0)
            tile, kept = T.alloc_shared((64,), "int16"), T.alloc_fragment((48, 64), "int8")
            T.copy(A, tile)
            T.copy(B, kept)
            for u in T.unroll(T.min(tx, 3)):
                kept[tx // 64, tx % 64] = T.cast(tx % 5, "int8")
                if tx % 2 == 0:
                    tile[tx] = T.cast(tx, "int16")
                if tx < 32:
                    tile[tx] = T.cast(tx + 1, "int16")
            T.copy(tile, A)
            T.copy(kept, B)

    check(emulator, program, target)
