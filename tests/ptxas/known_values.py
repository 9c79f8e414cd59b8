#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ptxas makes of integers that branches tell it. Random kernels load five numbers, go on where each is a certain constant, and store what
arithmetic makes of them. Where ptxas folds all of it, the machine code stores a constant, which is compared with the right one: no GPU is needed.

    tests/ptxas/known_values.py --count 4000 --arch sm_80
    … --complements                   with not, and xor with -1, which Kiln's PTX has none of (compiler/llvm/faults/complements.h)
"""

import argparse
import collections
import pathlib
import random
import secrets
import shutil
import struct
import subprocess
import sys
import tempfile

AT_ONCE = 400  # kernels of a file
NAMES = {16: "%rs", 32: "%r", 64: "%rd"}
LOADED = {32: ("%r2", "%r3", "%r4"), 64: ("%rd5",), 16: ("%rs5",)}
HEAD = """.reg .pred %p<9>; .reg .pred %q<99>; .reg .b32 %r<99>; .reg .b64 %rd<99>; .reg .b16 %rs<99>;
ld.param.b64 %rd1, [p];
ld.global.b32 %r2, [%rd1]; ld.global.b32 %r3, [%rd1+4]; ld.global.b32 %r4, [%rd1+8]; ld.global.b64 %rd5, [%rd1+16]; ld.global.b16 %rs5, [%rd1+24];
"""
TO_WORD = {32: "mov.b32 %r9, {};", 64: "cvt.u32.u64 %r9, {};", 16: "cvt.u32.u16 %r9, {};"}


def find_ptxas():
    return next((str(path) for path in ("/usr/local/cuda/bin/ptxas", "/usr/bin/ptxas") if pathlib.Path(path).exists()), shutil.which("ptxas"))


def unsigned(value, bits):
    return value & ((1 << bits) - 1)


def signed(value, bits):
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


class Kernel:
    """Its ``text``, and the ``word`` that it stores."""

    def __init__(self, name, seed, complements=False):
        self.random, self.complements = random.Random(seed), complements
        self.lines, self.count, self.values = [], 20, {16: [], 32: [], 64: []}  # of values: the register, and what it holds
        for bits, registers in LOADED.items():
            for register in registers:
                constant = self.pick(0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 100, 255, -1, -4, -8)
                predicate = f"%p{len(self.lines) // 2 + 1}"
                self.lines += [f"setp.ne.s{bits} {predicate}, {register}, {constant};", f"@{predicate} bra END;"]
                self.values[bits].append((register, unsigned(constant, bits)))
        for _ in range(self.random.randint(2, 14)):
            self.step(self.pick(16, 32, 32, 32, 64))
        bits = self.pick(16, 32, 32, 32, 64)
        register, value = self.values[bits][-1]
        self.word = unsigned(value, 32)
        self.lines += [TO_WORD[bits].format(register), "st.global.b32 [%rd1+64], %r9;"]
        self.text = f".visible .entry {name}(.param .u64 .ptr .global .align 8 p) {{\n{HEAD}" + "\n".join(self.lines) + "\nEND:\nret;\n}\n"

    def pick(self, *options):
        return self.random.choice(options)

    def fresh(self, name):
        self.count += 1
        return f"{name}{self.count}"

    def operand(self, bits):
        """Its text and its value: mostly a register's."""
        if self.random.random() < 0.7:
            return self.pick(*self.values[bits])
        constant = self.pick(0, 1, 2, 3, 5, 7, 8, 31, 255, -1, -2, -16)
        return str(constant), unsigned(constant, bits)

    def step(self, bits):
        ways = [self.logic, self.logic, self.sum, self.extreme, self.one, self.shift, self.choice, self.product, self.converted]
        self.pick(*ways, *[self.of_words] * (bits == 32))(bits)

    def put(self, bits, value, operation, *operands):
        register = self.fresh(NAMES[bits])
        self.lines.append(f"{operation} {', '.join([register, *operands])};")
        self.values[bits].append((register, unsigned(value, bits)))

    def logic(self, bits):
        (one, a), (two, b) = self.pick(*self.values[bits]), self.operand(bits)
        name, value = self.pick(("and", a & b), ("or", a | b), ("xor", a ^ b))
        if self.complements or name != "xor" or two != "-1":
            self.put(bits, value, f"{name}.b{bits}", one, two)

    def sum(self, bits):
        (one, a), (two, b) = self.pick(*self.values[bits]), self.operand(bits)
        name, value = self.pick(("add", a + b), ("sub", a - b))
        self.put(bits, value, f"{name}.s{bits}", one, two)

    def extreme(self, bits):
        (one, a), (two, b) = self.pick(*self.values[bits]), self.operand(bits)
        function, sign = self.pick(min, max), self.pick("s", "u")
        value = function(signed(a, bits), signed(b, bits)) if sign == "s" else function(a, b)
        self.put(bits, value, f"{function.__name__}.{sign}{bits}", one, two)

    def one(self, bits):
        one, a = self.pick(*self.values[bits])
        way = self.pick("complement", "complement", "neg", "abs")
        if way == "complement":
            self.put(bits, ~a, *((f"not.b{bits}", one) if self.complements else (f"sub.s{bits}", "-1", one)))
        else:
            self.put(bits, -a if way == "neg" else abs(signed(a, bits)), f"{way}.s{bits}", one)

    def shift(self, bits):
        (one, a), by = self.pick(*self.values[bits]), self.random.randrange(bits)
        name, value = self.pick(("shl.b", a << by), ("shr.s", signed(a, bits) >> by), ("shr.u", a >> by))
        self.put(bits, value, f"{name}{bits}", one, str(by))

    def choice(self, bits):
        (one, a), (two, b), (three, c) = self.pick(*self.values[bits]), self.operand(bits), self.pick(*self.values[bits])
        name, holds = self.pick(("lt.s", signed(a, bits) < signed(b, bits)), ("ge.s", signed(a, bits) >= signed(b, bits)), ("lt.u", a < b),
                                ("eq.s", a == b), ("ne.s", a != b))
        predicate = self.fresh("%q")
        self.lines.append(f"setp.{name}{bits} {predicate}, {one}, {two};")
        if self.random.random() < 0.3:
            other = self.fresh("%q")
            self.lines.append(f"not.pred {other}, {predicate};")
            predicate, holds = other, not holds
        self.put(bits, c if holds else a, f"selp.b{bits}", three, one, predicate)

    def product(self, bits):
        (one, a), (two, b), (three, c) = self.pick(*self.values[bits]), self.operand(bits), self.pick(*self.values[bits])
        if self.random.random() < 0.5:
            self.put(bits, a * b, f"mul.lo.s{bits}", one, two)
        else:
            self.put(bits, a * b + c, f"mad.lo.s{bits}", one, two, three)

    def converted(self, bits):
        other = self.pick(*({16, 32, 64} - {bits}))
        (one, a), sign = self.pick(*self.values[other]), self.pick("s", "u")
        self.put(bits, signed(a, other) if sign == "s" else a, f"cvt.{sign}{bits}.{sign}{other}", one)

    def of_words(self, bits):
        (one, a), (two, b), (three, c) = self.pick(*self.values[32]), self.operand(32), self.pick(*self.values[32])
        first, count, table = self.random.randrange(32), self.random.randrange(1, 32), self.random.randrange(256)
        way = self.pick("bfe", "popc", "lop3", "shf", "wide", "brev", "clz")
        if way == "bfe":
            self.put(32, a >> first & ((1 << count) - 1), "bfe.u32", one, str(first), str(count))
        elif way == "popc":
            self.put(32, a.bit_count(), "popc.b32", one)
        elif way == "lop3":
            rows = (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1 for i in range(32))
            self.put(32, sum(bit << i for i, bit in enumerate(rows)), "lop3.b32", one, two, three, str(table))
        elif way == "shf":
            self.put(32, (c << 32 | a) >> first, "shf.r.wrap.b32", one, three, str(first))
        elif way == "wide":
            self.put(64, signed(a, 32) * signed(b, 32), "mul.wide.s32", one, two)
        elif way == "brev":
            self.put(32, int(f"{a:032b}"[::-1], 2), "brev.b32", one)
        else:
            self.put(32, 32 - a.bit_length(), "clz.b32", one)


