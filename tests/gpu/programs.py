# SPDX-License-Identifier: Apache-2.0
"""The tile programs of the GPU run: builders by name, and the fixed list whose bytes two hosts compare."""

import os

import kiln.language as T
from kiln.examples.attention import attention
from kiln.examples.programs import PROGRAMS
from kiln.library.programs.gemm import ACCUMULATOR, gemm
from kiln.library.programs.rms_norm import rms_norm
from kiln.library.programs.softmax import softmax, softmax_online
from kiln.library.spaces import product


def gemm_strided(in_dtype="float16", out_dtype=None, block_m=64, block_n=64, block_k=32, stages=2, threads=128):
    """C = A · B where the rows of all three may lie apart: views into larger tensors."""
    accumulator = ACCUMULATOR.get(in_dtype, "float32")
    out_dtype = out_dtype or (accumulator if in_dtype in ACCUMULATOR else "float32" if in_dtype == "tfloat32" else in_dtype)
    M, N, K = T.dynamic("M, N, K")
    a_row, b_row, c_row = T.dynamic("a_row, b_row, c_row")

    @T.prim_func
    def gemm_strided(A: T.StridedTensor((M, K), (a_row, 1), in_dtype), B: T.StridedTensor((K, N), (b_row, 1), in_dtype),
                     C: T.StridedTensor((M, N), (c_row, 1), out_dtype)):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            a_shared = T.alloc_shared((block_m, block_k), in_dtype)
            b_shared = T.alloc_shared((block_k, block_n), in_dtype)
            accum = T.alloc_fragment((block_m, block_n), accumulator)
            T.clear(accum)
            for ko in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                T.copy(A[by * block_m, ko * block_k], a_shared)
                T.copy(B[ko * block_k, bx * block_n], b_shared)
                T.gemm(a_shared, b_shared, accum)
            T.copy(accum, C[by * block_m, bx * block_n])

    return gemm_strided


def gemm_chosen(M, N, K, choice, **arguments):
    """``gemm`` with one of the tiles among which the planner chooses. One row along k is a program of its own, as it is for the library."""
    if M == 1 and arguments["trans_b"] and K % 8 == 0:
        return gemm(M, N, K, **arguments)
    given = (arguments[name] for name in ("in_dtype", "out_dtype", "trans_a", "trans_b"))
    space = product(M, N, K, *given, os.environ["KILN_TARGET"], copies=True)
    return gemm(M, N, K, **arguments, **dict(space[choice % len(space)]))


def quotients(divisor, block=256, threads=128):
    """C = index // divisor − A, where A is of 64 bits and the quotient of 32."""
    N = T.dynamic("N")

    @T.prim_func
    def quotients(A: T.Tensor((N,), "int64"), C: T.Tensor((N,), "int64")):
        with T.Kernel(T.ceildiv(N, block), threads=threads) as bx:
            for i in T.Parallel(block):
                C[bx * block + i] = T.cast((bx * block + i) // divisor, "int64") - A[bx * block + i]

    return quotients


BUILDERS = {"gemm": gemm, "gemm_chosen": gemm_chosen, "gemm_strided": gemm_strided, "attention": attention, "rms_norm": rms_norm,
            "softmax": softmax, "softmax_online": softmax_online, "quotients": quotients,
            **{f"program:{name}": build for name, build in PROGRAMS.items()}}


def build(builder: str, arguments: dict, target: str):
    """For this target, whatever device the host has: products whose tiles are chosen take theirs from it."""
    os.environ["KILN_TARGET"] = target
    return BUILDERS[builder](**arguments)
