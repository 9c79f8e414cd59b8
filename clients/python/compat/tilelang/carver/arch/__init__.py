# SPDX-License-Identifier: Apache-2.0
from ... import _absent
from . import driver

__all__ = ["driver"]
__getattr__ = _absent.getter(__name__)
