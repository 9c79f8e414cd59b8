# SPDX-License-Identifier: Apache-2.0
"""The values that a function's calls depend on, and the results of earlier calls."""

from __future__ import annotations

import sys

from .remote import _options, emulation_asked


def _is_numpy_scalar(value) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def is_tensor(value) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type) and not _is_numpy_scalar(value)


def freeze(value):
    """A hashable stand-in for a compile-time argument."""
    if isinstance(value, dict):
        return tuple(sorted((k, freeze(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(freeze(v) for v in value)
    if isinstance(value, set):
        return frozenset(freeze(v) for v in value)
    if isinstance(value, (bool, float)) or _is_numpy_scalar(value):
        return type(value).__name__, repr(value)  # 1, 1.0 and True are equal, and so are 0.0 and -0.0
    return value if getattr(value, "__hash__", None) else repr(value)


_PLAIN = frozenset((int, str, bool, type(None)))
_MOST = 4096


class Calls:
    """Results by what a call's program depends on: shapes, strides and types of tensors, types and values of other arguments, and whether
    ``kiln.emulation`` asks for the emulator. Of a scalar that
    the kernel takes at run time the type alone counts, as where None stands for one that is left out. Which these are, compile-time
    arguments decide: there is a table for each set of their names, and a call that is found in one has the arguments that decided so."""

    def __init__(self, names):
        self._names, self._tables = list(names), ()

    def find(self, args, kwargs):
        """What ``keep`` was given for such a call, or None."""
        try:
            for scalars, table in self._tables:
                known = table.get(self.key(args, kwargs, scalars))
                if known is not None:
                    return known
        except TypeError:  # an unhashable argument
            pass
        return None

    def keep(self, args, kwargs, result, scalars: frozenset):
        """``result``, once it is noted. ``scalars``: the names of those that this call's kernel takes at run time."""
        table = dict(self._tables).get(scalars)
        if table is None:
            table = {}
            self._tables = (*self._tables, (scalars, table))
        if len(table) >= _MOST:
            table.clear()
        try:
            table[self.key(args, kwargs, scalars)] = result
        except TypeError:
            pass
        return result

    def key(self, args, kwargs, scalars):
        """What such a call's result is kept by. TypeError for an unhashable argument."""
        parts = [len(args), _options.get() is not None and emulation_asked((*args, *kwargs.values()))]
        for name, value in (*zip(self._names, args), *kwargs.items()):
            kind = type(value)
            if name in scalars:
                parts.append((name, kind))
            elif kind in _PLAIN:
                parts.append((name, kind, value))
            elif is_tensor(value):
                stride = getattr(value, "stride", None)
                parts.append((name, tuple(value.shape), stride() if stride is not None else getattr(value, "strides", None), value.dtype))
            else:
                parts.append((name, kind, freeze(value)))
        if len(args) > len(self._names):  # of a *parameter
            parts.append(freeze(args[len(self._names):]))
        return tuple(parts)
