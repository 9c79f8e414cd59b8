# SPDX-License-Identifier: Apache-2.0
"""What a launch or a warmup returns, and ``triton.compile``."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from ..kernel import Kernel
from .driver import GPUTarget, current_device, name_of, on_stream, target_of
from .messages import Messages
from .specialize import seen_as, storage_of


class Asm(dict):
    """The kernel's code: "ptx" or "amdgcn", and "cubin" where the service has assembled it. There is none of Triton's own stages."""

    def __missing__(self, name):
        raise KeyError(f"asm[{name!r}]: Kiln has {', '.join(map(repr, self))}; kernel.prim_func.script() is the tile program, and `kiln explain` "
                       "shows what each pass makes of it")


class CompiledKernel:
    """A kiln.Kernel, whose attributes it has, with what Triton's has as well. ``kernel[grid](…)`` launches the function with the options that
    this was compiled with, on all arguments in order, or on those that are no tl.constexpr, with the constants of this kernel. ``run`` is the
    launch that torch.compile's launchers call."""

    launch_enter_hook = launch_exit_hook = None  # of the class, where launchers look for them

    def __init__(self, function, kernel: Kernel, options: dict, classes: tuple = (), told: list = (), views: list = (), constants=None):
        """``constants``: {parameter: value} of those that are tl.constexpr. ``told``: the messages that the kernel writes. ``views``: (which
        argument, elements) of those that it takes once more."""
        self.kernel, self._function, self._options, self._classes = kernel, function, options, dict(classes)
        self._messages = Messages(function.__name__, told) if told else None
        self._views, self._plans, self._tensors, self._for_shared, self._seen = list(views), {}, {}, None, ((), False)
        self._constants, self._given_count, self._taken = dict(constants or {}), -1, 0
        self.src = SimpleNamespace(fn=function)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.kernel, name)

    def __call__(self, *args, **kwargs):
        if self._for_shared is not None and self._writes_shared(args, self._tensors_taken()):
            return self._for_shared(*args, **kwargs)
        return self.kernel(*args, **kwargs)

    def __getitem__(self, grid):
        # A parameter that has an option's name is the launch's to give, as the others are.
        options = {name: value for name, value in self._options.items() if name not in self._function.arg_names}

        def launch(*args, **kwargs):
            if not kwargs and len(args) == len(self._function.arg_names) - len(self._constants) and not self._binds(args):
                given = {**self._constants, **dict(zip(self._names(len(args)), args))}
                args = [given[name] for name in self._function.arg_names]
            return self._function.run(*args, grid=grid, warmup=False, **{**options, **kwargs})

        return launch

    def _binds(self, args) -> bool:
        """Whether these are all arguments, but for those that have defaults."""
        try:
            self._function.signature.bind(*args)
        except TypeError:
            return False
        return True

    def launched(self, arguments: list, sizes) -> None:
        """A launch with what the kernel takes, over a grid of these sizes."""
        views = [memory if isinstance(memory := arguments[i], int) else seen_as(memory, element) for i, element in self._views]
        arguments = [*arguments, *views, *sizes]
        if self._messages is None:
            self.kernel(*arguments)
        else:
            self._messages.launch(self.kernel, arguments)

    def _init_handles(self) -> None:
        """Loads it onto the current device."""
        for name in ("run", "function", "module"):  # which those who take the kernel through pickle have set to None
            self.__dict__.pop(name, None)
        if not self.kernel.target.startswith("emu:"):
            self.kernel.loaded(current_device())
        if self._for_shared is not None:
            self._for_shared._init_handles()

    def by_address(self, may_be: bool) -> "CompiledKernel":
        """Whether launches pass addresses, and answer for what they overlap. The launcher, which does not know how far the memory goes from one, has
        nothing to look at then."""
        self.kernel.by_address = may_be
        return self

    def instead_of(self, other: "CompiledKernel") -> "CompiledKernel":
        """Launches are this kernel's where what they write is in no memory that another argument has, and the other's elsewhere."""
        self._for_shared = other
        return self

    def _writes_shared(self, args: tuple, tensors: list) -> bool:
        """Whether a tensor that the kernel writes may be in the memory of another one. ``tensors``: [(its place, whether it is written)]"""
        spans = [storage_of(args[i]) for i, _ in tensors if i < len(args)]
        seen, shared = self._seen
        if spans != seen:
            shared = any((write or writes) and begin < end and start < stop for i, ((begin, stop), (_, write)) in enumerate(zip(spans, tensors))
                         for (start, end), (_, writes) in zip(spans[:i], tensors))
            self._seen = spans, shared
        return shared

    def _tensors_given(self, count: int) -> list:
        """Of a launch's arguments."""
        if count not in self._tensors:
            self._tensors[count] = self._tensors_of(self._names(count))
        return self._tensors[count]

    def _tensors_taken(self) -> list:
        """Of what the kernel takes."""
        if None not in self._tensors:
            names = [param.name for param in self.kernel.artifact.launch.params]
            self._tensors[None] = [found for found in self._tensors_of(names) if names[found[0]] in self._function.arg_names]
        return self._tensors[None]

    def _tensors_of(self, names: list) -> list:
        return [(names.index(param.name), param.written) for param in self.kernel.artifact.launch.params if param.tensor and param.name in names]

    def _names(self, count: int) -> list:
        """Of a launch's arguments: all parameters, or those that are no constants."""
        names, constants = self._function.arg_names, self._function.constant_names()
        given = names if count == len(names) else [name for name in names if name not in constants]
        if count != len(given):
            raise TypeError(f"{self._function.__name__}: a launch takes {len(given)} or {len(names)} arguments, and {count} are given")
        return given

    @property
    def hash(self) -> str:
        return self.kernel.key

    @property
    def metadata(self):
        target = target_of(self.kernel.target)
        shared = max((usage["shared_bytes"] for usage in self.kernel.resource_usage.values()), default=0)
        return SimpleNamespace(name=self.kernel.name, shared=shared, target=target, cluster_dims=(1, 1, 1), hash=self.hash, **self._options)

    packed_metadata = property(lambda self: self.metadata)
    function = property(lambda self: self.kernel)

    def launch_metadata(self, grid, stream, *args):
        """What hooks are told of a launch; functions that make it are not taken (triton.jit warns)."""
        return None

    def run(self, grid_0, grid_1, grid_2, stream, function, packed_metadata, launch_metadata, launch_enter_hook, launch_exit_hook, *args):
        """Launches a kernel that was compiled for three sizes of the grid. ``args``: all arguments in order, or those that are no tl.constexpr.
        ``stream``: its number, 0 for torch's own."""
        if self._given_count == len(args) and self._for_shared is None and launch_enter_hook is None and launch_exit_hook is None:
            self.kernel(*args[:self._taken], grid_0, grid_1, grid_2, stream=stream)
            return None
        if self._for_shared is not None and self._writes_shared(args, self._tensors_given(len(args))):
            return self._for_shared.run(grid_0, grid_1, grid_2, stream, function, packed_metadata, launch_metadata, launch_enter_hook,
                                        launch_exit_hook, *args)
        given = self._given(args)
        self._look_at(len(args))
        if launch_enter_hook is not None:
            launch_enter_hook(launch_metadata)
        if self._messages is None and not self.kernel.target.startswith("emu:"):
            self.kernel(*given, *(given[i] for i, _ in self._views), grid_0, grid_1, grid_2, stream=stream)
        else:
            with on_stream(stream, self.kernel.target):
                self.launched(given, (grid_0, grid_1, grid_2))
        if launch_exit_hook is not None:
            launch_exit_hook(launch_metadata)

    def _look_at(self, count: int) -> None:
        """Whether later launches with so many arguments may pass them on as they are: the kernel takes the first ones, behind which are constants,
        reads addresses out of torch's tensors itself, and does nothing else."""
        plan = self._plans[count]
        in_order = isinstance(plan, list) and [i for i, _ in plan] == list(range(len(plan))) and not self._views
        reads = hasattr(getattr(sys.modules.get("torch"), "Tensor", None), "__dlpack_c_exchange_api__")
        if in_order and reads and self.kernel.by_address and self._messages is None and not self.kernel.target.startswith("emu:"):
            self._given_count, self._taken = count, len(plan)

    def _given(self, args: tuple) -> list:
        """What the kernel takes of a launch's arguments. On a GPU tensors go as addresses: who compiles for a signature answers for bounds."""
        plan = self._plans.get(len(args))
        if plan is None:
            plan = self._plans[len(args)] = self._planned(len(args))
        if isinstance(plan, list):
            return [args[i].data_ptr() if is_pointer and hasattr(args[i], "data_ptr") else args[i] for i, is_pointer in plan]
        return self._function.run_time_arguments(dict(zip(plan, args)), self._classes)

    def _planned(self, count: int):
        """[(the place of an argument, whether it is a pointer)] of those that the kernel takes, as they are; or the names of all, where they have to
        be looked at."""
        given = self._names(count)
        taken = [(given.index(name), found) for name, found in self._classes.items() if found is not None and found[0] not in ("=", "known", "1")]
        if self.kernel.target.startswith("emu:") or any(isinstance(found[0], type) or len(found) == 4 for _, found in taken):
            return tuple(given)
        return [(i, found[0] == "*") for i, found in taken]

    @property
    def asm(self) -> Asm:
        if self.kernel.target.startswith("emu:"):
            return Asm(llir=self.kernel.get_kernel_source())
        code = Asm({"ptx" if self.kernel.target.startswith("cuda:") else "amdgcn": self.kernel.get_kernel_source()})
        if self.kernel.artifact.cubin:
            code["cubin"] = self.kernel.artifact.cubin
        return code

    def __repr__(self):
        return repr(self.kernel)


