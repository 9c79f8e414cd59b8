# SPDX-License-Identifier: Apache-2.0
"""Reducers: sums and their kin that loops contribute to. The storage of a reducer is a fragment that holds the total after each T.Parallel
loop: within the loop each iteration adds to an element of its own, and behind it these are combined by a reduction."""

from __future__ import annotations

import math

from .. import notices
from . import program as ir
from . import trace as tr
from .buffer import Buffer, Region, element, load, show_shape
from .dtypes import as_dtype
from .expr import Expr, Var, as_expr, binary, cast, const, constant_value
from .math import max_value, min_value

_KINDS = {
    "sum": ("REDUCE_SUM", "ADD"), "max": ("REDUCE_MAX", "MAX"), "min": ("REDUCE_MIN", "MIN"), "bitand": ("REDUCE_BIT_AND", "BIT_AND"),
    "bitor": ("REDUCE_BIT_OR", "BIT_OR"), "bitxor": ("REDUCE_BIT_XOR", "BIT_XOR"),
}


def identity(op: str, dtype) -> Expr:
    """What changes no result."""
    if op in ("sum", "bitor", "bitxor"):
        return const(0, dtype)
    if op == "bitand":
        return const(True, dtype) if dtype.kind == "b" else const((1 << dtype.bits) - 1, dtype)
    if dtype.is_float:
        return const(-math.inf if op == "max" else math.inf, dtype)
    return min_value(dtype) if op == "max" else max_value(dtype)


class Reducer(Buffer):
    """What T.alloc_reducer gives. ``style``: "" until the first use, "ops" where T.reducer_init begins it, "plain" where T.fill does and
    the program reads and writes its elements."""

    def __init__(self, shape, dtype, op: str):
        super().__init__("FRAGMENT", shape, dtype, "reducer")
        self.op, self.style, self.storage, self.state, self.at = op, "", self, "new", tr.here()
        self.block = self.depth = None

    def begin(self, style: str, what: str):
        if self.style not in ("", style):
            raise tr.error(f"{what} reducer {self.name}: it is used " + (
                "by T.reducer_init, T.reducer_update and T.finalize_reducer(reducer, result) alone" if self.style == "ops"
                else "as a fragment, by T.fill, `reducer[…] += …` and T.finalize_reducer(reducer)"))
        self.style = style

    def filled(self):
        """T.fill or T.clear opens it again."""
        self.begin("plain", "an illegal T.fill of")

    def stored(self, indices, value: Expr) -> bool:
        """A store in a T.Parallel loop that combines the element with something is a contribution. False: it is a plain store."""
        self.begin("plain", "an illegal store to")
        contribution = self._contribution(indices, value) if "parallel" in tr.active().loops else None
        if contribution is None:
            return False
        _contribute(self, indices, contribution)
        return True

    def _contribution(self, indices, value: Expr):
        if value.op not in (_KINDS[self.op][1], "OR" if self.op == "bitor" else "", "AND" if self.op == "bitand" else ""):
            return None
        mine = [i for i, a in enumerate(value.args) if a.op == "LOAD" and a.value is self and list(a.args) == list(indices)]
        return value.args[1 - mine[0]] if mine else None


def alloc_reducer(shape, dtype, op="sum", replication=None):
    """A tile of results that T.Parallel loops contribute to: T.reducer_init(acc), T.reducer_update(acc[i], value) in the loops, and
    T.finalize_reducer(acc, result). ``op``: sum, max, min, bitand, bitor or bitxor. It may also be used as a fragment, as older programs do:
    T.fill, `acc[i] += value` in a T.Parallel loop (T.max and its kin for other ops), and T.finalize_reducer(acc), after which acc holds the
    result. ``replication`` ("all", "none") chooses the older form; where results lie is inferred.
    Shapes: any, of dimensions known at compile time. Dtypes: numbers; integers or bool for bitand, bitor and bitxor. Contributions are
    combined in it. Targets: all. Errors: AssertionError for another ``op`` or ``replication``, and for bits of floats. TraceError for a use
    that is neither form, and for a reducer that is begun and never finalized."""
    dtype = as_dtype(dtype)
    assert op in _KINDS, f"T.alloc_reducer(op={op!r}); known: {', '.join(_KINDS)}"
    assert op[:3] != "bit" or not dtype.is_float, f"a reducer of op={op!r} requires an integer dtype, not {dtype}"
    assert replication in (None, "all", "none"), f"T.alloc_reducer(replication={replication!r}); known: all, none"
    trace = tr.current("T.alloc_reducer")
    reducer = Reducer(shape, dtype, op)
    for dim in reducer.shape:
        if not isinstance(dim, int):
            raise tr.error(f"a reducer needs compile-time dimensions; {dim!r} is known at run time only")
    trace.emit(ir.Alloc(reducer))
    if replication is not None:
        reducer.style = "plain"
    trace.reducers.append(reducer)
    return reducer


