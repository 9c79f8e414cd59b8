# SPDX-License-Identifier: Apache-2.0
"""What a Triton program is refused with. Each text says what was asked, where, and what to use."""

from __future__ import annotations

import linecache

from ..language.trace import TraceError


class TritonError(Exception):
    """What Triton's own errors are."""


class CompilationError(TraceError, TritonError):
    """A kernel that Triton's language does not allow, or that Kiln does not take; its text begins with the file and the line. ``error_message``:
    without them."""

    error_message: str | None = None


class CompileTimeAssertionFailure(CompilationError):
    """tl.static_assert of what is not so."""


class Refusal(Exception):
    """What is wrong, without the place; the interpreter knows it and raises a CompilationError."""


class FailedAssertion(Refusal):
    """Of tl.static_assert."""


class OptionError(ValueError, AssertionError):
    """An option of a launch that cannot be; Triton's are assertions."""


class DeviceAssertError(TritonError, RuntimeError):
    """A tl.device_assert that did not hold."""


class InterpreterError(TritonError):
    """Of Triton's interpreter, in whose place Kiln has the emulator; never raised."""


class OutOfResources(TritonError, RuntimeError):
    """Of Triton's runtime: a configuration that needs more than the device has. Kiln raises its own kiln.CompileError."""


class PTXASError(TritonError):
    """Of Triton's assembler; Kiln raises its own kiln.CompileError."""


def at(file: str, line: int, message: str, kind=CompilationError) -> CompilationError:
    text = linecache.getline(file, line)
    error = kind(f"{file}:{line}: {message}" + (f"\n    {text.strip()}" if text.strip() else ""))
    error.error_message = message
    return error
