# SPDX-License-Identifier: Apache-2.0
"""Random kernels in LLVM's IR, around bytes, halves and 8-bit floats, and around words (random_words.py), and what they store. One thread loads
numbers that nobody knows before; each operation's value is computed here too. Floats are small multiples of a half, which every type holds exactly;
an f32 that is used as such alone, of a quarter."""

import math
import random
import struct

from random_words import INTRINSICS, WORD_STEPS, Words, signed

FLOATS = (0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 4.0, -4.0, 5.0, -6.0, 6.0, 0.5, -0.5, 1.5, 8.0, -12.0, 16.0)
SEVEN = 7  # what a kernel loads to decide its branches by
MEMORY = 2048  # bytes of a kernel
STORED = 64  # where its results begin
LAST = 1900
WIDTHS = (8, 16, 32, 64)
KINDS = ("e4m3", "e5m2")
DECLARATIONS = INTRINSICS + "@shared = internal addrspace(3) global [64 x i8] poison, align 8\n" + "".join(
    f"declare i16 @llvm.nvvm.ff.to.{kind}x2.rn(float, float)\ndeclare i16 @llvm.nvvm.f16x2.to.{kind}x2.rn(<2 x half>)\n"
    f"declare <2 x half> @llvm.nvvm.{kind}x2.to.f16x2.rn(i16)\n" for kind in KINDS)


def half_bits(number):
    return struct.unpack("<H", struct.pack("<e", number))[0]


def bfloat_bits(number):
    return struct.unpack("<I", struct.pack("<f", number))[0] >> 16


def byte_bits(number, kind):
    """Of an 8-bit float with this value, which it holds exactly."""
    if kind == "e5m2":
        return half_bits(number) >> 8
    sign = half_bits(number) >> 8 & 0x80
    if number == 0:
        return sign
    fraction, exponent = math.frexp(abs(number))
    return sign | (exponent + 6) << 3 | int((2 * fraction - 1) * 8)


