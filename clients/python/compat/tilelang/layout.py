# SPDX-License-Identifier: Apache-2.0
"""Layouts for T.annotate_layout, which infers those of tiles and says so, and takes T.Layout(shape, function) of tensor parameters."""

from kiln.language.layout import Fragment, Layout

from . import _absent

__all__ = ["Fragment", "Layout"]


def _inferred(name):
    def make(*_, **__):
        return Layout()

    make.__name__ = name
    make.__doc__ = "A layout of a tile, whose own is inferred: T.annotate_layout warns that it has no effect."
    return make


make_swizzled_layout = _inferred("make_swizzled_layout")
make_volta_swizzled_layout = _inferred("make_volta_swizzled_layout")
make_wgmma_swizzled_layout = _inferred("make_wgmma_swizzled_layout")
make_full_bank_swizzled_layout = _inferred("make_full_bank_swizzled_layout")
make_half_bank_swizzled_layout = _inferred("make_half_bank_swizzled_layout")
make_quarter_bank_swizzled_layout = _inferred("make_quarter_bank_swizzled_layout")


def make_linear_layout(buffer, *_, **__):
    """Row-major."""
    return Layout(getattr(buffer, "shape", buffer), lambda *index: list(index))


__getattr__ = _absent.getter(__name__)
