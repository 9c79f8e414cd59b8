# SPDX-License-Identifier: Apache-2.0
"""Things of a Triton that is installed beside Kiln, as programs hold them."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType


def _installed() -> bool:
    """Whether the package ``triton`` is Triton's own and not the one that stands in for it."""
    package = sys.modules.get("triton")
    return package is not None and not (getattr(getattr(package, "jit", None), "__module__", None) or "").startswith("kiln.")


def home_of(x) -> str:
    """The module of Triton that a thing is of, or "" of another thing."""
    if isinstance(x, ModuleType):
        name = x.__name__
    else:
        name = getattr(x if isinstance(x, (type, FunctionType)) else type(x), "__module__", None) or ""
    return name if name.partition(".")[0] == "triton" and _installed() else ""


def as_ours(x):
    """What Kiln has in its place; anything else as it is."""
    if not home_of(x):
        return x
    from .adopt import ours

    return ours(x)
