# SPDX-License-Identifier: Apache-2.0
"""A manifest larger than a message may be goes to the daemon in parts, one after the other, with one progress."""

PART_BYTES = 8 << 20  # half of what kilnd takes by default (--max-message)
PART_ITEMS = 100_000  # requests × targets, as kilnd counts them


def split(sizes, targets: int, limit: int = PART_BYTES, items: int = PART_ITEMS) -> list:
    """Lists of indices into ``sizes``, the bytes of the requests. Each part has requests from the manifest's beginning to its end, so that how
    long the first took says something of the others, and the same manifest always has the same parts: ranks that send it share its compiles.
    A request larger than a part is one by itself."""
    most = max(1, items // max(1, targets))
    stride = max(1, -(-sum(sizes) // limit), -(-len(sizes) // most))
    parts, filled = [[]], 0
    for index in (i for first in range(stride) for i in range(first, len(sizes), stride)):
        if parts[-1] and (filled + sizes[index] > limit or len(parts[-1]) == most):
            parts.append([])
            filled = 0
        parts[-1].append(index)
        filled += sizes[index]
    return parts


class Progress:
    """The EnsureProgress of all parts together, made from that of the one under way."""

    SUMS = ("total", "known", "compiled", "failed", "elapsed_seconds")

    def __init__(self, requests: int):
        self._requests, self._part, self._before = requests, [], dict.fromkeys(self.SUMS, 0)
        self._last = dict(self._before)

    def begin(self, part: list) -> None:
        self._part = part
        self._before = {name: self._before[name] + self._last[name] for name in self.SUMS}
        self._last = dict.fromkeys(self.SUMS, 0)

    def note(self, progress):
        """Changes a message of the part that began last into one of the whole manifest."""
        self._last = {name: getattr(progress, name) for name in self.SUMS}
        for name in self.SUMS:
            setattr(progress, name, self._before[name] + self._last[name])
        seen = progress.total
        # The daemon counts a target once, however it is spelled: as many for each request in every part.
        progress.total = self._last["total"] // max(1, len(self._part)) * self._requests
        if progress.HasField("remaining_seconds") and seen:
            # The parts to come take as long for each item as those up to this one.
            seconds = progress.elapsed_seconds + progress.remaining_seconds
            progress.remaining_seconds += seconds * (progress.total - seen) / seen
        for kernel in progress.kernels:
            kernel.request = self._part[kernel.request]
        return progress
