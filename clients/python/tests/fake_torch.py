# SPDX-License-Identifier: Apache-2.0
"""A torch without arithmetic: tensors are a shape, a dtype and a device. Enough for a script that compiles kernels, calls them and compares
what they return to run to its end where there is neither torch nor a GPU; what it computes is not looked at."""

import importlib.abc
import importlib.machinery
import sys
import types


class dtype:
    def __init__(self, name, itemsize, is_floating_point):
        self.name, self.itemsize, self.is_floating_point = name, itemsize, is_floating_point

    def __repr__(self):
        return f"torch.{self.name}"


_DTYPES = {name: dtype(name, size, "float" in name) for name, size in {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2,
    "uint32": 4, "uint64": 8, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1}.items()}
_ALIASES = {"half": "float16", "float": "float32", "double": "float64", "int": "int32", "long": "int64", "short": "int16"}


class Size(tuple):
    def numel(self):
        return _product(self)


def _product(shape):
    total = 1
    for extent in shape:
        total *= extent
    return total


class device:
    def __init__(self, kind="cuda", index=0):
        self.type, self.index = str(kind).split(":")[0], index

    def __repr__(self):
        return f"{self.type}:{self.index}"

    def __eq__(self, other):
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self):
        return hash((self.type, self.index))


class Tensor:
    def __init__(self, shape, dtype=None, device_="cpu"):
        self.shape, self.dtype = Size(int(d) for d in shape), dtype or _DTYPES["float32"]
        self.device = device_ if isinstance(device_, device) else device(device_)

    def _like(self, shape=None, dtype=None, device_=None):
        return Tensor(self.shape if shape is None else shape, dtype or self.dtype, device_ or self.device)

    layout = "strided"

    def backward(self, gradient=None, **_):
        return self._backward(gradient or self) if "_backward" in self.__dict__ else None

    @property
    def grad(self):
        return self._like()

    @grad.setter
    def grad(self, value):
        pass

    def stride(self, dim=None):
        strides, step = [], 1
        for extent in reversed(self.shape):
            strides.insert(0, step)
            step *= extent
        return tuple(strides) if dim is None else strides[dim]

    def size(self, dim=None):
        return self.shape if dim is None else self.shape[dim]

    def dim(self):
        return len(self.shape)

    ndim = property(dim)

    def numel(self):
        return _product(self.shape)

    def element_size(self):
        return self.dtype.itemsize

    def is_contiguous(self):
        return True

    def new_empty(self, shape, dtype=None):
        return self._like(shape, dtype)

    def new_full(self, shape, value, dtype=None):
        return self._like(shape, dtype)

    new_zeros = new_empty

    def flatten(self, first, last):
        last = last % len(self.shape)
        return self._like([*self.shape[:first], _product(self.shape[first : last + 1]), *self.shape[last + 1 :]])

    def sum(self, dim):
        return self._like([extent for axis, extent in enumerate(self.shape) if axis != dim % len(self.shape)])

    def expand(self, shape):
        return self._like(shape)

    def squeeze(self, dim):
        return self.sum(dim)

    def as_strided(self, shape, strides):
        return self._like(shape)

    @property
    def mT(self):
        return self.transpose(-1, -2)

    def cuda(self):
        return self._like(device_=device("cuda"))

    def cpu(self):
        return self._like(device_=device("cpu"))

    def to(self, *args, dtype=None, device=None, **_):
        for arg in args:
            if isinstance(arg, type(self.dtype)):
                dtype = arg
            elif isinstance(arg, str):
                device = arg
        return self._like(dtype=dtype, device_=device)

    def type(self, dtype):
        return self._like(dtype=dtype)

    def reshape(self, *shape):
        shape = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else list(shape)
        if -1 in shape:
            at = shape.index(-1)
            shape[at] = self.numel() // max(1, -_product(shape))
        return self._like(shape)

    view = reshape

    def transpose(self, a, b):
        shape = list(self.shape)
        shape[a], shape[b] = shape[b], shape[a]
        return self._like(shape)

    def permute(self, *dims):
        dims = dims[0] if isinstance(dims[0], (tuple, list)) else dims
        return self._like([self.shape[d] for d in dims])

    @property
    def T(self):
        return self._like(self.shape[::-1])

    def t(self):
        return self.T

    def unsqueeze(self, dim):
        shape = list(self.shape)
        shape.insert(dim if dim >= 0 else len(shape) + 1 + dim, 1)
        return self._like(shape)

    def item(self):
        return 0

    def tolist(self):
        return [0] * self.shape[0] if len(self.shape) == 1 else []

    def __matmul__(self, other):
        return self._like([*self.shape[:-1], other.shape[-1]])

    def __getitem__(self, key):
        shape = []
        keys = list(key) if isinstance(key, tuple) else [key]
        for axis, extent in enumerate(self.shape):
            if axis >= len(keys):
                shape.append(extent)
            elif isinstance(keys[axis], slice):
                shape.append(len(range(*keys[axis].indices(extent))))
        return self._like(shape)

    def __setitem__(self, key, value):
        pass

    def __len__(self):
        return self.shape[0] if self.shape else 0

    def __bool__(self):
        return True

    def __float__(self):
        return 0.0

    def __int__(self):
        return 0

    __index__ = __int__

    def __format__(self, spec):
        return format(0.0, spec)

    def __iter__(self):
        return iter([self._like(self.shape[1:]) for _ in range(self.shape[0])])

    def _broadcast(self, other=None, *_):
        if not isinstance(other, Tensor):
            return self._like()
        rank = max(len(self.shape), len(other.shape))
        ours, theirs = ((1,) * (rank - len(t.shape)) + tuple(t.shape) for t in (self, other))
        return self._like([b if a == 1 else a for a, b in zip(ours, theirs)])

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _broadcast
    __iadd__ = __isub__ = __imul__ = __itruediv__ = __neg__ = __mod__ = __floordiv__ = __and__ = __or__ = __lshift__ = __rshift__ = _broadcast
    __lt__ = __le__ = __gt__ = __ge__ = __invert__ = _broadcast

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _DTYPES or name in _ALIASES:
            return lambda: self._like(dtype=_DTYPES[_ALIASES.get(name, name)])
        return lambda *args, **kwargs: self._like()


