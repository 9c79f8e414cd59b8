# SPDX-License-Identifier: Apache-2.0
"""Configurations that are tuned: all of a space, what they are called, and the arguments that each is measured with."""

from __future__ import annotations

import itertools

from .profiler import cloned


def spared(kernel, tensors) -> list:
    """A call's arguments with copies of the tensors that the kernel writes: the caller's are for the call that was asked for, and the next
    configuration finds what this one found."""
    params = kernel.artifact.launch.params
    if len(tensors) != len(params):
        params = [p for p in params if not p.output]
    if len(tensors) != len(params):
        return tensors  # the launch tells
    return [cloned(t) if p.tensor and p.written else t for p, t in zip(params, tensors)]


def label(config) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


def parameters(config) -> dict:
    """Those of the function that a configuration gives."""
    return {name: value for name, value in config.items() if name != "pass_configs"}


def expand(configs, args, kwargs) -> list[dict]:
    """A list of dicts from a list, a dict of lists (all combinations) or a function of the arguments that gives one of these."""
    if callable(configs):
        configs = configs(*args, **kwargs)
    if isinstance(configs, dict):
        names = list(configs)
        values = [v if isinstance(v, (list, tuple)) else [v] for v in configs.values()]
        configs = [dict(zip(names, combination)) for combination in itertools.product(*values)]
    return [dict(c) for c in configs]
