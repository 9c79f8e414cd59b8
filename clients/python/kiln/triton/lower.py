# SPDX-License-Identifier: Apache-2.0
"""Graph → the tile language's program. Each operation is lowered where it stands. Blocks that are functions of their indices, and of scalars
that are loaded, stay symbolic (``symbolic``); loads, products, reductions and what is made of them and used more than once become fragments;
a scalar that is no index arithmetic is bound by a let. ``flow`` has loops and branches."""

from __future__ import annotations

import contextlib

from ..language import program as ir
from ..language.buffer import Buffer, load
from ..language.dtypes import as_dtype, int32
from ..language.expr import Expr, Var, as_expr, binary, cast, const, constant_value, logical, make, masked
from .errors import Refusal, at
from .graph import PURE, Block, Function, Op, Value, block_of, is_scalar, largest_factor
from .lets import in_parts
from .messages import buffer_of_messages, lower_message
from .simplify import simplify
from .symbolic import Advanced, Alias, Held, Known, Pair, Symbols, merged, merged_indices, separate_indices
from .types import float32, kiln_of

# Operations that only rename or convert elements: what takes their result takes, in effect, their operand.
VIEWS = frozenset(("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "arith.cast", "arith.bitcast"))
_INLINE = 64  # nodes of index arithmetic that is not bound by a let


def users(value: Value) -> list:
    """What takes the value's elements, through views."""
    found = []
    for user in value.uses:
        if isinstance(user, Op) and user.name in VIEWS:
            found += users(user.result)
        else:
            found.append(user)
    return found


class Lowering:
    """``Lowering(function, options).program()``. ``options``: num_warps, num_stages, rank of the grid, may_overlap."""

    def __init__(self, function: Function, num_warps: int, num_stages: int, rank: int, may_overlap: bool = False):
        self.function, self.num_warps, self.num_stages, self.rank = function, num_warps, num_stages, rank
        self.symbols, self.may_overlap = Symbols(), may_overlap
        self.data: set = set()  # values that depend on memory
        self.fixed: set = set()  # operations that stay symbolic
        self.ending: dict = {}  # of values that nothing takes behind an if: its branches
        self.shared: list = []  # allocations at the head of the kernel
        self.told: list = []  # the messages that the kernel writes
        self.roles = roles_of(function)  # groups of warps, or None
        self.multiplies = False  # whether it has products of tiles
        self.messages = buffer_of_messages()
        self.stmts: list = []
        self.here = ir.Location()
        self.count = 0

    def program(self) -> ir.PrimFunc:
        simplify(self.function)
        func = ir.PrimFunc(self.function.name)
        grid = [Var("SCALAR", int32, f"programs_{axis}") for axis in range(self.rank)]
        blocks = [Var("BLOCK", int32, f"pid_{axis}", axis) for axis in range(self.rank)]
        for name, value in self.function.params:
            func.params.append(self._parameter(name, value))
        func.params += [ir.Param(var.name, var=var) for var in grid]
        one, zero = as_expr(1), as_expr(0)
        self.symbols.grid = [var.expr for var in grid] + [one] * (3 - self.rank)
        self.symbols.programs = [var.expr for var in blocks] + [zero] * (3 - self.rank)
        body = []
        with self.within(body):
            self._promises()
            self._bound_programs(grid, blocks)
            self.block(self.function.body)
        if self.told:
            func.params.append(ir.Param(self.messages.name, buffer=self.messages))
        self._append_memories(func)
        threads = 1 if is_scalar(self.function.body) else 32 * self.num_warps  # a kernel of scalars: nobody waits for others
        threads = self.roles.threads if self.roles else threads
        kernel = ir.Kernel([var.expr for var in grid], (threads, 1, 1), blocks, func.name, body=[*self.shared, *body])
        func.kernels.append(kernel)
        if self.roles:
            self.roles.settle(kernel)
        return func

    def _append_memories(self, func: ir.PrimFunc) -> None:
        """All memory, which pointers that were integers lead to; it is the arguments', too."""
        func.memories = self.symbols.memories
        func.params += [ir.Param(memory.name, buffer=memory) for memory in func.memories.values()]
        if func.memories:
            for buffer in func.buffer_map.values():
                buffer.may_alias = True

    def _parameter(self, name: str, value: Value) -> ir.Param:
        if value.element.is_ptr():
            size = Var("SYMBOL", as_dtype("int64"), f"{name}_size")
            buffer = Buffer("GLOBAL", (size.expr,), value.element.element_ty.kiln, name)
            buffer.may_alias = self.may_overlap or bool(self.function.views)
            self.symbols.bases[value] = buffer
            self.symbols.put(value, Known(const(0, int32)))
            return ir.Param(name, buffer=buffer)
        var = Var("SCALAR", value.element.kiln, name)
        self.symbols.put(value, Known(var.expr))
        return ir.Param(name, var=var)

    def _feeds_products(self, value: Value) -> bool:
        """Whether products alone take a loaded block."""
        takers = users(value) if value.shape else []
        return bool(takers) and all(isinstance(user, Op) and user.name == "tt.dot" and self._transposed(value, user) for user in takers)

    def _promises(self) -> None:
        for value, divisor in self.function.assumed:
            if value.element.is_ptr():  # in this form the launcher checks it, as accesses beyond the storage would follow
                rest = binary("FLOOR_MOD", self.symbols.base(value).shape[0], divisor)
            else:
                rest = binary("MOD", self.at(value), divisor)
            self.emit(ir.Assume(binary("EQ", rest, 0)))

    def _bound_programs(self, grid: list, blocks: list) -> None:
        """What a program begins at, its number times the size of its block, is a number of 32 bits: so masks see that it is not negative, and each
        launch looks whether its grid is that small."""
        for axis, (programs, number) in enumerate(zip(grid, blocks)):
            most = (1 << 31) // largest_factor(self.function.body, axis)
            if most < 1 << 31:
                self.emit(ir.Assume(binary("LE", programs.expr, most)))
                self.emit(ir.Assume(binary("LT", number.expr, most)))

    # Statements.

    def emit(self, stmt):
        stmt.location = self.here
        self.stmts += in_parts(stmt)
        return stmt

    @contextlib.contextmanager
    def within(self, stmts: list):
        """Statements go to this list."""
        outer, self.stmts = self.stmts, stmts
        try:
            yield
        finally:
            self.stmts = outer

    def at(self, value: Value, indices=()) -> Expr:
        return self.symbols.at(value, indices)

    def name(self, value: Value, otherwise: str) -> str:
        self.count += 1
        return value.name or f"{otherwise}_{self.count}"

    def parallel(self, shape, body) -> None:
        """A parallel loop over a shape whose statements are those of ``body(indices)``."""
        sizes = merged(shape) or (1,)
        variables = [Var("LOOP", int32, "ijklmn"[d] if d < 6 else f"i{d}") for d in range(len(sizes))]
        indices = tuple(var.expr for var in variables)
        loop = ir.For("PARALLEL", variables, [as_expr(extent) for extent in sizes])
        with self.within(loop.body):
            body(separate_indices(shape, indices))
        self.emit(loop)

    def put(self, buffer: Buffer, shape, indices, value: Expr) -> None:
        """One element of a block that a buffer holds."""
        self.emit(ir.Store(buffer, list(merged_indices(shape, indices)) or [as_expr(0)], value))

    def allocate(self, space: str, shape, dtype, name: str) -> Buffer:
        buffer = Buffer(space, merged(shape) or (1,), dtype, name)
        if space == "SHARED":
            self.shared.append(ir.Alloc(buffer, location=self.here))
        else:
            self.emit(ir.Alloc(buffer))
        return buffer

    def write(self, buffer: Buffer, value: Value) -> None:
        """The elements of a value into a buffer of its shape."""
        uniform = self._uniform(value)
        if not value.shape:
            self.emit(ir.Store(buffer, [as_expr(0)], cast(self.at(value), buffer.dtype)))
        elif uniform is not None and buffer.space == "FRAGMENT":
            self.emit(ir.Fill(buffer.whole(), cast(self.at(uniform), buffer.dtype)))
        else:
            self.parallel(value.shape, lambda indices: self.put(buffer, value.shape, indices, cast(self.at(value, indices), buffer.dtype)))

    def _uniform(self, value: Value):
        """The scalar that all elements are, if the graph says so."""
        while value.op is not None and value.op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape") and \
                value not in self.symbols.place:
            value = value.op.operands[0]
        return value if not value.shape and not value.element.is_ptr() else None

    def materialize(self, value: Value, space: str = "FRAGMENT", dtype=None) -> Buffer:
        """A buffer with the elements of a block."""
        buffer = self.allocate(space, value.shape, dtype or kiln_of(value.element), self.name(value, "tile"))
        self.write(buffer, value)
        return buffer

    def fragment(self, value: Value) -> Buffer:
        """A fragment that holds the value, its own where it has one."""
        place = self.symbols.place.get(value)
        while isinstance(place, Alias):
            value = place.value
            place = self.symbols.place.get(value)
        if isinstance(place, Held) and place.buffer.space == "FRAGMENT":
            return place.buffer
        return self.materialize(value)

    def bind(self, value: Value, expr: Expr) -> None:
        """A scalar's value from here on."""
        if expr.op not in ("VAR", "CONST_INT", "CONST_FLOAT"):
            var = Var("LET", expr.dtype, self.name(value, "x"))
            self.emit(ir.Let(var, expr))
            expr = var.expr
        self.symbols.put(value, Known(expr))

    # Operations.

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.here = ir.Location(op.file, op.line)
            try:
                self.op(op)
            except Refusal as problem:
                raise at(op.file, op.line, str(problem)) from problem

    def op(self, op: Op) -> None:
        if op.name in PURE:
            self.pure(op)
        else:
            _LOWERED[op.name](self, op)

    def pure(self, op: Op) -> None:
        value = op.result
        self.symbols.again(value)
        if any(operand in self.data for operand in op.operands):
            self.data.add(value)
        if op in self.fixed or value.element.is_ptr():
            return
        if op.name == "tt.gather" and op.operands[0] in self.data:
            self.gather(op)
        elif value.shape:
            is_tile = op.name not in VIEWS and value in self.data and not value.element.is_bool()
            if is_tile and self._shared_by_many(value) and not self._is_index(value):
                reused = self.in_place(op)
                self.symbols.put(value, Held(self.materialize(value) if reused is None else reused))
        elif op.name != "arith.constant":
            expr = self.at(value)
            if value in self.data or value.element.is_floating() or expr.size > _INLINE:
                self.bind(value, expr)

    def gather(self, op: Op) -> None:
        """Elements of a block that other threads may hold: through shared memory."""
        source, value = op.operands[0], op.result
        axis, place = op.attrs["axis"], self.symbols.place.get(source)
        shared = place.buffer if isinstance(place, Held) and place.buffer.space == "SHARED" else self.materialize(source, "SHARED")
        buffer = self.allocate("FRAGMENT", value.shape, shared.dtype, self.name(value, "gathered"))

        def body(indices):
            index = cast(self.at(op.operands[1], indices), "int32")
            taken = (*indices[:axis], index, *indices[axis + 1 :])
            self.put(buffer, value.shape, indices, load(shared, merged_indices(source.shape, taken)))

        self.parallel(value.shape, body)
        self.symbols.put(value, Held(buffer))

    def exchange(self, op: Op) -> None:
        """A block in shared memory, for gathers."""
        self.data.add(op.result)
        self.symbols.put(op.result, Held(self.materialize(op.operands[0], "SHARED")))

    def alternate(self, op: Op) -> None:
        """Through shared memory, for other threads hold the neighbours."""
        value, axis, count = op.result, op.attrs["axis"], len(op.operands)
        self.data.add(value)
        shared = self.allocate("SHARED", value.shape, kiln_of(value.element), self.name(value, "alternating"))

        def body(indices):
            for k, block in enumerate(op.operands):
                place = (*indices[:axis], indices[axis] * count + k, *indices[axis + 1 :])
                self.put(shared, value.shape, place, cast(self.at(block, indices), shared.dtype))

        self.parallel(op.operands[0].shape, body)
        buffer = self.allocate("FRAGMENT", value.shape, shared.dtype, self.name(value, "tile"))
        self.parallel(value.shape, lambda indices: self.put(buffer, value.shape, indices, load(shared, merged_indices(value.shape, indices))))
        self.symbols.put(value, Held(buffer))

    def map_elementwise(self, op: Op) -> None:
        """The region is run for each element."""
        (region,), buffers = op.regions, []
        for value in op.results:
            buffers.append(self.allocate("FRAGMENT", value.shape, kiln_of(value.element), self.name(value, "mapped")))
        self.data.update((*op.results, *region.args))

        def body(indices):
            for argument, operand in zip(region.args, op.operands):
                self.bind(argument, self.at(operand, indices))
            self.block(region)
            for buffer, end in zip(buffers, region.ends):
                self.put(buffer, op.results[0].shape, indices, cast(self.at(end), buffer.dtype))

        self.parallel(op.results[0].shape, body)
        self.symbols.forget()
        for value, buffer in zip(op.results, buffers):
            self.symbols.put(value, Held(buffer))

    def histogram(self, op: Op) -> None:
        """Each element adds one to its bin, in shared memory."""
        value, (source, *mask) = op.result, op.operands
        self.data.add(value)
        bins = self.allocate("SHARED", value.shape, value.element.kiln, self.name(value, "bins"))
        self.emit(ir.Fill(bins.whole(), const(0, bins.dtype)))

        def body(indices):
            index = self.at(source, indices)
            condition = logical("AND", binary("GE", index, 0), binary("LT", index, value.shape[0]))
            guard = ir.If(logical("AND", condition, self.at(mask[0], indices)) if mask else condition)
            with self.within(guard.then_body):
                self.emit(ir.Atomic("ATOMIC_ADD", bins, [cast(index, "int32")], const(1, bins.dtype)))
            self.emit(guard)

        self.parallel(source.shape, body)
        self.symbols.put(value, Held(bins))

    def _is_costly(self, value: Value) -> bool:
        """Whether it is better kept than computed where it is wanted: in another block, or of much."""
        elsewhere = any(block_of(user) is not value.home for user in users(value))
        return elsewhere or self.at(value, tuple(Var("LOOP", int32, "i").expr for _ in value.shape)).size > 2 * _INLINE

    @staticmethod
    def _shared_by_many(value: Value) -> bool:
        """Whether it is needed more than once, or in a loop or branch within its block."""
        found = users(value)
        return len(found) > 1 or any(block_of(user) is not value.home for user in found)

    def _is_index(self, value: Value) -> bool:
        """Whether it is a little arithmetic of indices and of scalars that have one value here, whatever they come from. In a fragment it would
        hide from the compiler that neighbours in memory are neighbours."""
        stack, left = [value], _INLINE
        while stack:
            value, left = stack.pop(), left - 1
            place = self.symbols.place.get(value)
            if left < 0 or not value.element.is_int():
                return False
            if isinstance(place, Alias):
                stack.append(place.value)
            elif isinstance(place, Advanced) and not flow.buffers_of(place.times):
                stack += [place.start, *(step for _, step in place.steps)]
            elif place is not None:
                if not isinstance(place, Known) or flow.buffers_of(place.expr):
                    return False
            elif value.op is None or value.op.name not in PURE or value.op.name == "tt.gather":
                return False
            else:
                stack += value.op.operands
        return True

    def in_place(self, op: Op):
        """The fragment of an operand that nothing needs any more, with the result in it."""
        value = op.result
        for operand in op.operands:
            buffer = self.dying(operand, op)
            if buffer is not None and operand.shape == value.shape and buffer.dtype == kiln_of(value.element):
                self.write(buffer, value)
                return buffer
        return None

    def dying(self, value: Value, op: Op):
        """The fragment that holds a value which this operation alone takes, once, in the block that made it, or in a branch behind which nothing
        needs it."""
        place = self.symbols.place.get(value)
        if not isinstance(place, Held) or place.buffer.space != "FRAGMENT":
            return None
        if value.uses == [op] and value.home is op.block:
            return place.buffer
        here = [user for user in value.uses if block_of(user).inside(op.block)]
        return place.buffer if here == [op] and op.block in self.ending.get(value, ()) else None

    def load(self, op: Op) -> None:
        value, dtype = op.result, op.result.element.kiln
        self.data.add(value)
        if not value.shape:
            self.bind(value, self.loaded(op.operands, dtype, ()))
            return
        region = unchanged_region(self, op) if self._feeds_products(value) else None
        if region is not None:
            self.symbols.put(value, Seen(region))
            return
        gathered = all(isinstance(user, Op) and user.name == "tt.gather" and user.operands[1] is not value for user in value.uses)
        buffer = self.allocate("SHARED" if self._feeds_products(value) or gathered else "FRAGMENT", value.shape, dtype, self.name(value, "loaded"))
        self.parallel(value.shape, lambda indices: self.put(buffer, value.shape, indices, self.loaded(op.operands, dtype, indices)))
        self.symbols.put(value, Held(buffer))

    def loaded(self, operands, dtype, indices) -> Expr:
        """An element that a load gives; nothing is read where its mask is false. ``operands``: pointers, and perhaps a mask and what is read
        elsewhere."""
        pointer, *rest = operands
        element = load(*self.symbols.element(pointer, indices))
        if rest:
            other = _as_type(self.at(rest[1], indices), element.dtype) if len(rest) > 1 else const(0, element.dtype)
            element = masked(self.at(rest[0], indices), element, other)
        return _as_type(element, dtype)

    def store(self, op: Op) -> None:
        pointer, value, *mask = op.operands
        self.guarded(pointer, mask, lambda indices, buffer, places: self.emit(
            ir.Store(buffer, places, _as_type(self.at(value, indices), buffer.dtype))))

    def atomic(self, op: Op) -> None:
        """Of what nothing uses, the old value is not asked for; where the mask is false, it is 0."""
        value, dtype = op.result, op.result.element.kiln
        if self.symbols.base(op.operands[0]).dtype != dtype:
            raise Refusal(f"an atomic operation by a pointer that was cast to another type; pass the tensor with elements of {dtype}")
        held = None
        if value.uses:
            self.data.add(value)
            held = self.allocate("FRAGMENT", value.shape, dtype, self.name(value, "before"))
            self.emit(ir.Fill(held.whole(), const(0, dtype)))

        count = 1 + op.attrs["values"]

        def made(indices, buffer, places):
            values = [self.at(x, indices) for x in op.operands[1:count]]
            compare = values[0] if len(values) > 1 else None
            old = None if held is None else ir.Element(self.allocate("LOCAL", (), dtype, "old"), [as_expr(0)])
            self.emit(ir.Atomic(op.attrs["kind"], buffer, places, values[-1] if values else None, False, compare, old, op.attrs["order"]))
            if old is not None:
                self.put(held, value.shape, indices, load(old.buffer, old.indices))

        self.guarded(op.operands[0], op.operands[count:], made)
        if held is None:
            return
        if value.shape:
            self.symbols.put(value, Held(held))
        else:
            self.bind(value, load(held, (as_expr(0),)))

    def guarded(self, pointer: Value, mask, made) -> None:
        """For each element, where the mask is true, the statements that ``made`` emits of its indices, and of the buffer and the place that the
        pointer leads to. ``mask``: none or one."""
        def body(indices):
            parts = (indices, *self.symbols.element(pointer, indices))
            condition = self.at(mask[0], indices) if mask else as_expr(True)
            if constant_value(condition) is True:
                made(*parts)
            elif constant_value(condition) is not False:
                guard = ir.If(condition)
                with self.within(guard.then_body):
                    made(*parts)
                self.emit(guard)

        self.parallel(pointer.shape, body)

    def reduce(self, op: Op) -> None:
        source, value = op.operands[0], op.result
        self.data.add(value)
        fn = op.attrs["kind"].removeprefix("REDUCE_").replace("SUM", "ADD")
        if value.shape and source.shape[op.attrs["axis"]] == 2 and (fn not in ("MAX", "MIN") or source.element.is_int()):
            self.symbols.put(value, Pair(source, op.attrs["axis"], fn))
            if self._is_costly(value):
                self.symbols.put(value, Held(self.materialize(value)))
            return
        held = self.fragment(source)
        buffer = self.allocate("FRAGMENT", value.shape, held.dtype, self.name(value, "reduced"))
        self.emit(ir.Reduce(op.attrs["kind"], held.whole(), buffer.whole(), op.attrs["axis"], True))
        if value.shape:
            self.symbols.put(value, Held(buffer))
        else:
            self.bind(value, load(buffer, (as_expr(0),)))

    def dot(self, op: Op) -> None:
        self.multiplies = True
        a, b, acc = op.operands
        self.data.add(op.result)
        left, transpose_a = self.factor(a, True)
        right, transpose_b = self.factor(b, False)
        buffer = self.dying(acc, op)
        if buffer is None and acc not in self.symbols.place and acc.uses == [op] and acc.home is op.block and acc.op.name not in VIEWS:
            buffer = self.in_place(acc.op)  # a sum that is scaled where it is
        if buffer is None:
            buffer = self.allocate("FRAGMENT", acc.shape, acc.element.kiln, self.name(op.result, "product"))
            self.write(buffer, acc)
        rounded = a.element is float32 and op.attrs["precision"] == "tf32"
        self.emit(ir.Gemm(left, right, buffer.whole(), transpose_a, transpose_b, allow_tf32=rounded))
        self.symbols.put(op.result, Held(buffer))

    def factor(self, value: Value, left: bool) -> tuple:
        """(the region of an operand of a product, whether it holds it transposed)."""
        dtype, transposed = value.element.kiln, False
        while value.op is not None and value.op.name == "tt.trans" and value not in self.symbols.place:
            value, transposed = value.op.operands[0], not transposed
        place = self.symbols.place.get(value)
        while isinstance(place, Alias):
            value = place.value
            place = self.symbols.place.get(value)
        if isinstance(place, Seen) and place.region.dtype == dtype:
            return place.region, transposed
        held = place.buffer if isinstance(place, Held) and place.buffer.dtype == dtype else None
        if held is not None and (held.space == "SHARED" or left and not transposed):
            return held.whole(), transposed
        in_registers = left and not transposed and dtype.bits < 64  # numbers of 64 bits are read one by one, from wherever they are
        return self.materialize(value, "FRAGMENT" if in_registers else "SHARED", dtype).whole(), transposed

    def _transposed(self, value: Value, op: Op) -> bool:
        """Whether a product takes the value itself or its transpose."""
        for operand in op.operands[:2]:
            while operand.op is not None and operand.op.name == "tt.trans":
                operand = operand.op.operands[0]
            if operand is value:
                return op.operands[2] is not value
        return False

    def assume(self, op: Op) -> None:
        self.emit(ir.Assume(self.at(op.operands[0])))

    def barrier(self, op: Op) -> None:
        self.emit(ir.Barrier())


def _as_type(x: Expr, dtype) -> Expr:
    """The bits of an element as those of a pointer's type."""
    if x.dtype == dtype:
        return x
    return cast(x, dtype) if "b" in (x.dtype.kind, dtype.kind) else make("REINTERPRET", dtype, (x,))


from . import flow  # noqa: E402
from .extensions.calls import LOWERED as CALLS  # noqa: E402
from .extensions.lowering import LOWERED, Seen, unchanged_region  # noqa: E402
from .extensions.signals import LOWERED as SIGNALS, roles_of  # noqa: E402

_LOWERED = {"tt.load": Lowering.load, "tt.store": Lowering.store, "tt.atomic_rmw": Lowering.atomic, "tt.reduce": Lowering.reduce,
            "tt.dot": Lowering.dot, "tt.map_elementwise": Lowering.map_elementwise,
            "tt.histogram": Lowering.histogram, "tt.exchange": Lowering.exchange, "tt.alternate": Lowering.alternate,
            "llvm.intr.assume": Lowering.assume, "tt.print": lower_message, "gpu.barrier": Lowering.barrier,
            "scf.for": flow.lower_for, "scf.while": flow.lower_while, "scf.if": flow.lower_if, **LOWERED, **SIGNALS, **CALLS}
