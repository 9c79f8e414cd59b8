# SPDX-License-Identifier: Apache-2.0
"""Statements as TileLang's programs write them, on the emulator with its checks."""

import pickle

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


def run(client, func, target, *arguments, outputs=None):
    kernel = kiln.compile(func, out_idx=outputs, target=target, client=client)
    with kiln.emulation(check=True):
        return kernel(*arguments)


@pytest.mark.parametrize("target", TARGETS)
def test_all_values_are_read_before_one_of_several_targets_changes(client, target):
    @T.prim_func
    def main(A: T.Tensor((4,), T.float32), F: T.Tensor((2,), T.int32)):
        with T.Kernel(1, threads=1):
            A[0], A[1] = A[1], A[0]
            x = A[2]
            y = A[3]
            A[2], A[3] = y, x
            a = T.alloc_var(T.int32, 0)
            b = T.alloc_var(T.int32, 1)
            for _ in T.serial(10):
                a, b = b, a + b
            F[0], F[1] = a, b

    a, f = np.arange(4, dtype="float32"), np.zeros(2, "int32")
    run(client, main, target, a, f)
    assert a.tolist() == [1, 0, 3, 2]
    assert f.tolist() == [55, 89]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [0, 13, 64, 200])
def test_parallel_loops_of_run_time_extents(client, target, length):
    @T.prim_func
    def main(A: T.Tensor((256,), T.float32), B: T.Tensor((256,), T.float32), n: T.int32):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(n):
                B[i] = A[i] + 1.0

    a, b = np.arange(256, dtype="float32"), np.zeros(256, "float32")
    run(client, main, target, a, b, length)
    assert (b[:length] == a[:length] + 1).all() and not b[length:].any()


@pytest.mark.parametrize("rows, columns", [(0, 5), (3, 7), (9, 33)])
def test_parallel_loops_of_two_run_time_extents(client, rows, columns):
    @T.prim_func
    def main(A: T.Tensor((16, 4, 64), T.int32), m: T.int32, n: T.int64):
        with T.Kernel(1, threads=32):
            for i, k, j in T.Parallel(m, 4, n):
                A[i, k, j] = i * 1000 + k * 100 + j

    a = np.full((16, 4, 64), -1, "int32")
    run(client, main, "emu:sm_90a", a, rows, columns)
    i, k, j = np.indices(a.shape)
    assert (a == np.where((i < rows) & (j < columns), i * 1000 + k * 100 + j, -1)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_a_ramp_names_elements_and_counts_from_the_end(client, target):
    @T.prim_func
    def main(A: T.Tensor((16,), T.float32), B: T.Tensor((4, 4), T.float32), C: T.Tensor((16,), T.float32)):
        with T.Kernel(1, threads=1):
            for t in T.serial(4):
                B[t, T.Ramp(0, 1, 4)] = A[T.Ramp(t - 2, 1, 4)]
            for t in T.serial(4):
                C[T.Ramp(t - 2, 1, 4)] = B[t, T.Ramp(0, 1, 4)]
            C[T.Ramp(4, 3, 3)] = 7.0
            kept = C[T.Ramp(0, 1, 2)]
            C[0] = -1.0
            C[8:10] = kept

    a, b, c = np.arange(16, dtype="float32"), np.zeros((4, 4), "float32"), np.zeros(16, "float32")
    run(client, main, target, a, b, c)
    assert (b == a[(np.arange(4)[:, None] - 2 + np.arange(4)) % 16]).all()
    expected = np.zeros(16, "float32")
    for t in range(4):
        expected[(np.arange(4) + t - 2) % 16] = b[t]
    expected[[4, 7, 10]] = 7
    expected[8:10] = expected[:2]
    expected[0] = -1
    assert (c == expected).all()


@pytest.mark.parametrize("target", TARGETS)
def test_neighbours_are_added_where_a_ramp_names_them(client, target):
    @T.prim_func
    def main(A: T.Tensor((8,), T.float32), V: T.Tensor((8,), T.float32), P: T.Tensor((4,), T.float32)):
        with T.Kernel(1, threads=1):
            P[T.Ramp(0, 1, 2)] = T.atomic_addx2(A[T.Ramp(2, 1, 2)], V[T.Ramp(0, 1, 2)], return_prev=True)
            P[2:4] = T.atomic_addx2(A[4:6], V[4:6], return_prev=True)

    a, v, p = np.arange(8, dtype="float32"), np.full(8, 10, "float32"), np.zeros(4, "float32")
    run(client, main, target, a, v, p)
    assert a.tolist() == [0, 1, 12, 13, 14, 15, 6, 7] and p.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pairs(client, target, dtype):
    @T.prim_func
    def main(A: T.Tensor((64,), dtype), B: T.Tensor((64,), dtype), C: T.Tensor((7, 64), dtype)):
        with T.Kernel(1, threads=32):
            i = T.Ramp(T.get_thread_binding() * 2, 1, 2)
            C[0, i] = T.add2(A[i], B[i])
            C[1, i] = T.sub2(A[i], B[i])
            C[2, i] = T.mul2(A[i], B[i])
            C[3, i] = T.max2(A[i], B[i])
            C[4, i] = T.min2(A[i], B[i])
            C[5, i] = T.abs2(A[i])
            C[6, i] = T.fma2(A[i], B[i], A[i])

    generator = np.random.default_rng(5)
    a, b = (generator.integers(-8, 8, 64).astype(dtype) for _ in range(2))
    c = np.zeros((7, 64), dtype)
    run(client, main, target, a, b, c)
    assert (c == [a + b, a - b, a * b, np.maximum(a, b), np.minimum(a, b), abs(a), a * b + a]).all()


def test_pairs_are_of_one_type():
    half, brain = T.Var("x", "float16x2"), T.Var("y", "bfloat16x2")
    for function, operands in ((T.add2, (half, brain)), (T.fma2, (half, half, brain))):
        with pytest.raises(ValueError, match="same dtype"):
            function(*operands)
    with pytest.raises(ValueError, match="pairs of float32, float16, bfloat16"):
        T.abs2((T.int32(1), T.int32(2)))
    with pytest.raises(TypeError, match="it takes pairs"):
        T.abs2(1.0)
    with pytest.raises(T.TraceError, match="named by a T.Ramp"):
        T.abs2(half)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [1, 40, 64, 100])
