# SPDX-License-Identifier: Apache-2.0
"""The workloads whose candidates were measured: a program each, the sizes that it leaves open, and its tensors."""

import itertools
import random
from dataclasses import dataclass, field

import measured_programs as programs

CANDIDATES = 240  # of a workload, at most
SHARED = 232448  # bytes of a block
_BYTES = {"int8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "float32": 4, "int32": 4}


@dataclass(frozen=True)
class Workload:
    name: str
    program: str  # a function of ``programs``
    fixed: dict
    space: dict  # name of a size → its values
    tensors: tuple  # (shape, dtype) of each parameter; the last is the output. A shape may be a function of the sizes
    fits: object = field(default=lambda sizes: True)  # which combinations make sense at all

    def candidates(self) -> list[dict]:
        """The same ones in each run, for each workload at most ``CANDIDATES``."""
        every = [dict(zip(self.space, values)) for values in itertools.product(*self.space.values())]
        every = [sizes for sizes in every if self.fits(sizes)]
        if len(every) > CANDIDATES:
            chosen = sorted(random.Random(self.name).sample(range(len(every)), CANDIDATES))
            every = [every[index] for index in chosen]
        return every

    def build(self, sizes: dict):
        """The traced program."""
        return getattr(programs, self.program)(**self.fixed, **sizes)

    def shapes(self, sizes: dict) -> list:
        return [(shape(sizes) if callable(shape) else shape, dtype) for shape, dtype in self.tensors]


def _tiles_fit(element, operands=1):
    def fits(s):
        shared = s["stages"] * s["block_k"] * (s["block_m"] + operands * s["block_n"]) * element
        sums = operands * s["block_m"] * s["block_n"] / s["threads"]
        return shared <= SHARED - 2048 and 4 <= sums <= 256

    return fits


def _product(name, M, N, K, dtype, out, trans_a, trans_b, space=None):
    element = _BYTES[dtype]
    sums = "int32" if dtype == "int8" else "float32"
    space = space or {"block_m": (64, 128, 192, 256), "block_n": (64, 128, 192, 256), "block_k": tuple(v // element for v in (64, 128, 256)),
                      "stages": (2, 3, 4, 5, 6), "threads": (128, 256)}
    fixed = {"M": M, "N": N, "K": K, "dtype": dtype, "sums": sums, "out": out, "trans_a": trans_a, "trans_b": trans_b}
    tensors = (((K, M) if trans_a else (M, K), dtype), ((N, K) if trans_b else (K, N), dtype), ((M, N), out))
    return Workload(name, "product", fixed, space, tensors, _tiles_fit(element))


_FEW = {"block_m": (8, 16, 32, 64), "block_n": (32, 64, 128, 256), "block_k": (64, 128, 256, 512, 1024), "stages": (2, 3, 4, 6, 8),
        "threads": (128, 256)}
_ODD = {"block_m": (32, 64, 128, 256), "block_n": (32, 64, 128, 256), "block_k": (32, 64, 128), "stages": (1, 2, 3, 4, 5), "threads": (128, 256)}


def _rows_fit(s):
    elements = s["rows"] * 4096 / s["threads"]
    return 4 <= elements <= 128 and s["threads"] * max(1, s["min_blocks"]) <= 2048


def _strip_fits(s):
    return 2 <= s["rows"] * s["columns"] / s["threads"] <= 128


def _part_fits(s):
    return 2 <= s["columns"] / s["threads"] <= 128 and s["stages"] * s["columns"] * 2 <= 200_000


def _distances_fit(s):
    shared = s["stages"] * s["block_k"] * (s["block_m"] + s["block_n"]) * 4
    return shared <= SHARED - 2048 and 8 <= s["block_m"] * s["block_n"] / s["threads"] <= 128


def _attention_fits(s):
    shared = (s["block_m"] + 2 * s["stages"] * s["block_n"]) * 128 * 2
    registers = s["block_m"] * (128 + 1.5 * s["block_n"]) / s["threads"]
    return shared <= SHARED - 2048 and 16 <= registers <= 320


WORKLOADS = (
    _product("large_bf16", 4096, 4096, 4096, "bfloat16", "bfloat16", False, True),
    _product("long_k_bf16", 1024, 1024, 16384, "bfloat16", "bfloat16", False, True),
    _product("few_rows_bf16", 16, 8192, 8192, "bfloat16", "bfloat16", False, True, _FEW),
    _product("skinny_bf16", 16384, 128, 4096, "bfloat16", "bfloat16", False, True),
    _product("odd_bf16", 777, 1111, 2222, "bfloat16", "bfloat16", False, False, _ODD),
    _product("nn_f16", 2048, 4096, 2048, "float16", "float16", False, False),
    _product("fp8", 4096, 4096, 4096, "float8_e4m3fn", "bfloat16", False, True),
    _product("int8", 2048, 2048, 4096, "int8", "int32", False, True),
    Workload("gated_bf16", "gated", {"M": 2048, "N": 4096, "K": 2048, "dtype": "bfloat16"},
             {"block_m": (64, 128, 192, 256), "block_n": (32, 64, 96, 128), "block_k": (32, 64, 128), "stages": (2, 3, 4, 5), "threads": (128, 256)},
             (((2048, 2048), "bfloat16"), ((4096, 2048), "bfloat16"), ((4096, 2048), "bfloat16"), ((2048, 4096), "bfloat16")), _tiles_fit(2, 2)),
    Workload("convolution_bf16", "convolution",
             {"images": 16, "size": 56, "channels": 128, "filters": 128, "window": 3, "pad": 1, "dtype": "bfloat16"},
             {"block_m": (64, 128, 192, 256), "block_n": (32, 64, 128), "block_k": (32, 64, 128), "stages": (1, 2, 3, 4), "threads": (128, 256)},
             (((16, 56, 56, 128), "bfloat16"), ((1152, 128), "bfloat16"), ((50176, 128), "bfloat16")), _tiles_fit(2)),
    Workload("attention_bf16", "attention", {"batch": 2, "heads": 16, "length": 2048, "dim": 128, "causal": False, "dtype": "bfloat16"},
             {"block_m": (64, 128, 192, 256), "block_n": (32, 48, 64, 80, 96, 112, 128, 160, 176, 192), "stages": (1, 2, 3, 4),
              "threads": (128, 256, 384)},
             (((2, 16, 2048, 128), "bfloat16"),) * 4, _attention_fits),
    Workload("rms_norm_bf16", "rms_norm", {"M": 8192, "N": 4096, "dtype": "bfloat16"},
             {"rows": (1, 2, 4, 8), "threads": (64, 96, 128, 192, 256, 384, 512, 768, 1024), "staged": (False, True), "min_blocks": (0, 1, 2, 3, 4)},
             (((8192, 4096), "bfloat16"), ((4096,), "bfloat16"), ((8192, 4096), "bfloat16")), _rows_fit),
    Workload("softmax_bf16", "softmax", {"M": 2048, "N": 32768, "dtype": "bfloat16"},
             {"columns": (512, 1024, 2048, 4096, 8192, 16384, 32768), "threads": (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024),
              "stages": (0, 1, 2, 3, 4)},
             (((2048, 32768), "bfloat16"), ((2048, 32768), "bfloat16")), _part_fits),
    Workload("column_sum_bf16", "column_sum", {"M": 16384, "N": 8192, "dtype": "bfloat16"},
             {"parts": (1, 2, 4, 8, 16, 32), "rows": (4, 8, 16, 32, 64), "columns": (32, 64, 128, 256, 512), "threads": (64, 128, 256, 512, 1024)},
             (((16384, 8192), "bfloat16"), (lambda s: (s["parts"], 8192), "float32")), _strip_fits),
    Workload("distances_f32", "distances", {"M": 2048, "N": 2048, "K": 128},
             {"block_m": (32, 64, 96, 128), "block_n": (32, 64, 96, 128), "block_k": (8, 16, 32, 64), "stages": (1, 2, 3),
              "threads": (64, 128, 256, 512)},
             (((2048, 128), "float32"), ((2048, 128), "float32"), ((2048, 2048), "float32")), _distances_fit),
)


def by_name(name: str) -> Workload:
    return next(workload for workload in WORKLOADS if workload.name == name)
