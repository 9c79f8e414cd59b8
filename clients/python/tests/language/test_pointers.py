# SPDX-License-Identifier: Apache-2.0
"""T.ptr and T.make_tensor: tensors at addresses."""

from types import SimpleNamespace

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.addresses import Addresses
from kiln.client import Client
from kiln.language.pointers import Memory
from needs import needs_kilnd as emulated


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


def product(dtype=T.float16):
    @T.prim_func
    def main(a_ptr: T.ptr, b_ptr: T.ptr, c_ptr: T.ptr, m: T.int32, n: T.int32, k: T.int32):
        A = T.make_tensor(a_ptr, (m, k), dtype)
        B = T.make_tensor(b_ptr, (k, n), dtype)
        C = T.make_tensor(c_ptr, (m, n))
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=64) as (bx, by):
            a, b = T.alloc_shared((32, 32), dtype), T.alloc_shared((32, 32), dtype)
            c = T.alloc_fragment((32, 32), T.float32)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(A[by * 32, ko * 32], a)
                T.copy(B[ko * 32, bx * 32], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 32, bx * 32])

    return main


def gathered(groups=3, size=8, dtype=T.float16):
    @T.prim_func
    def main(ptrs: T.Tensor((groups,), T.ptr), out: T.Tensor((groups, size), dtype)):
        with T.Kernel(groups, threads=32) as bx:
            source = T.make_tensor(ptrs[bx], (size,), dtype)
            for i in T.serial(size):
                out[bx, i] = source[i]

    return main


@emulated
@pytest.mark.parametrize("target", ["emu:sm_90a", "emu:gfx942"])
def test_parameters_are_tensors(client, target):
    rng = np.random.default_rng(2)
    a, b, c = rng.standard_normal((33, 48)).astype("float16"), rng.standard_normal((48, 40)).astype("float16"), np.zeros(33 * 40, "float32")
    kernel = kiln.compile(product(), target=target, client=client)
    with kiln.emulation(check=True):
        kernel(a, b.reshape(-1), c, 33, 40, 48)
    assert np.abs(c.reshape(33, 40) - a.astype("float32") @ b.astype("float32")).max() < 0.05
    with kiln.emulation():
        with pytest.raises(ValueError, match="a_ptr: the emulator takes tensors for addresses, not 4096"):
            kernel(4096, b, c, 33, 40, 48)
        with pytest.raises(ValueError, match="c_ptr: a contiguous tensor of 1320 elements is needed"):
            kernel(a, b, c[:-1], 33, 40, 48)
        with pytest.raises(ValueError, match="b_ptr: a contiguous tensor of 1920 elements"):
            kernel(a, np.zeros((48, 80), "float16")[:, ::2], c, 33, 40, 48)


@emulated
def test_computed_addresses_compile_and_are_refused_by_the_emulator(client):
    kernel = kiln.compile(gathered(), target="cuda:sm_90a", client=client)
    assert len(kernel.params) == 2 and "ld.global" in kernel.get_kernel_source()
    kernel = kiln.compile(gathered(), target="emu:sm_90a", client=client)
    with pytest.raises(ValueError, match="mean nothing to the emulator"):
        kernel(np.zeros(3, "int64"), np.zeros((3, 8), "float16"))


