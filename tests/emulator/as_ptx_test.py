# SPDX-License-Identifier: Apache-2.0
"""Products whose PTX has what random programs rarely have: wgmma, tensor copies, pairs of blocks, blocks that share tiles. tests/ptx runs what
LLVM makes of them. With KILN_AS_PTX=1 it runs the other tests of this folder that look at results alone."""

import kiln.language as T
import numpy as np
import pytest
from data import STORED, decode, random_array, relative_error
from emulated import BINARY, AsPtx
from kiln.library.programs.gemm import gemm

NEVER, ALWAYS = 1, 2  # of kiln.v1.StreamK
# name: shape, tile, stages, threads, dtype, out, what its PTX must have, options
CASES = {
    "wgmma and tensor copies": ((192, 256, 320), (64, 128, 64), 3, 256, "float16", "float32", ("wgmma", "tensor_loads"), {}),
    "beyond the edges": ((100, 88, 520), (64, 64, 64), 3, 256, "bfloat16", "float32", ("wgmma", "tensor_loads"), {}),
    "8-bit floats": ((128, 128, 512), (64, 128, 128), 3, 256, "float8_e4m3fn", "float16", ("wgmma", "tensor_loads"), {}),
    "integers": ((128, 128, 512), (64, 128, 128), 3, 256, "int8", "int32", ("wgmma", "tensor_loads"), {}),
    "blocks share tiles": ((64, 192, 3200), (64, 64, 64), 3, 128, "float16", "float16", ("wgmma", "flags"), {"stream_k": ALWAYS}),
    "pairs of blocks": ((256, 384, 2056), (64, 64, 64), 4, 128, "float16", "float16", ("wgmma", "remote_arrivals"), {"stream_k": NEVER}),
    "halves of k in two blocks": ((100, 200, 2048), (128, 128, 64), 3, 256, "float16", "float32", ("wgmma",), {"stream_k": NEVER}),
    "mma.sync": ((128, 128, 256), (64, 64, 32), 3, 128, "float16", "float32", (), {"wgmma": 0}),
}
BARS = {"float16": 2e-3, "float32": 1e-4, "int32": 0}


@pytest.fixture(scope="module")
def as_ptx(tmp_path_factory):
    emulator = AsPtx(BINARY, tmp_path_factory.mktemp("as_ptx"))
    yield emulator
    emulator.close()


@pytest.mark.parametrize("seed", [4, 5])  # asynchronous copies land late, and at once
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_its_reference(as_ptx, name, seed):
    (m, n, k), (block_m, block_n, block_k), stages, threads, dtype, out, parts, options = CASES[name]
    rng = np.random.default_rng(7)
    a, b = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)
    program = gemm(m, n, k, in_dtype=dtype, out_dtype=out, trans_b=True, block_m=block_m, block_n=block_n, block_k=block_k, stages=stages,
                   threads=threads)
    result = np.zeros((m, n), STORED[out])
    after, answer = as_ptx.call(as_ptx.module(program.serialized), "emu:sm_90a", [(a, dtype), (b, dtype), (result, out)], seed=seed, **options)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and all(answer[part] > 0 for part in parts), {part: answer[part] for part in parts}
    assert relative_error(decode(after[2], out), decode(a, dtype) @ decode(b, dtype).T) <= BARS[out]


