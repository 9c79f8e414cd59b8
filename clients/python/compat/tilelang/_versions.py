# SPDX-License-Identifier: Apache-2.0
"""Numbers of architectures and of CUDA, as scripts ask for them to decide what to run."""

from kiln.target import device_target, resolve


def get_target_compute_version(target=None) -> str:
    """"9.0" of "cuda:sm_90a"; without a target, of the current one. ValueError where that is no NVIDIA GPU."""
    name = resolve(target)
    arch = name.rpartition(":")[2]
    if not arch.startswith("sm_"):
        raise ValueError(f"{name} is no target of NVIDIA's, and has no compute capability")
    digits = arch.removeprefix("sm_").rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}"


def parse_compute_version(version: str) -> tuple[int, int]:
    """(9, 0) of "9.0"."""
    major, _, minor = version.partition(".")
    return int(major), int(minor or 0)


def get_cuda_version(cuda_path=None) -> tuple[int, int]:
    """The release of CUDA that torch is made for; Kiln itself uses none. RuntimeError where torch is made for another."""
    import torch

    if torch.version.cuda is None:
        raise RuntimeError("torch is not made for CUDA here, and Kiln uses no CUDA toolkit")
    return parse_compute_version(torch.version.cuda)


def check_hip_availability() -> bool:
    """Whether there is an AMD GPU."""
    return device_target(0, "hip") is not None


def target_is_gfx950(target) -> bool:
    return str(target).endswith("gfx950")
