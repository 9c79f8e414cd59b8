# SPDX-License-Identifier: Apache-2.0
"""Steps of random kernels around integers of 32 and 64 bits, conditions and f32 arithmetic."""

import math
import struct

LARGEST = 1024  # of floats, which are multiples of a quarter
CONSTANTS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 100, 255, 256, 1 << 16, 1 << 31, (1 << 31) - 1, -1, -2, -3, -4, -8, -16, -100)
DIVISORS = (2, 3, 4, 5, 7, 8, 10, 16, 100, 255, 256, 1000, -1, -2, -3, -8, -100)
INTRINSICS = "".join(
    f"declare i{width} @llvm.{name}.i{width}(i{width}{more})\n" for width in (32, 64)
    for name, more in (("ctpop", ""), ("bitreverse", ""), ("bswap", ""), ("ctlz", ", i1"), ("cttz", ", i1"), ("abs", ", i1"),
                       ("fshl", f", i{width}, i{width}"), ("fshr", f", i{width}, i{width}"))) + "".join(
    f"declare i32 @llvm.nvvm.read.ptx.sreg.{name}()\n" for name in ("tid.x", "ctaid.x", "ctaid.y", "laneid")) + "".join(
    f"declare float @llvm.{name}.f32(float{more})\n" for name, more in (("fma", ", float, float"), ("minnum", ", float"), ("maxnum", ", float"),
                                                                        ("fabs", ""), ("floor", ""), ("trunc", "")))


