# SPDX-License-Identifier: Apache-2.0
"""tle.raw: kernels that call functions in LLVM's IR, PTX, CUDA C++ and MLIR."""

import os
import re
import shutil
import warnings

import numpy as np
import pytest
import triton
import triton.experimental.tle as tle
import triton.experimental.tle.raw as raw
import triton.language as tl
from triton.backends.compiler import GPUTarget

import kiln
from kiln.triton.extensions import sources

needs_clang = pytest.mark.skipif(shutil.which(os.environ.get("KILN_CLANG", "clang-22")) is None,
                                 reason="SKIPPED, NOTHING WAS RUN: clang-22 is not installed")
needs_toolkit = pytest.mark.skipif(sources._toolkit() is None, reason="no toolkit of CUDA is installed, and none is needed")
SPECIAL = "".join(f"declare i32 @llvm.nvvm.read.ptx.sreg.{name}()\n" for name in ("tid.x", "ntid.x", "ctaid.x"))


@pytest.fixture(scope="module")
def address(raw_address):
    """Of a daemon whose caller may have functions compiled."""
    return raw_address


def compiled_for(target, kernel, signature, warps=4, **constants):
    """The kernel for a GPU, which none here runs."""
    source = triton.compiler.ASTSource(kernel, signature, constants)
    return triton.compile(source, GPUTarget(*target), {"num_warps": warps})


def ptx_of(kernel, signature, warps=4, **constants):
    return compiled_for(("cuda", 90, 32), kernel, signature, warps, **constants).asm["ptx"]


POINTERS = {"a": "*fp32", "b": "*fp32", "c": "*fp32", "n": "i32"}
BLOCK = {"x": "*fp32", "y": "*fp32", "n": "constexpr"}


# A vector's sum, once in each language.

ADD_LLVM = """
define void @add(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %c, i32 %n) {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %ntid = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %first = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %base = mul i32 %first, %ntid
  %i = add i32 %base, %tid
  %inside = icmp slt i32 %i, %n
  br i1 %inside, label %do, label %end
do:
  %pa = getelementptr float, ptr addrspace(1) %a, i32 %i
  %pb = getelementptr float, ptr addrspace(1) %b, i32 %i
  %pc = getelementptr float, ptr addrspace(1) %c, i32 %i
  %va = load float, ptr addrspace(1) %pa
  %vb = load float, ptr addrspace(1) %pb
  %sum = fadd float %va, %vb
  store float %sum, ptr addrspace(1) %pc
  br label %end
end:
  ret void
}
""" + SPECIAL

