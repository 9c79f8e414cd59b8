# SPDX-License-Identifier: Apache-2.0
"""Which program serves a call, and the kernels that are compiled of them. One kernel serves many sizes: a dimension that varies from call
to call is either known at launch only (``Dynamic``), or the program is made for a rounded size and its tensors may be shorter
(``Program.shorter``). Sizes that are nobody's business but speed's are the daemon's planner's to choose (``chosen``)."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from dataclasses import dataclass, field

import kiln.language as T

from .. import target as targets
from ..client import default_client
from ..errors import CompileError, KilnError
from ..kernel import Kernel
from ..language import program as ir
from ..language.buffer import as_shape
from ..language.expr import as_expr

DIVISORS = (16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Dynamic:
    """An argument of a program: a dimension that a launch decides, a multiple of ``multiple``, in the program an integer of ``dtype``."""

    name: str
    multiple: int = 1
    dtype: str = "int32"


def dynamic(name: str, extent: int) -> Dynamic:
    """For a dimension whose rows must be aligned: the kernel knows of ``extent`` by which of 16, 8, 4 and 2 it can be divided."""
    return Dynamic(name, next(d for d in DIVISORS if extent % d == 0))


def bucket(extent: int) -> int:
    """``extent`` rounded up: to a multiple of 8, and above 256 to one of sixteen sizes for each power of two. One stays one."""
    if extent <= 1:
        return extent
    step = max(8, 1 << max(0, (extent - 1).bit_length() - 5))
    return -(-extent // step) * step


def about(extent: int) -> int:
    """``extent`` rounded up to one of eight sizes for each power of two: as the planner is told it, which need not be asked for each."""
    step = 1 << max(0, extent.bit_length() - 4)
    return -(-extent // step) * step


@dataclass(frozen=True)
class Program:
    """``build(**arguments)`` makes it. ``shorter``: of the tensors that are named, these dimensions may be anything up to what the program
    was made for; in one group they are equal."""

    build: object
    arguments: tuple
    shorter: tuple = ()  # (Dynamic, ((parameter, dimension), …)) of each group

    @classmethod
    def of(cls, build, shorter=(), **arguments) -> "Program":
        """A program with these arguments, which must be hashable."""
        return cls(build, tuple(sorted(arguments.items())), tuple(shorter))

    def sized(self, sizes: tuple) -> "Program":
        """With these further arguments."""
        return dataclasses.replace(self, arguments=tuple(sorted({**dict(self.arguments), **dict(sizes)}.items())))

    def trace(self):
        """The PrimFunc."""
        varying = [value for _, value in self.arguments if isinstance(value, Dynamic)] + [extent for extent, _ in self.shorter]
        symbols = {extent: T.dynamic(extent.name, extent.dtype) for extent in varying}
        func = self.build(**{name: symbols[value] if isinstance(value, Dynamic) else value for name, value in self.arguments})
        buffers = {param.name: param.buffer for param in func.params}
        for extent, places in self.shorter:
            for name, dimension in places:
                shape = list(buffers[name].shape)
                shape[dimension] = symbols[extent]
                buffers[name].shape = as_shape(shape)
        known = [ir.Assume(as_expr(symbol % extent.multiple == 0)) for extent, symbol in symbols.items() if extent.multiple > 1]
        for kernel in func.kernels:
            kernel.body[:0] = known
        return func


@dataclass(frozen=True)
class View:
    """What a program takes of a call's argument ``index``: it, contiguous, in this shape. ``transposed``: its last two dimensions are
    exchanged first. ``first``: its first element alone, for a tensor that the program does not read. ``dtype``: converted."""

    index: int
    shape: tuple
    transposed: bool = False
    first: bool = False
    dtype: str = ""


@dataclass(frozen=True)
class Result:
    """A function's result: shape and dtype."""

    shape: tuple
    dtype: str


@dataclass(frozen=True)
class Plan:
    """How a call is served: one launch of ``program`` with ``inputs``, compiled with ``options`` (fields of CompileOptions), whose outputs
    are given the shapes of ``results``. ``fill``: nothing is launched, the results hold this number."""

    program: Program | None
    inputs: tuple
    results: tuple
    options: tuple = field(default=())
    fill: float | None = None


_choices: dict = {}
_MOST_CHOICES = 65536
_ALIKE = 1.01  # times the least: what is expected to take no more is alike, as measurements of the same are, and the space's order counts


def chosen(program: Program, space: tuple, options: tuple, target: str, symbols: dict) -> Program:
    """The program with those sizes of the space of which the daemon's planner expects most. It is asked once in a process; what it said, it keeps
    for the next ones, which send it one program.

    ``space``: alternatives, each ((argument, value), …), the usual ones first; one alone is nobody's choice. ``symbols``: the dimensions that only
    the launch knows, as they count. KilnError where the daemon is too old to be asked, or refuses them all."""
    if len(space) == 1:
        return program.sized(space[0])
    device = targets.current_device()
    board = (targets.device_name(device) or "") if targets.device_target(device) == target else ""
    key = (target, board, program, space, options, tuple(sorted(symbols.items())))
    found = _choices.get(key)
    if found is None:
        if len(_choices) >= _MOST_CHOICES:
            _choices.clear()
        found = _choices[key] = _ask(program, space, dict(options), target, board, symbols)
    return program.sized(found)


def _ask(program: Program, space: tuple, options: dict, target: str, board: str, symbols: dict) -> tuple:
    client = default_client()
    candidates = [program.sized(sizes).trace for sizes in space]
    try:
        name = hashlib.sha256(repr(space).encode()).digest()
        ranked = client.rank(candidates, target, options=options, board=board, symbols=symbols, space=name)
    except CompileError as failure:
        if failure.code != "UNIMPLEMENTED":
            raise
        raise KilnError(f"the sizes of kiln.library's {program.build.__name__} are chosen by the planner of the daemon, and this kilnd is too old to "
                        "have one: update it, or set KILN_ADDRESS to another") from failure
    if ranked[0].problem:
        raise KilnError(f"the daemon's planner refuses all {len(space)} tiles of {program.build.__name__} for {target}: {ranked[0].problem}")
    return space[min(one.index for one in ranked if one.microseconds <= _ALIKE * ranked[0].microseconds)]


_kernels: dict = {}
_compiling = threading.Lock()


def kernel_of(plan: Plan, target: str) -> Kernel:
    """The plan's kernel, compiled once for all plans of the same program. It is never forgotten: graphs that captured its launch need
    it."""
    key = (target, plan.program, plan.options)
    kernel = _kernels.get(key)
    if kernel is None:
        with _compiling:
            kernel = _kernels.get(key)
            if kernel is None:
                kernel = _kernels[key] = _compile(plan.program.trace(), target, dict(plan.options))
    return kernel


def _compile(func, target: str, options: dict) -> Kernel:
    def ask(explain=None, **more):
        return default_client().compile(func, target, {**options, **more}, explain=explain)

    def run(arguments, more, **how):
        return default_client().run(func, target, arguments, {**options, **more}, **how)

    return Kernel(func, ask(), None, ask, run, options)
