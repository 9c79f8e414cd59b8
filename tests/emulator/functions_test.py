# SPDX-License-Identifier: Apache-2.0
"""T.call on what LLVM makes of a kernel: tests/ptx runs its PTX, and functions in PTX with it."""

import kiln.language as T
import numpy as np
import pytest
from emulated import BINARY, AsPtx

LLVM = """
define void @shift(ptr %tensor, ptr addrspace(3) %tile, i32 %by) {
  %i = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr i32, ptr addrspace(3) %tile, i32 %i
  %v = load i32, ptr addrspace(3) %p
  %w = add i32 %v, %by
  %n = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %last = sub i32 %n, 1
  %j = sub i32 %last, %i
  %q = getelementptr i32, ptr %tensor, i32 %j
  store i32 %w, ptr %q
  store i32 %w, ptr addrspace(3) %p
  ret void
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
"""
PTX = """
.version 7.0
.target sm_70
.func shift(.param .u64 tensor, .param .u32 tile, .param .u32 by)
{
  .reg .u64 %d, %e;
  .reg .u32 %a, %i, %j, %v, %b;
  ld.param.u64 %d, [tensor];
  ld.param.u32 %a, [tile];
  ld.param.u32 %b, [by];
  mov.u32 %i, %tid.x;
  mad.lo.u32 %a, %i, 4, %a;
  ld.shared.u32 %v, [%a];
  add.u32 %v, %v, %b;
  st.shared.u32 [%a], %v;
  mov.u32 %j, %ntid.x;
  sub.u32 %j, %j, %i;
  sub.u32 %j, %j, 1;
  mul.wide.u32 %e, %j, 4;
  add.u64 %d, %d, %e;
  st.u32 [%d], %v;
  ret;
}
"""
FUNCTIONS = {"llvm": T.llvm_function("shift", LLVM), "ptx": T.ptx_function("shift", PTX)}


@pytest.fixture(scope="module")
def as_ptx(tmp_path_factory):
    emulator = AsPtx(BINARY, tmp_path_factory.mktemp("as_ptx"))
    yield emulator
    emulator.close()


def shifted(function, threads):
    @T.prim_func
    def main(A: T.Tensor((3, threads), "int32"), B: T.Tensor((3, threads), "int32"), C: T.Tensor((3, threads), "int32")):
        with T.Kernel(3, threads=threads) as bx:
            tile = T.alloc_shared((2, threads), "int32")
            T.copy(A[bx, 0], tile[1, :])
            for step in T.serial(3):
                T.call(function, B[bx, 0:threads], tile[1, 0:threads], bx + step)
            for i in T.Parallel(threads):
                C[bx, i] = B[bx, i] + tile[1, threads - 1 - i]

    return main


@pytest.mark.parametrize("threads", [64, 96])
@pytest.mark.parametrize("language", FUNCTIONS)
def test_it_runs(as_ptx, language, threads):
    a = np.arange(3 * threads, dtype=np.int32).reshape(3, threads)
    zero = np.zeros_like(a)
    module = as_ptx.module(shifted(FUNCTIONS[language], threads).serialized)
    after, answer = as_ptx.call(module, "emu:sm_80", [(a, "int32"), (zero, "int32"), (zero.copy(), "int32")], seed=3)
    assert "error" not in answer, answer["error"]
    shifts = a + 3 * np.arange(3)[:, None] + 3
    assert answer["finished"] and np.array_equal(after[1], shifts[:, ::-1]) and np.array_equal(after[2], 2 * shifts[:, ::-1])
