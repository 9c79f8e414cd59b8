# SPDX-License-Identifier: Apache-2.0
"""``tle.raw``: functions in the languages of other compilers, which all threads of a program's block call together. kilnd compiles them for callers
who have the scope ``raw``."""

from __future__ import annotations

import os
import pathlib

from ...language import program as ir
from .. import types as ty
from ..build import describe, is_number
from ..builtin import Builtin, no_effect, unwrapped
from ..errors import Refusal
from ..graph import Value
from .buffers import buffered_tensor, leaves_of
from .sources import LANGUAGES, text_of

_INSTEAD = {
    "nvshmem": "exchange data between devices by torch.distributed, between kernels",
}
_LANGUAGES = ", ".join(LANGUAGES)


class Foreign:
    """What ``@dialect(name=…)`` makes of a function. Its text is read anew where its file has changed."""

    def __init__(self, stub, name: str, file, source, symbol: str, defines: dict, refusal: str):
        self.function, self.dialect, self.symbol, self.defines = stub, name, symbol, defines
        self.__name__ = getattr(stub, "__name__", name)
        self.file, self.refusal = file, refusal
        self._source, self._seen = source, None

    def source(self) -> str:
        """The text that the program gives."""
        if self.file is not None:
            try:
                state = os.stat(self.file)
                seen = (state.st_mtime_ns, state.st_size)
                if seen != self._seen:
                    text = pathlib.Path(self.file).read_text()
                    self._source, self._seen = self._source if text == self._source else text, seen
            except (OSError, UnicodeDecodeError) as problem:
                raise Refusal(f"the text of {self.__name__} cannot be read: {problem}") from None
        return self._source

    def get(self, name: str):
        """Launches look by it whether the text is still what their kernel was compiled with."""
        try:
            return self.source()
        except Refusal:
            return None

    __getitem__ = get

    def __repr__(self):
        return f"<the function {self.__name__} of the dialect {self.dialect!r}>"


def dialect(*, name: str, file=None, source=None, extern_func_name=None, compiler="clang", library=None, deferred=False, defines=None, target="bc",
            **others):
    """The decorator of a function in another language. ``name``: that language: llvm (LLVM's IR), ptx, cuda or mlir. Its text stands in ``file`` or
    is ``source``, and defines ``extern_func_name``, which is the decorated function's name unless it is given. ``defines``: macros of CUDA C++.
    Where kernels call the function it is compiled with them, so that ``deferred`` says nothing more."""
    if others:
        raise TypeError(f"tle.raw.dialect does not know {', '.join(others)}; it takes name, file, source, extern_func_name, compiler, library, "
                        "deferred, defines and target")
    if file is not None and source is not None:
        raise TypeError("tle.raw.dialect(file=…, source=…): the text is in a file, or it is given; name one of them")
    if not isinstance(deferred, bool):
        raise TypeError(f"tle.raw.dialect(deferred={deferred!r}): True or False is needed")
    refusal = _refusal(name, file is None and source is None, compiler, library, defines, target)

    def made(stub):
        symbol = extern_func_name or getattr(stub, "__name__", "")
        return Foreign(stub, name, None if file is None else os.fspath(file), source, symbol, dict(defines or {}), refusal)

    return made


def _refusal(name: str, has_no_text: bool, compiler, library, defines, target) -> str:
    """Why no kernel may call such a function; "" where it may."""
    if name not in LANGUAGES:
        return f"the dialect {name!r} is not part of Kiln, which knows {_LANGUAGES}: " + _INSTEAD.get(name, "write the function in one of these")
    if library is not None:
        instead = _INSTEAD.get(library, "define what it calls in its text")
        return f"library={library!r} is not part of Kiln, which links functions with nothing: {instead}"
    if has_no_text:
        return "it has no text: give it a file or a source (a body that builds MLIR by its Python bindings is not run)"
    if compiler != "clang":
        return f"compiler={compiler!r} is not part of Kiln, which compiles CUDA C++ by clang: leave compiler out"
    if defines and name != "cuda":
        return f"defines belong to CUDA C++, and a text of {name} has no macros: write the values into it"
    if target not in ("bc", None):
        return f"target={target!r} is not part of Kiln, which makes LLVM's IR of it for what the kernel is compiled for: leave target out"
    return ""


