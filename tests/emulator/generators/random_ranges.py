# SPDX-License-Identifier: Apache-2.0
"""Tile statements that a range of threads does: under conditions on a thread's number, beside others in the other branch. Most ranges have a
barrier on every target (they lie within 32 threads) or on NVIDIA's (whole warps), since nearly all programs exchange data in there."""

import contextlib
import math

from random_threads import RandomThreads

WARP = 32


class RandomRanges(RandomThreads):
    FORMS = (*RandomThreads.FORMS, "tile operations of a thread range", "tile operations of two thread ranges", "range within a range",
             "range and a condition of the block", "tiles of a range", "loop by hand in a range")
    inside = 0  # conditions on ranges around
    first = end = 0  # the threads that come here

    def enter(self):
        super().enter()
        self.inside, self.first, self.end = 0, 0, self.threads

    def some_range(self):
        """Those of the threads that come here from one number to another."""
        count, way = self.end - self.first, self.random.random()
        if way < 0.7 or count <= WARP:
            base = self.first + WARP * self.random.randrange(max(1, count // WARP))
            size = min(WARP, self.end - base)
            cut = self.pick(0, 0, 0, size // 4, size // 2, self.random.randrange(size))
            return (base + cut, base + size) if self.chance(0.5) else (base, base + size - cut)
        unit = WARP if way < 0.95 else self.pick(16, 8, 1)
        low, high = sorted(self.random.sample(range(count // unit + 1), 2))
        return self.first + low * unit, self.first + high * unit

    def naming(self, first, end):
        """A condition that just these of the threads here fulfil."""
        number, rows = f"({self.linear})", self.block_shape[0]
        choices = [f"{first} <= {number} and {number} < {end}", f"{number} < {end} and {number} >= {first}", f"{first} <= {number} < {end}",
                   f"T.And({number} >= {first}, {number} <= {end - 1})", f"T.Not(T.Or({number} < {first}, {number} >= {end}))"]
        if first == self.first:
            choices += [f"{number} < {end}", f"T.Not({number} >= {end})"] * 2
        if end == self.end:
            choices += [f"{number} >= {first}", f"{number} > {first - 1}"] * 2
        if end - first == 1:
            choices += [f"{number} == {first}"] * 3
        if len(self.indices) == 2 and self.block_shape[2] == 1 and first % rows == 0 and end % rows == 0:
            choices += [f"{first // rows} <= ty and ty < {end // rows}"] * 2
        size = end - first
        if first % size == 0:
            choices += [f"{number} // {size} == {first // size}"] * 2
        return self.pick(*choices)

    def allocate(self, shape=None, space=None, dtype=None, wide=False):
        """A fragment only where few threads can hold it."""
        shape = self.shape() if shape is None else shape
        large = self.inside and math.prod(shape) > 16 * (self.end - self.first)
        return super().allocate(shape, "shared" if large else space, dtype, wide)

    @contextlib.contextmanager
    def with_own(self, threads, tiles, outputs):
        """Statements see these alone; what they make nothing outside sees."""
        outside = self.tiles, self.locals, self.first, self.end
        known = [output for output in self.outputs if output not in outputs]
        self.tiles, self.locals, self.outputs = list(tiles), list(self.locals), list(outputs)
        self.first, self.end = threads
        self.inside += 1
        yield
        self.inside -= 1
        self.tiles, self.locals, self.first, self.end = outside
        self.outputs = known + self.outputs

    def value_of(self, element, value):
        """Each thread of a range stores by hand, so that none may store what it makes of the element."""
        return "1" if self.inside and element in value else value

    def of_a_range(self):
        """One branch has all tiles; of two, whose threads run at the same time, each has its own."""
        if self.inside > 1 or self.depth > 1 or not self.indices or len(self.tiles) < 2:
            return False
        self.form("range within a range" if self.inside else "tile operations of a thread range")
        count = self.end - self.first
        if count > WARP and self.chance(0.5 if count <= 2 * WARP else 0.1):  # several warps have no barrier on AMD GPUs
            self.two_ranges()
            return True
        threads = self.some_range()
        condition = self.naming(*threads)
        if self.chance(0.2):
            self.form("range and a condition of the block")
            condition = f"T.And({condition}, {self.pick('bx == 0', 'by > 0', 'bx + by < 2', *[f'{name} > 0' for name in self.loop_vars])})"
        self.some_statements(f"if {condition}:", threads, self.tiles, self.outputs)
        return True

    def two_ranges(self):
        self.form("tile operations of two thread ranges")
        edge = self.first + WARP * self.random.randrange(1, (self.end - self.first + WARP - 1) // WARP)
        sides = [[], []], [[], []]
        for things, parts in zip((self.tiles, self.outputs), sides):
            for thing in things:
                self.pick(*parts).append(thing)
        number, below = f"({self.linear})", self.chance(0.5)
        ranges = [(self.first, edge), (edge, self.end)][:: 1 if below else -1]
        self.some_statements(f"if {number} {'<' if below else '>='} {edge}:", ranges[0], sides[0][0], sides[1][0])
        self.some_statements("else:", ranges[1], sides[0][1], sides[1][1])

    def some_statements(self, head, threads, tiles, outputs):
        with self.block(head), self.with_own(threads, tiles, outputs):
            if not self.depth and self.chance(0.5):
                self.form("tiles of a range")
                for _ in range(self.pick(1, 1, 2)):
                    self.begin(self.allocate())
            for _ in range(self.random.randint(1, 3) if self.tiles else 0):
                self.statement()

    def while_loop(self, name, count):
        """Within a range also loops whose iterations its threads count in a variable that each has for itself."""
        if not self.inside:
            return super().while_loop(name, count)
        if self.chance(0.75):
            return self.block(f"for {name} in T.serial({count}):")
        self.form("loop by hand in a range")
        return super().while_loop(name, count)

    WEIGHTS = (*RandomThreads.WEIGHTS, (of_a_range, 90))
