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
from numbers_of import argument, error, normal, rounded, stored, strides, values

import kiln.triton

SEED = "KILN_TLE_SPARSE_ATTENTION"  # the file of the document's kernel, which is not part of this repository


def test_names():
    import triton.experimental.tle.language as language

    assert language is tle and tle is kiln.triton.tle and tle.language is language and tle.range is tl.range
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
def asked_at_run_time(x_ptr, n):
    tle.load(x_ptr, is_async=n)


def test_the_hint_is_a_constant():
    with pytest.raises(kiln.triton.CompilationError, match=r"tle_test.py:\d+: tle.load\(is_async=a value of type"):
        asked_at_run_time[(1,)](np.zeros(4, np.float32), 7)


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
