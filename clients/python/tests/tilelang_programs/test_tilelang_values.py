# SPDX-License-Identifier: Apache-2.0
"""What TileLang's helpers make up, compare and measure, by the values: those that scripts rely on without saying so."""

import contextlib
import sys
import types

import numpy as np
import pytest

import kiln
import numpy_torch
from kiln.language.dtypes import as_dtype
from kiln.profiler import Profiler, TensorSupplyType, assert_close, supply
from numpy_torch import tensor

MANY = (100, 200)


@pytest.fixture
def values(monkeypatch):
    return numpy_torch.install(monkeypatch)


def drawn(kind, dtype):
    return np.asarray(supply(MANY, as_dtype(dtype), TensorSupplyType[kind], "cpu"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16", "float64", "int32", "int64", "float8_e4m3fn"])
def test_normal_is_of_mean_minus_one_and_randn_of_mean_zero(values, dtype):
    normal, randn = drawn("Normal", dtype), drawn("Randn", dtype)
    if "float" in dtype:
        assert abs(normal.mean() + 1) < 0.05 and abs(normal.std() - 1) < 0.05
        assert abs(randn.mean()) < 0.05 and abs(randn.std() - 1) < 0.05
    else:
        assert normal.mean() < -0.4 and abs(randn.mean()) < 0.05, "cut towards zero"


@pytest.mark.parametrize("kind, dtype, low, high", [
    ("Uniform", "float32", -1, 1), ("Auto", "float16", -1, 1), ("Auto", "bfloat16", -1, 1), ("Auto", "float32", -1, 1),
    ("Auto", "float64", -2, 2), ("Auto", "int8", -2, 2), ("Auto", "int32", -2, 2), ("Auto", "uint8", 0, 2), ("Auto", "bool", 0, 1),
    ("Auto", "float8_e5m2", -128, 127),
    ("Integer", "float32", -2, 2), ("Integer", "float16", -2, 2), ("Integer", "int8", -2, 2), ("Integer", "uint32", 0, 2), ("Integer",
        "bool", 0, 1),
    ("Integer", "float8_e4m3fn", -128, 127), ("Uniform", "int8", 1, 1), ("Normal", "int8", 1, 1), ("Zero", "float16", 0, 0), ("One",
        "int32", 1, 1),
    ("Uniform", "int32", 0, 0),
])
def test_ranges(values, kind, dtype, low, high):
    made = drawn(kind, dtype).astype(np.float64)
    assert made.shape == MANY and low <= made.min() and made.max() <= high
    if kind not in ("Zero", "One") and low < high:
        assert made.min() < low + 0.1 and made.max() > high - 0.1, "to its ends"
    whole = kind != "Uniform" and kind != "Auto" or dtype not in ("float16", "float32", "bfloat16")
    assert (made == np.round(made)).all() == whole


def test_close_is_by_default_within_a_thousandth_for_999_of_1000(values):
    expected = tensor(np.zeros(1000))
    nearly = tensor(np.full(1000, 0.9e-3))
    assert assert_close(nearly, expected)
    with pytest.raises(AssertionError, match="1000 of 1000 elements"):
        assert_close(tensor(np.full(1000, 1.1e-3)), expected)
    assert assert_close(tensor(np.full(1000, 1.1e-3)), expected, atol=1e-2)
    one, two = np.zeros(1000), np.zeros(1000)
    one[5], two[5:7] = 1, 1
    assert assert_close(tensor(one), expected)
    with pytest.raises(AssertionError,
                       match=r"2 of 1000 elements \(0.200 %\) of lhs differ from rhs by more than .*; the first at \[5\]: lhs 1, rhs 0"):
        assert_close(tensor(two), expected, base_name="lhs", ref_name="rhs")
    assert assert_close(tensor(two), expected, max_mismatched_ratio=0.002)
    with pytest.raises(AssertionError, match="here: 2 of"):
        assert_close(tensor(two), expected, msg="here: ")


def test_what_is_printed(values, capsys):
    one = np.zeros(1000)
    one[5] = 1
    assert_close(tensor(one), tensor(np.zeros(1000)))
    assert capsys.readouterr().out == ""
    assert_close(tensor(one), tensor(np.zeros(1000)), verbose=True, base_name="lhs", ref_name="rhs")
    assert capsys.readouterr().out == "1 of 1000 elements of lhs differ from rhs; 1 may\n"


def test_nan(values):
    nan = tensor([np.nan])
    assert assert_close(nan, nan)
    with pytest.raises(AssertionError):
        assert_close(nan, nan, equal_nan=False)


def test_what_must_agree_beside_the_values(values):
    a = tensor(np.zeros((4, 4)))
    elsewhere, other_type = a.cpu(), tensor(np.zeros((4, 4)), np.float16)
    other_order, sparse = tensor(np.zeros((4, 4))).T, tensor(np.zeros((4, 4)))
    sparse.layout = "sparse_coo"
    for other, argument, what in ((elsewhere, "check_device", "device"), (other_type, "check_dtype", "dtype"), (sparse, "check_layout",
        "layout")):
        with pytest.raises(AssertionError, match=f"the {what} differs"):
            assert_close(a, other)
        assert assert_close(a, other, **{argument: False})
    assert assert_close(a, other_order)
    with pytest.raises(AssertionError, match=r"the stride\(\) differs: \(4, 1\) and \(1, 4\)"):
        assert_close(a, other_order, check_stride=True)
    with pytest.raises(AssertionError, match="the shape differs"):
        assert_close(a, tensor(np.zeros(16)))


class Clock:
    """torch's events on a device where each call takes so many milliseconds and the flush none."""

    def __init__(self, call=2.0):
        self.now, self.call, self.calls, self.flushed, self.device, self.used = 0.0, call, 0, None, "current", None
        clock = self

        class Event:
            def __init__(self, enable_timing=False):
                pass

            def record(self):
                self.at = clock.now

            def elapsed_time(self, other):
                return other.at - self.at

        class OnDevice(contextlib.nullcontext):
            def __init__(self, device):
                clock.used = device
                super().__init__()

        self.torch = types.ModuleType("torch")
        self.torch.int32 = "int32"
        self.torch.empty = self.empty
        self.torch.cuda = types.SimpleNamespace(Event=Event, synchronize=lambda: None, device=OnDevice)

    def empty(self, count, dtype, device):
        self.flushed = count * 4
        return types.SimpleNamespace(zero_=lambda: None)

    def __call__(self):
        self.calls += 1
        self.now += self.call


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setitem(sys.modules, "torch", clock.torch)
    return clock


def test_how_calls_are_measured(clock):
    assert kiln.do_bench(clock) == 2.0 and clock.flushed == 256 << 20 and clock.used is None
    assert clock.calls == 1 + 5 + 12 + 50
    clock.calls = 0
    assert kiln.do_bench(clock, 10, 20, cache_size=1, device=1, quantiles=[0.5, 1.0]) == [2.0, 2.0]
    assert clock.calls == 1 + 5 + 5 + 10 and clock.flushed == 1 << 20 and clock.used == 1
    clock.calls = 0
    kiln.do_bench(clock, _n_warmup=2, _n_repeat=3)
    assert clock.calls == 1 + 5 + 2 + 3


def test_what_is_hopeless_is_measured_no_further(clock):
    assert kiln.do_bench(clock, early_stop_baseline=1.9) == 2.0 and clock.calls == 1 + 5
    assert kiln.do_bench(clock, early_stop_baseline=1.9, quantiles=[0.1, 0.9]) == [2.0, 2.0]
    clock.calls = 0
    kiln.do_bench(clock, early_stop_baseline=2.1)
    assert clock.calls > 6


def test_keywords_that_nobody_knows(clock):
    with pytest.raises(TypeError, match="no_such_thing"):
        kiln.do_bench(clock, no_such_thing=1)
    with pytest.raises(TypeError, match="no_such_thing"):
        Profiler(clock).do_bench(no_such_thing=1)
    with pytest.raises(ValueError, match="use \"event\""):
        kiln.do_bench(clock, backend="sundial")
    for arguments in ({"backend": "cudagraph"}, {"backend": "cupti"}, {"fast_flush": False}):
        with pytest.warns(kiln.NoEffectWarning, match=rf"do_bench\({list(arguments)[0]}="):
            assert kiln.do_bench(clock, **arguments) == 2.0


def test_the_profiler_measures_likewise(clock):
    profiler = Profiler(lambda a: clock())
    assert profiler.do_bench(input_tensors=[1], device="cuda:1", early_stop_baseline=1.0) == 2.0
    assert clock.used == "cuda:1" and clock.calls == 6


def test_a_search_stops_early(monkeypatch, service, torch):
    import kiln.tuning

    asked = []
    times = iter([4.0, 10.0, 3.0, 5.0])

    def measured(function, *_, early_stop_baseline=None, **__):
        asked.append(early_stop_baseline)
        return next(times)

    @kiln.jit(target="cuda:sm_90")
    def lazy(block):
        import kiln.language as T

        @T.prim_func
        def f(A: T.Tensor((8,), "float32")):
            with T.Kernel(block):
                A[0] = 1.0

        return f

    monkeypatch.setattr(kiln.tuning, "do_bench", measured)
    monkeypatch.setattr(kiln.tuning, "targets", types.SimpleNamespace(device_target=lambda *_: "cuda:sm_90"))
    profile = kiln.tuning.ProfileArgs(early_stop=True, early_stop_factor=2.0, supply_prog=lambda params: [torch.empty(8)])
    result = kiln.tuning.Tuner(lazy, [{"block": b} for b in (1, 2, 3, 4)], profile).run()
    assert asked == [None, 8.0, 8.0, 6.0] and result.config == {"block": 3}
