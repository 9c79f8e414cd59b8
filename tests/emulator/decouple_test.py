# SPDX-License-Identifier: Apache-2.0
"""Loops that come apart (compiler/mapping/decouple): what the parts leave for each other, and for what stands around the loop."""

import kiln.language as T
import numpy as np
import pytest

ROWS, STEPS, EACH, TARGET = 64, 3, 64, "emu:sm_90a"


def attention(width, overwritten=False, counted=False, scores=False, held=False):
    """Over gathered rows. `overwritten`: the largest scores begin at values that are overwritten before the loop. `counted`: each thread adds to a
    number. `scores`: the last ones are kept in shared memory, when nobody waits for them any more. `held`: a
    fragment has its value over the loop, which does not use it."""
    @T.prim_func
    def program(Q: T.Tensor((ROWS, width), "float16"), KV: T.Tensor((1000, width), "float16"), rows: T.Tensor((STEPS * EACH,), "int32"),
                M: T.Tensor((ROWS,), "float32"), O: T.Tensor((ROWS, width), "float32"), S: T.Tensor((ROWS, EACH), "float16")):
        with T.Kernel(1, threads=256):
            q, kv = T.alloc_shared((ROWS, width), "float16"), T.alloc_shared((EACH, width), "float16")
            s, w, o = T.alloc_fragment((ROWS, EACH), "float32"), T.alloc_shared((ROWS, EACH), "float16"), T.alloc_fragment((ROWS, width), "float32")
            m, before, scale = T.alloc_fragment((ROWS,), "float32"), T.alloc_fragment((ROWS,), "float32"), T.alloc_fragment((ROWS,), "float32")
            kept = T.alloc_shared((ROWS, EACH), "float16")
            T.copy(Q, q)
            T.copy(M, m)
            other = T.alloc_fragment((ROWS,), "float32")
            if held:
                T.copy(M, other)
            T.clear(o)
            if overwritten:
                T.fill(M, 1000.0)
            if counted:
                T.atomic_add(S[0, 0], 1.0)
            for k in T.Pipelined(STEPS, num_stages=2):
                for i, j in T.Parallel(EACH, width):
                    kv[i, j] = KV[rows[k * EACH + i], j]
                T.gemm(q, kv, s, transpose_B=True, clear_accum=True)
                T.copy(m, before)
                T.reduce_max(s, m, dim=1, clear=False)
                for i in T.Parallel(ROWS):
                    scale[i] = T.exp2(before[i] - m[i])
                for i, j in T.Parallel(ROWS, EACH):
                    w[i, j] = T.exp2(s[i, j] - m[i])
                if scores:
                    T.copy(s, kept)
                for i, j in T.Parallel(ROWS, width):
                    o[i, j] *= scale[i]
                T.gemm(w, kv, o, policy=T.GemmWarpPolicy.FullCol)
            if held:
                for i in T.Parallel(ROWS):
                    M[i] = other[i] + m[i]
            T.copy(o, O)
            if scores:
                T.copy(kept, S)

    return program


def call(emulator, program, seed=0):
    width, rng = program.params[0].buffer.shape[1], np.random.default_rng(1)
    q, kv = (rng.standard_normal((n, int(width))).astype(np.float16) / 4 for n in (ROWS, 1000))
    rows, m = rng.integers(0, 1000, STEPS * EACH).astype(np.int32), rng.standard_normal(ROWS).astype(np.float32)
    arrays = [q, kv, rows, m, np.zeros(q.shape, np.float32), np.zeros((ROWS, EACH), np.float16)]
    after, answer = emulator.call(emulator.module(program.serialized), TARGET, [(a, str(a.dtype)) for a in arrays], check=1, seed=seed)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    k = kv[rows].astype(np.float64)
    s = q.astype(np.float64) @ k.T
    expected = np.exp2(s - np.maximum(s.max(1), m)[:, None]) @ k
    np.testing.assert_allclose(after[4], expected, rtol=2e-2, atol=2e-2)
    return [*after, m], s, any("gather" in decision for decision in answer["decisions"])


@pytest.mark.parametrize("width", [256, 512])  # for 256, only a division whose last part reduces the first one's scores fills shared memory
def test_parts(emulator, width):
    assert call(emulator, attention(width))[2] == (width == 512)


def test_a_value_is_read_before_it_is_overwritten(emulator):
    after, _, _ = call(emulator, attention(512, overwritten=True))
    assert (after[3] == 1000).all()


def test_each_thread_counts_once(emulator):
    after, _, _ = call(emulator, attention(512, counted=True))
    assert after[5][0, 0] == 256


def test_a_fragment_that_all_threads_hold(emulator):
    after, s, _ = call(emulator, attention(512, held=True))
    np.testing.assert_allclose(after[3], after[6] + np.maximum(s.max(1), after[6]), rtol=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_what_the_first_part_leaves_in_shared_memory(emulator, seed):
    after, s, apart = call(emulator, attention(512, scores=True), seed)
    assert apart
    np.testing.assert_allclose(after[5], s[:, -EACH:], rtol=1e-2, atol=1e-2)
