# SPDX-License-Identifier: Apache-2.0
"""tl.device_print and tl.device_assert."""

import collections

import numpy as np
import pytest
import triton
import triton.language as tl


@triton.jit
def prints(X, N: tl.constexpr, HEX: tl.constexpr):
    tl.device_print("x", tl.load(X + tl.arange(0, N)), hex=HEX)


def told(capsys) -> collections.Counter:
    return collections.Counter(capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("dtype, as_hex, text", [
    (np.int32, False, lambda x: str(x)), (np.uint8, False, lambda x: str(x)), (np.int64, False, lambda x: str(x)),
    (np.float32, False, lambda x: f"{x:f}"), (np.float16, False, lambda x: f"{x:f}"), (np.float64, True, lambda x: float(x).hex()),
    (np.int16, True, lambda x: f"0x{x & 0xFFFF:04x}"), (np.uint32, True, lambda x: f"0x{x:08x}")])
def test_each_element_is_a_line(dtype, as_hex, text, capsys):
    x = (np.arange(16) - 3).astype(dtype) if np.dtype(dtype).kind != "f" else ((np.arange(16) - 3) / 8).astype(dtype)
    prints[(2,)](x, 16, as_hex)
    assert told(capsys) == collections.Counter(f"pid ({p}, 0, 0) idx ({i:2}) x: {text(v)}" for p in range(2) for i, v in enumerate(x.tolist()))


@triton.jit
def prints_much(X):
    row, column = tl.arange(0, 2), tl.arange(0, 16)
    print("no values")
    print("", tl.program_id(1))
    if tl.program_id(1) == 1:
        print("two:", row[:, None] * 16 + column[None, :], column < 3)
    for i in range(3):
        tl.device_print("turn", i)
        tl.store(X + tl.program_id(1) * 3 + i, i)


def test_prints_of_scalars_in_branches_and_loops(capsys):
    x = np.zeros(6, np.int32)
    prints_much[(1, 2)](x)
    pids = [f"pid (0, {p}, 0)" for p in range(2)]
    expected = [f"{pid} no values" for pid in pids] + [f"{pid} idx (): {p}" for p, pid in enumerate(pids)]
    expected += [f"{pids[1]} idx ({i}, {j:2}) two: (operand 0) {16 * i + j}" for i in range(2) for j in range(16)]
    expected += [f"{pids[1]} idx ({j:2}) two: (operand 1) {int(j < 3)}" for j in range(16)]
    expected += [f"{pid} idx () turn: {i}" for pid in pids for i in range(3)]
    assert told(capsys) == collections.Counter(expected) and x.tolist() == [0, 1, 2] * 2


def test_lines_beyond_the_most_are_counted(capsys, monkeypatch):
    monkeypatch.setattr("kiln.triton.messages.MOST", 20)
    triton.jit(prints.fn)[(2,)](np.arange(16, dtype=np.int32), 16, False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 21 and lines[-1] == "prints: 12 more messages; a launch has 20"


@triton.jit
def asserts(X, Z, N: tl.constexpr, MASKED: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(X + at)
    tl.device_assert(x < 20, "x is too large", mask=at < 24 if MASKED else None)
    tl.store(Z + at, x)


def test_an_assertion_that_does_not_hold():
    x, z = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    asserts[(2,)](x, z, 16, False)  # assertions are checked for those who ask for them
    np.testing.assert_array_equal(x, z)
    found = r"messages_test.py:\d+: device-side assert in program \(1, 0, 0\), element \( 4\): x is too large\nand 3 more"
    with pytest.raises(RuntimeError, match=found):
        asserts[(2,)](x, z, 16, True, debug=True)
    asserts[(1,)](x, z, 16, False, debug=True)


def test_who_asks_for_assertions(monkeypatch):
    x, z = np.full(16, 50, np.int32), np.zeros(16, np.int32)
    with_flag = triton.jit(asserts.fn, debug=True)
    with pytest.raises(RuntimeError, match="and 15 more"):
        with_flag[(1,)](x, z, 16, False)
    with_flag[(1,)](x, z, 16, False, debug=False)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.debug = True
        with pytest.raises(RuntimeError, match="too large"):
            asserts[(1,)](x, z, 16, False)
    asserts[(1,)](x, z, 16, False)
    monkeypatch.setenv("TRITON_DEBUG", "1")
    triton.knobs.refresh_knobs()
    try:
        with pytest.raises(RuntimeError, match="too large"):
            asserts[(1,)](x, z, 16, False)
    finally:
        monkeypatch.delenv("TRITON_DEBUG")
        triton.knobs.refresh_knobs()


@triton.jit
def constants(Z, COND: tl.constexpr, MASK: tl.constexpr):
    tl.device_assert(COND, "constant", mask=MASK)
    tl.store(Z, 1)


@pytest.mark.parametrize("condition, mask, fails", [(True, None, False), (False, None, True), (False, True, True), (False, False, False)])
def test_an_assertion_of_constants(condition, mask, fails):
    z = np.zeros(1, np.int32)
    if not fails:
        constants[(1,)](z, condition, mask, debug=True)
    else:
        with pytest.raises(RuntimeError, match=r"program \(0, 0, 0\): constant"):
            constants[(1,)](z, condition, mask, debug=True)
    assert z[0] == 1
