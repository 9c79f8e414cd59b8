# SPDX-License-Identifier: Apache-2.0
"""Tile operations under conditions that a range of the block's threads meets: just those threads do them, and all of each."""

import kiln.language as T
import numpy as np
import pytest

NVIDIA = ["emu:sm_75", "emu:sm_80", "emu:sm_90a"]
AMD = ["emu:gfx90a", "emu:gfx942", "emu:gfx1100"]
THREADS = 128


def run(emulator, program, target, *arrays):
    """The arrays after the run, or the error that the compiler has for the program."""
    after, answer = emulator.call(emulator.module(program.serialized), target, [(a, str(a.dtype)) for a in arrays], check=1)
    if "error" in answer:
        return answer["error"]
    assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
    return after


# What lets which threads come, and whether their number is that of whole warps of 32; of a single warp.
CONDITIONS = {
    "half": (lambda tx: tx < 64, True, False),
    "upper": (lambda tx: tx >= 64, True, False),
    "middle": (lambda tx: T.And(tx >= 32, tx < 96), True, False),
    "third_warp": (lambda tx: tx // 32 == 2, True, True),
    "last_warp": (lambda tx: T.Not(tx < 96), True, True),
    "first": (lambda tx: tx == 0, False, True),
    "odd": (lambda tx: T.And(tx > 4, tx <= 22), False, True),
    "ragged": (lambda tx: tx < 80, False, False),
    "all": (lambda tx: tx < 128, True, False),
}


def copy(s, A, f):
    T.copy(A, s)


def fill(s, A, f):
    T.fill(s, 3.0)


def loop(s, A, f):
    for i in T.Parallel(200):
        s[i] = A[i] * 2 + 1


def atomics(s, A, f):
    for i in T.Parallel(200):
        T.atomic_add(s[i % 100], A[i])


def fragment(s, A, f):
    own = T.alloc_fragment((200,), "float32")
    T.copy(A, own)
    for i in T.Parallel(200):
        own[i] = own[i] + 1
    T.copy(own, s)


STATEMENTS = {
    copy: lambda a, s: a,
    fill: lambda a, s: np.full(200, 3.0),
    loop: lambda a, s: a * 2 + 1,
    atomics: lambda a, s: np.concatenate([s[:100] + a[:100] + a[100:], s[100:]]),
    fragment: lambda a, s: a + 1,
}


@pytest.mark.parametrize("target", NVIDIA + AMD)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda f: f.__name__)
def test_a_range_of_threads_does_all_of_a_statement(emulator, target, condition, statement):
    @T.prim_func
    def program(A: T.Tensor((200,), "float32"), B: T.Tensor((200,), "float32")):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding()
            s = T.alloc_shared((200,), "float32")
            T.fill(s, 7.0)
            if CONDITIONS[condition][0](tx):
                statement(s, A, None)
            T.copy(s, B)

    a = np.random.default_rng(3).integers(-50, 50, 200).astype(np.float32)
    after = run(emulator, program, target, a, np.zeros(200, np.float32))
    assert not isinstance(after, str), after
    np.testing.assert_array_equal(after[1], STATEMENTS[statement](a.astype(np.float64), np.full(200, 7.0)))


