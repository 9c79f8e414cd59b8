# SPDX-License-Identifier: Apache-2.0
"""``@triton.jit`` and launches, ``kernel[grid](…)``."""

from __future__ import annotations

import ast
import contextvars
import functools
import hashlib
import inspect
import re
import sys
import textwrap
import threading
import warnings
from types import ModuleType
from typing import NamedTuple

from .. import compiler
from .. import target as targets
from ..errors import CompileError, NoEffectWarning
from ..language.rewrite import parse
from ..notices import no_effect
from ..options import PassConfigKey
from ..remote import emulation_asked
from . import knobs
from . import language as tl
from . import launches
from .builtin import Builtin, constexpr, unwrapped
from .compiled import CompiledKernel
from .errors import OptionError, Refusal
from .expressions import StaticFunction
from .foreign import as_ours
from .interpret import graph_of
from .lower import Lowering
from .specialize import Classes, Flat, annotated_element, annotated_type, class_of_signature, constant, frozen, parameter

# Whether another configuration may serve where one needs far more registers than a thread has.
others_may_serve = contextvars.ContextVar("others_may_serve", default=False)
_SPILLED = {PassConfigKey.KILN_MAX_FRAGMENT_REGISTERS: 1024}
_OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "debug": None}
_INFERRED = "it is inferred; leave it out"
# Options that other launches pass: the values that ask for nothing, why others have no effect.
_NO_EFFECT = {
    "num_ctas": ((1,), "clusters are inferred; leave it out"),
    "extern_libs": ((None,), "the functions of tl.extra.libdevice are Kiln's own; leave it out"),
    "enable_fp_fusion": ((True, None), "a multiply-add may always round once; leave it out"),
    "launch_cooperative_grid": ((False, None), "programs need not all run at one time; launch what waits for all of them as a kernel of its own"),
    "launch_pdl": ((False, None), "launches of one stream run one after the other; leave it out"),
    "sanitize_overflow": ((False, None), "integers wrap"), "warp_size": ((32, None), _INFERRED), "arch": ((None,), "KILN_TARGET names the target"),
    "matrix_instr_nonkdim": ((None, 0), _INFERRED), "waves_per_eu": ((None, 0), _INFERRED), "kpack": ((None,), _INFERRED),
}
OPTIONS = {**_OPTIONS, **{name: nothing[0] for name, (nothing, _) in _NO_EFFECT.items()}}  # all that launches may pass


def needs_more_registers(problem: Exception) -> bool:
    """Whether the compiler refused a program because its fragments need far more registers than a thread has."""
    return isinstance(problem, CompileError) and "max_fragment_registers" in str(problem)


class KernelInterface:
    """What ``kernel[grid]`` is: a launch over a grid of programs."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)


def _is_constexpr(annotation) -> bool:
    return annotation is constexpr or isinstance(annotation, str) and annotation.split(".")[-1] == "constexpr"


def _is_const(annotation) -> bool:
    return annotation is tl.const or isinstance(annotation, str) and annotation.split(".")[-1] == "const"


class Parameter(NamedTuple):
    """One of JITFunction.params."""

    num: int
    parameter: inspect.Parameter
    is_constexpr: bool
    do_not_specialize: bool
    do_not_specialize_on_alignment: bool

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def annotation(self) -> str:
        given = self.parameter.annotation
        return "" if given is self.parameter.empty else given if isinstance(given, str) else getattr(given, "__name__", str(given))

    @property
    def default(self):
        return self.parameter.default

    has_default = property(lambda self: self.parameter.default is not self.parameter.empty)
    is_const = property(lambda self: _is_const(self.parameter.annotation))


class _Cells:
    """What the names mean now that a function has from the one around it; a dictionary to those who look them up."""

    def __init__(self, function):
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))

    def get(self, name, otherwise=None):
        try:
            return self._cells[name].cell_contents
        except (KeyError, ValueError):  # ValueError: nothing was assigned yet
            return otherwise

    def __contains__(self, name):
        return self.get(name, self) is not self

    def place(self, name):
        return self._cells[name]

    def __getitem__(self, name):
        return self.get(name)


class _Named:
    """The ``repr`` of a kernel that is called as its function is."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, specialization=None) -> str:
        return self.name


