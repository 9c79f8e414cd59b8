# SPDX-License-Identifier: Apache-2.0
"""What kernels say while they run: tl.device_print and tl.device_assert. A kernel that has one takes a buffer behind its arguments, into which
each element writes a record; the launch waits for the kernel, prints the records, and raises an error where an assertion did not hold."""

from __future__ import annotations

import struct
import sys
from typing import NamedTuple

from ..language import program as ir
from ..language.buffer import Buffer, load
from ..language.dtypes import as_dtype
from ..language.expr import Expr, Var, as_expr, binary, cast, make
from . import types as ty
from .build import describe, is_number
from .builtin import builtin
from .errors import DeviceAssertError, Refusal

MOST = 1 << 15  # records of one launch
_WORDS = 8  # of a record: the message, the program in three, the element, the value in two; of the head: the count
_WORD = as_dtype("int32")


class Message(NamedTuple):
    """One operand of a print, or an assertion. ``element``: the operand's type, None of a print without operands."""

    is_assertion: bool
    file: str
    line: int
    text: str
    element: object
    shape: tuple
    hex: bool

    def index(self, linear: int) -> str:
        places = []
        for extent in reversed(self.shape):
            places.insert(0, f"{linear % extent:{len(str(extent - 1))}}")
            linear //= extent
        return ", ".join(places)

    def written(self, program: tuple, linear: int, bits: int) -> str:
        """As Triton writes a print."""
        line = f"pid ({', '.join(map(str, program))})"
        return line + (self.text if self.element is None else f" idx ({self.index(linear)}){self.text}{_number(bits, self.element, self.hex)}")

    def failed(self, program: tuple, linear: int) -> str:
        element = f", element ({self.index(linear)})" if self.shape else ""
        return f"{self.file}:{self.line}: device-side assert in program ({', '.join(map(str, program))}){element}: {self.text}"


def _number(bits: int, element, as_hex: bool) -> str:
    if element.is_ptr():
        return f"{bits:#x}"
    if element.is_floating():
        value = struct.unpack("<d", struct.pack("<Q", bits))[0]
        return value.hex() if as_hex and abs(value) < float("inf") else f"{value:f}"
    width = max(element.primitive_bitwidth, 8)
    bits %= 1 << width
    if as_hex:
        return f"0x{bits:0{width // 4}x}"
    return str(bits - (1 << width) if element.is_int_signed() and bits >> (width - 1) else bits)


def _prefix(text: str, has_operands: bool) -> str:
    """With a colon before values and a space before itself."""
    if has_operands and not text.endswith(": "):
        text = text.removesuffix(" ").removesuffix(":") + ": "
    return text if len(text) <= 2 or text.startswith(" ") else " " + text


@builtin
def device_print(b, prefix, *args, hex=False):
    """One line for each element, and for a scalar one for each program. A launch has at most 32768 lines; those beyond are counted."""
    if not isinstance(prefix, str):
        raise Refusal(f"tl.device_print begins with a text, not {describe(prefix)}")
    values = [b.value(x, "an argument of tl.device_print") for x in args]
    text = _prefix(prefix, bool(values))
    several = [f"{text}(operand {i}) " for i in range(len(values))] if len(values) > 1 else [text]
    for value, one in zip(values, several):
        b.emit("tt.print", [value], message=Message(False, b.file, b.line, one, value.element, value.shape, bool(hex)))
    if not values:
        b.emit("tt.print", [], message=Message(False, b.file, b.line, text, None, (), False))


@builtin
def device_assert(b, cond, msg="", mask=None):
    """With the option debug alone, as in Triton. The kernel runs on to its end; then the launch raises an error."""
    if not b.debug or is_number(cond) and cond or is_number(mask) and not mask:
        return
    if not isinstance(msg, str):
        raise Refusal(f"the message of tl.device_assert is {describe(msg)}, and a text is needed")
    fails = b.inverted(b.condition(cond))
    if mask is not None:
        fails = b.logical("AND", fails, mask)
    b.emit("tt.print", [fails], message=Message(True, b.file, b.line, msg, ty.int1, fails.shape, False))


