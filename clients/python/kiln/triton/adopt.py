# SPDX-License-Identifier: Apache-2.0
"""Functions of an installed Triton as Kiln's. What such a function names, of Triton's language and of other kernels, is looked up as Triton's own
objects; each is taken for the one of its name here."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, ModuleType

from . import autotuner, libdevice, runtime, tle
from . import language as tl
from . import types as ty
from .blocks import TensorDescriptor
from .builtin import constexpr
from .errors import Refusal
from .expressions import StaticFunction
from .foreign import home_of

_HELPERS = {"cdiv": runtime.cdiv, "next_power_of_2": runtime.next_power_of_2}


def ours(x):
    """What Kiln has for a thing of an installed Triton; anything else as it is."""
    home = home_of(x)
    if not home:
        return x
    if isinstance(x, ModuleType):
        return _module(x)
    if isinstance(x, (type, FunctionType)):
        return _named(x.__name__, home)
    return _TYPES.get(type(x).__name__, lambda x: x)(x)


def _module(x: ModuleType):
    name = x.__name__.removeprefix("triton.")
    if name.endswith("libdevice"):
        return libdevice
    if name == "language.extra" or name == "language.extra.cuda":
        return tl.extra if name == "language.extra" else tl.extra.cuda
    if name.startswith("experimental.tle"):
        return _extensions(name)
    return tl if name == "language" or name.startswith("language.") else x


def _extensions(home: str):
    """What Kiln has of the language's extensions in the place of a module of theirs."""
    return tle.gpu if ".gpu" in home else tle.raw if ".raw" in home else tle


def _named(name: str, home: str):
    if home.endswith("libdevice"):
        place = libdevice
    elif home.startswith("triton.experimental.tle"):
        place = _extensions(home)
    elif home.startswith("triton.language"):
        place = tl
    elif name in _HELPERS:
        return _HELPERS[name]
    else:
        raise Refusal(f"{home}.{name} of the installed Triton is not part of Kiln's front end")
    found = getattr(place, name, None)
    if found is None:
        raise Refusal(f"{home}.{name} of the installed Triton is not part of Kiln's front end")
    return found


def _of_library(x) -> str:
    """The module of a function that is Triton's own and written in its language, or ""."""
    home = x.fn.__module__ or ""
    return home if home.startswith("triton.") or home == "triton" else ""


def _function(x):
    home = _of_library(x)
    return _named(x.fn.__name__, home) if home else adopt(x)


def _static(x):
    home = _of_library(x)
    return _named(x.fn.__name__, home) if home else StaticFunction(x.fn)


_TYPES = {
    "constexpr": lambda x: constexpr(ours(x.value)), "dtype": lambda x: ty.str_to_ty(x.name),
    "pointer_type": lambda x: ty.pointer_type(ours(x.element_ty), is_const=bool(getattr(x, "const", False))),
    "ConstexprFunction": _static, "JITFunction": _function,
    "Autotuner": lambda x: adopt(x), "Heuristics": lambda x: adopt(x),
    "scope": lambda x: getattr(tle.gpu, x.name, x),
    "TensorDescriptor": lambda x: TensorDescriptor(x.base, x.shape, x.strides, x.block_shape, getattr(x, "padding", "zero")),
}


def _signature(function) -> inspect.Signature:
    """With our annotations and defaults; a text as an annotation says what Triton's says."""
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        annotation = ours(parameter.annotation) if parameter.annotation is not parameter.empty else parameter.annotation
        default = ours(parameter.default) if parameter.default is not parameter.empty else parameter.default
        parameters.append(parameter.replace(annotation=annotation, default=default))
    return inspect.Signature(parameters)


class Adopted(runtime.JITFunction):
    """Of a JITFunction of Triton."""

    def __init__(self, fn):
        function = fn.fn

        @functools.wraps(function)
        def like(*args, **kwargs):
            raise AssertionError

        like.__signature__ = _signature(function)
        by_value = [p.name for p in fn.params if p.do_not_specialize]
        by_alignment = [p.name for p in fn.params if getattr(p, "do_not_specialize_on_alignment", False)]
        super().__init__(like, by_value, by_alignment, getattr(fn, "_repr", None), getattr(fn, "debug", False))
        self.fn, self.__globals__ = function, function.__globals__
        self.file, self.first_line = function.__code__.co_filename, function.__code__.co_firstlineno

    def _bind(self, args, kwargs) -> dict:
        return {name: _value(x) for name, x in super()._bind(args, kwargs).items()}


class AdoptedTuner(autotuner.Autotuner):
    """Of an Autotuner of Triton. Its hooks see descriptors of ours, of which each configuration has its own while kernels are compiled."""

    def run(self, *args, grid, warmup=False, **kwargs):
        return super().run(*map(_value, args), grid=grid, warmup=warmup, **{name: _value(x) for name, x in kwargs.items()})


def _value(x):
    return type(x)(map(_value, x)) if type(x) in (tuple, list) else ours(x)


@functools.lru_cache(maxsize=None)
def adopt(fn):
    """Takes a kernel of an installed Triton: what ``triton.jit``, ``triton.autotune`` and ``triton.heuristics`` gave. Its source is compiled by
    Kiln; it is launched as ``adopt(fn)[grid](…)``."""
    if hasattr(fn, "kiln_kernel"):
        return fn
    kind = type(fn).__name__ if home_of(fn) else ""
    if kind == "JITFunction":
        return Adopted(fn)
    if kind == "Heuristics":
        return autotuner.Heuristics(adopt(fn.fn), dict(fn.values))
    if kind == "Autotuner":
        return _tuned(fn)
    raise TypeError(f"kiln.triton.adopt takes a kernel of an installed Triton, not {type(fn).__name__}; kiln.triton.jit takes a Python function")


def _tuned(fn):
    configs = [autotuner.Config(dict(c.kwargs), c.num_warps, c.num_stages, getattr(c, "num_ctas", 1), getattr(c, "maxnreg", None), c.pre_hook,
                                getattr(c, "ir_override", None)) for c in fn.configs]
    hooks = {name: getattr(fn, name) for name in ("pre_hook", "post_hook") if getattr(fn, f"user_defined_{name}", False)}
    prune = {to: getattr(fn, name, None) for to, name in (("perf_model", "perf_model"), ("top_k", "configs_top_k"),
                                                          ("early_config_prune", "early_config_prune"))}
    prune = {name: x for name, x in prune.items() if x is not None} if prune["perf_model"] or prune["early_config_prune"] else None
    inner = adopt(fn.fn)
    return AdoptedTuner(inner, inner.arg_names, configs, fn.keys, reset_to_zero=fn.reset_to_zero, restore_value=fn.restore_value,
                        prune_configs_by=prune, **hooks, **_timing(fn))


def _timing(fn) -> dict:
    """How it times. Of the older form, milliseconds, Triton makes a function of its own."""
    older = {to: getattr(fn, name, None) for to, name in (("warmup", "num_warmups"), ("rep", "num_reps"), ("use_cuda_graph", "use_cuda_graph"))}
    if older["warmup"] is None and older["rep"] is None and not older["use_cuda_graph"]:
        older["do_bench"] = getattr(fn, "_do_bench", None)
    return {**older, "cache_results": getattr(fn, "cache_results", False)}