# Machine code of sm_75 and later: 16 bytes an instruction, of which 12 bits are the operation, 8 its destination.
STORE, MOVES, ZEROS, NO_REGISTER, ALWAYS = 0x986, {0x802: False, 0x424: True, 0x431: True, 0x435: True}, 0x805, 255, 7


def stored(code):
    """The constant that a kernel's machine code stores; None: it computes what it stores."""
    held = {NO_REGISTER: 0}
    for at in range(0, len(code), 16):
        low, = struct.unpack_from("<Q", code, at)
        operation, register = low & 0xFFF, low >> 16 & 0xFF
        if operation == STORE:
            return held.get(low >> 32 & 0xFF)
        from_zero = (low >> 24 & 0xFF) == NO_REGISTER  # IMAD and HFMA2 add a constant to a product of nothing
        held.pop(register, None)
        if register == NO_REGISTER or (low >> 12 & 0xF) != ALWAYS:
            held[NO_REGISTER] = 0
        elif operation == ZEROS:
            held.update({register: 0, register + 1: 0})
        elif operation in MOVES and (from_zero or not MOVES[operation]):
            held[register] = low >> 32
    return None


def codes(cubin):
    """The machine code of each kernel of an ELF file, by name."""
    sections, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    table = [struct.unpack_from("<IIQQQQ", cubin, sections + i * size) for i in range(count)]
    for name, _, _, _, offset, length in table:
        begin = table[names][4] + name
        text = cubin[begin : cubin.index(b"\0", begin)].decode()
        if text.startswith(".text."):
            yield text.removeprefix(".text."), cubin[offset : offset + length]


