# SPDX-License-Identifier: Apache-2.0
"""Triton's language extensions on blocks: loads, tiles, running sums, and the kernel that the extensions' own document prints."""

import importlib
import importlib.util
import os

import numpy as np
import pytest
import triton
import triton.experimental.tle as tle
import triton.language as tl
from numbers_of import argument, error, normal, refused, rounded, stored, strides, values

import kiln.triton

SEED = "KILN_TLE_SPARSE_ATTENTION"  # the file of the document's kernel, which is not part of this repository


def test_names():
    import triton.experimental.tle.language as language

    import triton.experimental.tle.language.gpu as gpu
    import triton.experimental.tle.language.raw as raw_of_language
    import triton.experimental.tle.raw as raw

    assert language is tle and tle is kiln.triton.tle and tle.language is language and tle.range is tl.range
    assert gpu is tle.gpu and raw is raw_of_language is tle.raw
    with pytest.raises(AttributeError, match="tle.language.gpu.nothing is not part"):
        gpu.nothing
    with pytest.raises(AttributeError, match="triton.experimental.tle.nothing is not part"):
        tle.nothing
    with pytest.raises(ModuleNotFoundError, match="triton.experimental.gluon is not part of Kiln"):
        importlib.import_module("triton.experimental.gluon")
    with pytest.raises(RuntimeError, match="tle.load is called outside of a kernel"):
        tle.load(None)


