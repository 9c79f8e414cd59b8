# SPDX-License-Identifier: Apache-2.0
"""Timing on a card whose power is capped. Burst: 40 ms idle, five launches, each behind a flush of the L2; five rounds of all
contenders in random order; the median. The card waits until all five are in its queue, so that what a call takes on the host counts for no
contender. Sustained: many launches back to back, the peer's before and after.

A flush writes more than the L2 holds, then reads as much: what remains is clean. Lines left dirty would be written back at the
expense of whoever comes next, 4 µs of a kernel that reads 128 MiB."""

import random
import statistics
import time

import torch

IDLE_SECONDS = 0.04
LAUNCHES = 5
ROUNDS = 5
FLUSH_BYTES = 256 << 20
QUEUE_CYCLES = 4_000_000  # of the card's clock, 2 ms: longer than the host takes for five launches


class Timer:
    def __init__(self, seed=0):
        self.flush_buffer = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.clean_buffer = torch.zeros_like(self.flush_buffer)
        self.random = random.Random(seed)

    def _flush(self):
        self.flush_buffer.zero_()
        torch.amax(self.clean_buffer)

    def _launches(self, call, count, flush):
        events = []
        torch.cuda._sleep(QUEUE_CYCLES)
        for _ in range(count):
            if flush:
                self._flush()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    def burst(self, calls: dict, rounds=ROUNDS, idle=IDLE_SECONDS) -> dict:
        """Milliseconds of each contender. ``idle``: seconds before each burst, which short kernels need fewer of."""
        times = {name: [] for name in calls}
        for call in calls.values():
            call()
        torch.cuda.synchronize()
        for _ in range(rounds):
            order = list(calls)
            self.random.shuffle(order)
            for name in order:
                time.sleep(idle)
                times[name] += self._launches(calls[name], LAUNCHES, flush=True)
        return {name: statistics.median(values) for name, values in times.items()}

    def sustained(self, call, milliseconds=60.0) -> float:
        """Milliseconds of a launch among as many as take about `milliseconds`."""
        once = max(statistics.median(self._launches(call, 3, flush=False)), 1e-3)
        count = max(5, int(milliseconds / once))
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / count

    def copy_bandwidth(self, size=1 << 30) -> float:
        """Bytes read and written a second by a copy."""
        source = torch.empty(size, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return 2 * size / (self.burst({"copy": lambda: target.copy_(source)})["copy"] * 1e-3)
