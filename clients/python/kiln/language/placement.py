# SPDX-License-Identifier: Apache-2.0
"""Buffers whose elements lie in another one's memory: what a kernel does with them becomes accesses of that one. These are tensor parameters
whose elements lie where the program says (T.annotate_layout), in the row-major tensor that the caller passes, and views of buffers (T.reshape,
T.view)."""

from __future__ import annotations

import math
from dataclasses import fields

from . import program as ir
from . import trace as tr
from .agreed import agreements
from .buffer import Buffer, Region, load, show_shape
from .dtypes import int32, int64
from .expr import Expr, Var, as_expr, binary, cast, const, constant_value, floordiv, floormod, logical, make, masked, select
from .layout import Layout
from .views import View, of_region


def place(buffer: Buffer, layout) -> None:
    """In the kernel that is being traced, the tensor's elements lie as the layout says."""
    kernel = tr.current("T.annotate_layout").kernel
    if kernel is None:
        raise tr.error("T.annotate_layout of a tensor is used outside T.Kernel")
    function = layout.forward_fn if isinstance(layout, Layout) else layout
    if not callable(function):
        raise tr.error(f"T.annotate_layout of the tensor {buffer.name} moves its elements in memory, and this layout does not say where to: "
                       "give T.Layout(shape, function), or leave the tensor out, which is row-major then")
    kernel.placements[buffer] = Placement(buffer, function)


class Placement:
    """Where the elements of one tensor lie: ``function`` of an index is a place in a row-major box that has as many places as the
    tensor."""

    def __init__(self, buffer: Buffer, function):
        self.buffer = buffer
        self.vars = [Var("LOOP", int32, f"i{d}").expr for d in range(buffer.ndim)]
        places = function(*self.vars)
        places = [as_expr(p) for p in (places if isinstance(places, (list, tuple)) else [places])]
        kept = 0  # leading dimensions that stay where they are
        while kept < min(len(places), buffer.ndim) and places[kept] is self.vars[kept]:
            kept += 1
        self.kept, self.places = kept, places[kept:]
        self.shape = buffer.shape[kept:]
        if buffer.strides is not None or not all(isinstance(extent, int) for extent in self.shape):
            raise self._error("the tensor must be contiguous, and the dimensions that move known at compile time")
        ranges = {var: (0, extent - 1) for var, extent in zip(self.vars[kept:], self.shape)}
        self.extents = [self._extent(p, ranges) for p in self.places]
        if math.prod(self.extents) != math.prod(self.shape):
            raise self._error(f"it gives a box of {show_shape(self.extents)} places for {show_shape(self.shape)} elements; it must give each "
                              "element a place of its own and leave none empty")

    def _error(self, why: str):
        return tr.error(f"T.annotate_layout of the tensor {self.buffer.name}: {why}")

    def _extent(self, place: Expr, ranges: dict) -> int:
        low, high = self._bounds(place, ranges)
        if low < 0:
            raise self._error(f"{place!r} may be {low}; a place is counted from 0")
        return high + 1

    def _bounds(self, e: Expr, ranges: dict) -> tuple[int, int]:
        number = constant_value(e)
        if isinstance(number, int):
            return number, number
        if e in ranges:
            return ranges[e]
        if e.op == "CAST":
            return self._bounds(e.args[0], ranges)
        bound = _BOUNDS.get(e.op)
        result = bound and bound(*(self._bounds(a, ranges) for a in e.args))
        if result is None:
            raise self._error(f"how far {e!r} reaches is not known; use sums, products, // and % of the index")
        return result

    def moved(self, index) -> tuple:
        """(the index of the row-major tensor that holds this element, whether there is one)."""
        index = [as_expr(i) for i in index]
        inside = as_expr(True)
        for i, extent in zip(index, self.buffer.shape):
            inside = logical("AND", inside, logical("AND", binary("GE", i, 0), binary("LT", i, extent)))
        wide = int32 if math.prod(self.shape) < 1 << 31 else int64
        values = dict(zip(self.vars, index))
        position = cast(0, wide)
        for place, extent in zip(self.places, self.extents):
            position = position * extent + cast(_substituted(place, values), wide)
        digits = []
        for extent in reversed(self.shape[1:]):
            digits.insert(0, floormod(position, extent))
            position = floordiv(position, extent)
        return [*index[: self.kept], *([position, *digits] if self.shape else [])], inside


    element = moved

    def load(self, index, of_base) -> Expr:
        at, inside = self.moved(index)
        return select(inside, load(self.buffer, at), const(self.buffer.pad_value or 0, self.buffer.dtype))

    def stores(self, index, value: Expr) -> tuple:
        """([(index of the row-major tensor, value)], condition) of a store of one element."""
        at, inside = self.moved(index)
        return [(at, value)], inside

    @property
    def base(self) -> Buffer:
        return self.buffer


