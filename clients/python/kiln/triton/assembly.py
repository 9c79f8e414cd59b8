# SPDX-License-Identifier: Apache-2.0
"""``tl.inline_asm_elementwise``: a text of PTX that is run for groups of elements. It is read here, and its instructions become operations of the
graph, so no text goes to the service."""

from __future__ import annotations

from . import types as ty
from .build import describe
from .builtin import builtin
from .errors import Refusal
from .graph import Value
from .mapped import collected, dealt
from .ptx import TYPES, WORD, Machine, bits_of, low_bits
from .ptx_text import read

_CONSTRAINTS = {"h": 16, "r": 32, "f": 32, "l": 64, "d": 64}


def _split(constraints: str) -> tuple:
    """(the widths of outputs, what follows "=" left out; the constraints of inputs)."""
    parts = [part.strip() for part in constraints.split(",") if part.strip()]
    parts = [part for part in parts if not part.startswith("~")]  # clobbers
    outputs = [part.lstrip("=&") for part in parts if part.startswith("=")]
    inputs = [part for part in parts if not part.startswith("=")]
    for part in (*outputs, *inputs):
        if part not in _CONSTRAINTS and not part.isdigit():
            raise Refusal(f"the constraint {part!r} of tl.inline_asm_elementwise; known are {', '.join(_CONSTRAINTS)}, and the number of an output")
    return [_CONSTRAINTS[part] for part in outputs], inputs


def _together(element, pack: int) -> int:
    """How many elements one register has."""
    return max(min(32 // bits_of(element), pack), 1)


def _registers(b, x: Value, pack: int) -> list:
    """A block as registers, each a block of one group's."""
    if x.element.is_bool():
        x = b.cast(x, ty.uint8)
    parts = dealt(b, x, pack)
    count = 1 if x.element.is_ptr() else _together(x.element, pack)
    return [parts[i] if count == 1 else _joined(b, parts[i : i + count]) for i in range(0, pack, count)]


def _joined(b, parts: list) -> Value:
    size, result = bits_of(parts[0].element), None
    for i, part in enumerate(parts):
        word = b.cast(low_bits(b, part, WORD[size]), ty.uint32)
        word = b.binary("<<", word, i * size) if i else word
        result = word if result is None else b.binary("|", result, word)
    return result


def _elements(b, register: Value, element, count: int) -> list:
    size = bits_of(element)
    if count == 1:
        return [low_bits(b, register, element)]
    word = low_bits(b, register, ty.uint32)
    return [low_bits(b, b.binary(">>", word, i * size) if i else word, element) for i in range(count)]


@builtin
def inline_asm_elementwise(b, asm, constraints, args, dtype, is_pure, pack):
    """``pack``: how many elements of each block one run of the text takes. Elements of less than 32 bits share registers of 32."""
    if not isinstance(asm, str) or not isinstance(constraints, str) or isinstance(pack, bool) or not isinstance(pack, int) or pack < 1:
        raise Refusal("tl.inline_asm_elementwise takes a text of PTX, its constraints, blocks, types of results, and a number of elements from 1 on")
    types = dtype if isinstance(dtype, (tuple, list)) else (dtype,)
    for element in types:
        if not isinstance(element, ty.dtype) or element.is_bool():
            raise Refusal(f"a result of tl.inline_asm_elementwise of type {describe(element)}; numbers are needed")
    blocks = b.together(*(b.value(x, "an argument of tl.inline_asm_elementwise") for x in args))
    shape = blocks[0].shape if blocks else ()
    if blocks and blocks[0].numel % pack:
        raise Refusal(f"tl.inline_asm_elementwise with pack={pack} of {blocks[0].numel} elements, which it does not divide")
    found = _run(b, asm, constraints, [register for x in blocks for register in _registers(b, x, pack)],
                 [(element, _together(element, pack)) for element in types for _ in range(0, pack, _together(element, pack))])
    results = []
    for i in range(len(types)):
        parts = found[i * pack : (i + 1) * pack]
        results.append(collected(b, [b.broadcast_to(part, _rows(shape, blocks, pack)) for part in parts], shape))
    return tuple(results) if isinstance(dtype, (tuple, list)) else results[0]


def _rows(shape, blocks, pack: int) -> tuple:
    return shape if pack == 1 else (blocks[0].numel // pack,)


def _run(b, asm: str, constraints: str, inputs: list, outputs: list) -> list:
    """The elements of the results, one after the other. ``outputs``: (type, elements) of each register."""
    widths, classes = _split(constraints)
    if len(widths) != len(outputs) or len(classes) != len(inputs):
        raise Refusal(f"the constraints {constraints!r} of tl.inline_asm_elementwise are of {len(widths)} results and {len(classes)} arguments, and "
                      f"there are {len(outputs)} and {len(inputs)} registers of these")
    instructions, declared = read(asm)
    sizes = {name: _declared_bits(name, kind) for name, kind in declared.items()}
    sizes.update({f"${i}": width for i, width in enumerate(widths)})
    machine = Machine(b, sizes)
    for i, (kind, value) in enumerate(zip(classes, inputs)):
        names = [f"${len(widths) + i}", *([f"${kind}"] if kind.isdigit() else [])]
        for name in names:
            sizes[name] = sizes.get(name) or (bits_of(value.element) if kind.isdigit() else _CONSTRAINTS[kind])
            machine.registers[name] = value
    for instruction in instructions:
        machine.run(instruction)
    results = []
    for i, (element, count) in enumerate(outputs):
        if f"${i}" not in machine.registers:
            raise Refusal(f"the text of tl.inline_asm_elementwise does not write its result ${i}")
        results += _elements(b, machine.registers[f"${i}"], element, count)
    return results


def _declared_bits(name: str, kind: str) -> int:
    if kind != "pred" and kind.removesuffix("x2") not in TYPES:
        raise Refusal(f"the register {name} of type .{kind} in a text of PTX")
    return 1 if kind == "pred" else bits_of(TYPES[kind.removesuffix("x2")]) * (2 if kind.endswith("x2") else 1)