def test_slices_to_the_end_of_a_run_time_extent(client, target, length):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), T.int32), B: T.Tensor((64,), T.int32), C: T.Tensor((n,), T.int32)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((64,), T.int32)
            T.copy(A[0:n], tile)
            T.copy(tile, B)
            T.copy(tile, C[1:])

    a, b, c = np.arange(1, length + 1, dtype="int32"), np.full(64, -1, "int32"), np.full(length, -1, "int32")
    run(client, main, target, a, b, c)
    tile = np.zeros(64, "int32")
    tile[: min(length, 64)] = a[:64]
    expected = np.full(length, -1)
    expected[1:65] = tile[: max(0, length - 1)]
    assert (b == tile).all() and (c == expected).all()


def test_a_whole_buffer_of_one_element_is_a_tile(client):
    @T.prim_func
    def main(B: T.Tensor((1,), T.float32), C: T.Tensor((1,), T.float32)):
        with T.Kernel(1, threads=64):
            T.atomic_add(B, 1)
            T.atomic_add(C[0], 1)  # by each thread

    b, c = np.zeros(1, "float32"), np.zeros(1, "float32")
    run(client, main, "emu:sm_90a", b, c)
    assert (b[0], c[0]) == (1, 64)


@pytest.mark.parametrize("form, length", [(lambda n: n * 4, 16), (lambda n: n + 1, 16), (lambda n: 3 * n + 1, 16), (lambda n: (n - 2) * 2, 16)])
def test_a_symbol_is_found_where_it_stands_linearly(client, form, length):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((form(n),), T.int32)):
        with T.Kernel(1, threads=32):
            for i in T.serial(form(n)):
                A[i] = n

    a = np.full(length, -1, "int32")
    run(client, main, "emu:sm_90a", a)
    assert len(set(a.tolist())) == 1 and form(int(a[0])) == length


def test_symbols_that_no_extent_gives_are_refused(client):
    m, n = T.dynamic("m"), T.dynamic("n")
    for shape in ((m * n,), (m // 2 + n,), (m + n,)):
        @T.prim_func
        def main(A: T.Tensor(shape, T.int32)):
            with T.Kernel(1, threads=32):
                A[m] = n

        with pytest.raises(CompileError, match="cannot be found at launch"):
            kiln.compile(main, target="emu:sm_90a", client=client)


def test_an_unused_tensor_may_be_none(client):
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m,), T.int32), Unused: T.Tensor((m,), T.int32), Out: T.Tensor((4,), T.int32)):
        with T.Kernel(1, threads=32):
            Out[0] = m
            if m > 0:
                Out[1] = A[0]

    kernel = kiln.compile(main, target="emu:sm_90a", client=client)
    a, out = np.full(7, 5, "int32"), np.zeros(4, "int32")
    kernel(a, None, out)
    assert out.tolist() == [7, 5, 0, 0]
    with pytest.raises(ValueError, match="A is expected to have non-NULL pointer"):
        kernel(None, a, out)

    @T.prim_func
    def alone(Unused: T.Tensor((m,), T.int32), Out: T.Tensor((4,), T.int32)):
        with T.Kernel(1, threads=32):
            Out[0] = m

    out[:] = -1
    kiln.compile(alone, target="emu:sm_90a", client=client)(None, out)
    assert out.tolist() == [0, -1, -1, -1]


VOTE = T.any_sync(1)


def test_a_vote_from_outside_is_held_where_it_is_used(client):
    @T.prim_func
    def main(A: T.Tensor((32,), T.int32)):
        with T.Kernel(1, threads=32):
            A[T.get_thread_binding()] = VOTE + 1

    a = np.zeros(32, "int32")
    run(client, main, "emu:sm_90a", a)
    assert (a == 2).all()
    with pytest.raises(TypeError, match="any_sync requires an integer or boolean predicate, not float32"):
        T.any_sync(0.5)


