# SPDX-License-Identifier: Apache-2.0
"""The modules of Triton that programs import, each with what Kiln has under its names. triton.language is kiln.triton.language itself."""

import sys
from types import ModuleType

import kiln.triton
from kiln.triton import blocks, compiled, driver, errors, extra, knobs, language, libdevice, runtime, target_info, testing, tle, types

_TYPES = {str(of.kiln).replace("bool", "int1"): of.name for of in types.dtype._known.values()}  # "float32" → "fp32"
_TUNING = {name: getattr(kiln.triton, name) for name in ("Autotuner", "Config", "Heuristics", "OutOfResources", "autotune", "heuristics")}

# module: {name: object}
_NAMES = {
    "runtime": {**_TUNING, **{name: getattr(kiln.triton, name) for name in ("JITFunction", "KernelInterface", "TensorWrapper", "reinterpret")},
                "driver": driver},
    "runtime.jit": {"JITFunction": runtime.JITFunction, "KernelInterface": runtime.KernelInterface, "jit": runtime.jit,
                    "TensorWrapper": kiln.triton.TensorWrapper, "reinterpret": kiln.triton.reinterpret, "type_canonicalisation_dict": _TYPES,
                    "constexpr_function": runtime.constexpr_function},
    "runtime.autotuner": {**_TUNING, "PTXASError": errors.PTXASError}, "runtime.cache": {"triton_key": compiled.triton_key},
    "runtime.driver": {"active": driver.active, "set_active": driver.set_active, "driver": driver},
    "runtime._allocation": {"NullAllocator": type("NullAllocator", (), {})},
    "runtime.errors": {name: getattr(errors, name) for name in ("InterpreterError", "OutOfResources", "PTXASError", "TritonError")},
    "tools": {}, "tools.tensor_descriptor": {"TensorDescriptor": blocks.TensorDescriptor},
    "compiler": {name: getattr(compiled, name) for name in ("ASTSource", "CompiledKernel", "compile")} | {
        "CompilationError": errors.CompilationError, "GPUTarget": driver.GPUTarget},
    "compiler.compiler": {"triton_key": compiled.triton_key, "ASTSource": compiled.ASTSource, "CompiledKernel": compiled.CompiledKernel,
                          "GPUTarget": driver.GPUTarget, "make_backend": driver.make_backend},
    "compiler.errors": {name: getattr(errors, name) for name in ("CompilationError", "CompileTimeAssertionFailure")},
    "backends": {"backends": driver.backends}, "backends.compiler": {"GPUTarget": driver.GPUTarget},
    "experimental": {"tle": tle},
    "language.extra": {"libdevice": libdevice, "cuda": extra.cuda}, "language.extra.cuda": vars(extra.cuda),
}


def _module(name: str, names: dict):
    module = ModuleType(name)

    def __getattr__(attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise AttributeError(f"{name}.{attribute} is not part of Kiln's compatibility package; it has {', '.join(sorted(names))}")

    module.__dict__.update(names, __getattr__=__getattr__, __all__=list(names), __path__=[])
    return module


def install(package: str) -> None:
    """Lets them be imported."""
    given = {"language": language, "language.core": language, "language.math": language, "language.standard": language, "testing": testing,
             "knobs": knobs, "language.extra.libdevice": libdevice, "language.extra.cuda.libdevice": libdevice,
             "language.target_info": target_info, **{f"experimental.{name}": tle for name in ("tle", "tle.language", "tle.language.core")},
             **{f"experimental.tle.{name}": tle.gpu for name in ("gpu", "language.gpu", "language.gpu.core")},
             **{f"experimental.tle.{name}": tle.raw for name in ("raw", "language.raw", "language.raw.core")}}
    language.__path__ = tle.__path__ = tle.gpu.__path__ = tle.raw.__path__ = []  # so that an import of what is not in them says so
    given.update({name: _module(f"{package}.{name}", names) for name, names in _NAMES.items()})
    for name, module in sorted(given.items()):  # a package before what is in it
        sys.modules[f"{package}.{name}"] = module
        home, _, last = name.rpartition(".")
        if home != "language" or last == "extra":
            setattr(sys.modules[f"{package}.{home}" if home else package], last, module)
