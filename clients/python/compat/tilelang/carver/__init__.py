# SPDX-License-Identifier: Apache-2.0
from .. import _absent
from . import arch

__all__ = ["arch"]
__getattr__ = _absent.getter(__name__)