def check(ptxas, arch, seeds, complements=False):
    """How many kernels store what is "right", what is "wrong", and what is "computed"; and those that are wrong, with what they store."""
    kernels = {f"k{seed}": Kernel(f"k{seed}", seed, complements) for seed in seeds}
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = pathlib.Path(folder) / "k.ptx", pathlib.Path(folder) / "k.cubin"
        source.write_text(f".version 8.7\n.target {arch}\n.address_size 64\n" + "".join(kernel.text for kernel in kernels.values()))
        subprocess.run([ptxas, f"-arch={arch}", "-O3", source, "-o", cubin], check=True, capture_output=True)
        counts, wrong = collections.Counter(), []
        for name, code in codes(cubin.read_bytes()):
            word = stored(code)
            counts["computed" if word is None else "right" if word == kernels[name].word else "wrong"] += 1
            if word not in (None, kernels[name].word):
                wrong.append((kernels[name], word))
    return counts, wrong


def main():
    parser = argparse.ArgumentParser(description="Looks for constants that ptxas folds wrong.")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="of the first kernel; the others follow")
    parser.add_argument("--count", type=int, default=AT_ONCE, help="kernels (%(default)s)")
    parser.add_argument("--arch", default="sm_90a", help="(%(default)s)")
    parser.add_argument("--complements", action="store_true", help="with not, and xor with -1, of which a fault is known")
    options, ptxas, total = parser.parse_args(), find_ptxas(), collections.Counter()
    if ptxas is None:
        sys.exit("there is no ptxas")
    for first in range(options.seed, options.seed + options.count, AT_ONCE):
        seeds = range(first, min(first + AT_ONCE, options.seed + options.count))
        counts, wrong = check(ptxas, options.arch, seeds, options.complements)
        total += counts
        for kernel, word in wrong:
            print(kernel.text, f"// stores {word:#x} instead of {kernel.word:#x}", sep="")
    print(f"seeds from {options.seed}, {options.arch}: {dict(total)}")
    return bool(total["wrong"])


if __name__ == "__main__":
    sys.exit(main())
