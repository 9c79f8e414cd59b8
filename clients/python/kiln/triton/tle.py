# SPDX-License-Identifier: Apache-2.0
"""``triton.experimental.tle`` and its ``language``, which have the same names here: the extensions of Triton's language by tiles of blocks, by
buffers in shared memory and by groups of warps."""

from __future__ import annotations

import sys as _sys

from .extensions.tiles import cumsum, extract_tile, insert_tile, load  # noqa: F401
from .language import range  # noqa: F401

language = _sys.modules[__name__]


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"triton.experimental.tle.{name} is not part of Kiln's Triton front end")
