# SPDX-License-Identifier: Apache-2.0
"""Which calls of a jit or autotuned function share a kernel or a search, and what those that do are spared."""

import numpy as np
import pytest

import kiln
import kiln.language as T
import kiln.tuning
from kiln._calls import Calls, freeze
from kiln.profiler import cloned


@pytest.fixture
def launches(service, torch, monkeypatch):
    """(kernel, its arguments) of each launch; nothing is computed."""
    launches = []
    monkeypatch.setattr(kiln.Kernel, "__call__", lambda kernel, *args: launches.append((kernel, args)))
    return launches


@pytest.fixture
def searched(launches, monkeypatch):
    """The same; every configuration is called once, and the first is the fastest."""
    monkeypatch.setattr(kiln.tuning, "do_bench", lambda call, *args, **kwargs: (call(), len(launches))[1])
    return launches


def scaled(A, factor, runtime=True, block=32):
    M = T.const("M")
    A: T.Tensor((M,), "float32")
    if runtime:
        factor: T.float32
    C = T.empty((M,), "float32")
    with T.Kernel(T.ceildiv(M, block)) as bx:
        for i in T.Parallel(block):
            C[bx * block + i] = A[bx * block + i] * factor
    return C


def baked(launch):
    """What the launched kernel multiplies by."""
    return launch[0].prim_func.script().rsplit("*", 1)[1].strip()


SIXTY_FOUR = np.zeros(64, np.float32)


@pytest.mark.parametrize("decorate", [kiln.jit, lambda f: kiln.autotune(configs={"block": [16, 32]}, warmup=1, rep=1)(kiln.jit(f))])
def test_an_argument_may_be_a_scalar_of_one_specialisation_and_a_constant_of_another(searched, decorate):
    function, seen = decorate(scaled), []
    for factor, runtime in ((2.0, True), (4.0, False), (5.0, False), (3.0, True), (4.0, False)):
        function(SIXTY_FOUR, factor, runtime=runtime)
        seen.append((baked(searched[-1]), searched[-1][1][1:]))
    assert seen == [("factor", (2.0,)), ("4.0", ()), ("5.0", ()), ("factor", (3.0,)), ("4.0", ())]


def test_a_search_by_names_alone_is_not_the_one_for_tensors(searched, monkeypatch):
    tuned = kiln.autotune(configs={"block": [16, 32]}, warmup=1, rep=1)(kiln.jit(scaled))
    monkeypatch.setattr(kiln.tuning.Tuner, "_measure", lambda tuner, kernel: 1.0)
    assert tuned.tune(M=64).kernel.prim_func.params[0].buffer.shape == (64,)
    assert tuned.compile(M=32).prim_func.params[0].buffer.shape == (32,)
    for extent in (64, 128):
        tuned(np.zeros(extent, np.float32), 2.0)
        assert searched[-1][0].prim_func.params[0].buffer.shape == (extent,)


def test_a_search_is_one_for_strides(searched):
    @kiln.autotune(configs={"block": [16, 32]}, warmup=1, rep=1)
    @kiln.jit
    def rows(A, block=32):
        M, N = T.const("M, N")
        A: T.StridedTensor((M, N), (T.const("S"), 1), "float32")
        B = T.empty((M,), "float32")
        with T.Kernel(M, threads=block) as bx:
            B[bx] = A[bx, 0]
        return B

    wide = np.zeros((4, 16), np.float32)
    for array, stride in ((np.zeros((4, 8), np.float32), 8), (wide[:, :8], 16)):
        rows(array)
        assert searched[-1][0].prim_func.params[0].buffer.strides == (stride, 1)


def test_known_calls_bind_trace_and_expand_nothing(searched, monkeypatch):
    expansions = []
    jit = kiln.jit(scaled)
    tuned = kiln.autotune(configs=lambda *args, **kwargs: expansions.append(args) or {"block": [16, 32]}, warmup=1, rep=1)(jit)
    given = {"block": 8, "runtime": True}
    tuned(SIXTY_FOUR, 2.0)
    tuned(SIXTY_FOUR, 2.0, **given)
    jit(SIXTY_FOUR, 2.0)
    count = len(expansions)
    monkeypatch.setattr(jit, "_bind", lambda *_: pytest.fail("the arguments are bound again"))
    for factor in (3.0, 4.0):
        for call, keywords, block in ((tuned, {}, 16), (tuned, given, 8), (jit, {}, 32)):
            call(SIXTY_FOUR, factor, **keywords)
            kernel, arguments = searched[-1]
            assert arguments == (SIXTY_FOUR, factor) and kernel.prim_func.kernels[0].grid[0].value == 64 // block
    assert len(expansions) == count


def test_new_values_of_scalars_are_not_traced(launches, monkeypatch):
    from kiln import functions

    traced = []
    trace = functions.fn.trace_eager
    monkeypatch.setattr(functions.fn, "trace_eager", lambda *args, **kwargs: traced.append(args) or trace(*args, **kwargs))
    jit = kiln.jit(scaled)
    for factor in range(20):
        jit.launch_arguments((SIXTY_FOUR, float(factor)), {})
    assert len(traced) == 1


def test_timing_writes_copies_and_the_call_the_callers_tensor_once(service, torch, monkeypatch):
    @kiln.autotune(configs={"block": [16, 32]}, warmup=1, rep=1)
    @kiln.jit
    def add_one(A, B, block=16):
        M = T.const("M")
        A: T.Tensor((M,), "float32")
        B: T.Tensor((M,), "float32")
        with T.Kernel(T.ceildiv(M, block)) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = B[bx * block + i] + A[bx * block + i]

    found = []

    def launch(kernel, a, b):
        found.append((a is ones, float(b[0])))
        b += a

    monkeypatch.setattr(kiln.Kernel, "__call__", launch)
    monkeypatch.setattr(kiln.tuning, "do_bench", lambda call, *args, **kwargs: (call(), call(), 1.0)[2])
    ones, sums = np.ones(64, np.float32), np.zeros(64, np.float32)
    add_one(ones, sums)
    assert sums.max() == 1, "the call itself"
    assert found == [(True, 0.0), (True, 1.0)] * 2 + [(True, 0.0)], "each configuration starts from what the caller passed"


def test_copies_keep_strides():
    whole = np.arange(24, dtype=np.int32).reshape(4, 6)
    for array in (whole, whole.T, whole[::2, 1:4], whole[::-1, ::-2], whole[:0]):
        copy = cloned(array)
        assert np.array_equal(copy, array) and copy.strides == array.strides and not np.shares_memory(copy, array)


def test_equal_arguments_that_mean_different_things():
    apart = [1, 1.0, True, np.float32(1), np.int64(1), 0.0, -0.0, (1,), (1.0,), (True,), np.zeros(1, np.int32), np.zeros(1, np.float32)]
    calls = Calls(["x"])
    for number, value in enumerate(apart, 1):
        assert calls.find((value,), {}) is None, repr(value)
        calls.keep((value,), {}, number, frozenset())
    assert [calls.find((value,), {}) for value in apart] == [*range(1, len(apart) + 1)]
    assert len({freeze(value) for value in apart[:7]}) == 7
