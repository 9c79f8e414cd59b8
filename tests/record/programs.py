# SPDX-License-Identifier: Apache-2.0
"""Scripts that ask for kernels, each as somebody writes them who has no recording in mind."""

KILN = '''
import numpy as np

import kiln
from kiln.examples.rows import softmax

print(kiln.compile(softmax(4, 64))(np.ones((4, 64), np.float16))[0, :2])
'''

TILELANG = '''
import numpy as np
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[-1])
def add(N, block=64, dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, block), threads=64) as bx:
            for i in T.Parallel(block):
                C[bx * block + i] = A[bx * block + i] + B[bx * block + i]
    return main

x = np.arange(200, dtype=np.float32)
assert (add(200)(x, x) == 2 * x).all()
'''

# Compiles for the GPU of its machine; TARGET.
COMPILES = '''
import sys

import kiln
import kiln.language as T

def scale(factor):
    @T.prim_func
    def scale(A: T.Tensor((256,), "float32")):
        with T.Kernel(2, threads=128) as bx:
            for i in T.Parallel(128):
                A[bx * 128 + i] = A[bx * 128 + i] * factor
    return scale

for factor in map(float, sys.argv[2:]):
    kiln.compile(scale(factor), target=sys.argv[1] or None)
'''

REFUSED = '''
import kiln
import kiln.language as T

@T.prim_func
def too_large(A: T.Tensor((8,), "float32")):
    with T.Kernel(1) as bx:
        s = T.alloc_shared((1 << 20, 64), "float32")
        T.copy(A, s[0, 0:8])

try:
    kiln.compile(too_large, target="cuda:sm_90a")
except kiln.CompileError:
    pass
'''

TEXT = """kiln 1
func @twice(%A: global f32[64]) {
  kernel @main grid(1) threads 64 blocks(%bx) {
    for parallel %i in 64 {
      store %A[%i] = %A[%i] * 2.0
    }
  }
}
"""
