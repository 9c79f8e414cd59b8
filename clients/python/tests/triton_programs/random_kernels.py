# SPDX-License-Identifier: Apache-2.0
"""Random kernels: a seed gives a program as nested tuples, its text in Triton's language, and what numpy makes of it.

Integers are exact, so all conditions and indices are integers; floats meet a tolerance. A program has blocks of integers (i0 …), blocks of
floats (f0 …) and integer scalars (s0 …) of one shape; it loads from ``ints`` and ``floats``, which have N elements, and stores each of its
variables at the end. The other arguments are the scalars a and b, known at launch only."""

import random

import numpy as np

N = 96
SHAPES = [(64,), (16,), (128,), (8, 16), (16, 4), (1, 32)]
_WRAP = np.int32


class Program:
    """``shape``, ``a``, ``b``, ``body``: statements. ``variables``: those that are stored."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.seed, self.shape = seed, self.random.choice(SHAPES)
        self.a, self.b = self.random.randrange(0, 6), self.random.choice([-3, 1, 2, 16, 40])
        self.warps = self.random.choice([1, 2, 4])
        self.ints, self.floats, self.scalars = ["i0", "i1"], ["f0", "f1"], ["s0", "s1"]
        self.loop = 0
        start = [("=", "i0", ("load", "ints", ("at",), None, 0)), ("=", "i1", ("-", ("at",), ("scalar", "a"))),
                 ("=", "f0", ("load", "floats", ("at",), ("<", ("at",), ("number", 50)), 2)), ("=", "f1", ("float", ("var", "i1"))),
                 ("s=", "s0", ("scalar", "b")), ("s=", "s1", ("number", 3))]
        self.body = start + self.statements(self.random.randrange(3, 8), 2)

    # Expressions: of integers (blocks or scalars), conditions, floats.

    def integer(self, depth: int, block: bool):
        r = self.random
        if depth == 0 or r.random() < 0.2:
            leaves = [("number", r.randrange(-9, 10)), ("scalar", r.choice(["a", "b", *self.scalars]))]
            return r.choice([("var", r.choice(self.ints)), ("at",)] if block else leaves)
        kind = r.choice(["+", "-", "*", "&", "|", "^", "max", "min", "where", ">>", "//", "%", "neg", "not"]
                        + (["load", "sum", "mixed"] if block else []))
        if kind in (">>", "//", "%"):
            return (kind, self.integer(depth - 1, block), ("number", r.choice([1, 2, 3, 5, 7])))
        if kind in ("neg", "not"):
            return (kind, self.integer(depth - 1, block))
        if kind == "where":
            return (kind, self.condition(depth - 1, block), self.integer(depth - 1, block), self.integer(depth - 1, block))
        if kind == "load":
            return self.load("ints", depth)
        if kind == "sum":
            return self.reduction(self.integer(depth - 1, True))
        return ("+" if kind == "mixed" else kind, self.integer(depth - 1, block), self.integer(depth - 1, block and kind != "mixed"))

    def reduction(self, value):
        """Of a block, spread over its shape again."""
        return ("reduce", self.random.choice(["sum", "max", "min"]), value, self.random.randrange(len(self.shape)))

    def load(self, tensor, depth: int):
        r = self.random
        index = ("%", ("max", self.integer(depth - 1, True), ("neg", self.integer(0, True))), ("number", N))
        index = ("&", index, ("number", 63)) if r.random() < 0.5 else ("max", index, ("number", 0))
        return ("load", tensor, index, self.condition(depth - 1, True) if r.random() < 0.7 else None, r.randrange(-3, 3))

    def condition(self, depth: int, block: bool):
        r = self.random
        if depth > 0 and r.random() < 0.3:
            return (r.choice(["and", "or"]), self.condition(depth - 1, block), self.condition(depth - 1, block))
        return (r.choice(["<", "<=", ">", ">=", "==", "!="]), self.integer(depth, block), self.integer(max(depth - 1, 0), block and r.random() < 0.5))

    def real(self, depth: int):
        r = self.random
        if depth == 0 or r.random() < 0.2:
            return ("var", r.choice(self.floats))
        kind = r.choice(["+", "-", "half", "max", "min", "abs", "where", "load", "float", "reduce", "exp"])
        if kind == "where":
            return (kind, self.condition(depth - 1, True), self.real(depth - 1), self.real(depth - 1))
        if kind == "load":
            return self.load("floats", depth)
        if kind == "float":
            return ("float", ("&", self.integer(depth - 1, True), ("number", 255)))
        if kind == "reduce":
            return self.reduction(self.real(depth - 1))
        if kind in ("half", "abs", "exp"):
            return (kind, self.real(depth - 1))
        return (kind, self.real(depth - 1), self.real(depth - 1))

    # Statements.

    def statements(self, count: int, depth: int) -> list:
        return [self.statement(depth) for _ in range(count)]

    def statement(self, depth: int):
        r = self.random
        kind = r.choice(["int", "int", "real", "real", "scalar", "total", "swap"] + (["for", "if", "while", "for"] if depth else []))
        if kind == "int":
            return ("=", r.choice(self.ints), self.integer(2, True))
        if kind == "real":
            return ("=", r.choice(self.floats), self.real(2))
        if kind == "scalar":
            return ("s=", r.choice(self.scalars), self.integer(2, False))
        if kind == "total":
            return ("s=", r.choice(self.scalars), ("total", r.choice(["sum", "max", "min"]), self.integer(1, True)))
        if kind == "swap":
            return ("swap", *r.choice([self.ints, self.floats, self.scalars]))
        if kind == "if":
            return ("if", self.condition(1, False), self.statements(r.randrange(1, 4), depth - 1), self.statements(r.randrange(0, 3), depth - 1))
        self.loop += 1
        name = f"k{self.loop}"
        if kind == "while":
            return ("while", name, r.randrange(0, 4), self.statements(r.randrange(1, 3), depth - 1))
        self.scalars.append(name)
        body = self.statements(r.randrange(1, 4), depth - 1)
        self.scalars.remove(name)
        first, last = r.choice([("number", 0), ("number", 1)]), r.choice([("scalar", "a"), ("number", 3)])
        return ("for", name, first, last, r.choice([1, 2]), _spared(body, name))


def _spared(body, name: str) -> list:
    """A loop's body without assignments to its variable."""
    kept = []
    for s in body:
        if s[0] == "if":
            s = ("if", s[1], _spared(s[2], name) or [("=", "i0", ("var", "i0"))], _spared(s[3], name))
        elif s[0] in ("for", "while"):
            s = (*s[:-1], _spared(s[-1], name))
        if not (s[0] == "s=" and s[1] == name):
            kept.append(s)
    return kept or [("=", "i0", ("var", "i0"))]