_BOUNDS = {
    "ADD": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "SUB": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "NEG": lambda a: (-a[1], -a[0]),
    "MUL": lambda a, b: (min(x * y for x in a for y in b), max(x * y for x in a for y in b)),
    "MIN": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "MAX": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "FLOOR_DIV": lambda a, b: (a[0] // b[0], a[1] // b[0]) if b[0] == b[1] > 0 else None,
    "FLOOR_MOD": lambda a, b: (a if 0 <= a[0] and a[1] < b[0] else (0, b[0] - 1)) if b[0] == b[1] > 0 else None,
    "BIT_XOR": lambda a, b: (0, (1 << max(a[1], b[1]).bit_length()) - 1) if min(a[0], b[0]) >= 0 else None,
}
_BOUNDS["DIV"] = lambda a, b: _BOUNDS["FLOOR_DIV"](a, b) if a[0] >= 0 else None
_BOUNDS["MOD"] = lambda a, b: _BOUNDS["FLOOR_MOD"](a, b) if a[0] >= 0 else None


def _substituted(e: Expr, values: dict) -> Expr:
    return _rebuilt(e, lambda node: values.get(node))


def _rebuilt(root: Expr, change) -> Expr:
    """The expression with nodes replaced that ``change`` gives something for, once their operands are. Not recursive, as the encoder's
    walk."""
    done: dict[Expr, Expr] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        missing = [a for a in node.args if a not in done]
        if node in done or missing:
            stack.pop() if node in done else stack.extend(missing)
            continue
        stack.pop()
        args = tuple(done[a] for a in node.args)
        same = all(a is b for a, b in zip(args, node.args))
        node_now = node if same else make(node.op, node.dtype, args, node.value)
        changed = change(node_now)
        done[node] = node_now if changed is None else changed
    return done[root]


def apply(kernel: ir.Kernel, views: bool = False) -> None:
    """Rewrites the kernel's body for the placements that it was traced with, and for ``views`` where there are some."""
    if kernel.placements or views:
        kernel.body[:] = _Rewriter(kernel.placements).block(kernel.body)


_IN_PLACE = "products and reductions take no such tensor: copy it to a tile first"


class _Rewriter:
    def __init__(self, placements: dict):
        self.placements = placements

    def _place(self, buffer: Buffer):
        """Where the buffer's elements lie, if not in its own memory."""
        return buffer if isinstance(buffer, View) else self.placements.get(buffer)

    def expr(self, value):
        return _rebuilt(value, self._loaded) if isinstance(value, Expr) else value

    def _loaded(self, node: Expr):
        if node.op == "MASKED" and node.args[1].op != "LOAD":
            return masked(*node.args)
        return self._load(node.value, node.args) if node.op == "LOAD" and self._place(node.value) is not None else None

    def _load(self, buffer: Buffer, index) -> Expr:
        place = self._place(buffer)
        return place.load(index, self._load) if place is not None else load(buffer, index)

    def block(self, stmts: list) -> list:
        result = []
        for stmt in stmts:
            for now in self._stmts(stmt):
                now.location = stmt.location
                result.append(now)
        return result

    def _stmts(self, s) -> list:
        if any(isinstance(getattr(s, field.name), Region) for field in fields(s)):
            return self._tile_operation(s)
        for field in fields(s):
            value = getattr(s, field.name)
            if field.type == "list[Stmt]":
                setattr(s, field.name, self.block(value))
            else:
                setattr(s, field.name, [self.expr(e) for e in value] if isinstance(value, list) else self.expr(value))
        if not hasattr(s, "indices") or self._place(s.buffer) is None:
            return [s]
        if isinstance(s, ir.Store):
            return self._store(s.buffer, s.indices, s.value, s.location)
        inside = as_expr(True)
        while self._place(s.buffer) is not None:
            place = self._place(s.buffer)
            s.indices, has = place.element(s.indices)
            s.buffer, inside = place.base, logical("AND", inside, has)
            if not isinstance(place, View):
                break
        guarded = self._guarded(inside, [s])
        if isinstance(guarded, ir.If) and getattr(s, "old", None) is not None:
            guarded.else_body = [ir.Store(s.old.buffer, s.old.indices, const(0, s.old.buffer.dtype), location=s.location)]
        return [guarded]

    def _store(self, buffer: Buffer, index, value: Expr, location) -> list:
        place = self._place(buffer)
        try:
            parts, inside = place.stores(index, value)
        except tr.TraceError as problem:
            raise tr.TraceError(f"{_at_line(location)}{problem}") from None
        stmts = []
        for at, part in parts:
            if isinstance(place, View) and self._place(place.base) is not None:
                stmts += self._store(place.base, at, part, location)
            else:
                stmts.append(ir.Store(place.base, at, part, location=location))
        return stmts if constant_value(inside) is True else [self._guarded(inside, stmts)]

    def _guarded(self, inside: Expr, stmts: list):
        if constant_value(inside) is True and len(stmts) == 1:
            return stmts[0]
        return ir.If(inside, stmts, location=stmts[0].location)

    def _region(self, r: Region) -> Region:
        return Region(r.buffer, [self.expr(o) for o in r.offsets], r.extents, r.dims)

    def _tile_operation(self, s) -> list:
        placed = []
        for field in fields(s):
            value = getattr(s, field.name)
            if isinstance(value, Region):
                setattr(s, field.name, self._region(value))
                placed += [field.name] if self._place(value.buffer) is not None else []
            elif isinstance(value, Expr):
                setattr(s, field.name, self.expr(value))
        if not placed:
            return [s]
        operands = [getattr(s, field.name) for field in fields(s)]
        regions, values = [o for o in operands if isinstance(o, Region)], [o for o in operands if isinstance(o, Expr)]
        return [*agreements(regions, values), *self._in_its_place(s, placed)]

    def _in_its_place(self, s, placed) -> list:
        if isinstance(s, ir.Copy):
            return [self._elementwise(s.dst, lambda steps: self._load(s.src.buffer, _at(s.src, steps)), s.coalesced_width, s.location, s.src)]
        if isinstance(s, ir.Fill):
            return [self._elementwise(s.dst, lambda steps: s.value, 0, s.location)]
        regions = {name: getattr(s, name) for name in placed}
        for region in regions.values():
            if not s.ON_TENSORS and not isinstance(region.buffer, View):
                raise tr.TraceError(f"{_at_line(s.location)}{region.name} lies in memory as T.annotate_layout says, and {_IN_PLACE}")
        return self._through_tiles(s, regions)

    def _through_tiles(self, s, regions: dict) -> list:
        """The operation on tiles that hold what it reads of such buffers, and from which what it writes goes back."""
        before, after = [], []
        for name, region in regions.items():
            tile = of_region(region)
            before.append(ir.Alloc(tile, location=s.location))
            whole = tile.whole()
            before.append(self._elementwise(whole, lambda steps, r=region: self._load(r.buffer, _at(r, steps)), 0, s.location, region))
            if name == s.WRITTEN:
                after.append(self._elementwise(region, lambda steps, t=whole: load(t.buffer, _at(t, steps)), 0, s.location, whole))
            setattr(s, name, whole)
        return [*before, s, *after]

    def _elementwise(self, dst: Region, value, width: int, location, src=None):
        """A loop over the destination that stores what ``value`` gives for the steps along its dimensions that are not 1: each thread does
        all of it where an operand is its own, else they share it."""
        extents = [e for e in dst.extents if e != 1] or [1]
        loop_vars = [Var("LOOP", int32, "ijklmn"[d]) for d in range(len(extents))]
        steps = [v.expr for v in loop_vars]
        index, element = _at(dst, steps), cast(value(steps), dst.dtype)
        body = (self._store(dst.buffer, index, element, location) if self._place(dst.buffer) is not None
                else [ir.Store(dst.buffer, index, element, location=location)])
        if all(r is None or r.buffer.space != "LOCAL" for r in (dst, src)):
            return ir.For("PARALLEL", loop_vars, [as_expr(e) for e in extents], body, 0, width)
        for var, extent in reversed(list(zip(loop_vars, extents))):
            body = [ir.For("SERIAL", [var], [as_expr(extent)], body, location=location)]
        return body[0]


def _at_line(location) -> str:
    return f"{location.file}:{location.line}: " if location.line else ""


def _at(region: Region, steps) -> list:
    """The index of the element so many steps along the region's dimensions that are not 1."""
    left = list(steps)
    wide = [e != 1 for e in region.extents]
    if not any(wide):
        return [as_expr(o) for o in region.offsets]
    return [as_expr(o) + left.pop(0) if moves else as_expr(o) for o, moves in zip(region.offsets, wide)]
