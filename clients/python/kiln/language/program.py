# SPDX-License-Identifier: Apache-2.0
"""What a trace makes: statements, kernels and the tile function, one class for each message of ir.proto. ``encode`` writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import ClassVar, Optional

from .buffer import Buffer, Region
from .expr import Expr, Var


@dataclass(slots=True)
class Location:
    file: str = ""
    line: int = 0


@dataclass(slots=True, kw_only=True)
class Stmt:
    WRITTEN: ClassVar[str] = "dst"  # of an operation on tiles: the operand that it writes; it reads the others
    ON_TENSORS: ClassVar[bool] = True  # and whether an operand may be a tensor

    location: Location = field(default_factory=Location)


def _with_tf32(module):
    """A copy of the module of a function that was unpickled, whose statements stayed behind."""
    from .. import _proto

    copy, float32 = type(module).FromString(module.SerializeToString()), _proto.messages().enums["DType"].values_by_name["F32"].number

    def allow(message):
        if message.DESCRIPTOR.name == "Gemm":
            message.allow_tf32 |= all(copy.buffers[side.buffer].dtype == float32 for side in (message.a, message.b))
        for part, value in message.ListFields():
            if part.message_type is not None:
                for inner in [value] if hasattr(value, "DESCRIPTOR") else value:
                    allow(inner)

    for kernel in copy.kernels:
        allow(kernel)
    return copy


def expressions(stmt: Stmt):
    """The operands of a statement, without those of statements within it."""
    for part in fields(stmt):
        value = getattr(stmt, part.name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Expr):
                yield one
            elif isinstance(one, Region):
                yield from (o for o in one.offsets if isinstance(o, Expr))
            elif isinstance(one, Element):
                yield from one.indices
            elif isinstance(one, Argument):
                yield one.value


def written(stmt: Stmt) -> list:
    """The buffers that a statement itself changes."""
    found = [stmt.buffer] if isinstance(stmt, (Store, Atomic)) else []
    if isinstance(getattr(stmt, stmt.WRITTEN, None), Region):
        found.append(getattr(stmt, stmt.WRITTEN).buffer)
    if isinstance(stmt, Atomic) and stmt.old is not None:
        found.append(stmt.old.buffer)
    if isinstance(stmt, Call):
        found += [argument.buffer for argument in stmt.arguments if argument.buffer is not None]
    return found


@dataclass(slots=True)
class Alloc(Stmt):
    buffer: Buffer


@dataclass(slots=True)
class For(Stmt):
    kind: str
    vars: list[Var]
    extents: list[Expr]
    body: list[Stmt] = field(default_factory=list)
    num_stages: int = 0
    coalesced_width: int = 0


@dataclass(slots=True)
class If(Stmt):
    cond: Expr
    then_body: list[Stmt] = field(default_factory=list)
    else_body: list[Stmt] = field(default_factory=list)


@dataclass(slots=True)
class While(Stmt):
    cond: Expr
    body: list[Stmt] = field(default_factory=list)


@dataclass(slots=True)
class Let(Stmt):
    var: Var
    value: Expr


@dataclass(slots=True)
class Store(Stmt):
    buffer: Buffer
    indices: list[Expr]
    value: Expr


@dataclass(slots=True)
class Assume(Stmt):
    cond: Expr


@dataclass(slots=True)
class Copy(Stmt):
    src: Region
    dst: Region
    coalesced_width: int = 0
    signals: Element | None = None  # a barrier of T.alloc_barrier: its turn is not over before the elements are there


@dataclass(slots=True)
class Gemm(Stmt):
    WRITTEN = "c"
    ON_TENSORS = False

    a: Region
    b: Region
    c: Region
    transpose_a: bool = False
    transpose_b: bool = False
    policy: int = 0
    clear_accum: bool = False
    allow_tf32: bool = False
    metadata: Region | None = None  # of a sparse a, which holds half of the columns
    transpose_metadata: bool = False


@dataclass(slots=True)
class Mma(Stmt):
    WRITTEN = "c"
    ON_TENSORS = False

    a: Region
    b: Region
    c: Region
    m: int
    n: int
    k: int


@dataclass(slots=True)
class Fill(Stmt):
    dst: Region
    value: Expr


@dataclass(slots=True)
class Reduce(Stmt):
    ON_TENSORS = False

    kind: str
    src: Region
    dst: Region
    dim: int
    clear: bool


@dataclass(slots=True, frozen=True)
class Function:
    """In another language. ``text`` is that of a whole module, which calls it ``symbol``."""

    language: str
    symbol: str
    text: str


@dataclass(slots=True)
class Argument:
    value: Expr
    buffer: Buffer | None = None  # of an address: that of the element so many behind the buffer's first


@dataclass(slots=True)
class Call(Stmt):
    function: Function
    arguments: list[Argument]


@dataclass(slots=True)
class Element:
    buffer: Buffer
    indices: list[Expr]


@dataclass(slots=True)
class Atomic(Stmt):
    kind: str
    buffer: Buffer
    indices: list[Expr]
    value: Expr | None  # None: of ATOMIC_LOAD
    each_thread: bool = False
    compare: Expr | None = None
    old: Element | None = None  # of a local, which takes what was there before
    order: str = "MEMORY_ORDER_RELAXED"
    block: Expr | None = None  # the rank of the block in the cluster whose shared memory it is, unless it is the block's own


@dataclass(slots=True)
class Barrier(Stmt):
    grid: bool = False
    cluster: bool = False


@dataclass(slots=True)
class Break(Stmt):
    pass


@dataclass(slots=True)
class Continue(Stmt):
    pass


@dataclass(slots=True)
class Arrive(Stmt):
    buffer: Buffer
    indices: list[Expr]
    block: Expr | None = None


@dataclass(slots=True)
class Await(Stmt):
    buffer: Buffer
    indices: list[Expr]
    parity: Expr


@dataclass(slots=True)
class Registers(Stmt):
    count: int
    more: bool


@dataclass(slots=True)
class Kernel:
    grid: list[Expr]
    block: tuple[int, int, int]  # threads along x, y and z
    block_vars: list[Var]
    name: str
    cluster: list[int] = field(default_factory=list)
    body: list[Stmt] = field(default_factory=list)
    raster_panel: int = 0
    min_blocks: int = 0
    thread_var: Optional[Var] = None  # the linear index of the thread in its block
    placements: dict = field(default_factory=dict)  # of tensors that are not row-major, while it is traced
    in_order: object = None  # of warp groups that wait for each other: the kernel in an order of one block's statements, or why there is none
    random: object = None  # the generator that T.rng_init began last, while it is traced

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(slots=True)
class AtAddress:
    """What a tensor is like that a call gives by its address: dimensions and strides follow from the call's scalars. ``shape`` None: it is an address
    and no tensor."""

    shape: Optional[tuple] = None
    strides: Optional[tuple] = None


@dataclass(slots=True, eq=False)
class Param:
    """A tensor (``buffer``) or a scalar (``var``). ``address``: of one that a call may give by its address."""

    name: str
    buffer: Optional[Buffer] = None
    var: Optional[Var] = None
    address: Optional[AtAddress] = None


def has_mbarriers(target: str) -> bool:
    """Whether the target is an NVIDIA GPU from sm_90 on, or the emulator of one."""
    arch = re.fullmatch(r"(?:cuda|emu):sm_(\d+)\w?", target)
    return arch is not None and int(arch[1]) >= 90


class PrimFunc:
    """A traced tile function: what T.prim_func gives and kiln.compile takes. ``script()`` is its text, ``serialized`` its bytes,
    ``with_outputs`` chooses the parameters that the launcher allocates and returns.
    Shapes: none. Dtypes: none. Targets: all. Errors: ValueError of ``with_outputs`` for an index outside of the parameters."""

    def __init__(self, name: str):
        self.name = name
        self.params: list[Param] = []
        self.kernels: list[Kernel] = []
        self.outputs: list[int] = []
        self.chosen = False  # whether out_idx says so, and not T.empty
        self.pass_configs: dict = {}
        self.compile_flags: list[str] = []
        self.workspaces: list[Buffer] = []
        self.stray: Optional[Exception] = None  # of statements outside of kernels, where there are no kernels
        self.refused: Optional[Exception] = None  # of what TileLang refuses where it compiles
        self.allow_tf32 = False  # of all products of float32, whatever each says
        self.memories: dict = {}  # by dtype: the last parameters, which calls do not give
        self._module = None

    def __getstate__(self):
        """Pickled, a function is its parameters and its module, which is what kilnd and launches take; its statements stay behind, as
        expressions nest deeper than pickle goes."""
        return {**self.__dict__, "kernels": [], "_module": self.module.SerializeToString()}

    def __setstate__(self, state):
        from .. import _proto

        self.__dict__.update(state, _module=_proto.messages().Module.FromString(state["_module"]))

    @property
    def given(self) -> int:
        """How many parameters calls may give."""
        return len(self.params) - len(self.memories)

    @property
    def buffer_map(self) -> dict:
        """The tensor of each parameter that is one."""
        return {param: param.buffer for param in self.params if param.buffer is not None}

    @property
    def attrs(self) -> dict:
        """What the function says of itself, under TileLang's names: "global_symbol", and where there is such, "tilelang_out_idx" (the T.empty
        tensors, from the end), "tilelang_pass_configs" and "tilelang_compile_flags"."""
        count = self.given
        given = {"tilelang_out_idx": [index - count for index in self.outputs], "tilelang_pass_configs": dict(self.pass_configs),
                 "tilelang_compile_flags": list(self.compile_flags)}
        return {"global_symbol": self.name, **{name: value for name, value in given.items() if value}}

    @property
    def module(self):
        """The kiln.v1.Module message."""
        if self._module is None:
            from .encode import encode

            self._module = encode(self)
        return self._module

    @property
    def serialized(self) -> bytes:
        """The module's bytes; equal for equal programs."""
        return self.module.SerializeToString(deterministic=True)

    @property
    def varies(self) -> bool:
        """Whether ``for_target`` gives another function for some targets."""
        return any(kernel.in_order is not None for kernel in self.kernels)

    def for_target(self, target: str) -> "PrimFunc":
        """The function as the target takes it. Where it has no barriers of parts of a block that threads wait for, warp groups with roles
        (T.ws) go one after the other. TraceError where their barriers allow no such order."""
        if has_mbarriers(target) or not self.varies:
            return self
        for kernel in self.kernels:
            if isinstance(kernel.in_order, Exception):
                raise kernel.in_order
        other = PrimFunc(self.name)
        other.__dict__.update(self.__dict__)
        other.kernels, other._module = [kernel.in_order or kernel for kernel in self.kernels], None
        return other

    def with_outputs(self, outputs) -> "PrimFunc":
        """The same function with these parameters (negative: from the end) allocated and returned by the launcher."""
        count = self.given
        wanted = [outputs] if isinstance(outputs, int) else list(outputs)
        resolved = []
        for index in wanted:
            if not -count <= index < count:
                raise ValueError(f"out_idx {index} is outside the {count} parameters of {self.name}")
            resolved.append(index % count)
        if self.outputs and not self.chosen:
            raise ValueError(f"Out index conflict: {self.name} makes its outputs {self.outputs} with T.empty and returns them, and out_idx is "
                             f"{outputs}; leave out_idx out")
        if resolved == self.outputs:
            return self
        other = PrimFunc(self.name)
        other.__dict__.update(self.__dict__)
        other.outputs, other.chosen, other._module = resolved, True, None
        return other

    def with_tf32(self) -> "PrimFunc":
        """The same function, whose products of float32 may all leave out the low bits of their operands."""
        if self.allow_tf32:
            return self
        other = PrimFunc(self.name)
        other.__dict__.update(self.__dict__)
        other.allow_tf32, other._module = True, None if self.kernels else _with_tf32(self.module)
        return other

    def script(self, show_meta: bool = False) -> str:
        """The program as text."""
        from .printer import script

        if not self.kernels and self.module.kernels:
            raise ValueError(f"{self.name} was unpickled, and its statements stayed behind: ask for the text where it was made")

        return script(self)

    def __repr__(self):
        return f"PrimFunc({self.name}, {len(self.params)} parameters, {len(self.kernels)} kernels)"

    __str__ = script
