# SPDX-License-Identifier: Apache-2.0
"""Tile statements that a range of threads does: under conditions on a thread's number, beside others in the other branch."""

import contextlib

from random_threads import RandomThreads


class RandomRanges(RandomThreads):
    FORMS = (*RandomThreads.FORMS, "tile operations of a thread range", "tile operations of two thread ranges")

    def thread_range(self):
        """The threads from one number to another, as a condition; mostly whole warps, of any target's size."""
        unit = self.pick(64, 64, 32, 32, 16, 8, 1) if self.threads > 64 else self.pick(32, 32, 16, 8, 1)
        count = max(1, self.threads // unit)
        edge, other = (unit * self.random.randint(0, count) for _ in range(2))
        low, high = sorted((edge, other)) if edge != other else (0, edge)
        number = f"({self.linear})"
        choices = [f"{number} < {edge}", f"{number} >= {edge}", f"{low} <= {number} and {number} < {high}",
                   f"{number} < {high} and {number} >= {low}"]
        rows = self.block_shape[0]
        if len(self.indices) == 2 and self.block_shape[2] == 1:
            choices.append(f"ty < {max(1, edge // rows)}")
        if unit >= 32 and self.threads % unit == 0:
            choices.append(f"{number} // {unit} == {self.random.randrange(count)}")
        return self.pick(*choices)

    @contextlib.contextmanager
    def with_own(self, tiles, outputs):
        """Statements see these alone, and make no tile."""
        outside, known = self.tiles, [output for output in self.outputs if output not in outputs]
        self.tiles, self.outputs = tiles, list(outputs)
        self.depth += 1
        yield
        self.depth -= 1
        self.tiles, self.outputs = outside, known + self.outputs

    def of_a_range(self):
        """One branch has all tiles; of two, whose threads run at the same time, each has its own."""
        if self.depth > 1 or not self.indices or len(self.tiles) < 2:
            return False
        self.form("tile operations of a thread range")
        both = self.chance(0.4)
        tiles, outputs = ([thing for thing in things if not both or self.chance(0.5)] for things in (self.tiles, self.outputs))
        others = [tile for tile in self.tiles if tile not in tiles], [output for output in self.outputs if output not in outputs]
        self.some_statements(f"if {self.thread_range()}:", tiles, outputs)
        if both:
            self.form("tile operations of two thread ranges")
            self.some_statements("else:", *others)
        return True

    def some_statements(self, head, tiles, outputs):
        with self.block(head), self.with_own(tiles, outputs):
            for _ in range(self.random.randint(1, 3) if tiles else 0):
                self.statement()

    WEIGHTS = (*RandomThreads.WEIGHTS, (of_a_range, 90))