def _reducer(value, what: str) -> Reducer:
    if not isinstance(value, Reducer):
        raise tr.error(f"{what} takes what T.alloc_reducer gives, not {value!r}")
    return value


def reducer_init(reducer, init=None):
    """Begins a reducer, once for each T.alloc_reducer that is run. ``init``: a first contribution to each element, evaluated here.
    Shapes: ``init`` is a scalar. Dtypes: ``init`` is a number, or a value of the reducer's dtype. Targets: all. Errors: TraceError for a
    second beginning, for another dtype, and for what is no reducer."""
    acc = _reducer(reducer, "T.reducer_init")
    acc.begin("ops", "T.reducer_init of")
    if acc.state != "new":
        raise tr.error(f"double T.reducer_init of reducer {acc.name}: it is begun once for each T.alloc_reducer")
    if init is not None and not isinstance(init, (bool, int, float)) and as_expr(init).dtype != acc.dtype:
        raise tr.error(f"the first value of T.reducer_init is {as_expr(init).dtype}, which does not match reducer {acc.name} of {acc.dtype}; "
                       "cast it")
    trace = tr.current()
    acc.storage = tr.allocate("FRAGMENT", acc.shape, acc.dtype, acc.name)
    tr.emit(ir.Fill(acc.storage.whole(), identity(acc.op, acc.dtype) if init is None else cast(init, acc.dtype)))
    acc.state, acc.block, acc.depth = "open", trace.blocks[-1], len(trace.loops)


def _check_scope(acc: Reducer, what: str):
    if acc.state != "open":
        raise tr.error(f"{what} before T.reducer_init of reducer {acc.name}" if acc.state == "new"
                       else f"{what} of reducer {acc.name} after T.finalize_reducer")
    if not any(block is acc.block for block in tr.current().blocks):
        raise tr.error(f"{what} is not in the scope of its T.reducer_init of reducer {acc.name}: both stand in one loop or branch")


def reducer_update(target, value):
    """A contribution to the element ``target``, written ``acc[i]``, of each iteration of the T.Parallel loop that it stands in.
    Shapes: two scalars. Each index of ``acc`` is a variable of the T.Parallel loop, or of a loop of known length within it, or does not
    change in it. Dtypes: ``value`` is converted to the reducer's dtype. Targets: all. Errors: TraceError outside of T.Parallel, before
    T.reducer_init, and for other indices."""
    found = element(target) if not isinstance(target, Buffer) else None
    if found is None:
        raise ValueError(f"T.reducer_update takes acc[indices] as its first argument, not {target!r}; a reducer cannot be read")
    acc = _reducer(found[0], "T.reducer_update")
    acc.begin("ops", "T.reducer_update of")
    _check_scope(acc, "T.reducer_update")
    if "parallel" not in tr.current().loops:
        raise tr.error("T.reducer_update outside any T.Parallel loop: how many threads contribute would be left open; write it in a loop "
                       "`for i in T.Parallel(n)`")
    _contribute(acc, found[1], cast(value, acc.dtype))