@triton.jit
def gathered_scores(q_ptr, rows_ptr, ids_ptr, out_ptr, count, known, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """q · rows[ids]ᵀ, row by row of the list; an id outside of the rows gives 0."""
    m, d, n = tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    q = tle.load(q_ptr + m[:, None] * D + d[None, :])
    for first in tle.range(0, count, BN, num_stages=2):
        ids = tle.load(ids_ptr + first + n, mask=first + n < count, other=-1, is_async=False)
        inside = (ids >= 0) & (ids < known)
        rows = tle.load(rows_ptr + d[:, None] + ids[None, :] * D, inside[None, :], other=0.0, is_async=True)
        scores = tl.dot(q, rows)
        tl.store(out_ptr + m[:, None] * count + first + n[None, :], scores, mask=(first + n < count)[None, :])


@pytest.mark.parametrize("count, known, dtype", [(64, 40, "float16"), (37, 90, "bfloat16"), (5, 3, "float16")])
def test_load_is_a_load(count, known, dtype):
    q, rows = rounded(normal(3, 32, 64), dtype), rounded(normal(4, known, 64), dtype)
    ids = np.random.default_rng(count).integers(-2, known + 2, count).astype(np.int32)
    out = np.full((32, count), np.nan, np.float32)
    gathered_scores[(1,)](argument(stored(q, dtype), dtype), argument(stored(rows, dtype), dtype), ids, out, count, known, D=64, BM=32, BN=16)
    taken = np.where(((ids >= 0) & (ids < known))[:, None], rows[np.clip(ids, 0, known - 1)], 0)
    assert error(out, q @ taken.T) < 1e-6


@triton.jit
def rows_of_a_list(rows_ptr, ids_ptr, out_ptr, count: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, IS_ASYNC: tl.constexpr):
    d, n = tl.arange(0, D), tl.arange(0, BN)
    total = tl.zeros([D, D], tl.float32)
    for first in tl.range(0, count, BN, num_stages=0):
        if first <= count - BN:
            ids = tl.load(ids_ptr + first + n)
            rows = tle.load(rows_ptr + ids[:, None] * D + d[None, :], is_async=IS_ASYNC)
            total = tl.dot(tl.trans(rows), rows, total)
    tl.store(out_ptr + d[:, None] * D + d[None, :], total)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_loop_with_an_asynchronous_load_has_two_stages(is_async):
    rows, ids = stored(rounded(normal(4, 50, 64), "float16"), "float16"), np.random.default_rng().integers(0, 50, 96).astype(np.int32)
    out = np.full((64, 64), np.nan, np.float32)
    args = argument(rows, "float16"), ids, out, 96, 64, 32, is_async
    rows_of_a_list[(1,)](*args)
    taken = rows[ids].astype(np.float64)
    assert error(out, taken.T @ taken) < 1e-6
    assert ("pipelined(3, stages=2)" in rows_of_a_list.program(*args).script()) == is_async


@triton.jit
def asked_at_run_time(x_ptr, n):
    tle.load(x_ptr, is_async=n)


def test_the_hint_is_a_constant():
    with pytest.raises(kiln.triton.CompilationError, match=r"tle_test.py:\d+: tle.load\(is_async=a value of type"):
        asked_at_run_time[(1,)](np.zeros(4, np.float32), 7)


# Tiles of blocks.


@triton.jit
def tiles_out(x_ptr, at_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr, HOW: tl.constexpr, I: tl.constexpr,
              J: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    if HOW == "number":
        tile = tle.extract_tile(x, I * (N // TN) + J, [TM, TN])
    elif HOW == "numbers":
        tile = tle.extract_tile(x, (I, J), (TM, TN))
    elif HOW == "loaded":
        tile = tle.extract_tile(x, tl.load(at_ptr) * (N // TN) + tl.load(at_ptr + 1), [TM, TN])
    else:
        tile = tle.extract_tile(x, [tl.load(at_ptr), J], [TM, TN])
    tm, tn = tl.arange(0, TM), tl.arange(0, TN)
    tl.store(out_ptr + tm[:, None] * TN + tn[None, :], tile)


@triton.jit
def tiles_in(x_ptr, tile_ptr, at_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr, HOW: tl.constexpr,
             I: tl.constexpr, J: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    tm, tn = tl.arange(0, TM), tl.arange(0, TN)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    tile = tl.load(tile_ptr + tm[:, None] * TN + tn[None, :])
    if HOW == "number":
        x = tle.insert_tile(x, tile, I * (N // TN) + J)
    elif HOW == "numbers":
        x = tle.insert_tile(x, tile, (I, J))
    elif HOW == "loaded":
        x = tle.insert_tile(x, tile, index=tl.load(at_ptr) * (N // TN) + tl.load(at_ptr + 1))
    else:
        x = tle.insert_tile(x, tile, (tl.load(at_ptr), J))
    tl.store(out_ptr + m[:, None] * N + n[None, :], x)


@pytest.mark.parametrize("how", ["number", "numbers", "loaded", "mixed"])
@pytest.mark.parametrize("m, n, tm, tn, i, j, dtype", [
    (64, 64, 16, 32, 3, 1, "float32"), (12, 40, 4, 8, 1, 3, "float16"), (32, 8, 32, 1, 0, 5, "int64"), (8, 16, 8, 16, 0, 0, "int8")])
def test_tiles_of_a_block(how, m, n, tm, tn, i, j, dtype):
    rng = np.random.default_rng(m + n)
    x, tile = (rng.integers(-100, 100, shape).astype(dtype) for shape in ((m, n), (tm, tn)))
    at, out = np.array([i, j], np.int32), np.zeros((tm, tn), dtype)
    tiles_out[(1,)](x, at, out, M=m, N=n, TM=tm, TN=tn, HOW=how, I=i, J=j)
    assert (out == x[i * tm : (i + 1) * tm, j * tn : (j + 1) * tn]).all()
    whole, expected = np.zeros_like(x), x.copy()
    expected[i * tm : (i + 1) * tm, j * tn : (j + 1) * tn] = tile
    tiles_in[(1,)](x, tile, at, whole, M=m, N=n, TM=tm, TN=tn, HOW=how, I=i, J=j)
    assert (whole == expected).all()


@triton.jit
def turned(x_ptr, out_ptr, N: tl.constexpr, T: tl.constexpr):
    """Swaps tiles in a loop, and bits of a mask in it."""
    n = tl.arange(0, N)
    x = tl.load(x_ptr + n)
    for k in range(N // T // 2):
        first, last = tle.extract_tile(x, k, [T]), tle.extract_tile(x, N // T - 1 - k, [T])
        x = tle.insert_tile(tle.insert_tile(x, last, k), first, N // T - 1 - k)
    small = tle.insert_tile(x < 0, tle.extract_tile(x > 50, 1, [T]), 0)
    tl.store(out_ptr + n, tl.where(small, 1000, x))


def test_tiles_in_a_loop_and_of_bits():
    x = np.random.default_rng(6).integers(-100, 100, 48).astype(np.int32)
    out = np.zeros_like(x)
    turned[(1,)](x, out, N=48, T=8)
    expected = x.reshape(6, 8)[::-1].ravel()
    small = expected < 0
    small[:8] = expected[8:16] > 50
    assert (out == np.where(small, 1000, expected)).all()


@triton.jit
def of_three_dimensions(x_ptr, out_ptr, i, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, C)[None, None, :]
    at = a * B * C + b * C + c
    x = tl.load(x_ptr + at)
    tile = tle.extract_tile(x, i, [A // 2, B, C // 4])
    tl.store(out_ptr + at, tle.insert_tile(x, tile * 2, (1, 0, i % 4)))


def test_tiles_of_three_dimensions():
    x = np.random.default_rng(1).standard_normal((4, 3, 8)).astype(np.float32)
    for i in range(8):
        out, expected = np.zeros_like(x), x.copy()
        of_three_dimensions[(1,)](x, out, i, A=4, B=3, C=8)
        expected[2:, :, i % 4 * 2 : i % 4 * 2 + 2] = 2 * x[i // 4 * 2 : i // 4 * 2 + 2, :, i % 4 * 2 : i % 4 * 2 + 2]
        assert (out == expected).all(), i


@triton.jit
def sums_before(x_ptr, out_ptr, total_ptr, N: tl.constexpr, REVERSE: tl.constexpr):
    n = tl.arange(0, N)
    before, total = tle.cumsum(tl.load(x_ptr + n), axis=0, reverse=REVERSE)
    tl.store(out_ptr + n, before)
    tl.store(total_ptr, total)


@pytest.mark.parametrize("n, dtype, reverse", [(128, "int32", False), (100, "float32", True), (33, "int8", True), (1, "float32", False),
                                               (512, "int64", True), (64, "bfloat16", False)])
def test_sums_of_what_comes_before(n, dtype, reverse):
    x = np.random.default_rng(n).integers(-100, 100, n) if "int" in dtype else rounded(normal(n, n), dtype)
    result = {"int8": np.int32, "bfloat16": np.float32}.get(dtype, dtype)
    out, total = np.zeros(n, result), np.zeros(1, result)
    sums_before[(1,)](argument(stored(x, dtype) if dtype == "bfloat16" else x.astype(dtype), dtype), out, total, N=n, REVERSE=reverse)
    expected = np.cumsum(x[::-1] if reverse else x) - (x[::-1] if reverse else x)
    assert error(out, expected[::-1] if reverse else expected) < 1e-5 and error(total, [x.sum()]) < 1e-5


# What is refused. Each kernel has a comment "here:" in the line that is refused, and what the text must hold.


@triton.jit
def no_grid(x, n):
    tle.extract_tile(tl.load(x + tl.arange(0, 8)), 0, [3])  # here: is no grid of tiles of shape [3]


@triton.jit
def no_such_tile(x, n):
    tle.extract_tile(tl.load(x + tl.arange(0, 8)), 4, [2])  # here: tle.extract_tile: tile 4 of 4


@triton.jit
def no_index(x, n):
    tle.extract_tile(tl.load(x + tl.arange(0, 8)), 1.0, [2])  # here: a tile's index is an integer


@triton.jit
def too_many_indices(x, n):
    tle.insert_tile(tl.zeros([4, 4], tl.float32), tl.zeros([2, 2], tl.float32), (n, n, n))  # here: with 3 indices of a block of 2 dimensions


@triton.jit
def two_types(x, n):
    tle.insert_tile(tl.zeros([4, 4], tl.float32), tl.zeros([2, 2], tl.int32), 0)  # here: cast it with .to(…)


@triton.jit
def tile_of_pointers(x, n):
    tle.extract_tile(x + tl.arange(0, 8), 0, [2])  # here: take the tile of the offsets, and add it to the pointer


@triton.jit
def two_dimensions(x, n):
    tle.cumsum(tl.zeros([4, 4], tl.float32), axis=1)  # here: it takes a block of one dimension; tl.cumsum has others


@triton.jit
def misspelt(x, n):
    tle.extract_tile(tl.zeros([4], tl.float32), 0, tile=[2])  # here: tle.extract_tile: got an unexpected keyword argument 'tile'


@tle.raw.dialect(name="cuda", file="nowhere.cu", compiler="clang")
def of_cuda(x: tle.raw.InOut["memref<?xf32, 3>"]):
    ...


@triton.jit
def foreign(x, n):
    tle.raw.call(of_cuda, [tl.load(x + tl.arange(0, 8))], output_indices=[0])  # here: the text of of_cuda cannot be read


@triton.jit
def foreign_without_a_dialect(x, n):
    tle.call(n)  # here: tle.call: it calls a function of tle.raw.dialect, not


@pytest.mark.parametrize("kernel", [foreign, foreign_without_a_dialect, no_grid, no_such_tile, no_index, too_many_indices, two_types,
                                    tile_of_pointers, two_dimensions, misspelt])
def test_refusals(kernel):
    refused(kernel, np.zeros(8, np.float32), 3)


# The kernel of the document.


def seed_kernel():
    path = os.environ.get(SEED)
    if not path:
        pytest.skip(f"{SEED} names no file: the sparse attention of the extensions' document is not tested")
    spec = importlib.util.spec_from_file_location("sparse_attention_of_the_document", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.triton_sparse_mla_fwd


def sparse_attention(q, kv, ids, scale, d, step, causal):
    """In float64, with the roundings to bfloat16 that the kernel names: of the running maximum and of weights. (output, log2 of the sums)"""
    batches, length, heads, _ = q.shape
    out, sums = np.zeros((batches, length, heads, d)), np.zeros((batches, length, heads))
    for batch in range(batches):
        for row in range(length):
            last = row if causal else length - 1
            high, total, acc = np.full(heads, -np.inf), np.ones(heads), np.zeros((heads, d))
            for first in range(0, ids.shape[2], step):
                if first > last:
                    continue
                one = ids[batch, row, first : first + step]
                known = (one >= 0) & (one <= last)
                keys = np.where(known[:, None], kv[batch, np.clip(one, 0, None)], 0)
                scores = np.where(known, q[batch, row] @ keys.T * scale * 1.44269504, -np.inf)
                top = np.maximum(high, scores.max(axis=1))
                weights = np.exp2(scores - top[:, None])
                total = total * np.exp2(high - top) + weights.sum(axis=1)
                acc = acc * np.exp2(high - top)[:, None] + rounded(weights, "bfloat16") @ keys[:, :d]
                high = rounded(top, "bfloat16")
            out[batch, row], sums[batch, row] = acc / total[:, None], high + np.log2(total)
    return out, sums


@pytest.mark.parametrize("batches, length, count, heads, block, causal", [(1, 32, 32, 16, 16, True), (2, 19, 32, 32, 16, False)])
def test_the_sparse_attention_of_the_document(batches, length, count, heads, block, causal):
    kernel = seed_kernel()
    d, tail, step = 64, 16, 16
    q, kv = (rounded(normal(7 + i, batches, length, n, d + tail), "bfloat16") for i, n in enumerate((heads, 1)))
    rng, ids = np.random.default_rng(length), np.full((batches, length, 1, count), -1, np.int32)
    for batch in range(batches):
        for row in range(length):
            chosen = rng.permutation(row + 1 if causal else length)[:count]
            ids[batch, row, 0, : len(chosen)] = chosen
    out, sums = np.zeros((batches, length, heads, d), np.uint16), np.zeros((batches, length, heads), np.uint16)
    q_bits, kv_bits = stored(q, "bfloat16"), stored(kv, "bfloat16")
    kv_strides = strides(kv_bits.transpose(0, 2, 1, 3))
    kernel[(batches, length, triton.cdiv(heads, block))](
        argument(q_bits, "bfloat16"), argument(kv_bits, "bfloat16"), ids, 0.1, argument(out, "bfloat16"), argument(sums, "bfloat16"),
        *strides(q_bits.transpose(0, 2, 1, 3)), *kv_strides, *strides(ids.transpose(0, 2, 1, 3)), *strides(out.transpose(0, 2, 1, 3)),
        *strides(sums.transpose(0, 2, 1)), batches, length, length, count, d, tail, d, tail, heads, heads, 1, step, block, causal)
    expected, expected_sums = sparse_attention(q, kv[:, :, 0], ids[:, :, 0], 0.1, d, step, causal)
    assert error(values(out, "bfloat16"), expected) < 1.2e-2
    assert error(values(sums, "bfloat16"), expected_sums) < 8e-3
