# SPDX-License-Identifier: Apache-2.0
"""What TileLang's names compute, on the emulator."""

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from kiln.errors import CompileError
from needs import needs_kilnd as pytestmark  # noqa: F401

TARGETS = ("emu:sm_90a", "emu:gfx942")


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


def compiled(client, func, target, outputs=-1):
    return kiln.compile(func, out_idx=outputs, target=target, client=client)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_without_a_grid(client, target):
    @T.prim_func
    def main(A: T.Tensor((64,), T.float32), B: T.Tensor((64,), T.float32)):
        with T.Kernel(threads=64):
            tile = T.alloc_buffer((64,), T.float32, scope="shared")
            T.copy(A, tile)
            for i in T.Parallel(64):
                B[i] = tile[63 - i]

    a = np.random.default_rng(1).standard_normal(64).astype("float32")
    assert (compiled(client, main, target)(a) == a[::-1]).all()


@pytest.mark.parametrize("target", TARGETS)
def test_threads_by_their_names(client, target):
    @T.prim_func
    def main(B: T.Tensor((2, 3, 4, 16), T.int32)):
        with T.Kernel(3, 2, threads=(16, 4)) as (bx, by):
            x = T.thread_binding(0, 16, thread="threadIdx.x")
            y = T.thread_binding(0, 4, thread="threadIdx.y")
            column = T.thread_binding(3, thread="blockIdx.x")
            row = T.thread_binding(2, thread="blockIdx.y")
            B[row, column, y, x] = row * 1000 + column * 100 + y * 20 + x + T.thread_binding(1, thread="threadIdx.z")

    row, column, y, x = np.indices((2, 3, 4, 16))
    assert (compiled(client, main, target)() == row * 1000 + column * 100 + y * 20 + x).all()


