# SPDX-License-Identifier: Apache-2.0
"""What instructions of PTX compute (PTX ISA 8.5, section 9.7), in operations of the graph. So a text of PTX runs on every target. Approximations
are exact here, and numbers are not flushed to zero."""

from __future__ import annotations

import struct

from . import types as ty
from .build import is_number
from .errors import Refusal
from .graph import Value
from .ptx_text import Address, Instruction, Register

TYPES = {"pred": ty.int1, "f16": ty.float16, "bf16": ty.bfloat16, "f32": ty.float32, "f64": ty.float64, "e4m3": ty.float8e4nv, "e5m2": ty.float8e5,
          **{f"{kind}{bits}": getattr(ty, f"{'int' if kind == 's' else 'uint'}{bits}") for kind in "bus" for bits in (8, 16, 32, 64)}}
_HARMLESS = frozenset(("rn", "ftz", "noftz", "approx", "full"))  # results are rounded once, to the nearest
_COMPARISONS = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE", "lo": "LT", "ls": "LE", "hi": "GT", "hs": "GE"}
WORD = {8: ty.uint8, 16: ty.uint16, 32: ty.uint32, 64: ty.uint64}


def bits_of(element) -> int:
    return 8 * element.itemsize if not element.is_bool() else 1


def low_bits(b, value: Value, element) -> Value:
    """The lower bits of a register as a value of a type."""
    if value.element == element:
        return value
    if value.element.is_ptr() or element.is_bool() != value.element.is_bool():
        raise Refusal(f"a register of type {value.element} is used as {element} in a text of PTX")
    have, want = bits_of(value.element), bits_of(element)
    if have != want:
        value = b.cast(b.cast(value, WORD[have], bitcast=True), WORD[want])
    return b.cast(value, element, bitcast=True)


