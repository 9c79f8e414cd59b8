# SPDX-License-Identifier: Apache-2.0
from kiln.options import PassConfigKey

from . import _absent

__all__ = ["PassConfigKey", "simplify_prim_func"]


def simplify_prim_func(function):
    """Kiln simplifies every program; as a decorator of a tile function this does nothing."""
    return function


__getattr__ = _absent.getter(__name__)
