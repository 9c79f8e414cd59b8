# SPDX-License-Identifier: Apache-2.0
"""Kernels on a device of the daemon's host, the emulator above all: tensors of this host travel there and back.

``with kiln.emulation():`` emulates the kernels of functions whose target nobody named. ``kiln.emulation(check=True)`` also has the emulator look
for races, accesses out of bounds, missing waits and the like in all emulated kernels that are called inside; what it finds is raised as a
KernelFault that names the statements of the program."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import re
from dataclasses import dataclass

from . import _proto
from .errors import CompileError, KernelFault
from .language.dtypes import DType, as_dtype

PIECE = 1 << 20  # bytes of data in one message

# numpy lacks these types: arrays of the other hold their bits.
_STAND_INS = {"bfloat16": "uint16", "tfloat32": "float32", "int4": "int8", "uint4": "uint8", "float4_e2m1fn": "uint8",
              **{name: "uint8" for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")}}

_options = contextvars.ContextVar("kiln.emulation", default=None)  # None: outside of it


@contextlib.contextmanager
def emulation(check: bool = False, seed: int = 0, timeout: float | None = None):
    """Inside, kernels whose target names no architecture are compiled for the emulator, unless they are called with tensors of a GPU; and this is
    how kernels for ``emu:`` targets run. ``check``: look for what a program does wrong, several times slower. ``seed``: of the
    order in which threads run; with an even one asynchronous copies land as late as they may, with an odd one at once. ``timeout``:
    seconds that a run may take, at most what the daemon allows."""
    token = _options.set({"check": check, "seed": seed, "timeout": timeout})
    try:
        yield
    finally:
        _options.reset(token)


def emulation_asked(arguments=()) -> bool:
    """Whether a call with these arguments is inside ``emulation`` and has no tensor of a GPU."""
    return _options.get() is not None and not any(_on_gpu(argument) for argument in arguments)


def _on_gpu(value) -> bool:
    device = getattr(value, "device", None)
    return hasattr(value, "__cuda_array_interface__") or getattr(device, "type", "cpu") not in ("cpu", "meta")


@dataclass(eq=False)
class Storage:
    """Bytes of this process that several tensors lie in."""

    address: int
    bytes: int


@dataclass
class HostTensor:
    """A tensor in this process's memory. ``strides`` in elements, None: row-major. ``storage``: what it shares with others; None: its bytes
    travel as its own."""

    dtype: DType
    shape: tuple
    strides: tuple | None
    address: int
    owner: object
    writable: bool = True
    storage: Storage | None = None

    def span(self) -> tuple[int, int]:
        """(address of the lowest byte, bytes up to the highest)."""
        size = max(self.dtype.bits // 8, 1)
        if 0 in self.shape:
            return self.address, 0
        steps = self.strides or _row_major(self.shape)
        reach = [(extent - 1) * step for extent, step in zip(self.shape, steps)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        return self.address + low * size, (high - low + 1) * size

    def home(self) -> tuple[int, int]:
        """(address of the first byte, bytes) of what travels for it."""
        return self.span() if self.storage is None else (self.storage.address, self.storage.bytes)

    def view(self, memory=None):
        """Its elements as a numpy array, in their place or in bytes like those of ``home``."""
        import numpy

        low, count = self.home()
        size = max(self.dtype.bits // 8, 1)
        held = (ctypes.c_char * count).from_address(low) if memory is None else memory
        steps = [step * size for step in self.strides or _row_major(self.shape)]
        return numpy.ndarray(self.shape, f"V{size}", held, self.address - low if count else 0, steps)


def _share_memory(a: HostTensor, b: HostTensor) -> bool:
    import numpy

    try:
        return numpy.shares_memory(a.view(), b.view(), max_work=1 << 16)
    except RuntimeError:  # too hard to say
        return False


def _row_major(shape) -> list:
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return steps[::-1]


def host_tensor(value, expected: DType, name: str) -> HostTensor:
    """``value`` (numpy, torch on the CPU, DLPack) for a parameter of type ``expected``."""
    if hasattr(value, "data_ptr") and hasattr(value, "stride"):
        if value.device.type != "cpu":
            raise ValueError(f"{name} is on {value.device}; the emulator takes tensors of the host: pass .cpu()")
        dtype = as_dtype(value.dtype)
        if dtype == "float4_e2m1fnx2":  # a byte of two elements, as numpy gives it
            dtype = as_dtype("uint8")
        return HostTensor(dtype, tuple(value.shape), tuple(value.stride()), value.data_ptr(), value)
    import numpy

    if not hasattr(value, "__array_interface__"):
        if not hasattr(value, "__dlpack__"):
            raise ValueError(f"{name} is expected to be a tensor (torch, numpy or DLPack), not {type(value).__name__}")
        value = numpy.from_dlpack(value)
    array = value if isinstance(value, numpy.ndarray) else numpy.asarray(value)
    stand_in = _STAND_INS.get(str(expected), str(expected))
    if not array.dtype.isnative:
        raise ValueError(f"{name}: an array in native byte order is needed")
    stands_in = array.dtype.name == stand_in and expected.bits >= 8  # bytes hold two elements of four bits
    dtype = expected if stands_in else as_dtype(array.dtype.name)
    if any(s % array.itemsize for s in array.strides):
        raise ValueError(f"{name}: its strides are no multiples of its element size")
    strides = None if array.flags.c_contiguous else tuple(s // array.itemsize for s in array.strides)
    return HostTensor(dtype, array.shape, strides, array.__array_interface__["data"][0], array, array.flags.writeable)


def share(tensors, pairs) -> None:
    """Gives tensors of which some overlap, as the pairs of their positions say, the storages that they share."""
    groups = [{i} for i in range(len(tensors))]
    for a, b in pairs:
        if groups[a] is not groups[b]:
            groups[a] |= groups[b]
            for i in groups[b]:
                groups[i] = groups[a]
    for i, group in enumerate(groups):
        if len(group) > 1 and min(group) == i:
            spans = [tensors[j].span() for j in group]
            low = min(first for first, _ in spans)
            storage = Storage(low, max(first + size for first, size in spans) - low)
            for j in group:
                tensors[j].storage = storage


def _signed(integer: int) -> int:
    """One of 64 bits without a sign as the number with a sign that has its bits."""
    return integer - (1 << 64) if 1 << 63 <= integer < 1 << 64 else integer


def describe(arguments) -> tuple[list, list]:
    """(a kiln.v1.RunArgument for each, the bytes that follow)."""
    pb = _proto.messages()
    messages, payloads, known = [], [], {}
    for number, argument in enumerate(arguments, 1):
        if argument is None:
            messages.append(pb.RunArgument())
            continue
        if not isinstance(argument, HostTensor):
            messages.append(pb.RunArgument(real=argument) if isinstance(argument, float) else pb.RunArgument(integer=_signed(int(argument))))
            continue
        low, size = argument.home()
        tensor = pb.RunTensor(dtype=pb.enums["DType"].values_by_name[argument.dtype.stored.wire].number, shape=argument.shape,
                              strides=argument.strides or (), offset=argument.address - low)
        first = number if argument.storage is None else known.setdefault(argument.storage, number)
        if first == number:
            tensor.bytes = size
            payloads.append((ctypes.c_char * size).from_address(low) if size else b"")
        else:
            tensor.storage = first
        messages.append(pb.RunArgument(tensor=tensor))
    return messages, payloads


def requests(start, payloads):
    """The messages of one Run."""
    pb = _proto.messages()
    yield pb.RunRequest(start=start)
    for payload in payloads:
        view = memoryview(payload).cast("B")
        for first in range(0, len(view), PIECE):
            yield pb.RunRequest(data=bytes(view[first : first + PIECE]))


def collect(replies) -> tuple:
    """(kiln.v1.RunResult, the bytes of each output: one and the same of those that share them)."""
    result, outputs, filled = None, [], 0
    for reply in replies:
        if reply.WhichOneof("part") == "result":
            result = reply.result
            outputs = [bytearray(o.tensor.bytes) for o in result.outputs]
            continue
        data, at = memoryview(reply.data), 0
        while at < len(data):
            current = next(o for o in range(len(outputs)) if filled < sum(len(x) for x in outputs[: o + 1]))
            begin = filled - sum(len(x) for x in outputs[:current])
            count = min(len(outputs[current]) - begin, len(data) - at)
            outputs[current][begin : begin + count] = data[at : at + count]
            at, filled = at + count, filled + count
    if result is not None:
        outputs = [outputs[o.tensor.storage - 1] if o.tensor.storage else content for o, content in zip(result.outputs, outputs)]
    return result, outputs


def _refusal(message: str) -> ValueError:
    """Of arguments. As the extension's, it has ``alignment`` where a compile for other addresses takes them: the daemon says so in words."""
    refusal = ValueError(message)
    if asked := re.search(r"compile with pointer_alignment = (\d+)", message):
        refusal.alignment = int(asked[1])
    return refusal