class Machine:
    """``registers``: {name: value} of what is in them; ``widths``: of all."""

    def __init__(self, b, widths: dict):
        self.b, self.widths, self.registers = b, widths, {}

    def run(self, instruction: Instruction) -> None:
        function, modifiers = _INSTRUCTIONS.get(instruction.name, (None, ""))
        if function is None:
            raise Refusal(f"`{instruction.text}` in a text of PTX is not translated; translated are {', '.join(sorted(_INSTRUCTIONS))}. Write what "
                          "it computes in the language")
        for part in instruction.parts:
            if part not in _HARMLESS and part not in modifiers.split() and part.removesuffix("x2") not in TYPES:
                raise Refusal(f"`{instruction.text}` in a text of PTX: the form .{part} of {instruction.name} is not translated")
        function(self, instruction)

    # Operands.

    def value(self, operand, element) -> Value:
        b = self.b
        if is_number(operand):
            if element.is_floating() and isinstance(operand, int):
                return low_bits(b, b.constant(operand % (1 << bits_of(element)), WORD[bits_of(element)]), element)
            if element.is_int():
                if isinstance(operand, float):
                    operand = self.bits(operand, bits_of(element))
                low, high = element.range()
                operand = (int(operand) - low) % (high - low + 1) + low
            return b.constant(operand, element)
        if isinstance(operand, tuple):
            return low_bits(b, self.joined(operand, bits_of(element)), element)
        if not isinstance(operand, Register):
            raise Refusal("an address where a text of PTX needs a value")
        return self.content(operand, element)

    @staticmethod
    def bits(number: float, width: int) -> int:
        """Of a float where an instruction has no type but a width."""
        if width not in (32, 64):
            raise Refusal(f"the number {number} where a text of PTX needs {width} bits")
        return int.from_bytes(struct.pack(">f" if width == 32 else ">d", number), "big")

    def content(self, register: Register, element) -> Value:
        if register.name.startswith("%"):
            raise Refusal(f"the special register {register.name} in a text of PTX: kernels do not see the device's clock and places; tl.program_id "
                          "and its like say what the kernel needs")
        if register.name not in self.registers:
            raise Refusal(f"the register {register.name} in a text of PTX is read before it is written")
        value = low_bits(self.b, self.registers[register.name], element)
        return self.b.inverted(value) if register.negated else value

    def joined(self, parts: tuple, width: int) -> Value:
        """Registers as one value, the first in its lowest bits."""
        b, size = self.b, width // len(parts)
        result = None
        for i, part in enumerate(parts):
            wide = b.cast(self.value(part, WORD[size]), WORD[width])
            wide = wide if i == 0 else b.binary("<<", wide, i * size)
            result = wide if result is None else b.binary("|", result, wide)
        return result

    def write(self, instruction: Instruction, operand, value: Value) -> None:
        b = self.b
        if isinstance(operand, tuple):
            size = bits_of(value.element) // len(operand)
            word = low_bits(b, value, WORD[bits_of(value.element)])
            for i, part in enumerate(operand):
                self.write(instruction, part, b.cast(b.binary(">>", word, i * size) if i else word, WORD[size]))
            return
        if operand.name == "_":
            return
        width = self.widths.get(operand.name)
        if width is None:
            raise Refusal(f"`{instruction.text}` in a text of PTX writes {operand.name}, which is no register")
        have = bits_of(value.element)
        if have > width or 1 in (have, width) and have != width:
            raise Refusal(f"`{instruction.text}` in a text of PTX writes {have} bits to {operand.name}, which has {width}")
        if have < width:
            extended = getattr(ty, f"int{width}") if value.element.is_int_signed() else WORD[width]
            value = b.cast(value if value.element.is_int() else low_bits(b, value, WORD[have]), extended)
        if instruction.guard is not None and operand.name in self.registers:
            old = low_bits(b, self.registers[operand.name], value.element)
            value = b.select(self.content(instruction.guard, ty.int1), value, old)
        self.registers[operand.name] = value

    # Types.

    @staticmethod
    def types(instruction: Instruction) -> list:
        """Those among an instruction's parts, in order: (type, how many of them are in a register)."""
        found = []
        for part in instruction.parts:
            if part in TYPES:
                found.append((TYPES[part], 1))
            elif part.endswith("x2") and part[:-2] in TYPES:
                found.append((TYPES[part[:-2]], 2))
        if not found:
            raise Refusal(f"`{instruction.text}` in a text of PTX has no type that is known here")
        return found

    def lanes(self, operand, element, count: int) -> list:
        """The values of a register that holds several."""
        if count == 1:
            return [self.value(operand, element)]
        b, size = self.b, bits_of(element)
        word = self.value(operand, WORD[count * size])
        return [low_bits(b, b.cast(b.binary(">>", word, i * size) if i else word, WORD[size]), element) for i in range(count)]

    def packed(self, values: list) -> Value:
        if len(values) == 1:
            return values[0]
        b, size = self.b, bits_of(values[0].element)
        low, high = (b.cast(low_bits(b, value, WORD[size]), WORD[2 * size]) for value in values)
        return b.binary("|", low, b.binary("<<", high, size))

    def both(self, fn: str, x: Value, y: Value) -> Value:
        return self.b.apply(fn, *self.b.together(x, y))


def _each(function, count: int):
    """An instruction whose result has the type of its operands, lane by lane."""

    def run(machine: Machine, instruction: Instruction) -> None:
        element, lanes = machine.types(instruction)[-1]
        target, *operands = instruction.operands
        if len(operands) != count:
            raise Refusal(f"`{instruction.text}` in a text of PTX has {len(operands)} operands behind the first, and {count} are needed")
        columns = [machine.lanes(operand, element, lanes) for operand in operands]
        found = [_finished(machine, instruction, function(machine, *row)) for row in zip(*columns)]
        machine.write(instruction, target, machine.packed(found))

    return run


def _finished(machine: Machine, instruction: Instruction, value: Value) -> Value:
    """With .sat and .relu."""
    b, parts = machine.b, instruction.parts
    if not value.element.is_floating():
        if "sat" in parts:
            raise Refusal(f"`{instruction.text}` in a text of PTX: the form .sat of integers is not translated")
        return value
    if "sat" in parts:
        value = b.select(b.binary(">", value, 0.0), value, 0.0)  # NaN becomes 0
        value = b.select(b.binary("<", value, 1.0), value, 1.0)
    if "relu" in parts:
        value = b.select(b.binary("<", value, 0.0), 0.0, value)
    return value


def _function(name: str):
    def function(machine: Machine, x: Value) -> Value:
        if x.element in (ty.float32, ty.float64):
            return machine.b.unary(name, x)
        return machine.b.cast(machine.b.unary(name, machine.b.cast(x, ty.float32)), x.element)

    return function


