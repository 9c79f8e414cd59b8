# SPDX-License-Identifier: Apache-2.0
"""Tensors that overlap, where the program lets them (T.annotate_restrict_buffers): what one holds the others hold, whatever the compiler
would like to do early, late or at once."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
CHECKED = [dict(check=1, seed=0), dict(check=1, seed=1), dict(seed=2), dict(seed=3)]


def call(emulator, program, target, memory, views, others=(), **keys):
    """The memory after a run, and the answer. ``views``: (first element, shape, dtype) of each tensor in it, of which the program takes
    ``others`` (arrays of their own) behind."""
    path = emulator.place / "shared"
    path.write_bytes(memory.tobytes())
    words = [str(emulator.module(program.serialized)), target, *(f"{key}={value}" for key, value in keys.items())]
    for first, shape, dtype in views:
        words.append(f"{dtype}:{path}:{'x'.join(map(str, shape))}@{first * np.dtype(dtype).itemsize}")
    for i, array in enumerate(others):
        own = emulator.place / f"own{i}"
        own.write_bytes(array.tobytes())
        words.append(f"{array.dtype}:{own}:{'x'.join(map(str, array.shape))}")
    answer = emulator.job(" ".join(words))
    assert "error" not in answer, answer["error"]
    after = [np.frombuffer((emulator.place / f"own{i}").read_bytes(), a.dtype).reshape(a.shape) for i, a in enumerate(others)]
    return np.frombuffer(path.read_bytes(), memory.dtype), after, answer


def clean(answer):
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]


@pytest.mark.parametrize("target", TARGETS)
def test_each_element_comes_from_the_one_before(emulator, target):
    @T.prim_func
    def chain(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            T.annotate_restrict_buffers(A, B)
            for i in T.serial(63):
                B[i] = A[i] * 2 + 1

    memory = np.zeros(65, np.float32)
    expected = memory.copy()
    for i in range(63):
        expected[i + 1] = np.float32(expected[i] * 2 + 1)
    for keys in CHECKED:
        after, _, answer = call(emulator, chain, target, memory, [(0, (64,), "float32"), (1, (64,), "float32")], alignment=4, **keys)
        clean(answer)
        np.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_no_load_runs_ahead_of_the_store_that_it_needs(emulator, target):
    """Each iteration's tile is what the one before stored through the other tensor."""
    rows, tiles = 16, 4

    @T.prim_func
    def steps(A: T.Tensor((tiles * rows, 32), "float32"), B: T.Tensor((tiles * rows, 32), "float32")):
        with T.Kernel(1, threads=64):
            T.annotate_restrict_buffers(A, B)
            tile, out = T.alloc_shared((rows, 32), "float32"), T.alloc_fragment((rows, 32), "float32")
            for k in T.Pipelined(tiles, num_stages=3):
                T.copy(A[k * rows : (k + 1) * rows, :], tile)
                for i, j in T.Parallel(rows, 32):
                    out[i, j] = tile[i, j] * 2 + j
                T.copy(out, B[k * rows : (k + 1) * rows, :])

    memory = np.zeros(((tiles + 1) * rows, 32), np.float32)
    memory[:rows] = np.arange(rows * 32).reshape(rows, 32)
    expected = memory.copy()
    for k in range(tiles):
        expected[(k + 1) * rows : (k + 2) * rows] = expected[k * rows : (k + 1) * rows] * 2 + np.arange(32)
    views = [(0, (tiles * rows, 32), "float32"), (rows * 32, (tiles * rows, 32), "float32")]
    for keys in CHECKED:
        after, _, answer = call(emulator, steps, target, memory, views, **keys)
        clean(answer)
        np.testing.assert_array_equal(after.reshape(expected.shape), expected)


@pytest.mark.parametrize("target", TARGETS)
def test_a_tensor_of_another_type_sees_the_bytes(emulator, target):
    @T.prim_func
    def halves(A: T.Tensor((32,), "int32"), B: T.Tensor((64,), "int16"), C: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            T.annotate_restrict_buffers(A, B)
            for i in T.Parallel(32):
                A[i] = A[i] * 65536 + i
            for i in T.Parallel(64):
                C[i] = T.cast(B[63 - i], "int32")

    memory = np.arange(32, dtype=np.int32) - 7
    expected = memory * 65536 + np.arange(32, dtype=np.int32)
    for keys in CHECKED:
        after, (c,), answer = call(emulator, halves, target, memory, [(0, (32,), "int32"), (0, (64,), "int16")], [np.zeros(64, np.int32)],
                                   **keys)
        clean(answer)
        np.testing.assert_array_equal(after, expected)
        np.testing.assert_array_equal(c, expected.view(np.int16)[::-1])


@pytest.mark.parametrize("target", ["emu:sm_90a", "emu:gfx942"])
def test_blocks_that_meet_in_shared_bytes_race(emulator, target):
    """Block 1 reads through one tensor what block 0 writes through another: the report has both names."""

    @T.prim_func
    def meet(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(2, threads=64) as bx:
            T.annotate_restrict_buffers(A, B)
            for i in T.Parallel(32):
                B[bx * 32 + i] = A[bx * 32 + i] + 1

    memory = np.arange(96, dtype=np.float32)
    _, _, apart = call(emulator, meet, target, np.arange(128, dtype=np.float32), [(0, (64,), "float32"), (64, (64,), "float32")], check=1)
    clean(apart)
    _, _, answer = call(emulator, meet, target, memory, [(0, (64,), "float32"), (32, (64,), "float32")], check=1)
    kinds = {finding["kind"] for finding in answer["findings"]}
    assert kinds == {"race"}, answer
    message = answer["findings"][0]["message"]
    assert "tensor 0[" in message and " or tensor 1[" in message, message


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_moves_down_by_half_its_length(emulator, target):
    @T.prim_func
    def down(A: T.Tensor((16,), "int32"), B: T.Tensor((16,), "int32")):
        with T.Kernel(1, threads=64):
            T.annotate_restrict_buffers(A, B)
            for i in T.serial(16):
                A[i] = B[i]

    memory = np.arange(24, dtype=np.int32)
    after, _, answer = call(emulator, down, target, memory, [(0, (16,), "int32"), (8, (16,), "int32")], check=1)
    clean(answer)
    np.testing.assert_array_equal(after, np.concatenate([memory[8:24], memory[16:24]]))
