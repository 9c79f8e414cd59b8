# SPDX-License-Identifier: Apache-2.0
"""Runs a traced function with numpy, as the comments of ir.proto say it means: one block after the other, one statement after the other. A
parallel loop is evaluated for all its iterations at once, so a program that depends on their order gives other results than a serial walk.
In a kernel that asks for the index of a thread, what stands outside of parallel loops is evaluated for all threads at once, in the same
way."""

import inspect
import itertools
from dataclasses import dataclass, fields

import numpy as np

from kiln.language.buffer import Region

_NUMPY = {"bool": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8,
          "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "float16": np.float16, "float32": np.float32,
          "float64": np.float64, "bfloat16": np.float32, "tfloat32": np.float32, "float8_e4m3fn": np.float32, "float8_e5m2": np.float32,
          "int4": np.int8, "uint4": np.uint8, "float4_e2m1fn": np.float32}
SHORT = ("int4", "uint4", "float4_e2m1fn")  # two of them share a byte of a tensor
_DROPPED = {"bfloat16": 16, "tfloat32": 13, "float8_e4m3fn": 20, "float8_e5m2": 21}  # bits of a float32's mantissa
_OF_FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])  # what a float4_e2m1fn may be, and its negative
_LARGEST = {"float8_e4m3fn": np.float32(448), "float8_e5m2": np.float32(57344)}  # what larger numbers become


def _truncated(array, integer):
    """Floats as integers: towards zero, those beyond the type's range as its ends, NaN as 0."""
    whole, limits = np.trunc(np.nan_to_num(array.astype(np.float64), posinf=np.inf, neginf=-np.inf)), np.iinfo(integer)
    low, high = whole <= limits.min, whole >= limits.max
    return np.where(low, limits.min, np.where(high, limits.max, np.where(low | high, 0, whole).astype(integer))).astype(integer)


def _of_four_bits(array, dtype):
    if dtype == "float4_e2m1fn":
        size = np.minimum(np.abs(array.astype(np.float64)), 6)[..., None]
        even = np.arange(8) % 2 == 0
        nearest = np.argmin(np.abs(size - _OF_FOUR_BITS) - 1e-9 * even, axis=-1)  # halfway goes to the even code
        return np.copysign(_OF_FOUR_BITS[nearest], array).astype(np.float32)
    low, high = (-8, 7) if dtype == "int4" else (0, 15)
    if array.dtype.kind == "f":
        array = np.clip(np.trunc(np.nan_to_num(array)), low, high)
    return ((array.astype(np.int64) - low & 15) + low).astype(_NUMPY[dtype])


