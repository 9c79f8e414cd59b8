# SPDX-License-Identifier: Apache-2.0
"""Products in surroundings that plans for wgmma and tensor copies must not take for the usual ones: against float64 references."""

import kiln.language as T
import numpy as np
import pytest
from data import STORED, decode, random_array, relative_error

HALF, E4M3 = "bfloat16", "float8_e4m3fn"
BARS = {HALF: 1e-2, "float32": 1e-4}


def check(emulator, program, inputs, expected):
    """``expected``: type and reference of each output, which are the last parameters."""
    outputs = [(np.full(reference.size * np.dtype(STORED[dtype]).itemsize, 0xFF, np.uint8).view(STORED[dtype]).reshape(reference.shape), dtype)
               for dtype, reference in expected]
    after, answer = emulator.call(emulator.module(program.serialized), "emu:sm_90a", [*inputs, *outputs], check=1, seeds=2)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    assert answer["wgmma"] > 0, "another instruction was chosen"
    for (dtype, reference), array in zip(expected, after[len(inputs):]):
        assert relative_error(decode(array, dtype), reference) <= BARS[dtype]


def random_inputs(*shapes, dtype=HALF):
    rng = np.random.default_rng(17)
    arrays = [random_array(rng, shape, dtype) for shape in shapes]
    return [(array, dtype) for array in arrays], [decode(array, dtype) for array in arrays]


