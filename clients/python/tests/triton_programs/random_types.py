# SPDX-License-Identifier: Apache-2.0
"""Random kernels of values of all types: a seed gives statements that each make one value, and what numpy makes of it by Triton's rules of
types and shapes. Integers and conditions are exact. A float has a bound of how far roundings may have moved it; what is compared, or becomes
an integer, was not rounded."""

import random

import numpy as np

ROWS, COLUMNS = 8, 16
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "float64": 2.0**-50}
SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
FLOATS = tuple(EPSILON)
TYPES = ("int1", *SIGNED, *UNSIGNED, *FLOATS)
SHAPES = {"block": (ROWS, COLUMNS), "row": (1, COLUMNS), "column": (ROWS, 1), "vector": (COLUMNS,), "scalar": ()}
_AT = {"block": "rows * %d + columns" % COLUMNS, "row": "columns", "column": "rows", "vector": "tl.arange(0, %d)" % COLUMNS, "scalar": "3"}


def bits(name: str) -> int:
    return 1 if name == "int1" else int("".join(filter(str.isdigit, name)))


def kind(name: str) -> int:
    return 2 if name in FLOATS else 0 if name == "int1" else 1


def numpy_type(name: str):
    return np.dtype({"int1": "bool", "bfloat16": "float32"}.get(name, name))


