# SPDX-License-Identifier: Apache-2.0
"""Arguments that stand for tensors, and classes that derive from Triton's, as libraries of kernels have them."""

import numpy as np
import pytest
import triton
import triton.language as tl

rng = np.random.default_rng(3)


class Storage:
    def __init__(self, array):
        self.array = array

    def data_ptr(self):
        return self.array.ctypes.data

    def nbytes(self):
        return self.array.nbytes


class Pointer:
    """Into an array, at an element."""

    def __init__(self, array, place=0):
        self.array, self.place, self.dtype = array, place, array.dtype

    def data_ptr(self):
        return self.array.ctypes.data + self.place * self.array.itemsize


class Buffer(Pointer):
    def untyped_storage(self):
        return Storage(self.array)


@triton.jit
def scaled(X, Z, n, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(Z + at, tl.load(X + at * stride, at < n) * 2, at < n)


@pytest.mark.parametrize("place, stride, count", [(0, 1, 40), (39, -1, 40), (3, 2, 16)])
def test_an_object_that_points_into_memory(place, stride, count):
    x, z = rng.normal(size=40).astype(np.float32), np.zeros(64, np.float32)
    kernel = scaled[(1, 1, 1)](Buffer(x, place), Buffer(z, 8), count, stride, 64)
    np.testing.assert_array_equal(z[8 : 8 + count], 2 * x[place + stride * np.arange(count)])
    assert not z[:8].any() and not z[8 + count :].any()
    z[:] = 0
    kernel.run(1, 1, 1, 0, None, None, None, None, None, Buffer(x, place), Buffer(z, 8), count, stride)
    assert z.any()


def test_an_address_alone_is_one_of_a_device():
    with pytest.raises(TypeError, match=r"argument X: Pointer has an address alone"):
        scaled[(1,)](Pointer(np.zeros(4, np.float32)), np.zeros(4, np.float32), 4, 1, 4)


def test_an_object_in_place_of_a_tensor_that_it_overlaps():
    x = np.arange(48, dtype=np.float32)
    scaled[(1,)](Buffer(x), x[16:], 16, 1, 16)
    np.testing.assert_array_equal(x[16:32], 2 * np.arange(16))


class Picks(triton.runtime.Autotuner):
    """A tuner that measures by itself, with what Triton's has for those who derive from it."""

    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args))
        self.seen = {config.kwargs["BLOCK"]: self._bench(*args, config=config, **kwargs) for config in self.prune_configs(kwargs)}
        best = min(self.seen, key=self.seen.get)
        config = next(config for config in self.configs if config.kwargs["BLOCK"] == best)
        self.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()}, reset_only=True)
        return self.fn.run(*args, **kwargs, **config.all_kwargs())


def test_a_tuner_that_derives_from_tritons():
    x, z, hooked = rng.normal(size=40).astype(np.float32), np.full(64, 3, np.float32), []
    configs = [triton.Config({"BLOCK": block}) for block in (48, 64, 128)]
    def pruned(configs, given, **more):
        return [config for config in configs if config.kwargs["BLOCK"] < 4 * given["stride"]]

    kernel = Picks(scaled, scaled.arg_names, configs, ["n"], ["Z"], None, lambda given, reset_only: hooked.append((given["BLOCK"], reset_only)),
                   prune_configs_by={"early_config_prune": pruned})
    kernel[(1,)](x, z, 20, 20)
    assert sorted(kernel.seen) == [48, 64] and hooked[-1] == (48, True)
    np.testing.assert_array_equal(z[:2], 2 * x[:40:20])
    assert not z[20:].any()


@tl.constexpr
def wide(element):
    return tl.float32 if element.is_floating() else tl.int64


@triton.jit
def typed(X, Z, N: tl.constexpr, TYPE: tl.constexpr):
    p = tl.make_block_ptr(X, (N,), (1,), (0,), (N,), (0,))
    q = tl.make_block_ptr(Z, (N,), (1,), (0,), (N,), (0,))
    element: tl.constexpr = TYPE.value
    kind: tl.constexpr = wide(X.type.element_ty)
    tl.static_assert(kind == element)
    tl.store(q, (tl.load(p).to(kind) * 3).to(q.type.element_ty))


def test_types_of_block_pointers_and_functions_of_constants():
    x, z = np.arange(16, dtype=np.int8), np.zeros(16, np.int16)
    typed[(1,)](x, z, 16, tl.int64)
    np.testing.assert_array_equal(z, 3 * np.arange(16))
    assert typed.cache_key == triton.jit(typed.fn).cache_key


@triton.jit
def with_methods(X, Z, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(X + at)
    both, one = (x > 3).logical_and(at), x.logical_or(at == 2)
    tl.store(Z + at, both * 2 + one + x.cdiv(4) * 10)


def test_methods_of_values():
    x, z, at = rng.integers(0, 8, 16).astype(np.int32), np.zeros(16, np.int32), np.arange(16)
    with_methods[(1,)](x, z, 16)
    np.testing.assert_array_equal(z, ((x > 3) & (at > 0)) * 2 + ((x != 0) | (at == 2)) + (x + 3) // 4 * 10)


@tl.constexpr
def word_of(bits, signed):
    return tl.core.get_int_dtype(bits, signed)


@triton.jit
def as_words(X, Z, N: tl.constexpr):
    element: tl.constexpr = X.dtype.element_ty
    word: tl.constexpr = word_of(element.primitive_bitwidth, False)
    tl.store(Z + tl.arange(0, N), tl.load(X + tl.arange(0, N)).to(word, bitcast=True))


def test_a_function_of_constants_asks_for_a_type():
    x, z = rng.normal(size=16).astype(np.float16), np.zeros(16, np.uint16)
    as_words[(1,)](x, z, 16)
    np.testing.assert_array_equal(z, x.view(np.uint16))


def test_on_the_emulator_one_configuration_is_compiled():
    seen = []

    class Seen(triton.runtime.Autotuner):
        def _warmed(self, config, *rest):
            seen.append(config.kwargs["BLOCK"])
            if config.kwargs["BLOCK"] < 64:
                raise RuntimeError("too small")
            return super()._warmed(config, *rest)

    x, z = rng.normal(size=64).astype(np.float32), np.zeros(64, np.float32)
    kernel = Seen(scaled, scaled.arg_names, [triton.Config({"BLOCK": block}) for block in (16, 32, 64, 128, 256)], [], None, None)
    with pytest.warns(UserWarning, match="first configuration that compiles is taken: .*BLOCK: 64"):
        kernel[(1,)](x, z, 64, 1)
    assert seen == [16, 32, 64] and np.array_equal(z, 2 * x)
