# SPDX-License-Identifier: Apache-2.0
"""Elements of four bits, two to a byte: float4_e2m1fn, int4 and uint4, on the emulator with its checks."""

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from kiln.errors import CompileError
from kiln.language.dtypes import as_dtype
from kiln.remote import host_tensor
from needs import needs_kilnd as pytestmark  # noqa: F401

TARGETS = ("emu:sm_90a", "emu:gfx942")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], "float32")
VALUES = {"float4_e2m1fn": np.concatenate([E2M1, -E2M1]), "uint4": np.arange(16, dtype="float32"),
          "int4": np.array([*range(8), *range(-8, 0)], "float32")}


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


def run(client, func, target, *arguments, outputs=None):
    kernel = kiln.compile(func, out_idx=outputs, target=target, client=client)
    with kiln.emulation(check=True):
        return kernel(*arguments)


def unpacked(bytes_, dtype):
    codes = np.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(*bytes_.shape[:-1], -1)
    return VALUES[dtype][codes]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("through", ["loads", "fragment", "shared"])
def test_every_byte_is_read_as_two_elements(client, target, dtype, through):
    @T.prim_func
    def main(A: T.Tensor((8, 64), dtype), Out: T.Tensor((8, 64), T.float32)):
        with T.Kernel(2, threads=64) as b:
            if through == "loads":
                for i, j in T.Parallel(4, 64):
                    Out[b * 4 + i, j] = T.cast(A[b * 4 + i, j], T.float32)
            else:
                tile = T.alloc_fragment((4, 64), dtype) if through == "fragment" else T.alloc_shared((4, 64), dtype)
                T.copy(A[b * 4, 0], tile)
                T.copy(tile, Out[b * 4, 0])

    packed, out = np.arange(256, dtype="uint8").reshape(8, 32), np.full((8, 64), 99, "float32")
    run(client, main, target, packed, out)
    want = unpacked(packed, dtype)
    assert np.array_equal(out, want) and np.array_equal(np.signbit(out), np.signbit(want))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["float32", "float16", "float64"])
def test_numbers_become_the_nearest_float4(client, target, source):
    ends = np.array([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 1e4, np.inf], source)
    x = np.concatenate([ends, np.nextafter(ends[1:], np.array(0, source)), np.nextafter(ends[:-1], np.array(np.inf, source))])
    x = np.concatenate([x, -x, [np.nan, -np.nan]]).astype(source)
    x = np.concatenate([x, np.zeros(-len(x) % 32, source)])
    n = len(x)

    @T.prim_func
    def main(X: T.Tensor((n,), source), Out: T.Tensor((n,), T.float4_e2m1fn)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((n,), T.float4_e2m1fn)
            for i in T.Parallel(n):
                tile[i] = T.cast(X[i], T.float4_e2m1fn)
            T.copy(tile, Out)

    out = np.zeros(n // 2, "uint8")
    run(client, main, target, x, out)
    wide = np.minimum(np.abs(np.where(np.isnan(x), 6, x).astype("float64")), 6)
    distance = np.abs(wide[:, None] - E2M1.astype("float64"))
    code = np.argmin(distance + np.where(np.arange(8) % 2 == 1, 1e-12, 0), 1) if source != "float64" else None
    if code is None:  # neighbours of ties in float64 are nearer than that
        nearest = distance == distance.min(1, keepdims=True)
        code = np.array([next((c for c in np.flatnonzero(row) if c % 2 == 0), np.flatnonzero(row)[0]) for row in nearest])
    code = code + 8 * (np.signbit(x) & ~np.isnan(x))
    assert (out & 15).tolist() == code[::2].tolist() and (out >> 4).tolist() == code[1::2].tolist()


def test_a_store_changes_its_half_of_a_byte(client):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n, 16), T.float4_e2m1fn), B: T.StridedTensor((n, 16), (64, 1), T.float4_e2m1fn), P: T.Tensor((n,), T.int32)):
        with T.Kernel(n, threads=32) as i:
            for k in T.serial(15):
                B[P[i], k + 1] = A[i, k]

    rng = np.random.default_rng(0)
    a, order = rng.integers(0, 256, (6, 8), dtype="uint8"), rng.permutation(6).astype("int32")
    back = np.full((6, 32), 0xA5, "uint8")
    run(client, main, "emu:sm_90a", a, back[:, :8], order)
    codes = np.stack([a & 15, a >> 4], -1).reshape(6, 16)
    want = np.full((6, 64), 0x5)
    want[:, 1::2] = 0xA
    want[order, 1:16] = codes[:, :15]
    assert np.array_equal(np.stack([back & 15, back >> 4], -1).reshape(6, 64), want)


