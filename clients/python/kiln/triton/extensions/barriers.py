# SPDX-License-Identifier: Apache-2.0
"""Barriers of groups of warps. One takes turns, counted from 0; a turn is over when all have arrived that it waits for."""

from __future__ import annotations

from typing import NamedTuple

from .. import types as ty
from ..build import describe, is_number
from ..errors import Refusal
from ..graph import Value
from ..shapes import integer_of
from .buffers import gpu

MOST = 64  # barriers of one allocation, and arrivals that one statement makes


class Turns:
    """What one tle.gpu.alloc_barriers makes. ``arrivals``: that end a turn, of groups of warps, or of copied bytes. ``ahead``: whether a wait for
    turn 0 is over at once."""

    def __init__(self, count: int, arrivals: int, ahead: bool, of_bytes: bool):
        self.count, self.arrivals, self.ahead, self.of_bytes, self.name = count, arrivals, ahead, of_bytes, ""


class barriers(NamedTuple):
    """What tle.gpu.alloc_barriers gives; of one barrier ``index`` has its number, a Value, in it."""

    turns: Turns
    index: tuple

    def named(self, name: str) -> None:
        self.turns.name = self.turns.name or name

    def __str__(self):
        return f"of {self.turns.count}"


PENDING, READY = "PENDING", "READY"


def _positive(x, what: str) -> int:
    number = integer_of(x, what)
    if number < 1:
        raise Refusal(f"{what} is {number}, and a number from 1 on is needed")
    return number


@gpu
def alloc_barriers(b, num_barriers, arrive_count=1, init=PENDING, expect_bytes=None):
    """So many barriers, as ``bars[i]``. ``arrive_count``: how many arrivals end a turn; a group of warps that comes to tle.gpu.barrier_arrive arrives
    once, as a whole. ``init=READY``: a wait for turn 0 is over at once, and one for turn n when the arrivals have ended n turns. ``expect_bytes``: in
    place of arrivals, the bytes that copies with this barrier bring in a turn."""
    count = _positive(num_barriers, "the number of barriers")
    if count > MOST:
        raise Refusal(f"tle.gpu.alloc_barriers of {count}; there are at most {MOST}")
    if init not in (PENDING, READY):
        raise Refusal(f"tle.gpu.alloc_barriers(init={describe(init)}); known are tle.gpu.PENDING and tle.gpu.READY")
    arrivals = _positive(arrive_count, "arrive_count")
    if expect_bytes is not None and arrivals != 1:
        raise Refusal("a barrier with expect_bytes counts what copies bring and no other arrivals; leave arrive_count out, or make another barrier")
    wanted = arrivals if expect_bytes is None else _positive(expect_bytes, "expect_bytes")
    return barriers(Turns(count, wanted, init == READY, expect_bytes is not None), ())


@gpu
def alloc_barrier(b, arrive_count=1, init=PENDING, expect_bytes=None):
    """One barrier, as tle.gpu.alloc_barriers makes several."""
    return _at.run(b, alloc_barriers.run(b, 1, arrive_count, init, expect_bytes), 0)


@gpu
def _at(b, bars, index):
    if bars.index:
        raise Refusal("one barrier is indexed; tle.gpu.alloc_barriers makes several")
    if is_number(index) and not (isinstance(index, int) and 0 <= index < bars.turns.count):
        raise Refusal(f"barrier {describe(index)} of {bars.turns.count}")
    return bars._replace(index=(_scalar(b, index, "the number of a barrier"),))


barriers.METHODS = {"[]": _at, "slot": _at}


def _scalar(b, x, what: str) -> Value:
    x = b.value(x, what)
    if x.shape or not x.element.is_int():
        raise Refusal(f"{what} is {describe(x)}, and a scalar integer is needed")
    return b.cast(x, ty.int32)


def _one(b, bar, what: str) -> barriers:
    if not isinstance(bar, barriers):
        raise Refusal(f"{what} takes a barrier of tle.gpu.alloc_barrier, not {describe(bar)}")
    if bar.index:
        return bar
    if bar.turns.count > 1:
        raise Refusal(f"{what} of {bar.turns.count} barriers; name one, as bars[i]")
    return _at.run(b, bar, 0)


@gpu
def barrier_wait(b, bar, phaseIdx=None):
    """Until the turn with this number is over. Then what those did is seen who arrived."""
    bar = _one(b, bar, "tle.gpu.barrier_wait")
    if phaseIdx is None:
        raise Refusal("tle.gpu.barrier_wait without phaseIdx, of a named barrier; give phaseIdx=, the number of the turn, which counts from 0")
    b.emit("tle.wait", [*bar.index, _scalar(b, phaseIdx, "the turn of tle.gpu.barrier_wait")], turns=bar.turns)


@gpu
def barrier_arrive(b, bar, arrive_count=1, phaseIdx=None):
    """The group of warps has done what stands before it. A barrier counts its turns itself; ``phaseIdx`` only says that it has some."""
    bar = _one(b, bar, "tle.gpu.barrier_arrive")
    if bar.turns.of_bytes:
        raise Refusal("tle.gpu.barrier_arrive at a barrier with expect_bytes, at which copies arrive; make it with arrive_count, or another one "
                      "beside it")
    if phaseIdx is not None:
        _scalar(b, phaseIdx, "the turn of tle.gpu.barrier_arrive")
    times = _positive(arrive_count, "arrive_count")
    if times > min(bar.turns.arrivals, MOST):
        raise Refusal(f"tle.gpu.barrier_arrive(arrive_count={times}) at a barrier of {bar.turns.arrivals} arrivals")
    b.emit("tle.arrive", list(bar.index), turns=bar.turns, times=times)


def arrived(b, bar, size: int) -> None:
    """A copy has brought so many bytes."""
    bar = _one(b, bar, "tle.gpu.copy(barrier=…)")
    if not bar.turns.of_bytes:
        raise Refusal("tle.gpu.copy with a barrier that counts arrivals; make it with expect_bytes=, or arrive behind the copy by "
                      "tle.gpu.barrier_arrive")
    if bar.turns.arrivals % size and bar.turns.arrivals < size:
        raise Refusal(f"tle.gpu.copy of {size} bytes with a barrier that expects {bar.turns.arrivals}")
    b.emit("tle.arrive", list(bar.index), turns=bar.turns, times=size)
