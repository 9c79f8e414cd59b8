# SPDX-License-Identifier: Apache-2.0
"""NVIDIA architectures by their number."""

import re

from kiln.target import resolve

from ... import _absent
from . import driver

__all__ = ["CUDA", "check_sm_version", "has_mma_support", "is_ada_arch", "is_ampere_arch", "is_cuda_arch", "is_hopper_arch", "is_volta_arch"]


def check_sm_version(arch: str) -> int:
    """90 of "sm_90a", "sm_90" and "90"; -1 of what is no NVIDIA architecture."""
    match = re.fullmatch(r"(?:sm_)?(\d+)[a-z]?", arch)
    return int(match.group(1)) if match else -1


class CUDA:
    """An NVIDIA GPU: its target, and what a planner asks of the first such GPU of this machine."""

    platform = "CUDA"
    warp_size = 32
    reg_cap = 65536  # registers of a multiprocessor

    def __init__(self, target="cuda"):
        self.target = resolve(target)
        kind, _, arch = self.target.partition(":")
        self.sm_version = check_sm_version(arch)
        if kind != "cuda":
            raise ValueError(f"{self.target} is no target of NVIDIA's")
        self.compute_capability = str(self.sm_version)
        self.name = driver.get_device_name()
        self.smem_cap = driver.get_shared_memory_per_block()
        self.compute_max_core = driver.get_num_sms()

    @property
    def clock(self) -> int:
        """Of its multiprocessors, in Hz."""
        return driver.get_clock()

    @property
    def bandwidth(self) -> list[int]:
        """Of its memory, in MB/s: twice, as TileLang's list has two entries."""
        return [driver.get_memory_bandwidth() // 10**6] * 2

    def __repr__(self):
        return f"CUDA({self.target})"


def is_cuda_arch(arch) -> bool:
    return isinstance(arch, CUDA)


def is_volta_arch(arch) -> bool:
    return is_cuda_arch(arch) and 70 <= arch.sm_version < 80


def is_ampere_arch(arch) -> bool:
    return is_cuda_arch(arch) and 80 <= arch.sm_version < 89


def is_ada_arch(arch) -> bool:
    return is_cuda_arch(arch) and arch.sm_version == 89


def is_hopper_arch(arch) -> bool:
    return is_cuda_arch(arch) and arch.sm_version == 90


def has_mma_support(arch) -> bool:
    """Whether T.gemm has matrix instructions for 16-bit floats there, as from sm_80 on."""
    return is_cuda_arch(arch) and arch.sm_version >= 80


__getattr__ = _absent.getter(__name__)