@pytest.mark.parametrize("target", TARGETS)
def test_parallel_iterations_store_whole_bytes(client, target):
    @T.prim_func
    def main(X: T.Tensor((10, 32), T.int32), Low: T.Tensor((10, 32), T.uint4), Twice: T.Tensor((10, 32), T.int32), Rows: T.Tensor((10, 32), T.int4)):
        with T.Kernel(3, 2, threads=32) as (b, c):
            for i, j in T.Parallel(4, 16):
                if b * 4 + i < 10:
                    value = X[b * 4 + i, c * 16 + j]
                    Low[b * 4 + i, c * 16 + j] = T.cast(value, T.uint4)
                    Twice[b * 4 + i, c * 16 + j] = value * 2
            if c == 0:
                for i in T.Parallel(4):
                    for k in T.serial(32):
                        Rows[b * 4 + i, k] = T.cast(X[b * 4 + i, k], T.int4)

    x = np.random.default_rng(1).integers(-8, 16, (10, 32)).astype("int32")
    low, twice, rows = np.zeros((10, 16), "uint8"), np.zeros((10, 32), "int32"), np.zeros((10, 16), "int8")
    run(client, main, target, x, low, twice, rows)
    assert np.array_equal(unpacked(low, "uint4"), x & 15) and np.array_equal(twice, 2 * x)
    assert np.array_equal(unpacked(rows.view("uint8"), "int4"), ((x & 15) ^ 8) - 8)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype, sums", [("int4", "int32"), ("uint4", "int32"), ("float4_e2m1fn", "float32")])
def test_products_of_short_tiles(client, target, dtype, sums):
    @T.prim_func
    def main(A: T.Tensor((64, 128), dtype), B: T.Tensor((64, 128), dtype), C: T.Tensor((64, 64), sums)):
        with T.Kernel(1, threads=128):
            a, b, c = T.alloc_shared((64, 64), dtype), T.alloc_shared((64, 64), dtype), T.alloc_fragment((64, 64), sums)
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    rng = np.random.default_rng(2)
    a, b, c = *(rng.integers(0, 256, (64, 64), dtype="uint8") for _ in range(2)), np.zeros((64, 64), sums)
    run(client, main, target, a, b, c)
    assert np.array_equal(c, unpacked(a, dtype) @ unpacked(b, dtype).T)


def test_arithmetic_and_bits_of_float4(client):
    @T.prim_func
    def main(A: T.Tensor((16,), T.float4_e2m1fn), Sum: T.Tensor((16,), T.float4_e2m1fn), Bits: T.Tensor((16,), T.int32)):
        with T.Kernel(1, threads=16):
            for i in T.Parallel(16):
                Sum[i] = A[i] + T.cast(1.0, T.float4_e2m1fn)
            for i in T.Parallel(16):
                Bits[i] = T.cast(T.reinterpret(A[i], T.uint4), T.int32)

    codes = np.arange(16, dtype="uint8")
    a, total, bits = codes[::2] | codes[1::2] << 4, np.zeros(8, "uint8"), np.zeros(16, "int32")
    run(client, main, "emu:sm_90a", a, total, bits)
    assert bits.tolist() == codes.tolist()
    assert unpacked(total, "float4_e2m1fn").tolist() == [1, 1.5, 2, 2, 3, 4, 4, 6, 1, 0.5, 0, -0.5, -1, -2, -3, -4]


def refused(client, func, message):
    with pytest.raises(CompileError, match=message):
        kiln.compile(func, target="emu:sm_90a", client=client)


