# SPDX-License-Identifier: Apache-2.0
"""What the daemon's planner expects programs to take, before anything is compiled."""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass, field

_MOST = 4096  # candidates in one call
_MOST_BYTES = 4 << 20  # the same, together


@functools.total_ordering
@dataclass(frozen=True)
class Ranked:
    """What the planner expects of one program. ``index``: its place among those that were asked for; ``microseconds``: infinite where it was
    refused, and ``problem`` says why. ``board``: the GPU that the planner counted with. ``terms``: microseconds by name, of all
    its kernels together: how long each unit of the GPU is busy if all
    multiprocessors share the work evenly, for what a block's threads wait ("wait for …"), and "power": how long their energy lasts at the most that
    the board may take, beyond which its clock falls; not of boards of which it is unknown. They overlap and do not add up. ``kernels``:
    kiln.v1.KernelEstimate messages."""

    index: int
    microseconds: float = math.inf
    problem: str = ""
    terms: dict = field(default_factory=dict)
    kernels: tuple = ()
    board: str = ""

    @classmethod
    def of(cls, index: int, message) -> "Ranked":
        """From a reply's message."""
        if not message.HasField("estimate"):
            return cls(index, problem=message.message)
        terms: dict = {}
        for kernel in message.estimate.kernels:
            named = [(term.name, term.microseconds) for term in kernel.units]
            named += [(f"wait for {term.name}", term.microseconds) for term in kernel.waits] + [("launch", kernel.launch)]
            for name, microseconds in named:
                terms[name] = terms.get(name, 0.0) + microseconds
        return cls(index, message.estimate.microseconds, "", terms, tuple(message.estimate.kernels), message.estimate.board)

    @property
    def limit(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=self.terms.get, default="")

    def __lt__(self, other) -> bool:
        return (self.microseconds, self.index) < (other.microseconds, other.index)


def warn_of_another(board: str, ranked) -> None:
    """Where the planner does not know the GPU that was asked for, and counts with another."""
    other = next((one.board for one in ranked if one.board and one.board != board), None)
    if board and other is not None:
        warnings.warn(f"the planner does not know the GPU {board!r}; it counts with {other!r}, the target's usual one", stacklevel=4)


def request(client, candidate, target: str, options):
    """A candidate's CompileRequest."""
    if callable(candidate) and not hasattr(candidate, "serialized"):
        candidate = candidate()
    return candidate if isinstance(candidate, client._pb.CompileRequest) else client.request(candidate, target, options)


def parts(requests):
    """The requests' numbers, in parts that one call takes."""
    part, size = [], 0
    for index, request in enumerate(requests):
        if part and (len(part) == _MOST or size + request.ByteSize() > _MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(index)
        size += request.ByteSize()
    if part:
        yield part


def rank(candidates, target=None, *, options=None, board: str = "", symbols=None, space: bytes = b"", client=None) -> list:
    """What the planner expects programs to take, the fastest first: ``Client.rank`` of the default client. ``target``: as kiln.compile takes
    it; where it is a GPU of this process, ``board`` is that one."""
    from . import target as targets
    from .client import default_client

    name = targets.runnable(target)
    index = targets.current_device()
    if not board and targets.device_target(index) == name:
        board = targets.device_name(index) or ""
    return (client or default_client()).rank(candidates, name, options=options, board=board, symbols=symbols, space=space)
