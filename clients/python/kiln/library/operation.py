# SPDX-License-Identifier: Apache-2.0
"""A function of the library: checked, planned, launched, and registered with torch.

A call goes: ``Operation.__call__`` (numpy here, torch to the registered operator, which torch.compile and graphs see) → ``run`` → a plan,
found by shapes and dtypes or made by ``plan`` → the kernel. ``check`` alone decides what the results are, for symbolic shapes too. A call with
tensors of a GPU that is like an earlier one is launched by the extension at once (``kiln._runtime.Calls``), unless torch has to see it."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass

from .. import target as targets
from ..language.dtypes import as_dtype
from ..remote import _options, emulation_asked
from .bits import STAND_INS, Bits
from .checks import Spec, is_torch, spec_of
from .plans import Plan, kernel_of

OPERATIONS: dict = {}
_MOST = 4096  # plans that an operation remembers
_KINDS = {"int": int, "float": (int, float), "bool": bool, "str": str}


@dataclass(frozen=True)
class Parameter:
    """One argument: "Tensor", "int", "float", "bool", "str", or "ScalarType" for a dtype."""

    kind: str
    optional: bool
    name: str


def parse(schema: str) -> tuple[str, tuple[Parameter, ...]]:
    """(name, parameters) of "name(Tensor x, float eps) -> Tensor"."""
    name, inside = re.fullmatch(r"(\w+)\((.*)\) -> .*", schema).groups()
    found = (re.fullmatch(r"(\w+)(\??) (\w+)", part).groups() for part in inside.split(", "))
    return name, tuple(Parameter(kind, optional == "?", word) for kind, optional, word in found)


class Operation:
    """``schema``: as torch.library has it. ``check(*arguments)`` refuses arguments that do not fit and returns the Results;
    ``plan(*arguments, target)`` returns the Plan; both see Specs in place of tensors. ``backward(context, *gradients)`` with
    ``save(context, inputs, output)`` are torch's; without them, gradients are refused, saying ``instead``."""

    def __init__(self, schema: str, check, plan, *, save=None, backward=None, instead=""):
        self.schema, self.check, self.plan, self.save, self.backward = schema, check, plan, save, backward
        self.name, self.parameters = parse(schema)
        self.instead = instead or ("compute this part with torch's own operators where a gradient is needed, or call it under "
                                   "torch.no_grad()")
        self.registered, self.tensor_type, self.torch_dtypes, self.torch = None, (), {}, None  # torch's, once torch is there
        self.calls = None  # a kiln._runtime.Calls, where torch has what it needs
        self._dtypes = tuple(i for i, parameter in enumerate(self.parameters) if parameter.kind == "ScalarType")
        self._ready: dict = {}
        OPERATIONS[self.name] = self

    def __call__(self, *arguments):
        if self.torch is not None and not self.torch.compiler.is_compiling() and self.calls is not None:
            made = self.calls.called(self._with_dtypes(arguments))
            if made is not NotImplemented:
                return made
        self._check_kinds(arguments)
        if isinstance(arguments[0], self.tensor_type):
            return self.registered(*self._for_torch(arguments))
        return self.run(*arguments)

    def _with_dtypes(self, arguments):
        """The same, dtypes that are given by name as torch's."""
        for index in self._dtypes:
            if isinstance(arguments[index], str) and arguments[index] in self.torch_dtypes:
                arguments = (*arguments[:index], self.torch_dtypes[arguments[index]], *arguments[index + 1 :])
        return arguments

    def _for_torch(self, arguments):
        """The same, refused here where torch's dispatcher would not name them; dtypes as torch's."""
        made = []
        for parameter, value in zip(self.parameters, arguments):
            if parameter.kind == "Tensor" and value is not None and not isinstance(value, self.tensor_type):
                raise TypeError(f"{self.name}: {parameter.name} is {type(value).__name__}, while {self.parameters[0].name} is a tensor of "
                                f"torch; pass "
                                "tensors of one kind")
            if parameter.kind == "ScalarType" and isinstance(value, str):
                if value not in self.torch_dtypes:
                    raise TypeError(f"{self.name}: {parameter.name} is {value!r}; use a dtype of torch, or one of "
                                    f"{', '.join(self.torch_dtypes)}")
                value = self.torch_dtypes[value]
            made.append(value)
        return made

    def _check_kinds(self, arguments):
        for parameter, value in zip(self.parameters, arguments):
            if value is None and parameter.optional:
                continue
            if parameter.kind == "Tensor":
                if not isinstance(value, self.tensor_type) and not hasattr(value, "shape"):
                    what = "None" if value is None else type(value).__name__
                    raise TypeError(f"{self.name}: {parameter.name} is {what}; pass a tensor of torch, a numpy array or kiln.library.Bits")
                continue
            wanted = _KINDS.get(parameter.kind)
            if wanted is not None and not isinstance(value, wanted) and not hasattr(value, "node"):  # a symbolic number of torch has a node
                raise TypeError(f"{self.name}: {parameter.name} is {type(value).__name__}; pass {parameter.kind}")

    def run(self, *arguments):
        """Launches; arguments as ``__call__`` takes them, of one kind."""
        if self.calls is not None:
            made = self.calls.launched(arguments)
            if made is not NotImplemented:
                return made
        target = self._target(arguments)
        key = (target, *[_signature(argument) for argument in arguments])
        ready = self._ready.get(key)
        if ready is None:
            if len(self._ready) >= _MOST:
                self._ready.clear()
            ready = self._ready[key] = self._prepare(arguments, target)
        made = ready(arguments)
        if self.calls is not None:
            ready.keep(self.calls, arguments, target)
        return made

    def specs(self, arguments) -> list:
        """The arguments, as ``check`` and ``plan`` see them."""
        made = []
        for parameter, value in zip(self.parameters, arguments):
            if parameter.kind == "Tensor" and value is not None:
                value = spec_of(value, f"{self.name}: {parameter.name}")
            elif parameter.kind == "ScalarType" and value is not None:
                value = as_dtype(value)
            made.append(value)
        return made

    def planned(self, arguments, target: str) -> Plan:
        """The plan for these arguments, tensors or Specs."""
        specs = self.specs(arguments)
        results = self.check(*specs)
        if all(0 in result.shape for result in results):
            return Plan(None, (), results, fill=0.0)
        return self.plan(*specs, target=target)

    def _prepare(self, arguments, target: str):
        self._same_device(arguments)
        plan = self.planned(arguments, target)
        return _Ready(plan, None if plan.program is None else kernel_of(plan, target))

    def _same_device(self, arguments) -> None:
        tensors = [(p.name, v) for p, v in zip(self.parameters, arguments) if p.kind == "Tensor" and v is not None]
        if not is_torch(tensors[0][1]):
            strange = next((name for name, value in tensors if is_torch(value)), None)
            if strange is not None:
                raise TypeError(f"{self.name}: {strange} is a tensor of torch, while {tensors[0][0]} is none; pass tensors of one kind")
            return
        first, device = tensors[0][0], tensors[0][1].device
        for name, value in tensors[1:]:
            if value.device != device:
                raise ValueError(f"{self.name}: {name} is on {value.device} and {first} on {device}; move {name} with .to({first}.device)")

    def _target(self, arguments) -> str:
        """What the call is compiled for: of tensors on a GPU their own, else as kiln.compile finds it."""
        first = arguments[0]
        on_torch = is_torch(first)
        if on_torch and first.device.type == "cuda" and "KILN_TARGET" not in os.environ:
            found = targets.device_target(first.device.index)
            if found is not None:
                return found
        target = targets.runnable(None, _options.get() is not None and emulation_asked(arguments))
        if on_torch and first.device.type == "cpu" and not target.startswith("emu:"):
            raise ValueError(f"{self.name}: {self.parameters[0].name} is on the CPU; move it to the GPU with .cuda(), or emulate: call "
                             f"inside "
                             "`with kiln.emulation():`")
        return target


