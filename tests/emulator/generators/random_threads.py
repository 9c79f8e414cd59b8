# SPDX-License-Identifier: Apache-2.0
"""Random programs of single threads among tile statements: blocks of threads in one to three dimensions, conditions on their indices,
arrays of each thread's own, loops of which each thread runs as many iterations as it likes.

A region of single-threaded statements divides the tiles in two: those that it writes, of which a thread touches its own elements alone, and
those that it reads anywhere. So no thread waits for another within a region, and one step after the other for all threads at once, as
``interpreter`` goes, gives what any order gives."""

import contextlib
import math
from dataclasses import dataclass

from random_text import clamped
from random_tiles import SUMS, RandomTiles

BLOCKS = ((128,), (64,), (256,), (192,), (32, 4), (4, 32), (16, 8), (8, 16), (8, 4, 4), (4, 4, 8), (2, 32, 2), (64, 1, 2), (1, 64),
          (1, 1, 64), (1, 128, 1), (64, 4), (3, 64), (32, 2, 3))
BELOW_A_WARP = ((1,), (4,), (8,), (16,), (2, 4), (2, 2, 2), (1, 16))


@dataclass(frozen=True)
class Output:
    """A tensor of which each thread of each block has an element."""

    name: str
    dtype: str
    lead: str  # the block's part
    own: tuple
    extents: tuple  # of the part

    def at(self, index):
        return f"{self.name}[{self.lead}, {', '.join(index)}]"


