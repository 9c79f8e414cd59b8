# SPDX-License-Identifier: Apache-2.0
"""kiln._runtime.Launches over the fake driver."""

import gc
import sys

import numpy as np
import pytest
from runtime_test import WithExchange, copy_artifact, fake, last_launch, runtime

COMPILED_IN, BY_VALUE, BY_DIVISOR, TYPED, REFUSED = 1, 2, 4, 8, 16
SETTINGS = (None, False)


class Storage:
    def __init__(self, array):
        self.array = array

    def data_ptr(self):
        return self.array.data_ptr()

    def nbytes(self):
        return self.array.nbytes


class Tensor(WithExchange):
    """With what Launches asks a tensor of torch."""

    def untyped_storage(self):
        return Storage(self.array)


class Descriptor:
    """With what Launches asks a descriptor."""

    def __init__(self, base, shape=(32,), strides=(1,), block_shape=(16,), padding="zero"):
        self.base, self.shape, self.strides, self.block_shape, self.padding = base, list(shape), list(strides), list(block_shape), padding


class Constant:
    """As Triton's types: told apart by identity."""


def tensor(elements=32, **how):
    return Tensor(runtime.Array(elements, "float32").copy_from(np.arange(elements, dtype=np.float32)), **how)


@pytest.fixture
def kernel():
    """It takes x, y, a number, and a size of the grid."""
    fake.kiln_fake_reset()
    artifact = copy_artifact(output=False, scalars=("I32", "I32"))
    return runtime.load(artifact.SerializeToString())


SOURCES = ((0, 0, 0), (0, 1, 0), (0, 2, 0), (2, 0, 0))


def launches(flags=BY_VALUE | BY_DIVISOR, **defaults):
    parameters = [("x", flags), ("y", flags), ("n", flags), ("BLOCK", COMPILED_IN)]
    return of(tuple((*p, defaults[p[0]]) if p[0] in defaults else p for p in parameters))


def of(parameters):
    return runtime.Launches(parameters=parameters, tensors=(Tensor,), constants=(Constant,), descriptors=(Descriptor,))


def keep(known, kernel, args, kwargs=None, result="kernel", sources=SOURCES, used=(), rank=1):
    return known.keep(args, kwargs or {}, SETTINGS, kernel, result, sources, used, rank)


def test_a_known_launch_is_made(kernel):
    known, x, y = launches(), tensor(), tensor()
    assert known.launched((x, y, 5, 64), {}, (3,), SETTINGS) is NotImplemented
    assert keep(known, kernel, (x, y, 5, 64))
    y.array.fill(0)
    for args, kwargs in (((x, y, 7, 64), {}), ((x, y), {"n": 7, "BLOCK": 64}), ((x,), {"BLOCK": 64, "n": 7, "y": y})):
        assert known.launched(args, kwargs, (3,), SETTINGS) == "kernel"
        assert last_launch().stream == 0xABCD and list(last_launch().params)[2:5] == [32, 7, 3], "elements, the number, the grid"
    assert np.array_equal(y.array.numpy(), np.arange(32, dtype=np.float32))
    count = fake.kiln_fake_launch_count()
    assert known.launched((x, y, 7, 64), {}, (3,), SETTINGS, True) == "kernel" and fake.kiln_fake_launch_count() == count
    known.forget()
    assert known.launched((x, y, 5, 64), {}, (3,), SETTINGS) is NotImplemented


def test_classes_of_arguments(kernel):
    x, y = tensor(), tensor()
    known = launches()
    keep(known, kernel, (x, y, 5, 64))
    for n, same in ((6, True), (-3, True), (2**31 - 1, True), (1, False), (16, False), (0, False), (2**31, False), (2**70, False), (5.0, False),
                    (True, False), (None, False), ("5", False)):
        assert (known.launched((x, y, n, 64), {}, (3,), SETTINGS) == "kernel") is same, n
    odd = tensor(33)
    assert known.launched((odd, y, 5, 64), {}, (3,), SETTINGS) is NotImplemented, "16 does not divide its elements"
    assert known.launched((tensor(64, length=3), y, 5, 64), {}, (3,), SETTINGS) is NotImplemented, "the kernel wants as many of y"
    for block in (65, 64.0, True, None, "64", (64,)):
        assert known.launched((x, y, 5, block), {}, (3,), SETTINGS) is NotImplemented
    for other in (tensor(code=0), tensor(device_type=1), runtime.Array(32, "float32"), 3, None):
        assert known.launched((other, y, 5, 64), {}, (3,), SETTINGS) is NotImplemented
    by_type = launches(flags=0)
    keep(by_type, kernel, (x, y, 5, 64))
    for n in (1, 16, 0):
        assert by_type.launched((x, y, n, 64), {}, (3,), SETTINGS) == "kernel"
    typed = launches(flags=TYPED)
    keep(typed, kernel, (x, y, 100, 64))
    for n, same in ((127, True), (128, False), (-128, False)):  # as many bits
        assert (typed.launched((x, y, n, 64), {}, (3,), SETTINGS) == "kernel") is same, n
    for n in (True, False):
        assert typed.launched((x, y, n, 64), {}, (3,), SETTINGS) is NotImplemented, "they are numbers there"
    assert not keep(launches(flags=REFUSED), kernel, (x, y, 5, 64))


