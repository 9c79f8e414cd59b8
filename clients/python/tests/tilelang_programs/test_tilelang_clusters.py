# SPDX-License-Identifier: Apache-2.0
"""Blocks of a cluster that wait for each other and write to each other's shared memory, on the emulator."""

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from kiln.errors import KilnError, NoEffectWarning
from needs import needs_kilnd as pytestmark  # noqa: F401

TARGET = "emu:sm_90a"


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


def checked(client, func, *arrays):
    """Runs it in two orders of the threads, with race detection."""
    kernel = kiln.compile(func, target=TARGET, client=client)
    for seed in (0, 1):
        with kiln.emulation(check=True, seed=seed):
            kernel(*arrays)


def handed_on(dtype, kept, space, barrier, shape=(4, 64), part=(4, 32)):
    """Each block of a cluster of four gives the next one what it has read."""
    rows, columns = part

    @T.prim_func
    def main(A: T.Tensor((8, *part), dtype), B: T.Tensor((8, *part), kept)):
        with T.ClusterKernel(8, threads=128, cluster_dims=4) as bx:
            mine = T.alloc_shared(shape, dtype) if space == "shared" else T.alloc_fragment(part, dtype)
            theirs = T.alloc_shared(shape, kept)
            come = T.alloc_cluster_barrier([1])
            to = (T.block_rank_in_cluster() + 1) % 4
            T.fill(theirs, 0)
            T.cluster_sync()
            T.copy(A[bx, :, :], mine[0:rows, 0:columns])
            T.copy_cluster(mine[0:rows, 0:columns], theirs[0:rows, 0:columns], dst_block=to, remote_barrier=come if barrier else None)
            if barrier:
                T.mbarrier_wait_parity(come, 0)
            else:
                T.cluster_sync()
            T.copy(theirs[0:rows, 0:columns], B[bx, :, :])

    return main


@pytest.mark.parametrize("dtype, kept, space, barrier", [
    (T.float32, T.float32, "shared", True), (T.float16, T.float16, "shared", False), (T.float32, T.float16, "fragment", True),
    (T.int8, T.int8, "shared", True), (T.float32, T.float32, "fragment", False)])
def test_tiles_go_to_the_next_block(client, dtype, kept, space, barrier):
    numbers = np.random.default_rng(1).integers(-100, 100, (8, 4, 32)).astype(str(dtype))
    b = np.zeros((8, 4, 32), str(kept))
    checked(client, handed_on(dtype, kept, space, barrier), numbers, b)
    before = np.arange(8) // 4 * 4 + (np.arange(8) - 1) % 4
    assert (b == numbers[before]).all()


def second_group(asked):
    """The threads from 128 on read and give, those before them wait and write."""

    @T.prim_func
    def main(A: T.Tensor((2, 64), T.float32), B: T.Tensor((2, 64), T.float32)):
        with T.ClusterKernel(2, threads=256, cluster_dims=2) as bx:
            mine = T.alloc_shared((64,), T.float32)
            theirs = T.alloc_shared((64,), T.float32)
            come = T.alloc_cluster_barrier([1])
            T.cluster_sync()
            tx = T.get_thread_binding()
            if asked == "role":
                with T.ws(1):
                    T.copy(A[bx, :], mine)
                    T.copy_cluster(mine, theirs, dst_block=1 - T.block_rank_in_cluster(), remote_barrier=come)
                with T.ws(0):
                    T.mbarrier_wait_parity(come, 0)
                    T.copy(theirs, B[bx, :])
            else:
                number = T.int32()
                T.let(number, tx)
                if number >= 128:
                    T.copy(A[bx, :], mine)
                    T.copy_cluster(mine, theirs, dst_block=1 - T.block_rank_in_cluster(), remote_barrier=come)
                else:
                    T.mbarrier_wait_parity(come, 0)
                    T.copy(theirs, B[bx, :])

    return main


@pytest.mark.parametrize("asked", ["role", "threads"])
def test_the_first_thread_of_a_role_arrives(client, asked):
    a = np.random.default_rng(4).standard_normal((2, 64)).astype("float32")
    b = np.zeros_like(a)
    checked(client, second_group(asked), a, b)
    assert (b == a[::-1]).all()


def test_which_thread_arrives_is_known():
    with pytest.raises(T.TraceError, match="which threads come here is not known"):
        @T.prim_func
        def main(A: T.Tensor((64,), T.int32)):
            with T.ClusterKernel(2, threads=64, cluster_dims=2):
                s = T.alloc_shared((32,), T.float32)
                come = T.alloc_cluster_barrier([1])
                if A[T.get_thread_binding()] > 0:
                    T.copy_cluster(s, s, dst_block=0, remote_barrier=come)


