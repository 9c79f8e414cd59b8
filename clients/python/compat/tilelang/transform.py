# SPDX-License-Identifier: Apache-2.0
from kiln import notices
from kiln.options import PassConfigKey

from . import _absent

__all__ = ["PassConfigKey", "simplify_prim_func"]


def simplify_prim_func(function):
    """The function. Without effect, with a warning."""
    notices.no_effect("simplify_prim_func", "every program is simplified; leave it out")
    return function


__path__ = []  # so that "tilelang.transform.simplify" can be imported
__getattr__ = _absent.getter(__name__)
