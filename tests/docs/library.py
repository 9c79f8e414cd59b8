# SPDX-License-Identifier: Apache-2.0
"""The reference of kiln.library, made of its docstrings; empty where this tree has no such package."""

from __future__ import annotations

import importlib.util
import inspect
import sys

from parts import ROOT

sys.path.insert(0, str(ROOT / "clients" / "python"))


def reference() -> str:
    if importlib.util.find_spec("kiln.library") is None:
        return ""
    from kiln import library

    return "\n".join(_entry(name, getattr(library, name)) for name in sorted(library.__all__, key=str.lower) if callable(getattr(library, name)))


def _entry(name: str, thing) -> str:
    text = " ".join((thing.__doc__ or "").split()).replace("``", "`")
    if not text:
        raise ValueError(f"library.{name} has no docstring")
    signature = inspect.signature(thing)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    shown = signature.replace(parameters=bare, return_annotation=signature.empty)
    return f"#### library.{name}\n\n`library.{name}{shown}`\n\n{text}\n"