# The text.

_WORDS = {"and": "&", "or": "|", "+": "+", "-": "-", "*": "*", "&": "&", "|": "|", "^": "^", ">>": ">>", "//": "//", "%": "%", "<": "<", "<=": "<=",
          ">": ">", ">=": ">=", "==": "==", "!=": "!="}
_CALLS = {"max": "tl.maximum({}, {})", "min": "tl.minimum({}, {})", "where": "tl.where({}, {}, {})", "neg": "(-{})", "not": "(~{})",
          "half": "({} * 0.5)", "abs": "tl.abs({})", "exp": "tl.exp(-tl.abs({}))", "float": "({}).to(tl.float32)"}


def words(e, rank: int) -> str:
    kind = e[0]
    if kind in ("number", "scalar", "var"):
        return f"({e[1]})" if kind == "number" and e[1] < 0 else str(e[1])
    if kind == "at":
        return "at"
    if kind == "load":
        mask = "" if e[3] is None else f", mask={words(e[3], rank)}, other={e[4]}"
        return f"tl.load({e[1]} + ({words(e[2], rank)}){mask})"
    if kind == "reduce":
        back = "" if rank == 1 else "[None, :]" if e[3] == 0 else "[:, None]"
        return f"(tl.{e[1]}({words(e[2], rank)}, axis={e[3]}){back} + at * 0)"
    if kind == "total":
        return f"tl.{e[1]}({words(e[2], rank)})"
    parts = [words(part, rank) for part in e[1:]]
    return f"({parts[0]} {_WORDS[kind]} {parts[1]})" if kind in _WORDS else _CALLS[kind].format(*parts)


def lines(body, rank: int, indent: str):
    for s in body:
        if s[0] in ("=", "s="):
            yield f"{indent}{s[1]} = {words(s[2], rank)}"
        elif s[0] == "swap":
            yield f"{indent}{s[1]}, {s[2]} = {s[2]}, {s[1]}"
        elif s[0] == "if":
            yield f"{indent}if {words(s[1], rank)}:"
            yield from lines(s[2], rank, indent + "    ")
            if s[3]:
                yield f"{indent}else:"
                yield from lines(s[3], rank, indent + "    ")
        elif s[0] == "for":
            yield f"{indent}for {s[1]} in range({words(s[2], rank)}, {words(s[3], rank)}, {s[4]}):"
            yield from lines(s[5], rank, indent + "    ")
        else:
            yield f"{indent}{s[1]} = a * 0"
            yield f"{indent}while {s[1]} < {s[2]}:"
            yield from lines(s[3], rank, indent + "    ")
            yield f"{indent}    {s[1]} += 1"