@pytest.mark.parametrize("target", NVIDIA + ["emu:gfx90a", "emu:gfx942"])
def test_threads_of_a_range_loop_up_to_what_they_count(emulator, target):
    """The others leave it alone, and go on with what they counted themselves."""

    @T.prim_func
    def program(A: T.Tensor((6, 64), "float32"), N: T.Tensor((2,), "int32"), B: T.Tensor((6, 64), "float32"), C: T.Tensor((2, 64), "float32")):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding()
            s, t = T.alloc_shared((64,), "float32"), T.alloc_shared((64,), "float32")
            i, j = T.alloc_var("int32", 0), T.alloc_var("int32", 5)
            if tx < 64:
                while i < N[0]:
                    T.copy(A[i, 0:64], s)
                    for k in T.Parallel(64):
                        t[k] = s[63 - k]
                    if T.And(tx < 32, i != 1):
                        T.copy(t, B[i, 0:64])
                    i += 1
                for k in T.serial(i):
                    T.fill(C[0, 0:64], T.cast(k, "float32"))
            if T.And(tx >= 64, i < 7):
                T.fill(C[1, 0:64], T.cast(i + j, "float32"))

    a = np.random.default_rng(3).integers(-50, 50, (6, 64)).astype(np.float32)
    given = (a, np.array([4, 0], np.int32), np.zeros((6, 64), np.float32), np.zeros((2, 64), np.float32))
    after = run(emulator, program, target, *given)
    assert not isinstance(after, str), after
    expected = np.where(np.isin(np.arange(6), (0, 2, 3))[:, None], a[:, ::-1], 0)
    np.testing.assert_array_equal(after[2], expected)
    np.testing.assert_array_equal(after[3], np.repeat([[3.0], [5.0]], 64, axis=1))


def exchanges(target, condition):
    """Whether the threads of the range can wait for each other."""
    _, whole, alone = CONDITIONS[condition]
    if condition == "all":
        return True
    if condition in ("half", "upper") and target in ("emu:gfx90a", "emu:gfx942"):
        return True  # one wave of 64
    if condition == "middle" and target in ("emu:gfx90a", "emu:gfx942"):
        return False  # parts of two
    return alone or (whole and target in NVIDIA)


def row_sums(s, B):
    r = T.alloc_fragment((8,), "float32")
    T.reduce_sum(s, r, dim=1)
    T.copy(r, B[0:8])


def column_maxima(s, B):
    r = T.alloc_fragment((48,), "float32")
    T.reduce_max(s, r, dim=0)
    T.copy(r, B[0:48])


def scan(s, B):
    T.cumsum(s, dim=1)
    for j in T.Parallel(48):
        B[j] = s[7, j]


def transpose(s, B):
    t = T.alloc_shared((48, 8), "float32")
    for i, j in T.Parallel(8, 48):
        t[j, i] = s[i, j] * 2
    for j in T.Parallel(48):
        B[j] = t[j, 3]


@T.macro
def serial(s, B):
    t, u = T.alloc_shared((48,), "float32"), T.alloc_shared((48,), "float32")
    T.fill(t, 0.0)
    for i in T.serial(8):
        for j in T.Parallel(48):
            u[j] = t[47 - j] + s[i, j]
        T.copy(u, t)
        if i == 5:
            T.loop_break()
    T.copy(t, B[0:48])


def serial_reference(x):
    t = np.zeros(48)
    for i in range(6):
        t = t[::-1] + x[i]
    return t


# The statement that reads what other threads of the range wrote, in floats that add up exactly.
EXCHANGES = {
    row_sums: lambda x: x.sum(axis=1),
    column_maxima: lambda x: x.max(axis=0),
    scan: lambda x: np.cumsum(x, axis=1)[7],
    transpose: lambda x: x[3] * 2,
    serial: serial_reference,
}


@pytest.mark.parametrize("target", NVIDIA + AMD)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("statement", EXCHANGES, ids=lambda f: getattr(f, "__name__", "serial"))
def test_threads_of_a_range_exchange_data_among_themselves(emulator, target, condition, statement):
    @T.prim_func
    def program(A: T.Tensor((8, 48), "float32"), B: T.Tensor((48,), "float32")):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding()
            s = T.alloc_shared((8, 48), "float32")
            if CONDITIONS[condition][0](tx):
                T.copy(A, s)
                statement(s, B)

    a = np.random.default_rng(5).integers(-50, 50, (8, 48)).astype(np.float32)
    after = run(emulator, program, target, a, np.zeros(48, np.float32))
    if isinstance(after, str):
        assert not exchanges(target, condition) and "under if " in after and "have no barrier" in after, after
        return
    expected = EXCHANGES[statement](a.astype(np.float64))
    np.testing.assert_array_equal(after[1][: len(expected)], expected)


