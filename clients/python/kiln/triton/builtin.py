# SPDX-License-Identifier: Apache-2.0
"""What a kernel finds in ``tl``: functions that the interpreter runs with its builder, and names that say what to use instead."""

from __future__ import annotations

import inspect
import operator
import warnings

from ..errors import NoEffectWarning
from .errors import Refusal


def no_effect(builder, what: str, instead: str) -> None:
    """A warning at the kernel's line."""
    warnings.warn_explicit(f"{what} has no effect in Kiln: {instead}", NoEffectWarning, builder.file, builder.line)


class Builtin:
    """A function of Triton's language. ``run(builder, …)`` makes its operations. Outside of kernels a call is an error. ``package``: what programs
    call the module that it is in."""

    def __init__(self, function, name: str = "", package: str = "tl"):
        self.__name__ = self.__qualname__ = name or function.__name__
        self._package = package
        self.__doc__, self.run = function.__doc__, function
        self._signature = inspect.signature(function)

    def bind(self, builder, args, kwargs):
        """The call; TypeError in the words of Python where the arguments do not fit."""
        try:
            self._signature.bind(builder, *args, **kwargs)
        except TypeError as problem:
            raise Refusal(f"{self._package}.{self.__name__}: {problem}") from None
        return self.run(builder, *args, **kwargs)

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"{self._package}.{self.__name__} is called outside of a kernel; it belongs into a function with @triton.jit")

    def __repr__(self):
        return f"<{self._package}.{self.__name__}>"


class OfConstants(Builtin):
    """One that needs no builder, so that Python's functions of constants call it as well."""

    def __call__(self, *args, **kwargs):
        return self.run(None, *map(unwrapped, args), **{name: unwrapped(value) for name, value in kwargs.items()})


def builtin(function):
    return Builtin(function)


class Absent:
    """A name of Triton's language that Kiln does not have; using it is refused with what to use."""

    def __init__(self, name: str, instead: str, package: str = "tl"):
        self.__name__, self.instead, self._package = name, instead, package

    def refusal(self) -> Refusal:
        return Refusal(f"{self._package}.{self.__name__} is not part of Kiln: {self.instead}")

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(str(self.refusal()))

    def __repr__(self):
        return f"<{self._package}.{self.__name__}, which Kiln does not have>"


class constexpr:
    """A value that is known when a kernel is compiled: the annotation of such parameters, and what makes a global visible to kernels."""

    def __init__(self, value):
        self.value = value.value if isinstance(value, constexpr) else value

    def __repr__(self):
        return f"constexpr[{self.value!r}]"

    def __eq__(self, other):
        return self.value == unwrapped(other)

    def __hash__(self):
        return hash(self.value)

    def __bool__(self):
        return bool(self.value)

    def __index__(self):
        return self.value.__index__()

    def __call__(self, *args, **kwargs):
        return self.value(*args, **kwargs)


def _with_operators() -> None:
    def of(name: str, turned: bool = False):
        function = getattr(operator, f"__{name}__")

        def method(self, *others):
            values = (self.value, *map(unwrapped, others))
            return constexpr(function(*(reversed(values) if turned else values)))

        setattr(constexpr, f"__{'r' if turned else ''}{name}__", method)

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"):
        of(name)
        of(name, turned=True)
    for name in ("lt", "le", "gt", "ge", "neg", "pos", "invert"):
        of(name)


_with_operators()


def unwrapped(x):
    """What a constexpr holds; anything else as it is."""
    return x.value if isinstance(x, constexpr) else x
