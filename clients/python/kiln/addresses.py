# SPDX-License-Identifier: Apache-2.0
"""Calls of functions that take addresses: what the launcher gets for each."""

from __future__ import annotations

from .language.affine import evaluated
from .language.expr import as_expr, const, constant_value
from .language.pointers import Memory
from .language.program import PrimFunc


class Place:
    """A tensor of device memory that is known by its address alone, with what the launcher asks a tensor for."""

    is_cuda = True

    def __init__(self, address: int, dtype, shape, strides, device: int):
        self._address, self.dtype, self.shape, self._strides, self._device = address, f"torch.{dtype}", tuple(shape), tuple(strides), device

    def data_ptr(self) -> int:
        return self._address

    def stride(self) -> tuple:
        return self._strides

    def get_device(self) -> int:
        return self._device


def _row_major(shape) -> list:
    steps, step = [], 1
    for extent in reversed(shape):
        steps.insert(0, step)
        step *= extent
    return steps


def _address(value, name: str, device: int) -> int:
    if hasattr(value, "data_ptr"):
        if not getattr(value, "is_cuda", False) or value.get_device() != device:
            raise ValueError(f"{name}: the tensor is on {getattr(value, 'device', 'the host')}, and the kernel runs on GPU {device}")
        return value.data_ptr()
    if type(value) is int and value > 0:
        return value
    raise TypeError(f"{name} is an address: a number above 0, as tensor.data_ptr() gives, or a tensor of the device, not {value!r}")


def _check_room(tensor, param, shape, strides) -> None:
    """Whether the memory behind the tensor's first element holds all that the function may reach from there."""
    bits = param.buffer.dtype.bits * (1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides)) if all(shape) else 0)
    room = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
    if bits > 8 * room:
        raise ValueError(f"{param.name}: {list(shape)} elements of {param.buffer.dtype} take {bits // 8} bytes, and the tensor's memory has {room} "
                         "from its first element on")


class Addresses:
    """The calls of one function. ``needed``: whether it takes any."""

    def __init__(self, func: PrimFunc):
        self.params, self.outputs, self.memories = func.params[: func.given], set(func.outputs), list(func.memories)
        self.needed = bool(self.memories) or any(p.address is not None for p in self.params)

    def _places(self, args) -> list:
        """The parameters of a call's arguments: all, or those that are no outputs."""
        whole = len(args) == len(self.params)
        return [p for i, p in enumerate(self.params) if whole or i not in self.outputs]

    def on_device(self, args, device: int) -> list:
        """For a launch on the device."""
        params = self._places(args)
        scalars = self._scalars(params, args)
        result = [self._on_device(p, value, scalars, device) for p, value in zip(params, args)]
        return [*result, *args[len(params):], *(self._memory(dtype, device) for dtype in self.memories)]

    @staticmethod
    def _memory(dtype, device: int) -> Place:
        return Place(Memory.BASE, dtype, (Memory.BYTES // dtype.bytes,), (1,), device)

    def _on_device(self, param, value, scalars: dict, device: int):
        if param.address is None:
            return value
        address = _address(value, param.name, device)
        if param.buffer is None:
            return address
        shape, strides = self._extents(param, scalars)
        if hasattr(value, "untyped_storage"):
            _check_room(value, param, shape, strides)
        return Place(address, param.buffer.dtype, shape, strides, device)

    def on_host(self, args) -> list:
        """For a run by the daemon, which sees what travels to it: tensors alone."""
        params = self._places(args)
        if self.memories:
            raise ValueError("this kernel makes tensors of addresses that it computes (T.make_tensor), and those of this process mean nothing to the "
                             "emulator: run it on a GPU")
        scalars = self._scalars(params, args)
        return [self._on_host(p, value, scalars) for p, value in zip(params, args)] + list(args[len(params):])

    def _on_host(self, param, value, scalars: dict):
        if param.address is None:
            return value
        if isinstance(value, int) or not hasattr(value, "reshape"):
            raise ValueError(f"{param.name}: the emulator takes tensors for addresses, not {value!r}")
        shape, strides = self._extents(param, scalars)
        if list(strides) != _row_major(shape):
            raise ValueError(f"{param.name}: the emulator takes tensors whose elements lie row by row for addresses")
        count = 1
        for extent in shape:
            count *= extent
        if not _is_contiguous(value) or value.reshape(-1).shape[0] < count:
            raise ValueError(f"{param.name}: a contiguous tensor of {count} elements is needed")
        return value.reshape(-1)[:count].reshape(shape)

    @staticmethod
    def _scalars(params, args) -> dict:
        known = [(p.var, value) for p, value in zip(params, args) if p.var is not None and isinstance(value, (bool, int, float))]
        return {var.expr: const(value, var.dtype) for var, value in known}

    @staticmethod
    def _extents(param, scalars: dict) -> tuple:
        def number(dim):
            known = constant_value(evaluated(as_expr(dim), scalars))
            if known is None:
                raise TypeError(f"{param.name}: its dimension {dim!r} follows from no argument of this call")
            return int(known)

        shape = [number(d) for d in param.address.shape]
        return shape, _row_major(shape) if param.address.strides is None else [number(s) for s in param.address.strides]


def _is_contiguous(value) -> bool:
    return value.is_contiguous() if hasattr(value, "is_contiguous") else value.flags.c_contiguous
