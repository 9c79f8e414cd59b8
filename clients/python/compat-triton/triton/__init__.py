# SPDX-License-Identifier: Apache-2.0
"""Triton's import surface over Kiln, so that programs written for it run unchanged. Installed on demand only: it takes the name of the package
it stands in for."""

import importlib.abc
import sys

from kiln.triton import (  # noqa: F401
    Autotuner, CompilationError, Config, Heuristics, JITFunction, KernelInterface, OutOfResources, TensorWrapper, TritonError, autotune, cdiv,
    constexpr, constexpr_function, heuristics, jit, knobs, language, next_power_of_2, reinterpret, set_allocator, testing)
from kiln.triton.compiled import compile  # noqa: F401

from . import _modules

__version__ = "3.6.0"  # of the language that this package follows

_ABSENT = {
    "tools": "there is no generated code to inspect or to link; `kiln explain` shows what a kernel became",
    "backends": "Kiln compiles for its own targets; KILN_TARGET names one",
    "experimental": "triton.experimental.tle is there; Gluon and its like are other languages, so use triton.language, or Kiln's tile language",
    "language.extra": "libdevice is there; write other things in the language",
    "profiler": "use kiln.Profiler, or the vendor's profiler",
    "ops": "use kiln.library",
}
_modules.install(__name__)


class _Missing(importlib.abc.MetaPathFinder):
    """Says what is missing, and of what, where a program imports a module that is not here."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith(__name__ + "."):
            hint = _ABSENT.get(name.removeprefix(__name__ + ".")) or _ABSENT.get(name.split(".")[1])
            raise ModuleNotFoundError(f"{name} is not part of Kiln's compatibility package" + (f": {hint}" if hint else ""), name=name)
        return None


sys.meta_path.append(_Missing())


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    hint = _ABSENT.get(name)
    raise AttributeError(f"triton.{name} is not part of Kiln's compatibility package" + (f": {hint}" if hint else ""))
