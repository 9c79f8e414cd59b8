# SPDX-License-Identifier: Apache-2.0
"""Random programs at the edges: tensors, tiles and regions without a dimension, without an element or with one; indices at the first and
the last element and beyond; masks; values that stand for what lies outside."""

import contextlib

from random_text import LIMIT, clamped
from random_tiles import MATRIX, SUMS, RandomTiles

EXTENTS = (0, 1, 1, 2, 3, 5, 8, 16, 33, 64)
ANY = ("float32", "int32", "float16", "bfloat16", "int8", "uint8", "int16", "int64", "float64", "float8_e4m3fn", "float8_e5m2")


class RandomEdges(RandomTiles):
    FORMS = ("0-d tensor", "0-d tile", "0-extent tensor", "0-extent tile", "extent of 0 at run time", "grid of nothing", "one element",
             "before the first element", "beyond the last element", "last element", "mask", "pad value",
             "part of nothing", "reduction of nothing",
             "product of nothing", "loop of nothing", "scan of nothing")

    def kernel(self):
        self.tiles, self.loop_vars, self.depth, self.readable, self.padded, self.shared = [], [], 0, [], [], 0
        self.gx, self.gy = self.pick((1, 1), (1, 1), (2, 1), (1, 2), (2, 2))
        if self.chance(0.03):
            self.form("grid of nothing")
            self.gx = 0
        with self.block(f"with T.Kernel({self.extent(self.gx)}, {self.gy}, threads={self.head()}) as (bx, by):"):
            first = len(self.lines)
            for _ in range(self.random.randint(2, 5)):
                self.new_tile()
            for _ in range(self.random.randint(3, 8)):
                self.statement()
            for tile in self.tiles:
                self.store(tile)
            self.lines[first:first] = [f"        T.annotate_safe_value({{{name}: {value}}})" for name, value in self.padded]

    # Shapes.

    def shape(self):
        return tuple(self.pick(*EXTENTS) for _ in range(self.pick(0, 1, 1, 2, 2, 2, 3)))

    def new_tile(self, shape=None, space=None, dtype=None, wide=False):
        shape = self.shape() if shape is None else shape
        tile = self.allocate(shape, space or self.pick("shared", "fragment"), dtype or self.pick(*ANY), wide)
        self.note(tile.shape, "tile")
        if self.chance(0.6) and not wide:
            self.load(tile)
        else:
            self.line(f"T.fill({tile.name}, {0 if wide else self.pick(0, 1, 3)})")
        self.tiles.append(tile)
        return tile

    def note(self, shape, what):
        if not shape:
            self.form(f"0-d {what}")
        elif 0 in shape:
            self.form(f"0-extent {what}")
        elif all(extent == 1 for extent in shape):
            self.form("one element")

    # Between tensors and tiles.

    def place_at(self, extent, size, block):
        """Where a box of this size begins along a dimension; the text is no constant where it is negative."""
        places = {"0": 8, str(extent): 1, str(max(0, extent - size)): 3, f"{block} * {size}": 3, str(extent + 2): 1, f"{block} - 1": 2,
                  f"{block} - {size}": 1, f"{block} - {size + 1}": 1, f"{block} + {max(0, extent - 1)}": 2}
        text = self.random.choices(list(places), places.values())[0]
        if "-" in text:
            self.form("before the first element")
        elif text not in ("0", f"{block} * {size}"):
            self.form("last element" if text == str(max(0, extent - size)) else "beyond the last element")
        return text

    def tensor_for(self, shape, dtype):
        fits = [t for t in self.readable if t.dtype == dtype and len(t.shape) == len(shape)]
        if fits and self.chance(0.4):
            return self.pick(*fits)
        extents = tuple(max(0, extent + self.pick(0, 0, 0, 0, -1, 1, 3, 8, -extent)) for extent in shape)
        symbolic = bool(extents) and self.chance(0.3)
        tensor = self.tensor(extents, dtype, symbolic=symbolic)
        self.note(extents, "tensor")
        if symbolic and 0 in extents:
            self.form("extent of 0 at run time")
        if self.chance(0.2) and dtype in ("float32", "int32", "float16", "bfloat16"):
            self.form("pad value")
            self.padded.append((tensor.name, self.pick(2, -3)))
        self.readable.append(tensor)
        return tensor

    def load(self, tile):
        dtype = tile.dtype if tile.dtype.startswith("u") or self.chance(0.7) else self.pick("float32", "int32", "float16", "int8")
        tensor = self.tensor_for(tile.shape, dtype)
        if not tile.shape:
            self.line(f"T.copy({tensor.name}, {tile.name})")
            return True
        begins = [self.place_at(extent, size, self.pick("bx", "by")) for extent, size in zip(tensor.shape, tile.shape)]
        self.line(f"T.copy({self.box(tensor.name, begins, tile.shape)}, {tile.name})")
        return True

    @staticmethod
    def box(name, begins, shape):
        return f"{name}[{', '.join(f'{b} : {b} + {e}' for b, e in zip(begins, shape))}]"

    def store(self, tile):
        """Each block to its own part of an output, or over the edge of it."""
        same = tile.wide or tile.dtype.startswith("u") or self.chance(0.6)
        dtype = tile.dtype if same else self.pick("float32", "int32", "float16", "bfloat16")
        if not tile.shape and self.gx * self.gy == 1 and self.chance(0.7):
            self.note((), "tensor")
            self.line(f"T.copy({tile.name}, {self.tensor((), dtype, 'marks').name})")
            return True
        extents = tuple(max(0, extent + self.pick(0, 0, -1, 2)) for extent in tile.shape)
        out = self.tensor((self.gy, max(1, self.gx), *extents), dtype, "marks")
        self.note(extents, "tensor")
        begins = [self.place_at(extent, size, "bx") for extent, size in zip(extents, tile.shape)]
        slices = "".join(f", {b} : {b} + {e}" for b, e in zip(begins, tile.shape))
        self.line(f"T.copy({tile.name}, {out.name}[by, bx{slices}])")
        return True

    # Statements.

    def over(self, shape, names):
        return self.block(f"for {', '.join(names)} in T.Parallel({', '.join(map(str, shape))}):") if shape else contextlib.nullcontext()

    def compute(self):
        """Each element of a tile, under a mask perhaps."""
        tile = self.pick(*self.tiles)
        names = list("ijl"[: len(tile.shape)])
        at = ", ".join(names) or "()"
        with self.over(tile.shape, names):
            way = self.random.random() if names else 0
            value = self.edge_value(tile, names)
            if way > 0.4:
                self.form("mask")
                with self.block(f"if {self.mask(names, tile.shape)}:"):
                    self.line(f"{tile.name}[{at}] = {value}")
            else:
                self.line(f"{tile.name}[{at}] = {value}")
        return True

    def mask(self, names, shape):
        axis = self.random.randrange(len(names))
        name, extent = names[axis], shape[axis]
        return self.pick(f"{name} < {self.pick(0, 1, extent - 1, extent)}", f"{name} == {self.pick(0, max(0, extent - 1))}",
                         f"{name} >= {extent - 1}", f"{name} != 0", f"{name} + bx < {extent}", f"{name} > 0 and {name} < {extent - 1}",
                         f"({' + '.join(names)}) % 2 == 1")

    def edge_value(self, tile, names):
        parts = [str(self.pick(0, 1, -1, 2)), "bx + 1", *[f"({name}) % 3" for name in names]]
        for other in self.tiles:
            if not other.shape:
                parts.append(f"T.cast({other.name}[()], 'int32')")
            elif other.shape == tile.shape:
                parts += [f"T.cast({other.name}[{', '.join(names)}], 'int32')"] * 3
                if other is not tile:
                    parts.append(self.neighbour(other, names))
        if names and self.chance(0.5):
            parts += [self.outside(names)] * 3
        text = self.pick(*parts)
        if self.chance(0.5):
            text = f"{text} {self.pick('+', '-')} {self.pick(*parts)}"
        return clamped(text, tile.dtype)

    def neighbour(self, other, names):
        """The element before or behind, where there is one."""
        self.form("mask")
        axis = self.random.randrange(len(names))
        name, extent = names[axis], other.shape[axis]
        at = [*names]
        at[axis], there = self.pick((f"{name} - 1", f"{name} > 0"), (f"{name} + 1", f"{name} < {extent - 1}"))
        return f"T.if_then_else({there}, T.cast({other.name}[{', '.join(at)}], 'int32'), {self.pick(0, 2)})"

    def outside(self, names):
        """An element of a tensor, or what stands for it."""
        tensor = self.tensor_for((16,) * len(names), self.pick("float32", "int32", "int8"))
        steps = [self.pick("", "- 1", "- 16", f"+ {max(0, extent - 1)}", f"+ {extent}", "* 2") for extent in tensor.shape]
        at = [f"{name} {step}" for name, step in zip(names, steps)]
        self.form("beyond the last element")
        return f"T.cast({tensor.name}[{', '.join(at)}], 'int32')"

    def element(self):
        tiles = [t for t in self.tiles if t.space == "shared" and 0 not in t.shape and not t.wide]
        if not tiles:
            return False
        tile = self.pick(*tiles)
        self.form("last element")
        at = ", ".join(str(self.pick(0, extent - 1)) for extent in tile.shape) or "()"
        value = self.pick("1", f"bx % {LIMIT}", f"T.cast({tile.name}[{at}], 'int32') + 1")
        self.line(f"{tile.name}[{at}] = {clamped(value, tile.dtype)}")
        return True

    def fill(self):
        tile = self.pick(*self.tiles)
        if not tile.shape or self.chance(0.3):
            self.line(f"T.fill({tile.name}, {self.pick(0, 1, 2)})")
            return True
        sizes = [self.pick(0, min(1, extent), extent, max(0, extent - 1)) for extent in tile.shape]
        begins = [str(self.pick(0, extent - size)) for extent, size in zip(tile.shape, sizes)]
        self.form("part of nothing") if 0 in sizes else None
        self.line(f"T.fill({self.box(tile.name, begins, sizes)}, {self.pick(0, 1, 2)})")
        return True

    def copy(self):
        """A part of a tile, of one element or none, to another."""
        pairs = [(a, b) for a in self.those(wide=False) for b in self.those(wide=False)
                 if a is not b and a.shape and len(a.shape) == len(b.shape) and not a.dtype.startswith("u") and not b.dtype.startswith("u")]
        if not pairs:
            return False
        a, b = self.pick(*pairs)
        sizes = [self.pick(0, min(1, x, y), min(x, y), min(x, y)) for x, y in zip(a.shape, b.shape)]
        self.form("part of nothing") if 0 in sizes else None
        begins = [[str(self.pick(0, extent - size)) for extent, size in zip(t.shape, sizes)] for t in (a, b)]
        self.line(f"T.copy({self.box(a.name, begins[0], sizes)}, {self.box(b.name, begins[1], sizes)})")
        return True

    def reduce(self):
        sources = [t for t in self.those(wide=False) if t.shape and t.dtype in ("float32", "int32", "float16", "bfloat16", "int16")]
        if not sources:
            return False
        source = self.pick(*sources)
        dim = self.random.randrange(len(source.shape))
        empty = source.shape[dim] == 0
        wide = source.dtype in SUMS and self.chance(0.5)
        kind = self.pick("sum", "abssum") if wide else "absmax" if empty else self.pick("max", "min", "absmax")
        result = self.new_tile(tuple(e for d, e in enumerate(source.shape) if d != dim), "fragment", source.dtype, wide)
        self.form("reduction of nothing") if empty else None
        self.line(f"T.reduce({source.name}, {result.name}, '{kind}', {dim}, clear={kind == 'abssum' or self.chance(0.6)})")
        return True

    def scan(self):
        sources = [t for t in self.those(wide=False) if 0 < len(t.shape) < 3 and t.dtype in SUMS]
        if not sources:
            return False
        source = self.pick(*sources)
        result = self.new_tile(source.shape, None, source.dtype, wide=True)
        self.form("scan of nothing") if 0 in source.shape else None
        self.line(f"T.cumsum({source.name}, {result.name}, dim={self.random.randrange(len(source.shape))}, reverse={self.chance(0.4)})")
        return True

    def product(self):
        m, n, k = self.pick((16, 16, 0), (0, 16, 16), (16, 0, 16), (64, 16, 0), (16, 16, 16))
        self.form("product of nothing") if 0 in (m, n, k) else None
        dtype = self.pick(*[d for d in MATRIX if d != "float32"])
        a, b = (self.new_tile(shape, "shared", dtype) for shape in ((m, k), (k, n)))
        c = self.new_tile((m, n), "fragment", "int32" if dtype == "int8" else "float32", wide=True)
        self.line(f"T.gemm({a.name}, {b.name}, {c.name}{self.pick('', ', clear_accum=True')})")
        return True

    def loop(self):
        """Of no iteration, of one, or of some, as may be known when the program runs only."""
        if self.depth:
            return False
        trips, name = self.pick(0, 0, 1, 2), self.fresh("k")
        self.form("loop of nothing") if trips == 0 else None
        known, self.depth = list(self.tiles), 1
        count = self.symbol(trips) if self.chance(0.5) else str(trips)
        with self.block(f"for {name} in {self.pick('T.serial({})', 'T.Pipelined({}, num_stages=2)', 'range({})').format(count)}:"):
            for _ in range(self.random.randint(1, 2)):
                self.pick(self.compute, self.fill, self.copy, lambda: self.load(self.pick(*self.those(wide=False) or [self.tiles[0]])))()
        self.tiles, self.depth = known, 0
        return True

    def atomic(self):
        sources = [t for t in self.those(wide=False) if t.dtype in SUMS and 0 not in t.shape]
        if not sources:
            return False
        tile = self.pick(*sources)
        names = list("ijl"[: len(tile.shape)]) or ["i"]
        out = self.tensor(self.pick((), (1,)), tile.dtype, "zero")
        self.note(out.shape, "tensor")
        with self.over(tile.shape or (1,), names):
            at = ", ".join(names) if tile.shape else "()"
            self.line(f"T.atomic_add({out.name}[{'0' if out.shape else '()'}], {tile.name}[{at}])")
        return True

    def statement(self):
        for _ in range(12):
            if self.random.choices(*zip(*self.WEIGHTS))[0](self):
                return

    WEIGHTS = ((compute, 30), (element, 8), (fill, 12), (copy, 14), (reduce, 12), (scan, 4), (product, 5), (loop, 12), (atomic, 6))
