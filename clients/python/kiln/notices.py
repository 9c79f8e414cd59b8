# SPDX-License-Identifier: Apache-2.0
"""Warnings about what a program asks for and Kiln does not do, once for each line that asks."""

from __future__ import annotations

import sys
import warnings

from .errors import NoEffectWarning


def _caller():
    """The innermost frame of a traced function; else the first outside of this package and of the one that stands in for TileLang."""
    from .language.trace import is_traced

    outside = None
    frame = sys._getframe(2)
    while frame is not None:
        if is_traced(frame.f_code):
            return frame
        if outside is None and frame.f_globals.get("__name__", "").split(".")[0] not in ("kiln", "tilelang"):
            outside = frame
        frame = frame.f_back
    return outside or sys._getframe(1)


def warn(message: str, category=UserWarning) -> None:
    """A warning at the line of the program."""
    frame = _caller()
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "<program>"),
                           registry)


_told: dict = {}  # what is known at the end of a kernel: a registry for each file


def no_effect(what: str, instead: str, location=None) -> None:
    """``what`` is accepted and changes nothing; ``instead``: why, and what to use. ``location``: of the statement, where the trace has passed it."""
    message = f"{what} has no effect in Kiln: {instead}"
    if location is None or not location.line:
        warn(message, NoEffectWarning)
    else:
        warnings.warn_explicit(message, NoEffectWarning, location.file, location.line, "<program>",
                               _told.setdefault(location.file, {}))


def unused(name: str, **arguments) -> None:
    """Arguments that have no effect, each as (value, the values that ask for nothing, why and what to use)."""
    for argument, (value, nothing, instead) in arguments.items():
        if not any(value is known or (type(value) is type(known) and value == known) for known in nothing):
            no_effect(f"{name}({argument}={value!r})", instead)