def _create(*shape, size=None, dtype=None, device="cpu", **_):
    if size is not None:
        shape = size
    elif len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = shape[0]
    return Tensor([s for s in shape], dtype, device)


class Event:
    def __init__(self, enable_timing=False):
        pass

    def record(self, stream=None):
        pass

    def elapsed_time(self, other):
        return 1.0

    def synchronize(self):
        pass


class _Anything(types.ModuleType):
    """A module in which every other name is a function that gives its first tensor argument back."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Callable(f"{self.__name__}.{name}")


class _Callable(_Anything):
    def __call__(self, *args, **kwargs):
        return _passthrough(*args, **kwargs)


def _passthrough(*args, **kwargs):
    if len(args) == 1 and callable(args[0]) and not kwargs and not isinstance(args[0], Tensor):
        return args[0]  # used as a decorator
    tensors = [a for a in args if isinstance(a, Tensor)]
    return tensors[0]._like() if tensors else Tensor((1,))


class _Context:
    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def __call__(self, function):
        return function


def _nothing(*args, **kwargs):
    return None


class _Saved:
    """What a custom function keeps between its two passes."""

    saved_tensors = ()
    needs_input_grad = (True,) * 16

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors


class _Function:
    @classmethod
    def apply(cls, *args):
        context = _Saved()
        result = cls.forward(context, *args)
        for tensor in result if isinstance(result, tuple) else (result,):
            tensor._backward = lambda *gradients: cls.backward(context, *gradients)
        return result


def make():
    """(module, finder for its submodules)"""
    torch = _Anything("torch")
    torch.__path__, torch.__version__ = [], "2.9.0"
    torch.Tensor, torch.Size, torch.dtype, torch.device = Tensor, Size, dtype, device
    for name, value in _DTYPES.items():
        setattr(torch, name, value)
    for alias, name in _ALIASES.items():
        setattr(torch, alias, _DTYPES[name])
    for name in ("randn", "rand", "empty", "zeros", "ones"):
        setattr(torch, name, _create)
    torch.full = lambda shape, value, **kwargs: _create(*shape, **kwargs)
    torch.randint = lambda *args, size=None, **kwargs: _create(*(size or next(a for a in args if isinstance(a, (tuple, list)))), **kwargs)
    torch.arange = lambda *args, **kwargs: _create(args[0] if len(args) == 1 else args[1] - args[0], **_only(kwargs))
    torch.tensor = lambda value, **kwargs: Tensor((len(value),) if isinstance(value, (list, tuple)) else (), kwargs.get("dtype"),
                                                  kwargs.get("device", "cpu"))
    torch.strided = Tensor.layout
    torch.no_grad = torch.inference_mode = _Context
    torch.random = _Anything("torch.random")
    torch.manual_seed = torch.random.manual_seed = _nothing
    torch.allclose = lambda *args, **kwargs: True
    torch.cuda = _Anything("torch.cuda")
    torch.cuda.Event, torch.cuda.is_available, torch.cuda.current_device = Event, lambda: True, lambda: 0
    torch.cuda.get_device_capability = lambda *args: (9, 0)
    torch.cuda.get_device_properties = lambda *args: types.SimpleNamespace(multi_processor_count=132, name="fake", major=9, minor=0)
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = _nothing
    torch.cuda.device_count = lambda: 1
    for name in ("testing", "nn", "autograd"):
        setattr(torch, name, _Anything(f"torch.{name}"))
    torch.testing.assert_close = _nothing
    torch.nn.functional, torch.nn.Module = _Anything("torch.nn.functional"), _Context
    torch.autograd.Function = _Function
    return torch


def _only(kwargs):
    return {k: v for k, v in kwargs.items() if k in ("dtype", "device")}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Any module below torch, and packages that scripts compare themselves with."""

    def __init__(self, torch):
        self.torch = torch

    def find_spec(self, name, path=None, target=None):
        if name.startswith("torch."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        at = self.torch
        for part in spec.name.split(".")[1:]:
            at = at.__dict__.setdefault(part, _Anything(spec.name))
        return at

    def exec_module(self, module):
        module.__dict__.setdefault("__path__", [])


def install(monkeypatch):
    """``import torch`` gives the fake for the time of a test."""
    torch = make()
    finder = _Finder(torch)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for name in [n for n in sys.modules if n == "torch" or n.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch
