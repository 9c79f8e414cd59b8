# SPDX-License-Identifier: Apache-2.0
"""What Kiln has of TileLang's planner: the descriptions of GPUs, and templates of programs, whose tile sizes Kiln's own planner ranks. Other
programs ask kiln.rank."""

from .. import _absent
from . import arch
from .templates import ElementwiseTemplate, GEMVTemplate, GeneralReductionTemplate, MatmulTemplate

__all__ = ["ElementwiseTemplate", "GEMVTemplate", "GeneralReductionTemplate", "MatmulTemplate", "arch"]
_INSTEAD = "write the program, and let kiln.rank put its tile sizes in order"
for _name in ("FlashAttentionTemplate", "ConvTemplate", "TensorCorePolicy", "DefaultPolicy"):
    globals()[_name] = _absent.refused(f"tilelang.carver.{_name}", _INSTEAD)
__getattr__ = _absent.getter(__name__)