ADD_PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .func add_ptx(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pn)
{
  .reg .u64 %d<6>;
  .reg .u32 %r<6>;
  .reg .f32 %f<4>;
  .reg .pred %p;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r0, %r0, %r1, %r2;
  ld.param.u32 %r3, [pn];
  setp.ge.s32 %p, %r0, %r3;
  @%p ret;
  mul.wide.u32 %d3, %r0, 4;
  ld.param.u64 %d0, [pa];
  ld.param.u64 %d1, [pb];
  ld.param.u64 %d2, [pc];
  add.u64 %d0, %d0, %d3;
  add.u64 %d1, %d1, %d3;
  add.u64 %d2, %d2, %d3;
  ld.f32 %f0, [%d0];
  ld.f32 %f1, [%d1];
  add.f32 %f2, %f0, %f1;
  st.f32 [%d2], %f2;
  ret;
}
"""

ADD_CUDA = """
__device__ void add_cuda(float* a, float* b, __attribute__((address_space(1))) float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i] * WEIGHT;
}
"""


@raw.dialect(name="llvm", source=ADD_LLVM)
def add(*args):
    ...


@raw.dialect(name="ptx", source=ADD_PTX)
def add_ptx(*args):
    ...


@raw.dialect(name="cuda", source=ADD_CUDA, defines={"WEIGHT": 2})
def add_cuda(*args):
    ...


@triton.jit
def sum_by(a, b, c, n, F: tl.constexpr):
    raw.call(F, [a, b, c, n])


@triton.jit
def sum_by_llvm(a, b, c, n):
    raw.call(add, [a, b, c, n])


@triton.jit
def sum_by_ptx(a, b, c, n):
    tle.call(add_ptx, [a, b, c, n])


@triton.jit
def sum_by_cuda(a, b, c, n):
    raw.call(add_cuda, [a, b, c, n])


def vectors(n=300):
    a, b = np.arange(n, dtype=np.float32), np.linspace(-1, 5, n).astype(np.float32)
    return a, b, np.full(n, np.nan, np.float32)


def test_llvm_runs():
    a, b, c = vectors()
    sum_by_llvm[(3,)](a, b, c, len(a))
    assert np.array_equal(c, a + b)


@needs_clang
def test_cuda_runs():
    a, b, c = vectors()
    sum_by_cuda[(3,)](a, b, c, len(a))
    assert np.array_equal(c, a + b * 2)


@pytest.mark.parametrize("kernel", [sum_by_llvm, pytest.param(sum_by_cuda, marks=needs_clang)])
def test_ptx_of_text_that_is_linked(kernel):
    ptx = ptx_of(kernel, POINTERS)
    assert "call" not in ptx and re.search(r"(add|fma)(\.rn)?\.f32", ptx)
    assert "ld.global" in ptx and "st.global" in ptx


def test_ptx_gets_the_text_of_ptx():
    ptx = ptx_of(sum_by_ptx, POINTERS)
    assert ptx.count(".func add_ptx") == 1 and ".extern" not in ptx and "mad.lo.u32 %r0, %r0, %r1, %r2" in ptx
    assert ptx.index(".func add_ptx") < ptx.index(".entry") and "call.uni" in ptx and ptx.count(".version") == 1


def test_ptx_is_refused_elsewhere():
    a, b, c = vectors()
    with pytest.raises(kiln.CompileError, match="does not run PTX, as the function 'add_ptx' is written in"):
        sum_by_ptx[(3,)](a, b, c, len(a))
    with pytest.raises(kiln.CompileError, match="does not run PTX"):
        compiled_for(("hip", "gfx942", 64), sum_by_ptx, POINTERS)


ADD_AMD = """
define void @add(ptr addrspace(1) %a, ptr %b, ptr addrspace(1) %c, i32 %n) {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %pa = getelementptr float, ptr addrspace(1) %a, i32 %i
  %pb = getelementptr float, ptr %b, i32 %i
  %pc = getelementptr float, ptr addrspace(1) %c, i32 %i
  %va = load float, ptr addrspace(1) %pa
  %vb = load float, ptr %pb
  %e = call float @llvm.exp.f32(float %vb)
  %sum = fadd float %va, %e
  store float %sum, ptr addrspace(1) %pc
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
declare float @llvm.exp.f32(float)
"""
add_amd = raw.dialect(name="llvm", source=ADD_AMD, extern_func_name="add")(add.function)


@triton.jit
def sum_on_amd(a, b, c, n):
    raw.call(add_amd, [a, b, c, n])


def test_a_text_for_amd():
    assert "global_store_dword" in compiled_for(("hip", "gfx942", 64), sum_on_amd, POINTERS).asm["amdgcn"]
    with pytest.raises(kiln.CompileError, match="'llvm.amdgcn.workitem.id.x' is no instruction of cuda:sm_90a"):
        ptx_of(sum_on_amd, POINTERS)
    a, b, c = vectors(64)
    sum_on_amd[(1,)](a, b, c, 64, num_warps=2)
    assert np.abs(c - (a + np.exp(b))).max() < 1e-4


# Blocks and buffers.

SCALE_LLVM = """
define void @scale(ptr addrspace(3) %all, ptr addrspace(3) %out, i64 %offset, i64 %size, i64 %stride,
                   ptr addrspace(3) %from_all, ptr addrspace(3) %from, i64 %from_offset, i64 %from_size, i64 %from_stride, float %by) {
  %tid32 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %ntid32 = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %tid = zext i32 %tid32 to i64
  %ntid = zext i32 %ntid32 to i64
  br label %test
test:
  %i = phi i64 [ %tid, %0 ], [ %next, %do ]
  %more = icmp slt i64 %i, %size
  br i1 %more, label %do, label %end
do:
  %in_place = mul i64 %i, %from_stride
  %at = add i64 %in_place, %from_offset
  %p = getelementptr float, ptr addrspace(3) %from, i64 %at
  %v = load float, ptr addrspace(3) %p
  %w = fmul float %v, %by
  %out_place = mul i64 %i, %stride
  %out_at = add i64 %out_place, %offset
  %q = getelementptr float, ptr addrspace(3) %out, i64 %out_at
  store float %w, ptr addrspace(3) %q
  %next = add i64 %i, %ntid
  br label %test
end:
  ret void
}
""" + SPECIAL


@raw.dialect(name="llvm", source=SCALE_LLVM, extern_func_name="scale", deferred=True)
def scaled(*args):
    ...


@triton.jit
def scale_block(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    row = tl.load(x + i)
    out = raw.call(scaled, [tl.zeros([n], tl.float32), row, 3.0], output_indices=[0])
    tl.store(y + i, out + row)


@triton.jit
def scale_in_the_older_form(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    out = raw.call(scaled, [tl.zeros([n], tl.float32)], [tl.load(x + i), 3.0])
    tl.store(y + i, out)


@triton.jit
def scale_twice(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    out, row = tle.call(scaled, [tl.zeros([n], tl.float32), tl.load(x + i), 2.0], output_indices=[0, 1])
    tl.store(y + i, out + row)


@triton.jit
def scale_a_buffer(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    buffer = tle.gpu.alloc([2, n], tl.float32)
    buffer.slot(1).store(tl.load(x + i))
    raw.call_smem(scaled, [buffer.slot(0), buffer.slot(1), 2.0])
    tl.store(y + i, buffer.slot(0).load())


@triton.jit
def scale_in_a_loop(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    total = tl.load(x + i)
    for step in range(3):
        total = raw.call(scaled, [total, total, 2.0], output_indices=[0]) + step
    tl.store(y + i, total)


@pytest.mark.parametrize("kernel, expected", [
    (scale_block, lambda x: x * 3 + x), (scale_in_the_older_form, lambda x: x * 3), (scale_twice, lambda x: x * 3),
    (scale_a_buffer, lambda x: x * 2), (scale_in_a_loop, lambda x: ((x * 2) * 2 + 1) * 2 + 2)], ids=range(5))
@pytest.mark.parametrize("warps", [1, 4])
def test_blocks(kernel, expected, warps):
    x = np.arange(256, dtype=np.float32)
    y = np.full_like(x, np.nan)
    kernel[(1,)](x, y, 256, num_warps=warps)
    assert np.array_equal(y, expected(x))
    assert ("bar.sync" if warps > 1 else "bar.warp.sync") in ptx_of(kernel, BLOCK, warps, n=256)


REVERSE_LLVM = """
define void @reverse(ptr %all, i32 %n) {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %last = sub i32 %n, 1
  %j = sub i32 %last, %i
  %inside = icmp slt i32 %i, %n
  br i1 %inside, label %take, label %meet
take:
  %p = getelementptr float, ptr %all, i32 %j
  %taken = load float, ptr %p
  br label %meet
meet:
  %v = phi float [ 0.0, %0 ], [ %taken, %take ]
  call void @llvm.nvvm.barrier0()
  br i1 %inside, label %put, label %end
put:
  %q = getelementptr float, ptr %all, i32 %i
  store float %v, ptr %q
  br label %end
end:
  ret void
}
declare void @llvm.nvvm.barrier0()
""" + SPECIAL


@raw.dialect(name="llvm", source=REVERSE_LLVM)
def reverse(*args):
    ...


@triton.jit
def reversed_in_memory(x, y, n, BLOCK: tl.constexpr):
    """What threads have stored the function takes, and what it stores other threads take."""
    i = tl.arange(0, BLOCK)
    for step in range(2):
        tl.store(x + i, tl.load(y + i, i < n) * 2 + step, i < n)
        raw.call(reverse, [x, n])
        tl.store(y + i, tl.load(x + i, i < n) + 1, i < n)


@pytest.mark.parametrize("warps", [2, 4])
def test_memory_is_in_order(warps):
    x, y = np.zeros(64, np.float32), np.arange(64, dtype=np.float32)
    expected = y.copy()
    for step in range(2):
        expected = (expected * 2 + step)[::-1] + 1
    reversed_in_memory[(1,)](x, y, 60 + 4, BLOCK=64, num_warps=warps)
    assert np.array_equal(y, expected)
    assert ptx_of(reversed_in_memory, {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}, warps, BLOCK=64).count("bar.sync") >= 3


@triton.jit
def of_a_part(x, y, n: tl.constexpr):
    """What a function gets of a buffer: parts, other shapes of it, and elements by pointers."""
    i = tl.arange(0, n)
    buffer = tle.gpu.alloc([4, n // 2], tl.float32)
    buffer.reshape([2 * n]).slice(0, n, 0).store(tl.load(x + i))
    buffer.reshape([2 * n]).slice(n, n, 0).store(tl.zeros([n], tl.float32))
    raw.call(scaled, [buffer.slot(3), buffer.slot(1), 2.0])
    raw.call(reverse, [tle.gpu.local_ptr(buffer, [2, 0]), n])
    tl.store(y + i, buffer.reshape([2 * n]).slice(n, n, 0).load())


def test_parts_of_buffers():
    x, y = np.arange(64, dtype=np.float32), np.full(64, np.nan, np.float32)
    of_a_part[(1,)](x, y, 64, num_warps=2)
    assert np.array_equal(y, np.concatenate([np.zeros(32), x[32:] * 2])[::-1])


FLIP_LLVM = """
define void @flip(ptr %all, ptr %row, i64 %offset, i64 %size, i64 %stride) {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr i8, ptr %row, i32 %i
  %v = load i8, ptr %p
  %w = xor i8 %v, 1
  store i8 %w, ptr %p
  ret void
}
""" + SPECIAL


@raw.dialect(name="llvm", source=FLIP_LLVM)
def flip(*args):
    ...


@triton.jit
def flipped(x, y, n: tl.constexpr):
    """Of bits, and of a buffer, which the call gives back."""
    i = tl.arange(0, n)
    odd = raw.call(flip, [tl.load(x + i) > 5], output_indices=[0])
    buffer = tle.gpu.alloc([n], tl.int8)
    buffer.store(i.to(tl.int8))
    same = raw.call(flip, [buffer], output_indices=[0])
    tl.store(y + i, tl.where(odd, same.load().to(tl.float32), -1))


def test_bits_and_buffers_come_back():
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    flipped[(1,)](x, y, 32, num_warps=1)
    assert np.array_equal(y, np.where(x > 5, -1, np.arange(32) ^ 1))


SOFTMAX_CUDA = """
#define SHARED __attribute__((address_space(3)))
template <int N>
__device__ void row(SHARED float* out, const SHARED float* in, int n) {
  float most = in[0], sum = 0;
  for (int i = 0; i < n; ++i) most = fmaxf(most, in[i]);
  for (int i = 0; i < n; ++i) sum += expf(in[i] - most);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = expf(in[i] - most) / sum;
  __syncthreads();
}
namespace kernels {
__device__ void softmax(SHARED float*, SHARED float* out, long long, long long n, long long, SHARED float*, SHARED float* in, long long,
                        long long, long long) {
  row<1>(out, in, n);
}
}
"""


@raw.dialect(name="cuda", source=SOFTMAX_CUDA, extern_func_name="softmax")
def softmax(*args):
    ...


@triton.jit
def softmax_row(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, raw.call(softmax, [tl.zeros([n], tl.float32)], [tl.load(x + i)]))


@needs_clang
@pytest.mark.parametrize("toolkit", [False, pytest.param(True, marks=needs_toolkit)])
def test_a_softmax_in_cuda(toolkit, monkeypatch):
    if not toolkit:
        monkeypatch.setattr(sources, "_toolkit", lambda: None)
    x = np.random.default_rng(3).standard_normal(128).astype(np.float32)
    y = np.empty_like(x)
    assert "ex2.approx" in ptx_of(softmax_row, BLOCK, n=128)
    softmax_row[(1,)](x, y, 128)
    expected = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    assert np.abs(y - expected).max() < 1e-6


# The key.


@needs_clang
def test_what_a_text_includes_is_read_anew(tmp_path):
    file, header = tmp_path / "add.cu", tmp_path / "weight.h"
    file.write_text('#include "weight.h"\n' + ADD_CUDA)
    texts = []
    for weight in (2, 3):
        header.write_text(f"#define WEIGHT {weight}\n")
        function = raw.dialect(name="cuda", file=file, extern_func_name="add_cuda")(add.function)
        texts.append(sources.text_of(function, function.source(), "emu:sm_80").text)
    assert texts[0] != texts[1]


def test_two_texts_are_two_kernels(tmp_path):
    file = tmp_path / "add.ll"
    file.write_text(ADD_LLVM)
    from_file = raw.dialect(name="llvm", file=file, extern_func_name="add")(lambda *args: None)
    first, second = vectors(), vectors()
    sum_by[(3,)](*first, 300, F=from_file)
    file.write_text(ADD_LLVM.replace("fadd", "fsub"))
    sum_by[(3,)](*second, 300, F=from_file)
    assert np.array_equal(first[2], first[0] + first[1]) and np.array_equal(second[2], second[0] - second[1])


def test_a_hint_is_told_of():
    @triton.jit
    def hinted(a, b, c, n):
        raw.call(add, [a, b, c, n], hint="fast")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hinted[(1,)](*vectors(100), 100)
    assert any("tle.raw.call(hint='fast') has no effect in Kiln" in str(w.message) for w in told)
