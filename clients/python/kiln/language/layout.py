# SPDX-License-Identifier: Apache-2.0
"""Layouts that a program names. They are inferred: these are accepted by T.annotate_layout and have no effect in this version."""


class Layout:
    """A layout by its shape and a function of indices, for T.annotate_layout. Both are kept and not used: layouts are inferred.
    Shapes: any. Dtypes: none. Targets: all. Errors: none."""

    def __init__(self, shape=None, forward_fn=None, *_, **__):
        self.shape, self.forward_fn = shape, forward_fn


class Fragment(Layout):
    """A layout of a fragment, for T.annotate_layout. It is accepted, without effect: layouts are inferred.
    Shapes: any. Dtypes: none. Targets: all. Errors: none."""