def signed(value, bits):
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def quotient(a, b):
    """Rounded to zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


class Words:
    """Of a ``Kernel``."""

    def word(self):
        return self.random.choice((32, 32, 32, 64))

    def word_or_constant(self, width):
        if self.random.random() < 0.5:
            return self.integer(width)
        number = self.random.choice(CONSTANTS) & ((1 << width) - 1)
        return number, number

    def negate_word(self):
        width = self.random.choice((16, 32, 32, 32, 64))
        x, a = self.integer(width)
        self.keep(width, -a, f"sub i{width} 0, {x}")

    def complement_word(self):
        width = self.word()
        x, a = self.integer(width)
        self.keep(width, ~a, f"xor i{width} {x}, -1")

    def calculate_words(self):
        width, which = self.word(), self.random.choice(("and", "or", "xor", "add", "add", "sub", "sub", "mul"))
        left, right = self.integer(width), self.word_or_constant(width)
        if self.random.random() < 0.3:
            left, right = right, left
        (x, a), (y, b) = left, right
        self.keep(width, {"and": a & b, "or": a | b, "xor": a ^ b, "add": a + b, "sub": a - b, "mul": a * b}[which], f"{which} i{width} {x}, {y}")

    def shift_word(self):
        width, which = self.word(), self.random.choice(("shl", "lshr", "ashr", "ashr"))
        (x, a), by = self.integer(width), self.random.choice((1, 2, 3, 5, 8, 16, 24, 31, 33, 40, 63)[:11 if width == 64 else 8])
        self.keep(width, {"shl": a << by, "lshr": a >> by, "ashr": signed(a, width) >> by}[which], f"{which} i{width} {x}, {by}")

    def shift_by_unknown(self):
        """By what nobody knows before: 7 and less."""
        width, which = self.word(), self.random.choice(("shl", "lshr", "ashr"))
        (x, a), less = self.integer(width), self.random.randrange(7)
        by = self.make(f"sub i32 {self.seven}, {less}")
        if width == 64:
            by = self.make(f"zext i32 {by} to i64")
        n = 7 - less
        self.keep(width, {"shl": a << n, "lshr": a >> n, "ashr": signed(a, width) >> n}[which], f"{which} i{width} {x}, {by}")

    def funnel(self):
        which, by = self.random.choice(("fshl", "fshr")), self.random.choice((1, 3, 8, 13, 16, 31))
        (x, a), (y, b) = self.integer(32), self.integer(32)
        if self.random.random() < 0.3:
            y, b = x, a  # rotated
        both = a << 32 | b
        self.keep(32, both >> (32 - by if which == "fshl" else by), f"call i32 @llvm.{which}.i32(i32 {x}, i32 {y}, i32 {by})")

    def divide(self):
        width, which = self.random.choice((32, 32, 32, 16, 64)), self.random.choice(("udiv", "urem", "sdiv", "srem"))
        (x, a), b = self.integer(width), self.random.choice(DIVISORS)
        if which[0] == "u":
            b = abs(b)
            number = a // b if which == "udiv" else a % b
        else:
            if b == -1:
                return  # of the least number, it is undefined
            a = signed(a, width)
            number = quotient(a, b) if which == "sdiv" else a - b * quotient(a, b)
        self.keep(width, number, f"{which} i{width} {x}, {b}")

    def widen_product(self):
        which, (x, a), (y, b) = self.random.choice(("zext", "sext")), self.integer(32), self.word_or_constant(32)
        if which == "sext":
            a, b = signed(a, 32), signed(b, 32)
        y = self.make(f"{which} i32 {y} to i64") if isinstance(y, str) else b
        product = self.make(f"mul i64 {self.make(f'{which} i32 {x} to i64')}, {y}")
        self.integers[64].append((product, a * b & (1 << 64) - 1))
        if self.random.random() < 0.6:
            self.keep(32, a * b >> 32, f"trunc i64 {self.make(f'lshr i64 {product}, 32')} to i32")

    def widen_word(self):
        which, (x, a) = self.random.choice(("zext", "sext")), self.integer(32)
        self.keep(64, a if which == "zext" else signed(a, 32), f"{which} i32 {x} to i64")

    def narrow_word(self):
        (x, a), by = self.integer(64), self.random.choice((0, 0, 8, 31, 32, 32, 33, 48))
        if by:
            x = self.make(f"{self.random.choice(('lshr', 'ashr'))} i64 {x}, {by}") if by <= 32 else self.make(f"lshr i64 {x}, {by}")
        self.keep(32, a >> by, f"trunc i64 {x} to i32")

    def count_bits(self):
        width, which = self.word(), self.random.choice(("ctpop", "ctlz", "cttz", "bitreverse", "bswap", "abs"))
        x, a = self.integer(width)
        text = f"{a:0{width}b}"
        number = {"ctpop": text.count("1"), "ctlz": (text + "1").index("1"), "cttz": (text[::-1] + "1").index("1"), "bitreverse": int(text[::-1], 2),
                  "bswap": int.from_bytes(a.to_bytes(width // 8, "little"), "big"), "abs": abs(signed(a, width))}[which]
        more = ", i1 false" if which in ("ctlz", "cttz", "abs") else ""
        self.keep(width, number, f"call i{width} @llvm.{which}.i{width}(i{width} {x}{more})")

    def load_places(self):
        """The thread's and the block's, which nobody knows to be 0."""
        words = [self.make(f"call i32 @llvm.nvvm.read.ptx.sreg.{name}()") for name in ("tid.x", "ctaid.x", "ctaid.y", "laneid")]
        self.places = [(word, self.make(f"zext i32 {word} to i64")) for word in words]

    def place_of_thread(self):
        word, long = self.random.choice(self.places)
        self.integers[32].append((word, 0))
        if self.random.random() < 0.3:
            self.integers[64].append((long, 0))

    def base(self):
        """The address of the kernel's memory, maybe through places."""
        address = "%p"
        for _ in range(self.random.choice((0, 0, 1, 2))):
            offset = self.make(f"mul i64 {self.random.choice(self.places)[1]}, {self.random.choice((1, 4, 32, 128, 512))}")
            address = self.make(f"getelementptr i8, ptr addrspace(1) {address}, i64 {offset}")
        return address

    def bound_words(self):
        width, which = self.word(), self.random.choice(("umin", "umax", "smin", "smax"))
        (x, a), (y, b) = self.integer(width), self.word_or_constant(width)
        number = (min if which[1:] == "min" else max)(a, b, key=lambda n: signed(n, width) if which[0] == "s" else n)
        self.keep(width, number, f"call i{width} @llvm.{which}.i{width}(i{width} {x}, i{width} {y})")

    def comparison(self):
        width, which = self.word(), self.random.choice(("eq", "ne", "ult", "ule", "ugt", "uge", "slt", "sle", "sgt", "sge"))
        (x, a), (y, b) = self.integer(width), self.word_or_constant(width)
        left, right = (signed(a, width), signed(b, width)) if which[0] == "s" else (a, b)
        holds = {"eq": left == right, "ne": left != right, "lt": left < right, "le": left <= right, "gt": left > right,
                 "ge": left >= right}[which[-2:]]
        return self.make(f"icmp {which} i{width} {x}, {y}"), holds

    def condition(self, depth=0):
        """Of comparisons, and of what combines them; and whether it holds."""
        if depth == 2 or self.random.random() < 0.5:
            return self.random.choice((self.chance, self.comparison, self.comparison, self.comparison_of_floats))()
        (x, a), (y, b), which = self.condition(depth + 1), self.condition(depth + 1), self.random.choice(("and", "or", "xor"))
        return self.make(f"{which} i1 {x}, {y}"), {"and": a and b, "or": a or b, "xor": a != b}[which]

    def comparison_of_floats(self):
        which = self.random.choice(("oeq", "une", "olt", "ole", "ogt", "ult", "uge"))
        (x, a), (y, b) = self.recent(self.floats), self.recent(self.floats)
        holds = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[which[1:]]
        return self.make(f"fcmp {which} float {x}, {y}"), holds

    def choose_word(self):
        (condition, holds), width = self.condition(), self.word()
        (x, a), (y, b) = self.integer(width), self.word_or_constant(width)
        if self.random.random() < 0.5:
            x, a, y, b = y, b, x, a
        self.keep(width, a if holds else b, f"select i1 {condition}, i{width} {x}, i{width} {y}")

    def number_of_condition(self):
        (condition, holds), width, which = self.condition(), self.word(), self.random.choice(("zext", "sext"))
        self.keep(width, int(holds) if which == "zext" else -int(holds), f"{which} i1 {condition} to i{width}")

    def compute_float(self):
        (x, a), (y, b), (z, c) = (self.recent(self.floats) for _ in range(3))
        which = self.random.choice(("fadd", "fsub", "fmul", "fneg", "fabs", "fma", "minnum", "maxnum", "floor", "trunc"))
        number = {"fadd": a + b, "fsub": a - b, "fmul": a * b, "fneg": -a, "fabs": abs(a), "fma": a * b + c, "minnum": min(a, b), "maxnum": max(a, b),
                  "floor": math.floor(a), "trunc": int(a)}[which]
        if number == 0 or abs(number) > LARGEST or number * 4 != int(number * 4):
            return  # the sign of zero is not computed here
        if which == "fneg":
            operation = f"fneg float {x}"
        elif which in ("fadd", "fsub", "fmul"):
            operation = f"{which} float {x}, {y}"
        else:
            given = {"fma": (x, y, z), "minnum": (x, y), "maxnum": (x, y)}.get(which, (x,))
            operation = f"call float @llvm.{which}.f32({', '.join(f'float {one}' for one in given)})"
        self.wide_floats.append((self.make(operation), float(number)))

    def float_of_integer(self):
        (x, a), less = self.integer(32), self.random.choice((15, 31, 255))
        which = self.random.choice(("sitofp", "uitofp"))
        number = a & less
        if number:
            self.wide_floats.append((self.make(f"{which} i32 {self.make(f'and i32 {x}, {less}')} to float"), float(number)))

    def integer_of_float(self):
        x, number = self.recent(self.wide_floats or self.floats)
        self.keep(32, int(number), f"fptosi float {x} to i32")

    def bits_of_float(self):
        x, number = self.recent(self.wide_floats or self.floats)
        self.keep(32, struct.unpack("<I", struct.pack("<f", number))[0], f"bitcast float {x} to i32")


WORD_STEPS = (
    *("negate_word",) * 3, "complement_word", *("calculate_words",) * 8, *("shift_word",) * 6, *("shift_by_unknown",) * 2, *("funnel",) * 2,
    *("divide",) * 2, *("widen_product",) * 2, *("widen_word",) * 2, *("narrow_word",) * 2, *("count_bits",) * 2, *("place_of_thread",) * 4,
    *("bound_words",) * 2, *("choose_word",) * 4, "number_of_condition", *("compute_float",) * 3, "float_of_integer", "integer_of_float",
    "bits_of_float")
