# SPDX-License-Identifier: Apache-2.0
"""Timing by device events."""

from __future__ import annotations

import math
import statistics

FLUSH_BYTES = 256 << 20  # more than the L2 of any device


class _Torch:
    """Events and a buffer to flush the L2 with, from torch."""

    def __init__(self, torch):
        self.torch, self.buffer = torch, torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def event(self):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def flush(self):
        self.buffer.zero_()

    def milliseconds(self, start, end) -> float:
        return start.elapsed_time(end)

    def synchronize(self):
        self.torch.cuda.synchronize()


class _Extension:
    """The same from kiln._runtime, where there is no torch."""

    def __init__(self, runtime):
        self.runtime, self.buffer = runtime, runtime.Array((FLUSH_BYTES,), "uint8")

    def event(self):
        event = self.runtime.Event()
        event.record()
        return event

    def flush(self):
        self.buffer.fill(0)

    def milliseconds(self, start, end) -> float:
        return end.elapsed_ms(start)

    def synchronize(self):
        self.runtime.synchronize()


def _device():
    try:
        import torch
    except ImportError:
        from . import _runtime

        return _Extension(_runtime)
    return _Torch(torch)


def do_bench(fn, warmup: float = 25, rep: float = 100, n_warmup: int = 0, n_repeat: int = 0, quantiles=None, backend: str = "event",
             return_mode: str = "mean", fast_flush: bool = True, early_stop_baseline=None, _n_warmup: int = 0, _n_repeat: int = 0, **_):
    """Milliseconds of a call of ``fn``: after ``warmup`` ms of calls, the mean (median, min, max; or ``quantiles``) of about ``rep`` ms of
    them, each after the L2 was overwritten. ``backend`` is accepted; all of them measure with events."""
    if return_mode not in ("mean", "median", "min", "max"):
        raise ValueError(f"return_mode {return_mode!r}: use mean, median, min or max")
    device = _device()
    fn()
    device.synchronize()
    estimate = _estimate(device, fn)
    for _index in range(n_warmup or _n_warmup or max(1, int(warmup / estimate))):
        fn()
    pairs = []
    for _index in range(n_repeat or _n_repeat or max(1, int(rep / estimate))):
        device.flush()
        start = device.event()
        fn()
        pairs.append((start, device.event()))
    device.synchronize()
    times = sorted(device.milliseconds(a, b) for a, b in pairs)
    if quantiles is not None:
        result = [_quantile(times, q) for q in quantiles]
        return result[0] if len(result) == 1 else result
    return {"mean": statistics.fmean, "median": statistics.median, "min": min, "max": max}[return_mode](times)


def _estimate(device, fn, calls: int = 5) -> float:
    start = device.event()
    for _ in range(calls):
        device.flush()
        fn()
    end = device.event()
    device.synchronize()
    return max(device.milliseconds(start, end) / calls, 1e-3)


def _quantile(times, q: float) -> float:
    at = q * (len(times) - 1)
    low = math.floor(at)
    high = min(low + 1, len(times) - 1)
    return times[low] + (times[high] - times[low]) * (at - low)
