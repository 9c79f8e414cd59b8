# SPDX-License-Identifier: Apache-2.0
"""The examples stay short, stand alone, and compute what they say: each on emulated targets, checked, at odd shapes, beside float64."""

import ast
import importlib
import os
import pathlib

import numpy as np
import pytest

import kiln
import kiln.examples
from kiln.client import Client
from kiln.examples import add, attention, gemm, packed, products, rows, scaled
from kiln.library import Bits

BIN = pathlib.Path(os.environ.get("KILN_BUILD", "build/release")).resolve() / "bin"
MISSING = [name for name in ("kilnd", "kiln-worker") if not os.access(BIN / name, os.X_OK)]
needs_daemon = pytest.mark.skipif(bool(MISSING), reason=f"SKIPPED, NOTHING WAS RUN: {', '.join(MISSING)} not in {BIN}; set KILN_BUILD")

FOLDER = pathlib.Path(kiln.examples.__file__).parent
TOOLS = ("__init__", "dump", "programs")  # what names and writes programs
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in TOOLS)
LONGEST = 80  # lines of a file
TARGETS = ("emu:sm_90a", "emu:sm_80", "emu:gfx942", "emu:gfx1100")
BARS = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5}
FP8_SUMS = 5e-4  # wgmma cuts off at 13 bits what it adds of 8-bit floats
FLOATS = ("float16", "bfloat16", "float32")
RNG = np.random.default_rng()


def rounded(values, dtype):
    """(what is passed for these numbers, what it holds as float64)."""
    if dtype in ("float16", "float32"):
        array = values.astype(dtype)
        return array, array.astype(np.float64)
    bits = Bits.of(values, dtype)
    return bits.array, np.asarray(bits).astype(np.float64)


def normal(dtype, *shape):
    return rounded(RNG.standard_normal(shape), dtype)


def sum_of_two(dtype, symbolic):
    (a, wide_a), (b, wide_b) = normal(dtype, 65, 77), normal(dtype, 65, 77)
    return add.add(*(() if symbolic else (65, 77)), dtype=dtype), (a, b), wide_a + wide_b


def rms_norm(dtype, symbolic):
    (x, wide), (w, weight) = normal(dtype, 5, 777), normal(dtype, 777)
    return rows.rms_norm(None if symbolic else 5, 777, dtype), (x, w), wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * weight


def softmax(dtype, symbolic):
    x, wide = normal(dtype, 5, 777)
    powers = np.exp(wide - wide.max(1, keepdims=True))
    return rows.softmax(None if symbolic else 5, 777, dtype), (x,), powers / powers.sum(1, keepdims=True)


def product(dtype, symbolic):
    (a, wide_a), (b, wide_b) = normal(dtype, 97, 133), normal(dtype, 133, 77)
    small = {"block_m": 32, "block_n": 32, "block_k": 16, "threads": 64} if dtype == "float32" else {}
    return gemm.gemm(*((None,) * 3 if symbolic else (97, 77, 133)), dtype, **small), (a, b), wide_a @ wide_b


def batched(dtype, symbolic):
    (a, wide_a), (b, wide_b) = normal(dtype, 3, 70, 72), normal(dtype, 3, 136, 72)
    program = products.batched(3, 70, 136, 72, dtype, block_m=64, block_n=64, block_k=32, stages=3, threads=128)
    return program, (a, b), np.einsum("bmk,bnk->bmn", wide_a, wide_b)


def with_epilogue(dtype, symbolic):
    (a, wide_a), (b, wide_b), (residual, added) = normal(dtype, 70, 72), normal(dtype, 136, 72), normal(dtype, 70, 136)
    scale = (RNG.random(70) + 0.5).astype(np.float32)
    program = products.with_epilogue(70, 136, 72, dtype, residual=True, row_scale=True, block_m=64, block_n=64, block_k=32, stages=3, threads=128)
    return program, (a, b, residual, scale), (wide_a @ wide_b.T) * scale.astype(np.float64)[:, None] + added


def packed_weights(dtype, symbolic):
    (a, wide), (scale, wide_scale) = normal(dtype, 20, 256), rounded(RNG.random((2, 136)) + 0.5, dtype)
    weights = RNG.integers(0, 256, (136, 128), dtype=np.uint8)
    numbers = np.stack([weights & 15, weights >> 4], -1).reshape(136, 256) - 8.0
    return packed.packed(20, 136, 256, dtype), (a, weights, scale), wide @ (numbers * np.repeat(wide_scale.T, 128, 1)).T


