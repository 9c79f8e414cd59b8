# SPDX-License-Identifier: Apache-2.0
"""TVM's names for the expressions of a program. Each makes one where it is called, and isinstance asks for its operation."""

import functools
import sys

import kiln.language as language
from kiln.language.expr import COMPARISONS, Deferred, Expr, as_expr, binary, cast, const, logical
from kiln.language.kinds import Kind, PrimExpr, Var
from kiln.language.math import if_then_else, is_written_out, reinterpret
from kiln.language.program import PrimFunc

from .. import _absent


def _kind(name: str, ops, make):
    """The class of expressions of these operations. ``make`` gives one from TVM's arguments."""

    def holds(value):
        return isinstance(value, Expr) and value.op in ops

    return Kind(name, (), {"__new__": lambda cls, *args, **kwargs: make(*args, **kwargs), "holds": staticmethod(holds), "__doc__":
                           f"An expression that TVM calls {name}."})


IntImm = _kind("IntImm", ("CONST_INT",), lambda dtype, value, span=None: const(int(value), dtype))
FloatImm = _kind("FloatImm", ("CONST_FLOAT",), lambda dtype, value, span=None: const(float(value), dtype))
Cast = _kind("Cast", ("CAST",), lambda dtype, value, span=None: cast(value, dtype))
Select = _kind("Select", ("SELECT",), lambda condition, true_value, false_value, span=None: if_then_else(condition, true_value, false_value))
BufferLoad = _kind("BufferLoad", ("LOAD",), lambda buffer, indices, span=None: as_expr(buffer[tuple(indices)]))
Not = _kind("Not", ("NOT",), lambda a, span=None: language.Not(a))
And = _kind("And", ("AND",), lambda a, b, span=None: logical("AND", a, b))
Or = _kind("Or", ("OR",), lambda a, b, span=None: logical("OR", a, b))
_BINARY = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "DIV", "Mod": "MOD", "FloorDiv": "FLOOR_DIV", "FloorMod": "FLOOR_MOD", "Min": "MIN",
           "Max": "MAX", **{op: op for op in COMPARISONS}}
for _name, _op in _BINARY.items():
    globals()[_name] = _kind(_name, (_op,), lambda a, b, span=None, op=_op: binary(op, as_expr(a), b))


_CALLS = frozenset((
    "ABS BIT_AND BIT_NOT BIT_OR BIT_XOR CEIL COS ERF EXP EXP2 FLOOR FMA IS_NAN LOG LOG2 POW REINTERPRET ROUND RSQRT SHL SHR SIGMOID SIN SQRT "
    "TANH TRUNC").split())


class Call(metaclass=Kind):
    """The class of what functions give: T.exp(x), T.any_sync(x), x & y. To ask about; the functions make them."""

    def __new__(cls, *_, **__):
        raise TypeError("tirx.Call is a class to ask about; call the function, as T.exp(x)")

    @staticmethod
    def holds(value) -> bool:
        return isinstance(value, Deferred) or isinstance(value, Expr) and (value.op in _CALLS or is_written_out(value))


def all(*conditions):
    """Whether every condition holds."""
    return functools.reduce(functools.partial(logical, "AND"), conditions)


def any(*conditions):
    """Whether one of the conditions holds."""
    return functools.reduce(functools.partial(logical, "OR"), conditions)


Shuffle = language.Shuffle
__all__ = ["And", "BufferLoad", "Call", "Cast", "FloatImm", "IntImm", "Not", "Or", "PrimExpr", "PrimFunc", "Select", "Shuffle", "Var",
           "all", "any", "const",
           "reinterpret", *_BINARY]
__path__ = []  # so that "tvm.tirx.expr" can be imported
sys.modules[f"{__name__}.expr"] = expr = sys.modules[__name__]
__getattr__ = _absent.getter(__name__)
