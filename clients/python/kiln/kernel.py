# SPDX-License-Identifier: Apache-2.0
"""A compiled tile function: called with tensors it launches; it also tells what it is made of."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from . import _proto
from .addresses import Addresses
from .language.dtypes import DType
from .language.program import PrimFunc
from .remote import RemoteKernel

try:
    from ._runtime import Launcher
except ImportError:  # where kernels are compiled and not launched

    class Launcher:
        """The extension's type, which costs a launch less."""

        def __call__(self, *args, **kwargs):
            try:
                return self._launch(*args, **kwargs)
            except ValueError as refusal:
                return self._refused(refusal, args, kwargs)


def _load(artifact: bytes, device: int, name: str, by_address: bool):
    try:
        from . import _runtime
    except ImportError as problem:
        raise RuntimeError(
            f"the kernel is compiled but cannot be launched: the extension kiln._runtime cannot be imported ({problem}). It is part of the "
            "bundle; in a source tree build the target kiln_python"
        ) from problem
    return _runtime.load(artifact, device, name=name, by_address=by_address)


@dataclass(frozen=True)
class KernelParam:
    """One parameter. A run-time dimension is given by its expression; a scalar has the shape ()."""

    name: str
    dtype: DType
    shape: tuple
    output: bool = False


def _describe(param, output: bool) -> KernelParam:
    if param.buffer is None:
        return KernelParam(param.name, param.var.dtype, (), output)
    return KernelParam(param.name, param.buffer.dtype, param.buffer.shape, output)


def _name_parameters(launch, func: PrimFunc) -> None:
    """An artifact is shared by all programs that differ in names only; error texts show those of this one."""
    for message, param in zip(launch.params, func.params):
        message.name = param.name
    symbol = _proto.messages().enums["VarKind"].values_by_name["SYMBOL"].number
    symbols = [name for var, name in zip(func.module.vars, func.module.debug.var_names) if var.kind == symbol]
    for message, name in zip(launch.symbols, symbols):
        message.name = name