def finalize_reducer(reducer, dst=None, batch=1, annotations=None):
    """``dst`` is what the reducer combined. Without ``dst``, of a reducer that is used as a fragment: from here on its elements may be read.
    ``batch`` and ``annotations``: no effect, with a warning.
    Shapes: ``dst`` is a tile of the reducer's shape. Dtypes: the reducer's. Targets: all. Errors: ValueError for a ``batch`` that does not
    divide the elements. TraceError in a loop in which the reducer was not begun, and where ``dst`` does not fit."""
    acc = _reducer(reducer, "T.finalize_reducer")
    elements = math.prod(acc.shape)
    if batch < 1:
        raise ValueError(f"T.finalize_reducer: batch must be >= 1, not {batch}")
    if batch > elements:
        raise ValueError(f"T.finalize_reducer: batch {batch} exceeds total output elements, {elements}")
    if elements % batch:
        raise ValueError(f"T.finalize_reducer: batch {batch} must evenly divide the {elements} elements")
    notices.unused("T.finalize_reducer", batch=(batch, (1,), "how results are gathered from threads is inferred; leave it out"),
                   annotations=(annotations, (None, {}), "what annotations say is inferred; leave them out"))
    if dst is None:
        acc.begin("plain", "T.finalize_reducer without a result of")
        return
    acc.begin("ops", "T.finalize_reducer of")
    _check_scope(acc, "T.finalize_reducer")
    if any(kind != "branch" for kind in tr.current().loops[acc.depth :]):
        raise tr.error(f"T.finalize_reducer is not in the scope of its T.reducer_init of reducer {acc.name}: in a further loop it would be "
                       "finalized more than once")
    region = dst.whole() if isinstance(dst, Buffer) else dst
    if not isinstance(region, Region) or tuple(region.shape) != acc.shape or region.dtype != acc.dtype:
        raise tr.error(f"the result of T.finalize_reducer is {dst!r}; it must be {acc.dtype}{show_shape(acc.shape)}, as reducer {acc.name}")
    tr.emit(ir.Copy(acc.storage.whole(), region))
    acc.state = "closed"


class _Contributions:
    """Those of one T.Parallel loop to elements with one index: a tile with an element for each iteration."""

    def __init__(self, acc: Reducer, indices, loop: ir.For, inner: dict):
        self.acc, self.loop, self.indices = acc, loop, list(indices)
        self.vars = [*loop.vars, *(v for v in inner if any(i.op == "VAR" and i.value is v for i in self.indices))]
        self.extents = [*(constant_value(e) for e in loop.extents), *(inner[v] for v in self.vars[len(loop.vars) :])]
        if None in self.extents:
            raise tr.error(f"contributions to reducer {acc.name} in a loop of unknown length; T.Parallel needs constant extents")
        used = [i.value for i in self.indices if i.op == "VAR" and i.value in self.vars]
        if len(set(used)) != len(used):
            raise tr.error(f"{acc.name}{show_shape(self.indices)}: one loop variable stands in two indices of a contribution to a reducer; "
                           "copy the diagonal to a tile of its own first")
        self.used = used
        self.summed = [d for d, (v, e) in enumerate(zip(self.vars, self.extents)) if v not in used and e > 1]
        self.tile = None
        if self.summed:
            self.tile = Buffer("FRAGMENT", self.extents, acc.dtype, f"{acc.name}_parts")

    def add(self, value: Expr):
        target = self.acc.storage if self.tile is None else self.tile
        at = self.indices if self.tile is None else [v.expr for v in self.vars]
        op = _KINDS[self.acc.op][1]
        tr.emit(ir.Store(target, at, binary(op, load(target, at), value)))

    def before(self) -> list:
        if self.tile is None:
            return []
        return [ir.Alloc(self.tile, location=self.loop.location),
                ir.Fill(self.tile.whole(), identity(self.acc.op, self.acc.dtype), location=self.loop.location)]

    def after(self):
        """The iterations' elements are combined, dimension by dimension; then with the reducer's."""
        if self.tile is None:
            return
        kind, op = _KINDS[self.acc.op]
        tile, kept = self.tile, list(range(len(self.extents)))
        for d in reversed(self.summed):
            at = kept.index(d)
            kept.remove(d)
            shape = [self.extents[k] for k in kept] or [1]
            smaller = tr.allocate("FRAGMENT", shape, self.acc.dtype, f"{self.acc.name}_total")
            tr.emit(ir.Reduce(kind, tile.whole(), smaller.whole(), at, True))
            tile = smaller
        loop_vars = [Var("LOOP", v.dtype, v.name) for v in (self.vars[k] for k in kept)]
        values = dict(zip((self.vars[k] for k in kept), (v.expr for v in loop_vars)))
        steps = [v.expr for v in loop_vars] or [as_expr(0)]
        index = [values[i.value] if i.op == "VAR" and i.value in values else i for i in self.indices]
        storage = self.acc.storage
        if not loop_vars:
            loop_vars, extents = [Var("LOOP", self.loop.vars[0].dtype, "i")], [as_expr(1)]
        else:
            extents = [as_expr(self.extents[k]) for k in kept]
        total = binary(op, load(storage, index), load(tile, steps))
        tr.emit(ir.For("PARALLEL", loop_vars, extents, [ir.Store(storage, index, total, location=self.loop.location)]))


