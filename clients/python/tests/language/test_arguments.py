# SPDX-License-Identifier: Apache-2.0
"""Arguments of the language that were once taken and not looked at: each does what it says, or is refused with what to use."""

import warnings
from dataclasses import dataclass

import interpreter
import numpy as np
import pytest

import kiln.language as T
from interpreter import interpret
from kiln.language import program
from kiln.language.buffer import Region
from kiln.language.expr import Expr, cast
from kiln.language.trace import TraceError, emit


def trace(body, shape=(16, 16), dtype="float32"):
    @T.prim_func
    def f(A: T.Tensor(shape, dtype), n: T.int32):
        with T.Kernel(1, threads=32):
            body(A, n)

    f.module
    return f


@pytest.mark.parametrize("dtype, value", [
    ("int8", 128), ("int8", -129), ("uint8", -1), ("uint8", 256), ("int32", 1 << 31), ("uint64", 1 << 64), ("int32", 1.5), ("int32",
        float("nan")), ("int64", float("inf")),
    ("bool", 2), ("float16", 65520.0), ("float16", -1e6), ("float32", 1e39), ("float8_e4m3fn", 480.0), ("float8_e5m2", float("inf")),
    ("float8_e4m3fn", 10**6),
    ("int4", 8), ("bfloat16", 1e39),
])
def test_a_variable_begins_with_a_number_of_its_type(dtype, value):
    for body in (lambda A, n: T.alloc_var(dtype, value), lambda A, n: T.alloc_var(dtype, init=value)):
        with pytest.raises(TraceError, match=r"the type has no such number; use a wider one") as refused:
            trace(body)
        assert f"T.alloc_var({dtype}, init={value!r})" in str(refused.value)
    trace(lambda A, n: T.alloc_var(dtype, T.cast(T.cast(1.0, "float32"), dtype)))


@pytest.mark.parametrize("dtype, value", [
    ("int8", 127), ("int8", -128), ("uint8", 255), ("int32", -(1 << 31)), ("uint64", (1 << 64) - 1), ("int32", 2.0), ("bool", True),
    ("bool", 0), ("float16", 65504.0),
    ("float16", 0.1), ("float16", float("inf")), ("float32", float("nan")), ("float8_e4m3fn", 448.0), ("float8_e4m3fn", float("nan")),
    ("float64", 1e300), ("int8", False),
])
def test_and_with_any_of_them(dtype, value):
    trace(lambda A, n: T.alloc_var(dtype, value))
    trace(lambda A, n: T.alloc_var(dtype, value, "local.var"))
    trace(lambda A, n: T.alloc_var(dtype, "local.var", init=value))


@pytest.mark.parametrize("dtype, value, told", [("int8", 300, True), ("uint8", 256, True), ("uint8", -129, True), ("int32", 1 << 32, True),
                                                ("int8", np.int64(300), True), ("int8", np.int16(200), False),
                                                ("int8", 255, False), ("uint8", -1, False), ("int8", -128, False), ("int32", (1 << 32) - 1, False),
                                                ("float16", 100000, False), ("bool", 2, False)])
def test_a_constant_of_more_bits_than_its_place_is_told_of(dtype, value, told):
    @T.macro
    def stored(A):
        A[0, 0] = value
        A[0, 0:4] = value

    named = getattr(T, dtype)
    for body, times in ((lambda A, n: stored(A), 2), (lambda A, n: T.fill(A, value), 1), (lambda A, n: named(value), 1),
                        (lambda A, n: T.annotate_safe_value({A: value}), 1), (lambda A, n: T.atomic_store(A[0, 0], value), 1),
                        (lambda A, n: T.atomic_add(A, value), 1)):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            trace(body, dtype=dtype)
        assert ["has no such number" in str(warning.message) for warning in found] == [True] * times * told


@pytest.mark.parametrize("value", [1 << 63, 1 << 64, (1 << 64) + 4, -(1 << 64), np.uint64(1 << 63)])
def test_an_integer_that_no_type_holds(value):
    """Extents, indices, threads and operands: with its last 64 bits it would be another number."""
    for body in (lambda A, n: T.alloc_shared((value,), "float32"), lambda A, n: A[value, 0], lambda A, n: n < value,
                 lambda A, n: T.Kernel(value), lambda A, n: T.Kernel(1, threads=value), lambda A, n: T.max(n, value),
                 lambda A, n: T.cast(A[0, 0], "int64") + value,
                 lambda A, n: T.copy(A[value:value + 16, :], A)):
        with pytest.raises(OverflowError, match="is no number of int64"):
            trace(body)
    for loop in (T.serial, T.Parallel, T.unroll, T.Pipelined):
        with pytest.raises(OverflowError, match="is no number of int64"):
            trace(lambda A, n, loop=loop: loop(value))


