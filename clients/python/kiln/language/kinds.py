# SPDX-License-Identifier: Apache-2.0
"""Classes by which a program asks what an expression is: ``isinstance(dim, T.Var)``. Expressions are of one class, and these look at their
operation."""

from __future__ import annotations

from .dtypes import as_dtype
from .expr import Expr, Operators
from .expr import Var as _Variable


class Kind(type):
    """The class of classes that decide for themselves what belongs to them, by ``holds(value)``."""

    def __instancecheck__(cls, value):
        return cls.holds(value)


class PrimExpr(metaclass=Kind):
    """The class of scalars of a program: expressions, and what T.alloc_var gives. For isinstance and for annotations.
    Shapes: a scalar. Dtypes: any. Targets: all. Errors: TypeError where it is called."""

    def __new__(cls, *_, **__):
        raise TypeError("T.PrimExpr is a class to ask about; T.cast(number, dtype) makes a constant")

    @staticmethod
    def holds(value) -> bool:
        return isinstance(value, Operators)


class Var(metaclass=Kind):
    """The class of variables: of a loop, of a block or thread, of a scalar parameter, of T.dynamic. As the annotation of a T.macro parameter it
    means T.Ref. ``T.Var(name, dtype)`` makes what T.dynamic makes.
    Shapes: a scalar. Dtypes: integers; any for a scalar parameter. Targets: all. Errors: TypeError for no dtype."""

    def __new__(cls, name: str = "v", dtype="int32"):
        return _Variable("SYMBOL", as_dtype(dtype), name).expr

    @staticmethod
    def holds(value) -> bool:
        return isinstance(value, Expr) and value.op == "VAR"
