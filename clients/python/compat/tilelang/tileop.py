# SPDX-License-Identifier: Apache-2.0
import sys
import types

from kiln.language import GemmWarpPolicy

from . import _absent

base = types.ModuleType(__name__ + ".base")
base.GemmWarpPolicy = GemmWarpPolicy
sys.modules[base.__name__] = base
__path__ = []  # so that "tilelang.tileop.base" can be imported
__getattr__ = _absent.getter(__name__)
