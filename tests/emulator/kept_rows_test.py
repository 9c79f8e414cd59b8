# SPDX-License-Identifier: Apache-2.0
"""The library's rows that begin anywhere and are kept in shared memory (kiln.library.programs.kept): by one block, and by those of a cluster."""

import kiln.language as T
import numpy as np
import pytest
from data import STORED, decode, random_array

from kiln.library.programs import kept

E4M3 = "float8_e4m3fn"
RNG = np.random.default_rng()
LENGTHS = [1, 7, 8, 64, 255, 256, 263, 1031, int(RNG.integers(2, 3000)), int(RNG.integers(2, 3000))]


def softmax(x):
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def programs(n, dtype, rows, **sizes):
    """{name: (the program, its inputs but x, each output's dtype and what it is of x and them)}"""
    total = T.dynamic("total", "int64")
    w, b, label = random_array(RNG, (n,), dtype), random_array(RNG, (n,), dtype), RNG.integers(0, n, rows).astype(np.int32)
    wide_w, wide_b = decode(w, dtype), decode(b, dtype)

    def normed(x):
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)

    scale = {"dtype": dtype, **sizes}
    most = lambda x: np.maximum(np.abs(x).max(1) / 448, 1e-12)  # noqa: E731
    return {
        "softmax": (kept.softmax_kept(total, n, **scale), [], [(dtype, softmax)]),
        "cross_entropy": (kept.cross_entropy_kept(total, T.dynamic("M"), n, **scale), [(label, "int32")],
                          [("float32", lambda x: -np.log(softmax(x)[np.arange(rows), label]))]),
        "rms_norm": (kept.rms_norm_kept(total, n, **scale), [(w, dtype)],
                     [(dtype, lambda x: x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * wide_w)]),
        "layer_norm": (kept.layer_norm_kept(total, n, **scale), [(w, dtype), (b, dtype)],
                       [(dtype, lambda x: normed(x) * wide_w + wide_b), ("float32", lambda x: x.mean(1)),
                        ("float32", lambda x: 1 / np.sqrt(x.var(1) + 1e-5))]),
        "quantize_rows": (kept.quantize_rows_kept(total, n, **scale), [], [(E4M3, lambda x: x / most(x)[:, None]), ("float32", most)]),
    }


def check(emulator, name, n, dtype, target, rows, **sizes):
    program, more, outputs = programs(n, dtype, rows, **sizes)[name]
    x = random_array(RNG, (rows * n,), dtype)
    wide = decode(x, dtype).reshape(rows, n)
    expected = [(of, np.asarray(make(wide), np.float64).reshape(-1)) for of, make in outputs]
    given = [(np.full(reference.shape, -1, np.int64).astype(STORED[of]), of) for of, reference in expected]
    after, answer = emulator.call(emulator.module(program.serialized), target, [(x, dtype), *more, *given], check=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    for (of, reference), array in zip(expected, after[1 + len(more):]):
        error = np.abs(decode(array, of).astype(np.float64).reshape(-1) - reference)
        bar = {E4M3: 2.0 ** -4, "float32": 1e-4, "bfloat16": 2.0 ** -7, "float16": 2.0 ** -9}[of]
        assert (error <= bar * np.maximum(1.0 if of != E4M3 else 0.02, np.abs(reference))).all(), (name, of, error.max())
    return answer


@pytest.mark.parametrize("target", ["emu:sm_75", "emu:sm_90a", "emu:gfx942"])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", ["softmax", "cross_entropy", "rms_norm", "layer_norm", "quantize_rows"])
def test_rows_of_a_block(emulator, name, n, target):
    if name == "quantize_rows" and target == "emu:sm_75":
        pytest.skip("these GPUs have no conversions to 8-bit floats")
    for dtype in ("float16", "bfloat16"):
        check(emulator, name, n, dtype, target, rows=9, threads=64)


@pytest.mark.parametrize("n", [39001, 40008])
@pytest.mark.parametrize("name", ["softmax", "cross_entropy", "rms_norm", "layer_norm", "quantize_rows"])
def test_rows_of_a_cluster(emulator, name, n):
    answer = check(emulator, name, n, "bfloat16", "emu:sm_90a", rows=3, threads=256, blocks=2)
    assert any("2 blocks of a cluster keep a part of the row each" in decision for decision in answer["decisions"]), answer["decisions"]
