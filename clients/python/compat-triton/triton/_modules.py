# SPDX-License-Identifier: Apache-2.0
"""The modules of Triton that programs import, each with what Kiln has under its names. triton.language is kiln.triton.language itself."""

import sys
import types

import kiln.triton
from kiln.triton import blocks, errors, language, runtime, testing

# module: {name: object}
_NAMES = {
    "runtime": {name: getattr(kiln.triton, name) for name in ("Autotuner", "Config", "Heuristics", "JITFunction", "KernelInterface", "OutOfResources",
                                                              "TensorWrapper", "autotune", "heuristics", "reinterpret")},
    "runtime.jit": {"JITFunction": runtime.JITFunction, "KernelInterface": runtime.KernelInterface, "jit": runtime.jit},
    "runtime.autotuner": {name: getattr(kiln.triton, name)
                          for name in ("Autotuner", "Config", "Heuristics", "OutOfResources", "autotune", "heuristics")},
    "runtime.errors": {"OutOfResources": errors.OutOfResources},
    "tools": {}, "tools.tensor_descriptor": {"TensorDescriptor": blocks.TensorDescriptor},
    "compiler": {"CompilationError": errors.CompilationError},
    "compiler.errors": {"CompilationError": errors.CompilationError},
}


def _module(name: str, names: dict):
    module = types.ModuleType(name)

    def __getattr__(attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise AttributeError(f"{name}.{attribute} is not part of Kiln's compatibility package; it has {', '.join(sorted(names))}")

    module.__dict__.update(names, __getattr__=__getattr__, __all__=list(names), __path__=[])
    return module


def install(package: str) -> None:
    """Lets them be imported."""
    given = {"language": language, "language.core": language, "language.math": language, "language.standard": language, "testing": testing}
    language.__path__ = []  # so that an import of what is not in it says so
    given.update({name: _module(f"{package}.{name}", names) for name, names in _NAMES.items()})
    for name, module in given.items():
        sys.modules[f"{package}.{name}"] = module
        home, _, last = name.rpartition(".")
        if home != "language":
            setattr(sys.modules[f"{package}.{home}" if home else package], last, module)
