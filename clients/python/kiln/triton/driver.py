# SPDX-License-Identifier: Apache-2.0
"""``triton.runtime.driver``: what programs ask of the device. Without torch or a GPU there is no device, and the target is the emulator's."""

from __future__ import annotations

import contextlib
import os
import sys
from types import SimpleNamespace
from typing import NamedTuple, Union

from .. import target as targets


class GPUTarget(NamedTuple):
    backend: str
    arch: Union[int, str]
    warp_size: int


def target_of(name: str) -> GPUTarget:
    """Of a target as kilnd names it."""
    arch = name.split(":", 1)[1]
    if arch.startswith("sm_"):
        return GPUTarget("cuda", int("".join(filter(str.isdigit, arch))), 32)
    return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)


def name_of(target) -> str:
    """The other way round; the features that only one architecture has are asked for. "cpu" is the emulator."""
    if not hasattr(target, "backend"):
        return targets.runnable(target)
    if target.backend == "cpu":
        return targets.runnable()
    if target.backend == "cuda":
        return f"cuda:sm_{target.arch}{'a' if target.arch >= 90 else ''}"
    return f"hip:{target.arch}"


def current_device() -> int:
    """The index of torch's."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else 0


def on_stream(stream: int, target: str):
    """Launches go to the stream with this number; where it is torch's current one, or there are no streams, nothing is to be done."""
    torch = sys.modules.get("torch")
    if not stream or target.startswith("emu:") or torch is None or torch.cuda.current_stream().cuda_stream == stream:
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream))


class _Utilities:
    @staticmethod
    def get_device_properties(device=None) -> dict:
        import torch

        found = torch.cuda.get_device_properties(torch.cuda.current_device() if device is None else device)
        names = {"max_shared_mem": ("shared_memory_per_block_optin", "shared_memory_per_block"), "max_num_regs": ("regs_per_multiprocessor",),
                 "multiprocessor_count": ("multi_processor_count",), "warpSize": ("warp_size",), "sm_clock_rate": ("clock_rate",),
                 "mem_clock_rate": ("memory_clock_rate",), "mem_bus_width": ("memory_bus_width",),
                 "max_threads_per_sm": ("max_threads_per_multi_processor",)}
        values = {name: next((getattr(found, there) for there in those if hasattr(found, there)), None) for name, those in names.items()}
        return {name: value for name, value in values.items() if value is not None}


class Driver:
    """``driver.active``."""

    utils = _Utilities()

    @staticmethod
    def is_active() -> bool:
        """Whether there is a device; the emulator is none."""
        torch = sys.modules.get("torch")
        return torch is not None and torch.cuda.is_available()

    def get_current_target(self) -> GPUTarget:
        return target_of(targets.runnable())

    def get_current_device(self) -> int:
        return current_device()

    def get_active_torch_device(self):
        import torch

        return torch.device("cuda", self.get_current_device())

    def get_device_interface(self):
        import torch

        return torch.cuda

    def get_current_stream(self, device=None) -> int:
        return self.get_device_interface().current_stream(device).cuda_stream

    def get_benchmarker(self):
        from .testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self):
        """Memory that is larger than the L2, to be overwritten."""
        import torch

        return torch.empty(1 << 26, dtype=torch.int32, device="cuda")

    def clear_cache(self, cache) -> None:
        cache.zero_()


active = Driver()


def set_active(driver) -> None:
    """There is one driver, which serves every target."""
    if not isinstance(driver, Driver):
        raise TypeError(f"triton.runtime.driver.set_active takes a driver of this package, not {type(driver).__name__}")


class Backend:
    """What torch.compile asks of a target's compiler: what its results are kept under, and the options of a launch that it knows."""

    def __init__(self, target: GPUTarget):
        self.target = target

    def hash(self) -> str:
        return name_of(self.target)

    def parse_options(self, options: dict) -> SimpleNamespace:
        from .runtime import OPTIONS

        return SimpleNamespace(**{**OPTIONS, **{name: value for name, value in options.items() if name in OPTIONS}})


make_backend = Backend

# Which programs go through to ask whether one is active. Where kernels are emulated, they take tensors of the CPU.
backends = {"nvidia": SimpleNamespace(driver=Driver)}
if os.environ.get("KILN_TARGET", "").startswith("emu:"):
    backends["cpu"] = SimpleNamespace(driver=Driver)
