# SPDX-License-Identifier: Apache-2.0
"""tilelang.tools.Analyzer: what a function computes and moves."""

import pytest

import kiln.language as T


class Device:
    compute_capability, bandwidth = "90", [0, 3_000_000]
    clock, compute_max_core = 1_000_000_000, 100


def test_products_and_tensors_are_counted(tilelang):  # noqa: F811
    from tilelang.tools import Analyzer

    @T.prim_func
    def main(A: T.Tensor((64, 128), T.float16), B: T.Tensor((128, 64), T.int8), C: T.Tensor((64, 64), T.float32), n: T.Tensor((4,), T.int32)):
        with T.Kernel(2, 3, threads=32) as (bx, by):
            a, b = T.alloc_shared((32, 128), T.float16), T.alloc_shared((128, 64), T.float16)
            c = T.alloc_fragment((32, 64), T.float32)
            for k in T.serial(n.shape[0]):
                T.copy(A[bx * 32, 0], a)  # 8192 bytes
                T.copy(B, b)  # 8192 bytes
                T.gemm(a, b, c)
            for i, j in T.Parallel(32, 64):
                C[bx * 32 + i, j] += c[i, j]  # 8192 bytes, there and back
            C[0, T.get_thread_binding()] = T.cast(n[0], T.float32)  # 32 and one elements
        with T.Kernel(1, threads=32):
            T.fill(C[0:1, :], 0)  # 256 bytes

    moved = 6 * (4 * 16384 + 2 * 8192 + 32 * 4 + 4) + 256
    result = Analyzer.analysis(main, Device())
    assert result.total_flops == 6 * 4 * 2 * 32 * 64 * 128 and result.total_global_bytes == moved
    assert result.expected_tflops == pytest.approx(409.6) and result.expected_bandwidth_GBps == 3000
    assert result.estimated_time == pytest.approx(max(result.total_flops / 409.6e12, moved / 3e12))
    analyzer = Analyzer(main, Device())
    analyzer.block_counts["blockIdx.y"] = 7
    assert analyzer.ir_pass().ir_pass().calculate() == result and analyzer.block_counts == {"blockIdx.x": 1}


def test_what_is_not_known(tilelang):  # noqa: F811
    from tilelang.tools import Analyzer

    class Older:
        compute_capability, bandwidth = "61", [0, 480_000]

    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m,), T.float32)):
        with T.Kernel(m, threads=32) as bx:
            A[bx] = 0.0

    @T.prim_func
    def fixed(A: T.Tensor((4,), T.float32)):
        with T.Kernel(4, threads=32) as bx:
            A[bx] = 0.0

    with pytest.raises(ValueError, match="an extent of the grid, m, is known at run time only"):
        Analyzer.analysis(main, Device())
    with pytest.raises(TypeError, match="takes what T.prim_func or get_tir gives"):
        Analyzer(3, Device())
    result = Analyzer.analysis(fixed, Older())
    assert result.expected_tflops is None and result.estimated_time == pytest.approx(16 / 480e9) and result.total_flops == 0
