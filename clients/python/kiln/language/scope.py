# SPDX-License-Identifier: Apache-2.0
"""What rewritten code calls in place of Python's own statements (see ``rewrite``)."""

from __future__ import annotations

import builtins
import contextlib
import operator
import warnings

from .. import notices
from . import program as ir
from . import trace as tr
from .buffer import Buffer, LocalVar, Region
from .dtypes import DType
from .expr import Expr, Operators, as_expr, cast, condition, constant_value, logical, logical_not, select
from .lanes import Lanes
from .launch import Kernel, rename
from .loops import Loop, Nest, Persistent, traced_range

_MISSING = object()


def _static(value) -> bool:
    """Whether a condition is decided while tracing."""
    return not isinstance(value, Operators) or constant_value(as_expr(value)) is not None


def _truth(value) -> bool:
    return bool(constant_value(as_expr(value))) if isinstance(value, Operators) else bool(value)


class Branch:
    """``if``: a condition known now chooses what is traced; any other makes an If and both sides are traced into it."""

    def __init__(self, cond):
        self.static = _static(cond)
        trace = tr.active()
        if self.static:
            self.truth = _truth(cond)
        elif trace.kernel is None and trace.declare_only:
            self.stmt = ir.If(condition(cond))
        else:
            self.stmt = trace.emit(ir.If(condition(cond)))

    @contextlib.contextmanager
    def _within(self, block):
        if self.static:
            yield
            return
        with tr.active().inside(block, "branch"):
            yield

    def then_(self):
        return self.truth if self.static else True

    def else_(self):
        return not self.truth if self.static else True

    def then_block(self):
        return self._within(None if self.static else self.stmt.then_body)

    def else_block(self):
        return self._within(None if self.static else self.stmt.else_body)


