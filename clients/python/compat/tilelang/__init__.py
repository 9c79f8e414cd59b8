# SPDX-License-Identifier: Apache-2.0
"""TileLang's import surface over Kiln, so that scripts written for it run unchanged. Installed on demand only: it takes the name of the
package it stands in for."""

import functools
import importlib
import importlib.abc
import logging
import sys

import kiln
import kiln.language as language
from kiln import compiler as _compiler
from kiln import functions as _functions
from kiln import notices
from kiln.functions import JITFunction as JITImpl
from kiln.kernel import Kernel
from kiln.language.dtypes import DType as DataType
from kiln.language.dtypes import DType as dtype
from kiln.language.kinds import Kind
from kiln.language.math import cdiv, next_power_of_2
from kiln.language.program import PrimFunc
from kiln.options import PassConfigKey
from kiln.profiler import Profiler, TensorSupplyType
from kiln.tuning import autotune

from . import _modules
from .env import env  # the object takes the place of its module, as in TileLang

__version__ = "0.1.13"  # of the language surface that this package follows

# Here so that "import tilelang.language as T" and "tilelang.language" are the same module as kiln.language.
sys.modules[__name__ + ".language"] = language

_LAZY = ("autotuner", "backend", "carver", "contrib", "cuda", "engine", "layout", "math", "profiler", "rocm", "testing", "tileop", "tools",
         "transform", "tvm", "utils")
_ABSENT = {
    "ir": "TVM structures are not part of Kiln",
    "engine": "there is no generated CUDA source to process: Kiln emits PTX",
    "contrib": "Kiln does not call nvcc",
    "lower": "use tilelang.compile",
}

# Products of float32 are TileLang's.
compile, par_compile, jit = (functools.update_wrapper(functools.partial(function, allow_tf32=True), function)
                             for function in (_compiler.compile, _compiler.par_compile, _functions.jit))

_modules.install(keep_attribute=["jit"])


class _Missing(importlib.abc.MetaPathFinder):
    """Says what is missing, and of what, where a script imports a module that is not here."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith(__name__ + "."):
            hint = _ABSENT.get(name.split(".")[1])
            raise ModuleNotFoundError(f"{name} is not part of Kiln's compatibility package" + (f": {hint}" if hint else ""), name=name)
        return None


sys.meta_path.append(_Missing())


class JITKernel(metaclass=Kind):
    """The class of kernels. Called, it compiles, as tilelang.compile does."""

    def __new__(cls, func=None, out_idx=None, **options):
        return compile(func, out_idx, **options)

    @staticmethod
    def holds(value) -> bool:
        return isinstance(value, Kernel)


def set_log_level(level):
    """Of what Kiln logs in this process, the logger "kiln"; the daemon has a log of its own. A number of ``logging``, or a name as
    "WARNING"."""
    logging.getLogger("kiln").setLevel(level.upper() if isinstance(level, str) else level)


def disable_cache():
    """Without effect, with a warning."""
    notices.no_effect("tilelang.disable_cache",
                      "results are stored under their content, so none is ever stale; Client.compile(…, refresh=True) compiles anew")


def enable_cache():
    """Nothing: the cache is always on."""


def is_cache_enabled():
    """True: the cache is always on."""
    return True


def __getattr__(name):
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "do_bench":
        return kiln.do_bench
    hint = _ABSENT.get(name)
    raise AttributeError(f"tilelang.{name} is not part of Kiln's compatibility package" + (f": {hint}" if hint else ""))