@pytest.mark.parametrize("dtype, value", [("uint64", 1 << 63), ("uint64", np.uint64((1 << 64) - 1)), ("float32", 1 << 70), ("float64", -(1 << 200))])
def test_an_integer_beside_a_type_that_holds_it(dtype, value):
    def body(A, n):
        for made in (A[0, 0] * value, value + A[0, 0], T.if_then_else(n < 1, value, A[0, 0]), T.max(A[0, 0], value)):
            assert made.dtype == dtype
        assert (A[0, 0] < value).dtype == "bool"
        A[0, 0] = value

    trace(body, dtype=dtype)


def test_indices_before_a_tensor():
    trace(lambda A, n: A[-16, -16])
    for at in ((-17, 0), (0, -(1 << 32))):
        with pytest.raises(IndexError, match="is outside dimension"):
            trace(lambda A, n, at=at: A[at])


@pytest.mark.parametrize("dtype, value, kept", [("int8", 300, 44.0), ("uint8", -1, 255.0), ("int32", 1.5, 1.0), ("bool", 2, 1.0),
                                                ("int32", float("inf"), 2147483647.0), ("uint64", 1 << 63, 2.0 ** 63),
                                                ("float16", 1e6, float("inf"))])
def test_a_safe_value_is_one_of_the_tensor(dtype, value, kept):
    found = []

    def body(A, n):
        T.annotate_safe_value({A: value})
        found.append(A.pad_value)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace(body, dtype=dtype)
    assert found == [kept]


def test_a_safe_value_of_more_than_53_bits():
    for value in ((1 << 62) + 1, -(1 << 53) - 1):
        with pytest.raises(TraceError, match="kept as a float64, which has no such number"):
            trace(lambda A, n, value=value: T.annotate_safe_value({A: value}), dtype="int64")


def test_a_variable_begins_once():
    with pytest.raises(TypeError, match="two initial values"):
        trace(lambda A, n: T.alloc_var("int32", 1, init=2))


@pytest.mark.parametrize("allocate, scope, says", [
    (T.alloc_shared, "shared.tmem", "tensor memory is not part"), (T.alloc_shared, "shared.barrier", "use T.alloc_barrier"),
    (T.alloc_shared, "local", "use T.alloc_local"), (T.alloc_fragment, "shared.dyn", "use T.alloc_shared"), (T.alloc_fragment,
        "local.reducer", "use T.alloc_reducer"),
    (T.alloc_local, "local.fragment", "use T.alloc_fragment"), (T.alloc_global, "shared", "use T.alloc_shared"), (T.alloc_shared, "sharde",
        "the memory that is meant"),
])
def test_memories_of_another_kind(allocate, scope, says):
    with pytest.raises(TraceError, match=rf"T.{allocate.__name__}\(scope='{scope}'\).*{says}"):
        trace(lambda A, n: allocate((16,), "float32", scope=scope))


def test_memories_of_this_kind():
    trace(lambda A, n: (T.alloc_shared((16,), "float32", scope="shared"), T.alloc_shared((16,), "float32", "shared.dyn"),
                        T.alloc_fragment((16,), "float32", scope="local.fragment"), T.alloc_local((16,), "float32", scope="local")))
    with pytest.raises(TraceError, match="use T.alloc_shared"):
        trace(lambda A, n: T.alloc_var("float32", scope="shared"))


@pytest.mark.parametrize("arguments, says", [({"data": 1, "strides": (1,)}, "row by row"), ({"scope": "shared"}, "T.SharedBuffer"),
                                             ({"elem_offset": 4}, "a slice of it")])
def test_tensors_of_other_memory(arguments, says):
    with pytest.raises(TraceError, match=says):
        T.Tensor((8,), "float32", **arguments)
    assert T.Tensor((8,), "float32", None, (2,)).strides == (2,) and T.Tensor((8,), scope="global").space == "GLOBAL"
    assert T.SharedBuffer((8,), "float32", scope="shared.dyn").space == "SHARED"


def test_kernels_of_the_host():
    with pytest.raises(TraceError, match="is_cpu=True.*emu:sm_90a"):
        @T.prim_func
        def f(A: T.Tensor((8,), "float32")):
            with T.Kernel(1, is_cpu=True):
                A[0] = 1.0


def test_a_kernel_without_blocks_is_named():
    with pytest.warns(UserWarning, match="a grid extent of T.Kernel is 0: no block runs") as said:
        @T.prim_func
        def f(A: T.Tensor((8,), "float32")):
            with T.Kernel(2, 0):
                A[0] = 1.0
    assert said[0].filename == __file__
    (a,) = interpret(f.with_outputs([0]))
    assert not a.any()