class Scope:
    """The object that rewritten code knows as ``__kiln__``."""

    branch = staticmethod(Branch)
    operator = operator
    MISSING = _MISSING

    @staticmethod
    def loop(iterable, names):
        if isinstance(iterable, (Loop, Nest, Persistent)):
            iterable.names = names
            yield from iterable
            return
        trace = tr.active()
        trace.loops.append("python")
        try:
            yield from iterable
        finally:
            trace.loops.pop()

    @staticmethod
    def range(function, *bounds, **keywords):
        if function is not builtins.range or keywords:
            return function(*bounds, **keywords)
        if tr.active().kernel is None and all(isinstance(b, int) for b in bounds):
            return builtins.range(*bounds)
        return traced_range(*bounds)

    @staticmethod
    def while_(test):
        trace, statements = tr.active(), []
        with trace.inside(statements):
            cond = test()
        if _static(cond):
            if _truth(cond):
                raise tr.error("Infinite while loop detected: the condition is always true; a loop over run-time values needs a condition "
                               "that reads a T.alloc_var or a buffer")
            warnings.warn("the condition of this while loop is always false", stacklevel=2)
            return
        if not statements:
            stmt = trace.emit(ir.While(condition(cond)))
        else:  # the test itself does something, each time
            stmt = trace.emit(ir.While(as_expr(True)))
            leave = ir.If(logical_not(condition(cond)), [ir.Break(location=stmt.location)], location=stmt.location)
            stmt.body[:] = [*statements, leave]
        with trace.inside(stmt.body, "ir"):
            yield

    @staticmethod
    def break_():
        return Scope._leave(ir.Break(), "break")

    @staticmethod
    def continue_():
        return Scope._leave(ir.Continue(), "continue")

    @staticmethod
    def _leave(stmt, word) -> bool:
        """Whether the statement concerns a loop that Python runs; else it is part of the program."""
        trace = tr.active()
        enclosing = [kind for kind in trace.loops if kind != "branch"]
        if enclosing and enclosing[-1] == "python":
            if trace.loops[-1] == "branch":
                raise tr.error(f"{word} under a run-time condition, in a loop that is unrolled while tracing; use T.serial or T.unroll")
            return True
        trace.emit(stmt)
        return False

    @staticmethod
    def bind(name, value, old=_MISSING, by_name=False):
        """``name = value``."""
        if isinstance(old, LocalVar) and not (isinstance(value, LocalVar) and not by_name):
            old.store(value)
            return old
        value = Scope.opened(value)
        if isinstance(value, Lanes):
            return value.read()
        if isinstance(value, LocalVar) and by_name:
            value = value.as_scalar()
        if isinstance(value, Expr):
            number = constant_value(value)
            if isinstance(number, int) and value.dtype == "int32":
                return number
            if isinstance(old, Expr) and old.op == "VAR" and old.value.kind == "LET":
                warnings.warn(f"{name} is bound again: a name holds an immutable value; use T.alloc_var for one that changes", stacklevel=2)
            return tr.let(name, value)
        rename(value, name)
        return value

    @staticmethod
    def held(value, by_name=False):
        """What several targets take: it is read before the first of them changes. ``by_name``: see ``rewrite._by_name``."""
        if isinstance(value, (tuple, list)):
            names = by_name if isinstance(by_name, tuple) and len(by_name) == len(value) else [False] * len(value)
            return tuple(Scope.held(v, name) for v, name in zip(value, names))
        if isinstance(value, LocalVar) and by_name is True:
            value = value.as_scalar()
        if isinstance(value, Lanes):
            return value.read()
        return tr.let("held", value) if isinstance(value, Expr) else value

    @staticmethod
    def typed(annotation, value):
        """``name: annotation = value``."""
        if isinstance(annotation, DType) and (isinstance(value, (Operators, bool, int, float))):
            return cast(value, annotation)
        return value

    @staticmethod
    def declare(name, annotation, old=_MISSING):
        """``name: T.Tensor(…)``."""
        from .function import declare

        return declare(name, annotation, None if old is _MISSING else old)

    @staticmethod
    def augmented(name, old, function, value):
        """``name op= value``."""
        if isinstance(old, LocalVar):
            old.store(function(old.as_scalar(), value))
            return old
        if isinstance(old, (Buffer, Region)):
            raise tr.error(f"`{name} op= value` on a whole buffer; index it, `{name}[i] op= value`, in a loop over T.Parallel")
        return Scope.bind(name, function(old, value), old)

    @staticmethod
    def if_expression(cond, then, otherwise):
        if _static(cond):
            return then() if _truth(cond) else otherwise()
        a, b = then(), otherwise()
        if isinstance(a, (Operators, bool, int, float)) and isinstance(b, (Operators, bool, int, float)):
            return select(cond, a, b)
        raise tr.error(f"`a if condition else b` under a run-time condition needs scalars, not {a!r} and {b!r}")

    @staticmethod
    def boolean(op, value, *rest):
        for other in rest:
            if _static(value):
                if _truth(value) == (op == "OR"):
                    return value
                value = other()
            else:
                right = other()
                value = logical(op, value, right)
        return value

    @staticmethod
    def chain(*comparisons):
        result = comparisons[0]
        for other in comparisons[1:]:
            result = Scope.boolean("AND", result, lambda other=other: other)
        return result

    @staticmethod
    def not_(value):
        return not _truth(value) if _static(value) else logical_not(value)

    @staticmethod
    def assert_(cond, message):
        if not _static(cond):
            notices.warn("this assert is left out: conditions of run-time values are not checked in this version")
        elif not _truth(cond):
            raise AssertionError(message() if message else "assertion failed while tracing")

    @staticmethod
    def opened(value):
        """A T.Kernel that is no `with` holds for the rest of the function."""
        return tr.active().open_frames.enter_context(value) if isinstance(value, Kernel) else value

    @staticmethod
    def expression(value):
        Scope.opened(value)

    @staticmethod
    def returned(value):
        trace = tr.active()
        if any(kind != "python" for kind in trace.loops[trace.entry_depth :]):
            problem = tr.error("return under a run-time condition or in a loop; set a T.alloc_var and return it after")
            raise NotImplementedError(str(problem))
        return value