def _fma(machine: Machine, x, y, z) -> Value:
    x, y, z = machine.b.together(x, y, z)
    return machine.b.emit("math.fma", [x, y, z], [(x.element, x.shape)]).result


def _extreme(fn: str):
    """Of a number and NaN the number, or NaN with .NaN."""
    plain = _each(lambda m, x, y: m.both(fn, x, y), 2)

    def propagates(machine: Machine, x, y) -> Value:
        b, result = machine.b, machine.both(fn, x, y)
        return b.select(b.binary("!=", x, x), x, b.select(b.binary("!=", y, y), y, result))

    with_nan = _each(propagates, 2)
    return lambda machine, instruction: (with_nan if "NaN" in instruction.parts else plain)(machine, instruction)


_FUSED, _TIMES = _each(_fma, 3), _each(lambda m, x, y: m.both("MUL", x, y), 2)


def _product(machine: Machine, instruction: Instruction) -> None:
    """mul and mad: of integers the lower half, the upper half, or all of it."""
    element, lanes = machine.types(instruction)[-1]
    target, *operands = instruction.operands
    b, how = machine.b, next((part for part in instruction.parts if part in ("lo", "hi", "wide")), "lo")
    adds = operands[2] if instruction.name == "mad" else None
    if element.is_floating():
        return (_FUSED if instruction.name == "mad" else _TIMES)(machine, instruction)
    if "sat" in instruction.parts:
        raise Refusal(f"`{instruction.text}` in a text of PTX: the form .sat of integers is not translated")
    size = bits_of(element)
    x, y = (machine.value(operand, element) for operand in operands[:2])
    if how == "lo":
        value = machine.both("MUL", x, y)
    elif size == 64:
        if how == "wide":
            raise Refusal(f"`{instruction.text}` in a text of PTX: no register has 128 bits")
        from . import language as tl

        value = tl._mulhi.run(b, x, y)
    else:
        wide = getattr(ty, f"{'int' if element.is_int_signed() else 'uint'}{2 * size}")
        value = machine.both("MUL", b.cast(x, wide), b.cast(y, wide))
        value = value if how == "wide" else b.cast(b.binary(">>", value, size), element)
    if adds is not None:
        value = machine.both("ADD", value, machine.value(adds, value.element))
    machine.write(instruction, target, value)


def _shifted(fn: str):
    """By all bits and more, nothing or the sign is left."""

    def run(machine: Machine, instruction: Instruction) -> None:
        (element, _), b = machine.types(instruction)[-1], machine.b
        target, x, by = instruction.operands
        size = bits_of(element)
        if fn == "SHL":
            element = WORD[size]
        x, amount = machine.value(x, element), machine.value(by, ty.uint32)
        if is_number(by) and by < size:
            value = machine.both(fn, x, b.constant(by, element))
        else:
            most = size - 1
            kept = machine.both("MIN", amount, b.constant(most, ty.uint32))
            value = machine.both(fn, x, b.cast(kept, element))
            if not (fn == "SHR" and element.is_int_signed()):
                value = b.select(b.binary(">", amount, most), b.constant(0, element), value)
        machine.write(instruction, target, value)

    return run


def _funnel(machine: Machine, instruction: Instruction) -> None:
    """shf: 32 bits out of two registers of 32."""
    b = machine.b
    target, low, high, by = instruction.operands
    amount = machine.value(by, ty.uint32)
    amount = machine.both("BIT_AND", amount, b.constant(31, ty.uint32)) if "wrap" in instruction.parts else \
        machine.both("MIN", amount, b.constant(32, ty.uint32))
    low, high = (b.cast(machine.value(x, ty.uint32), ty.uint64) for x in (low, high))
    whole = b.binary("|", *b.together(low, b.binary("<<", high, 32)))
    left = "l" in instruction.parts
    moved = b.binary("<<" if left else ">>", whole, b.cast(amount, ty.uint64))
    machine.write(instruction, target, b.cast(b.binary(">>", moved, 32) if left else moved, ty.uint32))


