# SPDX-License-Identifier: Apache-2.0
"""Loops. Each object is iterated once while tracing: the body is traced with variables that stand for every iteration. A loop from
``start`` by ``step`` is written as one from 0 by 1 with the index computed from its variable."""

from __future__ import annotations

import functools
import math
import warnings

from .. import notices
from . import program as ir
from . import reducers
from .copies import in_turns
from .expr import Expr, Var, as_expr, binary, cast, constant_value, floordiv, logical
from .dtypes import int32, promote
from .trace import current, error


class Loop:
    """``for … in T.serial(n)`` and its kin."""

    def __init__(self, kind: str, begins, extents, steps, num_stages: int = 0, coalesced_width: int = 0):
        self.kind, self.begins, self.extents, self.steps = kind, begins, extents, steps
        self.num_stages, self.coalesced_width = num_stages, coalesced_width
        self.names: tuple = ()

    def __iter__(self):
        if any(constant_value(e) is not None and constant_value(e) <= 0 for e in self.extents):
            return
        trace = current("a loop")
        names = self.names if len(self.names) == len(self.extents) else tuple("ijklmn"[: len(self.extents)])
        if self.kind == "PARALLEL" and "parallel" in trace.loops:
            yield from self._inside_parallel(names)
            return
        if self.kind == "PARALLEL" and any(constant_value(e) is None for e in self.extents):
            yield from self._in_chunks(trace, names)
            return
        loop_vars = [Var("LOOP", e.dtype, name) for e, name in zip(self.extents, names)]
        stmt = ir.For(self.kind, loop_vars, list(self.extents), [], self.num_stages, self.coalesced_width)
        trace.emit(stmt)
        values = [begin + var.expr * step for var, begin, step in zip(loop_vars, self.begins, self.steps)]
        block, draws = trace.blocks[-1], trace.draws
        trace.open_loops.append(stmt)
        with trace.inside(stmt.body, "parallel" if self.kind == "PARALLEL" else "ir"):
            yield values[0] if len(values) == 1 else tuple(values)
        trace.open_loops.pop()
        if trace.contributions and self.kind == "PARALLEL":
            reducers.close(trace, block, stmt)
        if trace.draws != draws and self.kind == "PARALLEL":
            in_turns(stmt, trace.kernel.threads)

    def _inside_parallel(self, names):
        """Threads are given out by the outermost parallel loop; one inside it is walked by each of them."""
        loops = [Loop("SERIAL", [b], [e], [s]) for b, e, s in zip(self.begins, self.extents, self.steps)]
        nest = Nest(loops)
        nest.names = names
        for values in nest:
            yield values[0] if len(values) == 1 else values


    def _in_chunks(self, trace, names):
        """Of extents known at run time: a serial loop, each step of which gives as many iterations to the block as it has threads."""
        dynamic = [d for d, e in enumerate(self.extents) if constant_value(e) is None]
        known = math.prod(constant_value(e) for e in self.extents if constant_value(e) is not None)
        threads = math.prod(trace.kernel.block) if trace.kernel is not None else 1
        sizes = [constant_value(e) for e in self.extents]
        for d in dynamic:
            sizes[d] = max(1, threads // known) if d == dynamic[-1] else 1
        chunks = [floordiv(self.extents[d] + (sizes[d] - 1), sizes[d]) for d in dynamic]
        outer = Nest([Loop("SERIAL", [as_expr(0)], [c], [as_expr(1)]) for c in chunks])
        outer.names = tuple(f"{names[d]}_chunk" for d in dynamic)
        parts = [as_expr(size) for size in sizes]
        inner = Loop("PARALLEL", [as_expr(0)] * len(parts), parts, [as_expr(1)] * len(parts), coalesced_width=self.coalesced_width)
        inner.names = names
        for chunk in outer:
            for lane in inner:
                position = list(lane) if isinstance(lane, tuple) else [lane]
                for d, c in zip(dynamic, chunk):
                    position[d] = position[d] + c * sizes[d]
                within = functools.reduce(functools.partial(logical, "AND"), [position[d] < self.extents[d] for d in dynamic])
                stmt = trace.emit(ir.If(within))
                with trace.inside(stmt.then_body, "branch"):
                    values = [begin + at * step for at, begin, step in zip(position, self.begins, self.steps)]
                    yield values[0] if len(values) == 1 else tuple(values)


class Nest:
    """Loops inside one another: T.grid."""

    def __init__(self, loops):
        self.loops, self.names = loops, ()

    def __iter__(self):
        yield from self._nest(0, ())

    def _nest(self, depth, values):
        if depth == len(self.loops):
            yield values
            return
        self.loops[depth].names = self.names[depth : depth + 1]
        for value in self.loops[depth]:
            yield from self._nest(depth + 1, values + (value,))


def _index(value) -> Expr:
    e = as_expr(value)
    if not e.dtype.is_int:
        raise error(f"a loop bound must be an integer, not {value!r} of type {e.dtype}")
    return e if e.dtype in ("int32", "int64") else cast(e, int32)


def _range(kind: str, start, stop, step, **options) -> Loop:
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    known = step if isinstance(step, int) else constant_value(as_expr(step))
    if known == 0:
        raise error("the step of a loop must not be zero")
    if known is None:
        warnings.warn("a loop step known only at run time is taken as positive", stacklevel=4)
    begin, end = _index(start), _index(stop)
    dtype = promote(begin.dtype, end.dtype)
    begin, end = cast(begin, dtype), cast(end, dtype)
    span = end - begin if known is None or known > 0 else begin - end
    width = step if known is None else abs(known)
    extent = span if known in (1, -1) else floordiv(span + (width - 1), width)
    return Loop(kind, [begin], [extent], [cast(step, dtype)], **options)


def _annotated(name: str, annotations) -> None:
    notices.unused(name, annotations=(annotations, (None, {}), "what annotations say is inferred; leave them out"))


def serial(start, stop=None, step=None, annotations=None):
    """One iteration after the other, as Python's ``range`` counts. ``step`` may be negative but not zero; a step that is known at run time
    only is taken as positive, with a warning. ``annotations``, of all loops: no effect, with a warning.
    Shapes: scalar bounds, known at compile time or at run time. Dtypes: integers; the variable is int32, or int64 where a bound is.
    Targets: all. Errors: TraceError for a bound that is no integer, and for a step of 0."""
    _annotated("T.serial", annotations)
    return _range("SERIAL", start, stop, step)


def unroll(start, stop=None, step=None, explicit=False, unroll_factor=None, annotations=None):
    """``T.serial`` with its body written out for each iteration, where their number is known. A loop of more than 64 iterations, or one
    that would become more than ``kiln.max_unrolled`` statements (of pass_configs; 4096 by default), stays a loop. ``explicit`` and
    ``unroll_factor``: no effect, with a warning.
    Shapes: scalar bounds. Dtypes: integers. Targets: all. Errors: as T.serial."""
    _annotated("T.unroll", annotations)
    notices.unused("T.unroll", explicit=(explicit, (False, None), "loops of known length are written out anyway; leave it out"),
                   unroll_factor=(unroll_factor, (None,), "write a T.serial loop around a T.unroll loop of so many iterations"))
    return _range("UNROLL", start, stop, step)


def vectorized(start, stop=None, annotations=None):
    """Iterations without an order, of one thread. They are written out as those of T.unroll, so that neighbours in memory move together.
    Shapes: scalar bounds. Dtypes: integers. Targets: all. Errors: as T.serial. CompileError for a tile operation, ``break`` or ``continue``
    in it."""
    _annotated("T.vectorized", annotations)
    return _range("VECTORIZED", start, stop, None)


def Pipelined(start, stop=None, num_stages=0, order=None, stage=None, sync=None, group=None, annotations=None):
    """A serial loop whose copies may run up to ``num_stages`` iterations early. With 0 it is T.serial. A ``stage`` list sets the depth
    alone: the compiler makes the schedule. ``order``, ``sync`` and ``group``: no effect, with a warning.
    Shapes: scalar bounds. Dtypes: integers. Targets: all. Copies run early by cp.async from sm_80 on and by tensor copies from sm_90 on; on
    AMD through registers. Errors: as T.serial. CompileError for more than 32 stages, and where only some threads reach it, unless those are
    a range by number."""
    _annotated("T.Pipelined", annotations)
    inferred = "the schedule is inferred; num_stages says how many iterations are in flight"
    nothing = (None, [])
    notices.unused("T.Pipelined", order=(order, nothing, inferred), sync=(sync, nothing, inferred), group=(group, nothing, inferred),
                   **({"stage": (stage, nothing, inferred)} if num_stages else {}))
    stages = num_stages or (max(stage) + 1 if stage else 0)
    return _range("PIPELINED" if stages else "SERIAL", start, stop, None, num_stages=stages)


def Parallel(*extents, coalesced_width=None, loop_layout=None, prefer_async=None, annotations=None):
    """Iterations in any order, spread over the threads of the block, with one variable for each extent. ``coalesced_width``: at most so
    many neighbours along the last extent go to one thread. A T.Parallel inside another one is a serial loop of each thread. ``loop_layout``
    and ``prefer_async``: no effect, with a warning.
    Shapes: one or more extents; those known at compile time make at most 2^24 iterations together. Where extents are known at run time only, the
    iterations are taken in turns of as many as the block has threads. Dtypes: integers. Targets: all. Errors: TraceError without an extent.
    CompileError where two iterations certainly meet in one element that one of them writes, and for a tile operation, ``break`` or
    ``continue`` in it. A warning where an element gets a value that depends on the thread that runs the iteration, and where threads read,
    outside of the loop, a T.alloc_local of which each iteration sets an element: T.serial lets each thread set all of it."""
    _annotated("T.Parallel", annotations)
    notices.unused("T.Parallel", loop_layout=(loop_layout, (None,), "which thread does what is inferred; leave it out"),
                   prefer_async=(prefer_async, (None, False),
                                 "write a T.copy in a T.Pipelined loop, which the compiler makes asynchronous"))
    if not extents:
        raise error("T.Parallel needs at least one extent")
    bounds = [_index(e) for e in extents]
    zeros, ones = [as_expr(0)] * len(bounds), [as_expr(1)] * len(bounds)
    return Loop("PARALLEL", zeros, bounds, ones, coalesced_width=coalesced_width or 0)


def grid(*extents):
    """Serial loops inside one another, the last extent innermost: ``for i, j in T.grid(M, N)``.
    Shapes: scalar extents. Dtypes: integers. Targets: all. Errors: as T.serial."""
    return Nest([serial(e) for e in extents])


class Persistent:
    """``for m, n in T.Persistent([M, N], workers, index)``: the tiles of a domain, each visited by one of ``workers`` blocks, of which
    ``index`` is this block's number. Tiles are taken in groups of ``group_size`` along the last axis, so that neighbours share what they
    read from the L2.
    Shapes: a domain of one or more scalar extents. Dtypes: integers. Targets: all. Errors: TypeError for what is no scalar."""

    def __init__(self, domain, wave_size, index, group_size=8):
        self.domain, self.wave_size, self.index, self.group_size = [as_expr(d) for d in domain], wave_size, index, group_size
        self.names = ()

    def __iter__(self):
        total = as_expr(1)
        for extent in self.domain:
            total = total * extent
        waves = Loop("SERIAL", [as_expr(0)], [floordiv(total + (self.wave_size - 1), self.wave_size)], [as_expr(1)])
        waves.names = ("wave",)
        trace = current("T.Persistent")
        for wave in waves:
            tile = wave * self.wave_size + self.index
            guard = trace.emit(ir.If(binary("LT", tile, total)))
            with trace.inside(guard.then_body):
                yield self._coordinates(tile)

    def _coordinates(self, tile):
        """The last axis in groups: within a group, the axes before it advance first."""
        *outer, last = self.domain
        rows = as_expr(1)
        for extent in outer:
            rows = rows * extent
        group = floordiv(tile, rows * self.group_size)
        from .math import min as smaller

        width = smaller(last - group * self.group_size, self.group_size)
        within = tile - group * (rows * self.group_size)
        column, row = group * self.group_size + within % width, within // width
        values = [column]
        for extent in reversed(outer):
            values.insert(0, row % extent)
            row = row // extent
        return tuple(values)


def traced_range(*bounds) -> Loop:
    """``range`` in the body of a kernel."""
    start, stop, step = (bounds + (None,))[:3] if len(bounds) > 1 else (0, bounds[0], None)
    return serial(start, stop, step)
