# SPDX-License-Identifier: Apache-2.0
"""The eight-bit float that the current device computes with."""

from __future__ import annotations

from .dtypes import DType, as_dtype


def determine_fp8_type(kind: str = "e4m3") -> DType:
    """The 8-bit float type that the device of this process computes with: float8_e4m3fn or float8_e5m2, and on AMD CDNA3 (gfx940 to gfx942)
    the types without negative zero. ``kind`` is "e4m3" or "e5m2".
    Shapes: none; it gives a dtype. Dtypes: an 8-bit float. Targets: all. Errors: ValueError for another ``kind``."""
    from .. import target

    if kind not in ("e4m3", "e5m2"):
        raise ValueError(f"eight-bit float {kind!r}; known: e4m3, e5m2")
    arch = target.device_target(0) or ""
    fnuz = arch.startswith("hip:gfx94")
    return as_dtype(f"float8_{kind}{'fnuz' if fnuz else 'fn' if kind == 'e4m3' else ''}")


def determine_torch_fp8_type(kind: str = "e4m3"):
    """T.determine_fp8_type as torch's dtype.
    Shapes: none; it gives a dtype. Dtypes: an 8-bit float. Targets: all. Errors: ValueError for another ``kind``, TypeError where this
    torch lacks the type."""
    return determine_fp8_type(kind).as_torch()
