# SPDX-License-Identifier: Apache-2.0
"""Addresses of device memory as parameters and as elements of tensors (T.ptr), and tensors that lie at them (T.make_tensor).

A parameter of the type T.ptr becomes the tensor that the program makes of it. A tensor at an address that is computed in a kernel is seen through a
hidden parameter: all memory from ``Memory.BASE`` on, as elements of the tensor's dtype."""

from __future__ import annotations

from . import trace as tr
from .affine import finds
from .buffer import Buffer, as_shape
from .dtypes import as_dtype, int64
from .expr import Expr, Operators, Var, as_expr, binary, cast, const, constant_value, logical, masked
from .program import AtAddress
from .views import View


class _PointerType:
    """The type of an address. ``a: T.ptr`` is a parameter, given as a number (``tensor.data_ptr()``) or as a tensor, of which T.make_tensor makes a
    tensor. ``T.Tensor((n,), T.ptr)`` is a tensor of addresses, int64. Called, it stands for an argument where kernels are compiled ahead.
    Shapes: a scalar. Dtypes: int64. Targets: cuda and hip, by a launch in the process whose addresses they are; the emulator takes tensors for such
    parameters, and no addresses. Errors: none."""

    is_pointer = True

    def __call__(self, dtype=None, storage_scope="global"):
        return _SomeAddress()

    def __repr__(self):
        return "T.ptr"


class _SomeAddress:
    """An argument that is not known yet."""


ptr = _PointerType()


class Pointer(Operators):
    """A parameter of this type. ``param``: what the function has for it, a number until a tensor is made."""

    __slots__ = ("made", "number", "param")

    def __init__(self, param):
        self.param, self.number, self.made = param, param.var.expr, None

    def as_scalar(self) -> Expr:
        if self.made is not None:
            raise tr.error(f"{self.param.name} is used as a number, and T.make_tensor made a tensor of it: index that, or pass the address twice")
        return self.number

    def __repr__(self):
        return f"{self.param.name}: pointer"


class Memory(Buffer):
    """All memory from an address on, as elements of one dtype."""

    BASE = 4096  # no tensor lies below
    BYTES = 1 << 52

    def __init__(self, dtype):
        super().__init__("GLOBAL", (self.BYTES // dtype.bytes,), dtype, f"memory_{dtype}")


class _Pointed(View):
    """A tensor at an address: ``first`` is the number of its first element in a Memory."""

    def __init__(self, memory: Memory, first: Expr, shape, strides, name: str):
        Buffer.__init__(self, "GLOBAL", shape, memory.dtype, name)
        self.base, self.first, self.steps = memory, first, strides or _row_major(self.shape)

    def _moved(self, index) -> tuple:
        place, inside = self.first, as_expr(True)
        for at, extent, step in zip(index, self.shape, self.steps):
            at = as_expr(at)
            place = place + cast(at, int64) * cast(step, int64)
            inside = logical("AND", inside, logical("AND", binary("GE", at, 0), binary("LT", at, extent)))
        return [place], inside

    def load(self, index, of_base) -> Expr:
        at, inside = self._moved(index)
        return masked(inside, of_base(self.base, at), const(self.pad_value or 0, self.dtype))


def _row_major(shape) -> list:
    steps, step = [], 1
    for extent in reversed(shape):
        steps.insert(0, step)
        step = extent * step
    return steps


def make_tensor(ptr, shape, dtype="float32", strides=None):
    """The tensor that lies at an address: of a parameter of the type T.ptr, or of an int64 as a T.Tensor of T.ptr holds them. Its elements lie
    row by row without gaps, or as ``strides`` say. One at an address that is computed in a kernel goes by single elements, without tensor
    copies and pipelines, and all tensors of such a function may overlap.
    Shapes: any; of a T.ptr parameter its dimensions are Python ints, or follow from the function's scalar parameters. Dtypes: any of 8 bits or
    more. Targets: as T.ptr. Errors: TraceError for another dimension, for two tensors of one parameter, for what is no address, and for one
    that is computed outside of T.Kernel. ValueError of a call on the emulator with addresses."""
    trace, dtype, shape = tr.current("T.make_tensor"), as_dtype(dtype), as_shape(shape)
    strides = None if strides is None else as_shape(strides)
    if isinstance(ptr, Pointer):
        return _of_parameter(trace, ptr, shape, dtype, strides)
    address = as_expr(ptr)
    if address.dtype not in ("int64", "uint64"):
        raise tr.error(f"T.make_tensor at {ptr!r}, of type {address.dtype}: an address is a T.ptr parameter, or an int64 of a T.Tensor of T.ptr")
    if trace.kernel is None:
        raise tr.error("T.make_tensor at an address that is computed stands in T.Kernel")
    if dtype.bits < 8:
        raise tr.error(f"T.make_tensor of {dtype}: elements of {dtype.bits} bits have no addresses of their own")
    memory = trace.func.memories.get(dtype)
    if memory is None:
        memory = trace.func.memories[dtype] = Memory(dtype)
    trace.views = True
    first = binary("SHR", cast(address, int64) - Memory.BASE, dtype.bytes.bit_length() - 1)
    return _Pointed(memory, tr.let("pointer", first), shape, strides, "tensor")


def make_tensor_from_addr(addr, shape, dtype="float32", strides=None, storage_scope="global"):
    """T.make_tensor at an address that is a number of the program.
    Shapes: as T.make_tensor. Dtypes: as T.make_tensor. Targets: as T.ptr. Errors: as T.make_tensor. TraceError for another ``storage_scope``."""
    if storage_scope != "global":
        raise tr.error(f"T.make_tensor_from_addr(storage_scope={storage_scope!r}): addresses are those of global memory")
    return make_tensor(addr, shape, dtype, strides)


def _of_parameter(trace, pointer: Pointer, shape, dtype, strides) -> Buffer:
    described = (tuple(shape), dtype, strides)
    if pointer.made is not None and pointer.made[0] != described:
        raise tr.error(f"T.make_tensor of {pointer.param.name}, of which a tensor is made already: T.view gives its memory another shape or dtype")
    if pointer.made is None:
        dims, steps = [_dim(d) for d in shape], None if strides is None else [_dim(s) for s in strides]
        param = pointer.param
        param.buffer, param.var = Buffer("GLOBAL", dims, dtype, param.name, steps), None
        param.address = AtAddress(tuple(shape), strides)
        pointer.made = (described, param.buffer)
    return pointer.made[1]


def _dim(dim):
    """A dimension as the launcher reads it off the tensor that stands for the address."""
    if constant_value(as_expr(dim)) is not None:
        return dim
    if finds(dim, lambda e: e.op == "LOAD" or e.op == "VAR" and e.value.kind != "SCALAR"):
        raise tr.error(f"T.make_tensor of a T.ptr parameter with the dimension {dim!r}: it must follow from the scalar parameters of the function")
    return Var("SYMBOL", dim.dtype, "extent").expr


__all__ = ["make_tensor", "make_tensor_from_addr", "ptr"]
