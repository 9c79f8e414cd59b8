# SPDX-License-Identifier: Apache-2.0
from kiln.language.math import cdiv, next_power_of_2

from . import _absent

__all__ = ["cdiv", "next_power_of_2"]
__getattr__ = _absent.getter(__name__)
