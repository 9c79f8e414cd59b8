# SPDX-License-Identifier: Apache-2.0
"""Products whose blocks share the steps of tiles (stream-K): checked runs are clean, agree with a float64 reference, and give the same
bits whatever order the blocks run in."""

import kiln.language as T
import numpy as np
import pytest
from data import STORED, decode, random_array, relative_error
from kiln.library.programs.gemm import gemm

HOPPER = "emu:sm_90a"
AUTO, NEVER, ALWAYS = range(3)  # of kiln.v1.StreamK
TILE = {"block_m": 64, "block_n": 64, "block_k": 64, "stages": 3, "threads": 128}
BARS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "int32": 0}


class Product:
    def __init__(self, shape, dtype="float16", out=None, seed=5, bias=False, **arguments):
        m, n, k = shape
        rng = np.random.default_rng(seed)
        self.out = out or dtype
        self.program = gemm(m, n, k, dtype, self.out, trans_b=True, bias=bias, **{**TILE, **arguments})
        self.inputs = [(random_array(rng, (m, k), dtype), dtype), (random_array(rng, (n, k), dtype), dtype)]
        a, b = (decode(array, dtype) for array, _ in self.inputs)
        self.reference = a @ b.T
        if bias:
            self.inputs.append((random_array(rng, (n,), self.out), self.out))
            self.reference = self.reference + decode(self.inputs[-1][0], self.out)

    def run(self, emulator, stream_k=ALWAYS, **keys):
        output = (self.reference.shape, self.out)
        answer = emulator.run(emulator.module(self.program.serialized), HOPPER, self.inputs, output, stream_k=stream_k, **keys)
        assert "error" not in answer, answer["error"]
        return answer

    def check(self, answer):
        assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
        assert answer["intact"]
        error = relative_error(answer["result"], self.reference)
        assert error <= BARS[self.out], f"error {error:.2e}"


SHAPES = {
    "one tile, all blocks": Product((64, 64, 640)),
    "tiles cut unevenly": Product((64, 192, 3200)),
    "a part in the middle of a tile": Product((128, 64, 896), block_m=128, threads=256),
    "edges": Product((100, 88, 520)),
    "bias": Product((64, 128, 448), bias=True),
    "transposes": Product((24, 128, 512), block_m=24, block_k=128),
    "two groups along k": Product((64, 64, 1024), block_k=128, threads=256),
    "8-bit floats": Product((64, 64, 1024), "float8_e4m3fn", "float16", block_k=128),
    "integers": Product((64, 128, 1024), "int8", "int32", block_k=128),
}


@pytest.mark.parametrize("name", SHAPES)
def test_blocks_share_tiles(emulator, name):
    product = SHAPES[name]
    answer = product.run(emulator, check=1, seeds=4)
    product.check(answer)
    assert answer["flags"] > 0, "no block leaves a part of a sum"
    assert answer["different"] == 1, "the order of blocks shows in the result"


def test_whole_tiles_come_first(emulator):
    """More tiles than multiprocessors. Of 150 short ones blocks share all; of 133 long ones, the one that is left."""
    for shape, stream_k in (((15 * 64, 10 * 64, 192), ALWAYS), ((19 * 64, 7 * 64, 4096), AUTO)):
        product = Product(shape, threads=256)
        answer = product.run(emulator, stream_k)
        product.check(answer)
        assert answer["flags"] > 0


def test_can_be_pinned(emulator):
    product = Product((64, 64, 8192), threads=128)
    few = Product((64, 64, 256))
    assert product.run(emulator, AUTO)["flags"] > 0
    assert product.run(emulator, NEVER)["flags"] == 0
    assert few.run(emulator, AUTO)["flags"] == 0, "a handful of steps is not worth an exchange"


def test_nothing_orders_blocks_by_accident(emulator):
    """Without a barrier, a flag or the wait for one, runs report something."""
    product = Product((64, 64, 512))
    mutants = product.run(emulator, check=1)["mutants"]
    seen, missed = 0, []
    for mutant in range(mutants):
        answer = product.run(emulator, check=1, seeds=2, mutant=mutant)
        what = answer["mutated"]
        if answer["findings"] or not answer["finished"]:
            seen += "flag" in what
        elif "flag" in what:
            missed.append(what)
    assert seen > 0 and not missed, missed


@pytest.mark.parametrize("seed", range(6))
def test_random_shapes(emulator, seed):
    rng = np.random.default_rng(1000 + seed)
    extent = lambda most: int(rng.integers(1, most)) * 8
    m, n, k = extent(20), extent(20), 64 * int(rng.integers(4, 14)) + extent(8)
    product = Product((m, n, k), ["float16", "bfloat16"][seed % 2], seed=seed, threads=[128, 256][seed // 2 % 2])
    answer = product.run(emulator, check=1, seeds=2)
    product.check(answer)
    assert answer["different"] == 1


def added_to(m, n, k):
    """C = A · Bᵀ + 2 C: what a block reads of C before its products, the tile's owner writes once it has the flags."""
    @T.prim_func
    def program(A: T.Tensor((m, k), "float16"), B: T.Tensor((n, k), "float16"), C: T.Tensor((m, n), "float32")):
        with T.Kernel(n // 64, m // 64, threads=128) as (bx, by):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            old, c = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
            T.copy(C[by * 64, bx * 64], old)
            T.clear(c)
            for i in T.Pipelined(k // 64, num_stages=3):
                T.copy(A[by * 64, i * 64], a)
                T.copy(B[bx * 64, i * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                c[i, j] = c[i, j] + 2 * old[i, j]
            T.copy(c, C[by * 64, bx * 64])

    return program


@pytest.mark.parametrize("shape", [(64, 64, 1024), (256, 512, 4096)])
def test_what_all_blocks_of_a_tile_read_its_owner_may_write(emulator, shape):
    """In few threads, which run together, and in many, whose blocks follow each other."""
    m, n, k = shape
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-3, 4, extents).astype(dtype) for extents, dtype in (((m, k), np.float16), ((n, k), np.float16), ((m, n), np.float32)))
    tensors = [(a, "float16"), (b, "float16"), (c, "float32")]
    after, answer = emulator.call(emulator.module(added_to(m, n, k).serialized), HOPPER, tensors, check=1, stream_k=ALWAYS)
    assert "error" not in answer and answer["flags"] > 0
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    assert np.array_equal(after[2], a.astype(np.float32) @ b.astype(np.float32).T + 2 * c)