class JITFunction(KernelInterface):
    """A function in Triton's language. Called from another one it is written out there; ``fn[grid](…)`` compiles and launches it."""

    kiln_kernel = True

    def __init__(self, function, do_not_specialize=(), do_not_specialize_on_alignment=(), repr=None, debug=False):
        functools.update_wrapper(self, function)
        self.fn, self.signature = function, inspect.signature(function)
        self.file, self.first_line = function.__code__.co_filename, function.__code__.co_firstlineno
        self.arg_names = list(self.signature.parameters)
        self.constexprs = [i for i, p in enumerate(self.signature.parameters.values()) if _is_constexpr(p.annotation)]
        self._constants = {self.arg_names[i] for i in self.constexprs}
        values, alignments = self._named(do_not_specialize), self._named(do_not_specialize_on_alignment)
        self._classes = {name: Classes(name, name not in values, name not in alignments, annotated_type(p.annotation),
                                       annotated_element(p.annotation))
                         for name, p in self.signature.parameters.items()}
        self._const = {name for name, p in self.signature.parameters.items() if _is_const(p.annotation)}
        self._defaults = {name: unwrapped(p.default) for name, p in self.signature.parameters.items() if p.default is not p.empty}
        self._defaults |= {name: () for name, p in self.signature.parameters.items() if p.kind is p.VAR_POSITIONAL}
        self._kernels: dict = {}
        self._used: dict = {}
        self._launches = None
        self._tree, self._given, self.debug = None, "", bool(debug)
        self.repr = repr or _Named(function.__name__)
        self.__globals__ = function.__globals__
        self._hash_lock = threading.RLock()
        self.pre_run_hooks: list = []

    def __getstate__(self):
        """Pickled, a function goes without the Python function that it was made of. It has its parameters, which launches of compiled kernels look
        at, and its text."""
        names = ("__name__", "__qualname__", "__module__", "__doc__")
        state = {name: value for name, value in self.__dict__.items() if not name.startswith("__") or name in names}
        named = _Named(self.__name__) if inspect.isroutine(self.repr) else self.repr
        return {**state, "fn": None, "__globals__": None, "_hash_lock": None, "repr": named, "_given": self._text(), "_tree": None, "_kernels": {},
                "_used": {}, "_launches": None, "pre_run_hooks": []}

    def __setstate__(self, state):
        self.__dict__.update(state, _hash_lock=threading.RLock())

    def _text(self) -> str:
        try:
            return self.src
        except (OSError, TypeError):  # its file is gone
            return ""

    def _named(self, given) -> set:
        """Parameters by name or number."""
        return {self.arg_names[x] if isinstance(x, int) else x for x in ([given] if isinstance(given, (str, int)) else given or ())}

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"{self.__name__} is a Triton kernel: launch it as {self.__name__}[grid](…), or call it from another kernel")

    def __repr__(self):
        return f"JITFunction({self.__module__}:{self.__qualname__})"

    @property
    def params(self) -> list:
        """What is known of each parameter before a launch."""
        return [Parameter(i, p, name in self._constants, not self._classes[name].by_value, not self._classes[name].by_alignment)
                for i, (name, p) in enumerate(self.signature.parameters.items())]

    @property
    def src(self) -> str:
        """The function's text, from ``def`` on."""
        if self._given:
            return self._given
        text = textwrap.dedent(inspect.getsource(self.fn))
        return text[re.search(r"^def\s+\w+\s*\(", text, re.MULTILINE).start():]

    def _unsafe_update_src(self, src: str) -> None:
        """Another text for the function, with the names around the old one."""
        self._given, self._kernels, self._tree, self._launches = src, {}, None, None

    def constant_names(self) -> set:
        """Of the parameters that are tl.constexpr."""
        return self._constants

    def run_time_arguments(self, given: dict, classes: dict) -> list:
        """What a launch passes on of arguments by name, for a kernel that was compiled for these classes."""
        run: list = []
        for name, found in classes.items():
            if found is not None and found[0] not in ("=", "known"):
                self._classes[name].as_compiled(given[name], found, run)
        return [x.value if isinstance(x, Flat) else x for x in run]

    # What others look at: torch.compile makes keys of it.

    used_global_vals: dict = {}  # kernels look at their globals in each launch

    @property
    def cache_key(self) -> str:
        """Of its text and of what that names: the texts of other kernels and functions, and constants."""
        found: dict = {}
        self._gather(found)
        return hashlib.sha256("\n".join([f"{self.__module__}.{self.__qualname__}", *found.values()]).encode()).hexdigest()

    def _gather(self, found: dict) -> None:
        """``found``: {a function, or the text of a constant: its text}."""
        found[self] = self.src
        for node in ast.walk(self.tree()):
            value = self._outer_value(node)
            if isinstance(value, JITFunction) and value not in found and not value.__module__.startswith("kiln."):
                value._gather(found)
            elif isinstance(value, StaticFunction):
                found[value] = inspect.getsource(value.function)
            elif isinstance(value, constexpr) and inspect.isfunction(value.value):
                found[value.value] = inspect.getsource(value.value)
            elif isinstance(value, constexpr):
                text = f"{ast.unparse(node)} = {value.value!r}"
                found[text] = text

    def _outer_value(self, node):
        """What a name, or a name of a program's module, means outside of the function; None where it means nothing."""
        if isinstance(node, ast.Name):
            return next((as_ours(names[node.id]) for names in self.outer_names() if node.id in names), None)
        owner = self._outer_value(node.value) if isinstance(node, ast.Attribute) else None
        is_theirs = isinstance(owner, ModuleType) and owner.__name__.split(".")[0] not in ("kiln", "triton")
        return as_ours(getattr(owner, node.attr, None)) if is_theirs else None

    # For the interpreter.

    def tree(self):
        if self._tree is None:
            self._tree = ast.parse(self._given).body[0] if self._given else parse(self.fn)
        return self._tree

    def outer_names(self):
        """Where names that are not its own are looked up, each time anew."""
        return _Cells(self.fn), self.fn.__globals__

    def bound(self, args, kwargs) -> dict:
        """The parameters of a call from another kernel. What is known only when the kernel runs may be given for a tl.constexpr parameter too, as in
        Triton; what needs a constant then refuses it."""
        try:
            given = self.signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise Refusal(f"{self.__name__}: {problem}") from None
        arguments = {**self._defaults, **given.arguments}
        for name in self._constants:
            value = arguments.get(name)
            known = value.op.attrs["value"] if isinstance(value, tl.tensor) and value.op is not None and value.op.name == "arith.constant" else value
            arguments[name] = known
        return {name: unwrapped(value) for name, value in arguments.items()}

    # Launches.

    def run(self, *args, grid, warmup=False, **kwargs):
        """Launches, or with ``warmup`` only compiles; returns the kernel, a CompiledKernel."""
        if self._launches is not None and not self.pre_run_hooks:
            kernel = self._launches.launched(args, kwargs, grid, launches.settings(self), warmup)
            if kernel is not NotImplemented:
                return kernel
        given = dict(kwargs)
        options = self._options(kwargs)
        arguments = self._bind(args, kwargs)
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        sizes = self._grid(grid, arguments)
        known, classes, run = {}, [], []
        for name, value in arguments.items():
            if name in self._constants:
                known[name] = constant(value)
            else:
                classes.append((name, self._classes[name].read(value, run)))
        tensors = [x for x in run if isinstance(x, Flat)]
        kernel, key = self._kernel(known, tuple(classes), options, len(sizes), tensors)
        if not warmup and 0 not in sizes:
            kernel.launched([x.value if isinstance(x, Flat) else x for x in run], sizes)
            if launches.may_be_kept(kernel, _overlap(tensors)):
                self._launches = self._launches or launches.of(self)
                if self._launches is not None:
                    launches.keep(self._launches, self, kernel, (args, given, classes, len(sizes), self._used[key]))
        return kernel

    def warmup(self, *args, grid, **kwargs):
        """Compiles for these arguments without a launch."""
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    def program(self, *args, grid=(1,), **kwargs):
        """The tile program for these arguments: a T.PrimFunc, whose ``script()`` is its text."""
        options, arguments, run = self._options(kwargs), self._bind(args, kwargs), []
        known = {name: constant(value) for name, value in arguments.items() if name in self._constants}
        classes = tuple((name, self._classes[name].read(value, run)) for name, value in arguments.items() if name not in self._constants)
        return self._lowered(known, classes, options, len(self._grid(grid, arguments)), False, targets.runnable())[0]

    def _options(self, kwargs: dict) -> dict:
        """Those of a launch, taken out of its keywords."""
        options = dict(_OPTIONS)
        for name in [name for name in kwargs if name not in self.signature.parameters]:
            if name in _NO_EFFECT:
                nothing, instead = _NO_EFFECT[name]
                value = kwargs.pop(name)
                if value not in nothing:
                    warnings.warn(f"{self.__name__}[grid](…, {name}={value!r}) has no effect in Kiln: {instead}", NoEffectWarning, stacklevel=4)
            elif name in options:
                options[name] = kwargs.pop(name)
            elif name in ("stream", "device"):
                raise TypeError(f"{self.__name__}: the keyword {name}; kernels run on torch's current stream and on the device of their tensors")
            else:
                raise KeyError(f"Keyword argument {name} was specified but unrecognised: {self.__name__} has the parameters "
                               f"{', '.join(self.arg_names)}, and launches have the options {', '.join(_OPTIONS)}")
        warps = options["num_warps"]
        if not isinstance(warps, int) or warps < 1 or warps > 32 or warps & (warps - 1):
            raise OptionError(f"num_warps={warps!r} must be a power of 2, from 1 to 32")
        if not isinstance(options["num_stages"], int) or options["num_stages"] < 1:
            raise OptionError(f"num_stages={options['num_stages']!r}: a number from 1 on is needed")
        if not isinstance(options["maxnreg"], (int, type(None))):
            raise OptionError(f"maxnreg={options['maxnreg']!r}: a number of registers, or None, is needed")
        options["debug"] = knobs.runtime.debug or (self.debug if options["debug"] is None else bool(options["debug"]))
        return options

    def _bind(self, args, kwargs) -> dict:
        try:
            given = self.signature.bind(*args, **kwargs).arguments
        except TypeError as problem:
            raise TypeError(f"{self.__name__}: {problem}") from None
        return {name: given[name] if name in given else self._defaults[name] for name in self.arg_names}

    def _grid(self, grid, arguments) -> tuple:
        """One to three numbers of programs."""
        given = grid({name: unwrapped(value) for name, value in arguments.items()}) if callable(grid) else grid
        sizes = (given,) if isinstance(given, int) else tuple(given)
        if not 1 <= len(sizes) <= 3:
            raise ValueError(f"{self.__name__}: a grid has one to three sizes, not {len(sizes)}")
        for size in sizes:
            if int(size) != size or size < 0:
                raise ValueError(f"{self.__name__}: the grid {sizes}; sizes are integers from 0 on")
        return tuple(int(size) for size in sizes)

    def _kernel(self, known: dict, classes: tuple, options: dict, rank: int, tensors: list):
        """The kernel for these classes, and what it is kept by. Where arguments overlap in memory, the one that allows for it, unless it writes none
        of them."""
        target = targets.runnable(None, emulation_asked([t.value for t in tensors]))
        key = (target, tuple(frozen(v) for v in known.values()), classes, tuple(options.values()), rank)
        if any(names.get(name) is not value for names, name, value in self._used.get(key, ())):
            self._kernels.pop((key, False), None)
            self._kernels.pop((key, True), None)
        kernel = self._kernels.get((key, False))
        if kernel is not None and kernel.refusal is not None and others_may_serve.get():
            raise kernel.refusal
        if kernel is None:
            kernel = self._compiled(key, False, known, classes, options, rank, target)
        if _overlap(tensors) and _writes_shared(kernel, tensors):
            kernel = self._kernels.get((key, True)) or self._compiled(key, True, known, classes, options, rank, target)
        return kernel, key

    def _compiled(self, key, may_overlap: bool, known, classes, options, rank: int, target: str):
        func, used, lowering, views = self._lowered(known, classes, options, rank, may_overlap, target)
        flags = [f"--maxrregcount={options['maxnreg']}"] if options["maxnreg"] else None
        try:
            made = compiler.compile(func, target=target, compile_flags=flags)
            refusal = None
        except CompileError as found:
            # Triton compiles what is written for too few warps, and spills.
            if others_may_serve.get() or not needs_more_registers(found):
                raise
            made, refusal = compiler.compile(func, target=target, compile_flags=flags, pass_configs=_SPILLED), found
        kernel = CompiledKernel(self, made, options, classes, lowering.told, views, known)
        kernel.refusal, kernel.multiplies = refusal, lowering.multiplies
        self._kernels[key, may_overlap], self._used[key] = kernel, used
        return kernel

    def compiled_for(self, source, target, options: dict):
        """The kernel for an ASTSource. torch.compile asks for assertions in every kernel that indexes by what it loads; as each launch would
        wait for its kernel, the process has to ask for them as well. Its launches pass parts of one tensor, and tensors that they change, so that
        arguments may overlap. Of a kernel with products there is one for arguments that do not, too, whose tiles are recovered: a launch looks."""
        if options.pop("debug", False) and not knobs.runtime.debug:
            warnings.warn("triton.compile(…, debug=True) has no effect in Kiln: TRITON_DEBUG=1 has assertions checked", NoEffectWarning,
                          stacklevel=3)
        options = self._options(options)
        known = {name: unwrapped(source.constants.get(name, self._defaults.get(name))) for name in self.arg_names if name in self._constants}
        target = targets.runnable(target)
        endless = not target.startswith("emu:")
        classes = tuple((name, class_of_signature(name, source, endless)) for name in self.arg_names if name not in self._constants)
        what = (target, "source", repr(known), classes, tuple(options.values())), known, classes, options, 3, target
        kernel = self._compiled(what[0], True, *what[1:]).by_address(endless)
        if kernel.multiplies:
            try:
                kernel = self._compiled(what[0], False, *what[1:]).by_address(endless).instead_of(kernel)
            except CompileError:  # as of too many registers: the first serves all arguments
                pass
        return kernel

    def _lowered(self, known, classes, options, rank: int, may_overlap: bool, target: str):
        runtime = {name: parameter(found, name in self._const) for name, found in classes}
        function, used = graph_of(self, known, runtime, options, target)
        function.name = self._name(known, classes)
        lowering = Lowering(function, options["num_warps"], options["num_stages"], rank, may_overlap)
        return lowering.program(), _once(used), lowering, function.views

    def _name(self, known: dict, classes: tuple) -> str:
        if isinstance(self.repr, _Named):
            return self.__name__
        found = dict(classes)
        constants = {**known, **{name: c[1] if c is not None else None for name, c in classes if c is None or c[0] in ("=", "known")}}
        signature = {name: "constexpr" if name in known else _written(found[name]) for name in self.arg_names}
        name = self.repr(Specialization(constants, signature))
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{self.__name__}: its repr gives {name!r}, and the name of a kernel is made of letters, digits and _")
        return name


