# SPDX-License-Identifier: Apache-2.0
"""Which programs are run on which targets: (name, program, maker of data.MAKERS, its arguments, bar)."""

import random

from kiln.examples.add import add
from kiln.examples.attention import attention
from kiln.library.programs.gemm import gemm
from kiln.library.programs.rms_norm import rms_norm
from kiln.library.programs.softmax import softmax, softmax_online

TARGETS = ["emu:sm_80", "emu:sm_90a", "emu:gfx90a", "emu:gfx942", "emu:gfx1100"]
OTHERS = ["emu:sm_75", "emu:sm_89", "emu:gfx950", "emu:gfx1201"]

# Largest relative error of a result of this type, against a float64 reference. A product of tf32 operands is bound by their rounding.
BARS = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "tfloat32": 2e-3, "int32": 0.0}

FLOAT8_SUMS = 5e-4  # of wgmma, which cuts off what it adds of 8-bit floats at 13 bits: those of one step along k

PRODUCTS = [  # operands, result
    ("float16", "float16"), ("bfloat16", "bfloat16"), ("int8", "int32"), ("uint8", "int32"), ("float8_e4m3fn", "float16"),
    ("float8_e5m2", "float32"), ("float8_e4m3fnuz", "float16"), ("float8_e5m2fnuz", "float32"), ("tfloat32", "float32"),
    ("float32", "float32"),
]
LAYOUTS = {"nn": (False, False), "nt": (False, True), "tn": (True, False), "tt": (True, True)}
ODD = (97, 77, 133)


def product(name, shape, dtype, out, layout="nn", symbolic=False, tile=None, bias=False, activation=None, stages=3):
    """``symbolic``: which of "mnk" are known at launch only; True: all."""
    trans_a, trans_b = LAYOUTS[layout]
    narrow = "8" in dtype
    block_m, block_n, block_k, threads = tile or (64, 64, 64 if narrow else 16 if dtype == "float32" else 32, 128)
    unknown = "mnk" if symbolic is True else symbolic or ""
    program = gemm(*(None if name in unknown else extent for name, extent in zip("mnk", shape)), in_dtype=dtype, out_dtype=out, trans_a=trans_a,
                   trans_b=trans_b, bias=bias,
                   activation=activation, block_m=block_m, block_n=block_n, block_k=block_k, threads=threads, stages=stages)
    arguments = dict(zip("mnk", shape), dtype=dtype, out=out, trans_a=trans_a, trans_b=trans_b, bias=bias, activation=activation)
    text = f"{name} {dtype} {layout} {'x'.join(map(str, shape))}{' symbolic' if symbolic else ''}{f' {block_m}x{block_n}' if tile else ''}"
    return text, program, "gemm", arguments, BARS["tfloat32" if dtype == "tfloat32" else out]


def products():
    """Every type in every layout, odd shapes; those known at launch only in turns."""
    cases = []
    for dtype, out in PRODUCTS:
        for index, layout in enumerate(LAYOUTS):
            cases.append(product("gemm", ODD, dtype, out, layout, symbolic=index % 2 == 1))
    return cases


def shapes():
    """Sizes and tiles that are special."""
    half = ("float16", "float16")
    return [
        product("gemm empty", (0, 64, 64), *half, symbolic=True), product("gemm empty", (64, 0, 64), *half, symbolic=True),
        product("gemm no k", (65, 63, 0), *half, symbolic=True), product("gemm one", (1, 1, 1), *half, symbolic=True),
        product("gemm tile", (200, 170, 100), *half, tile=(192, 80, 48, 128)),
        product("gemm tile", (129, 257, 64), *half, tile=(128, 256, 32, 256)),
        product("gemm tile", (113, 105, 100), "float32", "float32", "nn", tile=(96, 96, 48, 128)),
        product("gemm tile", (65, 89, 164), "float32", "float32", "nt", tile=(48, 80, 80, 128)),
        product("gemm bias", ODD, *half, bias=True, activation="gelu"),
        product("gemm bias", ODD, "bfloat16", "bfloat16", "nt", True, bias=True, activation="silu"),
        product("gemm bias", ODD, *half, bias=True, activation="relu"),
    ]


