# SPDX-License-Identifier: Apache-2.0
"""kiln.jit, in both of its styles.

Lazy: the function returns a T.prim_func; calling it gives a Kernel. Eager: the function's body is the program, its tensors are
declared there (``A: T.Tensor(…)``); calling it with tensors compiles and runs. Kernels are kept for each set of compile-time
arguments."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import typing

from . import compiler
from . import target as targets
from ._calls import Calls, freeze, is_tensor
from .language import function as fn
from .language.expr import Expr
from .language.program import PrimFunc
from .language.rewrite import enclosing_names, parse
from .remote import emulation_asked


def _style(function) -> str:
    """"lazy" where the function defines a T.prim_func or only calls helpers; "eager" where its own body launches a kernel."""
    try:
        node = parse(function)
    except Exception:
        return "lazy"
    parameters = {a.arg for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs}
    for child in ast.walk(node):
        if child is not node and isinstance(child, ast.FunctionDef):
            if any(_ends_with(d, "prim_func") for d in child.decorator_list):
                return "lazy"
    if any(a.annotation is not None and _is_tensor_type(a.annotation) for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs):
        return "eager"
    for child in ast.walk(node):
        if isinstance(child, ast.With) and any(_ends_with(i.context_expr, "Kernel") for i in child.items):
            return "eager"
        if isinstance(child, ast.AnnAssign) and child.value is None and getattr(child.target, "id", None) in parameters:
            return "eager"
    return "lazy"


def _is_tensor_type(annotation) -> bool:
    """Of T.Tensor(…), T.Tensor[…] and their kin."""
    return _ends_with(annotation.value if isinstance(annotation, ast.Subscript) else annotation, "Tensor")


def _ends_with(node, name: str) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")).endswith(name)


class Launch:
    """A kernel, and the places of its arguments in a call: positions, names among the keywords, or ``rest``."""

    __slots__ = ("kernel", "places", "rest")

    def __init__(self, kernel, places, rest: dict):
        self.kernel, self.places, self.rest = kernel, places, rest

    def __call__(self, args, kwargs):
        return self.kernel(*[args[p] if isinstance(p, int) else kwargs[p] if p in kwargs else self.rest[p] for p in self.places])


class _Tensor:
    """A tensor while the parameters are collected: it is there, and nothing of it is known."""

    def __getattr__(self, name):
        raise AttributeError(f"{name} of a tensor before its declaration; declare it first, as in `A: T.Tensor((M, N), \"float16\")`, where M and "
                             "N are T.const or T.dynamic")


_SOME_TENSOR = _Tensor()


class _Bound(typing.NamedTuple):
    """A call in the eager style: the argument of each parameter, the value of each T.const, the names of the parameters that the kernel takes
    and of those of them that are scalars."""

    arguments: dict
    consts: dict
    names: list
    scalars: frozenset


class JITFunction:
    """The function that the decorator returns."""

    def __init__(self, function, out_idx=None, **compile_options):
        functools.update_wrapper(self, function)
        self.function, self.out_idx, self.options = function, out_idx, compile_options
        self.signature = inspect.signature(function)
        self._enclosing = enclosing_names(function)
        self._names = list(self.signature.parameters)
        self._defaults = {name: None if p.default is p.empty else p.default for name, p in self.signature.parameters.items()}
        self.mode = _style(function)
        if self.mode == "eager" and out_idx is not None:
            raise ValueError(f"{function.__name__}: out_idx belongs to functions that return a T.prim_func; here, make the output with "
                             "T.empty and return it")
        self._kernels: dict = {}
        self._declared, self._calls = Calls(self._names), Calls(self._names)

    @property
    def func(self):
        """The undecorated function."""
        return self.function

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args, **kwargs):
        known = self._calls.find(args, kwargs)
        if known is None:
            known = self._calls.keep(args, kwargs, *self.prepared(args, kwargs))
        return known if self.mode == "lazy" else known(args, kwargs)

    def prepared(self, args, kwargs):
        """(what a call needs: the Kernel, or in the eager style its Launch; the names of the scalars that it takes at run time)."""
        if self.mode == "lazy":
            return self.compile(*args, **kwargs), frozenset()
        bound = self._bind(args, kwargs)
        return self._launch(self._specialised(bound), bound, args, {})

    def launch(self, kernel, args, kwargs, config: dict):
        """The Launch of a kernel for these arguments and those of ``config``, in the eager style. Later calls leave ``config`` out."""
        return self._launch(kernel, self._bind(args, {**kwargs, **config}), args, config)

    def _launch(self, kernel, bound: _Bound, args, config):
        places = [self._names.index(n) if self._names.index(n) < len(args) else n for n in bound.names]
        return Launch(kernel, places, {**self._defaults, **config}), bound.scalars

    def launch_arguments(self, args, kwargs) -> list:
        """The arguments that an eager call passes to its kernel, in the kernel's order: tensors, and the scalars that the body declares."""
        bound = self._bind(args, kwargs)
        return [bound.arguments[name] for name in bound.names]

    def compile(self, *args, **kwargs):
        """The Kernel for these arguments; in the eager style tensors may be left out where every T.const is given by keyword."""
        if self.mode == "eager":
            return self._specialised(self._bind(args, kwargs))
        target = self.target_of(args, kwargs)
        key = (target, freeze(args), freeze(kwargs))
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = self._compile(self.get_tir(*args, **kwargs), kwargs, target)
        return kernel

    def get_tir(self, *args, **kwargs) -> PrimFunc:
        """The traced function."""
        if self.mode == "eager":
            bound = self._bind(args, kwargs)
            return fn.trace_eager(self.function, bound.arguments, bound.consts, self._enclosing).func
        result = self.function(*args, **kwargs)
        if not isinstance(result, PrimFunc):
            raise TypeError(f"{self.__name__} must return a T.prim_func, or hold the program itself (`with T.Kernel(…)` in its body); it "
                            f"returned {result!r}")
        return result if self.out_idx is None else result.with_outputs(self.out_idx)

    def get_kernel_source(self, *args, **kwargs) -> str:
        """``Kernel.get_kernel_source`` of the kernel for these arguments."""
        return self.compile(*args, **kwargs).get_kernel_source()

    def par_compile(self, configs, num_workers=None, ignore_error=False) -> list:
        """Kernels for many sets of arguments (dicts of keywords, or tuples), compiled at once."""
        wanted = [(c, {}) if isinstance(c, tuple) else ((), c) for c in configs]
        functions = [self.get_tir(*args, **kwargs) for args, kwargs in wanted]
        kernels = compiler.par_compile(functions, num_workers, ignore_error, **self.compile_options())
        for (_, kwargs), kernel in zip(wanted, kernels):
            if kernel is not None:
                kernel.config = dict(kwargs)
        return kernels

    def target_of(self, args, kwargs) -> str:
        """The target for which a call with these arguments is compiled."""
        return targets.runnable(self.options.get("target"), emulation_asked((*args, *kwargs.values())))

    def compile_options(self) -> dict:
        """The decorator's arguments that kiln.compile takes."""
        return {name: value for name, value in self.options.items() if name != "debug_root_path"}

    def _compile(self, func: PrimFunc, config, target: str):
        root = self.options.get("debug_root_path")
        kernel = compiler.compile(func, config=dict(config), **{**self.compile_options(), "target": target})
        if root:
            os.makedirs(root, exist_ok=True)
            with open(os.path.join(root, f"tilelang_jit_program_{func.name}.py"), "w", encoding="utf-8") as file:
                file.write(func.script())
            kernel.export_sources(os.path.join(root, f"tilelang_jit_kernel_{func.name}.c"))
        return kernel

    # Eager style.

    def _specialised(self, bound: _Bound):
        static = {n: v for n, v in bound.arguments.items() if n not in bound.names}
        target = self.target_of((), bound.arguments)
        key = (target, freeze(static), freeze(bound.consts))
        kernel = self._kernels.get(key)
        if kernel is None:
            func = fn.trace_eager(self.function, bound.arguments, bound.consts, self._enclosing).func
            kernel = self._kernels[key] = self._compile(func, static, target)
        return kernel

    def _bind(self, args, kwargs) -> _Bound:
        accepted = {k: v for k, v in kwargs.items() if k in self.signature.parameters}
        given = {k: v for k, v in kwargs.items() if k not in accepted}
        bound = self.signature.bind_partial(*args, **accepted)
        bound.apply_defaults()
        arguments = {name: bound.arguments.get(name) for name in self.signature.parameters}
        declared = self._declarations(arguments)
        names = [p.name for p in declared.func.params]
        unknown = set(given) - set(declared.const_vars)
        if unknown:
            raise TypeError(f"{self.__name__} got an unexpected keyword argument {sorted(unknown)[0]!r}; its T.const names are "
                            f"{sorted(declared.const_vars)}")
        missing = [n for n in self.signature.parameters if n not in bound.arguments and n not in names]
        if missing:
            raise TypeError(f"{self.__name__} misses the argument {missing[0]!r}")
        return _Bound(arguments, self._solve(declared, arguments, given), names, _scalars(declared))

    def _declarations(self, arguments):
        """Parameters and T.const names, which depend on compile-time arguments only."""
        static = {n: _SOME_TENSOR if is_tensor(v) else v for n, v in arguments.items()}
        declared = self._declared.find((), static)
        if declared is None:
            declared = fn.trace_eager(self.function, static, enclosing=self._enclosing)
            self._declared.keep((), static, declared, _scalars(declared))
        return declared

    def _solve(self, declared, arguments, given) -> dict:
        values = dict(given)
        used = set()
        for param in declared.func.params:
            if param.buffer is None:
                continue
            tensor = arguments.get(param.name)
            dims = list(enumerate(param.buffer.shape)) + list(enumerate(param.buffer.strides or ()))
            for position, (axis, dim) in enumerate(dims):
                if not (isinstance(dim, Expr) and dim.op == "VAR" and dim.value.name in declared.const_vars):
                    continue
                name = dim.value.name
                used.add(name)
                if not is_tensor(tensor):
                    continue
                in_shape = position < len(param.buffer.shape)
                actual = _extent(self.__name__, param, tensor, axis, in_shape)
                if values.setdefault(name, actual) != actual:
                    part = "shape" if in_shape else "strides"
                    raise ValueError(f"Argument {self.__name__}.{param.name}.{part}[{axis}] has an unsatisfied constraint: {actual} == "
                                     f"{name}, which is {values[name]}")
        for name in declared.const_vars:
            if name not in used and name not in given:
                raise RuntimeError(f"Constexpr variable {name} is not used in any buffer shape or stride")
            if name not in values:
                raise TypeError(f"{self.__name__}: T.const {name} has no value; pass {name}=… or the tensors")
        return {name: int(value) for name, value in values.items()}