def _once(used: list) -> list:
    """Each name of each place once, for every launch looks at them."""
    return list({(id(names.place(name) if isinstance(names, _Cells) else names), name): (names, name, value) for names, name, value in used}.values())


class Specialization(NamedTuple):
    """What the ``repr`` of a kernel makes its name of. ``constants``: {parameter: value} of what is compiled in."""

    constants: dict
    signature: dict


def _overlap(tensors: list) -> bool:
    return any(a.overlaps(b) for i, a in enumerate(tensors) for b in tensors[:i])


def _writes_shared(kernel, tensors: list) -> bool:
    """Whether the kernel writes a tensor that overlaps another one."""
    written = [param.written for param in kernel.artifact.launch.params if param.tensor]
    pairs = [(i, j) for i, a in enumerate(tensors) for j, b in enumerate(tensors[:i]) if a.overlaps(b)]
    return any(written[i] or written[j] for i, j in pairs)


def _written(found):
    """A class as Triton writes it: "*fp32", "i32", "constexpr"."""
    if found is None or found[0] in ("=", "known"):
        return "constexpr"
    if isinstance(found[0], type):
        return tuple(map(_written, found[1:]))
    return f"*{found[1]}" if found[0] == "*" else found[1] if found[0] == "1" else found[0]


def jit(fn=None, *, version=None, repr=None, launch_metadata=None, do_not_specialize=None, do_not_specialize_on_alignment=None, debug=None,
        noinline=None):
    """Decorator; with or without arguments."""
    if fn is None:
        return lambda function: jit(function, version=version, repr=repr, launch_metadata=launch_metadata, do_not_specialize=do_not_specialize,
                                    do_not_specialize_on_alignment=do_not_specialize_on_alignment, debug=debug, noinline=noinline)
    for name, value, instead in (("noinline", noinline, "functions are written out where they are called"),
                                 ("launch_metadata", launch_metadata, "nothing reads it")):
        if value:
            warnings.warn(f"triton.jit({name}=…) has no effect in Kiln: {instead}", NoEffectWarning, stacklevel=2)
    return JITFunction(fn, do_not_specialize or (), do_not_specialize_on_alignment or (), repr, debug)