# --- products ---

GEMM_RANGES = {
    "warps": (256, lambda tx: tx >= 128, {"emu:sm_75": "mma", "emu:sm_80": "mma", "emu:sm_90a": "wgmma", "emu:gfx90a": "mfma", "emu:gfx942": "mfma",
                                          "emu:gfx1100": "wmma"}),
    "two_warps": (192, lambda tx: T.And(tx >= 64, tx < 128), {"emu:sm_80": "mma", "emu:sm_90a": "mma", "emu:gfx942": "mfma", "emu:gfx90a": "mfma"}),
    "shifted_group": (256, lambda tx: T.And(tx >= 64, tx < 192), {"emu:sm_90a": "mma"}),
    "part_of_a_warp": (128, lambda tx: T.And(tx >= 8, tx < 24), {"emu:sm_75": "one by one", "emu:sm_80": "one by one", "emu:gfx942": "one by one",
                                                               "emu:gfx1100": "one by one"}),
}


@pytest.mark.parametrize("case", [(name, target) for name, (_, _, targets) in GEMM_RANGES.items() for target in targets], ids="-".join)
def test_products_take_the_whole_warps_of_a_range(emulator, case):
    name, target = case
    threads, condition, targets = GEMM_RANGES[name]
    m, n, k = (64, 32, 128) if name != "part_of_a_warp" else (16, 16, 16)

    @T.prim_func
    def program(A: T.Tensor((m, k), "float16"), B: T.Tensor((n, k), "float16"), C: T.Tensor((m, n), "float32")):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            a, b = T.alloc_shared((m, k), "float16"), T.alloc_shared((n, k), "float16")
            c = T.alloc_fragment((m, n), "float32")
            T.copy(A, a)
            T.copy(B, b)
            if condition(tx):
                T.clear(c)
                T.gemm(a, b, c, transpose_B=True)
                T.copy(c, C)

    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((m, k), (n, k)))
    module = emulator.module(program.serialized)
    after, answer = emulator.call(module, target, [(a, "float16"), (b, "float16"), (np.zeros((m, n), np.float32), "float32")], check=1)
    assert "error" not in answer and answer["finished"] and not answer["findings"], answer
    assert any(targets[target] in decision for decision in answer["decisions"]), answer["decisions"]
    np.testing.assert_allclose(after[2], a.astype(np.float64) @ b.astype(np.float64).T, rtol=2e-3, atol=2e-3)


@T.macro
def half(A, B, c, row):
    a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
    T.clear(c)
    for k in T.Pipelined(8, num_stages=3):
        T.copy(A[row : row + 64, k * 32 : k * 32 + 32], a)
        T.copy(B[k * 32 : k * 32 + 32, :], b)
        T.gemm(a, b, c)


@pytest.mark.parametrize("target", NVIDIA)
def test_groups_of_warps_work_on_products_of_their_own(emulator, target):
    """Half of the block for each half of the rows, in a pipelined loop of its own; the sums meet in a fragment of all threads."""
    @T.prim_func
    def program(A: T.Tensor((128, 256), "float16"), B: T.Tensor((256, 64), "float16"), C: T.Tensor((128, 64), "float32")):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            upper, lower = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
            if tx < 128:
                half(A, B, upper, 0)
            else:
                half(A, B, lower, 64)
            T.copy(upper, C[0:64, :])
            T.copy(lower, C[64:128, :])

    random = np.random.default_rng(2)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((128, 256), (256, 64)))
    after = run(emulator, program, target, a, b, np.zeros((128, 64), np.float32))
    assert not isinstance(after, str), after
    np.testing.assert_allclose(after[2], a.astype(np.float64) @ b.astype(np.float64), rtol=2e-3, atol=2e-2)


# --- a program that people run ---