class ASTSource:
    """A function, the types of its parameters by name ("*fp32", "i32", "constexpr"), and what is known of them: values of constants, and
    ``attrs``: {(position,): [["tt.divisibility", 16]]}. Constants go by name or position."""

    def __init__(self, fn, signature, constexprs=None, attrs=None, *, constants=None):
        self.fn, self.signature = fn, dict(signature)
        self.constants = {self._name(key): value for key, value in (constexprs or constants or {}).items()}
        self.attrs = {self._name(key): value for key, value in (attrs or {}).items()}

    def _name(self, key) -> str:
        key = key[0] if isinstance(key, tuple) else key
        return self.fn.arg_names[key] if isinstance(key, int) else key


def triton_key() -> str:
    """What kernels of this version are kept under; kilnd's own keys have its compiler in them."""
    from .. import __version__

    return f"kiln-{__version__}"


def compile(src: ASTSource, target: GPUTarget | None = None, options: dict | None = None) -> CompiledKernel:
    """Compiles a function without a launch, as for a grid of three dimensions."""
    if not isinstance(src, ASTSource):
        raise TypeError(f"triton.compile takes an ASTSource, not {type(src).__name__}: Kiln reads no text of Triton's stages")
    return src.fn.compiled_for(src, None if target is None else name_of(target), dict(options or {}))
