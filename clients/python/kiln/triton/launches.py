# SPDX-License-Identifier: Apache-2.0
"""Launches like earlier ones, which the extension makes at once (kiln._runtime.Launches): Python would take many times as long as a launch."""

from __future__ import annotations

import os
import sys
from types import FunctionType

from . import knobs
from . import types as ty
from .blocks import TensorDescriptor

_COMPILED_IN, _BY_VALUE, _BY_DIVISOR, _TYPED, _REFUSED = 1, 2, 4, 8, 16  # as in launch_arguments.h
_ARGUMENT, _VIEW, _SIZE = 0, 1, 2


def settings(function) -> tuple:
    """What launches depend on beside their arguments."""
    return os.environ.get("KILN_TARGET"), knobs.runtime.debug, function.debug


def of(function):
    """A kiln._runtime.Launches for the launches of a JITFunction; None where they cannot be told apart here: without a torch whose tensors say in C
    what they are, or with a parameter that takes any number of arguments."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return None
    if any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in function.signature.parameters.values()):
        return None
    from .._runtime import Launches

    parameters = tuple((name, _flags(function, name), *([function._defaults[name]] if name in function._defaults else []))
                       for name in function.arg_names)
    constants = (ty.dtype, type, FunctionType, type(function), torch.dtype)
    return Launches(parameters=parameters, tensors=(torch.Tensor, torch.nn.Parameter), constants=constants, descriptors=(TensorDescriptor,))


def _flags(function, name: str) -> int:
    if name in function.constant_names():
        return _COMPILED_IN
    known = function._classes[name]
    return (_BY_VALUE * known.by_value + _BY_DIVISOR * known.by_alignment + _TYPED * bool(known.asked)
            + _REFUSED * (known.element is not None))


def may_be_kept(kernel, overlapping: bool) -> bool:
    """Whether a launch like this one may go straight to the kernel: it runs on a GPU, allows for nothing that a launch must look at, and writes no
    messages."""
    return not (overlapping or kernel._messages is not None or kernel.refusal is not None or kernel.target.startswith("emu:")
                or kernel.kernel.takes_addresses)


def _parts(found):
    """Of an argument's class: whether the kernel takes it, for each of the argument's parts, in the order of launch_arguments.h."""
    if found is not None and isinstance(found[0], type):  # a tuple or a descriptor
        for part in found[1:]:
            yield from _parts(part)
    elif found is None or found[0] != "known":
        yield found is not None and found[0] not in ("=", "1")


def keep(launches, function, kernel, launch: tuple) -> None:
    """``launch``: (its arguments, its keywords, the classes of its arguments, how many sizes its grid has, the names that the kernel was made
    with). Of arguments that the extension does not read, as functions in tuples, it keeps nothing."""
    args, kwargs, classes, rank, used = launch
    taken = [taken for _, found in classes for taken in _parts(found)]
    places = [i for i, is_taken in enumerate(taken) if is_taken]
    sources = [(_ARGUMENT, place, 0) for place in places]
    sources += [(_VIEW, places[i], element.itemsize) for i, element in kernel._views]
    sources += [(_SIZE, i, 0) for i in range(rank)]
    device = next(_devices((*args, *kwargs.values())), None)
    if device is not None:
        launches.keep(args, kwargs, settings(function), kernel.kernel.loaded(device), kernel, tuple(sources), tuple(used), rank)


def _devices(values):
    """The devices of the tensors among arguments."""
    for x in values:
        if isinstance(x, sys.modules["torch"].Tensor):
            yield x.device.index
        elif isinstance(x, (tuple, list, TensorDescriptor)):
            yield from _devices((x.base,) if isinstance(x, TensorDescriptor) else x)