def _signature(value):
    """The values that a plan depends on."""
    if is_torch(value):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, Bits):
        return value.dtype, value.shape, value.array.strides
    if hasattr(value, "__array_interface__"):
        return value.dtype, value.shape, value.strides
    return type(value), value


class _Ready:
    """A plan with its kernel."""

    __slots__ = ("plan", "kernel", "how")

    def __init__(self, plan: Plan, kernel):
        self.plan, self.kernel = plan, kernel
        self.how = None  # what Calls.keep takes beside the arguments; (): there is no such thing

    def __call__(self, arguments):
        on_torch = is_torch(arguments[0])
        view, finish, fill = (_torch_view, _torch_finish, _torch_fill) if on_torch else (_numpy_view, _numpy_finish, _numpy_fill)
        if self.kernel is None:
            made = [fill(result, self.plan.fill, arguments[0]) for result in self.plan.results]
        else:
            outputs = self.kernel(*[view(arguments[v.index], v) for v in self.plan.inputs])
            made = [finish(o, r) for o, r in zip(outputs if isinstance(outputs, list) else [outputs], self.plan.results)]
        return made[0] if len(made) == 1 else tuple(made)

    def keep(self, calls, arguments, target: str) -> None:
        """Has ``calls`` make the next calls with arguments like these."""
        if self.how is None:
            self.how = _how(self.plan, self.kernel, arguments, target)
        if self.how:
            calls.keep(arguments, *self.how)


