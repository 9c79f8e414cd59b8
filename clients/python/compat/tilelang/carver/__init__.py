# SPDX-License-Identifier: Apache-2.0
"""What Kiln has of TileLang's planner: the descriptions of GPUs. Tile sizes are chosen by kiln.autotune and kiln.rank."""

from .. import _absent
from . import arch

__all__ = ["arch"]
_INSTEAD = "Kiln chooses tile sizes with kiln.autotune and kiln.rank"
for _name in ("MatmulTemplate", "GEMVTemplate", "ElementwiseTemplate", "GeneralReductionTemplate", "FlashAttentionTemplate", "ConvTemplate",
              "TensorCorePolicy", "DefaultPolicy"):
    globals()[_name] = _absent.refused(f"tilelang.carver.{_name}", _INSTEAD)
__getattr__ = _absent.getter(__name__)
