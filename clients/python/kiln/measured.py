# SPDX-License-Identifier: Apache-2.0
"""Configurations that the daemon compiles and measures on its devices: what its Tune takes, and which of its devices stands for this process's
own."""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import dataclass

from . import _proto, remote
from . import target as targets
from .errors import CompileError, KilnError
from .language.dtypes import DType, as_dtype
from .profiler import TensorSupplyType

MODES = ("wait", "background", "model", "off")  # what a caller of Tune waits for


@dataclass(frozen=True)
class Recipe:
    """A tensor whose data the daemon makes up. ``fill``: "random" (small values), "zeros", or "range": random integers from ``low`` to below
    ``high``. ``strides`` in elements, none of them negative; None: row-major."""

    dtype: DType
    shape: tuple
    strides: tuple | None = None
    fill: str = "random"
    low: int = 0
    high: int = 0

    def bytes(self) -> int:
        """That its elements span."""
        if 0 in self.shape:
            return 0
        reach = math.prod(self.shape) if self.strides is None else 1 + sum((e - 1) * s for e, s in zip(self.shape, self.strides))
        return (reach * as_dtype(self.dtype).bits + 7) // 8


class InProcess(Exception):
    """Why the daemon cannot measure this."""


def describe(arguments) -> tuple[list, list]:
    """(a kiln.v1.TuneArgument for each, the bytes that follow)."""
    pb = _proto.messages()
    fills = {name.removeprefix("TUNE_FILL_").lower(): value.number for name, value in pb.enums["TuneFill"].values_by_name.items()}
    messages, payloads = [], []
    for argument in arguments:
        if isinstance(argument, Recipe):
            if argument.fill not in ("random", "zeros", "range"):
                raise ValueError(f"a recipe's fill is \"random\", \"zeros\" or \"range\", not {argument.fill!r}")
            dtype = pb.enums["DType"].values_by_name[as_dtype(argument.dtype).stored.wire].number
            tensor = pb.RunTensor(dtype=dtype, shape=argument.shape, strides=argument.strides or (), bytes=argument.bytes())
            messages.append(pb.TuneArgument(tensor=tensor, fill=fills[argument.fill], low=argument.low, high=argument.high))
            continue
        (described,), data = remote.describe([argument])
        message = pb.TuneArgument()
        if described.HasField("tensor"):
            message.tensor.CopyFrom(described.tensor)
        elif described.WhichOneof("kind") == "real":
            message.real = described.real
        else:
            message.integer = described.integer
        messages.append(message)
        payloads += data
    return messages, payloads


def start(mode: str, energy_candidates, **fields):
    """A kiln.v1.TuneStart."""
    if mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    pb = _proto.messages()
    message = pb.TuneStart(mode=pb.enums["TuneMode"].values_by_name[f"TUNE_{mode.upper()}"].number, **fields)
    if energy_candidates is not None:
        message.energy_candidates = energy_candidates
    return message


@dataclass(frozen=True)
class Chosen:
    """One of several programs: its kiln.v1.CompileReply, its number from 0, and the kiln.v1.TuneProgress that says why it is this one."""

    reply: object
    index: int
    tuned: object


def space(start, requests, labels):
    """A CompileRequest that leaves open which of these it is. What they share is said once."""
    pb = _proto.messages()
    first = requests[0] if requests else pb.CompileRequest()
    shared = pb.CompileRequest(module=first.module, target=first.target, options=first.options, priority=first.priority)
    found = pb.TuneSpace(start=start)
    for number, request in enumerate(requests):
        candidate = found.candidates.add(label=labels[number] if labels else "")
        if request.module != first.module:
            candidate.program.module = request.module
        if request.target != first.target:
            candidate.program.target = request.target
        if request.options != first.options:
            candidate.program.options.SetInParent()  # though all are as usual
            candidate.program.options.CopyFrom(request.options)
    shared.space = found.SerializeToString()
    return shared


def messages(start, requests, labels, payloads):
    """Those of one Tune."""
    pb = _proto.messages()
    yield pb.TuneRequest(start=start)
    for number, request in enumerate(requests):
        yield pb.TuneRequest(candidate=pb.TuneCandidate(program=request, label=labels[number] if labels else ""))
    for payload in payloads:
        view = memoryview(payload).cast("B")
        for first in range(0, len(view), remote.PIECE):
            yield pb.TuneRequest(data=bytes(view[first : first + remote.PIECE]))


