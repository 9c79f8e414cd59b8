# SPDX-License-Identifier: Apache-2.0
"""What the library knows of an argument before anything runs, and the refusals of arguments that do not fit. Extents may be torch's
symbolic ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ..language.dtypes import DType, as_dtype
from .bits import STAND_INS, Bits

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")


@dataclass(frozen=True)
class Spec:
    """A tensor of which all but the elements is known: ``library.plan`` takes it where a function takes a tensor. ``strides`` in elements;
    None: contiguous."""

    shape: tuple
    dtype: DType
    strides: tuple | None = None

    def __post_init__(self):
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", as_dtype(self.dtype))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self):
        """How many elements it has."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    def is_transposed(self) -> bool:
        """Whether the last two dimensions, and only they, lie the other way round."""
        if self.strides is None or self.rank < 2 or self.is_contiguous():
            return False
        order = (*range(self.rank - 2), self.rank - 1, self.rank - 2)
        return Spec([self.shape[d] for d in order], self.dtype, tuple(self.strides[d] for d in order)).is_contiguous()

    def is_contiguous(self) -> bool:
        """Row-major and without gaps; the stride of a dimension of one element does not matter."""
        if self.strides is None or self.size == 0:
            return True
        step = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides)):
            if extent != 1 and stride != step:
                return False
            step *= extent
        return True


def is_torch(value) -> bool:
    """Whether it is a tensor of torch; without torch, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def spec_of(value, name: str) -> Spec:
    """TypeError where it is no tensor."""
    if isinstance(value, Spec):
        return value
    if is_torch(value):
        return Spec(value.shape, value.dtype, value.stride())
    array = value.array if isinstance(value, Bits) else value
    if not hasattr(array, "__array_interface__") or not hasattr(array, "strides"):
        raise TypeError(f"{name} is {type(value).__name__}; pass a tensor of torch, a numpy array or kiln.library.Bits")
    if not array.dtype.isnative:
        raise TypeError(f"{name} is in foreign byte order; pass an array in native byte order")
    strides = tuple(s // array.itemsize if array.itemsize else 0 for s in array.strides)
    return Spec(array.shape, value.dtype if isinstance(value, Bits) else as_dtype(array.dtype.name), strides)


def show(shape) -> str:
    """(2, 3), as Python writes it, also of symbolic extents."""
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def want_dtype(function: str, name: str, spec: Spec, allowed) -> DType:
    """The dtype, one of those that are allowed; else TypeError."""
    allowed = (allowed,) if isinstance(allowed, str) else tuple(allowed)
    if spec.dtype not in allowed:
        hint = next((f"; an array that holds the bits of {a}: kiln.library.Bits(array, "
                     f"\"{a}\")" for a in allowed if STAND_INS.get(a) == spec.dtype), "")
        raise TypeError(f"{function}: {name} has dtype {spec.dtype}; use {' or '.join(allowed)}{hint}")
    return spec.dtype


def want_rank(function: str, name: str, spec: Spec, ranks, form: str) -> None:
    """ValueError unless it has so many dimensions; ``form`` shows them."""
    ranks = (ranks,) if isinstance(ranks, int) else tuple(ranks)
    if spec.rank not in ranks:
        raise ValueError(f"{function}: {name} has shape {show(spec.shape)}; pass one of shape {form}")


def want_rows(function: str, name: str, spec: Spec) -> None:
    """Rows of at least one element, in any number of dimensions."""
    if spec.rank < 1:
        raise ValueError(f"{function}: {name} has no dimension; pass one of shape (…, N)")
    if spec.shape[-1] == 0:
        raise ValueError(f"{function}: {name} has shape {show(spec.shape)}, whose rows are empty; rows need at least one element")


def want_shape(function: str, name: str, spec: Spec, shape, why: str) -> None:
    """ValueError unless it has this shape."""
    if spec.rank != len(shape) or any(a != b for a, b in zip(spec.shape, shape)):
        raise ValueError(f"{function}: {name} has shape {show(spec.shape)}, where {show(shape)} is needed: {why}")


def want_not_negative(function: str, name: str, value) -> None:
    """ValueError for a number below zero, and for NaN."""
    if not value >= 0:
        raise ValueError(f"{function}: {name} is {value}; pass a number from 0 on")


def want_name(function: str, name: str, value, names) -> None:
    """ValueError if the word is not one of those."""
    if value not in names:
        raise ValueError(f"{function}: {name} is {value!r}; use {' or '.join(map(repr, names))}")