def test_constants_options_and_settings(kernel):
    x, y, kind = tensor(), tensor(), Constant()
    known = launches()
    for block in (kind, (1, (2.0, "a")), "text of more than eight bytes"):
        keep(known, kernel, (x, y, 5, block), {"num_warps": 4})
        assert known.launched((x, y, 5, block), {"num_warps": 4}, (3,), SETTINGS) == "kernel"
        for kwargs, settings in (({"num_warps": 8}, SETTINGS), ({}, SETTINGS), ({"num_stages": 4}, SETTINGS), ({"num_warps": 4}, ("cuda", False))):
            assert known.launched((x, y, 5, block), kwargs, (3,), settings) is NotImplemented
    assert known.launched((x, y, 5, Constant()), {"num_warps": 4}, (3,), SETTINGS) is NotImplemented
    assert not keep(known, kernel, (x, y, 5, [1])) and not keep(known, kernel, (x, y, 5, 64), {"option": object()})
    assert not keep(known, kernel, (x, y, 5, 64), {"n": 5}) and not keep(known, kernel, (x, y, 5)) and not keep(known, kernel, (x, y, 5, 6, 7))
    by_default = launches(BLOCK=64)
    keep(by_default, kernel, (x, y, 5, 64))
    assert by_default.launched((x, y, 5), {}, (3,), SETTINGS) == "kernel"


def test_grids(kernel):
    x, y, seen = tensor(), tensor(), []
    known = launches()
    keep(known, kernel, (x, y, 5, 64))

    def grid(meta):
        seen.append(meta)
        return (meta["BLOCK"],)

    for given, size in ((3, 3), ((3,), 3), (grid, 64), (lambda meta: 9, 9)):
        assert known.launched((x, y, 5, 64), {}, given, SETTINGS) == "kernel" and last_launch().params[4] == size
    assert seen == [{"x": x, "y": y, "n": 5, "BLOCK": 64}]
    for given in ((3, 1), 0, (0,), (-1,), [3], ("3",), (3.0,), None):
        assert known.launched((x, y, 5, 64), {}, given, SETTINGS) is NotImplemented
    for given, problem in ((lambda meta: 1 / 0, ZeroDivisionError), (lambda: 3, TypeError)):
        with pytest.raises(problem):
            known.launched((x, y, 5, 64), {}, given, SETTINGS)


def test_memory_that_is_written_and_shared(kernel):
    whole = runtime.Array(64, "float32")
    known = launches()
    keep(known, kernel, (tensor(), tensor(), 5, 64))
    assert known.launched((Tensor(whole), Tensor(whole), 5, 64), {}, (3,), SETTINGS) is NotImplemented
    assert known.launched((Tensor(whole, offset=16), Tensor(whole), 5, 64), {}, (3,), SETTINGS) is NotImplemented


def test_tuples(kernel):
    x, y = tensor(), tensor()
    known = of((("pair", BY_VALUE | BY_DIVISOR), ("rest", BY_VALUE | BY_DIVISOR | TYPED)))
    sources = ((0, 0, 0), (0, 1, 0), (0, 3, 0), (2, 0, 0))  # behind the pair there is None, and "a" is compiled in
    assert keep(known, kernel, ((x, y), (None, "a", (5,))), sources=sources)
    assert known.launched(((x, y), (None, "a", (700,))), {}, (3,), SETTINGS) == "kernel"
    assert list(last_launch().params)[2:5] == [32, 700, 3], "numbers in tuples have no type of the annotation's"
    for args in (((x, y), (None, "b", (5,))), ((x, y), (None, "a", (1,))), ((x, y), (None, "a", (16,))), ((x, y), (None, "a", 5)),
                 ((x, y), (None, "a", (5, 5))), ((x,), (None, "a", (5,))), ([x, y], (None, "a", (5,))), ((x, y), (None, len, (5,))),
                 ((x, y), (Constant(), "a", (5,))), ((x, x), (None, "a", (5,)))):
        assert known.launched(args, {}, (3,), SETTINGS) is NotImplemented, args