def _convert(machine: Machine, instruction: Instruction) -> None:
    types = machine.types(instruction)
    if len(types) != 2:
        raise Refusal(f"`{instruction.text}` in a text of PTX has {len(types)} types, and two are needed")
    (to, lanes), (source, count) = types
    target, *operands = instruction.operands
    if lanes == 2 and count == 1:  # two registers become one; the second is the lower half
        values = [machine.value(operand, source) for operand in reversed(operands)]
    else:
        values = machine.lanes(operands[0], source, count)
    machine.write(instruction, target, machine.packed([_converted(machine, instruction, value, to) for value in values]))


_WHOLE = {"rni": "ROUND", "rmi": "FLOOR", "rpi": "CEIL", "rzi": "TRUNC"}


def _converted(machine: Machine, instruction: Instruction, value: Value, to) -> Value:
    b, parts = machine.b, instruction.parts
    if "rz" in parts and value.element.is_int() and to.is_floating():
        raise Refusal(f"`{instruction.text}` in a text of PTX: the form .rz of integers is not translated")
    if "satfinite" in parts and not to.is_fp8():  # 8-bit floats saturate anyway
        raise Refusal(f"`{instruction.text}` in a text of PTX: the form .satfinite of {to} is not translated")
    whole = next((part for part in parts if part in _WHOLE), None)
    if value.element.is_floating() and whole is not None and not (whole == "rzi" and to.is_int()):
        value = _function(_WHOLE[whole])(machine, value)
    if value.element.is_int() and to.is_int() and "sat" in parts:
        return _clamped(machine, value, to)
    if value.element.is_floating() and to.is_floating() and "rz" in parts and bits_of(to) < bits_of(value.element):
        from . import language as tl

        return tl._rounded(b, _finished(machine, instruction, value), to, "rtz")
    if value.element.is_fp8() and to is not ty.float32:
        value = b.cast(value, ty.float32)
    if to.is_floating() and value.element.is_floating():
        return b.cast(_finished(machine, instruction, value), to)
    return _finished(machine, instruction, b.cast(value, to)) if to.is_floating() else b.cast(value, to)


def _clamped(machine: Machine, value: Value, to) -> Value:
    b = machine.b
    (low, high), (least, most) = to.range(), value.element.range()
    if low > least:
        value = machine.both("MAX", value, b.constant(low, value.element))
    if high < most:
        value = machine.both("MIN", value, b.constant(high, value.element))
    return b.cast(value, to)


def _compare(machine: Machine, instruction: Instruction) -> None:
    """setp: a predicate, or two, of which the second is the opposite."""
    b, (element, _) = machine.b, machine.types(instruction)[-1]
    name = next((part for part in instruction.parts if part.removesuffix("u") in _COMPARISONS or part in ("num", "nan")), None)
    targets = instruction.operands[: len(instruction.operands) - 2 - any(part in ("and", "or", "xor") for part in instruction.parts)]
    x, y = (machine.value(operand, element) for operand in instruction.operands[len(targets) : len(targets) + 2])
    nan = machine.b.logical("OR", b.binary("!=", x, x), b.binary("!=", y, y)) if element.is_floating() else None
    if name is None:
        raise Refusal(f"the comparison of `{instruction.text}` in a text of PTX")
    if name in ("num", "nan"):
        value = nan if name == "nan" else b.inverted(nan)
    elif name in _COMPARISONS:
        value = b._compare(_COMPARISONS[name], *b.together(x, y))
        value = b.logical("AND", value, b.inverted(nan)) if name == "ne" and nan is not None else value  # ordered
    else:
        value = b.logical("OR", b._compare(_COMPARISONS[name[:-1]], *b.together(x, y)), nan)
    values = [value, b.inverted(value)]
    for part, fn in (("and", "BIT_AND"), ("or", "BIT_OR"), ("xor", "BIT_XOR")):
        if part in instruction.parts:
            other = machine.value(instruction.operands[-1], ty.int1)
            values = [machine.both(fn, v, other) for v in values]
    for target, found in zip(targets, values):
        machine.write(instruction, target, found)


def _choose(machine: Machine, instruction: Instruction) -> None:
    element, _ = machine.types(instruction)[-1]
    target, x, y, p = instruction.operands
    chosen = machine.b.select(machine.value(p, ty.int1), machine.value(x, element), machine.value(y, element))
    machine.write(instruction, target, chosen)


