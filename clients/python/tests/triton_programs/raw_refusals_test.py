# SPDX-License-Identifier: Apache-2.0
"""tle.raw: what kernels and functions are refused, and why."""

import re
import shutil

import numpy as np
import pytest
import triton
import triton.experimental.tle.raw as raw
import triton.language as tl
from raw_mlir_test import of_mlir
from raw_test import ADD_LLVM, add, needs_clang, sum_by, vectors

import kiln
from kiln.triton.extensions import sources


@pytest.fixture(scope="module")
def address(raw_address):
    return raw_address


def refused_line(kernel, *arguments, match, **constants):
    with pytest.raises((kiln.CompileError, triton.CompilationError), match=match) as caught:
        kernel[(1,)](*arguments, **constants)
    assert re.search(r"raw_refusals_test\.py:\d+", str(caught.value)), caught.value
    return str(caught.value)


@triton.jit
def with_too_few(a, F: tl.constexpr):
    raw.call(F, [a])


@pytest.mark.parametrize("text, match", [
    (ADD_LLVM, "line 2 of the text of 'add'.*takes 4 parameters, and the call gives 1"),
    ("define void @add(i32 %a) {\n  ret void\n}\n",
     r"line 1 of the text of 'add'.*parameter 1 of 'add' is i32, and the call gives ptr addrspace\(1\)"),
    ("define void @add(ptr %a) {\n  ret vod\n}\n", "line 2 of the text of 'add'.*expected"),
    ("define void @other(ptr %a) {\n  ret void\n}\n", "(?s)does not define 'add'.*it defines 'other'"),
    ("define void @add(ptr %a) {\n  call void @far()\n  ret void\n}\ndeclare void @far()\n", "calls 'far', which it does not define"),
    ("define void @add(ptr %a) {\n  call void @add(ptr %a)\n  ret void\n}\n", "'add' calls itself"),
    ("define void @add(ptr %a) {\n  %f = load ptr, ptr %a\n  call void %f()\n  ret void\n}\n", "calls a function by its address"),
    ("@kept = global i32 0\ndefine void @add(ptr %a) {\n  store i32 1, ptr @kept\n  ret void\n}\n", "'kept' keeps its value"),
    ("@own = addrspace(3) global i32 poison\ndefine void @add(ptr %a) {\n  store i32 1, ptr addrspace(3) @own\n  ret void\n}\n",
     "'own' lies in shared memory of the function's own"),
    ("@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 1, ptr @add, ptr null }]\n"
     "define void @add(ptr %a) {\n  ret void\n}\n", "runs constructors"),
    ('define void @add(ptr %a) {\n  call void asm "nop", ""()\n  ret void\n}\n', "inline assembly, which the emulator does not run"),
], ids=range(11))
def test_texts_that_are_refused(text, match):
    function = raw.dialect(name="llvm", source=text, extern_func_name="add")(lambda *args: None)
    refused_line(with_too_few, np.zeros(8, np.float32), F=function, match=match)


@triton.jit
def in_a_branch_of_some(x, F: tl.constexpr):
    raw.call(F, [x + tl.arange(0, 8)])


@pytest.mark.parametrize("options, match", [
    ({"name": "tops", "source": ""}, "the dialect 'tops' is not part of Kiln, which knows llvm, ptx, cuda, mlir"),
    ({"name": "llvm"}, "it has no text"),
    ({"name": "llvm", "source": "", "compiler": "nvcc"}, "compiler='nvcc' is not part of Kiln"),
    ({"name": "cuda", "source": "", "library": "nvshmem"}, "library='nvshmem' is not part of Kiln"),
    ({"name": "llvm", "source": "", "defines": {"A": 1}}, "defines belong to CUDA C"),
    ({"name": "llvm", "source": "", "target": "hsaco"}, "target='hsaco' is not part of Kiln"),
    ({"name": "llvm", "source": ""}, "a block of pointers as an argument"),
    ({"name": "llvm", "file": "/nowhere/at/all.ll"}, "cannot be read"),
])
def test_options_that_are_refused(options, match):
    function = raw.dialect(**options)(lambda *args: None)
    kernel = in_a_branch_of_some if "block of pointers" in match else with_too_few
    refused_line(kernel, np.zeros(8, np.float32), F=function, match=match)


def test_an_option_that_nobody_knows():
    with pytest.raises(TypeError, match="tle.raw.dialect does not know nonsense"):
        raw.dialect(name="llvm", nonsense=1)


@needs_clang
@pytest.mark.parametrize("text, match", [
    ("__device__ void add(float* a) { b = 1; }", r"clang refuses the text: .*:1:\d+: error: use of undeclared identifier 'b'"),
    ("__device__ void other(float* a) {}", "the text does not define it for the device; it defines _Z5otherPf"),
    ("__device__ void add(float* a) {} __device__ void add(int a) {}", "several functions have that name"),
    ("__global__ void add(float* a) {}", "'_Z3addPf' is a kernel"),
])
def test_cuda_that_is_refused(text, match):
    function = raw.dialect(name="cuda", source=text, extern_func_name="add")(lambda *args: None)
    refused_line(with_too_few, np.zeros(8, np.float32), F=function, match=match)


def test_cuda_without_a_compiler(monkeypatch):
    monkeypatch.setenv("KILN_CLANG", "/nowhere/clang")
    sources._compiled.cache_clear()
    function = raw.dialect(name="cuda", source="__device__ void add(float* a) {}")(add.function)
    refused_line(with_too_few, np.zeros(8, np.float32), F=function, match="install Debian's clang-22")


def test_without_the_scope(tmp_path, sockets, monkeypatch):
    """The caller may compile, and not functions in other languages."""
    from daemon import Daemon

    daemon = Daemon(tmp_path / "state", sockets)
    try:
        daemon.start()
        monkeypatch.setattr("kiln.compiler.default_client", lambda: daemon.client())
        a, b, c = vectors(40)
        with pytest.raises(kiln.KilnError, match="needs the scope raw.*kilnd token new"):
            sum_by[(1,)](a, b, c, 40, F=raw.dialect(name="llvm", source=ADD_LLVM + "; another", extern_func_name="add")(lambda *args: None))
    finally:
        daemon.end()


@pytest.mark.skipif(shutil.which("mlir-opt-22") is not None, reason="the tools are installed")
def test_mlir_without_its_tools():
    refused_line(with_too_few, np.zeros(8, np.float32), F=of_mlir, match="install Debian's mlir-22-tools")
