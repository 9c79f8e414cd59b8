# SPDX-License-Identifier: Apache-2.0
"""Layouts are inferred: what these functions make is accepted by T.annotate_layout and has no effect."""

from kiln.language.layout import Fragment, Layout

from . import _absent

__all__ = ["Fragment", "Layout"]


def _inferred(name):
    def make(*_, **__):
        return Layout()

    make.__name__ = name
    return make


make_swizzled_layout = _inferred("make_swizzled_layout")
make_volta_swizzled_layout = _inferred("make_volta_swizzled_layout")
make_wgmma_swizzled_layout = _inferred("make_wgmma_swizzled_layout")
make_full_bank_swizzled_layout = _inferred("make_full_bank_swizzled_layout")
make_half_bank_swizzled_layout = _inferred("make_half_bank_swizzled_layout")
make_quarter_bank_swizzled_layout = _inferred("make_quarter_bank_swizzled_layout")
make_linear_layout = _inferred("make_linear_layout")
__getattr__ = _absent.getter(__name__)
