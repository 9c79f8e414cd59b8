# SPDX-License-Identifier: Apache-2.0
"""The trace in progress: where statements go, and which source line made them. One trace at a time in each thread; a trace that starts
inside another one (a tile function made by a helper) does not see the outer."""

from __future__ import annotations

import bisect
import contextlib
import numbers
import sys
import threading

from .. import notices
from ..errors import KilnError
from . import program as ir
from .affine import contains, evaluated, finds
from .buffer import Buffer, LocalVar, Region, as_dim
from .dtypes import as_dtype
from .expr import Expr, Var, as_expr, cast, constant_value


class TraceError(RuntimeError):
    """A program that the language does not allow, with the line that wrote it.
    Shapes: none. Dtypes: none. Targets: all. Errors: it is one, a RuntimeError."""


class TraceValueError(TraceError, ValueError):
    """A TraceError about an argument that has another value than those it may have."""


class DeclarationsDone(Exception):
    """Ends a trace that only wants the parameters, at the first kernel."""


_state = threading.local()
_traced_code: dict = {}  # by id: a hash of a code object takes time in proportion to its length
_LOAD = frozenset(("LOAD",))
_INLINE_SIZE = 64


class _Lines:
    """The lines of a code object's instructions; f_lineno takes time in proportion to the code."""

    def __init__(self, code):
        self.code, self.starts, self.lines = code, None, None  # the code object lives on, so that its id stays its own

    def at(self, frame) -> int:
        if self.starts is None:
            spans = list(self.code.co_lines())
            self.starts, self.lines = [start for start, _, _ in spans], [line for _, _, line in spans]
        line = self.lines[bisect.bisect_right(self.starts, frame.f_lasti) - 1]
        return frame.f_lineno if line is None else line


def register_code(code) -> None:
    """Marks a code object, and those nested in it, as written by the user."""
    _traced_code[id(code)] = _Lines(code)
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            register_code(constant)


def is_traced(code) -> bool:
    return id(code) in _traced_code


def here() -> ir.Location:
    """The innermost line of traced source that is being executed."""
    frame = sys._getframe(1)
    while frame is not None:
        lines = _traced_code.get(id(frame.f_code))
        if lines is not None:
            return ir.Location(frame.f_code.co_filename, lines.at(frame))
        frame = frame.f_back
    return ir.Location()


def error(message: str) -> TraceError:
    return TraceError(_located(message))


def value_error(message: str) -> TraceError:
    """Where only certain values are possible: a ValueError as well."""
    return TraceValueError(_located(message))


class Refused(TraceError, KilnError):
    """Of a program that can be made, as in TileLang, and is not compiled."""


def refuse(message: str) -> None:
    """The program is traced on; what compiles it gets the error."""
    func = current(message).func
    func.refused = func.refused or Refused(_located(message))


def _located(message: str) -> str:
    at = here()
    return f"{at.file}:{at.line}: {message}" if at.line else message


class Trace:
    """State of one trace. ``consts`` gives the values of T.const names; None: the trace only collects declarations."""

    def __init__(self, name: str, consts=None, declare_only: bool = False):
        self.func = ir.PrimFunc(name)
        self.consts, self.declare_only = consts or {}, declare_only
        self.const_vars: dict[str, Var] = {}
        self.arguments: dict = {}
        self.empties: list = []
        self.kernel: ir.Kernel | None = None
        self.views = False  # whether some buffer has another name (T.reshape, T.view)
        self.assumed: list = []  # outside of kernels: statements for each that follows
        self.blocks: list[list] = []
        self.loops: list[str] = []
        self.open_loops: list = []  # statements, the outermost first
        self.bound: dict = {}  # variables that T.let has given a value, and the block for whose rest
        self.draws = 0  # of random numbers, so far
        self.reducers: list = []  # T.alloc_reducer of this kernel
        self.contributions: dict = {}  # to reducers, of the T.Parallel loop that is open
        self.reduce_scopes: list = []  # T.attr(…, "reduce_scope", …) that are open
        self.entry_depth = 0  # loops that were open when the function being traced was entered
        self.open_frames = contextlib.ExitStack()

    def emit(self, stmt):
        if self.kernel is None:
            return self._outside(stmt)
        block = self.blocks[-1]
        if block and isinstance(block[-1], (ir.Break, ir.Continue)):
            raise error("a statement after break or continue is never reached")
        stmt.location = here()
        block.append(stmt)
        return stmt

    def _outside(self, stmt):
        """A function without kernels can be made, as TVM's are; what compiles it gets the error."""
        stray = error("this statement needs a kernel around it: `with T.Kernel(blocks, threads=128) as bx:`")
        if self.func.kernels:
            raise stray
        self.func.stray = self.func.stray or stray
        stmt.location = here()
        return stmt

    @contextlib.contextmanager
    def inside(self, block: list, loop: str | None = None):
        """Statements go to this block. ``loop``: "ir", "parallel" or "python" where the block is the body of a loop, "branch"
        for an if."""
        self.blocks.append(block)
        if loop:
            self.loops.append(loop)
        try:
            yield
        finally:
            self.blocks.pop()
            if loop:
                self.loops.pop()


