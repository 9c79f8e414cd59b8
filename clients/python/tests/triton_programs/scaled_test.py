# SPDX-License-Identifier: Apache-2.0
"""tl.dot_scaled against float64, and tl.atomic_poll."""

import numpy as np
import pytest
import triton
import triton.language as tl
from numbers_of import error, normal, stored, values

_SMALL = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def of_4_bits(code):
    return np.where(code & 8, -1, 1) * _SMALL[code & 7]


def of_8_bits(code, form: str):
    digits, bias = (3, 7) if form == "e4m3" else (2, 15)
    exponent, mantissa = (code.astype(int) & 0x7F) >> digits, code & ((1 << digits) - 1)
    size = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias - digits), (1 + mantissa / 2.0**digits) * 2.0 ** (exponent - bias))
    return np.where(code & 0x80, -size, size)


def operand(seed: int, form: str, rows: int, k: int, along_k: bool):
    """(bytes as the kernel takes them, float64) of rows of length k."""
    generator = np.random.default_rng(seed)
    if form == "e2m1":
        code = generator.integers(0, 16, (rows, k), np.uint8)
        pairs = (code[:, 0::2] | code[:, 1::2] << 4) if along_k else (code[0::2] | code[1::2] << 4)
        return pairs, of_4_bits(code)
    if form in ("e4m3", "e5m2"):
        code = generator.integers(0, 0x70, (rows, k), np.uint8) | generator.integers(0, 2, (rows, k), np.uint8) << 7
        return code, of_8_bits(code, form)
    array = stored(normal(seed, rows, k), "bfloat16" if form == "bf16" else "float16")
    return array.view(np.uint16), values(array, "bfloat16") if form == "bf16" else array.astype(np.float64)


@triton.jit
def scaled(A, SA, B, SB, C, M: tl.constexpr, N: tl.constexpr, G: tl.constexpr, AM: tl.constexpr, AK: tl.constexpr, BN: tl.constexpr,
           BK: tl.constexpr, FA: tl.constexpr, FB: tl.constexpr, A_K: tl.constexpr, B_K: tl.constexpr):
    a = tl.load(A + tl.arange(0, AM)[:, None] * AK + tl.arange(0, AK)[None, :])
    b = tl.load(B + tl.arange(0, BN)[None, :] * BK + tl.arange(0, BK)[:, None])
    g = tl.arange(0, G)[None, :]
    scale_a = None if SA is None else tl.load(SA + tl.arange(0, M)[:, None] * G + g)
    scale_b = None if SB is None else tl.load(SB + tl.arange(0, N)[:, None] * G + g)
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    acc = tl.full((M, N), 1.0, tl.float32)
    tl.store(C + at, tl.dot_scaled(a, scale_a, FA, b, scale_b, FB, acc, lhs_k_pack=A_K, rhs_k_pack=B_K))


@pytest.mark.parametrize("left, right, packs", [("e2m1", "e2m1", (True, True)), ("e2m1", "e4m3", (False, True)), ("e5m2", "e2m1", (True, False)),
                                                ("e4m3", "e5m2", (True, True)), ("bf16", "e2m1", (True, True)), ("e4m3", "fp16", (True, True))])
@pytest.mark.parametrize("scales", ["both", "left", "none"])
def test_products_of_scaled_operands(left, right, packs, scales):
    m, n, k, group = 32, 16, 64, 32
    (a, x), (b, y) = operand(1, left, m, k, packs[0]), operand(2, right, n, k, packs[1])
    generator = np.random.default_rng(3)
    sa, sb = (generator.integers(120, 132, (rows, k // group), np.uint8) for rows in (m, n))
    sa = sa if scales != "none" else None
    sb = sb if scales == "both" and right != "fp16" else None
    c = np.zeros((m, n), np.float32)
    scaled[(1,)](a, sa, b, sb, c, m, n, k // group, *a.shape, *b.shape, left, right, *packs)
    x, y = (v if s is None else v * np.repeat(2.0 ** (s.astype(int) - 127), group, 1) for v, s in ((x, sa), (y, sb)))
    assert error(c, x @ y.T + 1) < 1e-5


def test_the_ends_of_the_scales():
    a, b = np.full((16, 32), 0x38, np.uint8), np.full((16, 32), 0x38, np.uint8)  # 1.0
    sa, sb = np.full((16, 1), 127, np.uint8), np.full((16, 1), 127, np.uint8)
    sa[:3, 0], c = (255, 0, 254), np.zeros((16, 16), np.float32)
    scaled[(1,)](a, sa, b, sb, c, 16, 16, 1, 16, 32, 16, 32, "e4m3", "e4m3", True, True)
    assert np.isnan(c[0]).all() and (c[1] == 1).all() and np.isinf(c[2]).all() and (c[3:] == 33).all()


@triton.jit
def polled(flag, out):
    """The second program waits for the first."""
    if tl.program_id(0) == 0:
        tl.store(out, 7)
        tl.debug_barrier()
        tl.atomic_xchg(flag, 3, sem="release")
    else:
        tl.store(out + 2, tl.atomic_poll(flag, 3))
        tl.store(out + 1, tl.atomic_add(out, 0) + 1)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_program_waits_for_another(dtype):
    flag, out = np.zeros(1, dtype), np.zeros(3, np.int32)
    polled[(2,)](flag, out)
    assert out.tolist() == [7, 8, 1] and flag[0] == 3


@pytest.mark.parametrize("formats, groups, words", [(("e4m3", "e4m3"), (2, 4), r"same scale factor; \(lhs: 32 vs rhs: 16\)"),
                                                    (("e3m2", "e4m3"), (2, 2), "the format 'e3m2'"), (("fp16", "e4m3"), (2, 2), "fp16 or uint16"),
                                                    (("e4m3", "e4m3"), (3, 3), "a scale of tl.dot_scaled is")])
def test_scaled_operands_that_do_not_fit_are_refused(formats, groups, words):
    @triton.jit
    def kernel(GA: tl.constexpr, GB: tl.constexpr, FA: tl.constexpr, FB: tl.constexpr):
        x = tl.full((16, 64), 0, tl.uint8)
        tl.dot_scaled(x, tl.full((16, GA), 127, tl.uint8), FA, tl.trans(x), tl.full((16, GB), 127, tl.uint8), FB)

    with pytest.raises(triton.CompilationError, match=words):
        kernel.program(*groups, *formats)
