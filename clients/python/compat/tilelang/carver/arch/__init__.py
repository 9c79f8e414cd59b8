# SPDX-License-Identifier: Apache-2.0
from ... import _absent
from . import cuda, driver
from .cuda import CUDA, has_mma_support, is_ada_arch, is_ampere_arch, is_cuda_arch, is_hopper_arch, is_volta_arch

__all__ = ["CDNA", "CPU", "CUDA", "METAL", "RDNA", "cuda", "driver", "has_mma_support", "is_ada_arch", "is_ampere_arch", "is_cuda_arch",
           "is_hopper_arch", "is_volta_arch"]

_OTHERS = "Kiln describes NVIDIA's GPUs here; kiln.rank knows what AMD's do"
CDNA, RDNA, METAL, CPU = (_absent.refused(f"tilelang.carver.arch.{name}", _OTHERS) for name in ("CDNA", "RDNA", "METAL", "CPU"))


def get_arch(target="cuda"):
    """The CUDA of a target's name. ValueError for other makers' targets."""
    return CUDA(target)


def auto_infer_current_arch():
    """The CUDA of the current GPU."""
    return get_arch("cuda")


__getattr__ = _absent.getter(__name__)
