# SPDX-License-Identifier: Apache-2.0
"""Triton programs on Kiln: ``kiln.triton.jit`` and what goes with it. ``kiln.triton.language`` is their ``tl``. The package that takes the name
``triton`` itself is a folder of its own (TRITON.md)."""

from . import language, testing
from .autotuner import Autotuner, Config, Heuristics, autotune, heuristics
from .builtin import constexpr
from .errors import CompilationError, OutOfResources
from .runtime import JITFunction, KernelInterface, cdiv, constexpr_function, jit, next_power_of_2
from .specialize import TensorWrapper, reinterpret

__all__ = ["Autotuner", "CompilationError", "Config", "Heuristics", "JITFunction", "KernelInterface", "OutOfResources", "TensorWrapper", "autotune",
           "cdiv", "constexpr", "constexpr_function", "heuristics", "jit", "language", "next_power_of_2", "reinterpret", "testing"]