def mhc_pre(tokens, hidden, block, mult=4, steps=3):
    """What DeepSeek's hyper-connections do before a layer: one warp makes weights of a token's mixes (doubly stochastic by Sinkhorn's steps),
    while the others add up the token's residual streams."""
    mult3 = 2 * mult + mult * mult

    @T.prim_func
    def program(Mixes: T.Tensor((tokens, mult3), "float32"), Residual: T.Tensor((tokens, mult, hidden), "float16"),
                Post: T.Tensor((tokens, mult), "float32"), Comb: T.Tensor((tokens, mult, mult), "float32"),
                Out: T.Tensor((tokens, hidden), "float16")):
        with T.Kernel(tokens, threads=96) as i:
            mixes = T.alloc_fragment((mult3,), "float32")
            shared = T.alloc_shared((mult3,), "float32")
            for j in T.Parallel(mult3):
                mixes[j] = Mixes[i, j] * 0.5
            T.copy(mixes, shared)
            if T.get_thread_binding() < 32:
                comb = T.alloc_fragment((mult, mult), "float32")
                total, largest = T.alloc_fragment((mult,), "float32"), T.alloc_fragment((mult,), "float32")
                for j in T.Parallel(mult):
                    Post[i, j] = 2 * T.sigmoid(shared[mult + j])
                for j, k in T.Parallel(mult, mult):
                    comb[j, k] = shared[2 * mult + j * mult + k]
                T.reduce_max(comb, largest, dim=1)
                for j, k in T.Parallel(mult, mult):
                    comb[j, k] = T.exp(comb[j, k] - largest[j])
                for _ in T.serial(steps):
                    for dim in (1, 0):
                        T.reduce_sum(comb, total, dim=dim)
                        for j, k in T.Parallel(mult, mult):
                            comb[j, k] = comb[j, k] / (total[j if dim == 1 else k] + 1e-6)
                T.copy(comb, Comb[i, :, :])
            else:
                weights = T.alloc_shared((mult,), "float32")
                for j in T.Parallel(mult):
                    weights[j] = T.sigmoid(shared[j])
                tile, sums = T.alloc_shared((mult, block), "float16"), T.alloc_fragment((block,), "float32")
                for h in T.Pipelined(hidden // block, num_stages=2):
                    T.copy(Residual[i, :, h * block : (h + 1) * block], tile)
                    T.clear(sums)
                    for m in T.serial(mult):
                        for k in T.Parallel(block):
                            sums[k] += weights[m] * tile[m, k]
                    T.copy(sums, Out[i, h * block : (h + 1) * block])

    return program


def mhc_pre_reference(mixes, residual, mult, steps):
    mixes, residual = mixes.astype(np.float64) * 0.5, residual.astype(np.float64)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    comb = mixes[:, 2 * mult :].reshape(-1, mult, mult)
    comb = np.exp(comb - comb.max(axis=2, keepdims=True))
    for _ in range(steps):
        comb = comb / (comb.sum(axis=2, keepdims=True) + 1e-6)
        comb = comb / (comb.sum(axis=1, keepdims=True) + 1e-6)
    return 2 * sigmoid(mixes[:, mult : 2 * mult]), comb, np.einsum("tm,tmh->th", sigmoid(mixes[:, :mult]), residual)


@pytest.mark.parametrize("target", NVIDIA)
def test_hyper_connections(emulator, target):
    tokens, hidden, mult, steps = 3, 512, 4, 3
    random = np.random.default_rng(4)
    mixes = random.standard_normal((tokens, 2 * mult + mult * mult)).astype(np.float32)
    residual = random.standard_normal((tokens, mult, hidden)).astype(np.float16)
    after = run(emulator, mhc_pre(tokens, hidden, 128), target, mixes, residual, np.zeros((tokens, mult), np.float32),
                np.zeros((tokens, mult, mult), np.float32), np.zeros((tokens, hidden), np.float16))
    assert not isinstance(after, str), after
    for result, expected in zip(after[2:], mhc_pre_reference(mixes, residual, mult, steps)):
        np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3)