def test_what_a_launch_gets():
    class Tensor:
        def __init__(self, device=1, room=48 * 40):
            self.is_cuda, self.device, self.room = device is not None, device, room

        def data_ptr(self):
            return 0x5000

        def get_device(self):
            return self.device

        def element_size(self):
            return 2

        def storage_offset(self):
            return 10

        def untyped_storage(self):
            return SimpleNamespace(nbytes=lambda: 2 * (10 + self.room))

    addresses = Addresses(product())
    a, b, c, *scalars = addresses.on_device([0x10000, Tensor(), 0x30000, 33, 40, 48], 1)
    for tensor, problem in ((Tensor(None), "b_ptr: the tensor is on None, and the kernel runs on GPU 1"), (Tensor(0), "runs on GPU 1"),
                            (Tensor(room=48 * 40 - 1), r"b_ptr: \[48, 40\] elements of float16 take 3840 bytes, and the tensor's memory has 3838")):
        with pytest.raises(ValueError, match=problem):
            addresses.on_device([0x10000, tensor, 0x30000, 33, 40, 48], 1)
    for number in (-5, 0, True):
        with pytest.raises(TypeError, match="a_ptr is an address: a number above 0"):
            addresses.on_device([number, Tensor(), 0x30000, 33, 40, 48], 1)
    assert scalars == [33, 40, 48] and [p.data_ptr() for p in (a, b, c)] == [0x10000, 0x5000, 0x30000]
    assert [(p.shape, p.stride(), p.dtype) for p in (a, b, c)] == [
        ((33, 48), (48, 1), "torch.float16"), ((48, 40), (40, 1), "torch.float16"), ((33, 40), (40, 1), "torch.float32")]
    assert a.is_cuda and a.get_device() == 1
    with pytest.raises(TypeError, match="a_ptr is an address"):
        addresses.on_device(["x", 1, 2, 33, 40, 48], 0)
    with pytest.raises(TypeError, match="dimension m follows from no argument"):
        addresses.on_device([1, 2, 3, None, 40, 48], 0)
    *given, memory = Addresses(gathered()).on_device(["ptrs", "out"], 0)
    assert given == ["ptrs", "out"] and memory.data_ptr() == Memory.BASE and memory.shape == (Memory.BYTES // 2,)


def test_what_the_function_says():
    func = gathered()
    assert func.given == 2 and [b.dtype for b in func.buffer_map.values()] == ["int64", "float16", "float16"]
    assert all(b.may_alias for b in func.buffer_map.values())
    assert func.buffer_map[func.params[0]].shape == (3,) and func.with_outputs(-1).outputs == [1]
    text = func.script()
    assert "let pointer: int64 = (ptrs[bx] - 4096) >> 1" in text and "masked(((i >= 0) and (i < 8)), memory_float16[" in text
    assert "a_ptr: float16[extent, extent]" in product().script()


def test_strides_and_a_pointer_that_stays_a_number():
    @T.prim_func
    def main(p: T.ptr, q: T.ptr, n: T.int32):
        A = T.make_tensor(p, (4, 8), T.float32, strides=(n, 1))
        with T.Kernel(1, threads=32):
            B = T.make_tensor(q + 64, (4, 8), T.float32, strides=(n, 1))
            T.copy(A, B)

    place, number, n, memory = Addresses(main).on_device([4096, 8192, 12], 0)
    assert place.shape == (4, 8) and place.stride() == (12, 1) and (number, n) == (8192, 12) and memory.dtype == "torch.float32"
    assert "q: int64" in main.script() and "* int64(n)" in main.script()


def test_the_eager_style(service, torch):
    @kiln.jit(target="cuda:sm_90a")
    def main(A: T.ptr, n: int, dtype: T.dtype):
        A = T.make_tensor(A, (n,), dtype)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                A[i] = 1

    assert main.get_tir(A=T.ptr(), n=64, dtype=T.float32).script().startswith("def main(\n    A: float32[64],\n):")


def traced(body):
    @T.prim_func
    def main(p: T.ptr, A: T.Tensor((8,), T.int32), n: T.int32):
        with T.Kernel(1, threads=32):
            body(p, A, n)


def twice(p, A, n):
    T.make_tensor(p, (8,), T.float32)
    T.make_tensor(p, (4,), T.float32)


@pytest.mark.parametrize("body, problem", [
    (lambda p, A, n: T.make_tensor(A[0], (8,)), "of type int32: an address is"),
    (lambda p, A, n: T.make_tensor(p, (A[0],)), "must follow from the scalar parameters"),
    (lambda p, A, n: T.make_tensor(T.cast(A[0], T.int64), (8,), T.int4), "elements of 4 bits have no addresses"),
    (lambda p, A, n: T.make_tensor_from_addr(T.cast(A[0], T.int64), (8,), storage_scope="shared"), "those of global memory"),
    (twice, "of which a tensor is made already")])
def test_what_is_refused(body, problem):
    with pytest.raises(T.TraceError, match=problem):
        traced(body)
    with pytest.raises(T.TraceError, match="stands in T.Kernel"):
        @T.prim_func
        def outside(A: T.Tensor((8,), T.int64)):
            T.make_tensor(A[0], (8,))