def constexpr_function(fn):
    """Decorator of a Python function that kernels call with constants."""
    return StaticFunction(fn)


_allocators: set = set()  # the files and lines that have been told
_told: set = set()  # code that has nothing to be told


def set_allocator(allocator) -> None:
    """Of Triton's descriptors, which need memory of the device; Kiln's are arguments of the launch, so nothing is ever asked of it. torch.compile
    calls it before each launch."""
    caller = sys._getframe(1)
    if caller.f_code in _told:
        return
    place = caller.f_code.co_filename, caller.f_lineno
    generated = caller.f_globals.get("__name__", "").split(".")[0] == "torch"  # Inductor's modules are its own: nobody can leave it out there
    if generated:
        _told.add(caller.f_code)
    elif place not in _allocators:
        _allocators.add(place)
        no_effect("triton.set_allocator", "kernels need no memory beside their tensors; leave it out")


def _cdiv(x: int, y: int) -> int:
    return (x + y - 1) // y


def _next_power_of_2(n: int) -> int:
    """0 of what is less than 1, as in Triton."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


_cdiv.__name__, _next_power_of_2.__name__ = "cdiv", "next_power_of_2"
cdiv = StaticFunction(_cdiv, tl.cdiv if isinstance(tl.cdiv, Builtin) else None)
next_power_of_2 = StaticFunction(_next_power_of_2)
__all__ = ["JITFunction", "KernelInterface", "cdiv", "constexpr_function", "jit", "next_power_of_2", "set_allocator"]
