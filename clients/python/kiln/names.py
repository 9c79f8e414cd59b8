# SPDX-License-Identifier: Apache-2.0
"""What a mistyped name may have meant."""

from __future__ import annotations

import difflib


def closest(name: str, known) -> str | None:
    """The known name that is written most like this one, whatever the case of its letters; None where none is close."""
    by_lower = {k.lower(): k for k in sorted(known, reverse=True)}
    found = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.7)
    return by_lower[found[0]] if found else None


def unknown(message: str, name: str, known, prefix: str) -> AttributeError:
    """The error for an attribute that is not there, with the name that may have been meant. Python's own traceback adds no second one."""
    meant = closest(name, known)
    return AttributeError(message + (f": did you mean {prefix}{meant}?" if meant else ""), name=name, obj=None)
