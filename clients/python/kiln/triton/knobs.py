# SPDX-License-Identifier: Apache-2.0
"""``triton.knobs``: settings of Triton's compiler. Kiln has ``runtime.debug`` of them; each other one reads as not set, and
setting it is warned of."""

from __future__ import annotations

import contextlib
import os
import types
import warnings

from ..errors import NoEffectWarning


class base_knobs:
    """A group of settings; any name may be read and set."""

    knob_descriptors: dict = {}

    def __init__(self, name: str, **known):
        self.__dict__.update(known, _name=name)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def __setattr__(self, name, value):
        if value is not None and value != getattr(self, name):
            warnings.warn(f"triton.knobs.{self._name}.{name} = {value!r} has no effect in Kiln: its settings are those of kilnd", NoEffectWarning,
                          stacklevel=2)
        self.__dict__[name] = value

    def copy(self):
        return base_knobs(**{**{k: v for k, v in self.__dict__.items() if k != "_name"}, "name": self._name})

    def reset(self):
        return self

    @contextlib.contextmanager
    def scope(self):
        """Settings are afterwards what they were."""
        before = dict(self.__dict__)
        try:
            yield self
        finally:
            self.__dict__.clear()
            self.__dict__.update(before)


build, redis, cache, compilation, autotuning = (base_knobs(name) for name in ("build", "redis", "cache", "compilation", "autotuning"))
language, amd, proton = (base_knobs(name) for name in ("language", "amd", "proton"))


class _Runtime(base_knobs):
    """``debug``: whether assertions of kernels are checked."""

    def __setattr__(self, name, value):
        if name == "debug":
            self.__dict__[name] = bool(value)
        else:
            super().__setattr__(name, value)


runtime = _Runtime("runtime", interpret=False)


def refresh_knobs() -> None:
    """Reads the environment again."""
    runtime.debug = os.environ.get("TRITON_DEBUG", "0").lower() in ("1", "true", "on", "y", "yes")


refresh_knobs()
nvidia = base_knobs("nvidia", ptxas=types.SimpleNamespace(version="12.5", path=None))  # of CUDA: the oldest that reads what Kiln writes
propagate_env = True