def test_descriptors(kernel):
    x, y = Descriptor(tensor()), tensor()
    known = of((("x", BY_VALUE | BY_DIVISOR), ("y", BY_VALUE | BY_DIVISOR)))
    assert not keep(known, kernel, (x, y), sources=((0, 0, 0), (0, 9, 0), (0, 1, 0), (2, 0, 0)))
    assert keep(known, kernel, (x, y), sources=((0, 0, 0), (0, 3, 0), (0, 1, 0), (2, 0, 0)))
    assert known.launched((Descriptor(x.base, shape=[64]), y), {}, (3,), SETTINGS) == "kernel"
    assert list(last_launch().params)[2:5] == [32, 64, 3]
    for other in (Descriptor(x.base, shape=[31]), Descriptor(x.base, strides=[2]), Descriptor(x.base, block_shape=[32]),
                  Descriptor(x.base, padding="nan"), Descriptor(x.base, shape=[32, 1], strides=[1, 1], block_shape=[16, 1]), Descriptor(3),
                  Descriptor(y), x.base):
        assert known.launched((other, y), {}, (3,), SETTINGS) is NotImplemented
    x.shape = iter([32])
    assert known.launched((x, y), {}, (3,), SETTINGS) is NotImplemented and list(x.shape) == [32]
    del x.shape
    assert known.launched((x, y), {}, (3,), SETTINGS) is NotImplemented


def test_names_that_a_kernel_was_made_with(kernel):
    x, y, names = tensor(), tensor(), {"SIZE": 1}
    known = launches()
    keep(known, kernel, (x, y, 5, 64), used=((names, "SIZE", names["SIZE"]),))
    assert known.launched((x, y, 5, 64), {}, (3,), SETTINGS) == "kernel"
    names["SIZE"] = 1000
    assert known.launched((x, y, 5, 64), {}, (3,), SETTINGS) is NotImplemented
    names.clear()
    assert known.launched((x, y, 5, 64), {}, (3,), SETTINGS) is NotImplemented


def test_a_launch_is_kept_for_a_kernel_that_fits(kernel):
    known, x, y = launches(), tensor(), tensor()
    with pytest.raises(TypeError, match="takes a kernel of this module"):
        keep(known, len, (x, y, 5, 64))
    for sources in ((), SOURCES[:3], (*SOURCES[:3], (2, 1, 0)), ((0, 2, 0), *SOURCES[1:]), (*SOURCES[:2], (0, 1, 0), SOURCES[3]),
                    ((1, 0, 0), *SOURCES[1:]), ((0, 9, 0), *SOURCES[1:]), ((3, 0, 0), *SOURCES[1:])):
        assert not keep(known, kernel, (x, y, 5, 64), sources=sources)
    assert keep(known, kernel, (x, y, 5, 64), sources=((1, 0, 4), *SOURCES[1:]))
    fake.kiln_fake_fail(b"cuLaunchKernel", 700)
    with pytest.raises(runtime.DriverError, match="went outside a tensor"):
        known.launched((x, y, 5, 64), {}, (3,), SETTINGS)


def test_nothing_leaks(kernel):
    known, x, y = launches(), tensor(), tensor()
    kept = (x, y, kernel, known, None, NotImplemented, SETTINGS)
    counts = [sys.getrefcount(o) for o in kept]
    for _ in range(1000):
        keep(known, kernel, (x, y, 5, 64))
        known.launched((x, y, 5, 64), {}, lambda meta: (3,), SETTINGS)
        known.launched((x, y, 16, 64), {}, (3,), SETTINGS)
    gc.collect()
    described, within = Descriptor(x), of((("x", BY_VALUE), ("y", BY_VALUE)))
    kept = (*kept, described, within)
    counts += [sys.getrefcount(o) for o in kept[-2:]]
    for _ in range(1000):
        assert keep(within, kernel, (described, (y, 5)), sources=((0, 0, 0), (0, 3, 0), (0, 4, 0), (2, 0, 0)))
        assert within.launched((described, (y, 5)), {}, (3,), SETTINGS) == "kernel"
        within.launched((described, (y, 5, [])), {}, (3,), SETTINGS)
    gc.collect()
    assert all(abs(a - sys.getrefcount(o)) < 500 for a, o in zip(counts, kept))
    gc.collect()
    cycle = [launches()]
    keep(cycle[0], kernel, (x, y, 5, 64), result=cycle)
    del cycle
    assert gc.collect() >= 2, "a launch's result may hold its launches"
