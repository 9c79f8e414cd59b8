# SPDX-License-Identifier: Apache-2.0
"""Texts of ``tle.raw`` → what kilnd compiles: LLVM's IR or PTX. CUDA C++ and MLIR are made LLVM's IR of by the tools of LLVM that are installed
here; nothing needs a toolkit of CUDA."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shutil
import subprocess

from ...language import program as ir
from ..errors import Refusal

_OLDEST_CLANG = 20
_SECONDS = 120
# What a device function may name without CUDA's headers.
_PRELUDE = """
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
typedef __SIZE_TYPE__ size_t;
typedef __INT8_TYPE__ int8_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __INT16_TYPE__ int16_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __INT32_TYPE__ int32_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; __host__ __device__ dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {} };
#include <__clang_cuda_builtin_vars.h>
__device__ static __forceinline__ float sqrtf(float x) { return __builtin_sqrtf(x); }
__device__ static __forceinline__ float rsqrtf(float x) { return __nvvm_rsqrt_approx_f(x); }
__device__ static __forceinline__ float fabsf(float x) { return __builtin_fabsf(x); }
__device__ static __forceinline__ float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
__device__ static __forceinline__ float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
__device__ static __forceinline__ float fminf(float x, float y) { return __builtin_fminf(x, y); }
__device__ static __forceinline__ float floorf(float x) { return __builtin_floorf(x); }
__device__ static __forceinline__ float exp2f(float x) { return __nvvm_ex2_approx_f(x); }
__device__ static __forceinline__ float expf(float x) { return __nvvm_ex2_approx_f(x * 1.4426950408889634f); }
__device__ static __forceinline__ float __expf(float x) { return expf(x); }
__device__ static __forceinline__ float log2f(float x) { return __nvvm_lg2_approx_f(x); }
__device__ static __forceinline__ float logf(float x) { return __nvvm_lg2_approx_f(x) * 0.6931471805599453f; }
__device__ static __forceinline__ float __logf(float x) { return logf(x); }
"""
_PIPELINE = ("convert-scf-to-cf", "convert-arith-to-llvm", "convert-math-to-llvm", "expand-strided-metadata", "finalize-memref-to-llvm",
             "convert-func-to-llvm", "convert-gpu-to-nvvm", "convert-nvvm-to-llvm", "convert-cf-to-llvm", "reconcile-unrealized-casts")


def text_of(func, source: str, target: str) -> ir.Function:
    """The function as the program's module has it."""
    return LANGUAGES[func.dialect](func, source, target)


def _llvm(func, source: str, target: str) -> ir.Function:
    return ir.Function("LANGUAGE_LLVM", func.symbol, source)


def _ptx(func, source: str, target: str) -> ir.Function:
    return ir.Function("LANGUAGE_PTX", func.symbol, source)


def _cuda(func, source: str, target: str) -> ir.Function:
    arch = re.fullmatch(r"(?:cuda|emu):(sm_\w+)", target)
    if arch is None:
        raise Refusal(f"{func.__name__} is written in CUDA C++, which runs on NVIDIA's GPUs, and the kernel is compiled for {target}: give "
                      "it a text of LLVM's IR")
    folder = str(pathlib.Path(func.file).resolve().parent) if func.file is not None else None
    # What a toolkit makes of functions such as expf is for GPUs.
    toolkit = None if target.startswith("emu:") else _toolkit()
    macros = tuple(sorted((str(macro), str(value)) for macro, value in func.defines.items()))
    compiled = _compiled.__wrapped__ if '#include "' in source else _compiled  # what it includes may have changed
    text = compiled(source, arch[1], toolkit, macros, folder, func.file or f"{func.__name__}.cu")
    return ir.Function("LANGUAGE_LLVM", _defined(text, func.symbol), text)


def _mlir(func, source: str, target: str) -> ir.Function:
    return ir.Function("LANGUAGE_LLVM", func.symbol, _translated(source, func.file or func.__name__))


LANGUAGES = {"llvm": _llvm, "ptx": _ptx, "cuda": _cuda, "mlir": _mlir}


