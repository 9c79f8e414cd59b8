# SPDX-License-Identifier: Apache-2.0
"""Tiles that are added to memory beside a product of wgmma, whose kernels may add whole boxes by the tensor unit: what is no box, and what lies
where the unit reads no box."""

import kiln.language as T
import numpy as np
import pytest
from data import decode, random_array

N, K = 128, 64
TARGETS = ["emu:sm_90a", "emu:sm_80"]
PLACES = {"box": lambda i, j: (i, j), "two boxes": lambda i, j: (i + i // 64 * 64, j), "diagonal": lambda i, j: (i, i), "turned": lambda i, j: (j, i)}


def adding(place, halves=False):
    """``halves``: the product is added half by half, each from one shared tile, as it is there."""
    @T.prim_func
    def program(A: T.Tensor((N, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((2 * N, N), "float32")):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((N, K), "float16"), T.alloc_shared((N, K), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for _ in T.Pipelined(1, num_stages=2):
                T.copy(A, a)
                T.copy(B, b)
                T.gemm(a, b, c, transpose_B=True)
            if halves:
                s = T.alloc_shared((N // 2, N), "float32")
                for part in T.serial(2):
                    for i, j in T.Parallel(N, N):
                        if i // (N // 2) == part:
                            s[i % (N // 2), j] = c[i, j]
                    for i, j in T.Parallel(N // 2, N):
                        row, column = place(part * (N // 2) + i, j)
                        T.atomic_add(C[row, column], s[i, j])
            else:
                for i, j in T.Parallel(N, N):
                    row, column = place(i, j)
                    T.atomic_add(C[row, column], c[i, j])

    return program


@pytest.mark.parametrize("target, halves", [*((target, False) for target in TARGETS), ("emu:sm_90a", True)])
@pytest.mark.parametrize("name", PLACES)
def test_each_element_is_added_where_it_belongs(emulator, name, target, halves):
    rng = np.random.default_rng()
    given = [random_array(rng, (N, K), "float16"), random_array(rng, (N, K), "float16")]
    program = adding(PLACES[name], halves)
    tensors = [*[(x, "float16") for x in given], (np.zeros((2 * N, N), np.float32), "float32")]
    after, answer = emulator.call(emulator.module(program.serialized), target, tensors, check=1)
    assert "error" not in answer and answer["finished"] and not answer["findings"], answer
    a, b = (decode(x, "float16") for x in given)
    expected, products = np.zeros((2 * N, N)), a @ b.T
    for i in range(N):
        for j in range(N):
            expected[PLACES[name](i, j)] += products[i, j]
    assert np.allclose(after[2], expected, rtol=1e-3, atol=1e-2)


def test_panels_that_begin_anywhere_are_copied_by_threads(emulator):
    """The second panel of 5 × 48 elements would begin 640 bytes behind the first, and that of 32 bytes at 320."""
    @T.prim_func
    def program(A: T.Tensor((64, K), "float16"), B: T.Tensor((N, K), "float16"), D: T.Tensor((64, N), "float32"), X: T.Tensor((5, 48), "float32"),
                C: T.Tensor((256, 128), "float32")):
        with T.Kernel(1, threads=128):
            a, b, t = T.alloc_shared((64, K), "float16"), T.alloc_shared((N, K), "float16"), T.alloc_shared((5, 48), "float32")
            c = T.alloc_fragment((64, N), "float32")
            T.clear(c)
            for _ in T.Pipelined(1, num_stages=2):
                T.copy(A, a)
                T.copy(B, b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, D)
            for i, j in T.Parallel(5, 48):
                t[i, j] = X[i, j]
            T.copy(t, C[0:5, 0:48])

    rng = np.random.default_rng()
    x = rng.random((5, 48), np.float32)
    halves = [(np.zeros((rows, K), np.float16), "float16") for rows in (64, N)]
    floats = [(array, "float32") for array in (np.zeros((64, N), np.float32), x, np.zeros((256, 128), np.float32))]
    after, answer = emulator.call(emulator.module(program.serialized), "emu:sm_90a", halves + floats, check=1)
    assert "error" not in answer and answer["finished"] and not answer["findings"], answer
    assert (after[4][:5, :48] == x).all() and not after[4][5:].any()
