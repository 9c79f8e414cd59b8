# SPDX-License-Identifier: Apache-2.0
"""float8_e8m0fnu: what its bytes stand for, and what becomes of other numbers."""

import math

import kiln.language as T
import numpy as np
import pytest
from kiln.language.encode import EncodeError
from kiln.language.trace import TraceError

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
SCALE = T.float8_e8m0fnu


def code_of(value):
    """The smallest power of two that is not below the magnitude, by trying all of them."""
    if math.isnan(value):
        return 255
    return next((c for c in range(254) if math.ldexp(1.0, c - 127) >= abs(value)), 254)


def value_of(code):
    return math.nan if code == 255 else math.ldexp(1.0, code - 127)


def run(emulator, program, target, *tensors):
    after, answer = emulator.call(emulator.module(program.serialized), target, tensors, check=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    return after


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_of_every_byte(emulator, target, wide):
    @T.prim_func
    def program(A: T.Tensor((256,), SCALE), B: T.Tensor((256,), wide), C: T.Tensor((256,), wide), D: T.Tensor((256,), SCALE)):
        with T.Kernel(1, threads=128):
            tile, wider = T.alloc_shared((256,), SCALE), T.alloc_fragment((256,), wide)
            T.copy(A, tile)
            T.copy(tile, wider)
            T.copy(wider, B)
            T.copy(wider, D)
            for i in T.Parallel(256):
                C[i] = T.cast(A[i] * 0.5 + A[255 - i], wide)

    codes, zero = np.arange(256, dtype=np.uint8), np.zeros(256, wide)
    _, b, c, d = run(emulator, program, target, (codes, "uint8"), (zero, wide), (zero, wide), (codes * 0, "uint8"))
    want = np.array([value_of(code) for code in range(256)])
    assert np.array_equal(b.astype(np.float64), want, equal_nan=True) and (d == codes).all()
    inner = slice(2, 254)
    assert np.array_equal(c[inner], (want * 0.5 + want[::-1]).astype(np.float32)[inner].astype(wide))


EDGES = [0.0, -0.0, 1.0, 1.0000001, 1.5, 2.0, -3.0, 0.75, 2.0**-126, 1.5 * 2.0**-126, 2.0**-127, 1.1 * 2.0**-127, 2.0**-128, 2.0**-149, 2.0**127,
         1.2 * 2.0**127, math.inf, -math.inf, math.nan, 3e38]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_of_other_numbers(emulator, target, dtype):
    rng = np.random.default_rng(3)
    if dtype == "int32":
        values = np.concatenate([np.arange(-4, 40), rng.integers(-(1 << 23), 1 << 23, 84)]).astype(np.int32)
    else:
        edges = np.array(EDGES + ([1 + 2.0**-40, 2.0**-127 * (1 + 2.0**-30), 1e300, 1e-300] if dtype == "float64" else []))
        with np.errstate(over="ignore"):
            values = np.concatenate([edges, np.exp2(rng.uniform(-140, 130, 128 - len(edges)))]).astype(dtype)

    @T.prim_func
    def program(A: T.Tensor((128,), dtype), B: T.Tensor((128,), SCALE), C: T.Tensor((128,), SCALE)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(128):
                B[i] = A[i]
            T.fill(C, 3.0)
            last = T.alloc_var(SCALE, 0.25)
            for i in T.serial(1):
                C[i] = T.if_then_else(A[2] == A[2], last, C[1])
                last = A[2]
            C[1] = last

    none = np.zeros(128, np.uint8)
    _, b, c = run(emulator, program, target, (values, dtype), (none, "uint8"), (none, "uint8"))
    want = np.array([code_of(float(v)) for v in values])
    assert (b == want).all(), [(v, got, w) for v, got, w in zip(values, b, want) if got != w]
    assert c[0] == 125 and c[1] == want[2] and (c[2:] == 129).all()


def test_constants_are_rounded_as_values_are():
    for value in EDGES:
        folded = T.cast(value, SCALE)
        assert math.isnan(folded.value) if math.isnan(value) else folded.value == value_of(code_of(value)), value
    assert T.max_value(SCALE).value == T.infinity(SCALE).value == 2.0**127 and T.min_value(SCALE).value == 2.0**-127
    assert T.DType("float8_e8m0fnu").stored == "uint8" and T.float16.stored is T.float16


@pytest.mark.parametrize("asked", [{"round": "rn"}, {"round": "rz"}, {"sat": False}])
def test_another_rounding_is_refused(asked):
    with pytest.raises(TraceError, match="it goes up and saturates"):
        T.cast(T.float32(3.0), SCALE, **asked)
    assert T.cast(T.float32(3.0), SCALE, round="rp").value == 4.0


@pytest.mark.parametrize("body, says", [
    (lambda a, s, f: T.reduce_max(s, f, dim=0), "of a tile of float8_e8m0fnu, which has no arithmetic"),
    (lambda a, s, f: T.atomic_add(a, s), "of a tile of float8_e8m0fnu, which has no arithmetic"),
])
def test_what_is_refused(body, says):
    @T.prim_func
    def program(A: T.Tensor((64,), SCALE)):
        with T.Kernel(1, threads=64):
            body(A, T.alloc_shared((64,), SCALE), T.alloc_fragment((1,), SCALE))

    with pytest.raises(EncodeError, match=says):
        program.serialized
