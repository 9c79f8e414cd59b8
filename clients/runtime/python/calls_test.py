# SPDX-License-Identifier: Apache-2.0
"""kiln._runtime.Calls over the fake driver."""

import gc
import sys

import numpy as np
import pytest
from runtime_test import Described, WithExchange, fake, kernel, last_launch, runtime  # noqa: F401: kernel is a fixture


class Plain(WithExchange):
    """With what Calls asks a tensor of torch."""

    requires_grad, negated = False, False

    def is_neg(self):
        return self.negated


class Constant:
    """As torch's dtypes: told apart by identity."""


class State:
    """What torch says of itself, and the results that were allocated."""

    def __init__(self):
        self.keys, self.mode, self.grad, self.made = 5, False, True, []

    def raw(self):
        return self.keys

    def empty(self, size, **keywords):
        self.made.append((size, keywords))
        return Plain(runtime.Array(size, "float32"), length=size[0])


@pytest.fixture
def state():
    return State()


@pytest.fixture
def calls(state):
    return runtime.Calls(tensors=(Plain, Described), constants=(Constant,), empty=state.empty, grad_enabled=lambda: state.grad,
                         watched=((lambda: state, "raw", (5, 7)), (lambda: state.mode, None, (0,))))


def plain(length=16, **how):
    return Plain(runtime.Array(length + 8, "float32").copy_from(np.arange(length + 8, dtype=np.float32)), length=length, **how)


def keep(calls, kernel, *arguments, shape=(16,)):
    return calls.keep(arguments, kernel, ((0, shape),), ((shape, {"dtype": "float32"}, shape),))


def test_a_known_call_is_launched(kernel, calls, state):
    a = plain()
    assert calls.called((a, None)) is NotImplemented
    assert keep(calls, kernel, a, None) is True
    for make in (calls.called, calls.launched):
        result = make((plain(), None))
        assert np.array_equal(result.array.numpy(), np.arange(16, dtype=np.float32)) and last_launch().stream == 0xABCD
        assert state.made.pop() == ((16,), {"dtype": "float32"})


def test_other_arguments_are_other_calls(kernel, calls):
    a, kind = plain(), Constant()
    kept = [(a, *rest) for rest in ((), (None,), (True,), (1,), (1.0,), (-1,), ("relu",), ("relu and more",), (kind,), (a,))]
    for number, arguments in enumerate(kept):
        assert [calls.called(others) is NotImplemented for others in kept] == [i >= number for i in range(len(kept))]
        assert keep(calls, kernel, *arguments)
    for others in ((False,), (2,), (1.5,), ("gelu",), (Constant(),), (plain(8),), ((),), (1 << 70,), (1, 1)):
        assert calls.called((a, *others)) is NotImplemented
    for arguments in ((plain(8),), (plain(code=0),), (plain(device_type=1),), (plain(offset=1),), (Described(a.array),), (3,), (), [a]):
        assert calls.called(arguments) is NotImplemented
    assert not keep(calls, kernel, a, []) and not calls.keep((3,), kernel, (), ())


def test_what_is_in_the_way_of_a_known_call(kernel, calls, state):
    a = plain()
    keep(calls, kernel, a)
    for name, value in (("keys", 6), ("mode", True)):
        usual = getattr(state, name)
        setattr(state, name, value)
        assert calls.called((a,)) is NotImplemented and calls.launched((a,)) is not NotImplemented
        setattr(state, name, usual)
    state.keys = 7
    assert calls.called((a,)) is not NotImplemented
    a.requires_grad = True
    assert calls.called((a,)) is NotImplemented
    state.grad = False
    assert calls.called((a,)) is not NotImplemented
    a.negated = True
    assert calls.called((a,)) is NotImplemented
    subclass = type("Subclass", (Plain,), {})(a.array, length=16)
    assert calls.called((subclass,)) is NotImplemented and calls.launched((subclass,)) is NotImplemented


def test_a_call_that_is_forgotten_while_it_is_made(kernel, calls, state):
    """By what runs meanwhile, as other threads may."""
    a = plain()

    def forgets():
        for number in range(5000):
            keep(calls, kernel, a, number)
        return False

    calls = runtime.Calls(tensors=(Plain,), constants=(), empty=state.empty, grad_enabled=bool, watched=((forgets, None, (0,)),))
    keep(calls, kernel, a, "first")
    assert calls.called((a, "first")) is not NotImplemented
    assert calls.called((a, "first")) is NotImplemented


def test_a_call_is_kept_for_a_kernel_that_fits(kernel, calls):
    a = plain()
    with pytest.raises(TypeError, match="takes a kernel of this module"):
        keep(calls, len, a)
    for inputs, outputs in (((), ()), (((0, (16,)),), ()), (((0, (16,)), (0, (16,))), (((16,), {}, (16,)),))):
        assert not calls.keep((a,), kernel, inputs, outputs), "as it takes other things, too"
    with pytest.raises(ValueError, match="an input is no tensor of the call"):
        calls.keep((a,), kernel, ((1, (16,)),), (((16,), {}, (16,)),))
    with pytest.raises(TypeError):
        calls.keep((a,), kernel, ((0, ("x",)),), (((16,), {}, (16,)),))
    assert calls.called((a,)) is NotImplemented


def test_a_known_call_that_fails(kernel, calls, state):
    """The driver's errors are the call's own; what else does not fit goes the long way, which says it."""
    a = plain()
    keep(calls, kernel, a)
    fake.kiln_fake_fail(b"cuLaunchKernel", 700)
    with pytest.raises(runtime.DriverError, match="went outside a tensor"):
        calls.called((a,))
    calls.keep((a,), kernel, ((0, (16,)),), (((8,), {}, (8,)),))
    assert calls.called((a,)) is NotImplemented
    state.empty = None
    keep(calls, kernel, a)
    refusing = runtime.Calls(tensors=(Plain,), constants=(), empty=lambda *_, **__: 1 / 0, grad_enabled=bool, watched=())
    keep(refusing, kernel, a)
    assert refusing.called((a,)) is NotImplemented


def test_several_results_are_a_tuple_and_nothing_leaks(kernel, calls, state):
    a = plain()
    keep(calls, kernel, a, None)
    counts = [sys.getrefcount(o) for o in (a, kernel, calls, None, NotImplemented)]
    for _ in range(1000):
        calls.called((a, None))
        calls.called((a, 1))
        keep(calls, kernel, a, None)
    state.made.clear()
    gc.collect()
    after = [sys.getrefcount(o) for o in (a, kernel, calls, None, NotImplemented)]
    assert all(abs(x - y) < 500 for x, y in zip(counts, after)), (counts, after)
    kept = sys.getrefcount(kernel)
    del calls
    gc.collect()
    assert sys.getrefcount(kernel) <= kept
