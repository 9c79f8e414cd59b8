# SPDX-License-Identifier: Apache-2.0
"""Kiln: a compilation service for tile-level GPU kernels.

``import kiln.language as T`` is the tile language; ``kiln.jit``, ``kiln.compile`` and ``kiln.autotune`` turn programs into kernels;
``kiln.Client`` is the service itself; ``kiln.rank`` says what its planner expects of programs;
``kiln.sparse`` compresses sparse matrices. Importing needs neither torch nor a GPU nor a daemon."""

import importlib

__version__ = "0.1.0"

_HOME = {
    "jit": "functions",
    "JITFunction": "functions",
    "compile": "compiler",
    "par_compile": "compiler",
    "Kernel": "kernel",
    "Client": "client",
    "CompileOptions": "client",
    "default_client": "client",
    "rank": "ranking",
    "Ranked": "ranking",
    "autotune": "tuning",
    "AutoTuner": "tuning",
    "Profiler": "profiler",
    "TensorSupplyType": "profiler",
    "do_bench": "bench",
    "PassConfigKey": "options",
    "KilnError": "errors",
    "CompileError": "errors",
    "KernelFault": "errors",
    "NoEffectWarning": "errors",
    "emulation": "remote",
    "Chosen": "measured",
    "Recipe": "measured",
    "record": "recording",
    "ServiceUnavailable": "errors",
    "DeadlineExceeded": "errors",
    "UntrustedArtifact": "errors",
}
_MODULES = ("language", "sparse", "triton")
__all__ = [*_HOME, *_MODULES]


def __getattr__(name):
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    from .names import unknown

    raise unknown(f"module {__name__!r} has no attribute {name!r}", name, __all__, "kiln.")
