# SPDX-License-Identifier: Apache-2.0
"""tle.raw: functions in MLIR."""

import shutil

import numpy as np
import pytest
import triton
import triton.experimental.tle.raw as raw
import triton.language as tl
from raw_test import add, sum_by, vectors

needs_mlir = pytest.mark.skipif(shutil.which("mlir-opt-22") is None, reason="SKIPPED, NOTHING WAS RUN: mlir-22-tools is not installed")


@pytest.fixture(scope="module")
def address(raw_address):
    return raw_address


ADD_MLIR = """
func.func @add(%a: !llvm.ptr<1>, %b: !llvm.ptr<1>, %c: !llvm.ptr<1>, %n: i32) {
  %tid = nvvm.read.ptx.sreg.tid.x : i32
  %ntid = nvvm.read.ptx.sreg.ntid.x : i32
  %block = nvvm.read.ptx.sreg.ctaid.x : i32
  %base = arith.muli %block, %ntid : i32
  %i = arith.addi %base, %tid : i32
  %inside = arith.cmpi slt, %i, %n : i32
  scf.if %inside {
    %pa = llvm.getelementptr %a[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
    %pb = llvm.getelementptr %b[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
    %pc = llvm.getelementptr %c[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
    %va = llvm.load %pa : !llvm.ptr<1> -> f32
    %vb = llvm.load %pb : !llvm.ptr<1> -> f32
    %sum = arith.addf %va, %vb : f32
    llvm.store %sum, %pc : f32, !llvm.ptr<1>
  }
  return
}
"""
of_mlir = raw.dialect(name="mlir", source=ADD_MLIR)(add.function)


@needs_mlir
def test_mlir_runs():
    a, b, c = vectors()
    sum_by[(3,)](a, b, c, len(a), F=of_mlir)
    assert np.array_equal(c, a + b)


SCALE_MLIR = """
func.func @scale(%out: memref<?xf32, 3>, %from: memref<?xf32, 3>, %by: f32) {
  %zero = arith.constant 0 : index
  %tid = nvvm.read.ptx.sreg.tid.x : i32
  %ntid = nvvm.read.ptx.sreg.ntid.x : i32
  %first = arith.index_cast %tid : i32 to index
  %step = arith.index_cast %ntid : i32 to index
  %size = memref.dim %from, %zero : memref<?xf32, 3>
  scf.for %i = %first to %size step %step {
    %v = memref.load %from[%i] : memref<?xf32, 3>
    %w = arith.mulf %v, %by : f32
    memref.store %w, %out[%i] : memref<?xf32, 3>
  }
  return
}
"""
scaled_by_mlir = raw.dialect(name="mlir", source=SCALE_MLIR, extern_func_name="scale")(add.function)


@triton.jit
def scale_by_mlir(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, raw.call(scaled_by_mlir, [tl.zeros([n], tl.float32), tl.load(x + i), 3.0], output_indices=[0]))


@needs_mlir
def test_blocks_are_memrefs_of_mlir():
    x = np.arange(256, dtype=np.float32)
    y = np.full_like(x, np.nan)
    scale_by_mlir[(1,)](x, y, 256)
    assert np.array_equal(y, x * 3)
