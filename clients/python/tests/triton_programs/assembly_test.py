# SPDX-License-Identifier: Apache-2.0
"""tl.inline_asm_elementwise, against what the PTX ISA says of each instruction."""

import numpy as np
import pytest
import triton
import triton.language as tl

N = 64
rng = np.random.default_rng(3)
WORDS = [rng.integers(0, 1 << 32, N, np.uint32) for _ in range(3)]
FLOATS = [(rng.standard_normal(N) * 10).astype(np.float32) for _ in range(3)]


@triton.jit
def of_three(A, B, C, OUT, TEXT: tl.constexpr, CONSTRAINTS: tl.constexpr, ELEMENT: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    arguments = [tl.load(A + at), tl.load(B + at), tl.load(C + at)]
    tl.store(OUT + at, tl.inline_asm_elementwise(TEXT, CONSTRAINTS, arguments, ELEMENT, is_pure=True, pack=1))


def run(text, inputs, dtype, constraints="=r,r,r,r"):
    out = np.zeros(N, dtype)
    of_three[(1,)](*inputs, out, text, constraints, getattr(tl, np.dtype(dtype).name), N)
    return out


def signed(x):
    return x.astype(np.int32)


def wide(x):
    return x.astype(np.uint64)


def bytes_of(*words):
    return [((wide(w) >> (8 * i)) & 255).astype(np.uint32) for w in words for i in range(4)]


def permuted(a, b, selector):
    parts, result = bytes_of(a, b), 0
    for i in range(4):
        byte = parts[selector >> (4 * i) & 7]
        byte = np.where(byte > 127, 255, 0).astype(np.uint32) if selector >> (4 * i) & 8 else byte
        result = result | byte << np.uint32(8 * i)
    return result


_A, _B, _C = WORDS
INTEGERS = {
    "add.u32 $0, $1, $2;": lambda: _A + _B, "sub.s32 $0, $1, 7;": lambda: _A - np.uint32(7), "mul.lo.u32 $0, $1, $2;": lambda: _A * _B,
    "mul.hi.u32 $0, $1, $2;": lambda: (wide(_A) * wide(_B) >> np.uint64(32)).astype(np.uint32),
    "mad.lo.s32 $0, $1, $2, $3;": lambda: _A * _B + _C, "and.b32 $0, $1, 0x0F0F0F0F;": lambda: _A & np.uint32(0x0F0F0F0F),
    "not.b32 $0, $1;": lambda: ~_A, "shl.b32 $0, $1, 3;": lambda: _A << np.uint32(3),
    "shr.s32 $0, $1, 5;": lambda: (signed(_A) >> 5).view(np.uint32), "shl.b32 $0, $1, $2;": lambda: np.where(_B > 31, 0, _A << (_B & np.uint32(31))),
    "shr.s32 $0, $1, $2;": lambda: (signed(_A) >> np.minimum(_B, 31).astype(np.int32)).view(np.uint32),
    "shf.l.wrap.b32 $0, $1, $2, 17;": lambda: _B << np.uint32(17) | _A >> np.uint32(15),
    "shf.r.wrap.b32 $0, $1, $2, 40;": lambda: _A >> np.uint32(8) | _B << np.uint32(24),
    "min.s32 $0, $1, $2;": lambda: np.minimum(signed(_A), signed(_B)).view(np.uint32), "max.u32 $0, $1, $2;": lambda: np.maximum(_A, _B),
    "prmt.b32 $0, $1, $2, 0x9170;": lambda: permuted(_A, _B, 0x9170),
    "lop3.b32 $0, $1, $2, $3, 0xE2;":
        lambda: sum(((_A if r & 4 else ~_A) & (_B if r & 2 else ~_B) & (_C if r & 1 else ~_C)) * np.uint32(0xE2 >> r & 1) for r in range(8)),
    "bfe.u32 $0, $1, 7, 9;": lambda: _A >> np.uint32(7) & np.uint32(511),
    "bfe.s32 $0, $1, 7, 9;": lambda: (signed(_A << np.uint32(16)) >> 23).view(np.uint32),
    "bfi.b32 $0, $1, $2, 4, 6;": lambda: _B & ~np.uint32(63 << 4) | (_A & np.uint32(63)) << np.uint32(4),
    "popc.b32 $0, $1;": lambda: np.array([int(x).bit_count() for x in _A], np.uint32),
    "clz.b32 $0, $1;": lambda: np.array([32 - int(x).bit_length() for x in _A], np.uint32),
    "{ .reg .pred p, q; setp.lt.u32 p|q, $1, $2; selp.b32 $0, $1, $3, q; @p add.u32 $0, $0, 5; }":
        lambda: np.where(_A < _B, _C + np.uint32(5), _A),
    "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; mov.b32 $0, {hi, lo}; } // halves": lambda: _A >> np.uint32(16) | _A << np.uint32(16),
    "{ .reg .u32 t<2>; cvt.s32.s8 t0, $1; cvt.u32.u16 t1, $2; /* both */ xor.b32 $0, t0, t1; }":
        lambda: _A.astype(np.int8).astype(np.int32).view(np.uint32) ^ _B & np.uint32(0xFFFF),
    "mov.b32 $0, 0fC1200000;": lambda: np.full(N, 0xC1200000, np.uint32),
    "{ .reg .pred p; setp.lt.u32 p, $1, $2; selp.b32 $0, 0f7F800000, 0f3F000000, p; }": lambda: np.where(_A < _B, 0x7F800000, 0x3F000000),
    "{ .reg .b64 t; .reg .b32 low; mov.b64 t, 0d400921FB54442D18; mov.b64 {low, $0}, t; }": lambda: np.full(N, 0x400921FB, np.uint32),
    "cvt.sat.s8.s32 $0, $1;": lambda: np.clip(signed(_A), -128, 127).view(np.uint32),
}


@pytest.mark.parametrize("text", list(INTEGERS))
def test_words(text):
    assert np.array_equal(run(text, WORDS, np.uint32), INTEGERS[text]().astype(np.uint32))


X, Y, Z = (x.astype(np.float64) for x in FLOATS)
REALS = {
    "add.rn.ftz.f32 $0, $1, $2;": lambda: X + Y, "fma.rn.f32 $0, $1, $2, $3;": lambda: X * Y + Z, "mul.f32 $0, $1, 0f40000000;": lambda: 2 * X,
    "add.sat.f32 $0, $1, $2;": lambda: np.clip(X + Y, 0, 1), "ex2.approx.ftz.f32 $0, $1;": lambda: np.exp2(X),
    "{ .reg .f32 t; abs.f32 t, $1; lg2.approx.f32 $0, t; }": lambda: np.log2(np.abs(X)), "tanh.approx.f32 $0, $1;": lambda: np.tanh(X),
    "rcp.approx.ftz.f32 $0, $1;": lambda: 1 / X, "max.f32 $0, $1, $2;": lambda: np.maximum(X, Y), "neg.f32 $0, $1;": lambda: -X,
    "{ .reg .f32 t; mul.f32 t, $1, $1; sqrt.approx.f32 $0, t; }": lambda: np.abs(X), "cvt.rni.f32.f32 $0, $1;": lambda: np.rint(X),
    "{ .reg .s32 i; cvt.rzi.s32.f32 i, $1; cvt.rn.f32.s32 $0, i; }": lambda: np.trunc(X), "cvt.rmi.f32.f32 $0, $1;": lambda: np.floor(X),
    "{ .reg .b32 t; cvt.rn.bf16x2.f32 t, $1, $2; shl.b32 $0, t, 16; }": lambda: bfloat(Y),
    "{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.f32.f16 $0, h; }": lambda: FLOATS[0].astype(np.float16),
    "{ .reg .b32 t, u; cvt.rn.f16x2.f32 t, $1, $2; add.f16x2 u, t, t; .reg .b16 l, h; mov.b32 {l, h}, u; cvt.f32.f16 $0, h; }":
        lambda: FLOATS[0].astype(np.float16) * np.float16(2),
}


def bfloat(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize("text", list(REALS))
def test_floats(text):
    np.testing.assert_allclose(run(text, FLOATS, np.float32, "=f,f,f,f"), REALS[text](), rtol=2e-6, atol=1e-6)


@triton.jit
def of_bytes(A, B, OUT, N: tl.constexpr):
    """Four at a time: the sums of bytes without what is carried from one to the next."""
    at = tl.arange(0, N)
    found = tl.inline_asm_elementwise(
        "{ .reg .b32 t; and.b32 t, $1, 0x7F7F7F7F; and.b32 $0, $2, 0x7F7F7F7F; add.u32 $0, $0, t; }", "=r,r,r", [tl.load(A + at), tl.load(B + at)],
        dtype=tl.uint8, is_pure=True, pack=4)
    tl.store(OUT + at, found)


def test_groups_of_bytes_share_a_register():
    a, b = (rng.integers(0, 256, N, np.uint8) for _ in range(2))
    out = np.zeros(N, np.uint8)
    of_bytes[(1,)](a, b, out, N)
    assert np.array_equal(out, (a & 127) + (b & 127))


@triton.jit
def unpacked(A, B, WHOLE, LARGEST, N: tl.constexpr):
    """Two elements at a time; results of two types."""
    at = tl.arange(0, N)
    whole, largest = tl.inline_asm_elementwise(
        "{ .reg .b16 x<2>; mov.b32 {x0, x1}, $4; cvt.s32.s16 $0, x0; cvt.s32.s16 $1, x1; }\n"
        "cvt.rn.f32.s32 $2, $0; cvt.rn.f32.s32 $3, $1; max.f32 $2, $2, $5; max.f32 $3, $3, $6;", "=r,=r,=f,=f,r,f,f",
        [tl.load(A + at), tl.load(B + at)], dtype=(tl.int32, tl.float32), is_pure=True, pack=2)
    tl.store(WHOLE + at, whole)
    tl.store(LARGEST + at, largest)


def test_several_results_of_two_elements():
    a, b = rng.integers(-99, 99, N).astype(np.int16), FLOATS[0] * 5
    whole, largest = np.zeros(N, np.int32), np.zeros(N, np.float32)
    unpacked[(1,)](a, b, whole, largest, N)
    assert np.array_equal(whole, a) and np.array_equal(largest, np.maximum(a.astype(np.float32), b))


@triton.jit
def by_pointers(X, Y, N: tl.constexpr):
    tl.inline_asm_elementwise("ld.global.b8 $0, [$1]; shl.b32 $0, $0, 3; st.global.b8 [$2], $0;", "=r,l,l",
                              [X + tl.arange(0, N), Y + tl.arange(0, N)], dtype=tl.int8, is_pure=False, pack=1)


def test_a_text_may_load_and_store():
    x, y = rng.integers(0, 256, N, np.uint8), np.zeros(N, np.uint8)
    by_pointers[(1,)](x, y, N)
    assert np.array_equal(y, x << 3)


@triton.jit
def by_one_of_two(X, Y, N: tl.constexpr):
    tl.inline_asm_elementwise("{ .reg .pred p; .reg .b64 a; setp.lt.u32 p, 2, 1; mov.b64 a, $1; @p mov.b64 a, $2; ld.global.b8 $0, [a]; }", "=r,l,l",
                              [X + tl.arange(0, N), Y + tl.arange(0, N)], dtype=tl.int8, is_pure=False, pack=1)


def test_pointers_are_not_chosen():
    with pytest.raises(triton.CompilationError, match="pointers are moved without a condition"):
        by_one_of_two.program(np.zeros(N, np.uint8), np.zeros(N, np.uint8), N)


@pytest.mark.parametrize("text, constraints, words", [
    ("mov.u32 $0, %smid;", "=r,r,r,r", "the special register %smid"), ("bar.sync 0;", "=r,r,r,r", "`bar.sync 0` in a text of PTX is not translated"),
    ("add.cc.u32 $0, $1, $2;", "=r,r,r,r", "the form .cc of add"), ("add.rz.f32 $0, $1, $2;", "=f,r,r,r", "the form .rz of add"),
    ("add.sat.s32 $0, $1, $2;", "=r,r,r,r", "the form .sat of integers"), ("mov.u32 $9, $1;", "=r,r,r,r", r"\$9, which is no register"),
    ("add.u32 $0, $1, t;", "=r,r,r,r", "the register t in a text of PTX is read before it is written"),
    ("", "=r,r,r,r", r"does not write its result \$0"),
    ("mov.u32 $0, $1;", "=r,r,r", "of 1 results and 2 arguments"), ("mov.u32 $0, $1;", "=q,r,r,r", "the constraint 'q'"),
    ("add.u32 $0, $1 $2;", "=r,r,r,r", "in a text of PTX: , is missing"),
    ("mad.hi.sat.s32 $0, $1, $2, $3;", "=r,r,r,r", "the form .sat of integers"), ("cvt.rz.f32.s32 $0, $1;", "=f,r,r,r", "the form .rz of integers"),
    ("{ .reg .b16 h; cvt.rn.satfinite.f16.f32 h, $1; cvt.f32.f16 $0, h; }", "=f,r,r,r", "the form .satfinite of fp16"),
    ("mov.b16 $0, 0f3F800000;", "=r,r,r,r", "the number 1.0 where a text of PTX needs 16 bits"),
    ("cvt.u64.u32 $0, $1;", "=r,r,r,r", r"writes 64 bits to \$0, which has 32")])
def test_what_is_not_translated_is_refused_by_name(text, constraints, words):
    with pytest.raises(triton.CompilationError, match=words):
        of_three.program(*WORDS, np.zeros(N, np.uint32), text, constraints, tl.uint32, N)
