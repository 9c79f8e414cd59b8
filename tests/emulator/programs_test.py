# SPDX-License-Identifier: Apache-2.0
"""The programs that tests/gpu/bench times, small: on the emulator against float64 references, with and without wgmma."""

import math
import os
import secrets

import numpy as np
import pytest
from data import STORED, decode, random_array, relative_error
import kiln.language as T
from kiln.examples import products
from kiln.library.programs import cross_entropy as losses
from kiln.library.programs import elementwise, norm_gradients, quantize, reductions, scaled
from kiln.library.programs import layer_norm as layer_norms
from kiln.library.programs import packed as packed_programs
from kiln.library.programs import rms_norm as rms_norms
from kiln.library.programs import softmax as softmaxes
from kiln.library.programs.gemm import gemm
from kiln.library.programs.grouped import grouped as grouped_program

SEED = int(os.environ.get("KILN_SEED", secrets.randbelow(1 << 31)))  # a failure prints it
HALF, E4M3 = "bfloat16", "float8_e4m3fn"
BARS = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-4, E4M3: 0.07}


def rounded(values, dtype):
    """An array of the dtype with about these values, and what it holds."""
    if dtype == HALF:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        array = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    else:
        array = values.astype(STORED[dtype])
    return array, decode(array, dtype)


def batched(rng):
    a, b = random_array(rng, (3, 200, 72), HALF), random_array(rng, (3, 136, 72), HALF)
    program = products.batched(3, 200, 136, 72, block_m=128, block_n=64, stages=3)
    return program, [(a, HALF), (b, HALF)], [(HALF, np.einsum("bmk,bnk->bmn", decode(a, HALF), decode(b, HALF)))]


def with_epilogue(rng, shape=(200, 136, 136)):
    m, n, k = shape
    a, b, residual = (random_array(rng, shape, HALF) for shape in ((m, k), (n, k), (m, n)))
    scale = (rng.random(m) + 0.5).astype(np.float32)
    reference = (decode(a, HALF) @ decode(b, HALF).T) * scale[:, None] + decode(residual, HALF)
    program = products.with_epilogue(m, n, k, residual=True, row_scale=True, block_n=64, stages=3)
    return program, [(a, HALF), (b, HALF), (residual, HALF), (scale, "float32")], [(HALF, reference)]


def activation_by_pieces(rng):
    m, n, k = 200, 264, 136
    a, b = random_array(rng, (m, k), HALF), random_array(rng, (n, k), HALF)
    sums = decode(a, HALF) @ decode(b, HALF).T
    program = gemm(m, n, k, HALF, activation="gelu", trans_b=True, block_m=168, block_n=256, block_k=64, stages=3, threads=256)
    return program, [(a, HALF), (b, HALF)], [(HALF, sums * 0.5 * (1 + np.vectorize(math.erf)(sums / 2**0.5)))]


def quantized_product(rng):
    m, n, k = 72, 144, 200
    a, b, residual = (random_array(rng, shape, HALF) for shape in ((m, k), (n, k), (m, n)))
    scale = ((rng.random(m) + 0.5) / k**0.5).astype(np.float32)
    program = products.with_epilogue(m, n, k, row_scale=True, out_dtype=E4M3, block_m=64, block_n=128, threads=128)
    return program, [(a, HALF), (b, HALF), (residual, HALF), (scale, "float32")], [(E4M3, (decode(a, HALF) @ decode(b, HALF).T) * scale[:, None])]


def grouped(rng):
    experts, block, n, k = 4, 64, 96, 80
    expert = np.sort(rng.integers(0, experts, 5)).astype(np.int32)
    a, b = random_array(rng, (5 * block, k), HALF), random_array(rng, (experts, n, k), HALF)
    program = grouped_program(experts, n, k, block_m=block, block_n=64, stages=3, threads=128)
    wide, weights = decode(a, HALF).reshape(5, block, k), decode(b, HALF)[expert]
    return program, [(a, HALF), (b, HALF), (expert, "int32")], [(HALF, np.einsum("tmk,tnk->tmn", wide, weights).reshape(5 * block, n))]