def attention_case(batch, seq_len, heads, dim, dtype="float16", causal=False, symbolic=False):
    program = attention(batch, heads, None if symbolic else seq_len, dim, causal=causal, dtype=dtype)
    text = f"attention {batch}x{seq_len}x{heads}x{dim} {dtype}{' causal' if causal else ''}{' symbolic' if symbolic else ''}"
    return text, program, "attention", dict(batch=batch, seq_len=seq_len, heads=heads, dim=dim, dtype=dtype, causal=causal), BARS[dtype]


def rows_case(name, build, maker, m, n, dtype, **keys):
    return f"{name} {m}x{n} {dtype}", build(dtype=dtype, **keys), maker, dict(m=m, n=n, dtype=dtype), BARS[dtype]


def others():
    return [
        attention_case(1, 128, 2, 64), attention_case(1, 133, 2, 80, causal=True), attention_case(1, 1, 1, 64),
        attention_case(2, 100, 1, 128, "bfloat16", causal=True, symbolic=True), attention_case(1, 200, 1, 96, symbolic=True),
        rows_case("rms_norm", rms_norm, "rms_norm", 7, 777, "float16", N=777),
        rows_case("rms_norm", rms_norm, "rms_norm", 7, 576, "bfloat16", N=576, rows=2),
        rows_case("rms_norm", rms_norm, "rms_norm", 5, 1024, "float32", N=1024),
        rows_case("softmax", softmax, "softmax", 5, 1024, "float16", N=1024),
        rows_case("softmax", softmax, "softmax", 5, 80, "bfloat16", N=80),
        rows_case("softmax_online", softmax_online, "softmax", 7, 777, "float32"),
        rows_case("softmax_online", softmax_online, "softmax", 3, 2000, "float16"),
        rows_case("add", add, "add", 65, 77, "float32"), rows_case("add", add, "add", 64, 96, "float16"),
    ]


def random_cases(seed, count):
    rng = random.Random(seed)
    cases = []
    for _ in range(count):
        shape = tuple(rng.randint(1, 200) for _ in range(3))
        dtype, out = rng.choice(PRODUCTS)
        cases.append(product("random gemm", shape, dtype, out, rng.choice(list(LAYOUTS)), symbolic=rng.random() < 0.5))
    return cases


def small():
    """One of each family, for the targets that differ little from another and for checked runs."""
    return [product("gemm", ODD, "float16", "float16"), product("gemm", ODD, "int8", "int32", "nt", True), *others()[1:4], others()[6],
            others()[8], others()[10], others()[12]]


def wgmma():
    """Products by groups of four warps, from shared memory in both orders and from registers."""
    tile, wide = (128, 128, 64, 128), (64, 256, 64, 256)
    return [
        product("wgmma", (128, 128, 128), "float16", "float16", "nn", tile=tile),
        product("wgmma", (200, 177, 133), "float16", "float16", "nt", True, tile),
        product("wgmma", (128, 256, 128), "bfloat16", "bfloat16", "tn", tile=wide),
        product("wgmma", (150, 140, 100), "float16", "float16", "tt", tile=tile),
        product("wgmma", (128, 128, 128), "float16", "float16", "nn", tile=(64, 64, 32, 128)),
        product("wgmma", (64, 32, 64), "float16", "float16", "tt", tile=(64, 32, 16, 128)),
        product("wgmma", (128, 128, 256), "int8", "int32", "nt", tile=(128, 128, 128, 128)),
        product("wgmma", (128, 128, 256), "float8_e4m3fn", "float32", "nt", tile=tile),
        product("wgmma", (128, 128, 128), "tfloat32", "float32", "nt", tile=(128, 128, 32, 128)),
        product("wgmma", (200, 136, 72), "float16", "float16", "tn", tile=(192, 128, 64, 384), stages=1),
        attention_case(1, 256, 2, 64), attention_case(1, 200, 1, 128, "bfloat16", causal=True, symbolic=True),
        # Rows of several panels of 64 or of 32 bytes.
        product("wgmma", (130, 200, 100), "float16", "float16", "nn", tile=(64, 96, 96, 128)),
        product("wgmma", (128, 160, 144), "bfloat16", "bfloat16", "nt", tile=(64, 80, 48, 128)),
        product("wgmma", (70, 80, 80), "float16", "float16", "tn", tile=(64, 80, 80, 128)),
        product("wgmma", (128, 128, 192), "int8", "int32", "nt", tile=(64, 64, 96, 128)),
        attention_case(1, 133, 2, 80, causal=True), attention_case(1, 200, 1, 96, "bfloat16", symbolic=True),
    ]