class RandomThreads(RandomTiles):
    FORMS = ("1-D threads", "2-D threads", "3-D threads", "sub-warp block", "thread condition", "thread range", "other threads",
             "local array", "own loop", "left by single threads", "mask", "thread atomics", "shared atomics", "atomics with old values",
             "tickets", "old values",
             "atomics that meet apart", "element beyond the threads", "own element again",
             "another thread's element of memory", "element of a fragment", "own element of a fragment",
             "own element of a fragment under a condition", "another thread's element of a fragment", "local tile",
             "gathered rows", "view")

    def head(self):
        if self.chance(0.03):
            self.form("sub-warp block")
            block = self.pick(*BELOW_A_WARP)
        else:
            block = self.pick(*BLOCKS)
        self.form(f"{len(block)}-D threads")
        self.block_shape, self.threads = [*block, 1, 1][:3], math.prod(block)
        return block[0] if len(block) == 1 else block

    def enter(self):
        self.line("tx, ty, tz = T.get_thread_bindings()")
        self.places, self.locals, self.types, self.outputs, self.summed, self.written_outputs = {}, [], {}, [], [], []
        self.own_atomics, self.own_fragments = [], []
        self.apart, self.in_loop = None, False  # where threads cannot wait for each other: the tiles that they have added to already
        x, y, _ = self.block_shape
        names = [("tx", x, 1), ("ty", y, x), ("tz", self.block_shape[2], x * y)]
        self.indices = [(name, extent) for name, extent, _ in names if extent > 1]
        self.linear = " + ".join(f"{name} * {step}" if step > 1 else name for name, extent, step in names if extent > 1) or "tx"
        if self.chance(0.4):
            self.begin(self.allocate(self.pick((16,), (4, 8), (33,)), "shared", self.pick("int32", "float32"), wide=True))

    # Which element is whose.

    def own(self, tile):
        """The index of a thread's element of a tile, and the condition under which it has one: the same throughout the kernel."""
        if tile.name not in self.places:
            self.places[tile.name] = self.place_of(tile.shape)
        return self.places[tile.name]

    def place_of(self, shape):
        x, y, _ = self.block_shape
        if len(shape) == 2 and len(self.indices) == 2 and self.block_shape[2] == 1 and y <= shape[0] and x <= shape[1] and self.chance(0.7):
            return ["ty", "tx"], ""
        size, at = math.prod(shape), f"({self.linear})"
        condition = f"{at} < {size}" if self.threads > size else ""
        if self.threads < size:
            at = self.pick(at, f"({self.linear}) * {size // self.threads}", f"({size - 1} - ({self.linear}))")
        elif self.threads == size:
            at = self.pick(at, f"({size - 1} - ({self.linear}))")
        index = []
        for extent in reversed(shape):
            index.insert(0, f"{at} % {extent}" if len(index) + 1 < len(shape) else at)
            at = f"({at} // {extent})"
        return index, condition

    # What each thread does by itself to an array of its own.

    def of_thread(self, dtype):
        return clamped(self.pick(f"({self.linear}) % 5", f"({self.linear}) - {self.pick(0, 30, 63)}", "bx + 1"), dtype)

    def place_of_thread(self, last):
        return self.pick("0", str(last), f"({self.linear}) % {last + 1}")

    def each_thread(self):
        return [(self.linear, self.threads)]

    # Conditions.

    def thread_condition(self, depth=0):
        self.form("thread condition")
        if not self.indices or self.chance(0.1):
            return self.pick("bx == 0", f"({self.linear}) >= 0")
        name, extent = self.pick(*self.indices, (f"({self.linear})", self.threads))
        edge = self.pick(1, extent // 2, extent - 1, extent, 31, 32, 33, 64, 0, self.random.randrange(extent))
        way = self.random.random()
        if way < 0.55:
            self.form("thread range")
            low, high = sorted((edge, self.random.randrange(extent + 1)))
            return self.pick(f"{name} < {edge}", f"{name} >= {edge}", f"{name} <= {edge}", f"{name} > {edge}", f"{edge} > {name}",
                             f"{name} >= {low} and {name} < {high}", f"{low} <= {name} < {high}", f"{name} == {edge}")
        if way < 0.8 or depth:
            return self.pick(f"{name} % {self.pick(2, 3, 4)} == {self.pick(0, 1)}",
                             f"{name} // {self.pick(4, 16, 32)} == {self.pick(0, 1, 2)}",
                             f"{name} % 64 < 32", f"{name} != {edge}", f"{name} < bx * 16 + {edge}")
        if way < 0.9 and self.tiles:
            return f"{self.expression(['tx', self.linear], (self.threads, self.threads), None)} > 0"
        return f"{self.thread_condition(1)} {self.pick('and', 'or')} {self.thread_condition(1)}"

    # Statements of single threads.

    def single_threads(self):
        """A region of them; what it leaves behind the tile statements around it see."""
        outside, known, shared = self.tiles, list(self.locals), self.those(space="shared")
        self.summed = [tile for tile in shared if tile.wide and tile.dtype in SUMS and self.chance(0.6)]
        written = [tile for tile in shared if tile not in self.summed and self.chance(0.5)]
        self.written_outputs = [output for output in self.outputs if self.chance(0.5)]
        fragments = [tile for tile in self.those(space="fragment") if tile.size <= 256 and self.chance(0.08)]
        self.own_fragments = [tile for tile in self.those(space="fragment") if tile not in fragments and not self.own(tile)[1] and self.chance(0.2)]
        self.tiles = [tile for tile in shared if tile not in written and tile not in self.summed] + fragments
        if self.chance(0.7):
            self.local_array()
        for _ in range(self.random.randint(1, 3)):
            self.single(written, 0)
        self.locals = known if self.depth else self.locals
        self.tiles = outside
        return True

    def single(self, written, depth):
        with self.aside():
            if self.own_fragments and self.chance(0.3):
                self.fragment_element(self.pick(*self.own_fragments))
        way = self.random.random()
        if way < 0.3 and depth < 2:
            return self.single_branch(written, depth)
        if way < 0.45 and depth < 2:
            return self.own_loop(written, depth)
        if way < 0.6 and self.locals:
            return self.local_store()
        if way < 0.7 and (not self.in_loop or self.chance(0.1)):
            self.form("atomics that meet apart") if self.in_loop else None
            return self.thread_atomic()
        if way < 0.78 and self.own_fragments and self.apart is None:
            self.form("own element of a fragment")
            return self.tile_store(self.pick(*self.own_fragments))
        if way < 0.85 and written:
            return self.tile_store(self.pick(*written))
        return self.thread_output()

    @contextlib.contextmanager
    def threads_apart(self, loop=False):
        """Where threads cannot wait for each other. A tile is mostly added to once there; more often is a form of its own."""
        outside = self.apart, self.in_loop
        self.apart, self.in_loop = [] if self.apart is None else self.apart, self.in_loop or loop
        yield
        self.apart, self.in_loop = outside

    def single_branch(self, written, depth):
        with self.threads_apart():
            self.sides_apart(written, depth)

    def sides_apart(self, written, depth):
        with self.block(f"if {self.thread_condition()}:"):
            for _ in range(self.random.randint(1, 2)):
                self.single(written, depth + 1)
        if self.chance(0.4):
            self.form("other threads")
            with self.block("else:"):
                self.single(written, depth + 1)

    def own_loop(self, written, depth):
        """As many iterations as the thread wants."""
        self.form("own loop")
        name = self.fresh("u")
        index = self.pick(*self.indices)[0] if self.indices else "bx"
        count = self.pick("2", "3", f"{index} % {self.pick(2, 3, 5)}", f"T.min({index}, 3)", f"({self.linear}) // 32 + 1", "bx + 1")
        head = f"for {name} in T.{self.pick('serial', 'serial', 'unroll')}({count}):" if self.chance(0.8) else f"while {name} < {count}:"
        if head.startswith("while"):
            self.line(f"{name} = T.alloc_var('int32', 0)")
        with self.block(head), self.threads_apart(loop=True):
            if head.startswith("while"):
                self.line(f"{name} += 1")
            self.loop_vars.append(name)
            self.single(written, depth + 1)
            if self.indices and self.chance(0.3):
                self.form("left by single threads")
                with self.block(f"if {self.thread_condition(1)}:"):
                    self.line(self.pick("T.loop_break()", "continue"))
            self.single(written, depth + 1)
            self.loop_vars.pop()

    def element_of(self, at, tile=None):
        """A small number of the thread's own."""
        way = self.random.random()
        if self.locals and way < 0.4:
            name, size = self.pick(*self.locals)
            return f"T.cast({name}[({self.some_index()}) % {size}], 'int32')"
        if tile and way < 0.5:
            return self.element_as(tile, at)
        if way < 0.58 and len(self.written_outputs) < len(self.outputs):
            self.form("another thread's element of memory")
            output = self.pick(*[output for output in self.outputs if output not in self.written_outputs])
            return f"T.cast({output.at([f'({self.some_index()}) % {extent}' for extent in output.extents])}, 'int32')"
        if self.tiles and way < 0.8:
            tile = self.pick(*self.tiles)
            self.form("element of a fragment") if tile.space == "fragment" else None
            return self.element_as(tile, [f"({self.some_index()}) % {extent}" for extent in tile.shape])
        shape = tile.shape if tile else (self.threads,) * len(at)
        return self.expression(at, shape, tile)

    def some_index(self):
        index = self.pick(*self.loop_vars, *[name for name, _ in self.indices], self.linear, "bx")
        return self.pick(index, index, f"{index} + {self.pick(1, 3, 8)}", f"{self.pick(63, 7)} - ({index})")

    def thread_value(self, dtype, at=None, tile=None):
        at = at or [f"({self.linear})"]
        value = self.element_of(at, tile)
        if self.chance(0.25):
            self.form("mask")
            value = f"T.if_then_else({self.thread_condition(1)}, {value}, {self.element_of(at, tile)})"
        return clamped(value, dtype)

    def tile_store(self, tile):
        index, condition = self.own(tile)
        if condition:
            self.form("element beyond the threads")
        target = f"{tile.name}[{', '.join(index)}]"
        if not condition:
            self.line(f"{target} = {self.thread_value(tile.dtype, index, tile)}")
            return
        with self.block(f"if {condition}:"):
            self.line(f"{target} = {self.thread_value(tile.dtype, index, tile)}")

    def fragment_element(self, tile):
        """A thread's own element, which others read later; another's, where no thread is apart from the others."""
        index, _ = self.own(tile)
        if self.apart is not None or self.chance(0.3):
            self.form("own element of a fragment under a condition") if self.apart is not None else None
            value = self.pick(f"({self.linear}) % 5", "bx + 2", f"{self.element_as(tile, index)} + 1")
            self.line(f"{tile.name}[{', '.join(index)}] = {clamped(value, tile.dtype)}")
            return
        self.form("another thread's element of a fragment")
        output = self.new_output()
        at = [f"({self.some_index()}) % {extent}" for extent in tile.shape]
        self.line(f"{output.at(output.own)} = {clamped(self.element_as(tile, at), output.dtype)}")

    def local_array(self):
        self.form("local array")
        name, size = self.fresh("own"), self.pick(1, 2, 3, 4, 5, 8)
        dtype = self.pick("int32", "float32", "float16", "int8", "bfloat16", "int64")
        self.line(f"{name} = T.alloc_local(({size},), '{dtype}')")
        with self.block(f"for v in T.{self.pick('serial', 'unroll', 'vectorized')}({size}):"):
            self.line(f"{name}[v] = {clamped(self.pick('v', f'v - {self.linear}', 'bx + v', f'({self.linear} + v) % 5'), dtype)}")
        self.locals.append((name, size))
        self.types[name] = dtype

    def local_store(self):
        name, size = self.pick(*self.locals)
        self.line(f"{name}[({self.some_index()}) % {size}] = {self.thread_value(self.types[name])}")

    def sum_here(self):
        """A shared tile to add to, if any."""
        tile = self.pick(*self.summed)
        if self.apart is None or self.in_loop:
            return tile
        free = [tile for tile in self.summed if tile not in self.apart]
        if tile not in free and self.chance(0.1):
            self.form("atomics that meet apart")
            return tile
        tile = tile if tile in free else self.pick(*free) if free else None
        self.apart.append(tile)
        return tile

    def thread_atomic(self):
        tile = self.sum_here() if self.summed and self.chance(0.5) else None
        if tile:
            self.form("shared atomics")
            target, dtype = f"{tile.name}[{', '.join(f'({self.some_index()} + {self.linear}) % {e}' for e in tile.shape)}]", tile.dtype
            change = "add"
        else:
            self.form("thread atomics")
            size, dtype = self.pick(1, 4, 16), self.pick("int32", "float32")
            change = self.pick("add", "max", "min") if dtype == "int32" else "add"
            index = f"({self.linear}) % {size}" if size > 1 else f"({self.linear}) // {self.threads}"
            target = f"{self.tensor((size,), dtype, 'zero').name}[{index}]"
        self.line(f"T.atomic_{change}({target}, {self.thread_value(dtype)})")
        with self.aside():
            if self.chance(0.4):
                self.own_atomic()
            elif not self.in_loop and self.chance(0.3):
                self.ticket()

    def own_atomic(self):
        """One of each kind and order on an element that no other thread touches, so that what it finds there is certain."""
        self.form("atomics with old values")
        if not self.own_atomics or self.chance(0.5):
            dtype = self.pick("int32", "int32", "int64", "float32", "float16")
            self.own_atomics.append(self.tensor((max(1, self.gy), max(1, self.gx), 1, self.threads), dtype, "zero"))
        tensor = self.pick(*self.own_atomics)
        bits = () if "float" in tensor.dtype else ("and", "or", "xor", "cas")
        kind, value, before = self.pick("add", "max", "min", "exch", "load", *bits), self.thread_value(tensor.dtype), self.fresh("before")
        more = {"load": "", "exch": f", {value}", "cas": f", {self.thread_value(tensor.dtype)}, {value}"}
        operands = more.get(kind, f", {value}, return_prev=True")
        order = self.pick(None, "relaxed", "acquire", "seq_cst", *(() if kind == "load" else ("release", "acq_rel")))
        self.line(f"{before} = T.atomic_{kind}({tensor.name}[by, bx, 0, {self.linear}]{operands}, memory_order={order!r})")
        output = self.new_output()
        self.line(f"{output.at(output.own)} = {clamped(before, output.dtype)}")

    def ticket(self):
        """Each thread takes a number of a counter, and writes where that number says: who gets which is open, what is written is not."""
        self.form("tickets")
        counter, before = self.tensor((1,), self.pick("int32", "int64"), "zero"), self.fresh("before")
        marked = self.tensor((max(1, self.gy * self.gx) * self.threads,), "int32", "marks")
        order = self.pick(None, "relaxed", "acquire", "release", "acq_rel", "seq_cst")
        self.line(f"{before} = T.atomic_add({counter.name}[0], 1, memory_order={order!r}, return_prev=True)")
        self.line(f"{marked.name}[T.cast({before}, 'int32')] = {self.pick(1, 5, -3)}")

    def thread_output(self):
        """An element of its own in memory, for the first time or again."""
        if self.written_outputs and self.chance(0.5):
            self.form("own element again")
            output = self.pick(*self.written_outputs)
            value = f"T.cast({output.at(output.own)}, 'int32') + {self.element_of([f'({self.linear})'])}"
            self.line(f"{output.at(output.own)} = {clamped(value, output.dtype)}")
            return
        output = self.new_output()
        self.line(f"{output.at(output.own)} = {self.thread_value(output.dtype)}")
        self.outputs.append(output)
        self.written_outputs.append(output)

    def new_output(self):
        dtype, blocks = self.pick("int32", "float32", "float16", "int8"), (max(1, self.gy), max(1, self.gx))
        if self.chance(0.5):
            extents = tuple(self.block_shape[::-1])
            return Output(self.tensor((*blocks, *extents), dtype, "marks").name, dtype, "by, bx", ("tz", "ty", "tx"), extents)
        cut = self.pick(0, 0, 1, 5) if self.threads > 5 else 0  # a store there does nothing, a load gives 0
        name = self.tensor((*blocks, 1, self.threads - cut), dtype, "marks").name
        return Output(name, dtype, "by, bx, 0", (self.linear,), (self.threads,))

    WEIGHTS = (*RandomTiles.WEIGHTS, (single_threads, 90))