def _contribute(acc: Reducer, indices, value: Expr):
    trace = tr.current()
    first = next(k for k, loop in enumerate(trace.open_loops) if loop.kind == "PARALLEL")
    loop = trace.open_loops[first]
    inner = {var: constant_value(extent) for one in trace.open_loops[first + 1 :] for var, extent in zip(one.vars, one.extents)}
    bound = {stmt.var for block in trace.blocks[_depth(trace, loop.body) :] for stmt in block if isinstance(stmt, ir.Let)}
    for i in indices:
        if (i.op != "VAR" or i.value in bound) and _varies(i, {*loop.vars, *inner, *bound}):
            raise tr.error(f"the index {i!r} of reducer {acc.name}: it must be a variable of the T.Parallel loop itself, or not change in the loop")
    key = (acc, tuple(indices))
    if key not in trace.contributions:
        trace.contributions[key] = _Contributions(acc, indices, loop, inner)
    trace.contributions[key].add(value)


def _depth(trace, body: list) -> int:
    return next(k for k, block in enumerate(trace.blocks) if block is body)


def _varies(e: Expr, variables: set) -> bool:
    """Whether the value may be another in each iteration."""
    stack = [e]
    while stack:
        node = stack.pop()
        if node.op == "VAR" and node.value in variables or node.op == "LOAD" and node.value.space == "LOCAL":
            return True
        stack.extend(node.args)
    return False


def close(trace, block: list, loop: ir.For):
    """Behind a T.Parallel loop: what its iterations contributed."""
    made, trace.contributions = list(trace.contributions.values()), {}
    at = next(i for i, stmt in enumerate(block) if stmt is loop)
    block[at:at] = [stmt for one in made for stmt in one.before()]
    for one in made:
        one.after()


def check(trace):
    """At the end of a kernel: each reducer that was begun came to its end, and nothing else touches it."""
    reducers, trace.reducers = trace.reducers, []
    for acc in reducers:
        at = f"{acc.at.file}:{acc.at.line}: " if acc.at.line else ""
        if acc.style == "ops" and acc.state == "open":
            raise tr.TraceError(f"{at}reducer {acc.name} is never finalized: T.finalize_reducer(reducer, result) gives its result")
    handles = {acc for acc in reducers if acc.style == "ops"}
    if handles:
        _check_untouched(trace.kernel.body, handles)


def _check_untouched(stmts: list, handles: set):
    from dataclasses import fields

    for stmt in stmts:
        for field in fields(stmt):
            value = getattr(stmt, field.name)
            if field.type == "list[Stmt]":
                _check_untouched(value, handles)
                continue
            read = _read_handle(value, handles) if not isinstance(stmt, ir.Alloc) else None
            if read is not None:
                at = f"{stmt.location.file}:{stmt.location.line}: " if stmt.location.line else ""
                raise tr.TraceError(f"{at}an illegal read of reducer {read.name}: T.finalize_reducer(reducer, result) gives its result")


def _read_handle(value, handles: set):
    if isinstance(value, Buffer):
        return value if value in handles else None
    if isinstance(value, Region):
        return _read_handle([value.buffer, *value.offsets], handles)
    stack, seen = list(value) if isinstance(value, (list, tuple)) else [value], set()
    while stack:
        node = stack.pop()
        if isinstance(node, Buffer) and node in handles:
            return node
        if not isinstance(node, Expr) or node in seen:
            continue
        seen.add(node)
        stack.extend(node.args)
        if node.op == "LOAD":
            stack.append(node.value)
    return None


__all__ = ["alloc_reducer", "reducer_init", "reducer_update", "finalize_reducer"]
