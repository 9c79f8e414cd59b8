# SPDX-License-Identifier: Apache-2.0
"""T.reshape and T.view: one memory under two shapes or dtypes, in each kind of memory, against numpy."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]


def bits(shape, dtype, seed=3):
    """Finite numbers of a dtype."""
    count = int(np.prod(shape))
    made = np.random.default_rng(seed).integers(-100, 100, count)
    return (made / 8).astype(dtype).reshape(shape)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("before, after", [((96,), (6, 16)), ((6, 16), (96,)), ((4, 6, 8), (24, 8)), ((4, 6, 8), (4, 48)), ((6, 4), (4, 6)),
                                           ((12, 10), (1, 12, 2, 5)), ((2, 1, 6), (12, 1)), ((8, 9), (8, 9))])
@pytest.mark.parametrize("where", ["global", "shared", "fragment", "local"])
def test_reads_and_writes_go_to_the_memory(call, target, before, after, where):
    alloc = {"shared": T.alloc_shared, "fragment": T.alloc_fragment, "local": T.alloc_local}.get(where)

    @T.prim_func
    def program(A: T.Tensor(before, "float32"), B: T.Tensor(after, "float32"), C: T.Tensor(before, "float32")):
        with T.Kernel(1, threads=64):
            if alloc is None:
                T.copy(T.reshape(A, after), B)
                T.copy(B, T.reshape(C, after))
            else:
                tile = alloc(before, "float32")
                T.copy(A, tile)
                seen = T.reshape(tile, list(after))
                T.copy(seen, B)
                other = alloc(after, "float32")
                T.copy(B, other)
                T.copy(other, seen)
                T.copy(tile, C)

    if where == "local":  # each thread would store all of it
        program = one_thread(before, after)
    a = bits(before, np.float32)
    _, b, c = call(program, target, a, np.zeros(after, np.float32), np.zeros(before, np.float32))
    np.testing.assert_array_equal(b, a.reshape(after))
    np.testing.assert_array_equal(c, a)


def one_thread(before, after):
    @T.prim_func
    def program(A: T.Tensor(before, "float32"), B: T.Tensor(after, "float32"), C: T.Tensor(before, "float32")):
        with T.Kernel(1, threads=64):
            if T.get_thread_binding() == 5:
                tile, other = T.alloc_local(before, "float32"), T.alloc_local(after, "float32")
                for i in T.grid(*before):
                    tile[i] = A[i]
                seen = T.reshape(tile, after)
                for i in T.grid(*after):
                    other[i] = seen[i]
                    B[i] = other[i]
                for i in T.grid(*after):
                    seen[i] = other[i]
                for i in T.grid(*before):
                    C[i] = tile[i]

    return program


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype, other", [("float32", "float16"), ("float16", "float32"), ("int32", "float32"), ("uint64", "uint8"),
                                          ("int8", "int32"),
                                          ("float64", "float32")])
@pytest.mark.parametrize("where", ["global", "shared", "fragment"])
def test_the_same_bits_as_another_dtype(call, target, dtype, other, where):
    rows, columns = 6, 16
    width = columns * np.dtype(dtype).itemsize // np.dtype(other).itemsize
    alloc = T.alloc_shared if where == "shared" else T.alloc_fragment

    @T.prim_func
    def program(A: T.Tensor((rows, columns), dtype), B: T.Tensor((rows, width), other)):
        with T.Kernel(1, threads=64):
            if where == "global":
                T.copy(T.view(A, (rows, width), dtype=other), B)
            else:
                tile = alloc((rows, columns), dtype)
                T.copy(A, tile)
                T.copy(T.view(tile, (rows, width), other), B)

    a = np.random.default_rng(4).integers(0, 100, (rows, columns)).astype(dtype)
    _, b = call(program, target, a, np.zeros((rows, width), other))
    assert b.tobytes() == a.tobytes()


@pytest.mark.parametrize("target", TARGETS)
def test_wide_elements_are_stored_in_narrow_memory(call, target):
    """A tile of sums lies where operands lay."""

    @T.prim_func
    def program(A: T.Tensor((8, 32), "float16"), B: T.Tensor((8, 16), "float32"), C: T.Tensor((8, 32), "float16")):
        with T.Kernel(1, threads=64):
            tile, sums = T.alloc_shared((8, 32), "float16"), T.alloc_fragment((8, 16), "float32")
            T.copy(A, tile)
            for i, j in T.Parallel(8, 16):
                sums[i, j] = T.cast(tile[i, 2 * j], "float32") + T.cast(tile[i, 2 * j + 1], "float32")
            wide = T.view(tile, (8, 16), "float32")
            T.copy(sums, wide)
            T.copy(tile, C)
            for i, j in T.Parallel(8, 16):
                wide[i, j] = wide[i, j] * 2
            T.copy(wide, B)

    a = bits((8, 32), np.float16)
    _, b, c = call(program, target, a, np.zeros((8, 16), np.float32), np.zeros((8, 32), np.float16))
    sums = a.astype(np.float32).reshape(8, 16, 2).sum(axis=2)
    np.testing.assert_array_equal(b, 2 * sums)
    assert c.tobytes() == sums.tobytes()


@pytest.mark.parametrize("target", TARGETS)
def test_products_reductions_atomics_and_parts(call, target):
    """Tile operations take a copy of what they read of a view, and write back; atomic operations go to the memory itself."""

    @T.prim_func
    def program(A: T.Tensor((1024,), "float16"), S: T.Tensor((32, 4), "int32"), C: T.Tensor((1024,), "float32"), D: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=128):
            a, c = T.alloc_shared((1024,), "float16"), T.alloc_fragment((1024,), "float32")
            T.copy(A, a)
            T.clear(c)
            square = T.reshape(c, (32, 32))
            T.gemm(T.reshape(a, (32, 32)), T.reshape(a, (32, 32)), square, transpose_B=True)
            T.copy(c, C)
            tile, sums = T.alloc_fragment((32, 4), "int32"), T.alloc_fragment((2, 4), "int32")
            T.copy(S, tile)
            T.reduce_sum(T.reshape(tile, (2, 16, 4)), sums, dim=1)
            for i, j in T.Parallel(2, 4):
                T.atomic_add(T.reshape(D, (2, 4))[i, j], sums[i, j])
            T.fill(T.reshape(c, (32, 32))[1, :], 7.0)
            T.copy(c[32:64], C[32:64])

    a = bits((1024,), np.float16)
    s = np.arange(128, dtype=np.int32).reshape(32, 4)
    _, _, c, d = call(program, target, a, s, np.zeros(1024, np.float32), np.ones(8, np.int32))
    square = a.astype(np.float64).reshape(32, 32)
    expected = square @ square.T
    expected[1] = 7
    np.testing.assert_allclose(c.reshape(32, 32), expected, rtol=1e-3, atol=1e-2)
    np.testing.assert_array_equal(d.reshape(2, 4), 1 + s.reshape(2, 16, 4).sum(axis=1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [1, 5, 7])
def test_symbolic_rows_and_what_lies_outside(call, target, count):
    """A tile that reaches beyond the view's rows and columns reads zero and stores nothing there."""

    @T.prim_func
    def program(A: T.Tensor((T.dynamic("n"), 6), "int32"), B: T.Tensor((8, 8), "int32")):
        with T.Kernel(1, threads=64):
            seen = T.reshape(A, (A.shape[0], 2, 3))
            for i, j in T.Parallel(8, 8):
                B[i, j] = seen[i, 1, j]
            for i, j in T.Parallel(8, 5):
                seen[i, 0, j] = 9

    a = np.arange(count * 6, dtype=np.int32).reshape(count, 6)
    after, b = call(program, target, a, np.ones((8, 8), np.int32))
    expected = np.zeros((8, 8), np.int32)
    expected[:count, :3] = a[:, 3:]
    np.testing.assert_array_equal(b, expected)
    a[:, :3] = 9
    np.testing.assert_array_equal(after, a)


