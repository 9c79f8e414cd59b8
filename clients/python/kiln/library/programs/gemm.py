# SPDX-License-Identifier: Apache-2.0
"""C = activation(op(A) · op(B) + bias)."""

import kiln.language as T
from kiln.language.dtypes import as_dtype
from kiln.library import sizes

# Rows, columns and threads of a block that lays out an operand anew, and what the rows of its copy are multiples of.
LAID_ROWS, LAID_COLUMNS, LAID_THREADS, LAID_BYTES = 8, 256, 256, 16
# What a product of two operands is summed in.
ACCUMULATOR = {"int8": "int32", "uint8": "int32"}


def activate(name, x):
    """``x`` after an activation function of this name."""
    if name == "relu":
        return T.max(x, 0.0)
    if name == "gelu":
        half = x * 0.5
        return half + half * T.erf(x * 0.7071067811865476)
    if name == "silu":
        return x * T.sigmoid(x)
    if name is None:
        return x
    raise ValueError(f"unknown activation {name!r}; known: relu, gelu, silu")


@T.macro
def lay_out(X, Y, rows, columns, dtype):
    """Y (rows × more) = X (rows × columns), zeros behind it."""
    with T.Kernel(T.ceildiv(columns, LAID_COLUMNS), T.ceildiv(rows, LAID_ROWS), threads=LAID_THREADS) as (bx, by):
        tile = T.alloc_fragment((LAID_ROWS, LAID_COLUMNS), dtype)
        T.copy(X[by * LAID_ROWS, bx * LAID_COLUMNS], tile)
        T.copy(tile, Y[by * LAID_ROWS, bx * LAID_COLUMNS])


def laid_out(tensor, shape, dtype):
    """The tensor, or where its rows begin anywhere a copy whose rows begin at multiples of 16 bytes, which a kernel of its own makes."""
    rows, columns = shape
    longer = -(-columns * as_dtype(dtype).bytes // LAID_BYTES) * LAID_BYTES // as_dtype(dtype).bytes
    if longer == columns:
        return tensor
    copy = T.alloc_global((rows, longer), dtype)
    lay_out(tensor, copy, rows, columns, dtype)
    return copy


def gemm(M=None, N=None, K=None, in_dtype="float16", out_dtype=None, bias=False, activation=None, trans_a=False, trans_b=False,
         block_m=None, block_n=None, block_k=None, stages=None, threads=None, swizzle=0, copied=False, target=None):
    """A dimension that is None is known at launch only. ``trans_a``: A is K×M; ``trans_b``: B is N×K. Sizes of tiles that are left out are those
    that serve everywhere; without any, registers of the ``target`` (None: as ``kiln.target`` finds it) count, and one row by 16-bit floats that lie
    along k is ``gemv``. ``copied``: operands whose rows begin anywhere are laid out anew first; all dimensions are known."""
    accumulator = ACCUMULATOR.get(in_dtype, "float32")
    out_dtype = out_dtype or (accumulator if in_dtype in ACCUMULATOR else "float32" if in_dtype == "tfloat32" else in_dtype)
    given = {"block_m": block_m, "block_n": block_n, "block_k": block_k, "stages": stages, "threads": threads}
    given = {name: value for name, value in given.items() if value is not None}
    if M == 1 and trans_b and not trans_a and not given and in_dtype in ("float16", "bfloat16") and isinstance(K, int) and 0 < K and K % 8 == 0:
        return gemv(N, K, in_dtype, out_dtype, bias, activation)
    known = all(isinstance(extent, int) for extent in (M, N, K))
    tile = {**sizes.PLAIN, **given} if given else sizes.for_registers(sizes.PLAIN, target, known=known)
    block_m, block_n, block_k, stages, threads = (tile[name] for name in sizes.PLAIN)
    M = T.dynamic("M") if M is None else M
    N = T.dynamic("N") if N is None else N
    K = T.dynamic("K") if K is None else K
    a_shape, b_shape = (K, M) if trans_a else (M, K), (N, K) if trans_b else (K, N)
    a_tile = (block_k, block_m) if trans_a else (block_m, block_k)
    b_tile = (block_n, block_k) if trans_b else (block_k, block_n)

    @T.macro
    def product(A, B, accum, bx, by):
        a_shared = T.alloc_shared(a_tile, in_dtype)
        b_shared = T.alloc_shared(b_tile, in_dtype)
        T.clear(accum)
        for ko in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
            if trans_a:
                T.copy(A[ko * block_k, by * block_m], a_shared)
            else:
                T.copy(A[by * block_m, ko * block_k], a_shared)
            if trans_b:
                T.copy(B[bx * block_n, ko * block_k], b_shared)
            else:
                T.copy(B[ko * block_k, bx * block_n], b_shared)
            T.gemm(a_shared, b_shared, accum, transpose_A=trans_a, transpose_B=trans_b)

    @T.prim_func
    def gemm(A: T.Tensor(a_shape, in_dtype), B: T.Tensor(b_shape, in_dtype), C: T.Tensor((M, N), out_dtype)):
        a, b = (laid_out(A, a_shape, in_dtype), laid_out(B, b_shape, in_dtype)) if copied else (A, B)
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            T.use_swizzle(swizzle, enable=swizzle > 0)
            accum = T.alloc_fragment((block_m, block_n), accumulator)
            product(a, b, accum, bx, by)
            if activation is not None:
                for i, j in T.Parallel(block_m, block_n):
                    accum[i, j] = activate(activation, accum[i, j])
            T.copy(accum, C[by * block_m, bx * block_n])

    @T.prim_func
    def gemm_bias(A: T.Tensor(a_shape, in_dtype), B: T.Tensor(b_shape, in_dtype), bias: T.Tensor((N,), out_dtype),
                  C: T.Tensor((M, N), out_dtype)):
        a, b = (laid_out(A, a_shape, in_dtype), laid_out(B, b_shape, in_dtype)) if copied else (A, B)
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=threads) as (bx, by):
            T.use_swizzle(swizzle, enable=swizzle > 0)
            accum = T.alloc_fragment((block_m, block_n), accumulator)
            bias_shared = T.alloc_shared((block_n,), out_dtype)
            T.copy(bias[bx * block_n], bias_shared)
            product(a, b, accum, bx, by)
            for i, j in T.Parallel(block_m, block_n):
                accum[i, j] = activate(activation, accum[i, j] + bias_shared[j])
            T.copy(accum, C[by * block_m, bx * block_n])

    return (gemm_bias if bias else gemm).with_outputs(-1)


