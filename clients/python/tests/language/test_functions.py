# SPDX-License-Identifier: Apache-2.0
"""T.call: functions in LLVM's IR and PTX."""

import numpy as np
import pytest
from needs import needs_kilnd

import kiln
import kiln.language as T
from kiln.client import Client

pytestmark = needs_kilnd
SHIFT = """
define void @shift(ptr %row, i32 %n, float %by, i32 %thread) {
  %inside = icmp slt i32 %thread, %n
  br i1 %inside, label %do, label %end
do:
  %p = getelementptr float, ptr %row, i32 %thread
  %v = load float, ptr %p
  %w = fadd float %v, %by
  store float %w, ptr %p
  br label %end
end:
  ret void
}
"""
SHIFT_PTX = """
.func shift_ptx(.param .u32 row, .param .f32 by)
{
  .reg .u32 %a, %t;
  .reg .f32 %v, %w;
  ld.param.u32 %a, [row];
  ld.param.f32 %w, [by];
  mov.u32 %t, %tid.x;
  mad.lo.u32 %a, %t, 4, %a;
  ld.shared.f32 %v, [%a];
  add.f32 %v, %v, %w;
  st.shared.f32 [%a], %v;
  ret;
}
"""


def shifted(function, rows=4, columns=64, ptx=False):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows, threads=64) as bx:
            tx = T.get_thread_binding()
            tile = T.alloc_shared((2, columns), "float32")
            T.copy(A[bx, 0], tile[1, :])
            if ptx:
                T.call(function, tile[1, 0:columns], T.float32(2))
            else:
                T.call(function, tile[1, 0:columns], T.int32(columns), T.float32(2), tx)
            T.copy(tile[1, :], B[bx, 0])
            if not ptx:
                T.call(function, B[bx, 0:columns], T.int32(columns // 2), T.float32(1), tx)

    return main


@pytest.fixture(scope="module")
def client(raw_address):
    with Client(raw_address) as client:
        yield client


def test_it_runs(client):
    a, b = np.arange(256, dtype=np.float32).reshape(4, 64), np.zeros((4, 64), np.float32)
    kernel = kiln.compile(shifted(T.llvm_function("shift", SHIFT)), target="emu:sm_80", client=client)
    with kiln.emulation(check=True):
        kernel(a, b)
    assert np.array_equal(b, a + 2 + (np.arange(64) < 32))


def test_ptx_takes_addresses_within_shared_memory(client):
    code = kiln.compile(shifted(T.ptx_function("shift_ptx", SHIFT_PTX), ptx=True), target="cuda:sm_80", client=client).artifact.code
    assert b".func shift_ptx" in code and b".extern .func" not in code and b"ld.shared.f32 %v, [%a]" in code


def test_the_text_is_in_the_key(client):
    keys = {client.compile(shifted(T.llvm_function("shift", SHIFT + more)), "cuda:sm_80").key for more in ("", "\n", "\n\n", "\n")}
    assert len(keys) == 3


DOTTED = """
define internal i32 @own.number() {
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  ret i32 %tid
}
define void @my.shift(ptr %row, i32 %n, float %by, i32 %thread) {
  %i = call i32 @own.number()
  %inside = icmp slt i32 %i, %n
  br i1 %inside, label %do, label %end
do:
  %p = getelementptr float, ptr %row, i32 %i
  %v = load float, ptr %p
  %w = fadd float %v, %by
  store float %w, ptr %p
  br label %end
end:
  ret void
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
"""


def test_names_with_dots(client):
    a, b = np.arange(256, dtype=np.float32).reshape(4, 64), np.zeros((4, 64), np.float32)
    kiln.compile(shifted(T.llvm_function("my.shift", DOTTED)), target="emu:sm_80", client=client)(a, b)
    assert np.array_equal(b, a + 2 + (np.arange(64) < 32))


def test_each_call_is_checked(client):
    function = T.llvm_function("shift", SHIFT)

    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            T.call(function, A, T.int32(64), T.float32(1), T.get_thread_binding())
            T.call(function, A)

    with pytest.raises(kiln.CompileError, match="'shift' takes 4 parameters, and the call gives 1"):
        client.compile(main, "cuda:sm_80")


FILL = """
define void @shift(ptr %row, i32 %n, float %by, i32 %thread) {
  %first = icmp eq i32 %thread, 0
  br i1 %first, label %do, label %end
do:
  %half = lshr i32 %n, 1
  %bytes = shl i32 %half, 2
  %q = getelementptr float, ptr %row, i32 %half
  call void @llvm.memcpy.p0.p0.i32(ptr %q, ptr %row, i32 %bytes, i1 false)
  call void @llvm.memset.p0.i32(ptr align 4 %row, i8 0, i32 16, i1 false)
  br label %end
end:
  ret void
}
declare void @llvm.memcpy.p0.p0.i32(ptr, ptr, i32, i1)
declare void @llvm.memset.p0.i32(ptr, i8, i32, i1)
"""


def test_copies_of_memory(client):
    a, b = np.arange(256, dtype=np.float32).reshape(4, 64), np.zeros((4, 64), np.float32)
    kernel = kiln.compile(shifted(T.llvm_function("shift", FILL)), target="emu:sm_80", client=client)
    with kiln.emulation(check=True):
        kernel(a, b)
    expected = a.copy()
    for count in (64, 32):
        expected[:, count // 2 : count] = expected[:, : count // 2]
        expected[:, :4] = 0
    assert np.array_equal(b, expected)


@pytest.mark.parametrize("function, target, match", [
    (T.ptx_function("shift_ptx", SHIFT_PTX), "hip:gfx942", "does not run PTX"),
    (T.ptx_function("shift_ptx", SHIFT_PTX.replace(".param .f32 by", ".param .f64 by")), "cuda:sm_80",
     "parameter 2 of 'shift_ptx' is a float of 64 bits"),
    (T.ptx_function("shift_ptx", SHIFT_PTX.replace(", .param .f32 by", "")), "cuda:sm_80", "line 2 of .*|takes 1 parameters, and the call gives 2"),
])
def test_refusals(client, function, target, match):
    with pytest.raises(kiln.CompileError, match=match):
        client.compile(shifted(function, ptx=True), target)


def test_some_threads_do_not_call(client):
    function = T.llvm_function("shift", SHIFT)

    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            if tx < 32:
                T.call(function, A, T.int32(64), T.float32(1), tx)

    with pytest.raises(kiln.CompileError, match="a call that only threads 0 to 31 reach"):
        client.compile(main, "cuda:sm_80")


def test_what_has_no_address():
    function = T.llvm_function("shift", SHIFT)
    with pytest.raises(T.TraceError, match="which is no tensor and not in shared memory"):
        @T.prim_func
        def main(A: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=64):
                T.call(function, T.alloc_fragment((64,), "float32"))

        main.module
    with pytest.raises(T.TraceError, match="it calls what T.llvm_function or T.ptx_function makes"):
        @T.prim_func
        def other(A: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=64):
                T.call("shift", A)

        other.module