def current(what: str = "this") -> Trace:
    trace = getattr(_state, "trace", None)
    if trace is None:
        raise TraceError(f"{what} is used outside a function that is being traced (T.prim_func, T.macro or kiln.jit)")
    return trace


def active() -> Trace | None:
    return getattr(_state, "trace", None)


@contextlib.contextmanager
def tracing(trace: Trace):
    outer = getattr(_state, "trace", None)
    _state.trace = trace
    try:
        with trace.open_frames:
            yield trace
    finally:
        _state.trace = outer


def emit(stmt):
    return current(f"a {type(stmt).__name__.lower()} statement").emit(stmt)


def store(buffer: Buffer, indices, value) -> None:
    if isinstance(value, (Buffer, Region)):
        value = value.as_scalar()
    indices, value = [as_expr(as_dim(i)) for i in indices], converted(value, buffer)
    if not buffer.stored(indices, value):
        emit(ir.Store(buffer, indices, value))


def fill(region: Region, value) -> None:
    from .regions import closed

    region.buffer.filled()
    emit(ir.Fill(closed(region), converted(value, region.buffer)))


def converted(value, buffer: Buffer) -> Expr:
    """The value in the buffer's type, which has as many bits of an integer as it has itself. A constant of more bits is warned of."""
    number, dtype = value if isinstance(value, numbers.Integral) else constant_value(value), buffer.dtype
    if dtype.loses_bits_of(number):
        notices.warn(f"{number} is given to {buffer.name}, and {dtype} has no such number: of its bits the last {dtype.bits} are kept; use a wider "
                     "type, or T.cast(…) where that is meant")
    return cast(value, dtype)


def let(name: str, value: Expr) -> Expr:
    """The value under a name. Index arithmetic of modest size means the same wherever it stands and is best seen whole; anything else is
    evaluated here and kept."""
    trace = active()
    if trace is None or trace.kernel is None or value.op in ("VAR", "CONST_INT", "CONST_FLOAT"):
        return value
    if not value.dtype.is_float and value.size <= _INLINE_SIZE and not contains(value, _LOAD):
        return value
    var = Var("LET", value.dtype, name)
    trace.emit(ir.Let(var, value))
    return var.expr


def unnamed(e: Expr) -> Expr:
    """The expression with the values of names in their place, those that are computed of variables alone and so are the same wherever they stand."""
    if not finds(e, _is_name):
        return e
    values: dict = {}
    for block in active().blocks:
        for stmt in block:
            if isinstance(stmt, ir.Let):
                value = evaluated(stmt.value, values)
                values[stmt.var.expr] = stmt.var.expr if contains(value, _LOAD) else value
    return evaluated(e, values)


def has_value(v: Expr) -> bool:
    """Whether a variable of T.let has one here."""
    trace = active()
    return trace is not None and any(block is trace.bound.get(v) for block in trace.blocks)


def _is_name(node) -> bool:
    return node.op == "VAR" and node.value.kind == "LET"


def allocate(space: str, shape, dtype, name: str) -> Buffer:
    buffer = Buffer(space, shape, as_dtype(dtype), name)
    for dim in buffer.shape:
        if not isinstance(dim, int):
            raise error(f"an allocation needs compile-time dimensions; {dim!r} is known at run time only")
        if dim < 0:
            raise error(f"an allocation of shape {list(buffer.shape)}: no dimension may be negative")
    emit(ir.Alloc(buffer))
    return buffer


def variable(dtype, name: str, init=None) -> LocalVar:
    handle = LocalVar(allocate("LOCAL", (1,), dtype, name))
    if init is not None:
        handle.store(init)
    return handle


def static_value(value):
    """A Python number where the value is known now, else None."""
    return constant_value(value) if isinstance(value, (Expr, bool, int, float)) else None