def _clang() -> str:
    """The compiler of CUDA C++: KILN_CLANG, or what is installed."""
    named = os.environ.get("KILN_CLANG")
    candidates = [named] if named else ["clang-22", "clang-21", f"clang-{_OLDEST_CLANG}", "clang"]
    found = next((path for path in map(shutil.which, candidates) if path is not None and _version(path) >= _OLDEST_CLANG), None)
    if found is None:
        raise Refusal(f"CUDA C++ is compiled by clang {_OLDEST_CLANG} or later, and {' and '.join(candidates)} are no such: install Debian's "
                      "clang-22, or name one by KILN_CLANG")
    return found


@functools.cache
def _version(path: str) -> int:
    found = re.search(r"version (\d+)", _run([path, "--version"], "").stdout)
    return int(found[1]) if found else 0


def _toolkit() -> str | None:
    """A toolkit of CUDA whose headers and device functions the text may use."""
    folders = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return next((f for f in folders if f and all(pathlib.Path(f, part).exists() for part in ("include/cuda_runtime.h", "nvvm/libdevice"))), None)


def _run(command: list, text: str) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise Refusal(f"{pathlib.Path(command[0]).name} takes more than {_SECONDS} seconds") from None
    except OSError as problem:
        raise Refusal(f"{command[0]} cannot be run: {problem}") from None


def _first_error(name: str, run: subprocess.CompletedProcess) -> Refusal:
    lines = run.stderr.splitlines()
    at = next((i for i, line in enumerate(lines) if "error:" in line), 0)
    return Refusal(f"{name} refuses the text: " + "\n".join(lines[at : at + 3]))


@functools.lru_cache(maxsize=256)
def _compiled(source: str, arch: str, toolkit: str | None, defines: tuple, folder: str | None, name: str) -> str:
    """CUDA C++ as LLVM's IR of the device."""
    command = [_clang(), "-x", "cuda", "--cuda-device-only", "-S", "-emit-llvm", "-O2", f"--cuda-gpu-arch={arch}", "-Wno-unknown-cuda-version",
               *(f"-D{macro}={value}" for macro, value in defines), *([f"-I{folder}"] if folder else []), "-o", "-", "-"]
    command[1:1] = [f"--cuda-path={toolkit}"] if toolkit else ["-nocudainc", "-nocudalib"]
    line = f'#line 1 "{name}"\n'
    run = _run(command, line + source if toolkit else _PRELUDE + line + source)
    if run.returncode != 0:
        raise _first_error("clang", run)
    return run.stdout


@functools.lru_cache(maxsize=256)
def _translated(source: str, name: str) -> str:
    """MLIR as LLVM's IR."""
    tools = [shutil.which(tool) for tool in ("mlir-opt-22", "mlir-translate-22")]
    if None in tools:
        raise Refusal("MLIR is made LLVM's IR of by mlir-opt-22 and mlir-translate-22, which are not installed: install Debian's mlir-22-tools, or "
                      "give the function a text of LLVM's IR")
    lowered = _run([tools[0], *(f"--{step}" for step in _PIPELINE), "-"], source)
    if lowered.returncode != 0:
        raise _first_error("mlir-opt", lowered)
    made = _run([tools[1], "--mlir-to-llvmir", "-"], lowered.stdout)
    if made.returncode != 0:
        raise _first_error("mlir-translate", made)
    return made.stdout


def _defined(text: str, name: str) -> str:
    """What C++ calls the function of this name."""
    defined = re.findall(r'^define\b[^@\n]*@"?([\w$.]+)"?\(', text, re.MULTILINE)
    if name in defined:
        return name
    part = f"{len(name)}{name}"
    found = [symbol for symbol in defined if symbol.startswith(f"_Z{part}") or re.match(rf"_ZN(\d+\w+?)*{part}E", symbol)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(found or defined) or "none"
    why = "several functions have that name" if found else "the text does not define it for the device"
    raise Refusal(f"extern_func_name {name!r}: {why}; it defines {known}")