def _scalars(declared) -> frozenset:
    return frozenset(p.name for p in declared.func.params if p.buffer is None)


def _extent(function, param, tensor, axis, in_shape) -> int:
    rank = len(param.buffer.shape)
    if len(tensor.shape) != rank:
        raise ValueError(f"{function}.{param.name}.ndim is expected to equal {rank}, but got {len(tensor.shape)}")
    # A byte holds two elements of four bits.
    packed = param.buffer.dtype.bits == 4 and getattr(tensor, "itemsize", 1) == 1
    last = axis == rank - 1
    if in_shape:
        return int(tensor.shape[axis]) * (2 if packed and last else 1)
    strides = tensor.stride() if hasattr(tensor, "stride") else [s // tensor.itemsize for s in tensor.strides]
    return int(strides[axis]) * (2 if packed and not last else 1)


def jit(function=None, *, out_idx=None, target=None, target_host=None, execution_backend=None, verbose=None, pass_configs=None,
        debug_root_path=None, compile_flags=None, allow_tf32=False):
    """Decorator; with or without arguments. ``allow_tf32``: of every product of float32, as T.gemm takes it."""
    options = dict(target=target, target_host=target_host, execution_backend=execution_backend, verbose=verbose,
                   pass_configs=pass_configs, debug_root_path=debug_root_path, compile_flags=compile_flags, allow_tf32=allow_tf32)
    if isinstance(function, PrimFunc):
        options.pop("debug_root_path")
        return compiler.compile(function, out_idx, **options)
    if function is None:
        return lambda f: JITFunction(f, out_idx, **options)
    return JITFunction(function, out_idx, **options)