def _dense(kept, metadata, keeps):
    """The matrix of which ``keeps`` of twice as many neighbours are kept."""
    (m, columns), bits = kept.shape, 8 * metadata.dtype.itemsize
    words = metadata.astype(np.int64)[:, :, None] >> np.arange(0, bits, 4) & 15
    fours = words.reshape(m, -1)[:, : columns // keeps, None] >> 2 * np.arange(keeps) & 3
    dense = np.zeros((m, columns // keeps, 2 * keeps), kept.dtype)
    for which in reversed(range(keeps)):
        place = fours[:, :, which] if keeps == 2 else fours[:, :, which] >> 1
        np.put_along_axis(dense, place[..., None], kept.reshape(m, -1, keeps)[:, :, which, None], -1)
    return dense.reshape(m, 2 * columns)


def rounded(value, dtype):
    """The value as an array of what holds the dtype; floats that numpy lacks have fewer digits, and float32's range."""
    array, kind = np.asarray(value), np.dtype(_NUMPY[dtype])
    if str(dtype) in SHORT:
        return _of_four_bits(array, dtype)
    if array.dtype != kind:
        array = _truncated(array, kind) if array.dtype.kind == "f" and kind.kind in "iu" else array.astype(kind)
    drop = _DROPPED.get(dtype)
    if drop is None:
        return array
    bits, drop, one = array.view(np.uint32).astype(np.uint64), np.uint64(drop), np.uint64(1)
    even = (bits >> drop) & one
    kept = ((bits + (one << (drop - one)) - one + even) >> drop) << drop
    near = np.where(np.isfinite(array), kept.astype(np.uint32).view(np.float32), array)
    return np.clip(near, -_LARGEST[dtype], _LARGEST[dtype]) if dtype in _LARGEST else near


_BINARY = {
    "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "MIN": np.fmin, "MAX": np.fmax, "FLOOR_DIV": np.floor_divide,
    "FLOOR_MOD": np.mod, "MOD": np.fmod, "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
    "GE": np.greater_equal, "AND": np.logical_and, "OR": np.logical_or, "BIT_AND": np.bitwise_and, "BIT_OR": np.bitwise_or,
    "BIT_XOR": np.bitwise_xor, "SHL": np.left_shift, "SHR": np.right_shift, "POW": np.power, "DIV_FULL": np.divide,
}
_UNARY = {
    "NEG": np.negative, "ABS": np.abs, "NOT": np.logical_not, "BIT_NOT": np.invert, "FLOOR": np.floor, "CEIL": np.ceil, "ROUND": np.rint,
    "TRUNC": np.trunc, "SQRT": np.sqrt, "EXP": np.exp, "EXP2": np.exp2, "EXP2_FTZ": np.exp2,
    "LOG": np.log, "LOG2": np.log2, "SIN": np.sin, "COS": np.cos,
    "TANH": np.tanh, "IS_NAN": np.isnan, "RSQRT": lambda x: 1 / np.sqrt(x), "SIGMOID": lambda x: 1 / (1 + np.exp(-x)),
}
_COMBINE = {"REDUCE_SUM": np.sum, "REDUCE_MAX": np.max, "REDUCE_MIN": np.min, "REDUCE_ABS_SUM": lambda x, **axes: np.abs(x).sum(**axes),
            "REDUCE_ABS_MAX": lambda x, **axes: np.abs(x).max(**axes)}
_OF_NOTHING = {"REDUCE_SUM": 0, "REDUCE_MAX": -np.inf, "REDUCE_MIN": np.inf, "REDUCE_ABS_SUM": 0, "REDUCE_ABS_MAX": 0}
_MERGE = {"REDUCE_SUM": np.add, "REDUCE_MAX": np.fmax, "REDUCE_MIN": np.fmin, "REDUCE_ABS_SUM": np.add, "REDUCE_ABS_MAX": np.fmax}


def _erf(x):
    """Abramowitz and Stegun 7.1.26, |error| ≤ 1.5e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - series * np.exp(-x * x))


ATOMICS = {"ATOMIC_ADD": np.add, "ATOMIC_MAX": np.maximum, "ATOMIC_MIN": np.minimum, "ATOMIC_BIT_AND": np.bitwise_and,
           "ATOMIC_BIT_OR": np.bitwise_or, "ATOMIC_BIT_XOR": np.bitwise_xor}

# The ops of the family elementwise: what the elements of ``dst`` become, given the parts of the statement that the function's parameters
# name. Random programs (random_tiles.py) call each as T.NAME, with tiles of small numbers and with small numbers.
ELEMENTWISE = {"fill": lambda value: value}


class _Left(Exception):
    """Out of a loop, or (``on``) to its next iteration: all lanes together."""

    def __init__(self, on):
        self.on = on


@dataclass
class _Loop:
    """The lanes that are out of the loop under way, and those that are through with this iteration."""

    out: object = False
    through: object = False


class Interpreter:
    """``places``: of tensors that lie within another's memory: their index among the parameters → that one's, and the first element
    there. ``lanes``: the iterations of the parallel loop under way; outside of one the threads of the block, where the kernel asks for
    their index."""

    def __init__(self, func, tensors, scalars, places=None):
        self.func, self.memory, self.vars, self.lanes = func, {}, {}, None
        self.active, self.guarded, self.loops, self.thread_var = True, 0, [], None
        given = iter(tensors)
        values = iter(scalars)
        for index, param in enumerate(func.params):
            if param.buffer is None:
                self.vars[param.var] = rounded(next(values), param.var.dtype)
            elif index not in func.outputs:
                self._bind(param.buffer, next(given))
        for index, (base, first) in (places or {}).items():
            view, memory = self.memory[func.params[index].buffer], self.memory[func.params[base].buffer].reshape(-1)
            self.memory[func.params[index].buffer] = memory[first : first + view.size].reshape(view.shape)
        for index in func.outputs:
            buffer = func.params[index].buffer
            self._allocate(buffer)
        for buffer in func.workspaces:
            self._allocate(buffer)

    def _bind(self, buffer, tensor):
        for dim, extent in zip(buffer.shape, tensor.shape):
            if not isinstance(dim, int) and dim.op == "VAR":
                assert self.vars.setdefault(dim.value, np.int64(extent)) == extent
        self.memory[buffer] = np.array(rounded(tensor, buffer.dtype))

    def _allocate(self, buffer):
        shape = tuple(int(self.value(d)) for d in buffer.shape)
        self.memory[buffer] = np.zeros(shape, _NUMPY[buffer.dtype])

    def run(self):
        with np.errstate(all="ignore"):
            arguments = self.vars
            for kernel in self.func.kernels:
                for index in itertools.product(*[range(int(self.value(g))) for g in kernel.grid]):
                    self.vars = {**arguments, **dict(zip(kernel.block_vars, map(np.int64, index)))}
                    self._drop_private()
                    self._threads(kernel)
                    self.block(kernel.body, True)
                    self.vars = arguments
        return [self.memory[self.func.params[i].buffer] for i in self.func.outputs]

    def _threads(self, kernel):
        self.thread_var, self.lanes, self.threads = kernel.thread_var, None, kernel.threads
        if kernel.thread_var is not None:
            self.vars[kernel.thread_var] = self.lanes = np.arange(kernel.threads)

    # Expressions: scalars, or one value for each lane.

    def value(self, e, memo=None):
        if isinstance(e, int):
            return np.int64(e)
        memo = {} if memo is None else memo
        if e not in memo:
            memo[e] = self._node(e, self._arguments(e, memo))
        return memo[e]

    def _arguments(self, e, memo):
        """The second of a logical operation, and the sides of a selection, may be of no account."""
        decided = e.op in ("SELECT", "MASKED", "AND", "OR")
        args = [self.value(e.args[0], memo)] if decided else []
        self.guarded += decided
        args += [self.value(a, memo) for a in e.args[decided:]]
        self.guarded -= decided
        return args

    def _node(self, e, args):
        if e.op in ("CONST_INT", "CONST_FLOAT"):
            return rounded(e.value, e.dtype)
        if e.op == "VAR":
            return rounded(self.vars[e.value], e.dtype)
        if e.op == "LOAD":
            return self._load(e.value, args, self.guarded == 0 and self.active)
        if e.op == "CAST":
            return rounded(args[0], e.dtype)
        if e.op == "REINTERPRET" and e.args[0].dtype == "bfloat16":
            return (args[0].view(np.uint32) >> 16).astype(np.uint16).view(_NUMPY[e.dtype])
        if e.op in ("SELECT", "MASKED"):
            return np.where(args[0], args[1], args[2])
        if e.op == "FMA":
            return rounded(args[0] * args[1] + args[2], e.dtype)
        if e.op == "DIV":
            return rounded(args[0] / args[1] if e.dtype.is_float else np.trunc(args[0] / args[1]), e.dtype)
        if e.op == "ERF":
            return rounded(_erf(args[0].astype(np.float64)), e.dtype)
        function = _BINARY.get(e.op) or _UNARY[e.op]
        return rounded(function(*args), e.dtype)

    def _inside(self, buffer, indices):
        shape = self.memory[buffer].shape
        if not shape:
            return np.True_, ()
        inside = np.True_
        for i, n in zip(indices, shape):
            inside = inside & (i >= 0) & (i < n)
        if np.all(inside):
            return inside, tuple(indices)
        return inside, tuple(np.clip(i, 0, max(n - 1, 0)) for i, n in zip(indices, shape))

    def _own(self, buffer, indices):
        """Each lane has private arrays of its own."""
        return [*indices, self.lanes] if buffer.space == "LOCAL" and self.lanes is not None else indices

    def _load(self, buffer, indices, active=np.True_):
        """``active``: the lanes for which the element must be there."""
        inside, at = self._inside(buffer, self._own(buffer, indices))
        if buffer.space != "GLOBAL":
            assert np.all(inside | ~np.asarray(active)), f"{buffer!r} is read outside"
        if self.memory[buffer].size == 0:
            return np.full(np.shape(inside), rounded(buffer.pad_value or 0, buffer.dtype))
        return np.where(inside, self.memory[buffer][at], rounded(buffer.pad_value or 0, buffer.dtype)).astype(_NUMPY[buffer.dtype])

    # Statements, under a mask of the lanes that are active.

    def block(self, stmts, mask):
        for stmt in stmts:
            self.active = np.logical_and(mask, ~self._gone())
            if not np.any(self.active):
                return
            name = type(stmt).__name__.lower()
            self._elementwise(stmt, ELEMENTWISE[name]) if name in ELEMENTWISE else getattr(self, "do_" + name)(stmt, self.active)

    def _gone(self):
        return np.logical_or(self.loops[-1].out, self.loops[-1].through) if self.loops else np.False_

    def do_alloc(self, s, mask):
        self._allocate(s.buffer)
        memory = self.memory[s.buffer]
        if s.buffer.space == "LOCAL" and self.lanes is not None:
            memory = self.memory[s.buffer] = np.repeat(memory[..., None], len(self.lanes), -1)
        memory.fill(self._unset(memory.dtype))

    def do_for(self, s, mask):
        extents = [self.value(e) for e in s.extents]
        if s.kind == "PARALLEL":
            self._parallel(s, [int(e) for e in extents], mask)
            return
        self._repeat(s, mask, np.asarray(extents[0]))

    def _repeat(self, s, mask, extent):
        self.loops.append(_Loop())
        for step in range(int(np.max(np.where(mask, extent, 0), initial=0))):
            self.vars[s.vars[0]] = np.int64(step)
            if not self._go_on(s.body, mask if extent.ndim == 0 else np.logical_and(mask, step < extent)):
                break
        self.loops.pop()

    def _go_on(self, body, mask):
        """Whether the loop goes on after this iteration."""
        self.loops[-1].through = False
        try:
            self.block(body, mask)
        except _Left as left:
            return left.on
        return True

    def _parallel(self, s, extents, mask):
        grids = np.indices(extents).reshape(len(extents), -1)
        if grids.shape[1] == 0:
            return
        before = {buffer: memory for buffer, memory in self.memory.items() if buffer.space == "LOCAL"}
        outside = self.lanes, self.loops, self.vars
        self.vars = {**self._agreed(mask), **dict(zip(s.vars, grids))}
        self.lanes, self.loops = np.arange(grids.shape[1]), []
        self.memory.update({buffer: self._for_all(memory, outside[0], mask) for buffer, memory in before.items()})
        self.block(s.body, np.ones(len(self.lanes), bool))
        self.lanes, self.loops, self.vars = outside
        self._drop_private()
        self.memory.update(before)

    def _drop_private(self):
        """Arrays of lanes that are no more."""
        for buffer in [buffer for buffer in self.memory if buffer.space == "LOCAL"]:
            del self.memory[buffer]

    def _agreed(self, mask):
        """The variables that have one value for all lanes of the mask. Which thread runs an iteration is open, so a parallel loop may read no
        others."""
        found = {}
        for var, value in self.vars.items():
            each = value[np.broadcast_to(mask, value.shape)] if np.ndim(value) else np.reshape(value, 1)
            if var is not self.thread_var and np.all((each == each[0]) | (each != each)):
                found[var] = each[0]
        return found

    def _for_all(self, memory, threads, mask):
        """What a private array has for each iteration of a loop that begins. Which thread runs one is open, so where the threads that come
        there have different elements no program may read them: they become those of a new array."""
        if threads is not None:
            each = memory[..., np.broadcast_to(mask, len(threads))]
            first = each[..., 0]
            same = np.all((each == first[..., None]) | (each != each), -1)
            memory = np.where(same, first, self._unset(memory.dtype)).astype(memory.dtype)
        return np.repeat(memory[..., None], len(self.lanes), -1)

    @staticmethod
    def _unset(dtype):
        return np.nan if dtype.kind == "f" else 77

    def do_break(self, s, mask):
        if mask.ndim == 0:
            raise _Left(on=False)
        self.loops[-1].out = np.logical_or(self.loops[-1].out, mask)

    def do_continue(self, s, mask):
        if mask.ndim == 0:
            raise _Left(on=True)
        self.loops[-1].through = np.logical_or(self.loops[-1].through, mask)

    def do_if(self, s, mask):
        condition = np.logical_and(mask, self.value(s.cond))
        if np.any(condition):
            self.block(s.then_body, condition)
        other = np.logical_and(mask, ~np.asarray(condition))
        if np.any(other):
            self.block(s.else_body, other)

    def do_while(self, s, mask):
        self.loops.append(_Loop())
        while np.any(active := np.logical_and(mask, self.value(s.cond))):
            if not self._go_on(s.body, active):
                break
            self.active = mask = np.logical_and(active, ~np.asarray(self.loops[-1].out))
        self.loops.pop()

    def do_let(self, s, mask):
        self.vars[s.var] = self.value(s.value)

    def _targets(self, s, mask):
        indices = self._own(s.buffer, [self.value(i) for i in s.indices])
        inside, at = self._inside(s.buffer, indices)
        active = np.logical_and(mask, inside)
        if getattr(s, "each_thread", False):
            active = np.logical_and(active, np.ones(self.threads, bool))
        if s.buffer.space != "GLOBAL":
            assert np.all(inside | ~np.asarray(mask)), f"{s.buffer!r} is written outside"
        *at, value, active = np.broadcast_arrays(*at, self.value(s.value), active)
        if not at:
            return self.memory[s.buffer].reshape(1), (np.zeros(np.count_nonzero(active), int),), value[active]
        return self.memory[s.buffer], tuple(i[active] for i in at), value[active]

    def do_store(self, s, mask):
        memory, at, value = self._targets(s, mask)
        memory[at] = value
        kept = np.array_equal(memory[at], value.astype(memory.dtype), equal_nan=memory.dtype.kind == "f")
        assert kept, f"lanes store different values to one element of {s.buffer!r}"

    def do_atomic(self, s, mask):
        if s.block is not None:
            raise NotImplementedError("blocks run one after another here, and each has its memory for itself")
        if s.kind in ATOMICS and s.old is None:
            memory, at, value = self._targets(s, mask)
            return ATOMICS[s.kind].at(memory, at, value)
        # One lane after the other: each finds what those before it left.
        inside, at = self._inside(s.buffer, [self.value(i) for i in s.indices])
        lanes = np.ones(self.threads, bool) if s.each_thread else np.True_
        values = [np.asarray(0 if e is None else self.value(e)) for e in (s.value, s.compare)]
        active, value, compare, *at = np.broadcast_arrays(mask & inside & lanes, *values, *at)
        memory = self.memory[s.buffer]
        old = np.full(active.shape, rounded(s.buffer.pad_value or 0, s.buffer.dtype)).astype(memory.dtype)
        for lane in zip(*np.nonzero(active)):
            place = tuple(i[lane] for i in at)
            before = old[lane] = memory[place]
            if s.kind in ATOMICS:
                memory[place] = ATOMICS[s.kind](before, value[lane].astype(memory.dtype))
            elif s.kind == "ATOMIC_EXCHANGE" or (s.kind == "ATOMIC_COMPARE_EXCHANGE" and before == compare[lane]):
                memory[place] = value[lane]
        if s.old is not None:
            to = np.broadcast_arrays(mask & lanes, old, *self._own(s.old.buffer, [self.value(i) for i in s.old.indices]))
            taken = to[0]
            self.memory[s.old.buffer][tuple(i[taken] for i in to[2:])] = to[1][taken]

    # Tile operations. With an array of each thread's own, each thread does all of one for itself: what it reads and writes has a last
    # dimension more, that of the lanes.

    def _is_private(self, s):
        regions = [getattr(s, field.name) for field in fields(s) if isinstance(getattr(s, field.name), Region)]
        return self.lanes is not None and any(region.buffer.space == "LOCAL" for region in regions)

    def _grid(self, region, private):
        steps = np.indices(region.extents)
        if private:
            return [self.value(o) + g[..., None] for o, g in zip(region.offsets, steps)]
        return [int(self._of_block(self.value(o))) + g for o, g in zip(region.offsets, steps)]

    def _of_block(self, value):
        """What all active threads agree on."""
        value, active = np.broadcast_arrays(value, self.active)
        each = np.unique(value[active])
        assert len(each) == 1, "an operand of a tile operation differs between threads"
        return each[0]

    def read(self, region, private=False):
        tile = self._load(region.buffer, self._grid(region, private), self.active if private else np.True_)
        return np.broadcast_to(tile, (*region.extents, len(self.lanes))) if private else tile

    def write(self, region, tile, private=False):
        indices = self._grid(region, private)
        inside, at = self._inside(region.buffer, self._own(region.buffer, indices) if private else indices)
        tile = rounded(tile if private else tile.reshape(np.shape(inside)), region.dtype)
        *at, active, tile = np.broadcast_arrays(*at, inside & self.active if private else inside, tile)
        memory = self.memory[region.buffer] if at else self.memory[region.buffer].reshape(1)
        at = tuple(i[active] for i in at) or np.zeros(np.count_nonzero(active), int)
        memory[at] = tile[active]
        kept = np.array_equal(memory[at], tile[active].astype(memory.dtype), equal_nan=memory.dtype.kind == "f")
        assert kept, f"lanes write different values to one element of {region.buffer!r}"

    def do_copy(self, s, mask):
        private = self._is_private(s)
        self.write(s.dst, self.read(s.src, private).reshape((*s.dst.extents, *([-1] if private else []))), private)

    def _elementwise(self, s, becomes):
        private = self._is_private(s)
        shape = (*s.dst.extents, len(self.lanes)) if private else tuple(s.dst.extents)
        parts = [getattr(s, name) for name in inspect.signature(becomes).parameters]
        scalar = self.value if private else lambda part: self._of_block(self.value(part))
        values = [self.read(part, private).reshape(shape) if isinstance(part, Region) else scalar(part) for part in parts]
        self.write(s.dst, np.broadcast_to(becomes(*values), shape), private)

    def do_gemm(self, s, mask):
        wide = np.float64 if s.c.dtype.is_float else np.int64
        a, b, c = (self.read(r).reshape(r.extents[-2:]).astype(wide) for r in (s.a, s.b, s.c))
        a, b = a.T if s.transpose_a else a, b.T if s.transpose_b else b
        if s.metadata is not None:
            e = self.read(s.metadata).reshape(s.metadata.extents[-2:])
            a = _dense(a, e.T if s.transpose_metadata else e, 1 if s.a.dtype.bits == 32 else 2)
        self.write(s.c, a @ b if s.clear_accum else c + a @ b)

    def do_mma(self, s, mask):
        raise NotImplementedError("an array of a thread is one here, and an instruction of a warp takes those of all its lanes")

    def do_call(self, s, mask):
        raise NotImplementedError("a function in another language: nothing here reads its text")

    def do_reduce(self, s, mask):
        tile = self.read(s.src).astype(np.float64 if s.src.dtype.is_float else np.int64)
        empty = tile.shape[s.dim] == 0
        if empty and not s.clear:
            return
        result = np.full(s.dst.extents, _OF_NOTHING[s.kind])
        if not empty:
            result = _COMBINE[s.kind](tile, axis=s.dim, keepdims=True).reshape(s.dst.extents)
        self.write(s.dst, result if s.clear else _MERGE[s.kind](self.read(s.dst), result))

    def do_barrier(self, s, mask):
        if s.grid or s.cluster:
            raise NotImplementedError("blocks run one after another here, and cannot wait for each other")

    # Of a program whose statements stand in an order that its barriers allow.
    def do_assume(self, s, mask):
        pass

    do_arrive = do_await = do_registers = do_assume


def interpret(func, *tensors, scalars=()):
    """The outputs, as a list."""
    return Interpreter(func, tensors, scalars).run()