def _how(plan: Plan, kernel, arguments, target: str) -> tuple:
    """(the kernel as the extension holds it, its inputs, its outputs) as Calls.keep takes them. Empty where there is more to do than to launch:
    results are filled, tensors are copied first, the kernel writes more than the results, or is not for this device."""
    device = arguments[0].device if is_torch(arguments[0]) else None
    if device is None or device.type != "cuda" or kernel is None or targets.device_target(device.index) != target:
        return ()
    if any(not _is_taken_as_it_is(arguments[view.index], view) for view in plan.inputs):
        return ()
    loaded = kernel.loaded(device.index)
    shapes = loaded.output_shapes(*[_torch_view(arguments[v.index], v) for v in plan.inputs])
    if len(shapes) != len(plan.results):
        return ()
    outputs = []
    for result, (_, shape, _) in zip(plan.results, shapes):
        dtype = as_dtype(result.dtype)
        if dtype.bits < 8 or math.prod(result.shape) != math.prod(shape):
            return ()
        outputs.append((tuple(result.shape), {"dtype": dtype.as_torch(), "device": device}, shape))
    return loaded, tuple((view.index, tuple(view.shape)) for view in plan.inputs), tuple(outputs)


def _is_taken_as_it_is(tensor, view) -> bool:
    """Whether the view is of the tensor's own memory, whose elements are dense."""
    if view.dtype and tensor.dtype != as_dtype(view.dtype).as_torch():
        return False
    return view.first or (tensor.mT if view.transposed else tensor).is_contiguous()


def _torch_view(tensor, view):
    if view.first:
        return tensor.as_strided((1,) * len(view.shape), (1,) * len(view.shape))
    if view.transposed:
        tensor = tensor.mT
    if view.dtype:
        tensor = tensor.to(as_dtype(view.dtype).as_torch())
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor if tensor.shape == view.shape else tensor.view(view.shape)


def _torch_finish(tensor, result):
    return tensor if tensor.shape == result.shape else tensor.view(result.shape)


def _torch_fill(result, value, like):
    return like.new_full(result.shape, value, dtype=as_dtype(result.dtype).as_torch())


def _numpy_view(value, view):
    import numpy

    array = value.array if isinstance(value, Bits) else value
    if view.first:
        return array.reshape(-1)[:1].reshape((1,) * len(view.shape))
    if view.transposed:
        array = array.swapaxes(-1, -2)
    if view.dtype and array.dtype != view.dtype:
        array = array.astype(view.dtype)
    stand_in = STAND_INS.get(array.dtype.name)
    array = numpy.ascontiguousarray(array if stand_in is None else array.view(stand_in))
    return array.reshape(view.shape)


def _numpy_finish(value, result):
    import numpy

    array = numpy.asarray(value).reshape(result.shape)
    stand_in = STAND_INS.get(result.dtype)
    return array if stand_in is None else Bits(array.view(stand_in), result.dtype)


def _numpy_fill(result, value, like):
    import numpy

    stand_in = STAND_INS.get(result.dtype)
    if stand_in is None:
        return numpy.full(result.shape, value, result.dtype)
    return Bits.of(numpy.full(result.shape, value, numpy.float32), result.dtype)


def plan(function: str, *arguments, target: str | None = None) -> Plan:
    """The Plan of a call: ``.program.trace()`` is the program that serves it, ``.options`` what it is compiled with, ``.results`` what it
    returns.

    ``function``: the name of an operator. ``arguments``: all of its arguments, in its order, a Spec in place of each tensor, so nothing has
    to exist. ``target``: as kiln.compile's. TypeError and ValueError: as the function itself, and for another number of arguments or an
    unknown name."""
    operation = OPERATIONS.get(function)
    if operation is None:
        raise ValueError(f"plan: no function is called {function!r}; there are {', '.join(sorted(OPERATIONS))}")
    if len(arguments) != len(operation.parameters):
        raise TypeError(f"plan: {operation.schema} takes {len(operation.parameters)} arguments, not {len(arguments)}")
    operation._check_kinds(arguments)
    return operation.planned(arguments, targets.resolve(target))
