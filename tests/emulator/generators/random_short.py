# SPDX-License-Identifier: Apache-2.0
"""Random tile programs whose types have four bits: two elements of a tensor share a byte, and those of a tile do not."""

from random_text import clamped
from random_tiles import MATRIX, RandomTiles

WIDER = {"int4": "int8", "uint4": "uint8", "float4_e2m1fn": "float8_e4m3fn"}


class RandomShort(RandomTiles):
    FORMS = (*RandomTiles.FORMS, "read halves", "written halves", "pairs by a loop", "pairs by threads", "one element by hand")
    matrix = (*WIDER, "int4", "float4_e2m1fn", *MATRIX[3:])
    any = (*WIDER, *WIDER, "float16", "float32", "int8", "int32", "bfloat16")

    def tensor(self, shape, dtype, start="values", symbolic=False):
        """Each row begins with a byte of its own."""
        if dtype in WIDER:
            shape = (*shape[:-1], shape[-1] + shape[-1] % 2)
            self.form("read halves" if start == "values" else "written halves")
        return super().tensor(shape, dtype, start, symbolic)

    def stored_type(self, tile):
        """Where blocks or rows would share a byte, a wider type."""
        return WIDER[tile.dtype] if tile.dtype in WIDER and tile.shape[-1] % 2 else tile.dtype

    def enter(self):
        super().enter()
        if self.chance(0.6):
            self.halves_of_a_tensor()

    def halves_of_a_tensor(self):
        """A tensor whose elements come from another's, or from numbers, one by one."""
        dtype, rank = self.pick(*WIDER), self.pick(1, 2, 3)
        shape = [self.pick(1, 3, 7, 16, 33) for _ in range(rank - 1)] + [self.pick(2, 6, 16, 34, 50, 64)]
        names, blocks = list("ijl"[:rank]), (max(1, self.gy), max(1, self.gx))
        source = self.tensor([e + self.pick(0, 1, 3) for e in shape], self.pick(dtype, *WIDER, "int8", "float16"))
        out = self.tensor([*blocks, *shape], dtype, "marks")
        self.of_locals = (*self.of_locals, out)
        place = "".join(f"{name}, " for name in ["by", "bx", *names[:-1]])
        way = self.pick("pairs by a loop", "pairs by a loop", "pairs by threads", "one element by hand")
        self.form(way)

        def value(last):
            at = [f"({name} + {self.pick(0, 0, 1, 2)}) % {extent}" for name, extent in zip([*names[:-1], last], source.shape)]
            number = f"T.cast({source.name}[{', '.join(at)}], 'float32')"
            more = self.pick("", f" + ({last}) % 3", f" - {names[0]} % 2", " * 2", " + bx")
            return self.of_condition(last, clamped(number + more, dtype), dtype)

        if way == "pairs by a loop":
            with self.block(f"for {', '.join(names)} in T.Parallel({', '.join(map(str, shape))}):"):
                self.line(f"{out.name}[{place}{names[-1]}] = {value(names[-1])}")
        elif way == "pairs by threads":
            heads = [*map(str, shape[:-1]), str(shape[-1] // 2)]
            with self.block(f"for {', '.join(names)} in T.Parallel({', '.join(heads)}):"):
                with self.block(f"for v in T.{self.pick('serial', 'unroll')}(2):"):
                    self.line(f"{out.name}[{place}{names[-1]} * 2 + v] = {value(f'({names[-1]} * 2 + v)')}")
        else:
            with self.block(f"for {names[-1]} in T.serial({shape[-1]}):"):
                first = ", ".join(["by", "bx", *["0"] * (rank - 1)])
                self.line(f"{out.name}[{first}, {names[-1]}] = {clamped(f'{names[-1]} % 5 - 2', dtype)}")

    def of_condition(self, last, value, dtype):
        if self.chance(0.3):
            other = f"T.cast({self.pick(0, 1, 3)}, '{dtype}')"
            return f"T.if_then_else({self.pick(f'{last} % 3 == 0', f'{last} > 1', 'bx == 0')}, {value}, {other})"
        return value