def dp4a(a, b, c):
    @T.prim_func
    def f(A: T.Tensor((4,), a), B: T.Tensor((4,), b), C: T.Tensor((1,), c)):
        with T.Kernel(1, threads=32):
            T.dp4a(A, B, C)

    return f


@pytest.mark.parametrize("types, says", [(("uint8", "int8", "int32"), "int8 inputs, got A.dtype='uint8'"), (("int8", "float16", "int32"),
    "int8 inputs, got B.dtype='float16'"),
                                         (("int8", "int8", "float32"), "an int32 accumulator, got C.dtype='float32'"), (("int8", "int8",
                                             "int64"), "an int32 acc")])
def test_dp4a_is_of_int8(types, says):
    with pytest.raises(ValueError, match=says):
        dp4a(*types)


def test_dp4a():
    (c,) = interpret(dp4a("int8", "int8", "int32").with_outputs([2]), np.array([1, -2, 3, 100], np.int8), np.array([5, 6, 7, 100], np.int8))
    assert c[0] == 5 - 12 + 21 + 10000


def assumes(program):
    return [[s.HasField("assume") for s in kernel.body.stmts] for kernel in program.module.kernels]


def test_what_is_assumed_before_a_kernel_holds_in_each():
    N = T.dynamic("N")

    @T.prim_func
    def f(A: T.Tensor((N,), "float32")):
        T.assume(N % 4 == 0)
        with T.Kernel(1, threads=32):
            A[0] = 1.0
        with T.Kernel(1, threads=32):
            A[1] = 1.0

    assert assumes(f) == [[True, False], [True, False]]


def test_what_is_known_is_not_assumed():
    program = trace(lambda A, n: T.assume(16 % 4 == 0))
    assert assumes(program) == [[]]
    with pytest.raises(TraceError, match="T.assume of what is false"):
        trace(lambda A, n: T.assume(A.shape[0] > 16))