# In a kernel.


def lower_message(lowering, op) -> None:
    message = op.attrs["message"]
    lowering.told.append(message)
    number = len(lowering.told) - 1
    value = op.operands[0] if op.operands else None

    def body(indices):
        if not message.is_assertion:
            return _record(lowering, number, message, indices, _bits(lowering, value, indices))
        guard = ir.If(lowering.at(value, indices))
        with lowering.within(guard.then_body):
            _record(lowering, number, message, indices, as_expr(0))
        return lowering.emit(guard)

    lowering.parallel(message.shape, body)


def _bits(lowering, value, indices) -> Expr:
    """64 of them, from which the launch makes the number again."""
    if value is None:
        return as_expr(0)
    if value.element.is_ptr():
        return lowering.symbols.address(value, indices)
    expr, word = lowering.at(value, indices), as_dtype("int64")
    return make("REINTERPRET", word, (cast(expr, as_dtype("float64")),)) if value.element.is_floating() else cast(expr, word)


def buffer_of_messages() -> Buffer:
    return Buffer("GLOBAL", ((MOST + 1) * _WORDS,), _WORD, "messages")


def _record(lowering, number: int, message: Message, indices, bits: Expr) -> None:
    buffer = lowering.messages
    place = lowering.allocate("LOCAL", (), _WORD, "place")
    lowering.emit(ir.Atomic("ATOMIC_ADD", buffer, [as_expr(0)], as_expr(1), False, None, ir.Element(place, [as_expr(0)])))
    room = ir.If(binary("LT", load(place, (as_expr(0),)), MOST))
    with lowering.within(room.then_body):
        first = Var("LET", _WORD, "record")
        lowering.emit(ir.Let(first, (load(place, (as_expr(0),)) + 1) * _WORDS))
        linear = as_expr(0)
        for extent, index in zip(message.shape, indices):
            linear = linear * extent + index
        wide = Var("LET", as_dtype("int64"), "bits")
        lowering.emit(ir.Let(wide, cast(bits, as_dtype("int64"))))
        words = [as_expr(number), *lowering.symbols.programs, linear, wide.expr, binary("SHR", wide.expr, 32)]
        for i, word in enumerate(words):
            lowering.emit(ir.Store(buffer, [first.expr + i], cast(word, _WORD)))
    lowering.emit(room)


# At a launch.


class Messages:
    """Those of one kernel, each by its number. ``launch(kernel, arguments)`` calls the kernel with a buffer behind the arguments."""

    def __init__(self, name: str, messages: list):
        self.name, self.messages = name, messages

    def launch(self, kernel, arguments: list) -> None:
        buffer = _zeros(kernel, arguments, (MOST + 1) * _WORDS)
        kernel(*arguments, buffer)
        words = buffer.cpu().numpy() if hasattr(buffer, "cpu") else buffer
        records = words.reshape(-1, _WORDS)
        self._tell(int(records[0, 0]), records[1 : 1 + min(int(records[0, 0]), MOST)])

    def _tell(self, count: int, records) -> None:
        failed = []
        for number, x, y, z, linear, low, high, _ in records.tolist():
            message, program = self.messages[number], (x, y, z)
            if message.is_assertion:
                failed.append(message.failed(program, linear))
            else:
                print(message.written(program, linear, low % (1 << 32) | high % (1 << 32) << 32))
        if count > MOST:
            print(f"{self.name}: {count - MOST} more messages; a launch has {MOST}")
        sys.stdout.flush()
        if failed:
            more = f"\nand {len(failed) - 1} more" if len(failed) > 1 else ""
            raise DeviceAssertError(min(failed) + more)


def _zeros(kernel, arguments: list, count: int):
    """int32, where the kernel runs."""
    torch = sys.modules.get("torch")
    if kernel.target.startswith("emu:") or torch is None:
        import numpy

        return numpy.zeros(count, numpy.int32)
    device = next((x.device for x in arguments if isinstance(x, torch.Tensor)), "cuda")
    return torch.zeros(count, dtype=torch.int32, device=device)