def rounded(x, name: str):
    """In the type: integers wrap, bfloat16 is rounded and kept as float32."""
    if name == "bfloat16":
        pattern = np.asarray(x, np.float32).view(np.uint32)
        return ((pattern + 0x7FFF + ((pattern >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.asarray(x).astype(numpy_type(name))


class Value:
    """``array``: what numpy has; ``error``: how far floats may be from it, None where they are exact."""

    def __init__(self, text: str, name: str, array, error=None):
        self.text, self.name, self.array, self.error = text, name, np.asarray(array), error


def meet(a, b, division=False):
    """The type of two operands, each (type, whether it is a number of the program)."""
    (x, x_number), (y, y_number) = a, b
    if x_number != y_number:
        number, value = (x, y) if x_number else (y, x)
        if kind(number) <= kind(value):
            return "float32" if division and value in ("float16", "bfloat16") else value
    for wide in ("float64", "float32"):
        if wide in (x, y):
            return wide
    if "float16" in (x, y):
        return "float32" if division else "float16"
    if "bfloat16" in (x, y):
        return "bfloat16" if x == y and not division else "float32"
    x_signed, y_signed = x in SIGNED, y in SIGNED
    if x_signed == y_signed:
        return x if bits(x) > bits(y) else y
    unsigned, signed = (y, x) if x_signed else (x, y)
    return unsigned if bits(unsigned) >= bits(signed) else signed


def _arrays(seed: int) -> dict:
    """What the kernel reads of each type; no zero among them, so that they divide."""
    generator, count, result = np.random.default_rng(seed), ROWS * COLUMNS, {}
    for name in TYPES:
        if name == "int1":
            result[name] = generator.integers(0, 2, count).astype(bool)
        elif name in FLOATS:
            result[name] = rounded(generator.integers(1, 16, count) * generator.choice([-0.5, 0.25, 1, 2], count), name)
        else:
            low, high = np.iinfo(name).min, np.iinfo(name).max
            wide = generator.integers(low, high, count, numpy_type(name), endpoint=True)
            small = generator.integers(max(low, -9), 10, count).astype(name)
            result[name] = np.where(generator.random(count) < 0.5, wide, small)
            result[name][(result[name] == 0) | (-result[name] == 1)] = 3
    return result


class Program:
    """``lines``: the kernel's statements; ``values``: what they make; ``inputs``: {type: array}; ``a``, ``b`` and ``c``:
    arguments, the last of 64 bits."""

    def __init__(self, seed: int, count: int = 12):
        self.random, self.inputs = random.Random(seed), _arrays(seed)
        self.a, self.b = self.random.choice([-7, 5, 48]), self.random.choice([2000000000, 3, -2147483648])
        self.c = self.random.choice([1 << 40, -(1 << 33), (1 << 62) + 1])
        self.lines, self.values = [], []
        for _ in range(4):
            self.random.choice([self.load, self.load, self.computed])()
        while len(self.values) < count:
            with np.errstate(all="ignore"):
                self.statement()

    def add(self, text: str, name: str, array, error=None) -> None:
        array = np.asarray(array)
        if error is not None or name in FLOATS:
            whole = np.zeros(array.shape) if error is None else np.broadcast_to(error, array.shape)
            if not (np.abs(array.astype(np.float64)) < (3e4 if name == "float16" else 1e30)).all() or not np.isfinite(whole).all():
                return  # overflows are another test's, also those of an operand that is not chosen
            error = whole if whole.any() else None
        value = Value(f"v{len(self.values)}", name, array.astype(numpy_type(name)), error)
        self.lines += [f"{value.text} = {text}", f"tl.static_assert({value.text}.dtype == tl.{name})"]
        self.values.append(value)

    def load(self) -> None:
        name, shape = self.random.choice(TYPES), self.random.choice(list(SHAPES))
        count = int(np.prod(SHAPES[shape]))
        array = self.inputs[name][3] if shape == "scalar" else self.inputs[name][:count].reshape(SHAPES[shape])
        self.add(f"tl.load(in_{name} + ({_AT[shape]}))", name, array)

    def computed(self) -> None:
        """Integers that are no data: indices, the program's number, arguments."""
        rows, columns = np.arange(ROWS, dtype=np.int32)[:, None], np.arange(COLUMNS, dtype=np.int32)[None]
        self.add(*self.random.choice([
            ("rows * 1", "int32", rows), ("columns - 3", "int32", columns - 3), ("tl.arange(0, %d)" % COLUMNS, "int32", columns[0]),
            (f"rows * {COLUMNS} + columns", "int32", rows * COLUMNS + columns), ("tl.program_id(0) - 1", "int32", np.int32(-1)),
            ("a * 1", "int32", np.int32(self.a)), ("b * 1", "int32", np.int32(self.b)), ("c * 1", "int64", np.int64(self.c))]))

    def pick(self, kinds=(0, 1, 2), exact=False) -> Value | None:
        found = [v for v in self.values if kind(v.name) in kinds and not (exact and v.error is not None)]
        return self.random.choice(found) if found else None

    def number(self, beside: str):
        """A number of the program that may meet a value of the type: (number, its type alone)."""
        r = self.random
        if kind(beside) == 2 and r.random() < 0.6:
            return r.choice([0.5, -2.0, 3.0]), "float32"
        if kind(beside) == 0:
            return r.choice([(True, "int1"), (5, "int32"), (-3, "int32")])
        if kind(beside) == 1 and bits(beside) > 16 and r.random() < 0.3:
            return r.choice([1 << 30, 2000000011, 65537]), "int32"
        return (r.choice([1, 3, 7] + ([-2, -5] if beside not in UNSIGNED else [])), "int32")

    def operands(self, kinds=(0, 1, 2), exact=False):
        """Two of them, one of which may be a number: (value, type, whether it is one), each."""
        a = self.pick(kinds, exact)
        if a is None:
            return None
        one = (a, a.name, False)
        if self.random.random() < 0.3:
            number, name = self.number(a.name)
            other = (Value(f"({number})", name, number), name, True)
        else:
            b = self.pick(kinds, exact)
            other = (b, b.name, False)
        pair = [one, other] if self.random.random() < 0.5 else [other, one]
        shapes = [v.array.shape for v, _, _ in pair]
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            return None
        return pair

    def met(self, pair, name: str):
        """Both operands in a type: (array, error), each."""
        return [self.as_type(v, name, number) for v, _, number in pair]

    @staticmethod
    def as_type(v: Value, name: str, number=False):
        """A value converted: (array, error)."""
        array = rounded(v.array, name)
        if name in FLOATS and (v.name not in FLOATS or FLOATS.index(v.name) > FLOATS.index(name) or {v.name, name} == {"float16", "bfloat16"}):
            moved = np.abs(array.astype(np.float64) - v.array.astype(np.float64))
            error = (0 if v.error is None else v.error) + moved
            error = error + (EPSILON[name] * np.abs(array.astype(np.float64)) if moved.any() and not number else 0)
            return array, error if np.any(error) else None
        return array, v.error

    # Statements.

    def statement(self) -> None:
        r = self.random
        make = r.choice([self.load, self.computed, *[self.arithmetic] * 3, self.compare, self.where, self.bitwise, self.shift,
                         self.divide, self.remainder, self.quotient, self.unary, self.cast, self.cast, self.reduce, self.scan, self.reshaped,
                         *[self.rearranged] * 3, self.extreme])
        make()

    def arithmetic(self) -> None:
        pair, op = self.operands(), self.random.choice("+-*")
        if pair is None:
            return
        name = meet(*((n, number) for _, n, number in pair))
        if name == "int1" or pair[0][1] == pair[1][1] == "int1":
            return
        (x, ex), (y, ey) = self.met(pair, name)
        text = f"{pair[0][0].text} {op} {pair[1][0].text}"
        if name not in FLOATS:
            return self.add(text, name, {"+": x + y, "-": x - y, "*": x * y}[op])
        wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
        exact = {"+": wide_x + wide_y, "-": wide_x - wide_y, "*": wide_x * wide_y}[op]
        ex, ey = (0 if e is None else e for e in (ex, ey))
        error = np.abs(wide_x) * ey + np.abs(wide_y) * ex + ex * ey if op == "*" else ex + ey
        array = rounded(exact, name)
        inexact = (array.astype(np.float64) != exact).any()
        self.add(text, name, array, np.broadcast_to(error + (EPSILON[name] * np.abs(exact) if inexact else 0), exact.shape))

    def compare(self) -> None:
        pair, op = self.operands(exact=True), self.random.choice(["<", "<=", ">", ">=", "==", "!="])
        if pair is None:
            return
        name = meet(*((n, number) for _, n, number in pair))
        (x, ex), (y, ey) = self.met(pair, name)
        if ex is not None or ey is not None:
            return
        found = {"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y, "==": x == y, "!=": x != y}[op]
        self.add(f"{pair[0][0].text} {op} {pair[1][0].text}", "int1", found)

    def where(self) -> None:
        condition, pair = self.pick((0, 1)), self.operands()
        if pair is None or condition is None or condition.name != "int1" and condition.error is not None:
            return
        if any(n == "int1" for _, n, number in pair if number):
            return
        name = meet(*((n, number) for _, n, number in pair))
        (x, ex), (y, ey) = self.met(pair, name)
        try:
            found = np.where(condition.array != 0, x, y)
        except ValueError:
            return
        error = None if ex is None and ey is None else np.maximum(0 if ex is None else ex, 0 if ey is None else ey)
        self.add(f"tl.where({condition.text} != 0, {pair[0][0].text}, {pair[1][0].text})", name, found,
                 None if error is None else np.broadcast_to(error, np.broadcast_shapes(error.shape, found.shape)))

    def bitwise(self) -> None:
        pair, op = self.operands((0, 1)), self.random.choice("&|^")
        if pair is None:
            return
        name = meet(*((n, number) for _, n, number in pair))
        (x, _), (y, _) = self.met(pair, name)
        self.add(f"{pair[0][0].text} {op} {pair[1][0].text}", name, {"&": x & y, "|": x | y, "^": x ^ y}[op])

    def shift(self) -> None:
        v, op = self.pick((1,)), self.random.choice(["<<", ">>"])
        if v is None:
            return
        by = self.random.randrange(0, bits(v.name))
        amount = v.array.dtype.type(by)
        self.add(f"{v.text} {op} {by}", v.name, v.array << amount if op == "<<" else v.array >> amount)

    def divisor(self, name: str):
        """One that was loaded, whose elements are neither 0 nor -1."""
        found = [v for v in self.values if v.name == name and not ((v.array == 0) | (-v.array == 1)).any()]
        return self.random.choice(found) if found and self.random.random() < 0.6 else None

    def whole(self):
        """(dividend, divisor as text, its array): integers of one type."""
        v = self.pick((1,))
        if v is None:
            return None
        by = self.divisor(v.name)
        if by is None:
            number = self.random.choice([1, 2, 7] + ([-3] if v.name in SIGNED else []))
            return v, str(f"({number})"), v.array.dtype.type(number)
        try:
            np.broadcast_shapes(v.array.shape, by.array.shape)
        except ValueError:
            return None
        return v, by.text, by.array

    @staticmethod
    def towards_zero(x, y):
        quotient = x // y
        return quotient + ((quotient * y != x) & ((x < 0) != (y < 0))).astype(x.dtype)

    def divide(self) -> None:
        found = self.whole()
        if found is not None:
            v, text, y = found
            self.add(f"{v.text} // {text}", v.name, self.towards_zero(v.array, y))

    def remainder(self) -> None:
        found = self.whole()
        if found is not None:
            v, text, y = found
            self.add(f"{v.text} % {text}", v.name, v.array - self.towards_zero(v.array, y) * y)

    def quotient(self) -> None:
        """``/``: integers of one sign become float32, halves too."""
        pair = self.operands((1, 2))
        if pair is None or not np.all(np.abs(pair[1][0].array.astype(np.float64)) > 0.2) or pair[1][0].error is not None:
            return
        names = [n for _, n, _ in pair]
        if all(kind(n) == 1 for n in names):
            if not pair[0][2] and not pair[1][2] and (names[0] in SIGNED) != (names[1] in SIGNED):
                return
            name = "float32"
        else:
            name = meet(*((n, number) for _, n, number in pair), division=True)
            if kind(name) != 2:
                return
        (x, ex), (y, ey) = self.met(pair, name)
        exact = x.astype(np.float64) / y.astype(np.float64)
        ex, ey = (0 if e is None else e for e in (ex, ey))
        error = (ex + np.abs(exact) * ey) / np.abs(y.astype(np.float64)) + 2 * EPSILON[name] * np.abs(exact)
        self.add(f"{pair[0][0].text} / {pair[1][0].text}", name, rounded(exact, name), np.broadcast_to(error, exact.shape))

    def unary(self) -> None:
        v, op = self.pick(), self.random.choice(["-", "~", "tl.abs", "not"])
        if v is None or op == "~" and v.name in FLOATS or op == "not" and (v.name != "int1" or v.array.shape):
            return
        if op == "-":
            array = v.array if v.name == "int1" else -v.array
        else:
            array = np.abs(v.array) if op == "tl.abs" else ~v.array
        self.add(f"tl.abs({v.text})" if op == "tl.abs" else f"{op} {v.text}", v.name, array, v.error)

    def cast(self) -> None:
        v, name = self.pick(exact=True), self.random.choice(TYPES)
        if v is None:
            return
        if self.random.random() < 0.25 and bits(v.name) == bits(name) and "int1" not in (v.name, name) and "bfloat16" not in (v.name, name):
            if name not in FLOATS:
                self.add(f"{v.text}.to(tl.{name}, bitcast=True)", name, v.array.view(numpy_type(name)))
            return
        if v.name in FLOATS and name not in FLOATS and name != "int1":
            info = np.iinfo(name)
            if not ((v.array >= max(info.min, -1e15)) & (v.array <= min(info.max, 1e15))).all():
                return  # a target's own
            return self.add(f"{v.text}.to(tl.{name})", name, np.trunc(v.array).astype(name))
        array, error = self.as_type(v, name) if name != "int1" else (v.array != 0, None)
        self.add(f"{v.text}.to(tl.{name})", name, array, error)

    def extreme(self) -> None:
        pair, fn = self.operands((1, 2)), self.random.choice(["maximum", "minimum"])
        if pair is None:
            return
        # Each has a type of its own first: numbers too, and bfloat16 is widened.
        name = meet(*(("float32" if n == "bfloat16" else n, False) for _, n, _ in pair))
        (x, ex), (y, ey) = self.met(pair, name)
        error = None if ex is None and ey is None else np.maximum(0 if ex is None else ex, 0 if ey is None else ey)
        found = getattr(np, fn)(x, y)
        self.add(f"tl.{fn}({pair[0][0].text}, {pair[1][0].text})", name, found, None if error is None else np.broadcast_to(error, found.shape))

    def reduce(self) -> None:
        r, v = self.random, self.pick((0, 1))
        if v is None or not v.array.shape:
            return
        axis, keep = r.choice([None, *range(-v.array.ndim, v.array.ndim)]), r.random() < 0.5
        fn = r.choice(["sum", "max", "min", "argmax", "argmin", "xor_sum", "reduce_or"])
        narrow = bits(v.name) < 32
        if fn in ("argmax", "argmin"):
            if axis is None:
                return
            found = getattr(np, fn)(v.array, axis=axis, keepdims=keep)
            return self.add(f"tl.{fn}({v.text}, {axis}, keep_dims={keep})", "int32", found)
        if fn == "sum":
            name = ("int32" if v.name in SIGNED else "uint32") if narrow else v.name
            found = np.sum(v.array.astype(name), axis=axis, keepdims=keep, dtype=name)
        elif fn in ("max", "min"):
            name = "int32" if narrow else v.name
            found = getattr(np, fn)(v.array.astype(name), axis=axis, keepdims=keep)
        else:
            name, ufunc = v.name, np.bitwise_xor if fn == "xor_sum" else np.bitwise_or
            if fn == "reduce_or" and axis is None:
                return
            found = ufunc.reduce(v.array, axis=axis if axis is not None else tuple(range(v.array.ndim)), keepdims=keep)
        self.add(f"tl.{fn}({v.text}, axis={axis}, keep_dims={keep})", name, found)

    def scan(self) -> None:
        r, v = self.random, self.pick((1,))
        if v is None or not v.array.shape:
            return
        axis, back, product = r.randrange(v.array.ndim), r.random() < 0.5, r.random() < 0.4
        name = v.name if product or bits(v.name) >= 32 else "int32" if v.name in SIGNED else "uint32"
        turned = np.flip(v.array, axis) if back else v.array
        found = (np.cumprod if product else np.cumsum)(turned.astype(name), axis, dtype=name)
        self.add(f"tl.{'cumprod' if product else 'cumsum'}({v.text}, axis={axis}, reverse={back})", name, np.flip(found, axis) if back else found)

    def reshaped(self) -> None:
        """Only back to a shape that others have."""
        v = self.pick(exact=True)
        if v is None or not v.array.shape:
            return
        if v.array.ndim == 2 and v.array.shape == (ROWS, COLUMNS):
            text, array = self.random.choice([(f"tl.trans({v.text}).reshape({ROWS}, {COLUMNS})", v.array.T.reshape(ROWS, COLUMNS)),
                                              (f"tl.flip({v.text})", np.flip(v.array, 1)), (f"tl.flip({v.text}, 0)", np.flip(v.array, 0))])
        elif v.array.ndim == 1 and v.array.shape[0] == COLUMNS:
            text, array = self.random.choice([(f"{v.text}[None, :]", v.array[None]), (f"tl.flip({v.text})", v.array[::-1]),
                                              (f"tl.expand_dims({v.text}, 0)", v.array[None])])
        else:
            return
        self.add(text, v.name, array)


    def rearranged(self) -> None:
        """Elements in other places, through three or four dimensions."""
        r, found = self.random, [v for v in self.values if v.error is None and v.array.shape == (ROWS, COLUMNS)]
        if not found:
            return
        v = r.choice(found)
        shape = r.choice([(2, 4, COLUMNS), (4, 2, 2, 8), (ROWS, 4, 4), (16, 2, 4), (2, 2, 8, 4)])
        text, array = f"{v.text}.reshape({shape})", v.array.reshape(shape)
        order = r.sample(range(len(shape)), len(shape))
        how = r.choice(["permute", "sum", "join", "split", "cat", "interleave", "gather", "scan"])
        if how == "permute":
            text, array = f"tl.permute({text}, {order}).reshape({ROWS}, {COLUMNS})", array.transpose(order).reshape(ROWS, COLUMNS)
        elif how == "sum" and v.name in ("int32", "int64", "uint32", "uint64"):
            axis = r.randrange(len(shape))
            small, whole = f"tl.sum({text}, {axis}, keep_dims=True)", array.sum(axis, keepdims=True, dtype=array.dtype)
            text, array = f"({small} - {text}).reshape({ROWS}, {COLUMNS})", (whole - array).reshape(ROWS, COLUMNS)
        elif how in ("join", "interleave", "cat") and v.name not in FLOATS:
            half = f"{text}.reshape(2, {ROWS // 2}, {COLUMNS})"
            x, y = np.split(v.array, 2)
            text = f"tl.{how}(tl.sum({half}.to(tl.int64), 0).to(tl.int32), {order[0]} + tl.sum({half}.to(tl.int64), 0).to(tl.int32))"
            one = (x.astype(np.int64) + y.astype(np.int64)).astype(np.int32)
            two = one + np.int32(order[0])
            array = np.concatenate([one, two]) if how == "cat" else np.stack([one, two], 2)
            text, array = f"{text}.reshape({ROWS}, {COLUMNS})", array.reshape(ROWS, COLUMNS)
            return self.add(text, "int32", array)
        elif how == "split":
            left = r.random() < 0.5
            pairs = v.array.reshape(ROWS // 2, COLUMNS, 2)
            text = f"tl.split({v.text}.reshape({ROWS // 2}, {COLUMNS}, 2))[{0 if left else 1}]"
            text, array = f"tl.broadcast_to({text}[None, :, :], (2, {ROWS // 2}, {COLUMNS})).reshape({ROWS}, {COLUMNS})", pairs[..., 0 if left else 1]
            array = np.broadcast_to(array, (2, *array.shape)).reshape(ROWS, COLUMNS)
        elif how == "gather":
            axis = r.randrange(2)
            index = f"(rows * {order[0] + 3} + columns * 5 + {order[1]}) % {(ROWS, COLUMNS)[axis]}"
            places = (np.arange(ROWS)[:, None] * (order[0] + 3) + np.arange(COLUMNS) * 5 + order[1]) % (ROWS, COLUMNS)[axis]
            text, array = f"tl.gather({v.text}, {index}, {axis})", np.take_along_axis(v.array, places, axis)
        elif how == "scan" and v.name in ("int32", "int64", "uint32", "uint64"):
            axis, back = r.randrange(len(shape)), r.random() < 0.5
            turned = np.flip(array, axis) if back else array
            found = np.cumsum(turned, axis, dtype=array.dtype)
            text = f"tl.cumsum({text}, {axis}, reverse={back}).reshape({ROWS}, {COLUMNS})"
            array = (np.flip(found, axis) if back else found).reshape(ROWS, COLUMNS)
        else:
            return
        self.add(text, v.name, array)


def source(program: Program) -> str:
    parameters = [f"{way}_{name}" for way in ("in", "out") for name in TYPES] + ["a", "b", "c"]
    places = dict.fromkeys(TYPES, 0)
    stores = []
    for v in program.values:
        count = max(v.array.size, 1)
        flat = f"tl.arange(0, {count})"
        value = f"{v.text}.reshape({count})" if v.array.shape else v.text
        at = f"out_{v.name} + {places[v.name]}" + (f" + {flat}" if v.array.shape else "")
        stores.append(f"tl.store({at}, {value})")
        places[v.name] += count
    head = ["import triton", "import triton.language as tl", "", "", "@triton.jit", f"def kernel({', '.join(parameters)}):"]
    body = [f"rows, columns = tl.arange(0, {ROWS})[:, None], tl.arange(0, {COLUMNS})[None, :]", *program.lines, *stores]
    return "\n".join([*head, *("    " + line for line in body), ""])


def expected(program: Program) -> dict:
    """{type: (what its output has, how far it may be)}"""
    result = {}
    for name in TYPES:
        of = [v for v in program.values if v.name == name]
        arrays = [v.array.reshape(-1) for v in of]
        errors = [np.broadcast_to(0.0 if v.error is None else v.error, v.array.shape).reshape(-1) for v in of]
        result[name] = (np.concatenate(arrays) if of else np.zeros(0, numpy_type(name)), np.concatenate(errors) if of else np.zeros(0))
    return result
