# SPDX-License-Identifier: Apache-2.0
"""Arguments that are no tensors and stand for one: objects with ``data_ptr()`` and ``dtype``, which is all that Triton asks for. With
``untyped_storage()`` their memory is known, and they may point into its middle."""

from __future__ import annotations

import ctypes
import sys

from ..addresses import Place
from ..language.pointers import Memory
from .driver import current_device
from .types import dtype


def is_wrapped(x) -> bool:
    return not hasattr(x, "as_strided") and not hasattr(x, "base") and hasattr(x, "data_ptr")


def memory_of(name: str, x, element: dtype, emulated: bool) -> tuple:
    """(all memory that is behind the object, its address, how many elements there are)."""
    width, address = element.itemsize, x.data_ptr()
    storage = x.untyped_storage() if hasattr(x, "untyped_storage") else None
    known = hasattr(storage, "nbytes")
    start, count = (storage.data_ptr(), storage.nbytes() // width) if known else (address, Memory.BYTES // width)
    if (address - start) % width:
        raise ValueError(f"argument {name}: it points {(address - start) % width} bytes behind an element of {element}, and pointers lead to whole "
                         "elements")
    if not emulated:
        return Place(start, element.kiln, (count,), (1,), current_device()), start, count
    if not known:
        raise TypeError(f"argument {name}: {type(x).__name__} has an address alone, and the emulator needs the memory: untyped_storage()")
    return _on_host(start, count, element), start, count


def _on_host(address: int, count: int, element: dtype):
    numpy = sys.modules["numpy"]
    words = numpy.dtype(getattr(numpy, str(element.kiln).replace("bool", "bool_"), f"uint{element.primitive_bitwidth}"))
    return numpy.frombuffer((ctypes.c_char * (count * words.itemsize)).from_address(address) if count else b"", words)
