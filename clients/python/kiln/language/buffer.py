# SPDX-License-Identifier: Apache-2.0
"""Buffers, boxes of buffers, and what indexing them means while a program is traced."""

from __future__ import annotations

from .dtypes import as_dtype, int32
from .expr import Expr, Operators, as_expr, binary, cast, constant_value, make


def as_dim(value):
    """A dimension, stride or offset: a Python int where it is known, else an expression of an integer type."""
    e = as_expr(value)
    number = constant_value(e)
    if isinstance(number, bool) or isinstance(number, float) or (number is None and not e.dtype.is_int):
        raise TypeError(f"{value!r} is no integer; a dimension, index or extent is needed here")
    return e if number is None else number


def as_shape(shape) -> tuple:
    if isinstance(shape, (list, tuple)) or type(shape).__name__ == "Size":
        return tuple(as_dim(d) for d in shape)
    return (as_dim(shape),)


class Buffer:
    """A tensor parameter, a workspace or an allocation. ``space`` is a name of Space in ir.proto."""

    def __init__(self, space: str, shape, dtype, name: str = "", strides=None, workspace: bool = False):
        self.space, self.shape, self.dtype, self.name = space, as_shape(shape), as_dtype(dtype), name
        self.strides = None if strides is None else as_shape(strides)
        self.workspace, self.pad_value, self.may_alias = workspace, None, False
        self.arrivals: tuple = ()  # of barriers: how many threads arrive at each
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise ValueError(f"{len(self.strides)} strides for {len(self.shape)} dimensions")

    def stored(self, indices, value) -> bool:
        """Whether the buffer takes a store in a way of its own, and it is done."""
        return False

    def filled(self) -> None:
        """What a fill means to a buffer beside its new elements."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def data(self) -> "Buffer":
        """The memory, for T.Tensor(shape, dtype, data), which views it."""
        return self

    def scope(self) -> str:
        return {"GLOBAL": "global", "SHARED": "shared.dyn", "FRAGMENT": "local.fragment", "LOCAL": "local"}[self.space]

    def whole(self) -> "Region":
        return Region(self, (0,) * self.ndim, self.shape, tuple(range(self.ndim)))

    def __getitem__(self, key):
        return self.whole()[key]

    def __setitem__(self, key, value):
        self.whole()[key] = value

    def _no_augmented(self, _):
        raise TypeError(
            f"`{self.name} op= value` on a whole buffer: write a loop, `for i in T.Parallel({self.shape[0]}): {self.name}[i] op= value`"
        )

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = _no_augmented

    def __iter__(self):
        raise TypeError(f"buffer {self.name} cannot be iterated; loop over its indices with T.Parallel or T.serial")

    def __len__(self):
        raise TypeError(f"len() of buffer {self.name} is not part of the language; use {self.name}.shape[0]")

    def as_scalar(self):
        if all(d == 1 if isinstance(d, int) else False for d in self.shape):
            return load(self, (0,) * self.ndim)
        raise TypeError(f"buffer {self.name} of shape {show_shape(self.shape)} is used as a scalar; index it")

    def __repr__(self):
        return f"{self.name}: {self.space.lower()} {self.dtype}{show_shape(self.shape)}"


def show_shape(shape) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"


class LocalVar(Operators):
    """What T.alloc_var gives: a mutable scalar of which each thread has its own. Its name is its value; assigning to the name stores.
    Shapes: a scalar. Dtypes: any that the IR has, of 8 bits or more. Targets: all. Errors: none."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Buffer):
        self.buffer = buffer

    @property
    def dtype(self):
        return self.buffer.dtype

    @property
    def name(self):
        return self.buffer.name

    def as_scalar(self) -> Expr:
        return load(self.buffer, (0,))

    def store(self, value):
        self.buffer[0] = value

    def __getitem__(self, key):
        return self.buffer[key]

    def __setitem__(self, key, value):
        self.buffer[key] = value

    def __repr__(self):
        return f"{self.name}: {self.dtype} variable"


def load(buffer: Buffer, indices) -> Expr:
    return make("LOAD", buffer.dtype, tuple(as_expr(i) for i in indices), buffer)


class RunTimeExtent:
    """Of a slice whose size is known at run time only. What takes no such slice raises ``refusal``."""

    def __init__(self, extent, refusal: Exception):
        self.extent, self.refusal = extent, refusal

    def __repr__(self):
        return repr(self.extent)


