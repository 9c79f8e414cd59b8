# SPDX-License-Identifier: Apache-2.0
"""Groups of warps, barriers and pipes → roles and signals of the tile language. Where a kernel has no groups, each statement sees what those before
it did, so its barriers and pipes are nothing.

In the tile language each thread arrives for itself. A group of warps arrives as a whole: all its threads do. Where groups of different sizes arrive
at one barrier, the threads of the smaller one arrive more than once, so that a turn needs the same number whoever comes."""

from __future__ import annotations

import math
import warnings

from ...errors import NoEffectWarning
from ...language import program as ir
from ...language.barriers import Barriers
from ...language.buffer import load
from ...language.expr import Var, as_expr, binary, const, logical
from ...language.dtypes import int32
from ...language.signals import Role, Signal, Wish, settle
from ..errors import Refusal, at
from ..graph import Op
from ..symbolic import Advanced, Alias, Held, Known, Pair
from .barriers import MOST
from .lowering import allocated, writes_of
from .roles import GROUP, REGISTERS


def find(block, name: str):
    """The operations of a name in a block and those within it."""
    for op in block.ops:
        if op.name == name:
            yield op
        for region in op.regions:
            yield from find(region, name)


class Roles:
    """The groups of a kernel that has some. ``threads``: how many of them there are."""

    def __init__(self, op: Op, body):
        self.op, self.barriers = op, {}
        sizes = [32 * warps for warps in op.attrs["warps"]]
        self.threads = sum(sizes)
        # Whole warp groups come first among the workers, so that they begin at a warp group.
        order = [0, *sorted(range(1, len(sizes)), key=lambda i: sizes[i] % (32 * GROUP) != 0)]
        starts = {i: sum(sizes[j] for j in order[:place]) for place, i in enumerate(order)}
        self.sizes, self.starts, self.thread = sizes, [starts[i] for i in range(len(sizes))], Var("THREAD", int32, "tx")
        self.present = self.threads  # how many threads come to the statement that is lowered
        self._arrivals, self._ends = {}, {}  # {turns: [(times, threads)]}, {ring: {a reader's name, or None for the writer: (group, threads)}}
        self._writers = {}  # {memory: the groups that write to it}
        for place, size in ((body, self.threads), *zip(op.regions, sizes)):
            self._look(place, place, size)

    def _look(self, group, block, threads: int) -> None:
        """``group``: the block of what a group does, or the kernel's, for what all of them do."""
        for op in block.ops:
            if (memory := writes_of(op)) is not None:
                self._writers.setdefault(memory, set()).add(group)
            if op.name == "tle.arrive":
                self._arrivals.setdefault(op.attrs["turns"], []).append((op.attrs["times"], threads))
            if op.name == "tle.turn" and op.attrs["kind"] in ("commit", "release"):
                ends, end = self._ends.setdefault(op.attrs["ring"], {}), None if op.attrs["kind"] == "commit" else op.attrs["reader"]
                if ends.setdefault(end, (group, threads))[0] is not group:
                    raise at(op.file, op.line, f"a pipe's slots are {'filled' if end is None else 'released as by one reader'} by several groups of "
                             "warps; let one group do it, or name a reader for each")
            for region in op.regions if op is not self.op else ():
                self._look(group, region, threads)

    def others_write(self, memory, block) -> bool:
        """Whether other groups than that of a block write to a buffer while it runs."""
        return any(group in self.op.regions and not block.inside(group) for group in self._writers.get(memory, ()))

    def condition(self, number: int):
        """Whether a thread is one of a group."""
        first = self.starts[number]
        return logical("AND", binary("GE", self.thread.expr, first), binary("LT", self.thread.expr, first + self.sizes[number]))

    def of_turns(self, turns) -> tuple:
        """(the barriers, how many arrivals a unit of theirs is, the threads that one arrival stands for)"""
        if turns not in self.barriers:
            sites = self._arrivals.get(turns, [])
            unit = math.gcd(turns.arrivals, *(times for times, _ in sites))
            threads = math.lcm(*(threads for _, threads in sites)) if sites else self.sizes[0]
            made = Barriers([turns.arrivals // unit * threads] * turns.count)
            made.buffer.name = turns.name or "barriers"
            self.barriers[turns] = made, unit, threads
        return self.barriers[turns]

    def of_ring(self, ring, full: bool) -> Barriers:
        """Those that say that slots are full, or that they are free."""
        if (ring, full) not in self.barriers:
            ends = self._ends.get(ring, {})
            count = sum(threads for end, (_, threads) in ends.items() if (end is None) == full)
            made = Barriers([count or self.sizes[0]] * ring.capacity)  # of one at which nobody arrives, any
            made.buffer.name = f"{ring.name or 'pipe'}_{'full' if full else 'free'}"
            self.barriers[ring, full] = made
        return self.barriers[ring, full]

    def registers(self, number: int, has: list):
        """Those that a group asks for at its beginning, or None. ``has``: those of the workers."""
        at_first = REGISTERS // self.threads // 8 * 8
        rest = REGISTERS - sum(count * size for count, size in zip(has, self.sizes[1:]))
        count = has[number - 1] if number else min(rest // self.sizes[0] // 8 * 8, 240)
        return None if count == at_first else Wish(count, count > at_first, name="set_max_nreg")

    def settle(self, kernel: ir.Kernel) -> None:
        kernel.thread_var = self.thread
        settle(kernel)


def roles_of(function):
    """The groups of warps of a kernel, or None."""
    found = next(find(function.body, "tle.warp_specialize"), None)
    return Roles(found, function.body) if found else None


def _operands(block):
    """What operations in a block, and in those within it, take."""
    for op in block.ops:
        yield from op.operands
        for region in op.regions:
            yield from _operands(region)
            yield from region.ends


def _hand_over(lowering, op: Op) -> None:
    """Blocks that all threads have made, each a part, go to shared memory where a group needs them: its threads have no other way to the parts of
    threads of other groups, and no barrier with these."""
    symbols, shared, seen = lowering.symbols, {}, set()
    open_ = [value for region in op.regions for value in _operands(region)]
    while open_:
        value = open_.pop()
        place = symbols.place.get(value)
        if value in seen:
            continue
        seen.add(value)
        if isinstance(place, Held) and place.buffer.space == "FRAGMENT":
            if place.buffer not in shared:
                shared[place.buffer] = lowering.materialize(value, "SHARED")
            symbols.put(value, Held(shared[place.buffer]))
        elif isinstance(place, Alias):
            open_.append(place.value)
        elif isinstance(place, Advanced):
            open_ += [place.start, *(step for _, step in place.steps)]
        elif isinstance(place, Pair):
            open_.append(place.source)
        elif place is None and value.op is not None:
            open_ += value.op.operands


def warp_specialize(lowering, op: Op) -> None:
    _hand_over(lowering, op)
    roles, registers = lowering.roles, list(op.attrs["registers"])
    if registers and any(size % (32 * GROUP) for size in roles.sizes):
        _no_effect(op, "worker_num_regs of tle.gpu.warp_specialize", f"registers are given to groups of {GROUP} warps, so leave it out, or give each "
                   f"function a multiple of {GROUP} warps")
        registers = []
    for number, region in enumerate(op.regions):
        role = Role(roles.condition(number), location=lowering.here)
        roles.present = roles.sizes[number]
        with lowering.within(role.then_body):
            wish = roles.registers(number, registers) if registers else None
            if wish is not None:
                lowering.emit(wish)
            lowering.block(region)
        lowering.stmts.append(role)
        lowering.symbols.forget()


def _no_effect(op: Op, what: str, instead: str) -> None:
    warnings.warn_explicit(f"{what} has no effect in Kiln: {instead}", NoEffectWarning, op.file, op.line)


_IN_ORDER = "in a kernel without tle.gpu.warp_specialize each statement sees what those before it did; leave it out"


def _signal(lowering, barriers: Barriers, index, parity=None, times: int = 1) -> None:
    if times > MOST:
        raise Refusal(f"{times} arrivals of each thread at one barrier; let copies with one barrier bring numbers of bytes that have a larger common "
                      "divisor")
    name = "barrier_arrive" if parity is None else "barrier_wait"
    for _ in range(times):
        lowering.emit(Signal(barriers, index, lowering.roles.present, parity, name))


def wait(lowering, op: Op) -> None:
    turns = op.attrs["turns"]
    if lowering.roles is None:
        return _no_effect(op, "tle.gpu.barrier_wait", _IN_ORDER)
    index, turn = (lowering.at(operand) for operand in op.operands)
    _signal(lowering, lowering.roles.of_turns(turns)[0], index, binary("BIT_AND", turn + int(turns.ahead), 1))


def arrive(lowering, op: Op) -> None:
    turns = op.attrs["turns"]
    if lowering.roles is None:
        if not turns.of_bytes:
            _no_effect(op, "tle.gpu.barrier_arrive", _IN_ORDER)
        return
    barriers, unit, threads = lowering.roles.of_turns(turns)
    _signal(lowering, barriers, lowering.at(op.operands[0]), None, op.attrs["times"] // unit * (threads // lowering.roles.present))


def pipe(lowering, op: Op) -> None:
    """At first no slot says that the pipe is closed."""
    if op.attrs["ring"].closes:
        allocated(lowering, op.attrs["ends"].memory)
        buffer = lowering.symbols.buffers[op.attrs["ends"].memory]
        lowering.emit(ir.Fill(buffer.whole(), const(0, buffer.dtype)))


def turn(lowering, op: Op) -> None:
    if lowering.roles is None:
        return
    ring, kind = op.attrs["ring"], op.attrs["kind"]
    if ring.one_shot and kind in ("acquire", "release"):
        return
    index = lowering.at(op.operands[0])
    stage, again = index % ring.capacity, binary("BIT_AND", index // ring.capacity, 1)
    full = lowering.roles.of_ring(ring, kind in ("commit", "wait"))
    parity = {"acquire": binary("BIT_XOR", again, 1), "wait": again}.get(kind)
    _signal(lowering, full, stage, parity)


def is_closed(lowering, op: Op) -> None:
    value = op.result
    if not op.attrs["ring"].closes:
        lowering.symbols.put(value, Known(as_expr(False)))
        return
    lowering.data.add(value)
    buffer = lowering.symbols.buffers[op.attrs["ends"].memory]
    lowering.bind(value, binary("NE", load(buffer, (lowering.at(op.operands[0]),)), 0))


LOWERED = {"tle.warp_specialize": warp_specialize, "tle.wait": wait, "tle.arrive": arrive, "tle.pipe": pipe, "tle.turn": turn,
           "tle.is_closed": is_closed}