@pytest.mark.parametrize("name, order", [("load", "release"), ("load", "acq_rel"), ("store", "acquire"), ("store", "consume"), ("store", "acq_rel"),
                                         ("store", "soon")])
def test_orders_that_a_load_or_store_cannot_have(name, order):
    for kind in (ValueError, T.TraceError):
        with pytest.raises(kind, match=f"atomic_{name} does not support memory_order='{order}'"):
            @T.prim_func
            def main(A: T.Tensor((1,), T.int32), B: T.Tensor((1,), T.int32)):
                with T.Kernel(1, threads=1):
                    if name == "load":
                        B[0] = T.atomic_load(A[0], memory_order=order)
                    else:
                        T.atomic_store(A[0], 1, memory_order=order)


def test_tensors_of_four_bit_floats_are_passed_as_bytes(client):
    n, s = T.dynamic("n"), T.dynamic("s")

    @T.prim_func
    def main(A: T.StridedTensor((4, n), (s, 1), T.float4_e2m1fn), Out: T.Tensor((2,), T.int32)):
        with T.Kernel(1, threads=32):
            Out[0], Out[1] = n, s

    wide, out = np.zeros((8, 16), "uint8"), np.zeros(2, "int32")
    run(client, main, "emu:sm_90a", wide[::2, :8], out)
    assert out.tolist() == [16, 64]


def test_sizes_of_packed_tensors_count_elements():
    @kiln.jit
    def kernel(A):
        M, K, S = T.const("M, K, S")
        A: T.StridedTensor((M, K), (S, 1), T.float4_e2m1fn)
        with T.Kernel(1, threads=32):
            T.sync_threads()

    packed = np.empty((8, 256), "int8")[::2]
    buffer = kernel.get_tir(packed).params[0].buffer
    assert [int(d) for d in buffer.shape] == [4, 512] and [int(s) for s in buffer.strides] == [1024, 1]


def test_elements_that_several_names_take_are_read_once(client):
    @T.prim_func
    def main(A: T.Tensor((8,), T.int32)):
        with T.Kernel(1, threads=1):
            x, y = A[T.Ramp(0, 1, 2)], A[T.Ramp(2, 1, 2)]
            A[T.Ramp(0, 1, 4)] = 0
            A[4:6] = x
            A[6:8] = y

    a = np.arange(1, 9, dtype="int32")
    run(client, main, "emu:sm_90a", a)
    assert a.tolist() == [0, 0, 0, 0, 1, 2, 3, 4]


def test_outputs_are_named_once():
    @T.prim_func
    def main(A):
        A: T.Tensor((32,), T.float32)
        B = T.empty((32,), T.float32)
        with T.Kernel(1, threads=32):
            T.copy(A, B)
        return B

    with pytest.raises(ValueError, match="Out index conflict: main makes its outputs"):
        main.with_outputs([-1])


def test_what_a_ramp_and_a_tuple_refuse():
    def traced(body):
        @T.prim_func
        def main(A: T.Tensor((8, 8), T.float32), n: T.int32):
            with T.Kernel(1, threads=1):
                body(A, n)

    for body, problem in [(lambda A, n: A.__setitem__((0, T.Ramp(0, 1, n)), 1.0), "Python integers"),
                          (lambda A, n: A.__setitem__((T.Ramp(0, 1, 2), T.Ramp(0, 1, 2)), 1.0), "one T.Ramp in an index"),
                          (lambda A, n: A.__setitem__((0, T.Ramp(0, 1, 4)), (1.0, 2.0)), "2 values for 4 elements"),
                          (lambda A, n: A.__setitem__(T.Ramp(0, 1, 4), 1.0), "an index for each dimension"),
                          (lambda A, n: A.__setitem__((slice(0, 2), slice(0, 2)), (1.0, 2.0)), "along one dimension"),
                          (lambda A, n: T.atomic_addx2(A[0, T.Ramp(0, 1, 4)], A[1, 0:2]), "it takes 2")]:
        with pytest.raises(T.TraceError, match=problem):
            traced(body)


def test_products_of_float32_are_in_tf32_as_tilelangs_are(client):
    import tilelang

    @T.prim_func
    def main(A: T.Tensor((64, 64), T.float32), B: T.Tensor((64, 64), T.float32), C: T.Tensor((64, 64), T.float32)):
        with T.Kernel(1, threads=128):
            a, b, c = T.alloc_shared((64, 64), T.float32), T.alloc_shared((64, 64), T.float32), T.alloc_fragment((64, 64), T.float32)
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    rng = np.random.default_rng()
    x, y = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    exact = x.astype(np.float64) @ y.T.astype(np.float64)
    errors = []
    for compiled, function in ((tilelang.compile, main), (tilelang.compile, pickle.loads(pickle.dumps(main))), (kiln.compile, main)):
        z = np.zeros((64, 64), np.float32)
        compiled(function, target="emu:sm_90a", client=client)(x, y, z)
        errors.append(np.linalg.norm(z - exact) / np.linalg.norm(exact))
    assert 1e-5 < errors[0] < 2e-3 and errors[1] == errors[0] and errors[2] < 1e-6, errors
    assert tilelang.jit.keywords == {"allow_tf32": True}