def source(program: Program) -> str:
    rank, shape = len(program.shape), program.shape
    at = f"tl.arange(0, {shape[0]})" if rank == 1 else f"tl.arange(0, {shape[0]})[:, None] * {shape[1]} + tl.arange(0, {shape[1]})[None, :]"
    count = int(np.prod(shape))
    stores = [f"    tl.store(int_out + {k * count} + at, {name})" for k, name in enumerate(("i0", "i1"))]
    stores += [f"    tl.store(float_out + {k * count} + at, {name})" for k, name in enumerate(("f0", "f1"))]
    stores += [f"    tl.store(int_out + {2 * count + k}, {name})" for k, name in enumerate(("s0", "s1"))]
    return "\n".join(["import triton", "import triton.language as tl", "", "", "@triton.jit", "def kernel(ints, floats, int_out, float_out, a, b):",
                      f"    at = {at}", *lines(program.body, rank, "    "), *stores, ""])


# What numpy makes of it.


def _divided(x, y):
    return (np.sign(x) * (np.abs(x.astype(np.int64)) // y)).astype(_WRAP)


_FUNCTIONS = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "&": lambda x, y: x & y, "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y, ">>": lambda x, y: x >> y, "//": _divided, "%": lambda x, y: x - _divided(x, y) * y, "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y, ">": lambda x, y: x > y, ">=": lambda x, y: x >= y, "==": lambda x, y: x == y, "!=": lambda x, y: x != y,
    "and": lambda x, y: x & y, "or": lambda x, y: x | y, "max": np.maximum, "min": np.minimum, "neg": lambda x: -x, "not": lambda x: ~x,
    "where": lambda c, x, y: np.where(c, x, y), "half": lambda x: x * np.float32(0.5), "abs": np.abs, "exp": lambda x: np.exp(-np.abs(x)),
    "float": lambda x: x.astype(np.float32),
}
_OF_NUMBERS = {"//": lambda x, y: x // y, "%": lambda x, y: x % y, "max": max, "min": min}


def _applied(kind: str, values):
    """Numbers of the program among themselves are Python's."""
    if all(isinstance(value, int) for value in values) and kind != "where":
        return _OF_NUMBERS.get(kind, _FUNCTIONS[kind])(*values)
    return _FUNCTIONS[kind](*(_WRAP(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in values))


_REDUCE = {"sum": np.sum, "max": np.max, "min": np.min}


class Interpreter:
    def __init__(self, program: Program, ints, floats):
        self.shape, self.tensors = program.shape, {"ints": ints, "floats": floats}
        self.names = {name: 1 if x == 1 else _WRAP(x) for name, x in (("a", program.a), ("b", program.b))}  # 1 is compiled in
        self.at = np.arange(np.prod(program.shape), dtype=_WRAP).reshape(program.shape)
        with np.errstate(all="ignore"):
            self.run(program.body)

    def value(self, e):
        kind = e[0]
        if kind == "number":
            return e[1]
        if kind in ("scalar", "var"):
            return self.names[e[1]]
        if kind == "at":
            return self.at
        if kind == "load":
            return self.load(e)
        if kind in ("reduce", "total"):
            x = np.asarray(self.value(e[2]))
            axis = e[3] if kind == "reduce" else None
            result = _REDUCE[e[1]](x, axis=axis, keepdims=kind == "reduce", **({"dtype": x.dtype} if e[1] == "sum" else {}))
            return np.broadcast_to(result, self.shape).astype(x.dtype) if kind == "reduce" else result
        return _applied(kind, [self.value(part) for part in e[1:]])

    def load(self, e):
        index = np.broadcast_to(self.value(e[2]), self.shape)
        mask = np.ones(self.shape, bool) if e[3] is None else np.broadcast_to(self.value(e[3]), self.shape)
        inside = (index >= 0) & (index < N)
        found = np.where(inside, self.tensors[e[1]][np.where(inside, index, 0)], 0)
        return np.where(mask, found, e[4]).astype(found.dtype)

    def run(self, body):
        for s in body:
            if s[0] in ("=", "s="):
                value = self.value(s[2])
                self.names[s[1]] = np.broadcast_to(value, self.shape).astype(np.float32 if s[1][0] == "f" else _WRAP) if s[0] == "=" else _WRAP(value)
            elif s[0] == "swap":
                self.names[s[1]], self.names[s[2]] = self.names[s[2]], self.names[s[1]]
            elif s[0] == "if":
                self.run(s[2] if self.value(s[1]) else s[3])
            elif s[0] == "for":
                for k in range(int(self.value(s[2])), int(self.value(s[3])), s[4]):
                    self.names[s[1]] = _WRAP(k)
                    self.run(s[5])
            else:
                for k in range(s[2]):
                    self.run(s[3])
