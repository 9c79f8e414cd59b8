# SPDX-License-Identifier: Apache-2.0
"""As much of torch as makes up and compares tensors, over numpy: what fake_torch does without, values."""

import sys
import types

import numpy as np

strided = "strided"


class Tensor(np.ndarray):
    layout, device = strided, "cuda:0"

    def __array_finalize__(self, source):
        self.layout, self.device = getattr(source, "layout", strided), getattr(source, "device", "cuda:0")

    def to(self, dtype):
        return self.astype(dtype) if isinstance(dtype, type) else self  # numpy has no eight-bit floats

    def double(self):
        return self.astype(np.float64)

    def cpu(self):
        copy = self.copy()
        copy.device = "cpu"
        return copy

    def to_dense(self):
        copy = self.copy()
        copy.layout = strided
        return copy

    def stride(self):
        return tuple(s // self.itemsize for s in self.strides)

    def numel(self):
        return self.size

    def abs(self):
        return np.abs(self)

    def nan_to_num(self, value):
        return np.where(np.isnan(self), value, self).view(Tensor)

    def nonzero(self):
        return np.argwhere(np.asarray(self))

    def uniform_(self, low, high):
        self[...] = np.random.default_rng(1).uniform(low, high, self.shape)
        return self

    def normal_(self, mean, deviation):
        self[...] = np.random.default_rng(1).normal(mean, deviation, self.shape)
        return self


def tensor(value, dtype=np.float32):
    return np.array(value, dtype).view(Tensor)


def install(monkeypatch):
    torch = types.ModuleType("torch")
    torch.Tensor, torch.strided = Tensor, strided
    for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        setattr(torch, name, getattr(np, name))
    torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2 = np.bool_, np.float32, "float8_e4m3fn", "float8_e5m2"
    torch.full = lambda shape, value, device=None: np.full(shape, value).view(Tensor)
    torch.empty = lambda shape, device=None, dtype=None: np.empty(shape, dtype).view(Tensor)
    torch.randn = lambda shape, device=None: np.random.default_rng(1).standard_normal(shape).view(Tensor)
    torch.randint = lambda low, high, shape, device=None, dtype=np.int64: np.random.default_rng(1).integers(low, high, shape,
        dtype=dtype).view(Tensor)
    torch.isclose = lambda a, b, **tolerances: np.isclose(a, b, **tolerances).view(Tensor)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch
