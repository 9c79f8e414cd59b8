# SPDX-License-Identifier: Apache-2.0
from kiln import tuning
from kiln.tuning import AutotuneResult, autotune, get_autotune_inputs, set_autotune_inputs

from . import _absent


class AutoTuner(tuning.AutoTuner):
    """Kiln's, for functions whose products of float32 are TileLang's."""

    ALLOW_TF32 = True


__all__ = ["AutoTuner", "AutotuneResult", "autotune", "get_autotune_inputs", "set_autotune_inputs"]
__getattr__ = _absent.getter(__name__)