class Input:
    """``Input["memref<?xf32, 3>"]``, an annotation of such a function."""

    def __class_getitem__(cls, described: str):
        return described


class InOut(Input):
    """As Input, of what the function changes."""


def _is_list_of_values(x) -> bool:
    return isinstance(x, (list, tuple)) and bool(x) and not all(isinstance(unwrapped(i), int) for i in x)


def _call(b, func, args=(), output_indices=None, hint=""):
    """Calls the function. A pointer gives an address in global memory, a number its value; a block and a buffer of tle.gpu.alloc give five parts
    in shared memory: its address twice, where it begins behind that, its sizes and its strides, the latter three as integers of 64 bits.
    ``output_indices``: which arguments the call gives back as the function leaves them. Older programs write call(func, outputs, inputs)."""
    if not isinstance(func, Foreign):
        raise Refusal(f"it calls a function of tle.raw.dialect, not {describe(func)}")
    if func.refusal:
        raise Refusal(f"the function {func.__name__} of the dialect {func.dialect!r}: {func.refusal}")
    args = list(args) if isinstance(args, (list, tuple)) else [args]
    if _is_list_of_values(output_indices):
        outputs = list(range(len(args)))
        args += output_indices
    else:
        outputs = [unwrapped(i) for i in output_indices or ()]
    if hint:
        no_effect(b, f"tle.raw.call(hint={hint!r})", "where arguments lie follows from what they are; leave it out")
    given = [_argument(b, x) for x in args]
    for i in outputs:
        if not 0 <= i < len(given) or not isinstance(given[i], buffered_tensor) and not given[i].shape:
            raise Refusal(f"output {i} of {len(given)} arguments; an output is the place of a block or of a buffer among them, from 0 on")
    blocks = [i for i in outputs if isinstance(given[i], Value)]
    op = b.emit("tle.call", [leaf for x in given for leaf in leaves_of(x)], [(given[i].element, given[i].shape) for i in blocks], given=tuple(given),
                blocks=tuple(blocks), function=_function(b, func))
    results = {i: b.condition(result) if _is_of_bits(args[i]) else result for i, result in zip(blocks, op.results)}
    found = tuple(results.get(i, given[i]) for i in outputs)
    return None if not found else found[0] if len(found) == 1 else found


def _function(b, func: Foreign) -> ir.Function:
    source = func.source()
    b.sources.append((func, "text", source))
    return text_of(func, source, b.target)


def _is_of_bits(x) -> bool:
    """A block of bits, which memory has as bytes."""
    return isinstance(x, Value) and bool(x.shape) and x.element.is_bool()


def _argument(b, x):
    """A scalar, a block or a buffer."""
    if isinstance(x, buffered_tensor):
        return x
    x = b.constant(x) if is_number(x) else b.value(x, "an argument of tle.raw.call")
    if x.element.is_ptr() and x.shape:
        raise Refusal("a block of pointers as an argument of tle.raw.call; give the pointer to which it adds, and its offsets as numbers")
    return b.cast(x, ty.int8) if _is_of_bits(x) else x


def _named(package: str, name: str) -> Builtin:
    def call(b, func, args=(), output_indices=None, hint=""):
        try:
            return _call(b, func, args, output_indices, hint)
        except Refusal as problem:
            raise Refusal(f"{package}.{name}: {problem}") from None

    return Builtin(call, name, package)


call, call_smem = (_named("tle.raw", name) for name in ("call", "call_smem"))
called_from_tle = _named("tle", "call")