class RemoteKernel:
    """What a Kernel for an ``emu:`` target launches. ``run(arguments, **options)`` asks the daemon."""

    def __init__(self, name: str, target: str, launch, outputs, run):
        self.name, self.target, self.params, self.outputs, self._run = name, target, launch.params, list(outputs), run
        names = {d.wire: d for d in DType._known.values() if d.wire}
        self.dtypes = [names[_proto.messages().enum_name("DType", p.dtype)] for p in self.params]

    def __call__(self, *args, stream=None):
        places = [i for i in range(len(self.params)) if len(args) == len(self.params) or i not in self.outputs]
        if len(args) != len(places):
            raise ValueError(f"{self.name}: num_args should be {len(self.params) - len(self.outputs)} ({len(self.params)} with the "
                             f"outputs), but got {len(args)}")
        arguments = [self._argument(i, value) for i, value in zip(places, args)]
        given = dict(zip(places, arguments))
        self._share(given)
        self._check_alignment(given)
        result, data = self._ask(arguments)
        made = []
        for output, content in zip(result.outputs, data):
            if output.param in given:
                tensor = given[output.param]
                tensor.view()[...] = tensor.view(content)
            else:
                made.append(self._array(output, content, args))
        return None if not made else made[0] if len(made) == 1 else made

    def _share(self, given):
        """What a kernel writes overlaps nothing else it is given but for what the program lets overlap, which travels as one: on a GPU
        nobody checks, here there is time."""
        tensors = [(self.params[i], a) for i, a in given.items() if isinstance(a, HostTensor)]
        pairs = []
        for i, (param, tensor) in enumerate(tensors):
            for j, (other, another) in enumerate(tensors[:i]):
                if not (param.written or other.written) or not _share_memory(tensor, another):
                    continue
                if not (param.may_alias and other.may_alias):
                    raise ValueError(f"{self.name}: {other.name} and {param.name} overlap, and the kernel writes "
                                     f"{param.name if param.written else other.name}; pass a copy of one of them, or let both overlap in "
                                     "the program (T.annotate_restrict_buffers)")
                pairs.append((j, i))
        share([tensor for _, tensor in tensors], pairs)

    def _check_alignment(self, given):
        """Tensors that share a storage keep their distance, which may be less than the kernel was compiled for."""
        shared = [(self.params[i], a) for i, a in given.items() if isinstance(a, HostTensor) and a.storage is not None]
        places = [tensor.address - tensor.storage.address for _, tensor in shared]
        if all(place % max(param.alignment, 1) == 0 for place, (param, _) in zip(places, shared)):
            return
        common = functools.reduce(lambda a, b: a | b, places)
        refusal = ValueError(f"{self.name}: the tensors that overlap are {common & -common} bytes apart, and the kernel was compiled for "
                             f"addresses that are multiples of {max(param.alignment for param, _ in shared)}")
        refusal.alignment = common & -common
        raise refusal

    def _ask(self, arguments):
        options = {name: value for name, value in (_options.get() or {}).items() if value is not None}
        try:
            result, data = self._run(arguments, **options)
        except CompileError as refusal:
            if refusal.code == "INVALID_ARGUMENT" and not refusal.diagnostics:
                raise _refusal(str(refusal)) from None
            raise
        if result.faults:
            raise KernelFault(self.name, self.target, result.faults, options.get("seed", 0))
        return result, data

    def _argument(self, index: int, value):
        param = self.params[index]
        where = f"{self.name}.{param.name}"
        if not param.tensor:
            number = value.item() if hasattr(value, "item") else value
            if not isinstance(number, (bool, int, float)):
                raise ValueError(f"{where} is expected to be a number, not {type(value).__name__}")
            dtype = self.dtypes[index]
            if isinstance(number, int) and not dtype.is_float and not -(1 << 63) <= number < 1 << (64 if dtype == "uint64" else 63):
                raise ValueError(f"{where}: {number} does not fit {dtype}")
            return float(number) if dtype.is_float else number
        if value is None:  # the daemon says whether it may be absent
            return None
        tensor = host_tensor(value, self.dtypes[index], where)
        if param.written and not tensor.writable:
            raise ValueError(f"{where}: the kernel writes this tensor, but it is read-only")
        return tensor

    def _array(self, output, content, args):
        """As the inputs are: a torch tensor where one of them is, else a numpy array."""
        import numpy

        name = str(self.dtypes[output.param])
        array = numpy.frombuffer(content, dtype=_STAND_INS.get(name, name))
        shape = [int(extent) for extent in output.tensor.shape]
        if self.dtypes[output.param].bits < 8 and shape:
            shape[-1] = (shape[-1] + 1) // 2  # two elements to a byte
        array = array.reshape(tuple(shape))
        if not any(hasattr(a, "data_ptr") for a in args):
            return array
        import torch

        return torch.from_numpy(array.view(numpy.uint8)).view(self.dtypes[output.param].as_torch()).reshape(tuple(shape))