def in_parts(m, n, k, parts, turned):
    """Each of several blocks multiplies a part of k and adds its tile to what the others have added."""
    @T.prim_func
    def program(A: T.Tensor((m, k), "float16"), B: T.Tensor((n, k), "float16"), C: T.Tensor((n, m) if turned else (m, n), "float32")):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 128), parts, threads=256) as (bx, by, bz):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            for i in T.Pipelined(k // parts // 64, num_stages=2):
                T.copy(A[by * 128, bz * (k // parts) + i * 64], a)
                T.copy(B[bx * 64, bz * (k // parts) + i * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            if turned:
                for i, j in T.Parallel(128, 64):
                    T.atomic_add(C[bx * 64 + j, by * 128 + i], c[i, j])
            else:
                T.atomic_add(C[by * 128 : by * 128 + 128, bx * 64 : bx * 64 + 64], c)

    return program


@pytest.mark.parametrize("seed", [4, 5])
@pytest.mark.parametrize("turned", [False, True])
def test_tiles_are_added_by_the_tensor_unit(as_ptx, turned, seed):
    m, n, k = 200, 88, 512  # the last tiles reach beyond the edges
    rng = np.random.default_rng(7)
    a, b = random_array(rng, (m, k), "float16"), random_array(rng, (n, k), "float16")
    before = rng.standard_normal((n, m) if turned else (m, n)).astype(np.float32)
    program = in_parts(m, n, k, 4, turned)
    given = [(a, "float16"), (b, "float16"), (before.copy(), "float32")]
    after, answer = as_ptx.call(as_ptx.module(program.serialized), "emu:sm_90a", given, seed=seed)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and answer["wgmma"] > 0 and answer["tensor_loads"] > 0
    product = a.astype(np.float64) @ b.astype(np.float64).T
    assert relative_error(decode(after[2], "float32"), before + (product.T if turned else product)) <= 1e-4


@T.prim_func
def standing(A: T.Tensor((64, 576), "float16"), B: T.Tensor((192, 576), "float16"), C: T.Tensor((64, 64), "float32")):
    """Products of tiles that stay where they are in a loop: 36 steps of k take 72 descriptors."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 576), "float16"), T.alloc_shared((64, 576), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.clear(c)
        for i in T.serial(3):
            T.copy(B[i * 64, 0], b)
            for start, size in ((0, 256), (256, 256), (512, 64)):
                T.gemm(a[:, start : start + size], b[:, start : start + size], c, transpose_B=True)
        T.copy(c, C)


def test_descriptors_that_are_made_before_their_step(as_ptx):
    rng = np.random.default_rng(7)
    a, b = random_array(rng, (64, 576), "float16"), random_array(rng, (192, 576), "float16")
    given = [(a, "float16"), (b, "float16"), (np.zeros((64, 64), np.float32), "float32")]
    after, answer = as_ptx.call(as_ptx.module(standing.serialized), "emu:sm_90a", given, seed=4)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and answer["wgmma"] > 0
    b = b.astype(np.float64)
    assert relative_error(decode(after[2], "float32"), a.astype(np.float64) @ (b[:64] + b[64:128] + b[128:]).T) <= 1e-4


@T.prim_func
def to_the_next_block(A: T.Tensor((8, 64), "float32"), B: T.Tensor((8, 64), "float32"), N: T.Tensor((8,), "int32")):
    with T.ClusterKernel(8, threads=64, cluster_dims=4) as bx:
        mine = T.alloc_shared((64,), "float32")
        theirs = T.alloc_shared((64,), "float32")
        come = T.alloc_cluster_barrier([1])
        rank = T.block_rank_in_cluster()
        T.copy(A[bx, :], mine)
        for turn in T.serial(3):
            T.copy_cluster(mine, theirs, dst_block=(rank + 1) % 4, remote_barrier=come)
            T.mbarrier_wait_parity(come, turn % 2)
            for i in T.Parallel(64):
                mine[i] = theirs[i] + 1
            T.cluster_sync()
        T.copy(mine, B[bx, :])
        if T.get_thread_binding() == 0:
            N[bx] = rank


@pytest.mark.parametrize("seed", [4, 5])
def test_blocks_write_to_each_other(as_ptx, seed):
    a = np.random.default_rng(8).integers(0, 99, (8, 64)).astype("float32")
    b, n = np.zeros_like(a), np.zeros(8, "int32")
    after, answer = as_ptx.call(as_ptx.module(to_the_next_block.serialized), "emu:sm_90a", [(a, "float32"), (b, "float32"), (n, "int32")], seed=seed)
    assert "error" not in answer, answer["error"]
    assert answer["finished"] and answer["remote_arrivals"] > 0
    blocks = np.arange(8)
    assert (after[1] == a[blocks // 4 * 4 + (blocks - 3) % 4] + 3).all() and (after[2] == blocks % 4).all()