def test_what_elements_that_share_bytes_cannot_do(client):
    @T.prim_func
    def odd(A: T.Tensor((4, 7), T.int4), Out: T.Tensor((4,), T.int32)):
        with T.Kernel(1, threads=32):
            Out[0] = T.cast(A[0, 0], T.int32)

    refused(client, odd, "has a last dimension of 7")

    @T.prim_func
    def scattered(A: T.Tensor((64,), T.int4), P: T.Tensor((64,), T.int32)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                A[P[i]] = T.cast(i, T.int4)

    refused(client, scattered, "store elements that share bytes")

    @T.prim_func
    def shifted(A: T.Tensor((64,), T.int4), X: T.Tensor((32,), T.int32)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                A[i + 1] = T.cast(X[i], T.int4)

    refused(client, shifted, "store elements that share bytes")

    @T.prim_func
    def summed(A: T.Tensor((4, 32), T.float4_e2m1fn), Out: T.Tensor((4,), T.float32)):
        with T.Kernel(1, threads=32):
            tile, sums = T.alloc_fragment((4, 32), T.float4_e2m1fn), T.alloc_fragment((4,), T.float4_e2m1fn)
            T.copy(A, tile)
            T.reduce_sum(tile, sums, dim=1)
            T.copy(sums, Out)

    refused(client, summed, "a sum of f4e2m1")


def test_what_two_elements_of_a_byte_would_share_is_refused(client):
    """A thread's own variable, a row that the iteration chooses, halves of different threads, and a tensor of no dimensions."""
    @T.prim_func
    def variable(X: T.Tensor((8, 64), "int32"), P: T.Tensor((8, 64), "uint4")):
        with T.Kernel(1, threads=32):
            one = T.alloc_var("int32")
            for i, j in T.Parallel(8, 64):
                one = X[i, j]
                P[i, j] = T.cast(one, "uint4")

    @T.prim_func
    def rows(R: T.Tensor((64,), "int32"), C: T.Tensor((8, 64), "int32"), P: T.Tensor((8, 64), "uint4")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(8, 64):
                r = R[j]
                C[i, j] = r
                P[(i + r) % 8, j] = T.cast(r, "uint4")

    @T.prim_func
    def halves(X: T.Tensor((64,), "int32"), P: T.Tensor((64,), "uint4")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            P[tx] = T.cast(X[tx], "uint4")

    @T.prim_func
    def of_nothing(X: T.Tensor((64,), "int32"), P: T.Tensor((), "uint4")):
        with T.Kernel(1, threads=32):
            for i in T.serial(2):
                X[i] = T.cast(P[()], "int32")

    for func in (variable, rows, halves):
        refused(client, func, "store elements that share bytes")
    refused(client, of_nothing, "is half of a byte")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [(), (2,)])
def test_an_output_of_an_odd_number_of_elements_at_run_time(client, target, rows):
    """One that is a vector ends in half of a byte. Rows do not, for each begins with a byte of its own."""
    n = T.dynamic("n")

    @T.prim_func
    def rounded(X: T.Tensor((*rows, n), "float32"), O: T.Tensor((*rows, n), "float4_e2m1fn")):
        with T.Kernel(T.ceildiv(n, 64), threads=32) as b:
            tile = T.alloc_fragment((*rows, 64), "float32")
            T.copy(X[0, b * 64] if rows else X[b * 64], tile)
            T.copy(tile, O[0, b * 64] if rows else O[b * 64])

    for count in (1, 7, 8, 65, 128):
        x = np.random.default_rng().choice(VALUES["float4_e2m1fn"], (*rows, count)).astype(np.float32)
        if rows and count % 2 != 0:
            with pytest.raises(Exception, match="do not end with a byte"):
                run(client, rounded, target, x, outputs=[1])
            continue
        assert np.array_equal(unpacked(run(client, rounded, target, x, outputs=[1]), "float4_e2m1fn")[..., :count], x)


def test_a_torch_tensor_of_pairs_is_its_bytes():
    bytes_ = np.arange(6, dtype=np.uint8).reshape(2, 3)

    class Pairs:
        dtype, shape, device = "torch.float4_e2m1fn_x2", bytes_.shape, type("device", (), {"type": "cpu"})

        def stride(self):
            return 3, 1

        def data_ptr(self):
            return bytes_.ctypes.data

    tensor = host_tensor(Pairs(), as_dtype("float4_e2m1fn"), "x")
    assert tensor.dtype == "uint8" and tensor.shape == (2, 3) and tensor.address == bytes_.ctypes.data


def test_a_thread_stores_bytes_of_its_own(client):
    @T.prim_func
    def bytes_(X: T.Tensor((256,), "int32"), P: T.Tensor((256,), "uint4")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            for v in T.serial(8):
                P[tx * 8 + v] = T.cast(X[tx * 8 + v], "uint4")

    x, packed = np.random.default_rng().integers(0, 16, 256).astype(np.int32), np.zeros(128, np.uint8)
    run(client, bytes_, "emu:sm_90a", x, packed)
    assert np.array_equal(unpacked(packed, "uint4"), x)
