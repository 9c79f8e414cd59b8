# SPDX-License-Identifier: Apache-2.0
"""Maxima and minima with NaN among the numbers: left out, or with nan_propagate the result."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
REDUCE = {"max": T.reduce_max, "min": T.reduce_min, "absmax": T.reduce_absmax}
EXPECTED = {"max": np.max, "min": np.min, "absmax": lambda a, axis: np.abs(a).max(axis)}


def numbers():
    """Rows with NaN in some place, of either sign, with infinities, with both zeros, and without."""
    a = np.random.default_rng(8).integers(-5, 6, (9, 48)).astype(np.float32) * 8  # of every type
    a[1, 7] = np.nan
    a[2, 47] = -np.float32(np.nan)
    a[3, 0], a[3, 5] = np.inf, np.nan
    a[4, 3], a[4, 9] = -np.inf, np.inf
    a[5] = np.nan
    a[6] = -np.abs(a[6]) - 8
    a[7] = 0.0
    a[7, ::2] = -0.0
    return a


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
@pytest.mark.parametrize("name", list(REDUCE))
@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("memory", [T.alloc_fragment, T.alloc_local])
def test_nan_is_the_result(emulator, target, dtype, name, clear, memory):
    if memory is T.alloc_local and dtype.startswith("float8"):
        pytest.skip("arrays of one thread are the same for every dtype")

    @T.prim_func
    def program(A: T.Tensor((9, 48), "float32"), B: T.Tensor((9,), "float32"), C: T.Tensor((9,), "float32")):
        with T.Kernel(1, threads=64):
            tile, row, plain = memory((9, 48), dtype), memory((9,), dtype), memory((9,), dtype)
            for i, j in T.grid(9, 48) if memory is T.alloc_local else T.Parallel(9, 48):
                tile[i, j] = A[i, j]
            for i in T.serial(9) if memory is T.alloc_local else T.Parallel(9):
                row[i] = 3
                plain[i] = 3
            REDUCE[name](tile, row, dim=1, clear=clear, nan_propagate=True)
            REDUCE[name](tile, plain, 1, clear)
            for i in T.serial(9) if memory is T.alloc_local else T.Parallel(9):
                B[i] = row[i]
                C[i] = plain[i]

    a = numbers()
    tensors = [(a, "float32"), (np.zeros(9, np.float32), "float32"), (np.zeros(9, np.float32), "float32")]
    after, answer = emulator.call(emulator.module(program.serialized), target, tensors)
    assert "error" not in answer and answer["finished"], answer
    a = np.where(np.isinf(a) & (dtype == "float8_e5m2"), np.copysign(57344, a), a)  # a cast to it saturates
    given = a if clear else np.concatenate([a, np.full((9, 1), 3, np.float32)], axis=1)
    np.testing.assert_array_equal(after[1], EXPECTED[name](given, 1))
    kept = np.where(np.isnan(given), {"max": -np.inf, "min": np.inf, "absmax": 0}[name], given)
    expected, some = EXPECTED[name](kept, 1), ~np.isnan(given).all(axis=1)
    np.testing.assert_array_equal(after[2][some], expected[some])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_zeros_are_ordered(emulator, target, dtype):
    """−0 is less than +0, as on the devices: lanes that combine a pair of zeros the other way round hold the same."""
    @T.prim_func
    def program(A: T.Tensor((64, 32), dtype), B: T.Tensor((32,), dtype), C: T.Tensor((32,), dtype)):
        with T.Kernel(1, threads=256):
            tile, largest, least = (T.alloc_fragment(shape, dtype) for shape in ((64, 32), (32,), (32,)))
            T.copy(A, tile)
            T.reduce_max(tile, largest, dim=0)
            T.reduce_min(tile, least, dim=0)
            T.copy(largest, B)
            T.copy(least, C)

    bits = {"float16": "uint16", "bfloat16": "uint16", "float32": "uint32", "float64": "uint64"}[dtype]
    negative = np.array(1 << (np.dtype(bits).itemsize * 8 - 1), bits)
    a = np.where(np.random.default_rng(9).integers(0, 2, (64, 32)), negative, np.zeros(1, bits)).astype(bits)
    after, answer = emulator.call(emulator.module(program.serialized), target,
                                  [(x.view("float16") if dtype == "float16" else x.view(dtype) if dtype != "bfloat16" else x, dtype)
                                   for x in (a, np.ones(32, bits), np.ones(32, bits))], check=1)
    assert "error" not in answer and answer["finished"] and not answer["findings"], answer
    assert (np.ascontiguousarray(after[1]).view(bits) == 0).all() and (np.ascontiguousarray(after[2]).view(bits) == negative).all()


@pytest.mark.parametrize("target", ["emu:sm_80", "emu:sm_90a"])
def test_infinities_of_float8_e5m2(emulator, target):
    @T.prim_func
    def program(A: T.Tensor((2,), "float8_e5m2"), B: T.Tensor((4,), "float8_e5m2")):
        with T.Kernel(1, threads=32):
            T.annotate_safe_value({A: -T.infinity("float8_e5m2")})
            tile = T.alloc_shared((4,), "float8_e5m2")
            T.copy(A[0], tile)
            tile[0] = T.infinity("float8_e5m2")
            tile[1] = -T.infinity("float8_e5m2")
            T.copy(tile, B)

    tensors = [(np.zeros(size, np.uint8), "float8_e5m2") for size in (2, 4)]
    # a safe value is converted, which gives the largest number
    (_, b), answer = emulator.call(emulator.module(program.serialized), target, tensors)
    assert "error" not in answer and [hex(code) for code in b] == ["0x7c", "0xfc", "0xfb", "0xfb"], (b, answer)
