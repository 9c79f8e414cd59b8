# SPDX-License-Identifier: Apache-2.0
"""Triton programs on Kiln: ``kiln.triton.jit`` and what goes with it. ``kiln.triton.language`` is their ``tl``. The package that takes the name
``triton`` itself is a folder of its own (TRITON.md)."""

from . import compiled, driver, knobs, language, libdevice, testing, tle
from .adopt import adopt
from .autotuner import Autotuner, Config, Heuristics, autotune, heuristics
from .blocks import TensorDescriptor
from .builtin import constexpr
from .compiled import ASTSource, CompiledKernel
from .errors import CompilationError, OutOfResources, TritonError
from .runtime import JITFunction, KernelInterface, cdiv, constexpr_function, jit, next_power_of_2, set_allocator
from .specialize import TensorWrapper, reinterpret

__all__ = ["ASTSource", "Autotuner", "CompilationError", "CompiledKernel", "Config", "Heuristics", "JITFunction", "KernelInterface",
           "OutOfResources", "TensorDescriptor", "TensorWrapper", "TritonError", "adopt", "autotune", "cdiv", "compiled", "constexpr",
           "constexpr_function", "driver", "heuristics", "jit", "knobs", "language", "libdevice", "next_power_of_2", "reinterpret",
           "set_allocator", "testing", "tle"]
