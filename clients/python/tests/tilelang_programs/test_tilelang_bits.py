# SPDX-License-Identifier: Apache-2.0
"""Bits of integers, and which threads of a warp have the same value, on the emulator."""

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from needs import needs_kilnd as pytestmark  # noqa: F401

TARGETS = ("emu:sm_90a", "emu:gfx942")


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


def run(client, func, target, *arrays):
    with kiln.emulation(check=True):
        kiln.compile(func, target=target, client=client)(*arrays)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
def test_bits_of_integers(client, target, dtype):
    @T.prim_func
    def main(A: T.Tensor((64,), dtype), B: T.Tensor((3, 64), T.int32)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[0, i] = T.popcount(A[i])
                B[1, i] = T.clz(A[i])
                B[2, i] = T.__ffs(A[i])

    bits = np.dtype(dtype).itemsize * 8
    rng = np.random.default_rng(1)
    some = zip(rng.integers(0, 1 << 63, 60, "uint64"), rng.integers(0, 63, 60))
    numbers = [0, 1, 1 << bits - 1, (1 << bits) - 1, *(int(x) >> int(s) for x, s in some)]
    numbers = np.array([n % (1 << bits) for n in numbers], f"uint{bits}")
    b = np.zeros((3, 64), "int32")
    run(client, main, target, numbers.view(dtype), b)
    wanted = [(bin(n).count("1"), bits - n.bit_length(), (n & -n).bit_length()) for n in map(int, numbers)]
    assert (b == np.array(wanted).T).all()


def test_the_first_bits_of_a_mask(client):
    @T.prim_func
    def main(A: T.Tensor((4, 64), T.int32), B: T.Tensor((64,), T.uint32)):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            B[tx] = T.__fns(A[0, tx], A[1, tx], A[2, tx])

    rng = np.random.default_rng(2)
    a = np.stack([rng.integers(-1 << 31, 1 << 31, 64), rng.integers(0, 32, 64), rng.integers(-6, 7, 64), np.zeros(64)]).astype("int32")
    a[0, :8] &= 0x10010

    def place(mask, base, offset):
        step, places = -1 if offset < 0 else 1, 1 if offset == 0 else 32
        found = [p for p in range(base, base + step * places, step) if 0 <= p < 32 and mask >> p & 1]
        return found[max(abs(offset), 1) - 1] if len(found) >= max(abs(offset), 1) else 0xFFFFFFFF

    b = np.zeros(64, "uint32")
    run(client, main, "emu:sm_90a", a, b)
    assert b.tolist() == [place(int(m) & 0xFFFFFFFF, int(base), int(offset)) for m, base, offset in zip(*a[:3])]


def test_a_mask_of_all_bits(client):
    @T.prim_func
    def main(B: T.Tensor((32,), T.uint32)):
        with T.Kernel(1, threads=32):
            B[T.get_thread_binding()] = T.__fns(0xFFFFFFFF, 3, 0)

    b = np.zeros(32, "uint32")
    run(client, main, "emu:sm_90a", b)
    assert (b == 3).all()


@pytest.mark.parametrize("target", TARGETS)
def test_threads_with_the_same_value(client, target):
    @T.prim_func
    def main(A: T.Tensor((96,), T.int32), B: T.Tensor((4, 96), T.uint32)):
        with T.Kernel(1, threads=96):
            tx = T.get_thread_binding()
            B[0, tx] = T.match_any_sync(A[tx])
            B[1, tx] = T.match_all_sync(A[tx])
            B[2, tx] = T.cast(T.activemask(), T.uint32)
            if tx < 64:
                B[3, tx] = T.match_any_sync(A[tx] % 2)

    a = np.concatenate([np.random.default_rng(3).integers(0, 5, 64), np.full(32, 7)]).astype("int32")
    b = np.zeros((4, 96), "uint32")
    run(client, main, target, a, b)
    same = lambda v: [sum(1 << lane for lane in range(32) if v[t // 32 * 32 + lane] == v[t]) for t in range(len(v))]  # noqa: E731
    assert b[0].tolist() == same(a) and b[1].tolist() == [0] * 64 + [0xFFFFFFFF] * 32
    assert (b[2] == 0xFFFFFFFF).all() and b[3].tolist() == same(a[:64] % 2) + [0] * 32


@pytest.mark.parametrize("function", [T.popcount, T.clz, T.__ffs])
def test_floats_have_no_bits(function):
    with pytest.raises(TypeError, match="bits are those of integers"):
        function(1.5)