class Region(object):
    """A box of a buffer. An extent is an int, an expression (a whole dimension of symbolic size), or None for "as much as the other
    operand of the copy has". ``dims`` are the dimensions that were sliced, in order: those that a further index applies to."""

    def __init__(self, buffer: Buffer, offsets, extents, dims):
        self.buffer, self.offsets, self.extents, self.dims = buffer, tuple(offsets), tuple(extents), tuple(dims)

    @property
    def dtype(self):
        return self.buffer.dtype

    @property
    def shape(self):
        return tuple(self.extents[d] for d in self.dims)

    @property
    def name(self):
        return self.buffer.name

    def __getitem__(self, key):
        from . import lanes

        named = lanes.read(self, key)
        if named is not None:
            return named
        region, scalar = self._index(key)
        return load(self.buffer, region.offsets) if scalar else region

    def __setitem__(self, key, value):
        from . import lanes, trace

        if lanes.write(self, key, value):
            return
        region, scalar = self._index(key)
        if scalar:
            trace.store(self.buffer, region.offsets, value)
        elif isinstance(value, (Buffer, Region)):
            raise TypeError(f"assigning to a slice of {self.name}: use T.copy(source, {self.name}[…])")
        else:
            trace.fill(region, value)

    def _index(self, key):
        key = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in [k for k in key if not isinstance(k, Operators)]:
            at = next(i for i, k in enumerate(key) if k is Ellipsis)
            key[at : at + 1] = [slice(None)] * (len(self.dims) - len(key) + 1)
        if len(key) > len(self.dims):
            raise IndexError(f"{self.name} has {len(self.dims)} dimensions here and is indexed with {len(key)}")
        key += [slice(None)] * (len(self.dims) - len(key))
        offsets, extents, dims = list(self.offsets), list(self.extents), []
        for d, k in zip(self.dims, key):
            if isinstance(extents[d], RunTimeExtent) and not (isinstance(k, slice) and k.start is None and k.stop is None):
                raise extents[d].refusal
            if isinstance(k, slice):
                start, extents[d] = self._slice(d, k)
                dims.append(d)
            else:
                start, extents[d] = self._point(d, k), 1
            offsets[d] = as_dim(_plus(offsets[d], start))
        return Region(self.buffer, offsets, extents, dims), not dims

    def _point(self, d, k):
        if isinstance(k, (Buffer, Region)):
            k = k.as_scalar()
        k = as_dim(k)
        extent = self.extents[d]
        if isinstance(k, int) and isinstance(extent, int) and not -extent <= k < extent:
            raise IndexError(f"index {k} is outside dimension {d} of {self.buffer!r}")
        if isinstance(k, int) and k < 0:
            return _plus(extent, k)
        return k

    def _slice(self, d, k):
        from .affine import difference
        from .trace import value_error

        if k.step not in (None, 1):
            raise value_error(f"a slice of {self.name} with step {k.step}: only contiguous boxes can be copied; loop with T.Parallel")
        if k.start is None and k.stop is None:
            return 0, self.extents[d]
        extent = self.extents[d]
        start = 0 if k.start is None else as_dim(k.start)
        stop = extent if k.stop is None else as_dim(k.stop)
        if isinstance(start, int) and start < 0:
            start = _plus(extent, start)
        if isinstance(stop, int) and stop < 0:
            stop = _plus(extent, stop)
        if stop is None or stop is extent and not isinstance(extent, int):
            return start, None  # to the end: beyond it, nothing is there to copy
        size = difference(stop, start)
        if size is None:
            return start, RunTimeExtent(as_expr(stop) - as_expr(start), value_error(
                f"the size of the slice {k.start}:{k.stop} of dimension {d} of {self.name} is not a compile-time constant; a tile has a "
                f"fixed size, so write {self.name}[start : start + SIZE] (what lies outside the tensor reads as zero and is not written)"
            ))
        if size < 0:
            raise value_error(f"the slice {k.start}:{k.stop} of dimension {d} of {self.name} ends before it begins")
        return start, size

    def as_scalar(self):
        if all(isinstance(e, int) and e == 1 for e in self.extents):
            return load(self.buffer, self.offsets)
        raise TypeError(f"a region of {self.name} is used as a scalar; index every dimension")

    def __repr__(self):
        box = ", ".join(f"{o}" if isinstance(e, int) and e == 1 else f"{o}:+{e}" for o, e in zip(self.offsets, self.extents))
        return f"{self.name}[{box}]"


def _plus(a, b):
    return a + b if isinstance(a, int) and isinstance(b, int) else binary("ADD", as_expr(a), cast(b, int32) if isinstance(b, int) else b)


def element(value):
    """(buffer, indices) of an element written as ``A[i, j]``, a T.alloc_var or a buffer of one element; else None."""
    if isinstance(value, LocalVar):
        return value.buffer, [as_expr(0)]
    if isinstance(value, Buffer):
        value = value.as_scalar()
    if isinstance(value, Region) and not value.dims:
        return value.buffer, [as_expr(o) for o in value.offsets]
    if isinstance(value, Expr) and value.op == "LOAD":
        return value.value, list(value.args)
    return None
