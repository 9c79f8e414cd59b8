# SPDX-License-Identifier: Apache-2.0
"""The few names of TVM that scripts use to annotate, to make expressions and to ask what one is. Kiln does not contain TVM. While no TVM is
installed, ``import tvm`` gives this module."""

import importlib
import sys
import types

from kiln.errors import KilnError
from kiln.language.dtypes import DType as DataType
from kiln.language.expr import constant_value
from kiln.language.kinds import Kind
from kiln.language.loops import Loop
from kiln.target import resolve

from .. import _absent
from . import tirx

__all__ = ["DataType", "TVMError", "error", "target", "testing", "tir", "tirx"]
tir = tirx
TVMError = KilnError  # what the compiler refuses; what the language refuses is a TraceError


def _module(name: str, **names):
    module = types.ModuleType(f"{__name__}.{name}")
    module.__dict__.update(names, __getattr__=_absent.getter(module.__name__))
    sys.modules[module.__name__] = module
    return module


class IRBuilderFrame(metaclass=Kind):
    """What is a frame in TVM: a loop in steps of one. TileLang makes others by hand."""

    @staticmethod
    def holds(value) -> bool:
        return isinstance(value, Loop) and all(constant_value(step) == 1 for step in value.steps)


target = _module("target", Target=resolve)
testing = _module("testing", requires_package=lambda name: importlib.import_module("tilelang.testing").requires_package(name))
error = _module("error", TVMError=TVMError, InternalError=TVMError)
sys.modules[f"{__name__}.tir"] = tirx
__getattr__ = _absent.getter(__name__)
