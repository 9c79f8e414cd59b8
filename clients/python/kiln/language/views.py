# SPDX-License-Identifier: Apache-2.0
"""T.reshape and T.view: a buffer's memory under another shape or dtype. A view is a name: what a kernel does with it becomes accesses of
the buffer itself (``placement`` rewrites them), so the next statement sees what either name wrote."""

from __future__ import annotations

import math

from .affine import difference
from .buffer import Buffer, LocalVar, Region, as_shape, show_shape
from .dtypes import DType, as_dtype, int32, int64
from .expr import Expr, as_expr, binary, cast, const, constant_value, floordiv, floormod, logical, make, select
from .trace import current, error

_UNSIGNED = {bits: as_dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}


class View(Buffer):
    """Elements of ``base``, row by row, under another shape and dtype."""

    def __init__(self, base: Buffer, shape, dtype: DType):
        super().__init__(base.space, shape, dtype, f"{base.name}_view")
        self.base = base
        self.is_empty = any(isinstance(extent, int) and extent == 0 for extent in self.shape)
        self.groups = [] if self.is_empty else _groups(self._of_base_elements(), base.shape)

    def _of_base_elements(self) -> tuple:
        """The shape, its last dimension counted in elements of the base."""
        if not self.shape:
            return ()
        *outer, last = self.shape
        return (*outer, last * self.dtype.bits // self.base.dtype.bits if isinstance(last, int) else last)

    def _moved(self, index) -> tuple:
        """(the base's index, whether the view has the element where that does not say so by itself)."""
        if self.is_empty:
            return [as_expr(0)] * len(self.base.shape), as_expr(False)
        index, result, inside = [as_expr(i) for i in index], [], as_expr(True)
        shape = self._of_base_elements()
        for mine, theirs in self.groups:
            wide = int64 if any(not isinstance(shape[d], int) for d in mine) or math.prod(shape[d] for d in mine) >= 1 << 31 else int32
            position = cast(0, wide)
            for d in mine:
                position = position * shape[d] + cast(index[d], wide)
                if d != mine[0] or not theirs:  # beyond its end the next row begins; nothing begins beyond one element
                    inside = logical("AND", inside, logical("AND", binary("GE", index[d], 0), binary("LT", index[d], shape[d])))
            digits = []
            for d in reversed(theirs[1:]):
                digits.insert(0, floormod(position, self.base.shape[d]))
                position = floordiv(position, self.base.shape[d])
            result += [position, *digits] if theirs else []
        return result, inside

    def element(self, index) -> tuple:
        """(the base's index of an element, whether there is one), for what changes it where it lies."""
        if self.dtype != self.base.dtype:
            raise error(f"an atomic operation on {self.name}, whose elements are {self.dtype} in memory of {self.base.dtype}: use a buffer of "
                        "that dtype")
        return self._moved(index)

    def load(self, index, of_base) -> Expr:
        """The element; ``of_base`` loads one of the base."""
        mine, theirs = self.dtype.bits, self.base.dtype.bits
        index = [as_expr(i) for i in index]
        if mine == theirs:
            at, inside = self._moved(index)
            value = _as_bits(of_base(self.base, at), self.dtype)
        elif mine < theirs:
            part = theirs // mine
            at, inside = self._moved([*index[:-1], floordiv(index[-1], part)])
            bits = _as_bits(of_base(self.base, at), _UNSIGNED[theirs])
            shift = cast(floormod(index[-1], part) * mine, _UNSIGNED[theirs])
            value = _as_bits(cast(binary("SHR", bits, shift), _UNSIGNED[mine]), self.dtype)
        else:
            part, bits = mine // theirs, const(0, _UNSIGNED[mine])
            for k in range(part):
                at, inside = self._moved([*index[:-1], index[-1] * part + k])
                low = cast(_as_bits(of_base(self.base, at), _UNSIGNED[theirs]), _UNSIGNED[mine])
                bits = binary("BIT_OR", bits, binary("SHL", low, const(k * theirs, _UNSIGNED[mine])))
            value = _as_bits(bits, self.dtype)
        return select(inside, value, const(self.base.pad_value or 0 if mine == theirs else 0, self.dtype))

    def stores(self, index, value: Expr) -> tuple:
        """([(the base's index, value)], condition) of a store of one element."""
        mine, theirs = self.dtype.bits, self.base.dtype.bits
        index = [as_expr(i) for i in index]
        if mine < theirs:
            raise error(f"a store to {self.name}, whose {self.dtype} elements are parts of {self.base!r}: neighbours would share one store; "
                        f"allocate the memory as {self.dtype} and view it as {self.base.dtype}")
        if mine == theirs:
            at, inside = self._moved(index)
            return [(at, _as_bits(value, self.base.dtype))], inside
        part, bits, result = mine // theirs, _as_bits(value, _UNSIGNED[mine]), []
        for k in range(part):
            at, inside = self._moved([*index[:-1], index[-1] * part + k])
            low = cast(binary("SHR", bits, const(k * theirs, _UNSIGNED[mine])), _UNSIGNED[theirs])
            result.append((at, _as_bits(low, self.base.dtype)))
        return result, inside


def _as_bits(value: Expr, dtype: DType) -> Expr:
    return value if value.dtype == dtype else make("REINTERPRET", dtype, (value,))


def _product(extents):
    result = as_expr(1)
    for extent in extents:
        result = result * extent
    return result


def _same(a, b) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return difference(_product([a]), _product([b])) == 0


def _groups(shape, base) -> list:
    """Runs of dimensions of both that hold equally many elements, each as short as possible: an index is computed within its run."""
    if _linear_only(shape, base):
        return [(list(range(len(shape))), list(range(len(base))))]
    groups, i, j = [], 0, 0
    while i < len(shape) or j < len(base):
        mine, theirs = [], []
        if not shape or not base:  # one element
            return [(list(range(len(shape))), list(range(len(base))))]
        if i < len(shape) and j < len(base) and _same(shape[i], base[j]):
            mine, theirs, i, j = [i], [j], i + 1, j + 1
        else:
            a = b = 1
            while not (mine and theirs and a == b):
                if (a <= b and i < len(shape)) or j == len(base):
                    a, mine, i = a * shape[i], [*mine, i], i + 1
                else:
                    b, theirs, j = b * base[j], [*theirs, j], j + 1
        while i < len(shape) and shape[i] == 1 and (j == len(base) or base[j] != 1):
            mine, i = [*mine, i], i + 1
        while j < len(base) and base[j] == 1 and (i == len(shape) or shape[i] != 1):
            theirs, j = [*theirs, j], j + 1
        groups.append((mine, theirs))
    return groups


def _linear_only(shape, base) -> bool:
    """Whether dimensions of unknown size stand elsewhere than in equal places at the front: then the whole index is one number."""
    front = 0
    while front < min(len(shape), len(base)) and _same(shape[front], base[front]):
        front += 1
    rest = (*shape[front:], *base[front:])
    return any(not isinstance(extent, int) or extent == 0 for extent in rest)


def _elements(shape, dtype: DType):
    return _product(shape) * dtype.bits


def fills(shape, dtype, src: Buffer) -> bool:
    """Whether so many elements have as many bits as the buffer."""
    return difference(_elements(as_shape(shape), as_dtype(dtype)), _elements(src.shape, src.dtype)) == 0


def _made(name: str, src, shape, dtype) -> View:
    trace = current(f"T.{name}")
    if isinstance(src, LocalVar):
        src = src.buffer
    if not isinstance(src, Buffer):
        raise error(f"T.{name} takes a whole buffer, not {src!r}; index the result instead")
    shape = src.shape if shape is None else as_shape(shape)
    dtype = src.dtype if dtype is None else as_dtype(dtype)
    mine, theirs = _elements(shape, dtype), _elements(src.shape, src.dtype)
    assert fills(shape, dtype, src), (
        f"T.reshape/view shape check failed: {show_shape(shape)} of {dtype} has {constant_value(mine) or mine!r} bits, and {src!r} has "
        f"{constant_value(theirs) or theirs!r}")
    if src.strides is not None:
        raise error(f"T.{name} of {src!r}, which has strides: its elements do not lie row by row without gaps")
    if trace.kernel is not None and src in trace.kernel.placements:
        raise error(f"T.{name} of {src.name}, which lies in memory as T.annotate_layout says: copy it to a tile first")
    if dtype != src.dtype:
        _check_retype(name, src, shape, dtype)
    trace.views = True
    return View(src, shape, dtype)


def _check_retype(name: str, src: Buffer, shape, dtype: DType):
    for bits in (dtype.bits, src.dtype.bits):
        if bits not in _UNSIGNED:
            raise error(f"T.{name} from {src.dtype} to {dtype}: a type of {bits} bits has no address of its own")
    if "bool" in (dtype, src.dtype):
        raise error(f"T.{name} from {src.dtype} to {dtype}: a bool has no bits that a program may rely on; use int8")
    last, narrow, wide = shape[-1] if shape else None, *sorted((dtype.bits, src.dtype.bits))
    for extent, bits in ((last, dtype.bits), (src.shape[-1] if src.shape else None, src.dtype.bits)):
        if narrow != wide and bits == narrow and not (isinstance(extent, int) and extent * narrow % wide == 0):
            raise error(f"T.{name} from {src!r} to {dtype}{show_shape(shape)}: the last dimension of the narrower elements must be known and "
                        f"a multiple of {wide // narrow}")


def reshape(src, shape):
    """The elements of ``src``, row by row, under another shape. It is another name for the same memory: what is written to one is read
    from the other.
    Shapes: a buffer of any memory, without strides; ``shape`` has as many elements. Dtypes: any; the dtype stays. Targets: all. T.copy,
    T.fill, loops and atomic operations go to the buffer itself; other tile operations take a copy of what they read and write it back.
    Errors: AssertionError for another number of elements. TraceError for what is no buffer, for one with strides or T.annotate_layout, and
    outside of a traced function."""
    return _made("reshape", src, shape, None)


def view(src, shape=None, dtype=None):
    """The memory of ``src`` under another shape, or as elements of another dtype, with the same bits. The first of several narrow elements
    is the low part of a wide one.
    Shapes: as T.reshape; ``shape`` has as many bits. Dtypes: types of 8 bits or more, not bool. Targets: all. What is computed, is that of
    T.reinterpret and shifts. Errors: as T.reshape. TraceError for a store to elements narrower than those of ``src``, for atomic operations
    on elements of another dtype, and where the last dimension of the narrower elements does not fill whole wide ones."""
    return _made("view", src, shape, dtype)


def of_region(region: Region) -> Buffer:
    """A tile for what a region of a view holds."""
    root = region.buffer
    while isinstance(root, View):
        root = root.base
    space = root.space if root.space in ("SHARED", "FRAGMENT", "LOCAL") else "FRAGMENT"
    return Buffer(space, region.extents, region.dtype, f"{region.name}_tile")


__all__ = ["reshape", "view"]
