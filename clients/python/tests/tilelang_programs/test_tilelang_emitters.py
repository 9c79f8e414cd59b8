# SPDX-License-Identifier: Apache-2.0
"""Products that scripts write out as instructions of warps, by TensorCoreIntrinEmitter."""

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from needs import needs_kilnd as pytestmark  # noqa: F401


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


def product(emitter, dtype, wide, transposed_a, transposed_b, m=64, n=48, k=64):
    step = emitter.chunk
    of_a, of_b = ((k, m) if transposed_a else (m, k)), ((n, k) if transposed_b else (k, n))
    tile_a, tile_b = ((step, m) if transposed_a else (m, step)), ((n, step) if transposed_b else (step, n))

    @T.prim_func
    def main(A: T.Tensor(of_a, dtype), B: T.Tensor(of_b, dtype), C: T.Tensor((m, n), wide)):
        with T.Kernel(1, threads=emitter.threads):
            a, b, c = T.alloc_shared(tile_a, dtype), T.alloc_shared(tile_b, dtype), T.alloc_shared((m, n), wide)
            mine = T.alloc_local((emitter.warp_rows * emitter.local_size_a,), dtype)
            others = T.alloc_local((emitter.warp_cols * emitter.local_size_b,), dtype)
            sums = T.alloc_local((emitter.warp_rows * emitter.warp_cols * emitter.local_size_out,), wide)
            T.clear(sums)
            for at in T.serial(k // step):
                T.copy(A[at * step, 0] if transposed_a else A[0, at * step], a)
                T.copy(B[0, at * step] if transposed_b else B[at * step, 0], b)
                for ki in T.serial(step // emitter.micro_size_k):
                    emitter.ldmatrix_a(mine, a, ki)
                    emitter.ldmatrix_b(others, b, ki)
                    emitter.mma(mine, others, sums)
            emitter.stmatrix(sums, c)
            T.copy(c, C)

    return main


@pytest.mark.parametrize("warps, transposed_a, transposed_b, is_m_first", [((2, 2), False, True, False), ((4, 1), True, False, False),
                                                                          ((2, 3), False, False, True)])
@pytest.mark.parametrize("dtype, wide", [("float16", "float32"), ("int8", "int32")])
def test_products(tilelang, client, warps, transposed_a, transposed_b, is_m_first, dtype, wide):
    from tilelang.cuda.intrinsics import TensorCoreIntrinEmitter

    emitter = TensorCoreIntrinEmitter(a_dtype=dtype, b_dtype=dtype, accum_dtype=wide, a_transposed=transposed_a, b_transposed=transposed_b,
                                      block_row_warps=warps[0], block_col_warps=warps[1], warp_row_tiles=64 // warps[0],
                                      warp_col_tiles=48 // warps[1], chunk=32, is_m_first=is_m_first)
    assert (emitter.threads, emitter.n_dim) == (32 * warps[0] * warps[1], 16 if 48 // warps[1] % 16 == 0 else 8)
    random = np.random.default_rng(6)
    a, b = (random.integers(-4, 5, shape).astype(dtype) for shape in ((64, 64), (64, 48)))
    c = np.zeros((64, 48), wide)
    kernel = kiln.compile(product(emitter, dtype, wide, transposed_a, transposed_b), target="emu:sm_80", client=client)
    with kiln.emulation(check=True):
        kernel(np.ascontiguousarray(a.T) if transposed_a else a, np.ascontiguousarray(b.T) if transposed_b else b, c)
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("dtype, wide, chunk", [("float16", "float32", 8), ("int8", "int32", 16)])
@pytest.mark.parametrize("columns", [24, 16])
def test_instructions_of_half_as_many_steps(tilelang, client, dtype, wide, chunk, columns):
    from tilelang.cuda.intrinsics import TensorCoreIntrinEmitter

    emitter = TensorCoreIntrinEmitter(a_dtype=dtype, b_dtype=dtype, accum_dtype=wide, b_transposed=True, block_col_warps=48 // columns,
                                      warp_row_tiles=32, warp_col_tiles=columns, chunk=chunk)
    random = np.random.default_rng(7)
    a, b = (random.integers(-4, 5, shape).astype(dtype) for shape in ((64, 64), (48, 64)))
    c = np.zeros((64, 48), wide)
    kernel = kiln.compile(product(emitter, dtype, wide, False, True), target="emu:sm_80", client=client)
    with kiln.emulation(check=True):
        kernel(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64).T)


def test_what_emitters_refuse(tilelang):
    from tilelang.cuda.intrinsics import TensorCoreIntrinEmitter, mma_store_index_map

    assert sorted({mma_store_index_map(lane, i) for lane in range(32) for i in range(8)}) == [(i, j) for i in range(16) for j in range(16)]
    with pytest.raises(NotImplementedError, match="of float64 is not part of Kiln"):
        TensorCoreIntrinEmitter(a_dtype="float64")
    with pytest.raises(ValueError, match="16 rows and 8 columns"):
        TensorCoreIntrinEmitter(warp_row_tiles=8)
    with pytest.raises(ValueError, match="a chunk of 12 float16: an instruction takes 8 or 16 steps of k"):
        TensorCoreIntrinEmitter(warp_row_tiles=16, chunk=12)
    with pytest.raises(NotImplementedError, match="make_mma_store_layout is not part of Kiln: use T.gemm"):
        TensorCoreIntrinEmitter(warp_row_tiles=16).make_mma_store_layout
