# SPDX-License-Identifier: Apache-2.0
"""Copies and products with barriers of their own."""

import warnings

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from kiln.errors import NoEffectWarning
from needs import needs_kilnd as pytestmark  # noqa: F401


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


@pytest.mark.parametrize("target", ["emu:sm_90a", "emu:gfx942"])
@pytest.mark.parametrize("stages", [0, 2, 3])
def test_a_pipeline_that_waits_for_its_copies(client, target, stages):
    M = N = 128
    K, block, step = 256, 64, 32

    @T.prim_func
    def main(A: T.Tensor((M, K), T.float16), B: T.Tensor((K, N), T.float16), C: T.Tensor((M, N), T.float16)):
        with T.Kernel(N // block, M // block, threads=128) as (bx, by):
            a = T.alloc_shared((block, step), T.float16)
            b = T.alloc_shared((step, block), T.float16)
            out = T.alloc_shared((block, block), T.float16)
            c = T.alloc_fragment((block, block), T.float32)
            bars = T.alloc_barrier([128, 128])
            T.clear(c)
            for k in T.Pipelined(K // step, num_stages=stages):
                T.tma_copy(A[by * block, k * step], a, barrier=bars[0])
                T.barrier_arrive(bars[0])
                T.tma_copy(B[k * step, bx * block], b, barrier=bars[1])
                T.mbarrier_arrive(bars[1])
                T.barrier_wait(bars[0], k % 2)
                T.mbarrier_wait_parity(bars[1], k % 2)
                T.wgmma_gemm(a, b, c)
                T.wait_wgmma(0)
            T.copy(c, out)
            T.tma_copy(out, C[by * block, bx * block])
            T.tma_store_wait(read=False)

    rng = np.random.default_rng(stages)
    a, b, c = (rng.standard_normal(shape).astype("float16") for shape in ((M, K), (K, N), (M, N)))
    kernel = kiln.compile(main, target=target, client=client)
    for seed in (0, 1):
        c[:] = 0
        with kiln.emulation(check=True, seed=seed):
            kernel(a, b, c)
        assert np.abs(c.astype("float32") - a.astype("float32") @ b.astype("float32")).max() < 0.05


@pytest.mark.parametrize("target", ["emu:sm_90a", "emu:sm_80"])
def test_barriers_of_so_many_threads(client, target):
    @T.prim_func
    def main(A: T.Tensor((256,), T.int32), B: T.Tensor((256,), T.int32)):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((256,), T.int32)
            tile[tx] = A[tx]
            T.sync_threads(0)
            value = T.alloc_var(T.int32, 0)
            if tx < 128:
                for i in T.serial(7):
                    T.sync_threads(3, 128)
                    if tx < 128 - (1 << i):
                        value = tile[tx] + tile[tx + (1 << i)]
                    T.sync_threads(3, 128)
                    if tx < 128 - (1 << i):
                        tile[tx] = value
            else:
                T.sync_threads(barrier_id=2, arrive_count=128)
            T.sync_threads(0, 256)
            B[tx] = tile[tx]

    a, b = np.arange(256, dtype="int32"), np.zeros(256, "int32")
    kernel = kiln.compile(main, target=target, client=client)
    with kiln.emulation(check=True):
        kernel(a, b)
    assert (b[:128] == a[:128][::-1].cumsum()[::-1]).all() and (b[128:] == a[128:]).all()


def test_barriers_of_other_threads_are_refused():
    def called(threads, count):
        @T.macro
        def body(A, n):
            tx = T.get_thread_binding()
            if tx % 64 < threads:
                if n > 0:  # of the block
                    T.sync_threads(1, count)

        return body

    traced(called(32, 64))  # of 128
    traced(called(64, None))  # the whole block
    for body, problem in [(called(32, 32), "64 threads come to it"), (lambda A, n: T.sync_threads(1, n), "128 threads come to it")]:
        with pytest.raises(T.TraceError, match=problem):
            traced(body)

    @T.macro
    def by_value(A, n):
        if T.get_thread_binding() < n:
            T.sync_threads(1, 32)

    with pytest.raises(T.TraceError, match="which threads come here is not known"):
        traced(by_value)


def traced(body):
    @T.prim_func
    def main(A: T.Tensor((8,), T.float32), n: T.int32):
        with T.Kernel(1, threads=128):
            body(A, n)


def test_what_barriers_refuse():
    for body, problem in [(lambda A, n: T.alloc_barrier(0), "above 0"), (lambda A, n: T.alloc_barrier(n), "above 0"),
                          (lambda A, n: T.alloc_barrier([]), "above 0"), (lambda A, n: T.barrier_arrive(A), "what T.alloc_barrier gives"),
                          (lambda A, n: T.barrier_wait(T.alloc_barrier([1, 2]), 0), "index one"),
                          (lambda A, n: T.mbarrier_arrive(T.alloc_barrier(1), cta_id=0), "make it with T.alloc_cluster_barrier"),
                          (lambda A, n: T.alloc_barrier([1, 1])[0][0], "not indexed"),
                          (lambda A, n: T.tma_copy(A, T.alloc_shared((8,), T.float32), cluster_mask=3), "in a kernel without clusters"),
                          (lambda A, n: T.tma_copy(A, T.alloc_shared((8,), T.float32), barrier=A), "what T.alloc_barrier gives")]:
        with pytest.raises(T.TraceError, match=problem):
            traced(body)
    with pytest.raises(IndexError, match="barrier 2 of 2"):
        traced(lambda A, n: T.alloc_barrier([1, 1])[2])
    with pytest.raises(TypeError, match="cannot be used as a scalar"):
        traced(lambda A, n: T.barrier_wait(T.alloc_barrier(1), "0"))


@pytest.mark.parametrize("call, name", [
    (lambda bar, n: T.barrier_arrive(bar), "barrier_arrive"), (lambda bar, n: T.mbarrier_arrive(bar), "mbarrier_arrive"),
    (lambda bar, n: T.barrier_wait(bar, n), "barrier_wait"), (lambda bar, n: T.mbarrier_wait_parity(bar, n % 2), "mbarrier_wait_parity"),
    (lambda bar, n: T.tma_store_wait(), "tma_store_wait"), (lambda bar, n: T.wait_wgmma(0), "wait_wgmma"),
    (lambda bar, n: T.mbarrier_arrive_expect_tx(bar, 64), "mbarrier_arrive_expect_tx"),
    (lambda bar, n: T.mbarrier_expect_tx(bar, n), "mbarrier_expect_tx"),
    (lambda bar, n: T.cp_async_barrier_noinc(bar), "cp_async_barrier_noinc"), (lambda bar, n: T.ptx_commit_group(), "ptx_commit_group"),
    (lambda bar, n: T.ptx_wait_group(0), "ptx_wait_group"), (lambda bar, n: T.fence_proxy_async(), "fence_proxy_async")])
def test_what_has_no_effect_says_so(call, name):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        traced(lambda A, n: call(T.alloc_barrier(128), n))
    assert [w.category for w in said] == [NoEffectWarning] and f"T.{name} has no effect" in str(said[0].message)