class Kernel(Words):
    """Its ``text``, the ``memory`` it starts with, and ``stored``: each byte that it stores, by place."""

    def __init__(self, seed):
        self.random, self.lines, self.names = random.Random(seed), [], 0
        self.integers = {width: [] for width in WIDTHS}  # of each kind of value: its name and its number
        # wide_floats: f32 that shorter types may not hold; pairs: 8-bit floats in an i16, with their kind and both numbers
        self.floats, self.wide_floats, self.halves, self.bfloats, self.pairs = [], [], [], [], []
        self.stored, self.place, self.slots, self.blocks, self.depth = {}, STORED, 0, 0, 0
        memory = bytearray(STORED)
        self.load_all(memory)
        self.memory = bytes(memory)
        self.steps = self.random.choice((STEPS, WORD_STEPS + BOTH, STEPS + WORD_STEPS, self.few(STEPS + WORD_STEPS), self.few(WORD_STEPS)))
        for _ in range(self.random.randint(8, 40)):
            self.step()
        for _ in range(self.random.randint(1, 5)):
            self.store()

    def few(self, steps):
        """Some of these alone, which then meet more often."""
        return (*self.random.sample(sorted(set(steps)), self.random.randint(3, 9)), "store")

    def step(self):
        getattr(self, self.random.choice(self.steps))()

    def text(self, name):
        body = "\n".join(self.lines)
        return f"define ptx_kernel void @{name}(ptr addrspace(1) %p) {{\nentry:\n%own = alloca [64 x i8], align 8\n{body}\nret void\n}}\n"

    # --- values ---

    def load_all(self, memory):
        pick = self.random
        for i in range(7):
            number = pick.choice(FLOATS)
            struct.pack_into("<f", memory, 4 * i, number)
            self.floats.append((self.load("float", 4 * i, 4), number))
        number = pick.choice(FLOATS)
        struct.pack_into("<e", memory, 28, number)
        self.halves.append((self.load("half", 28, 2), number))
        for width, count, start in ((32, 3, 32), (16, 3, 44), (8, 2, 50)):
            for i in range(count):
                number, at = pick.getrandbits(width), start + i * width // 8
                memory[at:at + width // 8] = number.to_bytes(width // 8, "little")
                self.integers[width].append((self.load(f"i{width}", at, width // 8), number))
        struct.pack_into("<I", memory, 60, SEVEN)
        self.seven = self.load("i32", 60, 4)
        self.load_places()
        word, number = self.integers[32][0]
        self.keep(64, number, f"zext i32 {word} to i64")

    def load(self, kind, place, alignment):
        address = self.make(f"getelementptr i8, ptr addrspace(1) %p, i64 {place}")
        return self.make(f"load {kind}, ptr addrspace(1) {address}, align {alignment}")

    def make(self, operation):
        self.names += 1
        self.lines.append(f"%v{self.names} = {operation}")
        return f"%v{self.names}"

    def keep(self, width, number, operation):
        self.integers[width].append((self.make(operation), number & ((1 << width) - 1)))

    def recent(self, values):
        return self.random.choice(values[-5:] if self.random.random() < 0.6 else values)

    def integer(self, width):
        return self.recent(self.integers[width])

    def vector(self, elements, kind):
        whole = "poison"
        for i, element in enumerate(elements):
            whole = self.make(f"insertelement <{len(elements)} x {kind}> {whole}, {kind} {element}, i32 {i}")
        return whole

    def chance(self):
        """A condition that nobody knows before, and whether it holds."""
        holds = self.random.random() < 0.5
        return self.make(f"icmp {'eq' if holds else 'ne'} i32 {self.seven}, {SEVEN}"), holds

    def compared(self):
        width, which = self.random.choice((8, 16, 16, 32)), self.random.choice(("eq", "ne", "ult", "ugt", "slt", "sgt"))
        (x, a), (y, b) = self.integer(width), self.integer(width)
        if self.random.random() < 0.4:
            b = self.random.choice((0, 1, 5, 255, 100)) & ((1 << width) - 1)
            y = b
        left, right = (signed(a, width), signed(b, width)) if which[0] == "s" else (a, b)
        holds = {"eq": a == b, "ne": a != b, "lt": left < right, "gt": left > right}[which if len(which) == 2 else which[1:]]
        return self.make(f"icmp {which} i{width} {x}, {y}"), holds

    # --- steps: floats ---

    def convert(self):
        kind, (x, a), (y, b) = self.random.choice(("e4m3", *KINDS)), self.recent(self.floats), self.recent(self.floats)
        if self.random.random() < 0.8:
            pair = self.make(f"call i16 @llvm.nvvm.ff.to.{kind}x2.rn(float {x}, float {y})")
        else:
            low, high = self.make(f"fptrunc float {y} to half"), self.make(f"fptrunc float {x} to half")
            pair = self.make(f"call i16 @llvm.nvvm.f16x2.to.{kind}x2.rn(<2 x half> {self.vector((low, high), 'half')})")
        self.integers[16].append((pair, byte_bits(a, kind) << 8 | byte_bits(b, kind)))
        self.pairs.append((pair, kind, a, b))

    def widen(self):
        if not self.pairs:
            return
        pair, kind, a, b = self.random.choice(self.pairs)
        which = self.random.randrange(2)
        both = self.make(f"call <2 x half> @llvm.nvvm.{kind}x2.to.f16x2.rn(i16 {pair})")
        half = self.make(f"extractelement <2 x half> {both}, i32 {which}")
        self.halves.append((half, a if which else b))
        if self.random.random() < 0.5:
            self.floats.append((self.make(f"fpext half {half} to float"), a if which else b))

    def shorten(self):
        x, number = self.recent(self.floats)
        if self.random.random() < 0.7:
            self.halves.append((self.make(f"fptrunc float {x} to half"), number))
        else:
            self.bfloats.append((self.make(f"fptrunc float {x} to bfloat"), number))

    def word_bits(self):
        """An f32's low part."""
        (x, a), (y, b), width = self.recent(self.floats), self.recent(self.floats), self.random.choice((8, 16))
        word = self.make(f"bitcast float {self.make(f'fadd float {x}, {y}')} to i32")
        self.keep(width, struct.unpack("<I", struct.pack("<f", a + b))[0], f"trunc i32 {word} to i{width}")

    def bits(self):
        """The bits of a float, and their number."""
        if self.bfloats and self.random.random() < 0.4:
            x, number = self.recent(self.bfloats)
            return self.make(f"bitcast bfloat {x} to i16"), bfloat_bits(number)
        x, number = self.recent(self.halves)
        return self.make(f"bitcast half {x} to i16"), half_bits(number)

    def take_bits(self):
        self.integers[16].append(self.bits())

    def compute_half(self):
        (x, a), (y, b) = self.recent(self.halves), self.recent(self.halves)
        which = self.random.choice(("fadd", "fsub", "fmul", "fneg", "fabs"))
        if which == "fneg":
            self.halves.append((self.make(f"fneg half {x}"), -a))
        elif which == "fabs":
            self.halves.append((self.make(f"call half @llvm.fabs.f16(half {x})"), abs(a)))
        else:
            number = {"fadd": a + b, "fsub": a - b, "fmul": a * b}[which]
            if 0 < abs(number) <= 64 and number * 4 == int(number * 4):
                self.halves.append((self.make(f"{which} half {x}, {y}"), number))

    def compute_halves(self):
        (x, a), (y, b), (z, c), (w, d) = (self.recent(self.halves) for _ in range(4))
        if max(abs(a + c), abs(b + d)) > 100:
            return
        sums = self.make(f"fadd <2 x half> {self.vector((x, y), 'half')}, {self.vector((z, w), 'half')}")
        self.keep(32, half_bits(b + d) << 16 | half_bits(a + c), f"bitcast <2 x half> {sums} to i32")
        self.halves.append((self.make(f"extractelement <2 x half> {sums}, i32 1"), b + d))

    def choose_float(self):
        values, kind = self.random.choice(((self.halves, "half"), (self.floats, "float")))
        (condition, holds), (x, a), (y, b) = self.chance(), self.recent(values), self.recent(values)
        values.append((self.make(f"select i1 {condition}, {kind} {x}, {kind} {y}"), a if holds else b))

    # --- steps: integers ---

    def pack(self):
        width, into = self.random.choice(((16, 32), (16, 32), (16, 64), (8, 32)))
        parts = [self.integer(width) for _ in range(into // width)]
        whole = self.vector([x for x, _ in parts], f"i{width}")
        self.keep(into, sum(a << width * i for i, (_, a) in enumerate(parts)), f"bitcast <{len(parts)} x i{width}> {whole} to i{into}")

    def unpack(self):
        (x, a), width = self.integer(32), self.random.choice((8, 16))
        parts = self.make(f"bitcast i32 {x} to <{32 // width} x i{width}>")
        for i in range(32 // width):
            if self.random.random() < 0.6:
                self.keep(width, a >> width * i, f"extractelement <{32 // width} x i{width}> {parts}, i32 {i}")

    def cut(self):
        width = self.random.choice((16, 32, 32, 64))
        (x, a), into = self.integer(width), self.random.choice([w for w in (8, 16, 32) if w < width])
        if self.random.random() < 0.4:
            x, a = self.make(f"lshr i{width} {x}, 8"), a >> 8
        self.keep(into, a, f"trunc i{width} {x} to i{into}")

    def extend(self):
        width, which = self.random.choice((8, 16, 16)), self.random.choice(("zext", "sext"))
        (x, a), into = self.integer(width), self.random.choice([w for w in (16, 32, 64) if w > width])
        self.keep(into, a if which == "zext" else signed(a, width), f"{which} i{width} {x} to i{into}")

    def calculate(self):
        width, which = self.random.choice((8, 16, 16, 16, 32)), self.random.choice(("and", "or", "xor", "add", "sub", "mul"))
        (x, a), (y, b) = self.integer(width), self.integer(width)
        if self.random.random() < 0.5:
            b = self.random.choice((1, 2, 7, 15, 127, 128, 255, 0xff00, 0x8080, 0x7fff, -1, -8)) & ((1 << width) - 1)
            y = b
        self.keep(width, {"and": a & b, "or": a | b, "xor": a ^ b, "add": a + b, "sub": a - b, "mul": a * b}[which], f"{which} i{width} {x}, {y}")

    def shift(self):
        width, which = self.random.choice((8, 16, 16, 32)), self.random.choice(("shl", "lshr", "ashr"))
        (x, a), by = self.integer(width), self.random.choice([n for n in (1, 3, 4, 7, 8, 15, 16, 24) if n < width])
        self.keep(width, {"shl": a << by, "lshr": a >> by, "ashr": signed(a, width) >> by}[which], f"{which} i{width} {x}, {by}")

    def bound(self):
        width, which = self.random.choice((8, 16, 16, 32)), self.random.choice(("umin", "umax", "smin", "smax"))
        (x, a), (y, b) = self.integer(width), self.integer(width)
        number = (min if which[1:] == "min" else max)(a, b, key=lambda n: signed(n, width) if which[0] == "s" else n)
        self.keep(width, number, f"call i{width} @llvm.{which}.i{width}(i{width} {x}, i{width} {y})")

    def choose(self):
        width, (condition, holds) = self.random.choice((8, 16, 16, 32)), self.random.choice((self.chance, self.compared))()
        (x, a), (y, b) = self.integer(width), self.integer(width)
        self.keep(width, a if holds else b, f"select i1 {condition}, i{width} {x}, i{width} {y}")

    def swap(self):
        x, a = self.integer(16)
        self.keep(16, a >> 8 | (a & 255) << 8, f"call i16 @llvm.bswap.i16(i16 {x})")

    def through_memory(self):
        width, (space, base) = self.random.choice((8, 16, 16, 32)), self.random.choice(((" addrspace(3)", "@shared"), ("", "%own")))
        size, (x, a) = width // 8, self.integer(width)
        at = (self.slots + size - 1) // size * size
        if at + size > 64:
            return
        self.slots = at + size
        index = self.make(f"add i32 {self.seven}, {at - SEVEN}")  # which nobody knows before
        address = self.make(f"getelementptr i8, ptr{space} {base}, i32 {index}")
        self.lines.append(f"store i{width} {x}, ptr{space} {address}, align {size}")
        if self.random.random() < 0.7:
            self.keep(width, a, f"load i{width}, ptr{space} {address}, align {size}")

    # --- steps: control ---

    def block(self):
        """The label of the block that the next line belongs to."""
        return next((line[:-1] for line in reversed(self.lines) if line.endswith(":")), "entry")

    def branch(self):
        condition, holds = self.chance()
        before, stored, counts = self.block(), dict(self.stored), self.counts()
        self.blocks += 1
        then, end = f"then{self.blocks}", f"end{self.blocks}"
        self.lines += [f"br i1 {condition}, label %{then}, label %{end}", f"{then}:"]
        if self.depth < 2:
            self.depth += 1
            for _ in range(self.random.randint(0, 3)):
                self.step()
            self.depth -= 1
        width = self.random.choice((8, 16, 16, 32))
        (x, a), (h, f), inner = self.integer(width), self.recent(self.halves), self.block()
        if not holds:
            self.stored = stored
        for values, count in zip(self.all_values(), counts, strict=True):  # the others are unknown behind the branch
            del values[count:]
        (y, b), (g, e) = self.integer(width), self.recent(self.halves)
        self.lines += [f"br label %{end}", f"{end}:"]
        if self.random.random() < 0.7:
            self.keep(width, a if holds else b, f"phi i{width} [ {x}, %{inner} ], [ {y}, %{before} ]")
        else:
            self.halves.append((self.make(f"phi half [ {h}, %{inner} ], [ {g}, %{before} ]"), f if holds else e))

    def all_values(self):
        return (*self.integers.values(), self.floats, self.wide_floats, self.halves, self.bfloats, self.pairs)

    def counts(self):
        return [len(values) for values in self.all_values()]

    def repeat(self):
        """Seven times."""
        width, which = self.random.choice((8, 16, 16)), self.random.choice(("add", "xor", "mul"))
        (x, a), (y, b), before = self.integer(width), self.integer(width), self.block()
        self.blocks += 1
        self.names += 4
        loop, end, (i, value, next_i, next_value) = f"loop{self.blocks}", f"end{self.blocks}", (f"%v{self.names - n}" for n in range(4))
        self.lines += [f"br label %{loop}", f"{loop}:", f"{i} = phi i32 [ 0, %{before} ], [ {next_i}, %{loop} ]",
                       f"{value} = phi i{width} [ {x}, %{before} ], [ {next_value}, %{loop} ]", f"{next_value} = {which} i{width} {value}, {y}",
                       f"{next_i} = add i32 {i}, 1"]
        again = self.make(f"icmp slt i32 {next_i}, {self.seven}")
        self.lines += [f"br i1 {again}, label %{loop}, label %{end}", f"{end}:"]
        for _ in range(SEVEN):
            a = {"add": a + b, "xor": a ^ b, "mul": a * b}[which] & ((1 << width) - 1)
        self.integers[width].append((next_value, a))

    # --- stores ---

    def store(self):
        which = self.random.choice(("integer", "integer", "integer", "vector", "vector", "half", "byte of a float"))
        if which == "integer":
            width = self.random.choice(WIDTHS)
            self.put(f"i{width}", *self.integer(width), width // 8)
        elif which == "vector":
            width, count = self.random.choice(((8, 2), (8, 4), (16, 2), (16, 4)))
            parts = [self.integer(width) for _ in range(count)]
            whole = self.vector([x for x, _ in parts], f"i{width}")
            self.put(f"<{count} x i{width}>", whole, sum(a << width * i for i, (_, a) in enumerate(parts)), count * width // 8)
        elif which == "half":
            x, number = self.recent(self.halves)
            self.put("half", x, half_bits(number), 2)
        else:
            x, number = self.bits()
            if self.random.random() < 0.5:
                x, number = self.make(f"lshr i16 {x}, 8"), number >> 8
            self.put("i8", self.make(f"trunc i16 {x} to i8"), number & 255, 1)

    def put(self, kind, value, number, size):
        self.place = (self.place + size - 1) // size * size
        if self.place + size > LAST:
            return
        address = self.make(f"getelementptr i8, ptr addrspace(1) {self.base()}, i64 {self.place}")
        self.lines.append(f"store {kind} {value}, ptr addrspace(1) {address}, align {size}")
        self.stored |= {self.place + i: byte for i, byte in enumerate(number.to_bytes(size, "little"))}
        self.place += size


STEPS = (
    *("convert",) * 5, *("pack",) * 8, *("shorten",) * 4, *("take_bits",) * 3, "word_bits", "unpack", "unpack", "cut", "cut", *("extend",) * 3,
    *("calculate",) * 4, "shift", "shift", "bound", "choose", "choose", "choose_float", "choose_float", "widen", "widen",
    "compute_half", "compute_half", "compute_halves", "swap", "through_memory", "through_memory", *("branch",) * 3, "repeat", "store", "store")
BOTH = (*("branch",) * 4, "repeat", *("store",) * 4, "through_memory", "extend", "extend", "cut", "choose", "calculate")
