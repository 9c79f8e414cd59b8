# SPDX-License-Identifier: Apache-2.0
"""Warp groups with roles: T.ws, branches by the thread's number, and the barriers between them."""

from types import SimpleNamespace

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from needs import needs_kilnd as emulated


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


M = N = 128
K, STEP = 256, 64


def in_one_loop(stages, producer=0, late=0):
    @T.prim_func
    def main(A: T.Tensor((M, K), T.float16), B: T.Tensor((K, N), T.float16), C: T.Tensor((M, N), T.float16)):
        with T.Kernel(1, threads=256):
            a, b = T.alloc_shared((M, STEP), T.float16), T.alloc_shared((STEP, N), T.float16)
            c = T.alloc_fragment((M, N), T.float32)
            ready, done = T.alloc_barrier(arrive_count=128), T.alloc_barrier(arrive_count=128)
            with T.ws(1 - producer):
                T.clear(c)
            for k in T.Pipelined(K // STEP, num_stages=stages):
                with T.ws(producer):
                    T.barrier_wait(done, (k + 1) % 2)
                    T.tma_copy(A[0, k * STEP], a, barrier=ready)
                    T.tma_copy(B[k * STEP, 0], b, barrier=ready)
                    T.barrier_arrive(ready)
                with T.ws(1 - producer):
                    T.barrier_wait(ready, (k + late) % 2)
                    T.gemm(a, b, c)
                    T.barrier_arrive(done)
            with T.ws(1 - producer):
                T.copy(c, C)

    return main


def in_two_loops(turns, by_hand, consumed=128):
    """Each role with a loop of its own; two buffers in turns. ``by_hand``: the producer's threads copy rows of their own. ``turns``: of the loops,
    a number, or None for a parameter."""

    @T.prim_func
    def main(A: T.Tensor((M, K), T.float16), B: T.Tensor((K, N), T.float16), C: T.Tensor((M, N), T.float16), n: T.int32):
        with T.Kernel(1, threads=256):
            a, b = T.alloc_shared((2, M, STEP), T.float16), T.alloc_shared((2, STEP, N), T.float16)
            c = T.alloc_fragment((M, N), T.float32)
            bars = T.alloc_barrier([128, 128, consumed, consumed])
            tx = T.get_thread_binding()
            if tx < 128:
                for k in T.serial(turns or n):
                    T.mbarrier_wait_parity(bars[k % 2 + 2], ((k & 3) >> 1) ^ 1)
                    if by_hand:
                        for j in T.serial(STEP // 8):
                            T.ptx_cp_async(T.access_ptr(a[k % 2, tx, j * 8], "w", 8), T.access_ptr(A[tx, k * STEP + j * 8], "r", 8), 8)
                    else:
                        T.copy(A[0, k * STEP], a[k % 2, :, :])
                    T.copy(B[k * STEP : (k + 1) * STEP, :], b[k % 2, :, :])
                    T.cp_async_barrier_noinc(bars[k % 2])
            else:
                T.clear(c)
                for k in T.serial(turns or n):
                    T.mbarrier_wait_parity(bars[k % 2], (k & 3) >> 1)
                    T.gemm(a[k % 2, :, :], b[k % 2, :, :], c)
                    T.mbarrier_arrive(bars[k % 2 + 2])
                T.copy(c, C)

    return main


def agrees(client, program, target, *more):
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(shape).astype("float16") for shape in ((M, K), (K, N), (M, N)))
    kernel = kiln.compile(program, target=target, client=client)
    for seed in (0, 1):
        c[:] = 0
        with kiln.emulation(check=True, seed=seed):
            kernel(a, b, c, *more)
        assert np.abs(c.astype("float32") - a.astype("float32") @ b.astype("float32")).max() < 0.1


@emulated
@pytest.mark.parametrize("target", ["emu:sm_90a", "emu:sm_80"])
@pytest.mark.parametrize("stages, producer", [(0, 0), (2, 1)])
def test_roles_in_one_loop(client, target, stages, producer):
    agrees(client, in_one_loop(stages, producer), target)


@emulated
@pytest.mark.parametrize("target, turns, by_hand", [
    ("emu:sm_90a", 4, False), ("emu:sm_90a", 4, True), ("emu:sm_80", 4, True), ("emu:sm_90a", None, False), ("emu:gfx942", None, False)])
def test_roles_with_loops_of_their_own(client, target, turns, by_hand):
    agrees(client, in_two_loops(turns, by_hand), target, K // STEP)


def in_order(program, target="emu:sm_80"):
    return program.for_target(target).script()


def test_what_depends_on_no_thread_is_done_by_all():
    text = in_order(in_one_loop(2))
    assert "tx" not in text and text.index("copy A") < text.index("copy B") < text.index("gemm"), text
    text = in_order(in_two_loops(4, True))
    assert text.count("for k in serial(4)") == 1 and text.index("if tx < 128:") < text.index("gemm"), text
    assert in_order(in_two_loops(None, False)).count("for k in serial(n)") == 1


def test_targets_with_mbarriers_keep_the_roles_and_their_barriers():
    text = in_one_loop(2).for_target("cuda:sm_90a").script()
    assert "alloc ready: barrier int64[1]" in text and "-> a[0:+128, 0:+64] -> ready[0]" in text, text
    assert text.count("arrive ready[0]") == text.count("await ready[0] parity k % 2") == 1 and "if (tx >= 128) and (tx < 256)" in text, text
    for target in ("emu:sm_90", "cuda:sm_120a"):
        assert in_one_loop(2).for_target(target).script() == text
    for target in ("cuda:sm_89", "hip:gfx942", "emu:gfx942", "emu:sm_80"):
        assert "arrive" not in in_order(in_one_loop(2), target)


def test_groups_take_the_registers_that_they_ask_for():
    def asking(count, more):
        @T.prim_func
        def main(A: T.Tensor((256,), T.int32)):
            with T.Kernel(1, threads=256):
                bar = T.alloc_barrier(128)
                with T.ws(0):
                    T.set_max_nreg(count, more)
                    T.barrier_arrive(bar)
                with T.ws(1):
                    T.barrier_wait(bar, 0)
                    T.inc_max_nreg(232)

        return main

    program = asking(40, 0)
    assert "registers 40\n" in program.script() and "registers 232 more\n" in program.script() and "registers" not in in_order(program)
    for count in (20, 36, 264):
        with pytest.raises(T.TraceError, match="a multiple of 8 from"):
            asking(count, 1)


def test_a_value_that_threads_keep_stays_theirs():
    @T.prim_func
    def main(A: T.Tensor((256,), T.int32)):
        with T.Kernel(1, threads=256):
            tx, x = T.get_thread_binding(), T.alloc_var(T.int32, 0)
            with T.ws(1):
                x = 7
            A[tx] = x

    assert "if (tx >= 128) and (tx < 256):\n            x[0] = 7" in main.script()


def test_what_threads_keep_is_read_by_the_role_alone():
    def traced_with(value):
        @T.prim_func
        def main(A: T.Tensor((256,), T.int32), n: T.int32):
            with T.Kernel(1, threads=256):
                tx, x, y = T.get_thread_binding(), T.alloc_var(T.int32, 0), T.alloc_var(T.int32, 0)
                x = value(A, n, tx)
                y = x + 1
                with T.ws(1):
                    A[n] = y

        return main.script()

    assert "if (tx >= 128)" in traced_with(lambda A, n, tx: A[tx])
    for same in (lambda A, n, tx: n, lambda A, n, tx: A[n]):
        assert "if" not in traced_with(same)


@pytest.mark.parametrize("program, problem", [
    (lambda: in_one_loop(0, late=1), r"test_roles.py:\d+: this wait is for what stands further below"),
    (lambda: in_two_loops(4, False, consumed=64), "128 threads arrive at a barrier of 64"),
    (lambda: in_two_loops(4, False, consumed=256), "no order of the warp groups' statements was found"),
])
def test_barriers_that_allow_no_order_are_refused(program, problem):
    program = program()
    program.for_target("cuda:sm_90a")
    with pytest.raises(T.TraceError, match=problem):
        program.for_target("cuda:sm_80")


def traced(body, threads=256):
    @T.prim_func
    def main(A: T.Tensor((256,), T.float32), n: T.int32):
        with T.Kernel(1, threads=threads):
            body(A, n)

    return main


def test_what_roles_refuse():
    @T.macro
    def nested(groups):
        with T.ws(*groups):
            pass

    @T.macro
    def in_a_loop_of_threads(A):
        for i in T.Parallel(8):
            with T.ws(0):
                A[i] = 1.0

    @T.macro
    def unknown_index(n):
        bars = T.alloc_barrier([128, 128])
        with T.ws(0):
            T.barrier_arrive(bars[n])

    @T.macro
    def unknown_condition(n):
        bar = T.alloc_barrier(128)
        with T.ws(0):
            if n > 1:
                T.barrier_arrive(bar)

    @T.macro
    def never_the_same(n):
        bar = T.alloc_barrier(128)
        with T.ws(0):
            for i in T.serial(n):
                T.barrier_wait(bar, i // n)

    @T.macro
    def odd_number(n):
        bar = T.alloc_barrier([128, 128])
        with T.ws(0):
            for i in T.serial(n):
                T.barrier_arrive(bar[i % 2])
            for i in T.serial(n):
                T.barrier_wait(bar[0], 0)

    for body, problem in [(lambda A, n: nested(()), r"numbers of warp groups, and the block of 256 threads has 2 of 128"),
                          (lambda A, n: nested((2,)), "256 threads has 2"), (lambda A, n: nested((n,)), "256 threads has 2"),
                          (lambda A, n: in_a_loop_of_threads(A), "in a T.Parallel loop"),
                          (lambda A, n: unknown_index(n), "which barrier is meant is known"),
                          (lambda A, n: unknown_condition(n), "a condition around barriers is known at run time only"),
                          (lambda A, n: never_the_same(n), "must take turns with its variable"),
                          (lambda A, n: odd_number(n), "are not as before after 2 turns")]:
        with pytest.raises(T.TraceError, match=problem):
            traced(body).for_target("emu:sm_80")
    with pytest.raises(T.TraceError, match="used outside T.Kernel"):
        @T.prim_func
        def outside(A: T.Tensor((8,), T.float32)):
            with T.ws(0):
                pass


def test_several_groups():
    @T.prim_func
    def main(A: T.Tensor((512,), T.int32)):
        with T.Kernel(1, threads=512):
            tx = T.get_thread_binding()
            with T.ws(2, 0):
                A[tx] = 1

    assert "if ((tx >= 0) and (tx < 128)) or ((tx >= 256) and (tx < 384)):" in main.script().replace("(((", "((").replace(")))", "))")


def test_places_and_copies_refuse():
    def place(A, n, **options):
        return T.access_ptr(A[0], **options)

    for body, problem in [(lambda A, n: T.ptx_cp_async(A, A, 8), "takes what T.access_ptr gives"),
                          (lambda A, n: T.ptx_cp_async(place(A, n), place(A, n), n), "how many is a Python int"),
                          (lambda A, n: T.access_ptr(3), "a buffer, a slice or an element"),
                          (lambda A, n: place(A, n, ignore_last_ndim=1), "index the element")]:
        with pytest.raises(T.TraceError, match=problem):
            traced(body)
    func = traced(lambda A, n: T.async_copy(T.alloc_shared((8,), T.float32), A[0:8]))
    with pytest.raises(T.TraceError, match=r"only supports global->shared/shared.dyn copies"):
        func.module
    with pytest.raises(ValueError, match="known: r, w, rw"):
        traced(lambda A, n: place(A, n, access_type="x"))


@emulated
def test_a_copy_under_a_condition_writes_zeros(client):
    @T.prim_func
    def main(A: T.Tensor((64,), T.float32), B: T.Tensor((64,), T.float32), n: T.int32):
        with T.Kernel(1, threads=16):
            tx, tile = T.get_thread_binding(), T.alloc_shared((64,), T.float32)
            T.ptx_cp_async(T.access_ptr(tile, "w", offset=tx * 4), T.access_ptr(A[tx * 4], "r", 4), 4, tx < n)
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.copy(tile, B)

    a, b = np.arange(1, 65, dtype="float32"), np.zeros(64, "float32")
    kernel = kiln.compile(main, target="emu:sm_90a", client=client)
    with kiln.emulation(check=True):
        kernel(a, b, 5)
    assert (b == np.where(np.arange(64) < 20, a, 0)).all()


def _fragment_of(body):
    @T.prim_func
    def main(A: T.Tensor((256,), T.int32), n: T.int32):
        with T.Kernel(1, threads=256):
            own = T.alloc_fragment((2,), T.int32)
            body(A, n, own, T.get_thread_binding())

    return main.script()


def test_a_fragment_that_threads_write_one_by_one_is_theirs():
    @T.macro
    def in_a_role(A, n, own, tx):
        if tx >= 128:
            for i in T.serial(2):
                own[i] = A[tx - i]
            A[tx] = own[0] + own[n % 2]

    @T.macro
    def read_by_others(A, n, own, tx):
        if tx >= 128:
            own[0] = n
        A[tx] = own[0]

    @T.macro
    def of_the_block(A, n, own, tx):
        own[tx % 2] = n
        A[tx] = own[0]

    @T.macro
    def in_parallel(A, n, own, tx):
        for i in T.Parallel(2):
            own[i] = n
        A[tx] = own[0]

    assert "alloc own: local int32[2]" in _fragment_of(in_a_role)
    for body in (read_by_others, of_the_block, in_parallel):
        assert "alloc own: fragment int32[2]" in _fragment_of(body)
    with_scope = lambda A, n, own, tx: T.alloc_fragment((1,), T.int32, "local")  # noqa: E731
    assert "local int32[1]" in _fragment_of(with_scope)


@emulated
def test_values_of_each_thread_in_a_fragment(client):
    @T.prim_func
    def main(A: T.Tensor((4, 256), T.int32), B: T.Tensor((256,), T.int32)):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            ahead = T.alloc_fragment((2,), T.int32)
            if tx >= 64:
                for i in T.serial(2):
                    ahead[i] = A[i, tx]
                for r in T.serial(2):
                    B[tx] = B[tx] * 10 + ahead[r]
                    ahead[r] = A[r + 2, tx]
                for r in T.serial(2):
                    B[tx] = B[tx] * 10 + ahead[r]

    a, b = np.random.default_rng(1).integers(0, 10, (4, 256), "int32"), np.zeros(256, "int32")
    kernel = kiln.compile(main, target="emu:sm_90a", client=client)
    with kiln.emulation(check=True):
        kernel(a, b)
    assert (b[64:] == (a * [[1000], [100], [10], [1]]).sum(0)[64:]).all() and not b[:64].any()


def _tile_of_two_groups():
    @T.prim_func
    def main(A: T.Tensor((128, 64), T.float16), B: T.Tensor((64, 64), T.float16), C: T.Tensor((128, 64), T.float32)):
        with T.Kernel(1, threads=256):
            a, b, c = T.alloc_shared((128, 64), T.float16), T.alloc_shared((64, 64), T.float16), T.alloc_fragment((64, 64), T.float32)
            T.copy(A, a), T.copy(B, b)
            with T.ws(0):
                T.clear(c)
                T.gemm(a[0:64, :], b, c)
                T.copy(c, C[0:64, :])
            with T.ws(1):
                T.clear(c)
                T.gemm(a[64:128, :], b, c)
                T.copy(c, C[64:128, :])

    return main


def _groups_that_share_threads():
    @T.prim_func
    def main(A: T.Tensor((128,), T.int32), C: T.Tensor((128,), T.int32)):
        with T.Kernel(1, threads=384):
            s, t = T.alloc_shared((128,), T.int32), T.alloc_shared((128,), T.int32)
            full, done = T.alloc_barrier(128), T.alloc_barrier(256)
            with T.ws(0):
                T.barrier_wait(full, 0)
                T.copy(s, t)
            with T.ws(0, 1):
                T.copy(t, C)
                T.barrier_arrive(done)
            with T.ws(2):
                T.copy(A, s)
                T.barrier_arrive(full)

    return main


def _a_group_that_leaves():
    @T.prim_func
    def main(A: T.Tensor((8, 128), T.int32), C: T.Tensor((8, 128), T.int32)):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((128,), T.int32)
            full, empty = T.alloc_barrier(128), T.alloc_barrier(128)
            for k in T.serial(8):
                with T.ws(0):
                    T.barrier_wait(empty, (k + 1) % 2)
                    T.copy(A[k, :], s)
                    T.barrier_arrive(full)
                    if k == 2:
                        T.loop_break()
                with T.ws(1):
                    T.barrier_wait(full, k % 2)
                    T.copy(s, C[k, :])
                    T.barrier_arrive(empty)

    return main


@pytest.mark.parametrize("program, problem", [
    (_tile_of_two_groups, "is written by several warp groups, but a fragment is one tile of the block"),
    (_groups_that_share_threads, "no order of the warp groups' statements was found"),
    (_a_group_that_leaves, "break or continue in a loop with barriers of warp groups"),
])
def test_what_groups_would_do_to_each_other_is_refused(program, problem):
    with pytest.raises(T.TraceError, match=problem):
        program().for_target("emu:sm_80")


def test_who_left_a_loop_early_has_other_values():
    @T.prim_func
    def main(A: T.Tensor((1,), T.int32)):
        with T.Kernel(1, threads=256):
            tx, y = T.get_thread_binding(), T.alloc_var(T.int32, 0)
            for _ in T.serial(4):
                if tx < 128:
                    T.loop_break()
                y = y + 1
            with T.ws(1):
                A[0] = y

    assert "if (tx >= 128)" in main.script()


@emulated
def test_a_value_that_a_group_loads_is_loaded_by_it_alone(client):
    @T.prim_func
    def main(A: T.Tensor((4, 128), T.int32), C: T.Tensor((4, 128), T.int32)):
        with T.Kernel(1, threads=256):
            s, full, empty = T.alloc_shared((128,), T.int32), T.alloc_barrier(128), T.alloc_barrier(128)
            tx = T.get_thread_binding()
            if tx >= 128:
                for k in T.serial(4):
                    T.barrier_wait(empty, (k + 1) % 2)
                    s[tx - 128] = A[k, tx - 128]
                    T.barrier_arrive(full)
            else:
                for k in T.serial(4):
                    T.barrier_wait(full, k % 2)
                    v = s[127 - tx] * 2
                    C[k, tx] = v
                    T.barrier_arrive(empty)

    a, c = np.random.default_rng(2).integers(0, 100, (4, 128), "int32"), np.zeros((4, 128), "int32")
    kernel = kiln.compile(main, target="emu:sm_90a", client=client)
    with kiln.emulation(check=True):
        kernel(a, c)
    assert (c == a[:, ::-1] * 2).all()


def test_a_run_and_a_tuning_take_the_program_of_the_devices_target(monkeypatch):
    func, client = in_one_loop(2), Client("unix:/nowhere")
    device = SimpleNamespace(name="cuda:0", target="cuda:sm_90a")
    monkeypatch.setattr(client, "capabilities", lambda: SimpleNamespace(devices=[device]))
    assert func.for_target("cuda:sm_90a").serialized != func.for_target("cuda:sm_80").serialized
    assert client._for_device(func, "cuda:0") == func.for_target("cuda:sm_90a").serialized
    assert client._for_device(func, "emu:sm_80") == func.for_target("emu:sm_80").serialized
    device.target = "cuda:sm_80"
    assert client._for_device(func, "cuda:0") == func.for_target("cuda:sm_80").serialized