def _move(machine: Machine, instruction: Instruction) -> None:
    element, lanes = machine.types(instruction)[-1]
    target, source = instruction.operands
    if isinstance(source, Register) and source.name in machine.registers and machine.registers[source.name].element.is_ptr():
        if instruction.guard is not None:
            raise Refusal(f"`{instruction.text}` in a text of PTX: pointers are moved without a condition")
        machine.registers[target.name] = machine.registers[source.name]
        return
    machine.write(instruction, target, machine.value(source, element if lanes == 1 else WORD[lanes * bits_of(element)]))


def _permute(machine: Machine, instruction: Instruction) -> None:
    """prmt: each byte of the result is one of eight, by four bits of the selector; the uppermost of these repeats its sign."""
    b = machine.b
    if any(part != "b32" for part in instruction.parts):
        raise Refusal(f"`{instruction.text}` in a text of PTX: of prmt the form without a mode is translated")
    target, low, high, selector = instruction.operands
    low, high = (b.cast(machine.value(x, ty.uint32), ty.uint64) for x in (low, high))
    whole = b.binary("|", *b.together(low, b.binary("<<", high, 32)))
    result = None
    for i in range(4):
        if is_number(selector):
            pick, signed = selector >> (4 * i) & 7, selector >> (4 * i) & 8
            byte = b.cast(b.binary(">>", whole, 8 * pick) if pick else whole, ty.uint8)
            byte = b.cast(b.binary(">>", b.cast(byte, ty.int8, bitcast=True), 7), ty.uint8, bitcast=True) if signed else byte
        else:
            field = b.binary(">>", machine.value(selector, ty.uint32), 4 * i)
            byte = b.cast(b.binary(">>", whole, b.cast(b.binary("*", b.binary("&", field, 7), 8), ty.uint64)), ty.uint8)
            sign = b.cast(b.binary(">>", b.cast(byte, ty.int8, bitcast=True), 7), ty.uint8, bitcast=True)
            byte = b.select(b.binary("!=", b.binary("&", field, 8), 0), sign, byte)
        wide = b.binary("<<", b.cast(byte, ty.uint32), 8 * i) if i else b.cast(byte, ty.uint32)
        result = wide if result is None else b.binary("|", result, wide)
    machine.write(instruction, target, result)


def _logic_of_three(machine: Machine, instruction: Instruction) -> None:
    """lop3: the last operand is the table of results."""
    b = machine.b
    target, *operands, table = instruction.operands
    if not is_number(table) or len(operands) != 3:
        raise Refusal(f"`{instruction.text}` in a text of PTX: lop3 takes three operands and a number")
    x = [machine.value(operand, ty.uint32) for operand in operands]
    rows = [row for row in range(8) if int(table) >> row & 1]
    result = b.constant(0, ty.uint32)
    for row in rows:
        term = None
        for value, bit in zip(x, (4, 2, 1)):
            part = value if row & bit else b.inverted(value)
            term = part if term is None else machine.both("BIT_AND", term, part)
        result = machine.both("BIT_OR", result, term)
    machine.write(instruction, target, result)


def _field(machine: Machine, instruction: Instruction) -> None:
    """bfe: bits from a place on; those beyond the end are zeros, or the sign."""
    (element, _), b = machine.types(instruction)[-1], machine.b
    target, x, at, count = instruction.operands
    size = bits_of(element)
    if not is_number(at) or not is_number(count) or not 0 <= at < size or at + count > size:
        raise Refusal(f"`{instruction.text}` in a text of PTX: of bfe the form is translated whose place and number of bits are numbers within the "
                      "register")
    if count == 0:
        return machine.write(instruction, target, b.constant(0, element))
    up = b.binary("<<", machine.value(x, WORD[size]), size - at - count)
    machine.write(instruction, target, b.binary(">>", low_bits(b, up, element), size - count))


def _insert(machine: Machine, instruction: Instruction) -> None:
    """bfi: the lower bits of one value at a place of another."""
    (element, _), b = machine.types(instruction)[-1], machine.b
    target, x, y, at, count = instruction.operands
    size = bits_of(element)
    if not is_number(at) or not is_number(count) or not 0 <= at < size or at + count > size:
        raise Refusal(f"`{instruction.text}` in a text of PTX: of bfi the form is translated whose place and number of bits are numbers within the "
                      "register")
    mask = ((1 << count) - 1) << at
    moved = machine.both("BIT_AND", b.binary("<<", machine.value(x, element), at), b.constant(mask, element))
    rest = machine.both("BIT_AND", machine.value(y, element), b.constant(~mask & (1 << size) - 1, element))
    machine.write(instruction, target, machine.both("BIT_OR", moved, rest))