def dq_layout(tensor):
    return T.Layout(tensor.shape, lambda b, h, l, d: [b, h, l // 8, d // 8, d % 2, 4 * (l % 8) + (d % 8) // 2])


def placed_by_hand(x):
    """What dq_layout makes of an array, in memory."""
    out = np.zeros_like(x).reshape(-1)
    b, h, l, d = np.indices(x.shape)
    B, H, L, D = x.shape
    place = ((((b * H + h) * (L // 8) + l // 8) * (D // 8) + d // 8) * 2 + d % 2) * 32 + 4 * (l % 8) + (d % 8) // 2
    out[place.reshape(-1)] = x.reshape(-1)
    return out.reshape(x.shape)


SHAPE = (2, 3, 16, 8)


def random(shape):
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("batch", [2, None])
def test_a_tensor_lies_where_the_program_says(batch):
    b = T.dynamic("b") if batch is None else batch
    shape = (b, *SHAPE[1:])

    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @T.prim_func
        def pack(X: T.Tensor(shape, "float32"), Q: T.Tensor(shape, "float32")):
            with T.Kernel(b, 3, threads=32) as (z, y):
                tile = T.alloc_fragment((16, 8), "float32")
                T.annotate_layout({Q: dq_layout(Q)})
                T.copy(X[z, y, 0:16, 0:8], tile)
                T.copy(tile, Q[z, y, 0:16, 0:8])

        @T.prim_func
        def unpack(Q: T.Tensor(shape, "float32"), Y: T.Tensor(shape, "float32")):
            with T.Kernel(b, 3, threads=32) as (z, y):
                T.annotate_layout({Q: dq_layout(Q)})
                T.copy(Q[z, y, 0:16, 0:8], Y[z, y, 0:16, 0:8])

    x = random(SHAPE)
    q = interpret(pack.with_outputs([1]), x)[0]
    assert np.array_equal(q, placed_by_hand(x)) and not np.array_equal(q, x)
    assert np.array_equal(interpret(unpack.with_outputs([1]), q)[0], x)


def test_elements_atomics_and_fills_of_such_a_tensor():
    @T.prim_func
    def f(X: T.Tensor(SHAPE, "float32"), Q: T.Tensor(SHAPE, "float32"), R: T.Tensor(SHAPE, "float32")):
        with T.Kernel(2, 3, threads=32) as (z, y):
            T.annotate_layout({Q: dq_layout(Q), R: dq_layout(R)})
            T.fill(Q[z, y, 0:16, 0:8], 1.0)
            T.atomic_add(Q[z, y, 0, 0], X[z, y, 0:16, 0:8])
            for i, j in T.Parallel(16, 8):
                T.atomic_add(Q[z, y, i, j], X[z, y, i, j])
            for i, j in T.Parallel(20, 8):
                R[z, y, i, j] = Q[z, y, i, j] * 2
            R[z, y, 0, 0] = Q[z, y, z + 99, 0]

    x = random(SHAPE)
    q, r = interpret(f.with_outputs([1, 2]), x)
    assert np.allclose(q, placed_by_hand(1 + 2 * x), atol=1e-6)
    expected = 2 * (1 + 2 * x)
    expected[:, :, 0, 0] = 0  # what lies outside reads as zero and is not written
    assert np.allclose(r, placed_by_hand(expected), atol=1e-6)


@pytest.fixture
def scale(monkeypatch):
    """A tile operation of the family elementwise of which the rest of the language knows nothing."""
    @dataclass(slots=True)
    class Scale(program.Stmt):
        dst: Region
        src: Region
        by: Expr

    monkeypatch.setitem(interpreter.ELEMENTWISE, "scale", lambda src, by: src * by)
    return lambda dst, src, by: emit(Scale(dst, src, cast(by, dst.dtype)))


def test_an_operation_on_tiles_takes_views_and_such_a_tensor(scale):
    @T.prim_func
    def f(X: T.Tensor((4, 16), "float32"), Q: T.Tensor((4, 16), "float32"), V: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            T.annotate_layout({Q: T.Layout((4, 16), lambda i, j: [i, 15 - j])})
            T.fill(Q, 1.0)
            T.fill(V, 1.0)
            scale(Q[0:2, 4:20], X[1:3, 0:16], 2.0)
            scale(Q[3:4, 0:8], Q[1:2, 0:8], 3.0)
            scale(T.reshape(V, (4, 16))[1:3, 2:4], T.reshape(X, (8, 8))[0:2, 0:2], 5.0)

    x = random((4, 16))
    q, v = interpret(f.with_outputs([1, 2]), x)
    expected = np.ones((4, 16), np.float32)
    expected[0:2, 4:16] = 2 * x[1:3, 0:12]  # what lies outside is not written
    expected[3, 0:8] = 3 * expected[1, 0:8]
    assert np.array_equal(q, expected[:, ::-1])
    seen = np.ones((4, 16), np.float32)
    seen[1:3, 2:4] = 5 * x.reshape(8, 8)[0:2, 0:2]
    assert np.array_equal(v, seen.reshape(-1))


def test_products_take_no_such_tensor():
    @T.macro
    def product(A, n):
        tile = T.alloc_fragment((16, 16), "float32")
        T.annotate_layout({A: T.Layout(A.shape, lambda i, j: [i, 15 - j])})
        T.gemm(A, A, tile)

    with pytest.raises(TraceError, match="products and reductions take no such tensor"):
        trace(product)


def test_the_layout_is_of_the_kernel_that_names_it():
    @T.prim_func
    def f(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32"), Z: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            T.annotate_layout({X: T.Layout((8,), lambda i: 7 - i)})
            for i in T.Parallel(8):
                Y[i] = X[i]
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                Z[i] = X[i]

    x = random((8,))
    y, z = interpret(f.with_outputs([1, 2]), x)
    assert np.array_equal(y, x[::-1]) and np.array_equal(z, x)


def test_linear_layouts_change_nothing():
    from tilelang.layout import make_linear_layout, make_swizzled_layout

    def copied(layouts):
        @T.prim_func
        def f(X: T.Tensor((8, 4), "float32"), Y: T.Tensor((8, 4), "float32")):
            with T.Kernel(1, threads=32):
                T.annotate_layout(layouts(X))
                for i, j in T.Parallel(8, 4):
                    Y[i, j] = X[i, j]

        return f

    x = random((8, 4))
    assert np.array_equal(interpret(copied(lambda X: {X: make_linear_layout(X)}).with_outputs([1]), x)[0], x)
    with pytest.raises(TraceError, match="does not say where to"):
        copied(lambda X: {X: make_swizzled_layout(X)})


M = T.dynamic("M")


@pytest.mark.parametrize("shape, place, says", [
    ((8, 8), lambda i, j: [i // 4, j], "a box of \\[2, 8\\] places for \\[8, 8\\] elements"),
    ((8, 8), lambda i, j: [i - 1, j], "may be -1"),
    ((8, 8), lambda i, j: [i // j, j], "how far .* reaches is not known"),
    ((M, 8), lambda i, j: [j, i], "known at compile time"),
])
def test_layouts_that_give_no_places(shape, place, says):
    with pytest.raises(TraceError, match=f"T.annotate_layout of the tensor A: .*{says}"):
        trace(lambda A, n: T.annotate_layout({A: T.Layout(A.shape, place)}), shape)


def test_tile_operations_want_tiles():
    with pytest.raises(TraceError, match="copy it to a tile first"):
        def body(A, n):
            T.annotate_layout({A: T.Layout(A.shape, lambda i, j: [j, i])})
            out = T.alloc_fragment((16,), "float32")
            T.reduce_sum(A, out, dim=1)

        trace(body)
