# SPDX-License-Identifier: Apache-2.0
"""``tl.target_info``: what a kernel is compiled for. Called outside of kernels, what one would be compiled for now."""

from __future__ import annotations

from types import SimpleNamespace

from .. import target as targets
from .builtin import Builtin
from .driver import target_of


class _Asked(Builtin):
    def __call__(self, *args, **kwargs):
        return self.run(SimpleNamespace(target=targets.runnable()), *args, **kwargs)


def _asked(function):
    return _Asked(function)


@_asked
def current_target(b):
    return target_of(b.target)


@_asked
def is_cuda(b):
    return target_of(b.target).backend == "cuda"


@_asked
def cuda_capability_geq(b, major, minor=0):
    target = target_of(b.target)
    return target.backend == "cuda" and target.arch >= major * 10 + minor


@_asked
def is_hip(b):
    return target_of(b.target).backend == "hip"


def _is(arch: str, name: str) -> _Asked:
    return _Asked(lambda b: target_of(b.target).arch == arch, name)


is_hip_cdna3, is_hip_cdna4, is_hip_gfx1250 = (_is(arch, f"is_hip_{name}") for arch, name in (
    ("gfx942", "cdna3"), ("gfx950", "cdna4"), ("gfx1250", "gfx1250")))