def _of_bits(name: str):
    def run(machine: Machine, instruction: Instruction) -> None:
        from . import libdevice

        (element, _), b = machine.types(instruction)[-1], machine.b
        target, x = instruction.operands
        signed = getattr(ty, f"int{bits_of(element)}")
        machine.write(instruction, target, b.cast(b.call(getattr(libdevice, name), [machine.value(x, signed)], {}), ty.uint32))

    return run


def _pointer(machine: Machine, address, element):
    if not isinstance(address, Address) or address.register.name not in machine.registers or \
            not machine.registers[address.register.name].element.is_ptr():
        raise Refusal("an address in a text of PTX is a pointer that is given to tl.inline_asm_elementwise")
    pointer = machine.registers[address.register.name]
    size = pointer.element.element_ty.itemsize
    if size != element.itemsize or address.offset % size:
        raise Refusal(f"an access of {element} by a pointer to {pointer.element.element_ty} in a text of PTX; the widths must be equal")
    return machine.b.binary("+", pointer, address.offset // size) if address.offset else pointer


def _load(machine: Machine, instruction: Instruction) -> None:
    from . import language as tl

    element, _ = machine.types(instruction)[-1]
    target, address = instruction.operands
    guard = None if instruction.guard is None else machine.content(instruction.guard, ty.int1)
    found = tl.load.run(machine.b, _pointer(machine, address, element), guard)
    machine.write(instruction, target, low_bits(machine.b, found, element))


def _store(machine: Machine, instruction: Instruction) -> None:
    from . import language as tl

    element, _ = machine.types(instruction)[-1]
    address, source = instruction.operands
    guard = None if instruction.guard is None else machine.content(instruction.guard, ty.int1)
    pointer = _pointer(machine, address, element)
    tl.store.run(machine.b, pointer, low_bits(machine.b, machine.value(source, element), pointer.element.element_ty), guard)


def _two(fn: str):
    return _each(lambda machine, x, y: machine.both(fn, x, y), 2)


# name: (what it does, its modifiers beside the harmless ones)
_INSTRUCTIONS = {
    "add": (_two("ADD"), "sat"), "sub": (_two("SUB"), "sat"), "mul": (_product, "lo hi wide sat"), "mad": (_product, "lo hi wide sat"),
    "fma": (_FUSED, "sat relu"), "div": (_two("DIV"), ""), "rem": (_two("MOD"), ""), "min": (_extreme("MIN"), "NaN"), "max": (_extreme("MAX"), "NaN"),
    "abs": (_each(lambda machine, x: machine.b.unary("ABS", x), 1), ""), "neg": (_each(lambda machine, x: machine.b.negative(x), 1), ""),
    "and": (_two("BIT_AND"), ""), "or": (_two("BIT_OR"), ""), "xor": (_two("BIT_XOR"), ""),
    "not": (_each(lambda machine, x: machine.b.inverted(x), 1), ""), "shl": (_shifted("SHL"), ""), "shr": (_shifted("SHR"), ""),
    "shf": (_funnel, "l r wrap clamp"), "cvt": (_convert, "rz rni rzi rmi rpi sat satfinite relu"),
    "setp": (_compare, " ".join((*_COMPARISONS, *(f"{name}u" for name in ("eq", "ne", "lt", "le", "gt", "ge")), "num nan and or xor"))),
    "selp": (_choose, ""), "mov": (_move, ""), "prmt": (_permute, ""), "lop3": (_logic_of_three, ""), "bfe": (_field, ""), "bfi": (_insert, ""),
    "popc": (_of_bits("popc"), ""), "clz": (_of_bits("clz"), ""), "ld": (_load, "global ca cg cs lu nc"), "st": (_store, "global wb cg cs wt"),
    **{name: (_each(_function(fn), 1), "") for name, fn in (("ex2", "EXP2"), ("lg2", "LOG2"), ("sin", "SIN"), ("cos", "COS"), ("tanh", "TANH"),
                                                            ("sqrt", "SQRT"), ("rsqrt", "RSQRT"))},
    "rcp": (_each(lambda machine, x: machine.both("DIV", machine.b.constant(1, x.element), x), 1), ""),
}