def filled(s, t, tx, A, B):
    T.fill(T.reshape(s, (8, 8)), tx)


def read_from(s, t, tx, A, B):
    T.copy(T.reshape(s, (8, 8))[tx // 8, :], B[0:8])


def written_to(s, t, tx, A, B):
    T.copy(s[0:8], T.reshape(B, (8, 8))[tx // 8, :])


def reduced(s, t, tx, A, B):
    sums = T.alloc_fragment((8,), "int32")
    T.reduce_sum(T.reshape(s, (8, 8))[tx // 16 : tx // 16 + 4, :], sums, dim=0)
    T.copy(sums, B[0:8])


def repeated(s, t, tx, A, B):
    T.copy(s[tx // 8 : tx // 8 + 8], t)


def added(s, t, tx, A, B):
    T.atomic_add(B[tx : tx + 8], s[0:8])


def added_value(s, t, tx, A, B):
    T.atomic_add(B[0:8], tx)


def transposed(s, t, tx, A, B):
    T.transpose(t[:, 0:2], T.reshape(B, (32, 2))[tx : tx + 2, :])


def from_arrays_that_differ(s, t, tx, A, B):
    own = T.alloc_local((1,), "int32")
    own[0] = tx
    T.atomic_add(B[3], own)


def of_a_tile(statements):
    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            s, t = T.alloc_shared((64,), "int32"), T.alloc_shared((2, 8), "int32")
            T.copy(A, s)
            T.fill(t, 0)
            statements(s, t, T.get_thread_binding(), A, B)

    return program


@pytest.mark.parametrize("statements", [filled, read_from, written_to, reduced, repeated, added, added_value, transposed,
                                        from_arrays_that_differ], ids=lambda f: f.__name__)
def test_operations_that_become_loops_take_no_operand_of_a_thread(emulator, statements):
    module = emulator.module(of_a_tile(T.macro(statements)).serialized)
    _, answer = emulator.call(module, "emu:sm_90a", [(np.zeros(64, np.int32), "int32")] * 2, check=1)
    assert "which may differ between threads" in answer.get("error", ""), answer


def known_to_be_one(s, t, tx, A, B):
    row = T.alloc_var("int32", 0)
    row = 5
    value = row + 4
    T.fill(T.reshape(B, (8, 8))[row - 4, :], value)
    if tx // 32 == 1:
        half = tx // 32
        T.fill(T.reshape(B, (8, 8))[half + 1, :], half)


@pytest.mark.parametrize("target", TARGETS)
def test_operands_that_threads_agree_on_are_taken(call, target):
    _, b = call(of_a_tile(T.macro(known_to_be_one)), target, *np.zeros((2, 64), np.int32))
    np.testing.assert_array_equal(b.reshape(8, 8)[:, 3], [0, 9, 1, 0, 0, 0, 0, 0])


def from_its_own(s, t, tx, A, B):
    own = T.alloc_local((4,), "int32")
    for u in T.serial(4):
        own[u] = tx * 10 + u
    if tx < 16:
        T.atomic_add(B[tx * 4 : tx * 4 + 4], own)


@pytest.mark.parametrize("target", TARGETS)
def test_each_thread_adds_what_is_its_own(call, target):
    _, b = call(of_a_tile(T.macro(from_its_own)), target, *np.zeros((2, 64), np.int32))
    np.testing.assert_array_equal(b, np.repeat(np.arange(16), 4) * 10 + np.tile(np.arange(4), 16))


def from_arrays_that_agree(s, t, tx, A, B):
    own = T.alloc_local((4,), "int32")
    T.copy(A[0:4], own)
    T.atomic_add(B[8:12], own)
    T.atomic_add(B[0:1], own[2:3])


@pytest.mark.parametrize("target", TARGETS)
def test_what_all_threads_have_is_added_once(call, target):
    a = np.arange(5, 69, dtype=np.int32)
    _, b = call(of_a_tile(T.macro(from_arrays_that_agree)), target, a, np.zeros(64, np.int32))
    np.testing.assert_array_equal(b, np.r_[7, np.zeros(7), a[:4], np.zeros(52)])