def roles():
    """Tensor copies through rings: more tiles than multiprocessors and fewer, edges that cut boxes, one warp group and several, more
    steps than stages and fewer."""
    pair, single, many = (128, 128, 64, 256), (64, 64, 64, 128), (128, 32, 64, 256)
    half, wide = ("float16", "float16"), ("bfloat16", "bfloat16")
    return [
        product("roles", (256, 256, 320), *half, "nt", tile=pair),
        product("roles", (200, 136, 72), *wide, "nn", tile=pair, bias=True, activation="relu"),
        product("roles", (136, 264, 136), *half, "tn", tile=pair), product("roles", (72, 80, 200), *wide, "tt", tile=single, stages=2),
        product("roles", (1536, 384, 80), *wide, "nt", tile=many), product("roles", (1500, 392, 72), *half, "nn", "m", many, bias=True),
        product("roles", (0, 384, 128), *half, "nt", "m", many),
        product("roles", (1, 128, 256), *wide, "nt", tile=single, stages=4), product("roles", (300, 192, 128), *half, "nt", tile=(192, 64, 64, 384)),
        product("roles", (128, 256, 256), "int8", "int32", "nt", tile=(128, 128, 128, 256)),
        product("roles", (144, 272, 256), "float8_e4m3fn", "float16", "nt", tile=(128, 128, 128, 256)),
        product("roles", (128, 144, 96), "tfloat32", "float32", "nt", tile=(128, 128, 32, 256)),
        attention_case(1, 256, 2, 64), attention_case(2, 136, 1, 128, "bfloat16", causal=True),
        product("roles", (136, 200, 200), *half, "nn", tile=(128, 96, 96, 256)),
        product("roles", (200, 160, 144), *wide, "nt", tile=(128, 80, 48, 256)),
        attention_case(5, 260, 10, 64, causal=True),  # tiles of unequal length, some for each block
        product("roles", (136, 240, 320), *half, "tt", tile=(128, 80, 80, 256), stages=2), attention_case(2, 136, 1, 80, "bfloat16", causal=True),
    ]


def rings():
    """Products whose tiles come by tensor copies through rings that go round more than once."""
    return [
        product("wgmma", (64, 64, 512), "float16", "float16", "nn", tile=(64, 64, 32, 128)),
        product("wgmma", (130, 72, 520), "bfloat16", "bfloat16", "tt", True, (128, 64, 64, 256)),
        product("wgmma", (64, 64, 1024), "int8", "int32", "nt", tile=(64, 64, 64, 128)), attention_case(1, 512, 1, 64),
    ]


def pairs():
    """Blocks of a cluster that load tiles for each other."""
    return [product("pair", (256, 384, 2112), "float16", "float16", "nt", tile=(64, 64, 64, 128), stages=4)]


def mutated():
    """Kernels whose synchronisation is taken out piece by piece."""
    return [
        product("gemm", (128, 128, 256), "float16", "float16"), product("gemm", (64, 64, 128), "float32", "float32"),
        product("gemm", (64, 64, 256), "int8", "int32", "nt"), product("gemm", (130, 70, 133), "bfloat16", "bfloat16", "tn", True),
        attention_case(1, 256, 1, 64), attention_case(1, 256, 1, 128, causal=True, symbolic=True),
        rows_case("rms_norm", rms_norm, "rms_norm", 4, 1024, "float16", N=1024),
        rows_case("softmax", softmax, "softmax", 4, 1024, "float16", N=1024),
        rows_case("softmax_online", softmax_online, "softmax", 4, 2000, "float32", rows=2, columns=512),
    ]