def device_for(client, target: str, emulated: bool) -> str:
    """The daemon's device for a target of this process: the same GPU, or one of the same model. InProcess where it has none."""
    if target.startswith("emu:"):
        if not emulated:
            raise InProcess("which configuration is emulated fastest says nothing of a GPU")
        return target
    own = targets.device_name(targets.current_device())
    devices = [device for device in client.capabilities().devices if device.target == target and own in (None, device.description)]
    if not devices:
        raise InProcess(f"the daemon at {getattr(client, 'address', 'hand')} has no {own or target}")
    return devices[0].name


def recipes(func, kind: TensorSupplyType) -> list:
    """One for each parameter that is no output, with the values that ``kiln.profiler.supply`` gives, as far as a recipe can."""
    made = []
    for number, param in enumerate(func.params):
        if number in func.outputs:
            continue
        if param.buffer is None or not all(isinstance(extent, int) for extent in param.buffer.shape):
            raise InProcess(f"{func.name}.{param.name} is known at launch only")
        made.append(_recipe(param.buffer.dtype, tuple(param.buffer.shape), None, kind))
    return made


def _recipe(dtype, shape, strides, kind=TensorSupplyType.Auto) -> Recipe:
    if kind is TensorSupplyType.One:
        raise InProcess("no recipe gives ones")
    if kind is TensorSupplyType.Zero:
        return Recipe(dtype, shape, strides, "zeros")
    if not dtype.is_float and dtype.bits >= 8 and str(dtype) != "bool":
        return Recipe(dtype, shape, strides, "range", *((0, 3) if str(dtype).startswith("u") else (-2, 3)))
    return Recipe(dtype, shape, strides)


def given(values, func, exactly: bool) -> list:
    """Arguments from a call's. Tensors of floats become recipes unless the values shall be ``exactly`` these: what they hold seldom changes the
    time, and a record then serves calls with others. Integers may be indices."""
    params = [param for number, param in enumerate(func.params) if number not in func.outputs]
    if len(values) == len(func.params):
        params = func.params
    if len(values) != len(params):
        raise InProcess(f"{func.name} takes {len(params)} arguments, not {len(values)}")
    return [_given(value, param, f"{func.name}.{param.name}", exactly) for value, param in zip(values, params)]


def _given(value, param, name: str, exactly: bool):
    if param.buffer is None:
        number = value.item() if hasattr(value, "item") else value
        return float(number) if param.var.dtype.is_float else int(number)
    device = getattr(getattr(value, "device", None), "type", "cpu")
    if not exactly and param.buffer.dtype.is_float and hasattr(value, "stride"):
        return _recipe(as_dtype(value.dtype), tuple(value.shape), tuple(value.stride()))
    if device != "cpu":
        value = value.cpu()
    if hasattr(value, "__cuda_array_interface__"):
        raise InProcess(f"{name} is in the memory of a GPU, and no tensor of torch")
    tensor = remote.host_tensor(value, param.buffer.dtype, name)
    if not exactly and tensor.dtype.is_float and min(tensor.strides or (0,)) >= 0:
        return _recipe(tensor.dtype, tensor.shape, tensor.strides)
    return tensor


_said = False


def say_in_process(why) -> None:
    """One line, once."""
    global _said
    if not _said:
        _said = True
        logging.getLogger("kiln").warning("kiln: configurations are measured in this process, one after the other: %s", why)


def unavailable(failure: KilnError) -> bool:
    """Whether the daemon does not measure for this caller: it may not, or its runs may not have so large tensors."""
    if isinstance(failure, CompileError):
        older = failure.code == "UNIMPLEMENTED" and not failure.diagnostics
        return older or "--run-data" in str(failure)
    return str(failure).startswith(("PERMISSION_DENIED", "RESOURCE_EXHAUSTED"))


def progress_bar(name: str):
    """What draws on a terminal how far a tuning is; None where stderr is none."""
    if not sys.stderr.isatty():
        return None

    def draw(progress):
        if progress.ranked and not progress.compiled:
            print(f"\r\x1b[K{name}: the planner looks at {progress.ranked}/{progress.candidates}", end="", file=sys.stderr, flush=True)
            return
        done = progress.measured + progress.failed
        width = 24
        filled = width * done // max(progress.candidates, 1)
        best = f", best {progress.best_microseconds:.1f} us" if progress.best else ""
        print(f"\r\x1b[K{name} [{'#' * filled}{'.' * (width - filled)}] {done}/{progress.candidates}{best}, {progress.left_seconds:.0f} s left",
              end="", file=sys.stderr, flush=True)

    return draw


def end_bar(bar) -> None:
    """Clears its line."""
    if bar is not None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