@pytest.mark.parametrize("spread", [4, 16])
def test_a_residual_of_rows_with_gaps(emulator, spread):
    m, n, k, block = 128, 128, 128, 64
    rows = m + m // 16 * spread

    @T.prim_func
    def program(A: T.Tensor((m, k), HALF), B: T.Tensor((n, k), HALF), R: T.Tensor((rows, n), HALF), C: T.Tensor((m, n), "float32")):
        with T.Kernel(n // block, m // block, threads=128) as (bx, by):
            a, b = T.alloc_shared((block, block), HALF), T.alloc_shared((block, block), HALF)
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            for ko in T.Pipelined(k // block, num_stages=2):
                T.copy(A[by * block, ko * block], a)
                T.copy(B[bx * block, ko * block], b)
                T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(block, block):
                c[i, j] += T.cast(R[by * block + i + i // 16 * spread, bx * block + j], "float32")
            T.copy(c, C[by * block, bx * block])

    inputs, (a, b, r) = random_inputs((m, k), (n, k), (rows, n))
    i = np.arange(m)
    check(emulator, program, inputs, [("float32", a @ b.T + r[i + i % block // 16 * spread])])


def test_a_residual_summed_from_several_tensors(emulator):
    """The loop over them stands in the one over the tile's elements, and the first of them is read again."""
    m, n, k, block, parts = 128, 128, 128, 64, 3

    @T.prim_func
    def program(A: T.Tensor((m, k), HALF), B: T.Tensor((n, k), HALF), R: T.Tensor((parts, m, n), HALF), C: T.Tensor((m, n), "float32")):
        with T.Kernel(n // block, m // block, threads=128) as (bx, by):
            a, b = T.alloc_shared((block, block), HALF), T.alloc_shared((block, block), HALF)
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            for ko in T.Pipelined(k // block, num_stages=2):
                T.copy(A[by * block, ko * block], a)
                T.copy(B[bx * block, ko * block], b)
                T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(block, block):
                for part in T.serial(parts):
                    c[i, j] += T.cast(R[part, by * block + i, bx * block + j], "float32")
                c[i, j] *= T.cast(R[0, by * block + i, bx * block + j], "float32")
            T.copy(c, C[by * block, bx * block])

    inputs, (a, b, r) = random_inputs((m, k), (n, k), (parts, m, n))
    check(emulator, program, inputs, [("float32", (a @ b.T + r.sum(0)) * r[0])])


def test_stores_that_later_iterations_overwrite(emulator):
    m, k, width, steps = 64, 128, 64, 4

    @T.prim_func
    def program(A: T.Tensor((m, k), HALF), B: T.Tensor((steps * width, k), HALF), C: T.Tensor((m, (steps + 1) * width), HALF)):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((m, 64), HALF), T.alloc_shared((width, 64), HALF)
            c, d = T.alloc_fragment((m, width), "float32"), T.alloc_fragment((m, width), "float32")
            for t in T.serial(steps):
                T.clear(c)
                for ko in T.Pipelined(k // 64, num_stages=2):
                    T.copy(A[0, ko * 64], a)
                    T.copy(B[t * width, ko * 64], b)
                    T.gemm(a, b, c, transpose_B=True)
                for i, j in T.Parallel(m, width):
                    d[i, j] = -c[i, j]
                T.copy(c, C[0, t * width])
                T.copy(d, C[0, t * width + width])

    inputs, (a, b) = random_inputs((m, k), (steps * width, k))
    check(emulator, program, inputs, [(HALF, np.concatenate([a @ b.T, -(a @ b[-width:].T)], 1))])


def test_scales_in_a_fragment_of_the_loop(emulator):
    m, n, k, block = 128, 128, 512, 128

    @T.prim_func
    def program(A: T.Tensor((m, k), E4M3), B: T.Tensor((n, k), E4M3), S: T.Tensor((k // block, m), "float32"), C: T.Tensor((m, n), HALF)):
        with T.Kernel(m // 64, threads=128) as by:
            a, b = T.alloc_shared((64, block), E4M3), T.alloc_shared((n, block), E4M3)
            c, part = T.alloc_fragment((64, n), "float32"), T.alloc_fragment((64, n), "float32")
            T.clear(c)
            for ko in T.Pipelined(k // block, num_stages=3):
                scale = T.alloc_fragment((64,), "float32")
                T.copy(A[by * 64, ko * block], a)
                T.copy(B[0, ko * block], b)
                for i in T.Parallel(64):
                    scale[i] = S[ko, by * 64 + i]
                T.gemm(a, b, part, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(64, n):
                    c[i, j] += part[i, j] * scale[i]
            T.copy(c, C[by * 64, 0])

    inputs, (a, b) = random_inputs((m, k), (n, k), dtype=E4M3)
    scale = (np.random.default_rng(18).random((k // block, m)) + 0.5).astype(np.float32)
    scaled = (a.reshape(m, -1, block) * scale.T[:, :, None]).reshape(m, k)
    check(emulator, program, [*inputs, (scale, "float32")], [(HALF, scaled @ b.T)])


@pytest.mark.parametrize("block_k, threads", [(192, 128), (320, 128), (192, 256)])
def test_parts_of_k_that_128_bytes_do_not_hold(emulator, block_k, threads):
    """Pieces of an operand that is computed in registers, and parts that groups of warps take each."""
    m, n, k = 32, 64, 2 * block_k

    @T.prim_func
    def program(A: T.Tensor((m, k), HALF), B: T.Tensor((n, k), "int8"), C: T.Tensor((m, n), "float32")):
        with T.Kernel(1, threads=threads):
            a, packed = T.alloc_shared((m, block_k), HALF), T.alloc_shared((n, block_k), "int8")
            weights, c = T.alloc_fragment((n, block_k), HALF), T.alloc_fragment((m, n), "float32")
            T.clear(c)
            for ko in T.Pipelined(k // block_k, num_stages=2):
                T.copy(A[0, ko * block_k], a)
                T.copy(B[0, ko * block_k], packed)
                for i, j in T.Parallel(n, block_k):
                    weights[i, j] = T.cast(packed[i, j], HALF) * T.cast(0.5, HALF)
                T.gemm(a, weights, c, transpose_B=True)
            T.copy(c, C[0, 0])

    inputs, (a,) = random_inputs((m, k))
    packed = np.random.default_rng(18).integers(-9, 9, (n, k)).astype(np.int8)
    check(emulator, program, [*inputs, (packed, "int8")], [("float32", a @ packed.T * 0.5)])


def test_more_groups_than_sums_have_room_for(emulator):
    m, n, k = 128, 320, 64

    @T.prim_func
    def program(A: T.Tensor((k, m), HALF), B: T.Tensor((k, n), HALF), C: T.Tensor((m, n), "float32")):
        with T.Kernel(1, threads=512):
            a, b, c = T.alloc_shared((32, m), HALF), T.alloc_shared((32, n), HALF), T.alloc_fragment((m, n), "float32")
            T.clear(c)
            for ko in T.Pipelined(k // 32, num_stages=1):
                T.copy(A[ko * 32, 0], a)
                T.copy(B[ko * 32, 0], b)
                T.gemm(a, b, c, transpose_A=True)
            T.copy(c, C[0, 0])

    inputs, (a, b) = random_inputs((k, m), (k, n))
    check(emulator, program, inputs, [("float32", a.T @ b)])


def test_row_sums_beside_few_products(emulator):
    """What steps leave behind beside the product's sum: no two blocks may share them."""
    m, n, k, block = 64, 128, 2048, 64

    @T.prim_func
    def program(A: T.Tensor((m, k), HALF), B: T.Tensor((n, k), HALF), C: T.Tensor((m, n), "float32"), S: T.Tensor((n // block, m), "float32")):
        with T.Kernel(n // block, threads=128) as bx:
            a, b = T.alloc_shared((m, block), HALF), T.alloc_shared((block, block), HALF)
            c, sums = T.alloc_fragment((m, block), "float32"), T.alloc_fragment((m,), "float32")
            wide = T.alloc_fragment((m, block), "float32")
            T.clear(c)
            T.clear(sums)
            for ko in T.Pipelined(k // block, num_stages=3):
                T.copy(A[0, ko * block], a)
                T.copy(B[bx * block, ko * block], b)
                T.gemm(a, b, c, transpose_B=True)
                T.copy(a, wide)
                T.reduce_sum(wide, sums, dim=1, clear=False)
            T.copy(sums, S[bx, 0])
            T.copy(c, C[0, bx * block])

    inputs, (a, b) = random_inputs((m, k), (n, k))
    check(emulator, program, inputs, [("float32", a @ b.T), ("float32", np.tile(a.sum(1), (n // block, 1)))])


def test_few_products_that_end_early(emulator):
    m, n, k, block = 64, 128, 2048, 64

    @T.prim_func
    def program(A: T.Tensor((m, k), HALF), B: T.Tensor((n, k), HALF), C: T.Tensor((m, n), "float32")):
        with T.Kernel(n // block, threads=128) as bx:
            a, b = T.alloc_shared((m, block), HALF), T.alloc_shared((block, block), HALF)
            c = T.alloc_fragment((m, block), "float32")
            T.clear(c)
            for ko in T.Pipelined(k // block, num_stages=3):
                T.copy(A[0, ko * block], a)
                T.copy(B[bx * block, ko * block], b)
                T.gemm(a, b, c, transpose_B=True)
                if ko == 3:
                    T.loop_break()
            T.copy(c, C[0, bx * block])

    inputs, (a, b) = random_inputs((m, k), (n, k))
    check(emulator, program, inputs, [("float32", a[:, :4 * block] @ b[:, :4 * block].T)])
