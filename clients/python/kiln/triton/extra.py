# SPDX-License-Identifier: Apache-2.0
"""``tl.extra``: what Triton has beside its language. Of ``cuda`` the number of threads and of warps, which each target has."""

from __future__ import annotations

from types import SimpleNamespace

from . import libdevice
from .builtin import Absent, builtin


@builtin
def num_threads(b):
    return 32 * b.num_warps


@builtin
def num_warps(b):
    return b.num_warps


_DEVICE = "kernels do not see the device's clock and places; pass what the kernel needs"
cuda = SimpleNamespace(libdevice=libdevice, num_threads=num_threads, num_warps=num_warps,
                       **{name: Absent(f"extra.cuda.{name}", _DEVICE) for name in ("globaltimer", "smid")})
