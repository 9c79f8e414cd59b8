# SPDX-License-Identifier: Apache-2.0
"""Layouts that a program names. They are inferred: these are accepted by T.annotate_layout and have no effect in this version."""


class Layout:
    def __init__(self, shape=None, forward_fn=None, *_, **__):
        self.shape, self.forward_fn = shape, forward_fn


class Fragment(Layout):
    pass