def scaled_blocks(dtype, symbolic):
    """``dtype`` is the result's: the operands have 8 bits."""
    (a, wide_a), (b, wide_b) = normal(scaled.FP8, 70, 256), normal(scaled.FP8, 140, 256)
    scale_a, scale_b = (RNG.random((2, 70)) + 0.5).astype(np.float32), (RNG.random((2, 2)) + 0.5).astype(np.float32)
    left = wide_a.reshape(70, 2, 128) * scale_a.T.astype(np.float64)[:, :, None]
    right = wide_b.reshape(140, 2, 128) * np.repeat(scale_b.astype(np.float64), 128, 0)[:140, :, None]
    return scaled.scaled(70, 140, 256, dtype), (a, b, scale_a, scale_b), np.einsum("mgk,ngk->mn", left, right)


def attention_of_two_heads(dtype, symbolic):
    (q, wide_q), (k, wide_k), (v, wide_v) = (normal(dtype, 1, 90, 2, 32) for _ in range(3))
    scores = np.einsum("bihd,bjhd->bhij", wide_q, wide_k) / 32**0.5
    scores = np.where(np.tri(90, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    program = attention.attention(1, 2, None if symbolic else 90, 32, causal=True, dtype=dtype)
    return program, (q, k, v), np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), wide_v)


# Example → (its case, the dtypes it is for, whether it takes extents that are known at launch only).
CASES = {
    "add.add": (sum_of_two, FLOATS, True), "rows.rms_norm": (rms_norm, FLOATS, True), "rows.softmax": (softmax, FLOATS, True),
    "gemm.gemm": (product, FLOATS, True), "products.batched": (batched, FLOATS[:2], False),
    "products.with_epilogue": (with_epilogue, FLOATS[:2], False), "packed.packed": (packed_weights, FLOATS[:2], False),
    "scaled.scaled": (scaled_blocks, FLOATS, False), "attention.attention": (attention_of_two_heads, FLOATS[:2], True),
}


def runs():
    """(example, dtype, whether extents are known at launch only, target): all variants on one target, and on each other one they take turns."""
    for turn, (name, (_, dtypes, takes)) in enumerate(CASES.items()):
        variants = [(name, dtype, symbolic) for dtype in dtypes for symbolic in (False, True)[: 1 + takes]]
        yield from ((*variant, TARGETS[0]) for variant in variants)
        yield from ((*variants[(turn + place) % len(variants)], target) for place, target in enumerate(TARGETS[1:]))


def functions(module):
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    return [f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_every_example_is_tried_here():
    assert sorted(name for module in EXAMPLES for name in functions(module)) == sorted(CASES)


@pytest.mark.parametrize("module", [*EXAMPLES, *TOOLS])
def test_short(module):
    assert len((FOLDER / f"{module}.py").read_text().splitlines()) <= LONGEST, "an example teaches; tuned programs are in kiln.library.programs"


@pytest.mark.parametrize("module", EXAMPLES)
def test_can_be_read_alone(module):
    """It imports the language and the library's sizes, no other example and nothing else of the library."""
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    imports = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))}
    assert imports <= {"import kiln.language as T", "from kiln.library import sizes"}
    assert f"``{module}``" in kiln.examples.__doc__ and importlib.import_module(f"kiln.examples.{module}").__doc__


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


@needs_daemon
@pytest.mark.parametrize("name, dtype, symbolic, target", runs())
def test_agrees_with_float64(client, monkeypatch, name, dtype, symbolic, target):
    monkeypatch.setenv("KILN_TARGET", target.replace("emu:", "cuda:" if "sm_" in target else "hip:"))  # whose sizes are taken
    program, arguments, expected = CASES[name][0](dtype, symbolic)
    with kiln.emulation(check=True):
        actual = kiln.compile(program, target=target, client=client)(*arguments)
    wide = np.asarray(Bits(actual, dtype) if dtype == "bfloat16" else actual).astype(np.float64)
    assert np.linalg.norm(wide - expected) / np.linalg.norm(expected) <= max(BARS[dtype], FP8_SUMS if name == "scaled.scaled" else 0.0)


def test_sizes_that_do_not_exist_and_shapes_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match="no size block; sizes are block_m"):
        gemm.gemm(64, 64, 64, block=3)
    with pytest.raises(ValueError, match="no whole blocks of 128"):
        scaled.scaled(64, 64, 200)
    for given in ({"K": 200}, {"K": 256, "block_k": 96}):
        with pytest.raises(ValueError, match="must be whole groups"):
            packed.packed(64, 64, **given)
