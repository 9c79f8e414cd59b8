# SPDX-License-Identifier: Apache-2.0
"""Random programs of integer arithmetic under conditions: what a branch, a loop or a type says of a value, compilers use wherever the value
stands behind it. Numbers stay so small that no type overflows."""

from random_text import Text

BITS = {"int32": 29, "int64": 60, "int16": 13}  # that a magnitude has
EXTREMES = ("T.min", "T.max")


class RandomFacts(Text):
    FORMS = ("equal", "between", "another branch", "loop", "choice", "complement", "negation", "bits", "shift", "quotient", "remainder",
             "minimum or maximum", "variable", "memory", "parallel loop", "int16", "int64")
    largest = 40  # of a tensor's elements

    def build(self):
        self.gx, self.gy, self.threads = self.pick(1, 2, 3), self.pick(1, 1, 2), self.pick(32, 64, 96, 128, 256)
        with self.block(f"with T.Kernel({self.gx}, {self.gy}, threads={self.threads}) as (bx, by):"):
            self.line("tx = T.get_thread_binding()")
            # Of each value: its text, and what its magnitude does not exceed.
            self.values = [("tx", self.threads - 1), ("tx", self.threads - 1), ("bx", self.gx - 1), ("by", self.gy - 1)]
            self.known, self.variables = [], []  # values that a condition speaks of; names of variables
            own = self.tensor((self.gy, self.gx, self.threads), "int32")
            self.values.append((f"{own.name}[by, bx, tx]", self.largest))
            self.form("memory")
            for _ in range(self.random.randint(4, 8)):
                self.statement(0)
            for name in self.variables:
                self.store(name, self.threads, "tx")
        return self.source()

    # Statements.

    def statement(self, depth):
        ways = [self.put, self.put, self.variable, self.change] + [self.branch, self.branch, self.branch, self.loop] * (depth < 3)
        way = self.pick(*ways, *[self.each] * (depth == 0))
        way(depth)

    def body(self, depth, *known):
        """Statements where something is known of these values."""
        before = len(self.known), len(self.values), len(self.variables)
        self.known += known
        for _ in range(self.random.randint(1, 3)):
            self.statement(depth + 1)
        del self.known[before[0]:], self.values[before[1]:], self.variables[before[2]:]

    def branch(self, depth):
        condition, subject = self.condition()
        with self.block(f"if {condition}:"):
            self.body(depth, subject)
        if self.chance(0.4):
            self.form("another branch")
            with self.block("else:"):
                self.body(depth, subject)

    def loop(self, depth):
        self.form("loop")
        name, count = self.fresh("k"), self.pick(1, 2, 3, 5)
        head = self.pick(f"T.serial({count})", f"T.unroll({count})", f"T.serial(T.min(tx % 4, {count}))")
        with self.block(f"for {name} in {head}:"):
            self.values.append((name, count))
            self.body(depth, (name, count))
            self.values = [value for value in self.values if value[0] != name]

    def variable(self, depth):
        """A variable of the thread's own, which statements behind it may change."""
        self.form("variable")
        name = self.fresh("v")
        text, bound = self.expression("int32", 2, 1000)
        self.line(f"{name} = T.alloc_var('int32', 0)")
        self.line(f"{name} = {text}")
        self.variables.append(name)
        self.values += [(name, 1000)] * 2

    def change(self, depth):
        if self.variables:
            self.line(f"{self.pick(*self.variables)} = {self.expression('int32', 3, 1000)[0]}")

    def put(self, depth):
        self.store(self.expression(self.type(), 4)[0], self.threads, self.pick("tx", "tx", f"{self.threads - 1} - tx"))

    def each(self, depth):
        """The elements of a row, by whichever thread."""
        self.form("parallel loop")
        count = self.pick(7, 32, 64, 100, 256)
        values, self.values = self.values, [("i", count - 1), ("i", count - 1), ("bx", self.gx - 1)]
        variables, self.variables = self.variables, []
        with self.block(f"for i in T.Parallel({count}):"):
            condition, subject = self.condition()
            self.known.append(subject)
            self.form("choice")
            self.store(f"T.if_then_else({condition}, {self.expression('int32', 3)[0]}, {self.expression('int32', 3)[0]})", count, "i")
            self.known.pop()
        self.values, self.variables = values, variables

    def store(self, text, count, place):
        out = self.tensor((self.gy, self.gx, count), self.pick("int32", "int64", "int32", "float32"), "marks")
        self.line(f"{out.name}[by, bx, {place}] = T.cast({text}, '{out.dtype}')")

    # Expressions.

    def type(self):
        dtype = self.pick("int32", "int32", "int32", "int64", "int16")
        if dtype != "int32":
            self.form(dtype)
        return dtype

    def condition(self):
        """Its text, and the value that it speaks of."""
        text, bound = self.pick(*self.values)
        part = self.pick("", "", "//", "%", ">>", "&")
        step = self.pick(1, 3, 7) if part == "&" else self.pick(1, 2, 3) if part == ">>" else self.pick(2, 3, 8, 16, 32)
        if part:
            text = f"({text} {part} {step})"
            bound = {"//": bound // step + 1, "%": step - 1, ">>": (bound >> step) + 1, "&": step}[part]
        number = self.random.randint(0, max(0, bound))
        if self.chance(0.6):
            self.form("equal")
            return self.pick(f"{text} == {number}", f"{text} == {number}", f"T.Not({text} != {number})"), (text, bound)
        self.form("between")
        return self.pick(f"{text} < {number}", f"{text} >= {number}", f"T.And({text} >= {number // 2}, {text} <= {number})",
                         f"T.Or({text} == {number}, {text} == {number // 2})", f"{text} != {number}"), (text, bound)

    def expression(self, dtype, depth, most=None):
        """Its text, and what its magnitude does not exceed: no more than ``most``."""
        most = (1 << BITS[dtype]) if most is None else most
        if depth == 0 or self.chance(0.1):
            return self.leaf(dtype, most)
        text, bound = self.pick(self.unary, self.unary, self.binary, self.binary, self.by_number)(dtype, depth - 1)
        return (f"T.min(T.max({text}, {-most}), {most})", most) if bound > most else (text, bound)

    def leaf(self, dtype, most):
        text, bound = self.pick(*self.values, *self.known * 3, (str(self.pick(0, 1, 2, 3, 5, 8, 15, -1)), 15))
        text = text if dtype == "int32" else f"T.cast({text}, '{dtype}')"
        return (f"T.min(T.max({text}, {-most}), {most})", most) if bound > most else (text, bound)

    def unary(self, dtype, depth):
        text, bound = self.expression(dtype, depth)
        way = self.pick("complement", "complement", "negation", "absolute")
        if way == "absolute":
            return f"T.abs({text})", bound
        self.form(way)
        return f"({'~' if way == 'complement' else '-'}({text}))", bound + 1

    def by_number(self, dtype, depth):
        text, bound = self.expression(dtype, depth)
        number = self.pick(1, 2, 3, 4, 7, 8)
        way = self.pick("quotient", "remainder", "shift", "product", "bits")
        if way != "product":
            self.form(way)
        if way == "shift":
            number %= 5
            left = self.chance(0.4) and bound << number < 1 << BITS[dtype]
            return (f"(({text}) << {number})", bound << number) if left else (f"(({text}) >> {number})", bound)
        if way == "product":
            return (f"({text} * {number})", bound * number) if bound * number < 1 << BITS[dtype] else (f"({text} - {number})", bound + number)
        if way == "bits":
            return f"(({text}) {self.pick('&', '|', '^')} {self.pick(1, 2, 3, 6, 15, -1, -4)})", 2 * bound + 16
        return f"({text} {'//' if way == 'quotient' else '%'} {number})", bound + number

    def binary(self, dtype, depth):
        (one, a), (two, b) = self.expression(dtype, depth), self.expression(dtype, depth)
        way = self.pick("sum", "bits", "bits", "minimum or maximum", "choice", "remainder")
        if way == "sum":
            return f"({one} {self.pick('+', '-')} {two})", a + b
        self.form(way)
        if way == "bits":
            return f"(({one}) {self.pick('&', '|', '^')} ({two}))", 2 * max(a, b) + 1
        if way == "choice":
            return f"T.if_then_else({self.condition()[0]}, {one}, {two})", max(a, b)
        if way == "remainder":
            return f"({one} {self.pick('//', '%')} ((({two}) & 7) + 1))", max(a, 8) + 1
        return f"{self.pick(*EXTREMES)}({one}, {two})", max(a, b)
