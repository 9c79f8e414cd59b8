# SPDX-License-Identifier: Apache-2.0
"""Random expressions over tiles and tensors, and the parallel loops that store them."""

from random_text import Text, clamped

INTEGERS = ("int4", "uint4", "int8", "uint8", "int16", "int32", "int64")


class Expressions(Text):
    def offset(self, block, size):
        """Where this block's part of a dimension begins."""
        text = f"{block} * {size}"
        if self.loop_vars and self.chance(0.6):
            text += f" + {self.pick(*self.loop_vars)} * {self.pick(size, 1, 8, 3, 16)}"
        if self.chance(0.3):
            text += f" + {self.pick(1, 8, 16, 3, 4)}"
        if self.chance(0.08):
            text += f" - {self.pick(1, 8, 5)}"
        return text

    def input(self, shape, dtype):
        """A tensor that holds about this tile for each block, or less."""
        rank = max(2, len(shape))
        rows, columns = (1 if len(shape) == 1 else shape[-2]) * self.gy, shape[-1] * self.gx
        fits = [t for t in self.readable if t.dtype == dtype and len(t.shape) == rank and len(t.symbols) != 1]
        if fits and self.chance(0.4):
            return self.pick(*fits)
        if self.chance(0.6):
            rows, columns = (max(0, n + self.pick(0, -1, -3, 5, 8, -8, 16)) for n in (rows, columns))
        if self.chance(0.02):
            rows = 0
        symbolic = rows == 0 or columns == 0 or self.chance(0.2)
        tensor = self.tensor([*shape[:-2], rows, columns], dtype, symbolic=symbolic)
        self.readable.append(tensor)
        return tensor

    def elementwise(self, tile, whole):
        """Stores to all of a tile, or to a part of it, under a condition."""
        way = "whole" if whole else self.pick("whole", "whole", "whole", "part", "turned", "lines")
        matrices = [t for t in self.those(wide=False) if len(t.shape) == 2 and t.shape[:1] == tile.shape]
        if matrices and self.chance(0.3):
            return self.rows_of(tile, self.pick(*matrices))
        if way == "lines" and tile.shape[-1] % 4 == 0:
            return self.lines_of(tile)
        shape, names = list(tile.shape), list("ijl"[: len(tile.shape)])
        at = list(names)
        if way == "part":
            begins, shape = self.part(tile.shape)
            at = [f"({name} + {begin})" for name, begin in zip(names, begins)]
        if way == "turned":
            axis = self.random.randrange(len(at))
            at[axis] = self.pick(f"({at[axis]} + {self.pick(1, 3, 8)}) % {shape[axis]}", f"({shape[axis] - 1} - {at[axis]})")
        with self.block(f"for {', '.join(names)} in T.Parallel({', '.join(map(str, shape))}):"):
            self.stores(tile, at, None if whole else tile)

    def stores(self, tile, at, readable):
        """``readable``: the tile itself, where it has values already."""
        target = f"{tile.name}[{', '.join(at)}]"
        if readable is None or self.chance(0.75):
            self.line(f"{target} = {self.value(tile, at, readable)}")
            return
        with self.block(f"if {self.condition(at, tile.shape, readable)}:"):
            self.line(f"{target} = {self.value(tile, at, readable)}")
        if self.chance(0.4):
            with self.block("else:"):
                self.line(f"{target} = {self.value(tile, at, readable)}")

    def lines_of(self, tile):
        """Four elements at a time, through an array of each thread's own."""
        *outer, last = tile.shape
        names = list("ijl"[: len(outer) + 1])
        width = 4
        with self.block(f"for {', '.join(names)} in T.Parallel({', '.join(map(str, [*outer, last // width]))}):"):
            self.line(f"four = T.alloc_local(({width},), '{tile.dtype}')")
            at = [*names[:-1], f"{names[-1]} * {width} + v"]
            with self.block(f"for v in T.{self.pick('serial', 'unroll', 'vectorized')}({width}):"):
                self.line(f"four[v] = {self.value(tile, at, tile)}")
            with self.block(f"for v in T.{self.pick('serial', 'unroll', 'vectorized')}({width}):"):
                self.line(f"{tile.name}[{', '.join(at)}] = four[{self.pick('v', f'{width - 1} - v', 'v // 2')}]")

    def rows_of(self, tile, matrix):
        """What a loop of each thread's own makes of a row."""
        with self.block(f"for i in T.Parallel({tile.shape[0]}):"):
            self.line(f"total = T.alloc_var('int32', {self.pick(0, 1)})")
            with self.block(f"for v in T.{self.pick('serial', 'unroll')}({self.pick(matrix.shape[1], f'i % {matrix.shape[1]}')}):"):
                self.line(f"total += T.cast({matrix.name}[i, v], 'int32')")
            self.line(f"{tile.name}[i] = {clamped('total', tile.dtype)}")

    def value(self, tile, at, readable):
        new = clamped(self.expression(at, tile.shape, readable), tile.dtype)
        if not tile.wide or readable is None:
            return new
        return self.pick(new, f"{tile.name}[{', '.join(at)}] {self.pick('+', '-')} {new}")

    def expression(self, at, shape, target):
        text = self.operand(at, shape, target)
        for _ in range(self.random.randint(0, 2)):
            other = self.operand(at, shape, target)
            text = self.pick(f"({text} + {other})", f"({text} - {other})", f"T.max({text}, {other})", f"T.min({text}, {other})",
                             f"({text} + {other} * 2)",
                             f"T.if_then_else({self.condition(at, shape, target)}, {text}, {other})", f"T.abs({text})",
                             f"({text} if {self.condition(at, shape, target)} else {other})")
        return text

    def operand(self, at, shape, target):
        """``at``: the element of a tile of this shape for which it is computed; ``target``, that tile, is read there only."""
        kind = self.random.random()
        reads = [text for tile in self.tiles for text in self.reads(tile, at, shape, target)]
        if reads and kind < 0.7:
            return self.pick(*reads)
        if kind < 0.8 and len(shape) < 3:
            return self.global_read(at, shape)
        if kind < 0.92:
            small = [f"({' + '.join(at)}) % {self.pick(2, 3, 5)}", f"({at[0]} * 3 + bx) % 4", f"T.cast({at[-1]}, 'float32')",
                     f"({at[-1]} - {at[0]}) // 3"]
            return self.pick(*small, *self.loop_vars)
        return str(self.pick(0, 1, 2, 3, -1, -2))

    def reads(self, tile, at, shape, target):
        """The ways in which a tile has an element for each of another's."""
        if tile is target:
            return [self.element_as(tile, at)]
        found = []
        if tile.shape == tuple(shape):
            axis, turned = self.random.randrange(len(at)), list(at)
            turned[axis] = self.pick(f"({at[axis]} + {self.pick(1, 3, 8)}) % {shape[axis]}", f"{shape[axis] - 1} - ({at[axis]})",
                                     f"({at[axis]}) // 2 * 2")
            found += [self.element_as(tile, at)] * 4 + [self.element_as(tile, turned)]
        elif len(shape) == 2 and tile.shape == (shape[1], shape[0]):
            found.append(self.element_as(tile, at[::-1]))
        elif len(tile.shape) == 1:
            if not tile.wide and self.chance(0.3):  # where the numbers of the tile itself say
                index = f"T.max(T.min(T.cast({tile.name}[({at[-1]}) % {tile.shape[0]}], 'int32') + {at[0]}, {tile.shape[0] - 1}), 0)"
                found.append(self.element_as(tile, [index]))
            found += [self.element_as(tile, [index]) for index, extent in zip(at, shape) if extent == tile.shape[0]]
        return found

    def element_as(self, tile, at):
        """Sums only as types that hold them exactly."""
        integer = tile.dtype in INTEGERS
        types = ["int32" if integer else "float32"] * 4
        if not tile.wide:
            types += ["int16", "int64", "int8"] if integer else ["float16", "bfloat16", "float64"]
        return f"T.cast({tile.name}[{', '.join(at)}], '{self.pick(*types)}')"

    def global_read(self, at, shape):
        dtype = self.pick("float16", "float32", "int8", "int32", self.dtype)
        tensor = self.input(shape, dtype)
        rows = 1 if len(shape) == 1 else shape[-2]
        begins = [self.offset("by", rows), self.offset("bx", shape[-1])]
        indices = [begins[0], f"{begins[1]} + {at[0]}"] if len(at) == 1 else [f"{b} + {i}" for b, i in zip(begins, at)]
        element = f"{tensor.name}[{', '.join(indices)}]"
        if self.chance(0.4):
            mask = self.pick(f"{at[-1]} >= {self.pick(1, 3, 8)}", f"({' + '.join(at)}) % 3 == 0", f"{at[-1]} < {shape[-1] // 8 * 4}", "bx + by < 1")
            element = f"T.masked({mask}, {element}, {self.pick(0, 1, at[0])})"
        return f"T.cast({element}, '{'int32' if dtype in INTEGERS else 'float32'}')"

    def condition(self, at, shape, target):
        return self.pick(f"{at[0]} < {shape[0] // 2 + 1}", f"({' + '.join(at)}) % 3 == 0", f"{at[-1]} >= {self.pick(1, 3, 8)}",
                         f"{at[0]} * 2 >= {at[-1]}",
                         f"{self.operand(at, shape, target)} > 0", f"{at[0]} < 5 and {at[-1]} != 2")

    def point(self, tile):
        """One element, the same for the whole block."""
        return f"{tile.name}[{', '.join(str(self.random.randrange(e)) for e in tile.shape)}]"

    def block_condition(self):
        choices = ["bx == 0", "bx + by < 1", "by > 0", f"{self.point(self.pick(*self.tiles))} > 0", "bx < 1 or by == 1"]
        for name in self.loop_vars:
            choices += [f"{name} % 2 == 0", f"{name} > 0", f"{name} < 2"]
        return self.pick(*choices)
