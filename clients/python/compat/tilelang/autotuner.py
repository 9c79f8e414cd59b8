# SPDX-License-Identifier: Apache-2.0
from kiln.tuning import AutoTuner, AutotuneResult, autotune, get_autotune_inputs, set_autotune_inputs

from . import _absent

__all__ = ["AutoTuner", "AutotuneResult", "autotune", "get_autotune_inputs", "set_autotune_inputs"]
__getattr__ = _absent.getter(__name__)
