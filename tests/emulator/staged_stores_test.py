# SPDX-License-Identifier: Apache-2.0
"""Accumulators that are stored to rows which only the device knows: through shared memory where that costs less (layouts in compiler/PASSES.md),
whatever the loop does beside: masks of rows and columns, other tensors in the value, what was there before, loops and branches around."""

import os
import pathlib
import subprocess

import kiln.language as T
import numpy as np
import pytest

BIN = pathlib.Path(os.environ["KILN_BUILD"]) / "bin"
BLOCK, DEPTH = 64, 32
TARGETS = ("emu:sm_75", "emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100")
RNG = np.random.default_rng()


def sequences():
    """Where each one begins, and the end of the last; some are empty, none has more rows than a block."""
    return np.concatenate([[0], np.cumsum(RNG.integers(0, BLOCK + 1, 7))]).astype(np.int32)


def products(count, rows, width, kind="plain", dtype="float16", threads=128, times=1):
    """``kind``: plain; "added": to what is there; "scaled": by a tensor's rows; "branch": in a branch of the block;
    "positive": where the product is."""

    @T.prim_func
    def program(A: T.Tensor((rows, DEPTH), "float16"), B: T.Tensor((DEPTH, BLOCK), "float16"), at: T.Tensor((count + 1,), "int32"),
                scale: T.Tensor((rows,), "float32"), C: T.Tensor((rows, width), dtype)):
        with T.Kernel(count, threads=threads) as x:
            a = T.alloc_shared((BLOCK, DEPTH), "float16")
            b = T.alloc_shared((DEPTH, BLOCK), "float16")
            c = T.alloc_fragment((BLOCK, BLOCK), "float32")
            first = at[x]
            size = at[x + 1] - first
            T.copy(B, b)
            for _ in T.serial(times):
                for i, k in T.Parallel(BLOCK, DEPTH):
                    a[i, k] = T.if_then_else(i < size, A[first + i, k], 0)
                T.clear(c)
                T.gemm(a, b, c)
                if kind == "branch":
                    if size > BLOCK // 2:
                        for i, j in T.Parallel(BLOCK, BLOCK):
                            if T.And(i < size, j < width):
                                C[first + i, j] = c[i, j]
                else:
                    for i, j in T.Parallel(BLOCK, BLOCK):
                        if T.And(T.And(i < size, j < width), c[i, j] > 0 if kind == "positive" else True):
                            if kind == "added":
                                C[first + i, j] = C[first + i, j] + c[i, j]
                            elif kind == "scaled":
                                C[first + i, j] = c[i, j] * scale[first + i]
                            else:
                                C[first + i, j] = c[i, j]

    return program


def expected(a, b, at, scale, before, width, kind, times):
    result = before.astype(np.float64)
    for first, end in zip(at[:-1], at[1:]):
        product = (a[first:end].astype(float) @ b.astype(float))[:, :width]
        if kind == "added":
            result[first:end] += times * product
        elif kind == "scaled":
            result[first:end] = product * scale[first:end, None]
        elif kind == "positive":
            result[first:end] = np.where(product > 0, product, result[first:end])
        elif kind != "branch" or end - first > BLOCK // 2:
            result[first:end] = product
    return result


def check(call, target, width, kind, dtype="float16", threads=128, times=1):
    at = sequences()
    rows = int(at[-1]) + 3  # the last ones belong to none
    a = RNG.integers(-3, 4, (rows, DEPTH)).astype(np.float16)
    b = RNG.integers(-3, 4, (DEPTH, BLOCK)).astype(np.float16)
    scale, before = RNG.integers(-2, 3, rows).astype(np.float32), RNG.integers(-9, 10, (rows, width)).astype(dtype)
    program = products(len(at) - 1, rows, width, kind, dtype, threads, times)
    *_, result = call(program, target, a, b, at, scale, before.copy())
    assert np.array_equal(result.astype(np.float64), expected(a, b, at, scale, before, width, kind, times))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["plain", "added", "scaled", "branch", "positive"])
@pytest.mark.parametrize("width", [BLOCK, 48, 30])
def test_rows_of_sequences(call, target, kind, width):
    check(call, target, width, kind)


@pytest.mark.parametrize("target", TARGETS)
def test_wider_elements(call, target):
    check(call, target, BLOCK, "scaled", "float32")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [64, 128, 256])
def test_again_and_again(call, target, threads):
    """The tile of one iteration is read before the next one fills it."""
    check(call, target, BLOCK, "added", threads=threads, times=3)


@pytest.mark.parametrize("width,staged", [(BLOCK, True), (48, True), (30, False)])
def test_only_where_whole_vectors_are_stored(tmp_path, width, staged):
    program = tmp_path / "program.kiln"
    program.write_bytes(products(7, 300, width).serialized)
    command = [BIN / "kiln", "explain", program, "--target", "cuda:sm_90a", "--local", "--text"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ("is stored through shared memory" in found.stdout) == staged
