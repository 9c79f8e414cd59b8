# SPDX-License-Identifier: Apache-2.0
"""Tools for people: what a function computes and moves."""

import dataclasses

from kiln.language import counts
from kiln.language.program import PrimFunc

from . import _absent

__all__ = ["AnalysisResult", "Analyzer", "plot_layout"]

plot_layout = _absent.refused("tilelang.tools.plot_layout", "`kiln explain --html` draws the layouts")

# Operations of 16-bit floats that a multiprocessor's matrix instructions do in a clock: NVIDIA's white papers of Volta, Turing, Ampere, Ada, Hopper
# and Blackwell.
_OPERATIONS = {70: 1024, 75: 1024, 80: 2048, 86: 1024, 89: 1024, 90: 4096, 100: 8192}


@dataclasses.dataclass(frozen=True)
class AnalysisResult:
    """Totals of a call, and the time in seconds that a GPU needs for them at its best. Without its clock, the time is that of memory alone."""

    total_flops: int
    total_global_bytes: int
    estimated_time: float
    expected_tflops: float | None
    expected_bandwidth_GBps: float


class Analyzer:
    """Counts what a traced function does: operations of its products, bytes of its tensors. ``device``: a tilelang.carver.arch.CUDA, or what has its
    ``compute_capability`` and its ``bandwidth``, whose second entry is in MB/s."""

    def __init__(self, fn, device):
        if not isinstance(fn, PrimFunc):
            raise TypeError(f"tilelang.tools.Analyzer takes what T.prim_func or get_tir gives, not {fn!r}")
        self.fn, self.device = fn, device
        self.total_flops = self.total_global_bytes = 0
        self.block_counts = {}

    def ir_pass(self) -> "Analyzer":
        """Counts, and returns itself. ``block_counts`` is the grid of the last launch."""
        self.total_flops = self.total_global_bytes = 0
        for kernel in self.fn.kernels:
            flops, moved = counts.of_kernel(kernel)
            self.total_flops, self.total_global_bytes = self.total_flops + flops, self.total_global_bytes + moved
            self.block_counts = {f"blockIdx.{'xyz'[axis]}": int(extent) for axis, extent in enumerate(kernel.grid)}
        return self

    def calculate(self) -> AnalysisResult:
        tflops, bandwidth = self._peak(), self.device.bandwidth[1] / 1000
        seconds = self.total_global_bytes / (bandwidth * 1e9)
        if tflops:
            seconds = max(seconds, self.total_flops / (tflops * 1e12))
        return AnalysisResult(self.total_flops, self.total_global_bytes, seconds, tflops, bandwidth)

    def _peak(self) -> float | None:
        each = _OPERATIONS.get(int(self.device.compute_capability))
        if each is None or not hasattr(self.device, "clock"):
            return None
        return each * self.device.compute_max_core * self.device.clock / 1e12

    @classmethod
    def analysis(cls, fn, device) -> AnalysisResult:
        """``Analyzer(fn, device).ir_pass().calculate()``."""
        return cls(fn, device).ir_pass().calculate()


__getattr__ = _absent.getter(__name__)
