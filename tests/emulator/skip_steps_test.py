# SPDX-License-Identifier: Apache-2.0
"""Groups of warps that begin a loop in different iterations (compiler/mapping/skip_steps): attention under causal masks, whose rows and keys fill no
tile, with heads after one another on one block."""

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
