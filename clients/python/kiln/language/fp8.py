# SPDX-License-Identifier: Apache-2.0
"""The eight-bit float that the current device computes with."""

from __future__ import annotations

from .dtypes import DType, as_dtype


def determine_fp8_type(kind: str = "e4m3") -> DType:
    """The OCP format; on AMD CDNA3 (gfx940 … gfx942) the one without negative zero."""
    from .. import target

    if kind not in ("e4m3", "e5m2"):
        raise ValueError(f"eight-bit float {kind!r}; known: e4m3, e5m2")
    arch = target.device_target(0) or ""
    fnuz = arch.startswith("hip:gfx94")
    return as_dtype(f"float8_{kind}{'fnuz' if fnuz else 'fn' if kind == 'e4m3' else ''}")


def determine_torch_fp8_type(kind: str = "e4m3"):
    """The same as torch's dtype."""
    return determine_fp8_type(kind).as_torch()
