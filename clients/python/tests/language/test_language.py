# SPDX-License-Identifier: Apache-2.0
"""What each construct of the language becomes, as the text of the traced function."""

import textwrap

import pytest

import kiln.language as T


def body(func, depth=2):
    """The statements of the first kernel as text."""
    lines = func.script().split(":\n", 2)[2]
    return textwrap.dedent(lines).rstrip("\n")


def check(func, expected):
    assert body(func) == textwrap.dedent(expected).strip("\n")


def test_a_whole_function():
    @T.prim_func
    def scale(A: T.Tensor((64, T.dynamic("N")), "float16"), s: T.float32, B: T.Tensor((64,), T.float32)):
        with T.Kernel(4, T.ceildiv(64, 32), threads=64) as (bx, by):
            tile = T.alloc_fragment((32, 16), "float32")
            T.copy(A[by * 32, bx * 16], tile)
            for i, j in T.Parallel(32, 16):
                tile[i, j] *= s
            T.copy(tile[0:32, 0], B[by * 32])

    assert scale.script() == textwrap.dedent("""\
        def scale(
            A: float16[64, N],
            s: float32,
            B: float32[64],
        ):
            kernel scale[4, 2] threads=64 as bx, by:
                alloc tile: fragment float32[32, 16]
                copy A[(by * 32):+32, (bx * 16):+16] -> tile[0:+32, 0:+16]
                for i, j in parallel(32, 16):
                    tile[i, j] = tile[i, j] * s
                copy tile[0:+32, 0] -> B[(by * 32):+32]
        """)


def test_a_value_that_reads_memory_is_evaluated_where_it_is_bound():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(1) as bx:
            x = A[0] + 1.0
            A[0] = 2.0
            A[1] = x * x

    check(f, """
        let x: float32 = A[0] + 1.0
        A[0] = 2.0
        A[1] = x * x
        """)


def test_a_value_of_indices_needs_no_let():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(4) as bx:
            start = bx * 2 + 0
            A[start] = A[start + 1]

    check(f, "A[bx * 2] = A[((bx * 2) + 1)]")


def test_alloc_var_is_stored_to_by_assignment_and_read_by_name():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1) as bx:
            n = T.alloc_var("int32", init=3)
            m = n
            n = A[0]
            n += 1
            A[n] = m

    check(f, """
        alloc n: local int32[1]
        n[0] = 3
        let m: int32 = n[0]
        n[0] = A[0]
        n[0] = n[0] + 1
        A[n[0]] = m
        """)


def test_rebinding_an_immutable_value_warns():
    def define():
        @T.prim_func
        def f(A: T.Tensor((8,), "int32")):
            with T.Kernel(1) as bx:
                x = A[0]
                x = x + A[1]
                A[2] = x

        return f

    with pytest.warns(UserWarning, match="use T.alloc_var"):
        f = define()
    check(f, """
        let x: int32 = A[0]
        let x: int32 = x + A[1]
        A[2] = x
        """)


def test_a_typed_binding_casts():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1) as bx:
            x: T.float16 = A[0]
            A[1] = x

    check(f, """
        let x: float16 = float16(A[0])
        A[1] = int32(x)
        """)


def test_chained_and_augmented_assignment():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1) as bx:
            A[0] = B[0] = 1
            A[1] += B[1]
            A[2] /= 3

    check(f, """
        A[0] = 1.0
        B[0] = 1.0
        A[1] = A[1] + B[1]
        A[2] = A[2] / 3.0
        """)


def test_conditions_known_while_tracing_leave_no_trace():
    flag = True

    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(1) as bx:
            if flag and not A.shape[0] == 9:
                A[0] = 1.0
            else:
                A[0] = undefined_name  # noqa: F821

    check(f, "A[0] = 1.0")


def test_if_elif_else():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(8) as bx:
            if bx < 2:
                A[bx] = 1
            elif bx == 3 or bx > 6:
                A[bx] = 2
            else:
                A[bx] = 3

    check(f, """
        if bx < 2:
            A[bx] = 1.0
        else:
            if (bx == 3) or (bx > 6):
                A[bx] = 2.0
            else:
                A[bx] = 3.0
        """)


def test_conditional_values_and_chained_comparison():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(8) as bx:
            A[bx] = A[0] if 1 < bx < 5 else 0
            A[bx] = T.if_then_else(not bx == 2, -T.infinity("float32"), A[bx])
            A[bx] = T.masked(bx > 1, A[0], 2)

    check(f, """
        A[bx] = select(((bx > 1) and (bx < 5)), A[0], 0.0)
        A[bx] = select(not((bx == 2)), -inf, A[bx])
        A[bx] = masked((bx > 1), A[0], 2.0)
        """)


def test_loops_start_at_zero():
    @T.prim_func
    def f(A: T.Tensor((100,), "float32"), n: T.int32):
        with T.Kernel(1) as bx:
            for i in range(4):
                A[i] = 1
            for i in T.serial(2, n, 3):
                A[i] = 2
            for i in T.unroll(9, -1, -2):
                A[i] = 3
            for i, j in T.grid(2, 3):
                A[i * 3 + j] = 4
            for i in T.serial(0):
                A[i] = 5

    check(f, """
        for i in serial(4):
            A[i] = 1.0
        for i in serial(((n - 2) + 2) // 3):
            A[2 + (i * 3)] = 2.0
        for i in unroll(5):
            A[9 + (i * -2)] = 3.0
        for i in serial(2):
            for j in serial(3):
                A[(i * 3) + j] = 4.0
        """)


