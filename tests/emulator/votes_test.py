# SPDX-License-Identifier: Apache-2.0
"""What threads of a warp and of a block tell each other, and conditions on tiles, against numpy."""

import kiln.language as T
import numpy as np
import pytest

TARGETS = ["emu:sm_75", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"]
THREADS = [32, 128, 8, 48, (16, 4)]
UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "bitand": np.bitwise_and, "bitor": np.bitwise_or}


def in_warps(values, function):
    """A function of a warp's values, for each of its threads."""
    return np.concatenate([np.broadcast_to(function(values[at : at + 32]), values[at : at + 32].shape) for at in range(0, len(values), 32)])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("op, dtype", [("sum", "float32"), ("sum", "int64"), ("max", "float16"), ("min", "int64"), ("bitand", "int32"),
                                       ("bitor", "uint8")])
def test_warp_reductions(call, target, threads, op, dtype):
    count = int(np.prod(threads))

    @T.prim_func
    def program(A: T.Tensor((count,), dtype)):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding(0) + T.get_thread_binding(1) * T.get_thread_extent(0)
            mine, reduced = T.alloc_local([1], dtype), T.alloc_local([1], dtype)
            mine[0] = A[tx]
            reduced[0] = getattr(T, f"warp_reduce_{op}")(mine[0])
            A[tx] = reduced[0]

    a = np.random.default_rng(5).integers(1, 100, count).astype(dtype)
    (after,) = call(program, target, a)
    np.testing.assert_array_equal(after, in_warps(a, UFUNCS[op].reduce))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", THREADS)
def test_votes_and_shuffles(call, target, threads):
    count = int(np.prod(threads))

    @T.prim_func
    def program(A: T.Tensor((count,), "int32"), B: T.Tensor((11, count), "int64")):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding(0) + T.get_thread_binding(1) * T.get_thread_extent(0)
            value = T.alloc_var("int32", A[tx])
            B[0, tx] = T.any_sync(value > 90)
            B[1, tx] = T.all_sync(value > 5)
            B[2, tx] = T.cast(T.ballot(value % 2), "int64")
            B[3, tx] = T.syncthreads_count(value > 50)
            B[4, tx] = T.syncthreads_and(value > 5) * 2 + T.syncthreads_or(value > 99)
            B[5, tx] = T.shfl_sync(value, 3, width=8)
            B[6, tx] = T.shfl_xor(value, 5, width=8)
            B[7, tx] = T.shfl_up(value, 2)
            B[8, tx] = T.shfl_down(value, 3, width=4)
            B[9, tx] = T.get_lane_idx() + 100 * T.get_warp_idx() + 10000 * T.get_warp_group_idx(16, 2)
            B[10, tx] = T.cast(T.shuffle_elect(8), "int64") + 2 * T.cast(T.shuffle_elect(0), "int64")

    a = np.random.default_rng(6).integers(0, 100, count).astype(np.int32)
    _, b = call(program, target, a, np.zeros((11, count), np.int64))
    index, padded = np.arange(count), np.concatenate([a, np.zeros(64, np.int32)])
    lane = index % 32
    expected = [
        in_warps(a, lambda w: (w > 90).any()), in_warps(a, lambda w: (w > 5).all()),
        in_warps(a, lambda w: (w % 2).astype(np.int64) @ (1 << np.arange(len(w)))), np.full(count, (a > 50).sum()),
        np.full(count, 2 * (a > 5).all() + (a > 99).any()), padded[index - index % 8 + 3], padded[index ^ 5],
        np.where(lane >= 2, a[index - 2], a), np.where(index % 4 + 3 < 4, padded[index + 3], a),
        lane + 100 * (index // 32) + 10000 * (index // 32), (index % 8 == 0) + 2 * (index == 0)]
    for row, wanted in enumerate(expected):
        np.testing.assert_array_equal(b[row], wanted, err_msg=f"row {row}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [1, 5, 200])
@pytest.mark.parametrize("where", ["global", "slice", "shared", "local", "fragment"])
def test_conditions_on_tiles(call, target, length, where):
    alloc = {"shared": T.alloc_shared, "local": T.alloc_local, "fragment": T.alloc_fragment}.get(where)

    @T.prim_func
    def program(A: T.Tensor((4, length), "bool"), N: T.Tensor((4, length), "float32"), B: T.Tensor((4, 2), "int32"),
                C: T.Tensor((4, 16, 16), "float32")):
        with T.Kernel(4, threads=64) as bx:
            tile = A[bx, :]
            if alloc is not None:
                tile = alloc((length,), "bool")
                for i in T.serial(length) if where == "local" else T.Parallel(length):
                    tile[i] = A[bx, i]
            some, every = T.any_of(tile[0:length] if where == "slice" else tile), T.all_of(tile)
            if T.get_thread_binding() == 0:
                B[bx, 0] = T.cast(some, "int32")
                B[bx, 1] = T.cast(every, "int32") + 2 * T.cast(T.any_of(N[bx, :]), "int32") if where == "global" else T.cast(every, "int32")
            if T.all_of(tile):
                square, product = T.alloc_shared((16, 16), "float16"), T.alloc_fragment((16, 16), "float32")
                T.fill(square, 1)
                T.gemm(square, square, product, clear_accum=True)
                T.copy(product, C[bx, :, :])

    a = np.zeros((4, length), bool)
    a[1] = True
    a[2, length // 2] = True
    a[3, 1:] = True
    n = np.where(a, np.float32(-0.5), np.float32(-0.0))
    *_, b, c = call(program, target, a, n, np.zeros((4, 2), np.int32), np.zeros((4, 16, 16), np.float32))
    np.testing.assert_array_equal(b[:, 0], a.any(axis=1))
    np.testing.assert_array_equal(b[:, 1] % 2, a.all(axis=1))
    if where == "global":
        np.testing.assert_array_equal(b[:, 1] // 2, a.any(axis=1))
    np.testing.assert_array_equal((c == 16).all(axis=(1, 2)), a.all(axis=1))


@pytest.mark.parametrize("target", TARGETS)
def test_in_a_loop_and_in_one_warp_alone(call, target):
    """Each round exchanges anew; threads of one warp may do so alone."""

    @T.prim_func
    def program(A: T.Tensor((128,), "int32"), B: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            value = T.alloc_var("int32", A[tx])
            for step in T.serial(5):
                value = value + T.shfl_xor(value, 1 << step)
            A[tx] = value
            if tx < 32:
                B[tx] = T.warp_reduce_max(tx)

    a = np.arange(128, dtype=np.int32)
    after, b = call(program, target, a, np.zeros(128, np.int32))
    np.testing.assert_array_equal(after, in_warps(a, np.sum))
    np.testing.assert_array_equal(b, np.where(a < 32, 31, 0))