def test_a_barrier_in_many_turns_and_a_rank_in_two_dimensions(client):
    @T.prim_func
    def main(A: T.Tensor((4, 4, 32), T.float32), B: T.Tensor((4, 4, 32), T.float32), R: T.Tensor((4, 4), T.int32)):
        with T.ClusterKernel(4, 4, threads=32, cluster_dims=(2, 2, 1)) as (bx, by):
            T.use_swizzle(3)
            s = T.alloc_shared((2, 32), T.float32)
            f = T.alloc_fragment((32,), T.float32)
            come = T.alloc_cluster_barrier([1, 1])
            gone = T.alloc_cluster_barrier([32, 32])
            rank = T.block_rank_in_cluster()
            T.copy(A[by, bx, :], f)
            for turn in T.serial(4):
                T.mbarrier_wait_parity(gone[turn % 2], 1 - turn // 2 % 2)
                T.copy_cluster(f, s[turn % 2, :], dst_block=3 - rank, remote_barrier=come[turn % 2])
                T.mbarrier_wait_parity(come[turn % 2], turn // 2 % 2)
                for i in T.Parallel(32):
                    f[i] = s[turn % 2, i] + 1
                T.ptx_arrive_cluster_barrier(gone[turn % 2], 3 - rank)
            T.copy(f, B[by, bx, :])
            if T.get_thread_binding() == 0:
                R[by, bx] = rank

    a = np.random.default_rng(2).integers(0, 99, (4, 4, 32)).astype("float32")
    b, r = np.zeros_like(a), np.zeros((4, 4), "int32")
    checked(client, main, a, b, r)
    y, x = np.indices((4, 4))
    assert (r == y % 2 * 2 + x % 2).all() and (b == a + 4).all()


@pytest.mark.parametrize("mask", [0b0011, 0b1111, 0b1010])
@pytest.mark.parametrize("copy", [T.copy_cluster, T.tma_copy])
def test_one_block_reads_for_several(client, mask, copy):
    @T.prim_func
    def main(A: T.Tensor((128, 256), T.float16), B: T.Tensor((128, 256), T.float16)):
        with T.ClusterKernel(4, 2, threads=128, cluster_dims=(4, 1, 1)) as (bx, by):
            s = T.alloc_shared((64, 64), T.float16)
            copy(A[by * 64, bx * 64], s, cluster_mask=mask)
            T.copy(s, B[by * 64, bx * 64])

    a = np.random.default_rng(3).standard_normal((128, 256)).astype("float16")
    b = np.zeros_like(a)
    checked(client, main, a, b)
    lowest = (mask & -mask).bit_length() - 1
    for rank in range(4):
        read = lowest if mask >> rank & 1 else rank
        assert (b[:, rank * 64 : rank * 64 + 64] == a[:, read * 64 : read * 64 + 64]).all()


def test_where_it_reads_may_have_names(client):
    @T.prim_func
    def main(A: T.Tensor((8, 32), T.float32), B: T.Tensor((2, 2, 32), T.float32)):
        with T.ClusterKernel(2, threads=32, cluster_dims=2) as bx:
            s = T.alloc_shared((2, 32), T.float32)
            row = T.int32()
            T.let(row, bx + 5)
            T.copy_cluster(A[row, :], s[0, :], cluster_mask=2)
            T.copy_cluster(A[T.popcount(bx + 2), :], s[1, :], cluster_mask=3)
            T.copy(s, B[bx, :, :])

    a = np.random.default_rng(5).standard_normal((8, 32)).astype("float32")
    b = np.zeros((2, 2, 32), "float32")
    checked(client, main, a, b)
    assert (b == a[[[5, 1], [6, 1]]]).all()


def test_what_no_barrier_orders_is_a_race(client):
    @T.prim_func
    def main(A: T.Tensor((8, 32), T.float32), B: T.Tensor((8, 32), T.float32)):
        with T.ClusterKernel(8, threads=32, cluster_dims=2) as bx:
            mine = T.alloc_shared((32,), T.float32)
            theirs = T.alloc_shared((32,), T.float32)
            T.fill(theirs, 0)
            T.copy(A[bx, :], mine)
            T.copy_cluster(mine, theirs, dst_block=1 - T.block_rank_in_cluster())
            T.cluster_sync()
            T.copy(theirs, B[bx, :])

    a = np.ones((8, 32), "float32")
    with pytest.raises(KilnError, match="race"):
        checked(client, main, a, np.zeros_like(a))


def test_the_instructions(client):
    ptx = kiln.compile(handed_on(T.float32, T.float32, "shared", True), target="cuda:sm_90a", client=client).get_kernel_source()
    for text in ("st.shared::cluster", "mbarrier.arrive.release.cluster.shared::cluster", "mbarrier.try_wait.parity.acquire.cluster",
                 "barrier.cluster.arrive", "barrier.cluster.wait"):
        assert text in ptx


def test_a_product_sees_what_another_block_wrote(client):
    """The tensor unit reads it in another proxy: the reader, too, has a fence between its wait and the product."""
    @T.prim_func
    def main(A: T.Tensor((2, 64, 64), T.float16), W: T.Tensor((64, 64), T.float16), C: T.Tensor((2, 64, 64), T.float32)):
        with T.ClusterKernel(2, threads=128, cluster_dims=2) as bx:
            mine = T.alloc_fragment((64, 64), T.float16)
            theirs, w = T.alloc_shared((64, 64), T.float16), T.alloc_shared((64, 64), T.float16)
            c = T.alloc_fragment((64, 64), T.float32)
            come = T.alloc_cluster_barrier([1])
            T.cluster_sync()
            T.copy(W, w)
            T.copy(A[bx, :, :], mine)
            T.copy_cluster(mine, theirs, dst_block=1 - T.block_rank_in_cluster(), remote_barrier=come)
            T.clear(c)
            T.mbarrier_wait_parity(come, 0)
            T.gemm(theirs, w, c)
            T.copy(c, C[bx, :, :])

    a, w = (np.random.default_rng(5).integers(-4, 5, shape).astype("float16") for shape in ((2, 64, 64), (64, 64)))
    c = np.zeros((2, 64, 64), "float32")
    checked(client, main, a, w, c)
    assert (c == a[::-1].astype("float32") @ w.astype("float32")).all()
    ptx = kiln.compile(main, target="cuda:sm_90a", client=client).get_kernel_source()
    behind = ptx[ptx.rindex("mbarrier.try_wait.parity.acquire.cluster") :]
    assert 0 < behind.find("fence.proxy.async") < behind.index("wgmma.mma_async")


def test_halves_of_a_barrier(client):
    with pytest.warns(NoEffectWarning, match="T.cluster_wait"):
        @T.prim_func
        def main(B: T.Tensor((8,), T.int32)):
            with T.ClusterKernel(8, threads=32, cluster_dims=4) as bx:
                T.cluster_arrive()
                T.cluster_wait()
                if T.get_thread_binding() == 0:
                    B[bx] = T.block_rank_in_cluster()

    assert (kiln.compile(main, out_idx=0, target=TARGET, client=client)() == np.arange(8) % 4).all()


@pytest.mark.parametrize("asked, message", [
    (lambda s: T.copy_cluster(s, s), "takes dst_block, to write to another block's memory, or cluster_mask"),
    (lambda s: T.copy_cluster(s, s, dst_block=2), "the cluster has the blocks 0 to 1"),
    (lambda s: T.copy_cluster(s, s, dst_block=1, remote_barrier=T.alloc_barrier(1)), "make it with T.alloc_cluster_barrier"),
    (lambda s: T.copy_cluster(s, T.alloc_fragment((32,), T.float32), dst_block=1), "blocks write to shared memory"),
    (lambda s: T.copy_cluster(T.alloc_global((32,), T.float32), T.alloc_fragment((32,), T.float32), cluster_mask=3), "blocks write to shared memory"),
    (lambda s: T.copy_cluster(T.alloc_local((32,), T.float32), s, dst_block=1), "it takes a tensor or a tile"),
    (lambda s: T.copy_cluster(T.alloc_shared((32,), T.int4), T.alloc_shared((32,), T.int4), dst_block=1), "elements of 8 bits or more"),
    (lambda s: T.copy_cluster(s, s, cluster_mask=3), "blocks read tensors for each other"),
    (lambda s: T.copy_cluster(s, s, cluster_mask=4), "a bit for some of the cluster's 2 blocks"),
    (lambda s: T.copy_cluster(s, s[0:16], dst_block=1), "the extents differ")])
def test_what_is_refused(asked, message):
    with pytest.raises(T.TraceError, match=message):
        @T.prim_func
        def main(B: T.Tensor((32,), T.float32)):
            with T.ClusterKernel(8, threads=32, cluster_dims=2) as bx:
                s = T.alloc_shared((32,), T.float32)
                asked(s)


@pytest.mark.parametrize("asked", [lambda s: T.copy_cluster(s, s, dst_block=0), lambda s: T.alloc_cluster_barrier(1)])
def test_a_kernel_without_clusters(asked):
    with pytest.raises(T.TraceError, match="use T.ClusterKernel"):
        @T.prim_func
        def main(B: T.Tensor((32,), T.float32)):
            with T.Kernel(8, threads=32):
                asked(T.alloc_shared((32,), T.float32))


def test_other_targets_have_no_clusters(client):
    with pytest.raises((KilnError, T.TraceError), match="sm_90"):
        kiln.compile(handed_on(T.float32, T.float32, "shared", True), target="emu:sm_80", client=client)
    with pytest.raises(KilnError, match="cluster"):
        kiln.compile(handed_on(T.float32, T.float32, "shared", False), target="cuda:sm_80", client=client)
