# SPDX-License-Identifier: Apache-2.0
"""The programs that the demo, the tests and the compiler's own tests use, by name: examples, and programs of the library in many variants."""

from functools import partial

from kiln.library.programs.gemm import gemm
from kiln.library.programs.rms_norm import rms_norm
from kiln.library.programs.softmax import softmax, softmax_online

from .add import add
from .attention import attention

LAYOUTS = {"nn": {}, "nt": {"trans_b": True}, "tn": {"trans_a": True}, "tt": {"trans_a": True, "trans_b": True}}

PROGRAMS = {
    "gemm_f16": partial(gemm, 1024, 1024, 1024),
    "gemm_f16_bias_relu": partial(gemm, 1024, 1024, 1024, bias=True, activation="relu"),
    "gemm_bf16_bias_gelu": partial(gemm, 1024, 1024, 1024, "bfloat16", bias=True, activation="gelu"),
    "gemm_f16_bias_silu_odd": partial(gemm, 1000, 777, 333, bias=True, activation="silu"),
    "gemm_f16_f32": partial(gemm, 512, 512, 512, out_dtype="float32"),
    "gemm_s8": partial(gemm, 512, 512, 512, "int8", block_k=64, trans_b=True),
    "gemm_s8_nn": partial(gemm, 512, 512, 512, "int8", block_k=64),
    "gemm_e4m3": partial(gemm, 512, 512, 512, "float8_e4m3fn", "float16", block_k=64, trans_b=True),
    "gemm_e5m2": partial(gemm, 512, 512, 512, "float8_e5m2", "float32", block_k=64, trans_b=True),
    "gemm_e4m3fnuz": partial(gemm, 512, 512, 512, "float8_e4m3fnuz", "float16", block_k=64, trans_b=True),
    "gemm_tf32": partial(gemm, 512, 512, 512, "tfloat32"),
    "gemm_f32": partial(gemm, 256, 256, 256, "float32", block_m=64, block_n=64, block_k=16),
    "gemm_f16_symbolic": partial(gemm),
    "gemm_bf16_symbolic_bias_relu": partial(gemm, in_dtype="bfloat16", bias=True, activation="relu"),
    "gemm_f16_tile_192_80": partial(gemm, 1000, 777, 333, block_m=192, block_n=80, block_k=48),
    "gemm_f16_swizzle": partial(gemm, 2048, 2048, 512, swizzle=8, block_n=256, threads=256),
    **{f"gemm_f16_{name}": partial(gemm, 512, 384, 256, **flags) for name, flags in LAYOUTS.items()},
    **{f"gemm_f16_{name}_odd": partial(gemm, 1000, 777, 333, **flags) for name, flags in LAYOUTS.items()},
    "attention_f16": partial(attention, 2, 8, 512, 64),
    "attention_f16_causal": partial(attention, 2, 8, 512, 64, causal=True),
    "attention_f16_d128": partial(attention, 2, 8, 1024, 128, block_m=128, block_n=128, threads=256),
    "attention_f16_odd": partial(attention, 1, 3, 333, 64),
    "attention_f16_causal_odd": partial(attention, 1, 3, 333, 80, causal=True),
    "attention_bf16_causal_symbolic": partial(attention, 2, 4, None, 128, causal=True, dtype="bfloat16"),
    "rms_norm_f16": partial(rms_norm, 512, 1024),
    "rms_norm_f16_symbolic": partial(rms_norm, None, 576, rows=2),
    "rms_norm_f32_odd": partial(rms_norm, 77, 777, dtype="float32"),
    "softmax_f16": partial(softmax, 512, 1024),
    "softmax_f32_odd": partial(softmax, 77, 777, dtype="float32"),
    "softmax_online": partial(softmax_online),
    "add_f32": partial(add, 1024, 1024),
    "add_symbolic": partial(add),
}
