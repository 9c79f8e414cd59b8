# SPDX-License-Identifier: Apache-2.0
"""``tle.raw``: functions in the languages of other compilers. A program may define them; a kernel that calls one is refused, for Kiln compiles no
text but its own modules."""

from __future__ import annotations

from ..builtin import Builtin
from ..build import describe
from ..errors import Refusal

_INSTEAD = {
    "cuda": "write what it computes in Triton's language, with buffers of tle.gpu.alloc for what threads exchange",
    "mlir": "write what it computes in Triton's language, with buffers of tle.gpu.alloc for what threads exchange",
    "nvshmem": "exchange data between devices by torch.distributed, between kernels",
}
_OTHERWISE = "write what it computes in Triton's language"


class Foreign:
    """What ``@dialect(name=…)`` makes of a function: a kernel may name it, and not call it."""

    def __init__(self, function, name: str):
        self.function, self.dialect = function, name
        self.__name__ = getattr(function, "__name__", name)


def dialect(*, name: str, **options):
    """The decorator of a function in another language. ``options``: how that would be compiled, which nothing here is."""
    return lambda function: Foreign(function, name)


class Input:
    """``Input["memref<?xf32, 3>"]``, an annotation of such a function."""

    def __class_getitem__(cls, described: str):
        return described


class InOut(Input):
    """As Input, of what the function changes."""


def _refused(package: str, name: str) -> Builtin:
    def call(b, func, *args, **kwargs):
        if isinstance(func, Foreign):
            what, instead = f"the function {func.__name__} of the dialect {func.dialect!r}", _INSTEAD.get(func.dialect, _OTHERWISE)
        else:
            what, instead = describe(func), _OTHERWISE
        raise Refusal(f"{package}.{name} of {what} is not part of Kiln, which compiles no source and no binary of another compiler: {instead}; a "
                      "text of PTX that takes elements is read by tl.inline_asm_elementwise")

    return Builtin(call, name, package)


call, call_smem = (_refused("tle.raw", name) for name in ("call", "call_smem"))
called_from_tle = _refused("tle", "call")