# --- what is in a fragment ---

@pytest.mark.parametrize("target", ["emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"])
@pytest.mark.parametrize("condition", ["third_warp", "odd", "first"])
def test_fragments_are_handed_over(emulator, target, condition):
    """What all threads computed, some go on with, and all see it afterwards."""
    @T.prim_func
    def program(A: T.Tensor((8, 64), "float32"), N: T.Tensor((1,), "int32"), B: T.Tensor((8, 64), "float32")):
        with T.Kernel(1, threads=THREADS):
            tx = T.get_thread_binding()
            x, total = T.alloc_fragment((8, 64), "float32"), T.alloc_fragment((8,), "float32")
            T.copy(A, x)
            T.reduce_sum(x, total, dim=1)
            for turn in T.serial(3):
                if T.And(CONDITIONS[condition][0](tx), N[0] > turn):
                    for i, j in T.Parallel(8, 64):
                        x[i, j] = x[i, j] + total[i]
                    T.reduce_sum(x, total, dim=1)
                for i, j in T.Parallel(8, 64):
                    x[i, j] = x[i, j] - 1
            for i, j in T.Parallel(8, 64):
                B[i, j] = x[i, j] + total[i]

    a = np.random.default_rng(6).integers(-4, 5, (8, 64)).astype(np.float32)
    x, total = a.astype(np.float64), a.astype(np.float64).sum(axis=1)
    for turn in range(3):
        if turn < 2:
            x = x + total[:, None]
            total = x.sum(axis=1)
        x = x - 1
    after = run(emulator, program, target, a, np.array([2], np.int32), np.zeros((8, 64), np.float32))
    assert not isinstance(after, str), after
    np.testing.assert_array_equal(after[2], x + total[:, None])


@pytest.mark.parametrize("target", ["emu:sm_80", "emu:gfx942"])
@pytest.mark.parametrize("block", [(32, 4), (16, 2, 4)])
def test_ranges_of_blocks_of_several_dimensions(emulator, target, block):
    """A row, or a plane, of threads is a range of them by number."""
    @T.prim_func
    def program(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=block):
            last = T.get_thread_binding(len(block) - 1)
            s = T.alloc_shared((64,), "float32")
            T.fill(s, 0.0)
            if last == 1:
                T.copy(A, s)
            T.copy(s, B)

    a = np.arange(64, dtype=np.float32)
    after = run(emulator, program, target, a, np.zeros(64, np.float32))
    assert not isinstance(after, str), after
    np.testing.assert_array_equal(after[1], a)


# --- what is refused, and why ---

def refused(emulator, target, body, threads=THREADS):
    @T.prim_func
    def program(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), N: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=threads) as bx:
            body(T.get_thread_binding(), bx, A, B, N)

    error = run(emulator, program, target, np.zeros(64, np.float32), np.zeros(64, np.float32), np.zeros(1, np.int32))
    assert isinstance(error, str), "the program compiled"
    return error


def exchange(A, B):
    s = T.alloc_shared((64,), "float32")
    T.copy(A, s)
    for i in T.Parallel(64):
        B[i] = s[63 - i]


@pytest.mark.parametrize("target", ["emu:sm_80", "emu:gfx942"])
def test_conditions_that_name_no_range_are_refused(emulator, target):
    @T.macro
    def holes(tx, bx, A, B, N):
        if tx % 64 < 32:
            T.copy(A, B)

    @T.macro
    def by_data(tx, bx, A, B, N):
        if tx < N[0]:
            T.copy(A, B)

    @T.macro
    def other_threads(tx, bx, A, B, N):
        if T.And(tx < 32, N[0] > 1):
            T.fill(B, 1.0)
        else:
            T.copy(A, B)

    for body, condition in ((holes, "< 32"), (by_data, "N[0]"), (other_threads, "the else of if")):
        error = refused(emulator, target, body)
        assert "that only some threads reach" in error and condition in error, error