def gemv(N, K, in_dtype="float16", out_dtype=None, bias=False, activation=None):
    """C = activation(A · Bᵀ + bias) of one row: A is 1×K, B N×K, of 16-bit floats. Only the memory bounds it, so it needs no tiles: threads load
    parts of a few rows of B straight into registers, and blocks are so small that each multiprocessor has several whose loads are
    under way together."""
    out_dtype = out_dtype or in_dtype
    rows, columns, threads = sizes.one_row(K).values()
    N = T.dynamic("N") if N is None else N
    steps = -(-K // columns)

    @T.macro
    def product(A, B, result, bx):
        a = T.alloc_fragment((columns,), in_dtype)
        b = T.alloc_fragment((rows, columns), in_dtype)
        sums = T.alloc_fragment((rows, columns), "float32")
        T.clear(sums)
        for k in T.serial(steps):
            T.copy(A[0, k * columns], a)
            T.copy(B[bx * rows, k * columns], b)
            for i, j in T.Parallel(rows, columns):
                sums[i, j] += T.cast(a[j], "float32") * T.cast(b[i, j], "float32")
        T.reduce_sum(sums, result, dim=1)

    @T.prim_func
    def gemv(A: T.Tensor((1, K), in_dtype), B: T.Tensor((N, K), in_dtype), C: T.Tensor((1, N), out_dtype)):
        with T.Kernel(T.ceildiv(N, rows), threads=threads) as bx:
            result = T.alloc_fragment((rows,), "float32")
            product(A, B, result, bx)
            if activation is not None:
                for i in T.Parallel(rows):
                    result[i] = activate(activation, result[i])
            T.copy(result, C[0, bx * rows])

    @T.prim_func
    def gemv_bias(A: T.Tensor((1, K), in_dtype), B: T.Tensor((N, K), in_dtype), bias: T.Tensor((N,), out_dtype), C: T.Tensor((1, N), out_dtype)):
        with T.Kernel(T.ceildiv(N, rows), threads=threads) as bx:
            result = T.alloc_fragment((rows,), "float32")
            added = T.alloc_fragment((rows,), out_dtype)
            T.copy(bias[bx * rows], added)
            product(A, B, result, bx)
            for i in T.Parallel(rows):
                result[i] = activate(activation, result[i] + added[i])
            T.copy(result, C[0, bx * rows])

    return (gemv_bias if bias else gemv).with_outputs(-1)