def block_scaled(rng, m=130, **tile):
    n, k = 256, 384
    a, b = random_array(rng, (m, k), E4M3), random_array(rng, (n, k), E4M3)
    scale_a, scale_b = (rng.random((k // 128, m)) + 0.5).astype(np.float32), (rng.random((n // 128, k // 128)) + 0.5).astype(np.float32)
    left = decode(a, E4M3).reshape(m, -1, 128) * scale_a.T[:, :, None]
    right = decode(b, E4M3).reshape(n, -1, 128) * np.repeat(scale_b, 128, 0)[:, :, None]
    reference = left.reshape(m, k) @ right.reshape(n, k).T
    return scaled.block_scaled(m, n, k, stages=3, **tile), [(a, E4M3), (b, E4M3), (scale_a, "float32"), (scale_b, "float32")], [(HALF, reference)]


def parts_of_tiles(rng):
    """Products that read rows and columns of shared tiles from the middle on, and results that leave side by side."""
    m, n, k = 200, 128, 256
    a, b = random_array(rng, (m, k), HALF), random_array(rng, (n, k), HALF)
    halves = slice(0, 64), slice(64, 128)

    @T.prim_func
    def parts(A: T.Tensor((m, k), HALF), B: T.Tensor((n, k), HALF), C: T.Tensor((m, n), HALF)):
        with T.Kernel(T.ceildiv(m, 128), threads=256) as bx:
            a_shared, b_shared = T.alloc_shared((128, 128), HALF), T.alloc_shared((n, 128), HALF)
            accum = [T.alloc_fragment((128, 64), "float32") for _ in halves]
            for side in (0, 1):
                T.clear(accum[side])
            for ko in T.Pipelined(k // 128, num_stages=2):
                T.copy(A[bx * 128, ko * 128], a_shared)
                T.copy(B[0, ko * 128], b_shared)
                for depth in halves:
                    for side in (0, 1):
                        T.gemm(a_shared[:, depth], b_shared[halves[side], depth], accum[side], transpose_B=True)
            for side in (0, 1):
                T.copy(accum[side], C[bx * 128, side * 64])

    return parts.with_outputs(-1), [(a, HALF), (b, HALF)], [(HALF, decode(a, HALF) @ decode(b, HALF).T)]


def packed_weights(rng):
    m, n, k = 20, 144, 256
    a, packed = random_array(rng, (m, k), HALF), rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scale, wide_scale = rounded(rng.random((n, k // 128)) + 0.5, HALF)
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(n, k).astype(np.float64) - 8
    weights = (nibbles.reshape(n, -1, 128) * wide_scale[:, :, None]).reshape(n, k)
    inputs = [(a, HALF), (packed, "uint8"), (np.ascontiguousarray(scale.T), HALF)]
    return packed_programs.packed_weights(m, n, k, block_n=64), inputs, [(HALF, decode(a, HALF) @ weights.T)]


def packed_weights_by_parts(rng, k=1024, block_m=16, block_k=256, stages=3):
    """Groups of warps that take parts of k each."""
    m, n = 11, 136
    a, packed = random_array(rng, (m, k), HALF), rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scale, wide_scale = rounded(rng.random((n, k // 128)) + 0.5, HALF)
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(n, k).astype(np.float64) - 8
    weights = (nibbles.reshape(n, -1, 128) * wide_scale[:, :, None]).reshape(n, k)
    program = packed_programs.packed_weights(m, n, k, block_m=block_m, block_n=64, block_k=block_k, stages=stages, threads=256)
    return program, [(a, HALF), (packed, "uint8"), (np.ascontiguousarray(scale.T), HALF)], [(HALF, decode(a, HALF) @ weights.T)]


def interleaved_weights(rng):
    program, (a, (packed, _), scale), references = packed_weights_by_parts(rng)
    m, n, k = 11, 136, 1024
    program = packed_programs.packed_weights(m, n, k, interleaved=True, block_m=16, block_n=64, block_k=256, stages=3, threads=256)
    return program, [a, (packed_programs.interleave(packed.astype(np.int64)).astype(np.uint32), "uint32"), scale], references


def few_columns(rng):
    """Rows of the first operand that are computed into registers."""
    m, n, k = 130, 7, 192
    a, b = random_array(rng, (m, k), HALF), random_array(rng, (n, k), HALF)

    @T.prim_func
    def doubled(A: T.Tensor((m, k), HALF), B: T.Tensor((n, k), HALF), C: T.Tensor((m, n), HALF)):
        with T.Kernel(T.ceildiv(m, 128), threads=128) as bx:
            a_shared, b_shared = T.alloc_shared((128, 64), HALF), T.alloc_shared((8, 64), HALF)
            rows, accum = T.alloc_fragment((128, 64), HALF), T.alloc_fragment((128, 8), "float32")
            T.clear(accum)
            for ko in T.Pipelined(k // 64, num_stages=2):
                T.copy(A[bx * 128, ko * 64], a_shared)
                T.copy(B[0, ko * 64], b_shared)
                for i, j in T.Parallel(128, 64):
                    rows[i, j] = a_shared[i, j] * T.cast(2, HALF)
                T.gemm(rows, b_shared, accum, transpose_B=True)
            T.copy(accum, C[bx * 128, 0])

    return doubled.with_outputs(-1), [(a, HALF), (b, HALF)], [(HALF, 2 * decode(a, HALF) @ decode(b, HALF).T)]


def scaled_rows(rng, again=False):
    """Rows times a scale of each, in float32. ``again``: then their product's sums, in place of the rows."""
    m, n, k, dtype = 128, 8, 128, "bfloat16"
    a, b, (scale, wide_scale) = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype), rounded(rng.random(m) + 0.5, dtype)

    @T.prim_func
    def scaled(A: T.Tensor((m, k), dtype), B: T.Tensor((n, k), dtype), S: T.Tensor((m,), dtype), C: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(m, 64), threads=128) as bx:
            a_shared, b_shared, s_shared = T.alloc_shared((64, 64), dtype), T.alloc_shared((8, 64), dtype), T.alloc_shared((64,), dtype)
            rows, sums = T.alloc_fragment((64, 64), dtype), T.alloc_fragment((64, 8), dtype="float32")
            total, next_rows = T.alloc_fragment((64, 8), "float32"), T.alloc_fragment((64, 64), dtype)
            T.copy(S[bx * 64], s_shared)
            T.clear(sums)
            T.clear(total)
            for ko in T.Pipelined(k // 64, num_stages=2):
                T.copy(A[bx * 64, ko * 64], a_shared)
                T.copy(B[0, ko * 64], b_shared)
                for i, j in T.Parallel(64, 64):
                    rows[i, j] = a_shared[i, j] * s_shared[i]
                T.gemm(rows, b_shared, sums, transpose_B=True)
                if again:
                    for i, j in T.Parallel(64, 64):
                        next_rows[i, j] = T.cast(sums[i, j % 8], dtype) * s_shared[i]
                    T.gemm(next_rows, b_shared, total, transpose_B=True)
            T.copy(total if again else sums, C[bx * 64, 0])

    left, right = decode(a, dtype) * wide_scale[:, None], decode(b, dtype)
    halves = [left[:, :64] @ right[:, :64].T, left @ right.T]  # the sums after each step
    result = halves[1]
    if again:
        parts = [np.tile(half, 8) * wide_scale[:, None] for half in halves]
        result = parts[0] @ right[:, :64].T + parts[1] @ right[:, 64:].T
    return scaled.with_outputs(-1), [(a, dtype), (b, dtype), (scale, dtype)], [("float32", result)]


def weights_of_two_blocks(rng):
    """Tiles too few for the multiprocessors: pairs of blocks take half of k each."""
    m, n, k = 24, 136, 4096
    a, packed = random_array(rng, (m, k), "bfloat16"), rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scale, wide_scale = rounded(rng.random((n, k // 128)) + 0.5, "bfloat16")
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(n, k).astype(np.float64) - 8
    weights = (nibbles.reshape(n, -1, 128) * wide_scale[:, :, None]).reshape(n, k)
    program = packed_programs.packed_weights(m, n, k, interleaved=True, block_m=24, block_n=128, block_k=128, stages=3, threads=256)
    w = (packed_programs.interleave(packed.astype(np.int64)).astype(np.uint32), "uint32")
    return program, [(a, "bfloat16"), w, (np.ascontiguousarray(scale.T), "bfloat16")], [("bfloat16", decode(a, "bfloat16") @ weights.T)]


def epilogue_of_two_blocks(rng):
    """Each of a pair adds the bias to its half of the tile."""
    m, n, k = 100, 200, 2048
    a, b = random_array(rng, (m, k), "float16"), random_array(rng, (n, k), "float16")
    bias = random_array(rng, (n,), "float16")
    program = gemm(m, n, k, in_dtype="float16", out_dtype="float16", bias=True, activation="relu", trans_b=True, block_m=128, block_n=128, block_k=64,
                   stages=3, threads=256)
    right = decode(a, "float16") @ decode(b, "float16").T + decode(bias, "float16")
    return program, [(a, "float16"), (b, "float16"), (bias, "float16")], [("float16", np.maximum(right, 0))]


def packed_mxfp4(rng, interleaved=False):
    m, n, k = 20, 144, 256
    a, packed = random_array(rng, (m, k), "bfloat16"), rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    exponent = rng.integers(124, 130, (n, k // 32)).astype(np.uint8)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    numbers = values[np.stack([packed & 15, packed >> 4], -1).reshape(n, k)]
    weights = (numbers.reshape(n, -1, 32) * np.exp2(exponent.astype(np.float64) - 127)[:, :, None]).reshape(n, k)
    program = packed_programs.packed_mxfp4(m, n, k, interleaved=interleaved, block_m=32, block_n=64)
    w = (packed_programs.interleave(packed.astype(np.int64), e2m1=True).astype(np.uint32), "uint32") if interleaved else (packed, "uint8")
    inputs = [(a, "bfloat16"), w, (np.ascontiguousarray(exponent.view(np.uint32).T), "uint32")]
    return program, inputs, [("bfloat16", decode(a, "bfloat16") @ weights.T)]


def layer_norm(rng):
    m, n = 5, 1000
    x, w, b = random_array(rng, (m, n), HALF), random_array(rng, (n,), HALF), random_array(rng, (n,), HALF)
    wide = decode(x, HALF)
    mean, rstd = wide.mean(1), 1 / np.sqrt(wide.var(1) + 1e-5)
    y = (wide - mean[:, None]) * rstd[:, None] * decode(w, HALF) + decode(b, HALF)
    return layer_norms.layer_norm(m, n), [(x, HALF), (w, HALF), (b, HALF)], [(HALF, y), ("float32", mean), ("float32", rstd)]


def layer_norm_backward(rng, build=norm_gradients.layer_norm_backward, n=1000):
    m = 5
    dy, x, w = random_array(rng, (m, n), HALF), random_array(rng, (m, n), HALF), random_array(rng, (n,), HALF)
    wide = decode(x, HALF)
    mean, rstd = wide.mean(1).astype(np.float32), (1 / np.sqrt(wide.var(1) + 1e-5)).astype(np.float32)
    g, normal = decode(dy, HALF) * decode(w, HALF), (wide - mean[:, None]) * rstd[:, None]
    dx = rstd[:, None] * (g - g.mean(1, keepdims=True) - normal * (g * normal).mean(1, keepdims=True))
    inputs = [(dy, HALF), (x, HALF), (w, HALF), (mean, "float32"), (rstd, "float32")]
    return build(m, n), inputs, [(HALF, dx)]


def cross_entropy(rng, n=3001, columns=1024, threads=128):
    m = 5
    x, label = random_array(rng, (m, n), HALF), rng.integers(0, n, m).astype(np.int32)
    wide = decode(x, HALF)
    loss = np.log(np.exp(wide).sum(1)) - wide[np.arange(m), label]
    return losses.cross_entropy(m, n, columns=columns, threads=threads), [(x, HALF), (label, "int32")], [("float32", loss)]


def rope(rng):
    tokens, heads, dim = 6, 3, 64
    x = random_array(rng, (tokens, heads, dim), HALF)
    angle = rng.random((tokens, dim // 2)) * 6.28
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    low, high = np.split(decode(x, HALF), 2, 2)
    y = np.concatenate([low * cos[:, None] - high * sin[:, None], high * cos[:, None] + low * sin[:, None]], 2)
    return elementwise.rope(tokens, heads, dim), [(x, HALF), (cos, "float32"), (sin, "float32")], [(HALF, y)]


def swiglu(rng):
    m, n = 7, 520
    x = random_array(rng, (m, 2 * n), HALF)
    gate, value = np.split(decode(x, HALF), 2, 1)
    return elementwise.swiglu(m, n, columns=256), [(x, HALF)], [(HALF, gate / (1 + np.exp(-gate)) * value)]


def of_rows(build, function, outputs):
    def case(rng):
        m, n = 70, 777
        x = random_array(rng, (m, n), HALF)
        return build(m, n), [(x, HALF)], list(zip(outputs, function(decode(x, HALF))))

    return case


def quantized(x):
    scale = np.maximum(np.abs(x).max(1) / 448.0, 1e-12)
    return [x / scale[:, None], scale]


# Small rows, most of each in shared memory.
LONG = {"columns": 256, "threads": 64}
SEVERAL = {"blocks": 2, "stages": 2, "threads": 64}  # rows for each; the last has fewer


def long_rows_of(build, function, outputs, weights=0, n=1024, **sizes):
    def case(rng):
        m = 3
        arrays = [random_array(rng, (m, n), HALF)] + [random_array(rng, (n,), HALF) for _ in range(weights)]
        return build(m, n, **(sizes or LONG)), [(a, HALF) for a in arrays], list(zip(outputs, function(*[decode(a, HALF) for a in arrays])))

    return case


def split_rows_of(build, function, outputs, weights=0, n=65536, **sizes):
    """Rows that a cluster holds, each block a part."""

    def case(rng):
        m = 3
        arrays = [random_array(rng, (m, n), HALF)] + [random_array(rng, (n,), HALF) for _ in range(weights)]
        expected = function(*[decode(a, HALF) for a in arrays])
        return build(m, n, dtype=HALF, threads=256, **sizes), [(a, HALF) for a in arrays], list(zip(outputs, expected))

    return case


def normalized(x, w, b):
    mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    return [(x - mean[:, None]) * rstd[:, None] * w + b, mean, rstd]


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return [e / e.sum(1, keepdims=True)]


def transposed(order):
    """Tiles beyond the edges, whole vectors inside of them."""

    def case(rng):
        m, n, block = 136, 200, 64

        @T.prim_func
        def transpose(x: T.Tensor((m, n), HALF), y: T.Tensor((n, m), HALF)):
            with T.Kernel(T.ceildiv(m, block), T.ceildiv(n, block), threads=64) as (bx, by):
                if order == "ij":
                    for i, j in T.Parallel(block, block):
                        y[by * block + i, bx * block + j] = x[bx * block + j, by * block + i]
                else:
                    for j, i in T.Parallel(block, block):
                        y[by * block + i, bx * block + j] = x[bx * block + j, by * block + i]

        x = random_array(rng, (m, n), HALF)
        return transpose.with_outputs(-1), [(x, HALF)], [(HALF, decode(x, HALF).T)]

    return case


def turned(masked):
    """A product's sums go turned into shared memory, each with a factor of its row there: matrices take neighbours of two rows together."""

    def case(rng):
        n, k = 64, 16

        @T.prim_func
        def turn(a: T.Tensor((n, k), HALF), b: T.Tensor((k, k), HALF), factors: T.Tensor((k,), "float32"), y: T.Tensor((k, n), HALF)):
            with T.Kernel(1, threads=128):
                a_tile, b_tile, out = T.alloc_shared((n, k), HALF), T.alloc_shared((k, k), HALF), T.alloc_shared((k, n), HALF)
                sums = T.alloc_fragment((n, k), "float32")
                T.copy(a, a_tile)
                T.copy(b, b_tile)
                T.gemm(a_tile, b_tile, sums, clear_accum=True)
                for i, j in T.Parallel(k, n):
                    out[i, j] = sums[j, i] * (T.if_then_else(i < 5, factors[i], 3.0) if masked else factors[i])
                T.copy(out, y)

        a, b, factors = random_array(rng, (n, k), HALF), random_array(rng, (k, k), HALF), rng.standard_normal(k).astype(np.float32)
        rows = np.where(np.arange(k) < 5, factors, 3) if masked else factors
        expected = (decode(a, HALF) @ decode(b, HALF)).T * rows[:, None]
        return turn.with_outputs(-1), [(a, HALF), (b, HALF), (factors, "float32")], [(HALF, expected)]

    return case


CASES = {
    "turned": turned(False), "turned_under_a_mask": turned(True),
    "transpose_ij": transposed("ij"), "transpose_ji": transposed("ji"),
    "batched": batched, "with_epilogue": with_epilogue, "residual_of_many_tiles": lambda rng: with_epilogue(rng, (1500, 776, 72)),
    "activation_by_pieces": activation_by_pieces, "quantized_product": quantized_product, "grouped": grouped, "block_scaled": block_scaled,
    "block_scaled_in_flight": lambda rng: block_scaled(rng, block_m=64, block_n=128, threads=128),
    "parts_of_tiles": parts_of_tiles, "block_scaled_by_groups": lambda rng: block_scaled(rng, block_m=64, block_n=64, block_k=256, threads=128),
    "block_scaled_with_staged_scales": lambda rng: block_scaled(rng, m=132, block_m=64, block_n=64, block_k=256, staged_scales=True),
    "packed_weights": packed_weights, "packed_weights_by_parts": packed_weights_by_parts,
    "packed_weights_by_pieces": lambda rng: packed_weights_by_parts(rng, k=1536, block_m=24, block_k=512, stages=2),
    "few_rows": lambda rng: packed_weights_by_parts(rng, block_m=8),
    "few_rows_by_pieces": lambda rng: packed_weights_by_parts(rng, k=1536, block_m=8, block_k=512, stages=2),
    "few_columns": few_columns, "interleaved_weights": interleaved_weights, "weights_of_two_blocks": weights_of_two_blocks,
    "epilogue_of_two_blocks": epilogue_of_two_blocks,
    "packed_mxfp4": packed_mxfp4, "interleaved_mxfp4": lambda rng: packed_mxfp4(rng, interleaved=True),
    "layer_norm": layer_norm,
    "layer_norm_backward": layer_norm_backward, "cross_entropy": cross_entropy, "rope": rope, "swiglu": swiglu,
    "cross_entropy_by_half_a_warp": lambda rng: cross_entropy(rng, 333, 128, 32),
    "cross_entropy_by_eight_warps": lambda rng: cross_entropy(rng, 2048, 2048, 256),
    "cross_entropy_by_a_warp_and_a_half": lambda rng: cross_entropy(rng, 1000, 384, 256),
    "transpose": of_rows(elementwise.transpose, lambda x: [x.T], [HALF]),
    "column_sum": of_rows(reductions.column_sum, lambda x: [x.sum(0)], ["float32"]),
    "column_sum_of_narrow_strips": of_rows(lambda m, n: reductions.column_sum(m, n, steps=2, rows=16, columns=64, threads=128), lambda x: [x.sum(0)],
                                           ["float32"]),
    "row_sum": of_rows(lambda m, n: reductions.row_sum(m, n, columns=512), lambda x: [x.sum(1)], ["float32"]),
    "quantize_rows": of_rows(quantize.quantize_rows, quantized, [E4M3, "float32"]),
    "rms_norm_long": long_rows_of(rms_norms.rms_norm_long, lambda x, w: [x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * w], [HALF], 1),
    "layer_norm_long": long_rows_of(layer_norms.layer_norm_long, normalized, [HALF, "float32", "float32"], 2, **SEVERAL),
    "layer_norm_backward_long": lambda rng: layer_norm_backward(rng, lambda m, n: norm_gradients.layer_norm_backward_long(m, n, **SEVERAL)),
    "softmax_long": long_rows_of(softmaxes.softmax_long, softmax, [HALF]),
    "quantize_rows_long": long_rows_of(quantize.quantize_rows_long, quantized, [E4M3, "float32"]),
    "rms_norm_split": split_rows_of(rms_norms.rms_norm, lambda x, w: [x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * w], [HALF], 1),
    "layer_norm_split": split_rows_of(layer_norms.layer_norm, normalized, [HALF, "float32", "float32"], 2),
    "layer_norm_long_split": long_rows_of(layer_norms.layer_norm_long, normalized, [HALF, "float32", "float32"], 2, n=65536, blocks=2, stages=2,
                                          threads=256),
    "layer_norm_backward_long_split": lambda rng: layer_norm_backward(
        rng, lambda m, n: norm_gradients.layer_norm_backward_long(m, n, blocks=2, stages=2, threads=256), 65536),
    "softmax_split": split_rows_of(softmaxes.softmax, softmax, [HALF]),
    "softmax_of_two_rows_split": split_rows_of(softmaxes.softmax, softmax, [HALF], rows=2),
    "quantize_rows_split": split_rows_of(quantize.quantize_rows, quantized, [E4M3, "float32"]),
}
SPLIT_ROWS = [name for name in CASES if name.endswith("_split")]
LONG_ROWS = [name for name in CASES if name.endswith("_long")]
WARPS_MEET = [name for name in CASES if name.startswith(("cross_entropy", "column_sum"))]
PRODUCTS = ["batched", "activation_by_pieces", "parts_of_tiles", "with_epilogue", "residual_of_many_tiles", "quantized_product", "grouped",
            "block_scaled", "block_scaled_in_flight", "block_scaled_by_groups", "block_scaled_with_staged_scales", "packed_weights",
            "packed_weights_by_parts", "packed_weights_by_pieces", "few_rows_by_pieces", "few_rows", "few_columns", "interleaved_weights",
            "weights_of_two_blocks", "epilogue_of_two_blocks", "packed_mxfp4", "interleaved_mxfp4"]
FEW_COLUMNS = ["few_rows_by_pieces", "few_rows", "few_columns"]  # whose groups of warps compute by mma.sync


def run(emulator, name, target="emu:sm_90a", **keys):
    program, inputs, expected = CASES[name](np.random.default_rng(SEED))
    outputs = [(np.full(reference.shape, -1, np.int64).astype(STORED[dtype]), dtype) for dtype, reference in expected]
    for array, _ in outputs:
        array.view(np.uint8)[...] = 0xFF
    after, answer = emulator.call(emulator.module(program.serialized), target, [*inputs, *outputs], seed=SEED % 1000, **keys)
    where = f"{name}, KILN_SEED={SEED}"
    assert "error" not in answer, f"{where}: {answer['error']}"
    assert answer["finished"] and not answer["findings"], f"{where}: {[f['message'] for f in answer['findings']]}"
    for (dtype, reference), array in zip(expected, after[len(inputs):]):
        error = relative_error(decode(array, dtype), reference)
        assert error <= BARS[dtype], f"{where}: error {error:.2e} in the {dtype} output"
    return answer


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_its_reference(emulator, name):
    run(emulator, name)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_by_warps(emulator, name):
    answer = run(emulator, name, wgmma=0)
    assert answer["wgmma"] == 0, "another instruction was chosen"


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_by_warp_groups(emulator, name):
    answer = run(emulator, name, check=1, seeds=2)
    assert (answer["wgmma"] > 0) == (name not in FEW_COLUMNS), "another instruction was chosen"
    assert answer["wgmma"] > 0 or answer["tensor_loads"] > 0, "no tensor copies"


def errors_of_scaled_rows(emulator, again, fast):
    program, inputs, [(dtype, reference)] = scaled_rows(np.random.default_rng(SEED), again)
    output = np.full(reference.shape, np.nan, np.float32)
    after, answer = emulator.call(emulator.module(program.serialized), "emu:sm_90a", [*inputs, (output, dtype)], seed=SEED % 1000, check=1, seeds=2,
                                  fast=fast)
    assert "error" not in answer and answer["finished"] and not answer["findings"], answer
    assert answer["wgmma"] == 0 and answer["tensor_loads"] > 0, "another instruction was chosen"
    return relative_error(decode(after[-1], dtype), reference)


def test_factors_of_sums_round_once(emulator):
    """Elements are exact without their factor, and a rounding of bfloat16 off with it."""
    assert 1e-5 < errors_of_scaled_rows(emulator, again=False, fast=0) < 1e-2
    assert errors_of_scaled_rows(emulator, again=False, fast=1) < 1e-5


def test_elements_that_read_a_sum_come_after_its_factor(emulator):
    assert errors_of_scaled_rows(emulator, again=True, fast=1) < 2e-2


@pytest.mark.parametrize("name, decision", [
    ("epilogue_of_two_blocks", "of two blocks that take half of k each and finish half of the tile each, through each other's shared memory"),
    ("weights_of_two_blocks", "of two blocks that take half of k each, through shared memory of the first"),
])
def test_two_blocks_take_half_of_k_each(emulator, name, decision):
    answer = run(emulator, name, check=1, seeds=2, stream_k=1)  # never
    assert decision in answer["decisions"]


@pytest.mark.parametrize("name", ["packed_weights_by_pieces", "few_rows_by_pieces", "few_rows"])
def test_factors_go_to_sums(emulator, name):
    """fast_math: scales that a group of warps' part of k shares."""
    answer = run(emulator, name, check=1, seeds=2, fast=1)
    assert (answer["wgmma"] > 0) == (name not in FEW_COLUMNS), "another instruction was chosen"


@pytest.mark.parametrize("name", LONG_ROWS + SPLIT_ROWS + WARPS_MEET)
def test_rows_do_not_race(emulator, name):
    run(emulator, name, check=1, seeds=2)


@pytest.mark.parametrize("name", ["transpose_ij", "transpose_ji", "cross_entropy", "row_sum", "column_sum"])
def test_on_wide_warps(emulator, name):
    run(emulator, name, target="emu:gfx942", check=1)


@pytest.mark.parametrize("build", [
    lambda: packed_programs.packed_weights(8, 64, 200), lambda: packed_programs.packed_weights(8, 64, 384, group=64, block_k=96),
    lambda: packed_programs.packed_mxfp4(8, 64, 160), lambda: packed_programs.packed_mxfp4(8, 64, 384, block_k=96),
])
def test_scales_that_do_not_fit_are_refused(build):
    with pytest.raises(ValueError, match="groups of"):
        build()


@pytest.mark.parametrize("columns, threads", [(4, 32), (100, 256), (3000, 256), (1280, 128)])
def test_columns_that_lanes_do_not_share_are_refused(columns, threads):
    with pytest.raises(ValueError, match="choose a multiple"):
        losses.cross_entropy(8, 4096, columns=columns, threads=threads)
