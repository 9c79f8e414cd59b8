# SPDX-License-Identifier: Apache-2.0
"""TileLang's import surface over Kiln, so that scripts written for it run unchanged. Installed on demand only: it takes the name of the
package it stands in for."""

import importlib
import sys

import kiln
import kiln.language as language
from kiln.functions import JITFunction as JITImpl
from kiln.functions import jit
from kiln.compiler import compile, par_compile
from kiln.kernel import Kernel as JITKernel
from kiln.language.dtypes import DType as DataType
from kiln.language.dtypes import DType as dtype
from kiln.language.math import cdiv, next_power_of_2
from kiln.language.program import PrimFunc
from kiln.options import PassConfigKey
from kiln.profiler import Profiler, TensorSupplyType
from kiln.tuning import autotune

__version__ = "0.1.13"  # of the language surface that this package follows

# Here so that "import tilelang.language as T" and "tilelang.language" are the same module as kiln.language.
sys.modules[__name__ + ".language"] = language
sys.modules[__name__ + ".cuda.language"] = language
sys.modules[__name__ + ".rocm.language"] = language

_LAZY = ("autotuner", "profiler", "testing", "transform", "utils", "layout", "carver", "tileop", "tools", "env", "cuda", "rocm", "jit_kernel")
_ABSENT = {
    "tvm": "Kiln does not contain TVM: its expressions are those of kiln.language, its IR is kiln.v1.Module",
    "ir": "TVM structures are not part of Kiln",
    "engine": "there is no generated CUDA source to process: Kiln emits PTX",
    "contrib": "Kiln does not call nvcc",
    "lower": "use tilelang.compile",
}


def set_log_level(level):
    """Accepted: the daemon has the log."""


def disable_cache():
    """Accepted: Kiln's results are keyed by their content; CompileRequest.refresh compiles anew."""


def enable_cache():
    """Accepted: see disable_cache."""


def __getattr__(name):
    if name in _LAZY:
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as problem:
            raise AttributeError(f"tilelang.{name} is not part of Kiln's compatibility package") from problem
    if name in ("do_bench",):
        return getattr(kiln, name)
    hint = _ABSENT.get(name)
    raise AttributeError(f"tilelang.{name} is not part of Kiln's compatibility package" + (f": {hint}" if hint else ""))
