# SPDX-License-Identifier: Apache-2.0
"""No kernel of the library or the examples spills registers, at row lengths that are no powers of two, too; nor does attention of the library, whose
heads have any size. Code objects for AMD say so themselves, on every machine; for CUDA ptxas does. PTXAS names it; else the one on PATH or in
/usr/local/cuda/bin is used."""

import re

import pytest

from ptxas_test import PTXAS, assemble

LENGTHS = (768, 1000, 1536, 5120, 7168)
LONG = (20000, 20001)  # read twice
KEPT = (*LONG, 16384, 32768, 49152, 65536, 81920, 98304, 114688, 131072)  # the others by a large block or a cluster of sm_90a
HEADS = (64, 80, 96, 112, 128, 144, 176, 240, 256)  # of attention: even and odd multiples of 16, which is what the library takes
GRADIENT_HEADS = (64, 80, 96, 112, 128)
AMD = ("hip:gfx90a", "hip:gfx942", "hip:gfx950", "hip:gfx1100", "hip:gfx1201")
NVIDIA = ("cuda:sm_75", "cuda:sm_80", "cuda:sm_90a", "cuda:sm_100a", "cuda:sm_120a")


def row_programs(_):
    from kiln.examples.add import add
    from kiln.library.programs import cross_entropy, elementwise, layer_norm, norm_gradients, quantize, reductions, rms_norm, softmax

    for n in LENGTHS:
        for build in (layer_norm.layer_norm, norm_gradients.layer_norm_backward, quantize.quantize_rows, cross_entropy.cross_entropy,
                      elementwise.swiglu, reductions.row_sum, reductions.column_sum, elementwise.transpose, rms_norm.rms_norm,
                      softmax.softmax, softmax.softmax_online, add):
            yield f"{build.__name__} {n}", build(4096, n, "float16")
        yield f"rope {n}", elementwise.rope(4096, n // 8, 64, "float16")


def library_programs(target):
    """Rows that are kept in registers, of even and odd lengths, and products of a batch."""
    from kiln import library

    for n in (5120, 12289):
        x, w, of_row = library.Spec((64, n), "float16"), library.Spec((n,), "float16"), library.Spec((64,), "float32")
        for name, given in (("rms_norm", (x, w, 1e-6)), ("layer_norm", (x, w, w, 1e-5)), ("layer_norm_backward", (x, x, w, of_row, of_row)),
                            ("softmax", (x,)), ("quantize_rows", (x,))):
            yield f"{name} {n}", library.plan(name, *given, target=target).program.trace()
    a, b = library.Spec((3, 100, 1000), "float16"), library.Spec((3, 1000, 1000), "float16")
    yield "batched", library.plan("matmul", a, b, None, None, None, None, False, False, None, False, False, target=target).program.trace()


def library_rows(target):
    """What the library makes of rows: norms, softmax, cross entropy, their gradients, and the quantisation."""
    from kiln import library

    for dtype in ("float16", "float32"):
        for n in (*LENGTHS, *(KEPT if target == "cuda:sm_90a" else LONG)):
            x, w = library.Spec((64, n), dtype), library.Spec((n,), dtype)
            of_row, label = library.Spec((64,), "float32"), library.Spec((64,), "int64")
            for name, given in (("rms_norm", (x, w, 1e-6)), ("rms_norm_backward", (x, x, w, 1e-6)), ("layer_norm", (x, w, w, 1e-5)),
                                ("layer_norm_backward", (x, x, w, of_row, of_row)), ("norm_weight_backward", (x, x, of_row, of_row)),
                                ("softmax", (x,)), ("softmax_backward", (x, x)), ("cross_entropy", (x, label)),
                                ("cross_entropy_backward", (of_row, x, label, of_row)), ("quantize_rows", (x,))):
                plan = library.plan(name, *given, target=target)
                yield f"{name} {n} {dtype}", plan.program.trace(), dict(plan.options)


def example_programs(target):
    """Whose sizes are chosen for the target: attention of the examples, and products in variants that the library asks for."""
    from kiln.examples.attention import attention
    from kiln.library.programs.gemm import gemm

    for dim in (64, 80, 96, 128):
        for causal in (False, True):
            for length in (1000, None):
                yield f"attention {dim} × {length}{' causal' * causal}", attention(2, 8, length, dim, causal, target=target)
    for m, n, k in ((1024, 1024, 1024), (1000, 777, 333), (None, None, None), (None, 1024, 1024)):
        for name, given in (("nn", {}), ("tn", {"trans_a": True}), ("tt", {"trans_a": True, "trans_b": True}),
                            ("int8", {"in_dtype": "int8", "trans_b": True}),
                            ("gelu", {"in_dtype": "bfloat16", "bias": True, "activation": "gelu"})):
            yield f"gemm {m}×{n}×{k} {name}", gemm(m, n, k, target=target, **given)


def attention_programs(target):
    """Each with the options that the library compiles it with."""
    from kiln import library

    for dtype in ("float16", "bfloat16") if target.startswith("hip:") else ("float16",):
        for dim in HEADS:
            q = library.Spec((2, 100, 8, dim), dtype)
            for causal in (False, True):
                plan = library.plan("attention", q, q, q, causal, None, target=target)
                yield f"attention {dim} {dtype}{' causal' * causal}", plan.program.trace(), dict(plan.options)


def gradient_programs(target):
    """Of attention, as the library compiles them; without atomic additions, too."""
    from kiln import library

    for dim in GRADIENT_HEADS:
        q, k, lse = library.Spec((2, 100, 8, dim), "float16"), library.Spec((2, 100, 4, dim), "float16"), library.Spec((2, 8, 100), "float32")
        for causal in (False, True):
            plan = library.plan("attention_with_lse", q, k, k, causal, None, target=target)
            yield f"attention_with_lse {dim}{' causal' * causal}", plan.program.trace(), dict(plan.options)
            for deterministic in (False, True):
                plan = library.plan("attention_backward", q, k, k, q, lse, q, causal, None, deterministic, target=target)
                name = f"attention_backward {dim}{' causal' * causal}{' in order' * deterministic}"
                yield name, plan.program.trace(), dict(plan.options)


def eight_bit_programs(target):
    """Attention of 8-bit floats."""
    from kiln import library

    for dim in (64, 128, 192, 256):
        q, scale = library.Spec((2, 100, 8, dim), "float8_e4m3fn"), library.Spec((8,), "float32")
        for causal in (False, True):
            plan = library.plan("scaled_attention", q, q, q, scale, scale, scale, causal, None, None, target=target)
            yield f"scaled_attention {dim}{' causal' * causal}", plan.program.trace(), dict(plan.options)


# Programs (their names, what they are, and options if they need some), and the targets that they are compiled for.
PROGRAMS = {
    row_programs: (*AMD, *NVIDIA), library_programs: AMD, library_rows: ("hip:gfx942", "hip:gfx1100", "cuda:sm_80", "cuda:sm_90a"),
    example_programs: (*AMD, "cuda:sm_75", "cuda:sm_90a"), attention_programs: (*AMD, "cuda:sm_75", "cuda:sm_90a"),
    gradient_programs: (*AMD, *NVIDIA, "cuda:sm_89"), eight_bit_programs: ("cuda:sm_89", "cuda:sm_90a"),
}


def cases(vendor):
    return [pytest.param(programs, target, id=f"{programs.__name__} {target}")
            for programs, targets in PROGRAMS.items() for target in targets if target.startswith(vendor)]


def spilled(programs, target, spilled_by):
    counted = {name: spilled_by(target, program, *options) for name, program, *options in programs(target)}
    return {name: count for name, count in counted.items() if count}


@pytest.mark.parametrize("programs, target", cases("hip:"))
def test_on_amd(served, programs, target):
    def told(target, program, options=None):
        kernels = served.compile(program, target, options).artifact.report.kernels
        assert kernels, f"{target}: the code object tells of no kernel"
        return sum(kernel.spill_bytes for kernel in kernels)

    assert spilled(programs, target, told) == {}


@pytest.mark.skipif(PTXAS is None, reason="no ptxas on this machine: NOTHING checks here that kernels for CUDA keep to their registers; set PTXAS")
@pytest.mark.parametrize("programs, target", cases("cuda:"))
def test_on_nvidia(served, programs, target, tmp_path):
    def told(target, program, options=None):
        done = assemble(served.compile(program, target, options).artifact.code, target.removeprefix("cuda:"), tmp_path)
        assert done.returncode == 0, done.stderr[-500:]
        assert "(C75" not in done.stderr, done.stderr[-500:]
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", done.stderr)]
        assert spills, f"{target}: ptxas tells of no kernel"
        return sum(spills)

    assert spilled(programs, target, told) == {}
