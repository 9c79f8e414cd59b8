# SPDX-License-Identifier: Apache-2.0
"""The text of a random tile program, and its tensors. All numbers are small integers, so that every order of additions and every type
gives the same result."""

import collections
import contextlib
import random
from dataclasses import dataclass

LIMIT = 6  # of what a tile holds that is no sum
PLACES = {"pairs": (4, 8, 12, 9, 13, 14), "halves": (4, 14)}  # that metadata of a sparse matrix may name, in four bits


@dataclass
class Tensor:
    name: str
    shape: tuple
    dtype: str
    start: str  # "values", "zero" (for atomic operations), "marks" (that a program which writes too little leaves behind), or of PLACES
    symbols: tuple = ()  # names of its extents, where they are not constants
    inside: tuple = ()  # of a tensor in another's memory: the other's place among the tensors, and the element of it that is the first


class Text:
    FORMS = ()  # what programs of this generator may have, by name
    alignment = 0  # in bytes, of the tensors' first elements; 0: as an allocator gives it

    def __init__(self, seed):
        self.random, self.other_random = random.Random(seed), random.Random(f"{seed}, aside")
        self.forms = collections.Counter()
        self.lines, self.tensors, self.symbols = [], [], []
        self.indent, self.names = 1, 0

    def pick(self, *options):
        return self.random.choice(options)

    def chance(self, probability):
        return self.random.random() < probability

    @contextlib.contextmanager
    def aside(self):
        """Choices by numbers of their own, so that all other choices stay what they are without them."""
        self.random, self.other_random = self.other_random, self.random
        try:
            yield
        finally:
            self.random, self.other_random = self.other_random, self.random

    def form(self, name):
        """The program has one of these."""
        assert name in self.FORMS, name
        self.forms[name] += 1

    def fresh(self, base):
        self.names += 1
        return f"{base}{self.names}"

    def line(self, text):
        self.lines.append("    " * self.indent + text)

    @contextlib.contextmanager
    def block(self, head):
        """Lines below a line; one that does nothing where there would be none."""
        self.line(head)
        self.indent += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 1

    def tensor(self, shape, dtype, start="values", symbolic=False):
        name = self.fresh("A" if start in ("values", *PLACES) else "C")
        symbols = tuple(f"{name}_{d}" for d in range(len(shape))) if symbolic else ()
        self.symbols += symbols
        self.tensors.append(Tensor(name, tuple(shape), dtype, start, symbols))
        return self.tensors[-1]

    def symbol(self, value):
        """A name that has this value when the program runs."""
        name = self.fresh("n")
        self.symbols.append(name)
        self.tensors.append(Tensor(self.fresh("A"), (value,), "float16", "values", (name,)))
        return name

    def source(self):
        parameters = [f"{t.name}: T.Tensor({str(t.symbols or t.shape).replace(chr(39), '')}, '{t.dtype}')" for t in self.tensors]
        head = ["import kiln.language as T", "", *[f"{name} = T.dynamic('{name}')" for name in self.symbols], "", "@T.prim_func"]
        return "\n".join([*head, f"def program({', '.join(parameters)}):", *self.lines]) + "\n"


def clamped(value, dtype):
    """The text of an expression that is small, as the dtype."""
    least = 0 if dtype.startswith("u") else -LIMIT
    return f"T.cast(T.max(T.min({value}, {LIMIT}), {least}), '{dtype}')"
