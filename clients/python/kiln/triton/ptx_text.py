# SPDX-License-Identifier: Apache-2.0
"""Text of PTX as instructions (PTX ISA 8.5, sections 4 and 5): what tl.inline_asm_elementwise is given."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

from .errors import Refusal

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PART = re.compile(r"\s*(\$\d+|[%A-Za-z_][\w$]*|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|-?0[xX][0-9a-fA-F]+U?|-?\d+\.\d*(?:[eE][-+]?\d+)?|"
                   r"-?\d+U?|[{}\[\],!+|])")
_GUARD = re.compile(r"@(!?)\s*([%A-Za-z_][\w$]*|\$\d+)\s+(.*)", re.DOTALL)
_REGISTERS = re.compile(r"\.reg\s*\.(\w+)\s+(.*)", re.DOTALL)


@dataclass(frozen=True)
class Register:
    name: str
    negated: bool = False  # of a predicate


@dataclass(frozen=True)
class Address:
    register: Register
    offset: int


class Instruction(NamedTuple):
    """``name``: "cvt" of cvt.rn.f32.s32, whose ``parts`` are ("rn", "f32", "s32"). Operands are Registers, numbers, Addresses and tuples of
    Registers and numbers. ``guard``: the predicate under which it does something, or None."""

    name: str
    parts: tuple
    operands: tuple
    guard: Register | None
    text: str


def number_of(text: str):
    """An immediate: a number, or None."""
    text = text.rstrip("U")
    if text[:2].lower() in ("0f", "0d") and len(text) in (10, 18):
        return struct.unpack(">f" if text[1] in "fF" else ">d", bytes.fromhex(text[2:]))[0]
    try:
        return float(text) if "." in text else int(text, 0)
    except ValueError:
        return None


class _Reader:
    """The operands of one statement."""

    def __init__(self, text: str, statement: str):
        self.parts, self.statement, at = [], statement, 0
        while text[at:].strip():
            found = _PART.match(text, at)
            if found is None:
                raise Refusal(f"the operands of `{statement}` in a text of PTX")
            self.parts.append(found.group(1))
            at = found.end()

    def next(self, wanted: str | None = None) -> str:
        part = self.parts.pop(0) if self.parts else ""
        if wanted is not None and part != wanted or not part:
            raise Refusal(f"`{self.statement}` in a text of PTX: {wanted or 'an operand'} is missing")
        return part

    def operands(self) -> list:
        found = []
        while self.parts:
            found.append(self.operand())
            if self.parts and self.parts[0] == "|":  # a second destination
                self.next()
                found.append(self.operand())
            if self.parts:
                self.next(",")
        return found

    def operand(self):
        part = self.next()
        if part == "{":
            return self._several()
        if part == "[":
            return self._address()
        if part == "!":
            return Register(self.next(), True)
        number = number_of(part)
        return Register(part) if number is None else number

    def _several(self) -> tuple:
        found = [self.operand()]
        while self.parts and self.parts[0] == ",":
            self.next()
            found.append(self.operand())
        self.next("}")
        return tuple(found)

    def _address(self) -> Address:
        register, offset = Register(self.next()), 0
        if self.parts and self.parts[0] == "+":
            self.next()
            offset = number_of(self.next())
        elif self.parts and self.parts[0].startswith("-"):
            offset = number_of(self.next())
        self.next("]")
        if not isinstance(offset, int):
            raise Refusal(f"the address in `{self.statement}` in a text of PTX")
        return Address(register, offset)


def _declared(kind: str, names: str) -> dict:
    """{register: type}; ``r<3>`` are r0, r1 and r2."""
    found = {}
    for name in (part.strip() for part in names.split(",")):
        several = re.fullmatch(r"([%\w$]+)<(\d+)>", name)
        found.update({f"{several[1]}{i}": kind for i in range(int(several[2]))} if several else {name: kind})
    return found


def _statements(text: str):
    """Without the braces of scopes: a name that two of them declare is one register here."""
    for statement in _COMMENT.sub(" ", text).split(";"):
        statement = re.sub(r"\s+", " ", statement).strip().lstrip("{} ")
        if statement:
            yield statement


def _instruction(statement: str) -> Instruction:
    guarded = _GUARD.fullmatch(statement)
    guard = Register(guarded[2], bool(guarded[1])) if guarded else None
    name, _, operands = (guarded[3] if guarded else statement).partition(" ")
    if not re.fullmatch(r"[a-z]\w*(\.[\w:]+)*", name):
        raise Refusal(f"`{statement}` in a text of PTX is no instruction")
    first, *parts = name.split(".")
    return Instruction(first, tuple(parts), tuple(_Reader(operands, statement).operands()), guard, statement)


def read(text: str) -> tuple:
    """(the instructions in order, {declared register: its type})."""
    instructions, registers = [], {}
    for statement in _statements(text):
        declared = _REGISTERS.fullmatch(statement)
        if not declared:
            instructions.append(_instruction(statement))
            continue
        for name, kind in _declared(declared[1], declared[2]).items():
            if registers.setdefault(name, kind) != kind:
                raise Refusal(f"`{statement}` in a text of PTX: {name} is a register of type {registers[name]} before; take another name")
    return instructions, registers
