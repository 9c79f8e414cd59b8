# SPDX-License-Identifier: Apache-2.0
"""Instructions of warps that a program chooses itself."""

import kiln.language as T
import numpy as np
import pytest
from data import decode, random_array

TARGETS = ["emu:sm_80", "emu:sm_90a"]
FORMS = {"float16": ("m16n8k16", "fp16", "float32", "fp32"), "bfloat16": ("m16n8k16", "bf16", "float32", "fp32"),
         "int8": ("m16n8k32", "int8", "int32", "int32")}


def run(emulator, program, target, tensors, **keys):
    return emulator.call(emulator.module(program.for_target(target).serialized), target, tensors, **keys)


def product(dtype, threads=64):
    """Each warp multiplies its 16 rows of A with B, whose rows are the columns of the sum. A lane's elements lie as PTX has them for mma.sync."""
    shape, short, wide, short_wide = FORMS[dtype]
    k = int(shape.rpartition("k")[2])
    each = k // 8

    @T.prim_func
    def program(A: T.Tensor((threads // 2, k), dtype), B: T.Tensor((8, k), dtype), C: T.Tensor((threads // 2, 8), wide)):
        with T.Kernel(1, threads=threads):
            a, b, c = T.alloc_local((4 * each,), dtype), T.alloc_local((2 * each,), dtype), T.alloc_local((4,), wide)
            tx = T.get_thread_binding()
            first, lane = tx // 32 * 16, tx % 32
            for word in T.unroll(4):
                for i in T.serial(each):
                    a[word * each + i] = A[first + lane // 4 + word % 2 * 8, word // 2 * (k // 2) + lane % 4 * each + i]
            for word in T.unroll(2):
                for i in T.serial(each):
                    b[word * each + i] = B[lane // 4, word * (k // 2) + lane % 4 * each + i]
            T.clear(c)
            T.ptx_mma(wide, shape, "row", "col", short, short, short_wide, a.data, 0, b.data, 0, c.data, 0)
            for i in T.unroll(4):
                C[first + lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = c[i]

    return program


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", list(FORMS))
def test_products(emulator, dtype, target):
    rng, k = np.random.default_rng(5), int(FORMS[dtype][0].rpartition("k")[2])
    a, b, wide = random_array(rng, (32, k), dtype), random_array(rng, (8, k), dtype), FORMS[dtype][2]
    tensors = [(a, dtype), (b, dtype), (np.zeros((32, 8), wide), wide)]
    after, answer = run(emulator, product(dtype), target, tensors, check=1)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    expected = decode(a, dtype).astype("float64") @ decode(b, dtype).astype("float64").T
    assert np.abs(after[2] - expected).max() < 1e-3
    assert any(decision.startswith("mma.") for decision in answer["decisions"]), answer["decisions"]


def test_slices_begin_where_they_say(emulator):
    @T.prim_func
    def program(C: T.Tensor((32, 4), "float32")):
        with T.Kernel(1, threads=32):
            a, b, c = T.alloc_local((16,), "float16"), T.alloc_local((4,), "float16"), T.alloc_local((8,), "float32")
            T.fill(a, 3)
            T.fill(a[8:16], 1)
            T.fill(b, 1)
            T.clear(c)
            T.ptx_mma("float32", "m16n8k16", "row", "col", "fp16", "fp16", "fp32", a[4:16], 4, b, 0, c[4:8], 0)
            for i in T.serial(4):
                C[T.get_thread_binding(), i] = c[4 + i]

    after, answer = run(emulator, program, "emu:sm_80", [(np.zeros((32, 4), np.float32), "float32")])
    assert "error" not in answer and (after[0] == 16).all()


@pytest.mark.parametrize("target, words", [("emu:sm_75", "sm_75 has no instruction of a warp that multiplies 16 × 8 × 16 of f16"),
                                           ("emu:gfx942", "gfx942 has no instruction of a warp")])
def test_targets_without_it_refuse_it(emulator, target, words):
    tensors = [(np.zeros((32, 16), np.float16), "float16"), (np.zeros((8, 16), np.float16), "float16"), (np.zeros((32, 8), np.float32), "float32")]
    _, answer = run(emulator, product("float16"), target, tensors)
    assert words in answer["error"], answer


def test_whole_warps_come(emulator):
    tensors = [(np.zeros((24, 16), np.float16), "float16"), (np.zeros((8, 16), np.float16), "float16"), (np.zeros((24, 8), np.float32), "float32")]
    _, answer = run(emulator, product("float16", threads=48), "emu:sm_80", tensors)
    assert "an instruction of whole warps that threads 0 to 47 come to" in answer["error"], answer


def test_what_is_refused_where_it_is_traced():
    def traced(shape="m16n8k16", layout="row", dtype="fp16", size=8):
        @T.prim_func
        def program(A: T.Tensor((8,), "float16")):
            with T.Kernel(1, threads=32):
                a, b, c = T.alloc_local((size,), "float16"), T.alloc_local((4,), "float16"), T.alloc_local((4,), "float32")
                T.ptx_mma("float32", shape, layout, "col", dtype, "fp16", "fp32", a.data, 0, b.data, 0, c.data, 0)

        return program

    assert traced() is not None
    for wrong, words in (({"shape": "16x8x16"}, "written as"), ({"layout": "col"}, "A by rows"), ({"dtype": "bf16"}, "is said to be 'bf16'"),
                         ({"shape": "m3n8k16"}, "no multiple")):
        with pytest.raises(T.TraceError, match=words):
            traced(**wrong)
