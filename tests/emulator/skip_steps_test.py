# SPDX-License-Identifier: Apache-2.0
"""Groups of warps that begin a loop in different iterations (compiler/mapping/skip_steps): attention under causal masks, whose rows and keys fill no
tile, with heads after one another on one block; and what must not be skipped."""

import kiln.language as T
import numpy as np
import pytest
from kiln.library.plans import Dynamic, Program
from kiln.library.programs.attention import attention

TARGET, DIM, SCALE = "emu:sm_90a", 32, 32**-0.5


def reference(q, k, v):
    scores = np.einsum("bqhd,bkhd->bhqk", q, k, dtype=np.float64) * SCALE
    scores = np.where(np.tri(q.shape[1], k.shape[1], k.shape[1] - q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v.astype(np.float64))


@pytest.mark.parametrize("tokens, keys, heads", [(256, 256, 1), (300, 433, 2), (5, 700, 1), (200, 200, 1)])
@pytest.mark.parametrize("groups, step", [(4, 64), (3, 64)])
def test_causal_attention(emulator, tokens, keys, heads, groups, step):
    sizes = {"block_m": 64 * groups, "block_n": step, "stages": 2, "threads": 128 * groups, "columns": DIM, "exchanged": False, "backwards": True}
    dims = {"batch": Dynamic("batch"), "heads": heads, "kv_heads": heads, "seq_len": Dynamic("seq_len"), "kv_len": Dynamic("kv_len"), "dim": DIM}
    program = Program.of(attention, **dims, causal=True, scale=SCALE, dtype="float16", **sizes).trace().for_target(TARGET)
    rng = np.random.default_rng(tokens + keys)
    q, k, v = (rng.standard_normal((1, n, heads, DIM)).astype(np.float16) for n in (tokens, keys, keys))
    tensors = [(a, "float16") for a in (q, k, v, np.full_like(q, np.nan))]
    after, answer = emulator.call(emulator.module(program.serialized), TARGET, tensors, check=1, fast=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    assert np.abs(after[3] - reference(q, k, v)).max() < 5e-3


def masked_product(mask, *, steps=8, threads=512, kept=False, offsets=None):
    """A product of the elements of (256, 64 · steps) under ``mask(row, column, offset)``; ``kept``: of those of the step before; ``offsets``: the
    type of a tensor with one for each step, which the loop reads."""
    half, rows, columns = "float16", 256, 64

    @T.prim_func
    def program(A: T.Tensor((rows, columns * steps), half), B: T.Tensor((columns * steps, 64), half), W: T.Tensor((steps,), offsets or "int32"),
                C: T.Tensor((rows, 64), "float32")):
        with T.Kernel(1, threads=threads):
            a, b = T.alloc_shared((rows, columns), half), T.alloc_shared((columns, 64), half)
            chosen, last = T.alloc_fragment((rows, columns), half), T.alloc_fragment((rows, columns), half)
            sums = T.alloc_fragment((rows, 64), "float32")
            T.clear(sums)
            T.clear(last)
            for s in T.Pipelined(steps, num_stages=2):
                offset = T.cast(W[s], "int32") if offsets else 0
                T.copy(A[0, s * columns], a)
                T.copy(B[s * columns, 0], b)
                for i, j in T.Parallel(rows, columns):
                    chosen[i, j] = T.if_then_else(mask(i, s * columns + j, offset), last[i, j] if kept else a[i, j], T.cast(0.0, half))
                for i, j in T.Parallel(rows, columns):
                    last[i, j] = a[i, j]
                T.gemm(chosen, b, sums)
            T.copy(sums, C)

    return program


@pytest.mark.parametrize("kept, offsets", [(True, None), (False, "int8"), (False, "int16"), (False, "int32")])
def test_what_iterations_behind_need(emulator, kept, offsets):
    """Elements of an iteration whose mask holds nowhere, and masks that the loop's body reads."""
    rng, steps = np.random.default_rng(), 8
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((256, 64 * steps), (64 * steps, 64)))
    w = np.array([0, -100, 50, -128, 0, 100, -20, 5], offsets or "int32")
    program = masked_product(lambda row, column, offset: row + offset <= column, kept=kept, offsets=offsets)
    tensors = [(a, "float16"), (b, "float16"), (w, offsets or "int32"), (np.full((256, 64), np.nan, np.float32), "float32")]
    after, answer = emulator.call(emulator.module(program.for_target(TARGET).serialized), TARGET, tensors, check=1, fast=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    at = w.astype(int).repeat(64) if offsets else np.zeros(64 * steps, int)
    values = np.concatenate([np.zeros((256, 64)), a[:, :-64]], 1) if kept else a.astype(float)
    assert np.array_equal(after[3], (values * (np.arange(256)[:, None] + at <= np.arange(64 * steps))) @ b.astype(float))


def test_groups_that_share_rows(emulator):
    """A tile of 192 by 24 on 384 threads: groups of 128 threads hold parts of 6 rows' threads."""
    steps, rows, columns, begin = 8, 192, 24, 286

    @T.prim_func
    def program(A: T.Tensor((192, 64 * steps), "float16"), B: T.Tensor((64 * steps, 64), "float16"), G: T.Tensor((rows, columns * steps), "float32"),
                C: T.Tensor((192, 64), "float32"), X: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=384):
            a, b = T.alloc_shared((192, 64), "float16"), T.alloc_shared((64, 64), "float16")
            g = T.alloc_shared((rows, columns), "float32")
            chosen, sums = T.alloc_fragment((192, 64), "float16"), T.alloc_fragment((192, 64), "float32")
            masked, most = T.alloc_fragment((rows, columns), "float32"), T.alloc_fragment((rows, columns), "float32")
            T.clear(sums)
            T.fill(most, -1e30)
            for s in T.Pipelined(steps, num_stages=2):
                T.copy(A[0, s * 64], a)
                T.copy(B[s * 64, 0], b)
                T.copy(G[0, s * columns], g)
                for i, j in T.Parallel(192, 64):
                    chosen[i, j] = T.if_then_else(i + 300 <= s * 64 + j, a[i, j], T.cast(0.0, "float16"))
                for i, j in T.Parallel(rows, columns):
                    masked[i, j] = T.if_then_else(i >= begin - s * columns - j, g[i, j], -T.infinity("float32"))
                for i, j in T.Parallel(rows, columns):
                    most[i, j] = T.max(most[i, j], masked[i, j])
                T.gemm(chosen, b, sums)
            T.copy(sums, C)
            T.copy(most, X)

    rng = np.random.default_rng()
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((192, 64 * steps), (64 * steps, 64)))
    g = (rng.standard_normal((rows, columns * steps)) * 0.1 - np.arange(columns * steps) * 10).astype(np.float32)
    tensors = [(a, "float16"), (b, "float16"), (g, "float32"), (np.zeros((192, 64), np.float32), "float32"),
               (np.zeros((rows, columns), np.float32), "float32")]
    after, answer = emulator.call(emulator.module(program.for_target(TARGET).serialized), TARGET, tensors, check=1, fast=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    held = np.where(np.arange(rows)[:, None] >= begin - np.arange(columns * steps), g, -np.inf).reshape(rows, steps, columns).max(1)
    assert np.array_equal(after[4], np.maximum(held, np.float32(-1e30)))
