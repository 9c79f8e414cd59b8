# SPDX-License-Identifier: Apache-2.0
"""Layouts that a program names, for T.annotate_layout."""


class Layout:
    """A layout by its shape and a function of indices that gives places, for T.annotate_layout. Of a tensor parameter it holds; those of
    tiles are inferred.
    Shapes: any. Dtypes: none. Targets: all. Errors: none."""

    def __init__(self, shape=None, forward_fn=None, *_, **__):
        self.shape, self.forward_fn = shape, forward_fn


class Fragment(Layout):
    """A layout of a fragment, for T.annotate_layout. It has no effect: layouts of tiles are inferred.
    Shapes: any. Dtypes: none. Targets: all. Errors: none."""

    def repeat(self, *_, **__):
        """The same: a layout without effect has none either when it is repeated."""
        return self

    replicate = condense_rep_var = repeat
