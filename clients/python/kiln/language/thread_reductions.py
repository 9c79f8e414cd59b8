# SPDX-License-Identifier: Apache-2.0
"""TVM's way to combine a value of each thread along dimensions of the block: T.comm_reducer, T.attr and T.tvm_thread_allreduce."""

from __future__ import annotations

import contextlib

from . import program as ir
from . import trace as tr
from .buffer import element, load
from .dtypes import as_dtype
from .expr import Expr, Var, as_expr, cast, constant_value
from .launch import get_thread_binding
from .loops import Parallel
from .math import if_then_else

_KINDS = {"ADD": "REDUCE_SUM", "MAX": "REDUCE_MAX", "MIN": "REDUCE_MIN", "BIT_AND": "REDUCE_BIT_AND", "BIT_OR": "REDUCE_BIT_OR",
          "BIT_XOR": "REDUCE_BIT_XOR"}


class CommReducer:
    """What T.comm_reducer gives: how two values become one."""

    def __init__(self, function, identity):
        self.function, self.identity = function, identity

    def kind(self, dtype):
        """The reduction of the IR that does it, or None."""
        a, b = Var("LOOP", dtype, "a").expr, Var("LOOP", dtype, "b").expr
        result = as_expr(self.function(a, b))
        plain = result.op in _KINDS and result.dtype == dtype and set(result.args) == {a, b}
        return _KINDS[result.op] if plain and dtype.kind != "b" else None


def comm_reducer(function, identity):
    """How two values become one, for T.attr and T.tvm_thread_allreduce: ``T.comm_reducer(lambda x, y: x + y, [T.float32(0)])``.
    Shapes: a function of two scalars, and a list of one scalar. Dtypes: any. Targets: all. Errors: TraceError for several values at once."""
    values = list(identity) if isinstance(identity, (list, tuple)) else [identity]
    if len(values) != 1:
        raise tr.error(f"T.comm_reducer of {len(values)} values at once: one is combined at a time; call T.tvm_thread_allreduce for each")
    return CommReducer(function, values[0])


@contextlib.contextmanager
def attr(node, key, value):
    """``with T.attr(reducer, "reduce_scope", …):`` says how T.tvm_thread_allreduce combines within.
    Shapes: none. Dtypes: none. Targets: all. Errors: TraceError for another key, and for what is no T.comm_reducer."""
    trace = tr.current("T.attr")
    if key != "reduce_scope" or not isinstance(node, CommReducer):
        raise tr.error(f"T.attr({node!r}, {key!r}): known is \"reduce_scope\" of a T.comm_reducer; other attributes say what the compiler infers")
    trace.reduce_scopes.append(node)
    try:
        yield
    finally:
        trace.reduce_scopes.pop()


def evaluate(value):
    """A call that stands as a statement, as TVM writes it: ``T.evaluate(T.tvm_thread_allreduce(…))``. The call has had its effect.
    Shapes: any. Dtypes: any. Targets: all. Errors: none."""
    return value


def tvm_thread_allreduce(size, value, condition, result, *threads, dtype="handle"):
    """``result`` is what the values of all threads become that differ from this one along ``threads`` alone, in each of them. A T.attr around
    it says how two values become one.
    Shapes: ``value`` is a scalar, ``result`` an element of a T.alloc_local; ``size`` is 1, ``condition`` True. ``threads`` are
    T.get_thread_binding of the block's dimensions. Dtypes: any of 8 bits or more; ``value`` is converted to the dtype of ``result``. Targets:
    all. Errors: TraceError without a T.attr around it, in T.Parallel, and for another ``size``, ``condition`` or ``threads``. CompileError
    where only some threads reach it."""
    trace = tr.current("T.tvm_thread_allreduce")
    if not trace.reduce_scopes or "parallel" in trace.loops:
        raise tr.error("T.tvm_thread_allreduce stands under T.attr(T.comm_reducer(…), \"reduce_scope\", …), outside of T.Parallel")
    if constant_value(as_expr(size)) != 1 or constant_value(as_expr(condition)) not in (True, 1):
        raise tr.error("T.tvm_thread_allreduce of one value, of all threads: size is 1 and the condition True")
    kernel, target = trace.kernel, element(result)
    if target is None:
        raise tr.error(f"the result of T.tvm_thread_allreduce is an element of a buffer, not {result!r}")
    bindings = [get_thread_binding(d) for d in range(3)]
    dims = set()
    for thread in threads:
        found = [d for d in range(3) if isinstance(thread, Expr) and kernel.block[d] > 1 and bindings[d] is thread]
        if not found and constant_value(as_expr(thread)) != 0:
            raise tr.error(f"T.tvm_thread_allreduce along {thread!r}: give what T.get_thread_binding(dimension) gives")
        dims.update(found)
    dtype = as_dtype(target[0].dtype)
    tile = tr.allocate("SHARED", tuple(reversed(kernel.block)), dtype, "allreduce")
    tr.store(tile, tuple(reversed(bindings)), cast(value, dtype))
    tr.store(*target, _combined(trace.reduce_scopes[-1], tile, bindings, dims))


def _combined(reducer: CommReducer, tile, bindings, dims: set) -> Expr:
    kind, at = reducer.kind(tile.dtype), list(reversed(bindings))
    for d in sorted(dims):
        axis = 2 - d
        if kind is not None:
            smaller = tr.allocate("SHARED", tuple(1 if a == axis else e for a, e in enumerate(tile.shape)), tile.dtype, "allreduce")
            tr.emit(ir.Reduce(kind, tile.whole(), smaller.whole(), axis, True))
            at[axis] = as_expr(0)
        else:
            smaller = _halved(reducer, tile, axis)
            at[axis] = as_expr(0)
        tile = smaller
    return load(tile, at)


def _halved(reducer: CommReducer, tile, axis: int):
    """One value along the axis: the second half is combined with the first until one is left, as threads exchange them."""
    while tile.shape[axis] > 1:
        extent, half = tile.shape[axis], (tile.shape[axis] + 1) // 2
        smaller = tr.allocate("SHARED", tuple(half if a == axis else e for a, e in enumerate(tile.shape)), tile.dtype, "allreduce")
        for index in Parallel(*smaller.shape):
            index = index if isinstance(index, tuple) else (index,)
            value, other = (load(tile, [i + step if a == axis else i for a, i in enumerate(index)]) for step in (0, half))
            combined = cast(reducer.function(value, other), tile.dtype)
            tr.store(smaller, index, combined if extent == 2 * half else if_then_else(index[axis] + half < extent, combined, value))
        tile = smaller
    return tile


__all__ = ["comm_reducer", "attr", "evaluate", "tvm_thread_allreduce"]
