# SPDX-License-Identifier: Apache-2.0
"""Timing by device events."""

from __future__ import annotations

import contextlib
import math
import statistics

from . import notices

FLUSH_BYTES = 256 << 20  # more than the L2 of any device


class _Torch:
    """Events and a buffer to flush the L2 with, from torch."""

    def __init__(self, torch, flushed: int):
        self.torch, self.buffer = torch, torch.empty(flushed // 4, dtype=torch.int32, device="cuda")

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

    def __init__(self, runtime, flushed: int):
        self.runtime, self.buffer = runtime, runtime.Array((flushed,), "uint8")

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


def _device(flushed: int):
    try:
        import torch
    except ImportError:
        from . import _runtime

        return _Extension(_runtime, flushed)
    return _Torch(torch, flushed)


def on_device(device):
    """A context in which torch uses this device: an index, "cuda:1" or a torch.device; None: the current one."""
    if device is None:
        return contextlib.nullcontext()
    try:
        import torch
    except ImportError:
        raise ValueError(f"do_bench(device={device!r}) chooses torch's device, and there is no torch; leave it out") from None
    return torch.cuda.device(device)


def check_backend(backend: str) -> None:
    if backend not in ("event", "cupti", "cudagraph"):
        raise ValueError(f"do_bench(backend={backend!r}): use \"event\"")
    if backend != "event":
        notices.no_effect(f"do_bench(backend={backend!r})", "times are those of the device's events, each around one call; use \"event\"")


def do_bench(fn, warmup: float = 25, rep: float = 100, n_warmup: int = 0, n_repeat: int = 0, quantiles=None, *, backend: str = "event",
             return_mode: str = "mean", fast_flush: bool = True, device=None, cache_size: int | None = None,
             early_stop_baseline: float | None = None, _n_warmup: int = 0, _n_repeat: int = 0):
    """Milliseconds of a call of ``fn``: after ``warmup`` ms of calls, the mean (median, min, max; or ``quantiles``) of about ``rep`` ms of
    them, each after ``cache_size`` MiB (256) were overwritten, so that the L2 is cold. ``n_warmup`` and ``n_repeat``: calls instead of
    ms. ``device``: torch's. Where the first few calls take more than ``early_stop_baseline`` ms each, the answer is what they took.
    ``backend`` is "event": the others, and ``fast_flush=False``, have no effect, with a warning."""
    if return_mode not in ("mean", "median", "min", "max"):
        raise ValueError(f"return_mode {return_mode!r}: use mean, median, min or max")
    check_backend(backend)
    notices.unused("do_bench", fast_flush=(fast_flush, (True, None), "the L2 is overwritten with words in either case; leave it out"))
    with on_device(device):
        flushed = _device(FLUSH_BYTES if cache_size is None else cache_size << 20)
        calls = n_warmup or _n_warmup, n_repeat or _n_repeat
        return _measured(flushed, fn, (warmup, rep), calls, quantiles, return_mode, early_stop_baseline)


def _measured(device, fn, milliseconds, calls, quantiles, return_mode, hopeless):
    fn()
    device.synchronize()
    estimate = _estimate(device, fn)
    if hopeless is not None and estimate > hopeless:
        return estimate if quantiles is None else [estimate] * len(quantiles)
    for _index in range(calls[0] or max(1, int(milliseconds[0] / estimate))):
        fn()
    pairs = []
    for _index in range(calls[1] or max(1, int(milliseconds[1] / estimate))):
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