class Kernel(Launcher):
    """``kernel(*tensors)`` launches on the current stream of torch. Arguments: all parameters, or those that are not outputs; in the second
    form the outputs are allocated and returned, one bare, several as a list.

    numpy arrays are copied to the device and back; any object that speaks DLPack or the CUDA array interface is taken as it is. Where
    tensors start between the addresses that the program was compiled for (``a[1:]``), it is compiled once more for such tensors.

    A kernel for an ``emu:`` target takes tensors of the host (numpy, torch on the CPU) and runs in the daemon's emulator; ``kiln.emulation``
    says how, and has it look for races and the like."""

    def __init__(self, func: PrimFunc, reply, config: dict | None = None, ask=None, run=None, options: dict | None = None,
                 asked: dict | None = None, by_address: bool = False):
        """``ask(explain=None, **options)``: the reply for the same program with more compile options. ``run(arguments, options,
        **how)``: Client.run of it, likewise. ``options``: the more that ``reply`` was asked for with. ``asked``: the options beside those.
        ``by_address``: launches may pass tensors as addresses, and answer for what they overlap."""
        self.prim_func, self.reply, self.config, self._ask, self._run, self._options = func, reply, config, ask, run, options or {}
        self._asked, self.by_address = asked or {}, by_address
        self.artifact = reply.artifact
        _name_parameters(self.artifact.launch, func)
        self.latency = self.ref_latency = None
        self._loaded: dict = {}
        self._less_aligned: dict = {}
        self._lock, self._compiling = threading.Lock(), threading.Lock()
        self._launch = self._first_launch
        self._addresses = Addresses(func)
        if self.target.startswith("emu:"):
            self._launch = RemoteKernel(self.name, self.target, self.artifact.launch, self.out_idx, self._emulate)
        if self._addresses.needed:
            self._plain_launch, self._launch = self._launch, self._launch_with_addresses

    def __reduce__(self):
        """Pickled, a kernel takes its code along, and is launched elsewhere without a compile."""
        from .compiler import unpickled

        asked = {**self._asked, **self._options}
        return unpickled, (self.prim_func.for_target(self.target), self.reply.SerializeToString(), self.config, asked, self.by_address)

    def _emulate(self, arguments, **how):
        return self._run(arguments, self._options, **how)

    def _refused(self, refusal: ValueError, args: tuple, kwargs: dict):
        """What a call gives whose launch was refused: the result of a kernel that takes these tensors, where only their addresses were it."""
        alignment = getattr(refusal, "alignment", 0)
        if not alignment or "pointer_alignment" in self._options or self._ask is None:
            raise refusal
        return self.aligned_to(alignment)(*args, **kwargs)

    def aligned_to(self, alignment: int) -> "Kernel":
        """The same kernel for tensors whose addresses are multiples of that many bytes only."""
        with self._compiling:
            kernel = self._less_aligned.get(alignment)
            if kernel is None:
                options = {"pointer_alignment": alignment}
                kernel = Kernel(self.prim_func, self._ask(**options), self.config, self._ask, self._run, options, self._asked, self.by_address)
                self._less_aligned[alignment] = kernel
            return kernel

    def _launch_with_addresses(self, *args, **keywords):
        if self.target.startswith("emu:"):
            return self._plain_launch(*self._addresses.on_host(args), **keywords)
        index = _device_of(args)
        return (self._loaded.get(index) or self.loaded(index))(*self._addresses.on_device(args, index), **keywords)

    def _first_launch(self, *args, **keywords):
        """Loads for the device of the first tensor. While one device is used, later calls go straight to the extension."""
        index = _device_of(args)
        kernel = self.loaded(index)
        self._launch = kernel if len(self._loaded) == 1 and not _many_devices() else self._launch_by_device
        return kernel(*args, **keywords)

    def _launch_by_device(self, *args, **keywords):
        index = _device_of(args)
        return (self._loaded.get(index) or self.loaded(index))(*args, **keywords)

    def loaded(self, device: int = 0):
        """The kernel as ``kiln._runtime`` holds it on a device: ``params``, ``resources``, ``measure`` …"""
        with self._lock:
            if device not in self._loaded:
                self._loaded[device] = _load(self.artifact.SerializeToString(), device, self.prim_func.name, self.by_address)
            return self._loaded[device]

    @property
    def takes_addresses(self) -> bool:
        """Whether a launch reads addresses out of its arguments."""
        return self._addresses.needed

    @property
    def name(self) -> str:
        """The tile function's."""
        return self.prim_func.name

    @property
    def target(self) -> str:
        """What it was compiled for, as "cuda:sm_90a"."""
        return self.artifact.target

    @property
    def key(self) -> str:
        """What the result is stored under, in hexadecimal."""
        return self.reply.key.hex()

    @property
    def origin(self) -> str:
        """Where the artifact came from: MEMORY, DISK, BUNDLE, CLUSTER, COMPILED or JOINED."""
        return _proto.messages().enum_name("Origin", self.reply.origin)

    @property
    def durable(self) -> bool:
        """Whether the daemon's store has it: then it survives the daemon's end. ``Client.compile(…, durable=True)`` waits for that."""
        return self.reply.durable

    @property
    def report(self):
        """kiln.v1.Report: decisions, shared memory, registers."""
        return self.artifact.report

    @property
    def params(self) -> list[KernelParam]:
        """What calls may pass: the parameters, in order."""
        given = self.prim_func.params[: self.prim_func.given]
        return [_describe(p, i in self.prim_func.outputs) for i, p in enumerate(given)]

    @property
    def out_idx(self) -> list[int]:
        """Which parameters are outputs, from 0 on."""
        return list(self.prim_func.outputs)

    def get_kernel_source(self) -> str:
        """PTX as text; for AMD the assembly of the code object, which the daemon is asked for."""
        if _proto.messages().enum_name("CodeKind", self.artifact.kind) == "PTX":
            return self.artifact.code.decode()
        return self._assembly()

    def _assembly(self) -> str:
        reply = self._ask(explain={"assembly": True}, **self._options)
        return "\n".join(dump.text for dump in reply.dumps)

    kernel_source = property(get_kernel_source)

    def get_host_source(self) -> str:
        """A comment: nothing is generated for the host."""
        return "// Kiln launches through kiln._runtime; there is no generated host code.\n"

    host_source = property(get_host_source)

    def show_source(self, which: str = "kernel") -> None:
        """Prints ``get_host_source`` ("host") or ``get_kernel_source``."""
        print(self.get_host_source() if which == "host" else self.get_kernel_source())

    print_source_code = show_source

    def show_ptx(self) -> None:
        """Prints ``get_kernel_source``."""
        print(self.get_kernel_source())

    def export_sources(self, kernel_path=None, host_path=None) -> None:
        """Writes the sources to files; None: not that one."""
        for path, text in ((kernel_path, self.get_kernel_source), (host_path, self.get_host_source)):
            if path is not None:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text())

    def export_ptx(self, path) -> None:
        """Writes ``get_kernel_source`` to a file."""
        self.export_sources(kernel_path=path)

    def export_library(self, path) -> None:
        """The artifact as bytes: what kiln._runtime.load takes."""
        with open(path, "wb") as file:
            file.write(self.artifact.SerializeToString())

    def get_profiler(self, tensor_supply_type=None):
        """A Profiler of it. ``tensor_supply_type``: how its inputs are made up, Auto by default."""
        from .profiler import Profiler, TensorSupplyType

        return Profiler(self, tensor_supply_type or TensorSupplyType.Auto)

    def run_once(self, func=None) -> None:
        """One call on made-up inputs, of ``func`` if it is given. Needs torch and a GPU."""
        self.get_profiler().run_once(func)

    def update_tuner_result(self, latency, config, ref_latency):
        """Notes what tuning found, in milliseconds; returns the kernel."""
        self.latency, self.config, self.ref_latency = latency, config, ref_latency
        return self

    def get_tuner_result(self):
        """(milliseconds, configuration, milliseconds of the reference); None where nothing was measured."""
        return self.latency, self.config, self.ref_latency

    def _resource(self, name: str):
        values = [getattr(r, name) for r in self.report.kernels if r.HasField(name)]
        return max(values) if values else None

    n_regs = property(lambda self: self._resource("registers"), doc="Registers of a thread, the most of its launches; None: not known.")
    n_spills = property(lambda self: self._resource("spill_bytes"), doc="Bytes that a thread spills, likewise.")

    @property
    def resource_usage(self) -> dict:
        """By entry point: registers and spill bytes of a thread, shared bytes of a block; 0 where the compiler does not know."""
        return {r.entry: {name: getattr(r, name) for name in ("registers", "spill_bytes", "shared_bytes")} for r in self.report.kernels}

    def __repr__(self):
        return f"Kernel({self.name} for {self.target}, {len(self.artifact.code)} bytes, {self.origin})"


def _device_of(args) -> int:
    """The device of the first tensor that is on one."""
    for arg in args:
        index = getattr(arg, "device", None)
        if type(index) is not int:
            index = getattr(index, "index", None)
        if type(index) is int:
            return index
    from .target import current_device

    return current_device()


def _many_devices() -> bool:
    from . import _runtime

    return len(_runtime.devices()) > 1