def test_ranges_without_a_barrier_are_refused(emulator):
    @T.macro
    def parts(tx, bx, A, B, N):
        if tx >= 48:
            exchange(A, B)

    @T.macro
    def waves(tx, bx, A, B, N):
        if tx < 128:
            exchange(A, B)

    error = refused(emulator, "emu:sm_80", parts)
    assert ">= 48" in error and "threads 48 to 127" in error and "whole warps of 32" in error, error
    error = refused(emulator, "emu:gfx942", waves, threads=256)
    assert "< 128" in error and "gfx942 has barriers for all threads of a block and for the threads of one warp of 64" in error, error


def test_branches_that_meet_are_refused(emulator):
    @T.macro
    def fragment(tx, bx, A, B, N):
        x = T.alloc_fragment((64,), "float32")
        if tx < 64:
            T.copy(A, x)
        else:
            T.fill(x, 1.0)
        T.copy(x, B)

    @T.macro
    def tile(tx, bx, A, B, N):
        if tx < 64:
            T.copy(A, B)
        else:
            T.fill(B, 1.0)

    for body in (fragment, tile):
        error = refused(emulator, "emu:sm_80", body)
        assert "both branches of if" in error and "at the same time" in error, error


# --- elements that no thread writes ---

@pytest.mark.parametrize("target", ["emu:sm_75", "emu:sm_80", "emu:gfx942"])
def test_writes_that_are_lost_are_reported(emulator, target):
    """Each store and asynchronous copy of the program is left out alone: what it would have written, no thread writes."""
    @T.prim_func
    def program(A: T.Tensor((40, 48), "float32"), B: T.Tensor((40, 48), "float32"), C: T.Tensor((48,), "float32")):
        with T.Kernel(1, threads=THREADS):
            s, r = T.alloc_shared((40, 48), "float32"), T.alloc_fragment((48,), "float32")
            T.copy(A, s)
            for i, j in T.Parallel(40, 48):
                B[i, j] = s[i, j] + 1
            for j in T.Parallel(48):
                T.atomic_add(C[j], 1.0)
            if T.get_thread_binding() < 32:
                T.fill(B[4, :], 2.0)

    a = np.random.default_rng(8).standard_normal((40, 48)).astype(np.float32)
    module, tensors = emulator.module(program.serialized), [(a, "float32"), (np.zeros((40, 48), np.float32), "float32"),
                                                            (np.zeros(48, np.float32), "float32")]
    clean = emulator.call(module, target, tensors, check=1)[1]
    assert clean["finished"] and not clean["findings"] and clean["writes"] >= 3, clean
    for write in range(clean["writes"]):
        found = emulator.call(module, target, tensors, check=1, lost=write)[1]["findings"]
        unwritten = [finding for finding in found if finding["kind"] == "unwritten element"]
        assert unwritten and unwritten[0]["statement"] > 0 and "the statement says it writes" in unwritten[0]["message"], (write, found)
        assert "[" in unwritten[0]["message"], unwritten[0]


@pytest.mark.parametrize("target", ["emu:sm_90a", "emu:gfx942"])
def test_a_loop_that_stores_what_it_read_is_no_lost_write(emulator, target):
    """LLVM leaves out a store of an element's own value, and nothing is lost with it."""
    @T.prim_func
    def program(A: T.Tensor((200,), "float32"), B: T.Tensor((200,), "float32")):
        with T.Kernel(1, threads=THREADS):
            for i in T.Parallel(200):
                A[i] = A[i]
            for i in T.Parallel(200):
                B[i] = A[i]

    a = np.random.default_rng(9).standard_normal(200).astype(np.float32)
    after = run(emulator, program, target, a, np.full(200, np.nan, np.float32))
    assert not isinstance(after, str) and np.array_equal(after[1], a)
