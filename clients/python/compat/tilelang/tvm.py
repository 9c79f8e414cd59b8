# SPDX-License-Identifier: Apache-2.0
"""The few names of TVM that scripts use to annotate and to make constants. Kiln does not contain TVM."""

import types

from kiln.language.dtypes import DType as DataType
from kiln.language.expr import Expr, Var, const
from kiln.target import resolve

from . import _absent

tirx = tir = types.SimpleNamespace(PrimExpr=Expr, Var=Var, const=const)
target = types.SimpleNamespace(Target=resolve)
__all__ = ["DataType", "target", "tir", "tirx"]
__getattr__ = _absent.getter(__name__)