@pytest.mark.parametrize("low, high", [(None, 0.5), (-0.5, None), (-0.5, 0.25), (None, None)])
def test_clamp(client, low, high):
    @T.prim_func
    def main(A: T.Tensor((64,), T.float32), B: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = T.clamp(A[i], min_val=low, max_val=high)

    a = np.linspace(-2, 2, 64, dtype="float32")
    wanted = a if low is None and high is None else np.clip(a, low, high)
    assert (compiled(client, main, TARGETS[0])(a) == wanted).all()


def test_memory_by_its_scope(client):
    @T.prim_func
    def main(A: T.Tensor((32,), T.float32), B: T.Tensor((32,), T.float32)):
        with T.Kernel(threads=32):
            fragment = T.alloc_buffer((32,), T.float32, scope="local.fragment")
            own = T.alloc_buffer((2,), T.float32, scope="local")
            between = T.alloc_buffer((32,), T.float32)
            T.copy(A, fragment)
            for i in T.Parallel(32):
                fragment[i] = fragment[i] * 2
            T.copy(fragment, between)
            x = T.get_thread_binding()
            own[1] = between[x] + 1
            B[x] = own[1]

    a = np.arange(32, dtype="float32")
    assert (compiled(client, main, TARGETS[0])(a) == a * 2 + 1).all()


def test_parameters_typed_in_the_body_are_passed_in_the_signatures_order(client):
    @T.prim_func
    def main(A, s, B):
        B: T.Tensor((32,), T.float32)
        s: T.float32
        A: T.Tensor((32,), T.float32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                B[i] = A[i] * s

    a = np.arange(32, dtype="float32")
    assert (compiled(client, main, TARGETS[0])(a, 3.0) == a * 3).all()


@pytest.mark.parametrize("target", TARGETS)
def test_variables_that_get_their_value_later(client, target):
    @T.prim_func
    def main(A: T.Tensor((4, 32), T.float32), B: T.Tensor((4, 32), T.float32)):
        with T.Kernel(threads=32):
            for k in T.serial(4):
                row = T.int32()
                T.let(row, 3 - k)
                first = T.float32()
                with T.let(first, A[row, 0]):
                    x = T.int32()
                    for i in T.Parallel(32):
                        B[k, i] = A[row, T.let(x, i // 2, x * 2)] - first

    a = np.random.default_rng(2).standard_normal((4, 32)).astype("float32")
    wanted = a[::-1, np.arange(32) // 2 * 2] - a[::-1, :1]
    assert (compiled(client, main, target)(a) == wanted).all()


def test_a_variable_gets_one_value():
    def main(again):
        @T.prim_func
        def main(B: T.Tensor((32,), T.int32)):
            with T.Kernel(threads=32) as bx:
                n = T.int32()
                T.let(n, bx)
                if bx < 1:
                    T.let(n if again else bx, 1)

    with pytest.raises(T.TraceError, match="which has a value; to change a value use T.alloc_var"):
        main(True)
    with pytest.raises(T.TraceError, match="it takes a variable, as T.int32"):
        main(False)


@pytest.mark.parametrize("target", TARGETS)
def test_a_variable_has_a_value_in_each_block_of_its_own(client, target):
    @T.prim_func
    def main(A: T.Tensor((32,), T.int32), B: T.Tensor((5, 32), T.int32)):
        v, w = T.int32(), T.int32()
        with T.Kernel(threads=32):
            with T.let(v, 3):
                for i in T.Parallel(32):
                    B[0, i] = v + A[i]
            with T.let(v, 4):
                for i in T.Parallel(32):
                    B[1, i] = v + A[i]
            x = T.get_thread_binding()
            if A[x] > 10:
                T.let(w, 10)
                B[2, x] = w + 1
            else:
                T.let(w, A[x])
                B[2, x] = w + 1
        with T.Kernel(threads=32):
            T.let(v, 5)
            for i in T.Parallel(32):
                B[3, i] = v + A[i]
                B[4, i] = T.let(w, A[i], T.popcount(w) * 100 + T.clz(w))

    a = np.random.default_rng(3).integers(0, 64, 32).astype("int32")
    bits = [bin(x).count("1") * 100 + 32 - int(x).bit_length() for x in a]
    assert (compiled(client, main, target)(a) == np.stack([a + 3, a + 4, np.minimum(a, 10) + 1, a + 5, bits])).all()


def test_a_variable_without_a_value(client):
    @T.prim_func
    def main(B: T.Tensor((32,), T.float32)):
        with T.Kernel(threads=32):
            total = T.float32()
            for i in T.Parallel(32):
                B[i] = total

    with pytest.raises(CompileError, match=r"makes a variable for T.let; write T.float32\(0\)"):
        compiled(client, main, TARGETS[0])


def test_buffers_by_their_parts(client):
    @T.prim_func
    def main(A: T.Tensor((32,), T.float32), B: T.Tensor((8, 4), T.int32)):
        with T.Kernel(threads=32):
            tile = T.decl_buffer((4, 8), T.float32, scope="shared")
            rows = T.decl_buffer((32,), T.float32, data=tile.data, scope="shared")
            bits = T.decl_buffer((8, 4), T.int32, data=tile.data, scope="shared.dyn")
            T.copy(A, rows)
            T.copy(bits, B)

    a = np.arange(32, dtype="float32")
    assert (compiled(client, main, TARGETS[0])(a) == a.view("int32").reshape(8, 4)).all()


def test_arguments_that_ask_for_nothing_unusual(client):
    usual = dict(elem_offset=0, align=64, offset_factor=1)

    @T.prim_func
    def main(A: T.Tensor((32,), T.float32), B: T.Tensor((32,), T.int32)):
        with T.Kernel(threads=32):
            tile = T.alloc_buffer((32,), T.float32, scope="shared", strides=(1,), **usual)
            rows = T.decl_buffer((4, 8), T.int32, data=tile.data, scope="shared", strides=(8, 1), **usual)
            own = T.alloc_var(T.float32)
            bits = T.decl_buffer((1,), T.int32, data=own, scope="local.var")
            T.copy(A, tile)
            x = T.get_thread_binding()
            own = A[x]
            B[x] = rows[x // 8, x % 8] - bits[0] + x

    assert (compiled(client, main, TARGETS[0])(np.ones(32, "float32")) == np.arange(32)).all()


@pytest.mark.parametrize("asked, message", [
    (dict(elem_offset=4), "elem_offset=…"), (dict(strides=(2,)), "strides=…"), (dict(align=4096), "align=…"),
    (dict(shape=(16,)), "another number of bits; declare all of it"), (dict(scope="local"), "its scope is 'shared.dyn'"),
    (dict(data=3), "it takes the memory of a buffer")])
def test_what_a_buffer_of_parts_is_not(asked, message):
    with pytest.raises(T.TraceError, match=message):
        @T.prim_func
        def main(A: T.Tensor((32,), T.float32)):
            with T.Kernel(threads=32):
                tile = T.alloc_shared((32,), T.float32)
                T.decl_buffer(**{**dict(shape=(32,), data=tile.data, scope="shared"), **asked})
