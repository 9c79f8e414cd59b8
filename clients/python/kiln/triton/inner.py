# SPDX-License-Identifier: Apache-2.0
"""Names of Triton's own modules (core, standard) that programs look into, as torch.compile's kernels do."""

from __future__ import annotations

from . import types as ty
from .builtin import OfConstants, builtin
from .shapes import integer_of


@OfConstants
def get_int_dtype(b, bitwidth, signed):
    """The integer type of so many bits."""
    return ty.str_to_ty(f"{'' if signed else 'u'}int{bitwidth}" if bitwidth > 1 else "int1")


@builtin
def _constexpr_to_value(b, x):
    return x


_unwrap_if_constexpr = _constexpr_to_value


@OfConstants
def _log2(b, i):
    """Of a number that is a power of two and known."""
    return integer_of(i, "the argument of tl.standard._log2").bit_length() - 1
