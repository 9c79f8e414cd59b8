# SPDX-License-Identifier: Apache-2.0
"""What reducers, views, votes and their kin refuse, by name."""

import pytest

import kiln.language as T
from kiln.language import TraceError


def program(statement):
    @T.prim_func
    def f(A: T.Tensor((8,), "float32"), B: T.Tensor((8, 8), "float32")):
        with T.Kernel(1, threads=32):
            tile, one = T.alloc_fragment((8,), "float32"), T.alloc_fragment((1,), "float32")
            statement(A, B, tile, one)

    return f


@T.macro
def update(acc, at, tile):
    for i in T.Parallel(8):
        T.reducer_update(acc[at(i)], tile[i])


def begun(op="sum", shape=(1,)):
    acc = T.alloc_reducer(shape, "float32", op)
    T.reducer_init(acc)
    return acc


@T.macro
def finalized_in_a_loop(acc, one):
    for _ in T.serial(4):
        T.finalize_reducer(acc, one)


@T.macro
def begun_in_a_loop(one):
    acc = T.alloc_reducer((1,), "float32")
    for _ in T.serial(4):
        T.reducer_init(acc)
    T.finalize_reducer(acc, one)


@T.macro
def stored(acc, tile):
    for i in T.Parallel(8):
        acc[0] += tile[i]


@T.macro
def counted(acc, tile, A):
    for i in T.Parallel(8):
        j = T.cast(A[i], "int32")
        T.reducer_update(acc[j], tile[i])


def read(A, acc):
    A[0] = acc[0]


@pytest.mark.parametrize("statement, says", [
    (lambda A, B, tile, one: update(T.alloc_reducer((1,), "float32"), lambda i: 0, tile), "before T.reducer_init"),
    (lambda A, B, tile, one: begun(), "never finalized"),
    (lambda A, B, tile, one: T.reducer_init(begun()), "double T.reducer_init"),
    (lambda A, B, tile, one: T.reducer_init(T.alloc_reducer((1,), "float32"), T.float16(1)), "does not match reducer"),
    (lambda A, B, tile, one: T.reducer_update(begun()[0], tile[0]), "outside any T.Parallel"),
    (lambda A, B, tile, one: stored(begun(), tile), "illegal store to reducer"),
    (lambda A, B, tile, one: (lambda acc: (read(A, acc), T.finalize_reducer(acc, one)))(begun()), "illegal read of reducer"),
    (lambda A, B, tile, one: T.clear(begun()), "illegal T.fill of reducer"),
    (lambda A, B, tile, one: finalized_in_a_loop(begun(), one), "not in the scope of its T.reducer_init"),
    (lambda A, B, tile, one: begun_in_a_loop(one), "not in the scope of its T.reducer_init"),
    (lambda A, B, tile, one: T.finalize_reducer(begun(), tile), "it must be float32"),
    (lambda A, B, tile, one: update(begun(shape=(16,)), lambda i: i + 1, tile), "must be a variable of the T.Parallel loop"),
    (lambda A, B, tile, one: counted(begun(shape=(16,)), tile, A), "must be a variable of the T.Parallel loop"),
    (lambda A, B, tile, one: update(begun(shape=(8, 8)).whole(), lambda i: (i, i), tile), "stands in two indices"),
    (lambda A, B, tile, one: T.finalize_reducer(tile, one), "takes what T.alloc_reducer gives"),
    (lambda A, B, tile, one: T.reshape(A[0:4], (2, 2)), "takes a whole buffer"),
    (lambda A, B, tile, one: T.view(T.alloc_shared((8,), "int8"), (8,), "bool"), "use int8"),
    (lambda A, B, tile, one: T.fill(T.view(tile, (16,), "float16"), 0), "neighbours would share one store"),
    (lambda A, B, tile, one: T.atomic_add(T.view(A, (8,), "int32")[0], 1), "use a buffer of that dtype"),
    (lambda A, B, tile, one: T.shfl_sync(A[0], 0, mask=1), "all threads of a warp take part"),
    (lambda A, B, tile, one: T.shfl_up(A[0], 1, width=12), "a power of two"),
    (lambda A, B, tile, one: T.transpose(B, T.alloc_shared((8, 4), "float32")), "must be 8×8"),
    (lambda A, B, tile, one: T.im2col(A, B, 0, 0, 3, 1, 1, 1), "images × height × width × channels"),
    (lambda A, B, tile, one: T.tvm_thread_allreduce(1, A[0], True, tile[0], T.get_thread_binding(0)), "stands under T.attr"),
    (lambda A, B, tile, one: T.attr(None, "pragma", 1).__enter__(), "known is"),
])
def test_refused(statement, says):
    with pytest.raises(TraceError, match=says):
        program(statement)


@pytest.mark.parametrize("statement, kind, says", [
    (lambda A, B, tile, one: T.alloc_reducer((1,), "float32", "bitor"), AssertionError, "integer dtype"),
    (lambda A, B, tile, one: T.alloc_reducer((1,), "float32", "product"), AssertionError, "known: sum"),
    (lambda A, B, tile, one: T.finalize_reducer(begun(), one, batch=0), ValueError, "batch must be >= 1"),
    (lambda A, B, tile, one: T.finalize_reducer(begun(), one, batch=2), ValueError, "exceeds total output elements"),
    (lambda A, B, tile, one: T.reshape(A, (3, 3)), AssertionError, "shape check failed"),
    (lambda A, B, tile, one: T.any_sync(A[0]), TypeError, "requires an integer or boolean predicate"),
    (lambda A, B, tile, one: T.warp_reduce_bitor(A[0]), TypeError, "bits are those of integers"),
])
def test_refused_with_another_error(statement, kind, says):
    with pytest.raises(kind, match=says):
        program(statement)


def test_in_a_parallel_loop_no_thread_is_known():
    @T.macro
    def reduced(A):
        for i in T.Parallel(8):
            A[i] = T.warp_reduce_sum(A[i])

    with pytest.raises(TraceError, match="which thread does which iteration"):
        program(lambda A, B, tile, one: reduced(A))
