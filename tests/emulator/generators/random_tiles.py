# SPDX-License-Identifier: Apache-2.0
"""Random programs of tile statements in nested loops and branches: anything that the language has may follow anything else. A tile is
written as a whole before it is read, and holds small numbers, or sums (``wide``), which only statements that bound them add to."""

import contextlib
from dataclasses import dataclass, fields

from interpreter import ELEMENTWISE
from kiln.language import program
from random_expressions import INTEGERS, Expressions
from random_text import LIMIT, clamped

MATRIX = ("float16", "float16", "bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2")
ANY = ("float32", "int32", "float16", "bfloat16", "int8", "float8_e4m3fn", "uint8", "int16", "int64", "float64")
SUMS = ("float32", "int32")
BITS = {"float64": 64, "int64": 64, "float32": 32, "int32": 32, "float16": 16, "bfloat16": 16, "int16": 16}
SHARED_BYTES = 20000  # of one version of all tiles
DIMS = (16, 32, 64, 64, 48, 80, 24, 40, 8, 20, 33)


@dataclass(eq=False)
class Tile:
    name: str
    space: str
    shape: tuple
    dtype: str
    wide: bool = False

    @property
    def size(self):
        product = 1
        for extent in self.shape:
            product *= extent
        return product


class RandomTiles(Expressions):
    FORMS = ("local tile", "old values", "gathered rows", "view")
    largest = 4  # of a tensor's elements
    of_locals = ()  # the tensors that show what local arrays hold
    matrix, any = MATRIX, ANY  # the types of tiles: of those that have products, and of others
    of_sums = ()  # the tensors whose numbers are no longer small

    def build(self):
        for _ in range(self.pick(1, 1, 1, 1, 2)):
            self.kernel()
        return self.source()

    def kernel(self):
        hidden = (*self.of_locals, *self.of_sums)
        self.readable = [tensor for tensor in self.tensors if tensor not in hidden]  # what no statement of this kernel writes
        self.tiles, self.loop_vars, self.depth, self.shared, self.statements = [], [], 0, 0, 0
        threads = self.head()
        self.gx, self.gy = self.grid()
        self.p, self.q = self.pick(*DIMS), self.pick(*DIMS)
        self.k = self.pick(16, 32, 32, 64, 48, 80, 8, 24)
        self.dtype = self.pick(*self.matrix)
        with self.block(f"with T.Kernel({self.extent(self.gx)}, {self.extent(self.gy)}, threads={threads}) as (bx, by):"):
            self.enter()
            if self.chance(0.1):
                self.line(f"T.use_swizzle({self.pick(1, 2, 4)})")
            for _ in range(self.random.randint(2, 5)):
                self.begin(self.allocate())
            for _ in range(self.random.randint(2, 6)):
                self.statement()
                with self.aside():
                    if self.chance(0.08):
                        self.viewed()
            with self.aside():
                if self.chance(0.25):
                    self.local_tile()
            for tile in self.tiles:
                self.sink(tile)

    def head(self):
        """The text that says how many threads a block has."""
        self.threads = self.pick(64, 128, 128, 128, 128, 256, 192)
        return self.threads

    def grid(self):
        """How many blocks there are, along x and y."""
        return self.pick(1, 2, 2, 3) if self.chance(0.98) else 0, self.pick(1, 1, 1, 2)

    def enter(self):
        """What a kernel begins with."""

    def extent(self, value):
        """A number of iterations or blocks, known now or when the program runs."""
        return self.symbol(value) if self.chance(0.2) else str(value)

    # Tiles.

    def allocate(self, shape=None, space=None, dtype=None, wide=False):
        shape = self.shape() if shape is None else shape
        dtype = dtype or self.pick(self.dtype, self.dtype, self.dtype, *self.any)
        tile = Tile("", space or self.pick("shared", "fragment"), tuple(shape), dtype, wide)
        size = tile.size * BITS.get(dtype, 8) // 8
        if tile.space == "shared" and self.shared + size > SHARED_BYTES:
            tile.space = "fragment"
        if tile.space == "fragment" and tile.size > 64 * self.threads:
            tile.space = "shared"
        self.shared += size if tile.space == "shared" else 0
        tile.name = self.fresh(tile.space[0])
        self.line(f"{tile.name} = T.alloc_{tile.space}({tile.shape}, '{dtype}')")
        return tile

    def shape(self):
        p, q, k = self.p, self.q, self.k
        return self.pick((p, q), (p, q), (p, q), (p, k), (k, q), (q, k), (q, p), (p,), (q,), (k,), (2, p, 8), (3, 8, q))

    def begin(self, tile):
        """Its first values; from now on statements may read it."""
        way = self.random.random()
        if tile.wide:
            self.line(f"T.clear({tile.name})")
        elif way < 0.7:
            self.load(tile)
        elif way < 0.85:
            self.line(f"T.fill({tile.name}, {self.pick(0, 1, 2, 3)})")
        else:
            self.elementwise(tile, whole=True)
        self.tiles.append(tile)

    def those(self, **wanted):
        return [tile for tile in self.tiles if all(getattr(tile, key) == value for key, value in wanted.items())]

    # Between tensors and tiles.

    def place(self, shape, tensor_rank):
        """Where a tile begins in a tensor of this block's own part: one text for each dimension of the tensor."""
        lead = [str(self.pick(0, 0, 1))] * (tensor_rank - 2)
        rows = 1 if len(shape) == 1 else shape[-2]
        return [*lead, self.offset("by", rows), self.offset("bx", shape[-1])]

    def load(self, tile):
        dtype = tile.dtype
        if not dtype.startswith("u") and self.chance(0.3):
            dtype = self.pick("float16", "float32", "int8", "bfloat16", "int32", "float64")
        tensor = self.input(tile.shape, dtype)
        begins = self.place(tile.shape, len(tensor.shape))
        self.line(f"T.copy({self.region(tensor.name, begins, tile.shape, open_end=self.chance(0.5))}, {tile.name})")

    @staticmethod
    def region(name, begins, shape, open_end=False):
        """Whose last dimensions are ``shape``; with ``open_end`` the other side of a copy says how large it is."""
        if open_end and len(shape) > 1:
            return f"{name}[{', '.join(begins)}]"
        points = len(begins) - len(shape)
        slices = [f"{b} : {b} + {e}" for b, e in zip(begins[points:], shape)]
        return f"{name}[{', '.join([*begins[:points], *slices])}]"

    def sink(self, tile, again=False):
        """The tile to an output of its own; perhaps back from there."""
        dtype = self.stored_type(tile)
        if not tile.wide and not dtype.startswith("u") and self.chance(0.4):
            dtype = self.pick("float16", "float32", "int32", "bfloat16")
        rows = 1 if len(tile.shape) == 1 else tile.shape[-2]
        cut = self.pick(0, 0, 1, 3, 8)
        shape = [*tile.shape[:-2], max(1, rows * self.gy - cut), max(1, tile.shape[-1] * self.gx - self.pick(0, 0, 1, 2, 8))]
        out = self.tensor(shape, dtype, "marks")
        if tile.wide:
            self.of_sums = (*self.of_sums, out)
        begins = [*["0"] * (len(shape) - 2), f"by * {rows}", f"bx * {tile.shape[-1]}"]
        region = self.region(out.name, begins, tile.shape, open_end=self.chance(0.5))
        self.line(f"T.copy({tile.name}, {region})")
        same = [t for t in self.tiles if t.shape == tile.shape and t.wide == tile.wide and t.dtype == tile.dtype]
        if again and same and self.chance(0.3):
            self.line(f"T.copy({region}, {self.pick(*same).name})")
        return True

    def stored_type(self, tile):
        """Of a tensor that the tile goes to."""
        return tile.dtype

    # Arrays of each thread's own, of which each thread does whole operations by itself.

    def local_tile(self):
        self.form("local tile")
        shape, dtype = self.pick((4,), (8,), (16,), (2, 4), (3, 5)), self.pick(*self.any)
        tile, outside = Tile(self.fresh("own"), "local", shape, dtype), self.tiles
        self.line(f"{tile.name} = T.alloc_local({shape}, '{dtype}')")
        self.line(f"T.fill({tile.name}, {self.of_thread(dtype)})")
        sources = [t for t in self.those(wide=False, space="shared") if len(t.shape) == len(shape) and dtype[0] != "u"]
        self.tiles = [tile]
        for _ in range(self.random.randint(1, 3)):
            begins, extents = self.part(shape)
            source = self.pick(*sources) if sources and self.chance(0.5) else None
            if source is None:
                self.pick(self.part_of_a_tile, lambda t: self.line(f"T.fill({self.region(t.name, begins, extents)}, {self.of_thread(dtype)})"))(tile)
            elif all(x <= e for x, e in zip(extents, source.shape)):
                places = [self.place_of_thread(e - x) for x, e in zip(extents, source.shape)]
                self.line(f"T.copy({self.region(source.name, places, extents)}, {self.region(tile.name, begins, extents)})")
        self.tiles = outside
        threads = self.each_thread()
        out = self.tensor([max(1, self.gy), max(1, self.gx), *[count for _, count in threads], *shape], self.stored_type(tile), "marks")
        self.of_locals = (*self.of_locals, out)
        begins = ["by", "bx", *[index for index, _ in threads], *["0"] * len(shape)]
        self.line(f"T.copy({tile.name}, {self.region(out.name, begins, shape)})")

    def of_thread(self, dtype):
        """A small number: here all threads have the same."""
        return str(self.pick(0, 1, 2))

    def place_of_thread(self, last):
        return str(self.random.randint(0, last))

    def each_thread(self):
        """Indices that tell threads with different numbers apart, and how many there are of each."""
        return []

    # Rows of a tensor by a list, of which some name no row.

    def gathered(self):
        self.form("gathered rows")
        shape, dtype = (self.p, self.pick(8, 16, 16, 24, 7)), self.pick("float16", "float16", "bfloat16", "float32", "int8")
        tile = Tile(self.fresh("rows"), "shared", shape, dtype)
        source, numbers = self.tensor([self.pick(3, 20, 50), shape[1]], dtype), self.tensor([self.p + 8], "int32")
        out = self.tensor([max(1, self.gy), max(1, self.gx), *shape], dtype, "marks")
        self.of_locals = (*self.of_locals, source, numbers, out)
        at = f"{numbers.name}[i + {self.pick(0, 1, 8, 12)}]"
        if self.chance(0.3):
            listed = self.fresh("list")
            self.line(f"{listed} = T.alloc_shared({numbers.shape}, 'int32')")
            self.line(f"T.copy({numbers.name}, {listed})")
            at = f"{listed}[i + {self.pick(0, 8)}]"
        row = f"({at} * {self.pick(1, 5, 9)} + {self.loop_vars[-1]}) % {self.pick(7, 40)} - {self.pick(0, 1, 3)}"
        value = f"{source.name}[{row}, j]"
        mask = self.pick(None, f"{at} > 1", f"i + {self.loop_vars[-1]} < {self.pick(1, 17, 40)}", f"j < {self.pick(3, 8)}")
        self.line(f"{tile.name} = T.alloc_shared({shape}, '{dtype}')")
        with self.block(f"for i, j in T.Parallel({shape[0]}, {shape[1]}):"):
            self.line(f"{tile.name}[i, j] = {value if mask is None else f'T.if_then_else({mask}, {value}, {self.pick(0, 0, 0, 1)})'}")
        self.line(f"T.copy({tile.name}, {self.region(out.name, ['by', 'bx', '0', '0'], shape)})")

    # A tile under another shape.

    def viewed(self):
        tiles = [tile for tile in self.those(wide=False) if tile.size % 8 == 0]
        if not tiles:
            return
        self.form("view")
        tile = self.pick(*tiles)
        columns = self.pick(4, 8, tile.shape[-1], tile.shape[0], tile.size)
        rows = tile.size // columns
        shape = (columns,) if rows == 1 else (2, rows // 2, columns) if rows % 2 == 0 and self.chance(0.3) else (rows, columns)
        view = Tile(self.fresh("view"), tile.space, shape, tile.dtype)
        self.line(f"{view.name} = T.reshape({tile.name}, {shape})")
        for _ in range(self.pick(1, 1, 2)):
            self.pick(self.part_of_a_view, self.elements_of_a_view, self.show)(view)

    def part_of_a_view(self, view):
        begins, extents = self.part(view.shape)
        self.line(f"T.fill({self.region(view.name, begins, extents)}, {self.pick(0, 1, 2, self.loop_vars[-1] if self.loop_vars else 3)})")

    def elements_of_a_view(self, view):
        names = list("ijl"[: len(view.shape)])
        with self.block(f"for {', '.join(names)} in T.Parallel({', '.join(map(str, view.shape))}):"):
            value = f"{self.element_as(view, names)} {self.pick('+', '-')} {self.pick(1, *[f'{name} % 3' for name in names])}"
            self.line(f"{view.name}[{', '.join(names)}] = {clamped(value, view.dtype)}")

    def show(self, view):
        out = self.tensor([max(1, self.gy), max(1, self.gx), *view.shape], self.stored_type(view), "marks")
        self.of_locals = (*self.of_locals, out)
        self.line(f"T.copy({view.name}, {self.region(out.name, ['by', 'bx', *['0'] * len(view.shape)], view.shape)})")

    # Statements. Each says whether there was something to write.

    def statement(self):
        self.statements += 1
        if self.statements > 20:
            return
        for _ in range(12):
            make = self.random.choices(*zip(*self.WEIGHTS))[0]
            if make(self):
                return

    def fill(self):
        tile = self.pick(*self.tiles)
        if len(tile.shape) > 1 and self.chance(0.5):
            self.part_of_a_tile(tile)
        else:
            self.line(self.pick(f"T.clear({tile.name})", f"T.fill({tile.name}, {self.pick(1, 2, 3)})"))
        return True

    def part_of_a_tile(self, tile):
        """An op of the family elementwise; if it takes other tiles, the same part of them."""
        names = [*ELEMENTWISE]
        name = names[0] if len(names) == 1 else self.pick(*names)
        begins, extents = self.part(tile.shape)
        arguments = []
        for part in fields(getattr(program, name.capitalize())):
            if part.type == "Region":
                alike = [tile] if part.name == "dst" else self.those(shape=tile.shape, dtype=tile.dtype, wide=tile.wide)
                arguments.append(self.region((alike[0] if len(alike) == 1 else self.pick(*alike)).name, begins, extents))
            elif part.type == "Expr":
                arguments.append(str(self.pick(0, 1, 2)))
        self.line(f"T.{name}({', '.join(arguments)})")

    def part(self, shape):
        """Some of each dimension: where it begins, and how much."""
        extents = [self.pick(e, e, max(1, e // 2), self.random.randint(1, e)) for e in shape]
        return [str(self.random.randint(0, e - x)) for e, x in zip(shape, extents)], extents

    def copy(self):
        wide = self.chance(0.2)
        pairs = [(a, b) for a in self.those(wide=wide) for b in self.those(wide=wide)
                 if a is not b and len(a.shape) == len(b.shape) and (not b.dtype.startswith("u") or a.dtype.startswith("u"))
                 and (not wide or a.dtype == b.dtype)]
        whole = [(a, b) for a, b in pairs if a.shape == b.shape]
        if whole and self.chance(0.6):
            a, b = self.pick(*whole)
            self.line(f"T.copy({a.name}, {b.name})")
        elif pairs:
            a, b = self.pick(*pairs)
            begins, extents = self.part([min(x, y) for x, y in zip(a.shape, b.shape)])
            to = [str(self.random.randint(0, e - x)) for e, x in zip(b.shape, extents)]
            self.line(f"T.copy({self.region(a.name, begins, extents)}, {self.region(b.name, to, extents)})")
        return bool(pairs)

    def line_of_a_tile(self):
        """A row or a column as a tile."""
        pairs = [(a, b) for a in self.those(wide=False) for b in self.those(wide=False)
                 if len(a.shape) == 2 and len(b.shape) == 1 and b.shape[0] in a.shape and (not b.dtype.startswith("u") or a.dtype.startswith("u"))]
        if pairs:
            a, b = self.pick(*pairs)
            row = a.shape[1] == b.shape[0]
            at = self.random.randrange(a.shape[0 if row else 1])
            self.line(f"T.copy({a.name}[{f'{at}, :' if row else f':, {at}'}], {b.name})")
        return bool(pairs)

    def gemm(self):
        operands = [t for t in self.those(wide=False) if len(t.shape) == 2 and t.dtype in self.matrix and (t.dtype != "float32" or self.chance(0.2))]
        choices = []
        for a in operands:
            for b in operands:
                for trans_a, trans_b in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    (m, k), (k2, n) = a.shape[:: 1 - 2 * trans_a], b.shape[:: 1 - 2 * trans_b]
                    if a.dtype == b.dtype and k == k2 and m * n <= 64 * self.threads:
                        choices.append((a, b, trans_a, trans_b, (m, n)))
        if not choices:
            return self.depth == 0 and self.operands()
        a, b, trans_a, trans_b, shape = self.pick(*choices)
        dtype = "int32" if a.dtype in INTEGERS else "float32"
        sums = self.those(shape=shape, dtype=dtype, wide=True, space="fragment")
        if not sums and self.depth:
            return False
        if not sums or (not self.depth and self.chance(0.3)):
            sums = [self.allocate(shape, "fragment", dtype, wide=True)]
            self.begin(sums[0])
        if sums[0].space != "fragment":
            return False
        options = [", transpose_A=True"] * trans_a + [", transpose_B=True"] * trans_b
        options += self.pick([], [], [", clear_accum=True"])
        with self.aside():
            options += [", allow_tf32=True"] * (a.dtype == "float32" and self.chance(0.5))
        options += self.pick([], [], [", policy=T.GemmWarpPolicy.FullRow"], [", policy=T.GemmWarpPolicy.FullCol"])
        self.line(f"T.gemm({a.name}, {b.name}, {self.pick(*sums).name}{''.join(options)})")
        return True

    def operands(self):
        """Two tiles that have a product."""
        trans_a, trans_b = self.chance(0.3), self.chance(0.5)
        self.begin(self.allocate((self.k, self.p) if trans_a else (self.p, self.k), self.pick("shared", "shared", "fragment"), self.dtype))
        self.begin(self.allocate((self.q, self.k) if trans_b else (self.k, self.q), "shared", self.dtype))
        return True

    def reduce(self):
        sources = [t for t in self.those(wide=False) if len(t.shape) > 1 and t.dtype in ("float32", "int32", "float16", "bfloat16", "int16", "int64")]
        if not sources:
            return False
        source = self.pick(*sources)
        dim = self.random.randrange(len(source.shape))
        shape = tuple(e for d, e in enumerate(source.shape) if d != dim)
        wide = source.dtype in SUMS and self.chance(0.5)
        results = self.those(shape=shape, dtype=source.dtype, wide=wide)
        if not results or (not self.depth and self.chance(0.2)):
            if self.depth:
                return False
            results = [self.allocate(shape, None, source.dtype, wide)]
            self.begin(results[0])
        kind = self.pick("sum", "sum", "max", "min", "abssum") if wide else self.pick("max", "min", "absmax")
        clear = kind == "abssum" or self.chance(0.6)
        self.line(f"T.reduce({source.name}, {self.pick(*results).name}, '{kind}', {dim}, clear={clear})")
        return True

    def scan(self):
        pairs = [(a, b) for a in self.those(wide=False) for b in self.those(wide=True)
                 if a.shape == b.shape and a.dtype == b.dtype and len(a.shape) < 3]
        if not pairs or self.depth:
            return False
        a, b = self.pick(*pairs)
        self.line(f"T.{self.pick('cumsum', 'cummax')}({a.name}, {b.name}, dim={self.random.randrange(len(a.shape))}, reverse={self.chance(0.4)})")
        return True

    def wide_tile(self):
        """Room for sums like some tile."""
        like = [t for t in self.those(wide=False) if t.dtype in SUMS]
        if self.depth or not like:
            return False
        tile = self.pick(*like)
        self.begin(self.allocate(self.pick(tile.shape, tile.shape[:1], tile.shape[-1:]), None, tile.dtype, wide=True))
        return True

    def atomic(self):
        sources = [t for t in self.those(wide=False) if t.dtype in SUMS]
        if not sources:
            return False
        tile = self.pick(*sources)
        change = self.pick("add", "max", "min") if tile.dtype == "int32" else "add"
        with self.aside():
            if self.chance(0.5):
                self.atomic_with_old_values(tile, change)
        if len(tile.shape) == 2 and self.chance(0.3):
            out = self.tensor(tile.shape, tile.dtype, "zero")
            self.line(f"T.atomic_{change}({out.name}[0, 0], {tile.name})")
            return True
        out = self.tensor((self.pick(1, 4, 16),), tile.dtype, "zero")
        names = "ijk"[: len(tile.shape)]
        with self.block(f"for {', '.join(names)} in T.Parallel({', '.join(map(str, tile.shape))}):"):
            self.line(f"T.atomic_{change}({out.name}[({' + '.join(names)}) % {out.shape[0]}], {tile.name}[{', '.join(names)}])")
        return True

    def atomic_with_old_values(self, tile, change):
        """What stood there before becomes the tile's element. No other block and no other iteration touches it."""
        self.form("old values")
        names = "ijk"[: len(tile.shape)]
        out = self.tensor((max(1, self.gy), max(1, self.gx), 1, *tile.shape), tile.dtype, "zero")
        at, order = ", ".join(names), self.pick(None, "relaxed", "acquire", "release", "acq_rel", "seq_cst")
        with self.block(f"for {at} in T.Parallel({', '.join(map(str, tile.shape))}):"):
            self.line(f"before = T.atomic_{change}({out.name}[by, bx, 0, {at}], {tile.name}[{at}], memory_order={order!r}, return_prev=True)")
            self.line(f"{tile.name}[{at}] = {clamped('before', tile.dtype)}")

    def element(self):
        """One element by hand."""
        shared = self.those(wide=False, space="shared")
        if not shared:
            return False
        tile, other = self.pick(*shared), self.pick(*shared)
        at = ", ".join(str(self.random.randrange(e)) for e in tile.shape)
        value = self.pick("1", "2", f"({' + '.join(['bx', *self.loop_vars])}) % {LIMIT}", self.point(other))
        element = f"{tile.name}[{at}]"
        self.line(f"{element} = {clamped(self.value_of(element, value), tile.dtype)}")
        return True

    def value_of(self, element, value):
        """What may be stored to the element by hand: here one thread does it."""
        return value

    def barrier(self):
        self.line("T.sync_threads()")
        return True

    # Loops and branches.

    def loop(self):
        if self.depth > 1:
            return False
        trips = self.pick(0, 1, 2, 3, 4, 5, 7) if self.depth == 0 else self.pick(0, 1, 2, 3)
        tiles, stream = list(self.tiles), []
        if self.depth == 0 and self.chance(0.8):
            stream = [self.allocate(None, self.pick("shared", "shared", "fragment")) for _ in range(self.random.randint(1, 3))]
        outside = list(self.loop_vars)
        with self.iterations(trips):
            if self.chance(0.3):
                self.line(f"{self.loop_vars[-1]}_of = ({self.loop_vars[-1]} * 3 + by) % 5")
                self.loop_vars.append(f"{self.loop_vars[-1]}_of")
            if self.depth == 0 and self.chance(0.2):
                stream.append(self.allocate())
            self.depth += 1
            for tile in stream:
                self.begin(tile)
            with self.aside():
                if self.depth == 1 and self.chance(0.4):
                    self.gathered()
                if self.depth == 1 and self.chance(0.1):
                    self.viewed()
            for _ in range(self.random.randint(1, 4)):
                self.statement()
            self.leave()
            self.depth -= 1
        self.loop_vars = outside
        self.tiles = tiles  # what the loop filled first may never have been filled
        return True

    def iterations(self, trips):
        """A loop's head; its variable is the last of ``loop_vars``."""
        name = self.fresh("k")
        self.loop_vars.append(name)
        kind = self.pick("serial", "serial", "Pipelined", "Pipelined", "Pipelined", "unroll", "while", "range", "Persistent")
        count = str(trips) if kind == "unroll" else self.extent(trips)
        if kind == "while":
            return self.while_loop(name, count)
        heads = {"serial": [f"T.serial({count})", f"T.serial({count})", f"T.serial(1, {trips + 1})", f"T.serial({trips}, 0, -1)",
                            f"T.serial(0, {2 * trips}, 2)", f"T.serial(T.min({count}, by + 1))"],
                 "Pipelined": [f"T.Pipelined({count}, num_stages={stages})" for stages in (1, 2, 2, 3, 3, 4)], "unroll": [f"T.unroll({count})"],
                 "range": [f"range({count})"]}
        if kind == "Persistent":
            return self.block(f"for ({name},) in T.Persistent([{count}], {self.gx}, bx):")
        return self.block(f"for {name} in {self.pick(*heads[kind])}:")

    def while_loop(self, name, count):
        self.line(f"{name} = T.alloc_var('int32', 0)")
        bound = self.pick(count, f"T.min({count}, bx + 2)", f"T.cast({self.point(self.pick(*self.tiles))}, 'int32') % 3")
        return self.counted(f"while {name} < {bound}:", name)

    @contextlib.contextmanager
    def counted(self, head, name):
        with self.block(head):
            self.line(f"{name} += 1")
            yield

    def leave(self):
        """Out of this loop or on to its next iteration, for the whole block, as the last thing or before another."""
        if self.chance(0.12):
            with self.block(f"if {self.block_condition()}:"):
                self.line(self.pick("T.loop_break()", "continue"))
            self.statement()

    def branch(self):
        if self.depth > 2:
            return False
        self.depth += 1
        self.sides()
        self.depth -= 1
        return True

    def sides(self):
        for head in [f"if {self.block_condition()}:", *[f"elif {self.block_condition()}:"] * self.chance(0.15), *["else:"] * self.chance(0.35)]:
            with self.block(head):
                for _ in range(self.random.randint(1, 2)):
                    self.statement()

    def load_again(self):
        tiles = self.those(wide=False)
        self.load(self.pick(*tiles)) if tiles else None
        return bool(tiles)

    def store(self):
        return self.sink(self.pick(*self.tiles), again=True)

    def compute(self):
        tile = self.pick(*self.tiles)
        self.elementwise(tile, whole=False)
        return True

    WEIGHTS = ((loop, 22), (branch, 9), (compute, 20), (gemm, 16), (reduce, 9), (copy, 9), (line_of_a_tile, 2), (store, 4), (atomic, 3), (scan, 3),
               (element, 3), (fill, 3), (wide_tile, 2), (barrier, 1), (load_again, 8))