def test_a_parallel_loop_in_a_parallel_loop_is_serial():
    @T.prim_func
    def f(A: T.Tensor((4, 5, 6), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(4):
                for j, k in T.Parallel(5, 6):
                    A[i, j, k] = 1

    check(f, """
        for i in parallel(4):
            for j in serial(5):
                for k in serial(6):
                    A[i, j, k] = 1.0
        """)


def test_while_break_continue():
    @T.prim_func
    def f(A: T.Tensor((100,), "int32")):
        with T.Kernel(1) as bx:
            n = T.alloc_var("int32", 0)
            while n < 10:
                n += 1
                if A[n] == 0:
                    continue
                if A[n] == 1:
                    break

    check(f, """
        alloc n: local int32[1]
        n[0] = 0
        while n[0] < 10:
            n[0] = n[0] + 1
            if A[n[0]] == 0:
                continue
            if A[n[0]] == 1:
                break
        """)


def test_a_python_loop_is_unrolled_and_may_be_left():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1) as bx:
            for k in [1, 2, 3]:
                if k == 3:
                    break
                A[k] = k

    check(f, """
        A[1] = 1
        A[2] = 2
        """)


def test_macros_are_traced_in_place():
    @T.macro
    def bump(A, i, by: T.Ref, amount):
        A[i] = A[i] + amount
        by += 1
        return i + 1

    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(2) as bx:
            n = T.alloc_var("int32", 0)
            following = bump(A, bx, n, 5)
            A[following] = n

    check(f, """
        alloc n: local int32[1]
        n[0] = 0
        A[bx] = A[bx] + 5
        n[0] = n[0] + 1
        A[bx + 1] = n[0]
        """)


def test_functions_defined_inside():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(2) as bx:
            def half(x):
                if x % 2 == 0 and x >= 0:
                    A[0] = x
                return x // 2

            @T.macro
            def twice(x):
                return x * 2

            for i in T.serial(4):
                A[i] = half(i) + twice(i)

    check(f, """
        for i in serial(4):
            if ((i % 2) == 0) and (i >= 0):
                A[0] = i
            A[i] = (i // 2) + (i * 2)
        """)


def test_the_older_annotation():
    @T.prim_func
    def f(A: T.Buffer((8,), "int32"), B: T.Tensor[(4, 2), T.int8], C: T.Tensor[[3], T.int8]):
        with T.Kernel(2) as bx:
            A[bx] = B[bx, 0] + C[bx]

    assert [p.buffer.shape for p in f.params] == [(8,), (4, 2), (3,)]


def test_several_kernels_and_a_workspace():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        W = T.alloc_global((8,), "float32")
        with T.Kernel(8) as bx:
            W[bx] = A[bx]
        with T.Kernel(4, threads=32) as bx:
            B[bx] = W[bx]

    assert [k.name for k in f.kernels] == ["f", "f_1"]
    assert [b.workspace for b in f.module.buffers] == [False, False, True]


def test_a_kernel_without_with():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        bx, by = T.Kernel(2, 4)
        A[bx] = by

    check(f, "A[bx] = float32(by)")


def test_reductions_gemm_and_flags():
    @T.prim_func
    def f(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(2) as bx:
            T.use_swizzle(4)
            T.annotate_min_blocks_per_sm(2)
            s = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            r = T.alloc_fragment((64,), "float32")
            T.gemm(s, s, c, transpose_B=True, policy=T.GemmWarpPolicy.FullCol, clear_accum=bx == 0)
            T.reduce_absmax(c, r, dim=-1, clear=False)
            T.reduce_sum(c, r)
            T.atomic_add(A[bx, 0], r[0])

    assert f.kernels[0].raster_panel == 4
    assert f.kernels[0].min_blocks == 2
    check(f, """
        alloc s: shared float16[64, 32]
        alloc c: fragment float32[64, 64]
        alloc r: fragment float32[64]
        if bx == 0:
            fill c[0:+64, 0:+64] = 0.0
        gemm s[0:+64, 0:+32], s[0:+64, 0:+32] -> c[0:+64, 0:+64] transpose_b policy=full_col
        reduce_abs_max c[0:+64, 0:+64] -> r[0:+64] dim=1 accumulate
        reduce_sum c[0:+64, 0:+64] -> r[0:+64] dim=1
        atomic_add A[bx, 0], float16(r[0]) each_thread
        """)


def test_a_reduction_converts_its_source():
    @T.prim_func
    def f(A: T.Tensor((64,), "float32")):
        with T.Kernel(2):
            h = T.alloc_fragment((4, 8), "float16")
            r = T.alloc_fragment((4,), "float32")
            T.reduce_max(h, r, dim=1)

    check(f, """
        alloc h: fragment float16[4, 8]
        alloc r: fragment float32[4]
        alloc h_float32: fragment float32[4, 8]
        copy h[0:+4, 0:+8] -> h_float32[0:+4, 0:+8]
        reduce_max h_float32[0:+4, 0:+8] -> r[0:+4] dim=1
        """)


def test_atomics_on_tiles():
    @T.prim_func
    def f(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(2) as bx:
            c = T.alloc_fragment((32, 64), "float32")
            T.atomic_add(A[bx * 32, 0], c)

    check(f, """
        alloc c: fragment float32[32, 64]
        for i, j in parallel(32, 64):
            atomic_add A[(bx * 32) + i, j], c[i, j]
        """)
