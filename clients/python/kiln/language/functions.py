# SPDX-License-Identifier: Apache-2.0
"""Functions in other languages, which a kernel's threads call."""

from __future__ import annotations

from . import program as ir
from .buffer import Buffer, Region
from .expr import as_expr, const
from .trace import emit, error


def llvm_function(symbol, text):
    """A function in LLVM's IR, for T.call: ``text`` is a module in the language of LLVM 22 that defines ``symbol``. It is compiled into the kernel:
    it may use intrinsics of the target, and inline assembly on GPUs; what it does not define, and variables that keep a value, are refused.
    Shapes: none. Dtypes: of parameters, integers, half, bfloat, float, double, and pointers to global, shared or generic memory. Targets: all; on
    the emulator without assembly and atomics. Errors: CompileError with the line of the text."""
    return ir.Function("LANGUAGE_LLVM", str(symbol), str(text))


def ptx_function(symbol, text):
    """A function in PTX, for T.call: ``text`` has a ``.func`` called ``symbol`` that gives nothing back, and takes values of 32 and 64 bits and
    addresses: generic ones have 64 bits, those within shared memory 32. What the text says of its version and target does not count.
    Shapes: none. Dtypes: of parameters, 32 and 64 bits. Targets: NVIDIA's GPUs. Errors: CompileError with the line of the text."""
    return ir.Function("LANGUAGE_PTX", str(symbol), str(text))


def _place(region: Region):
    """Where a region begins, in elements behind the buffer's first."""
    strides, step = [], 1
    for extent in reversed(region.buffer.shape):
        strides.insert(0, as_expr(step))
        step = as_expr(extent) * step
    given = region.buffer.strides or strides
    return sum((as_expr(offset) * stride for offset, stride in zip(region.offsets, given)), as_expr(0))


def _argument(value) -> ir.Argument:
    if isinstance(value, Buffer):
        value = value.whole()
    if isinstance(value, Region):
        if value.buffer.space not in ("GLOBAL", "SHARED"):
            raise error(f"T.call of {value.buffer.name}, which is no tensor and not in shared memory, so that it has no address: copy it to a "
                        "T.alloc_shared")
        return ir.Argument(_place(value), value.buffer)
    return ir.Argument(const(value) if isinstance(value, bool) else as_expr(value))


def call(function, *arguments):
    """All threads of the block call the function together, each with its own values. A buffer or a slice of one gives the address of its first
    element; other arguments give their value. The function counts the block's threads along one dimension. It may read and write all of the
    buffers, and wait for the other threads; a buffer in shared memory lies there by rows. The statements behind it see what it did.
    Shapes: any. Dtypes: as the function's. Targets: as the function's. Errors: TraceError for what T.llvm_function or T.ptx_function did not make,
    and for buffers without an address. CompileError where types differ, and where only some threads come. PERMISSION_DENIED without the scope
    ``raw``."""
    if not isinstance(function, ir.Function):
        raise error(f"T.call of {function!r}; it calls what T.llvm_function or T.ptx_function makes")
    emit(ir.Call(function, [_argument(value) for value in arguments]))


__all__ = ["call", "llvm_function", "ptx_function"]
