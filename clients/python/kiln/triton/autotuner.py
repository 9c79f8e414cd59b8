# SPDX-License-Identifier: Apache-2.0
"""``triton.autotune``, ``triton.Config`` and ``triton.heuristics``. Configurations are compiled at once and timed one after the other in this
process; on the emulator, where time says nothing, the first that compiles is taken, with a warning."""

from __future__ import annotations

import contextvars
import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

from ..bench import do_bench
from ..errors import NoEffectWarning
from .blocks import TensorDescriptor
from .builtin import unwrapped
from .runtime import KernelInterface, needs_more_registers, others_may_serve
from .specialize import TensorWrapper, element_of, emulated, is_tensor


class Config:
    """Values of tl.constexpr parameters, and options of the launch. An option that also stands in ``kwargs`` has its value from there."""

    def __init__(self, kwargs, num_warps=4, num_stages=3, num_ctas=1, maxnreg=None, pre_hook=None, ir_override=None):
        if ir_override is not None:
            raise ValueError("Config(ir_override=…): Kiln takes no text of Triton's compiler; write the kernel")
        self.kwargs, self.num_warps, self.num_stages, self.num_ctas, self.maxnreg = dict(kwargs), num_warps, num_stages, num_ctas, maxnreg
        self.pre_hook = pre_hook

    def all_kwargs(self) -> dict:
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages, "num_ctas": self.num_ctas, "maxnreg": self.maxnreg}
        return {**{name: value for name, value in options.items() if value is not None}, **self.kwargs}

    def __str__(self):
        return ", ".join(f"{name}: {value}" for name, value in self.all_kwargs().items())

    __repr__ = __str__


class _Around(KernelInterface):
    """A kernel with something done before each launch."""

    kiln_kernel = False

    def __init__(self, fn):
        self.fn, self.arg_names, self.__name__, self.__doc__ = fn, fn.arg_names, fn.__name__, fn.__doc__

    @property
    def base_fn(self):
        """The function that was decorated."""
        return self.fn.fn if not isinstance(self.fn, _Around) else self.fn.base_fn

    def warmup(self, *args, grid, **kwargs):
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"{self.__name__} is a Triton kernel: launch it as {self.__name__}[grid](…)")


class Heuristics(_Around):
    """Parameters whose values are computed from the arguments of each launch."""

    def __init__(self, fn, values: dict):
        super().__init__(fn)
        self.values = values

    def run(self, *args, grid, warmup=False, **kwargs):
        for name, value in self.values.items():
            kwargs[name] = value({**dict(zip(self.arg_names, args)), **kwargs})
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)


def heuristics(values: dict):
    """Decorator: ``{parameter: function of the launch's arguments by name}``."""
    return lambda fn: Heuristics(fn, values)


class Autotuner(_Around):
    """A kernel whose configuration is found for each key: the values of the arguments named in ``key``, and the types of all tensors."""

    def __init__(self, fn, arg_names, configs, key, reset_to_zero, restore_value, pre_hook=None, post_hook=None, prune_configs_by=None, warmup=None,
                 rep=None, use_cuda_graph=False, do_bench=None, cache_results=False):
        """As Triton's own, for programs derive from it. ``do_bench(call, quantiles=…)`` times in place of kiln.do_bench."""
        super().__init__(fn)
        if list(arg_names) != list(fn.arg_names):
            raise ValueError(f"{self.__name__}: autotune is given the parameters {', '.join(arg_names)}; the kernel has {', '.join(fn.arg_names)}")
        for name, value, instead in (("use_cuda_graph", use_cuda_graph, "times are those of the device's events; leave it out"),
                                     ("cache_results", cache_results, "kilnd stores kernels, and each process finds anew which is fastest")):
            if value:
                warnings.warn(f"triton.autotune({name}=True) has no effect in Kiln: {instead}", NoEffectWarning, stacklevel=3)
        self.configs, self.keys = list(configs) or [Config({})], [key] if isinstance(key, str) else list(key)
        self.reset_to_zero, self.restore_value = list(reset_to_zero or ()), list(restore_value or ())
        self.user_defined_pre_hook, self.user_defined_post_hook = pre_hook is not None, post_hook is not None
        self._own_pre_hook, self.post_hook, self.prune = pre_hook, post_hook, dict(prune_configs_by or {})
        self.bench = do_bench or (_timed(warmup, rep) if warmup is not None or rep is not None else None)
        self.cache: dict = {}
        self.best_config = self.nargs = None  # nargs: what those who derive from it keep the launch's arguments by name in
        for name in [name for name in self.keys if name not in self.arg_names]:
            warnings.warn(f"{self.__name__}: autotune's key has {name!r}, which is no parameter of the kernel and has no effect", NoEffectWarning,
                          stacklevel=3)
        for name in (*self.reset_to_zero, *self.restore_value):
            if name not in self.arg_names:
                raise ValueError(f"{self.__name__}: autotune names the parameter {name!r}; the kernel has {', '.join(self.arg_names)}")
        unknown = set(self.prune) - {"early_config_prune", "perf_model", "top_k"}
        if unknown:
            raise ValueError(f"prune_configs_by has {sorted(unknown)[0]!r}; known: early_config_prune, perf_model, top_k")

    def run(self, *args, grid, warmup=False, **kwargs):
        given = {**dict(zip(self.arg_names, args)), **kwargs}
        config = self._config(args, kwargs, given, grid)
        self.best_config = config
        if warmup:
            return self._warmed(config, args, kwargs, given, grid)
        self._before(config, given)
        return self.fn.run(*args, grid=grid, warmup=False, **self._together(config, given, kwargs))

    def _warmed(self, config: Config, args, kwargs, given: dict, grid):
        """The kernel of a configuration. Its hook, which may give descriptors their blocks, sees descriptors of its own."""
        own = {name: copy.copy(x) for name, x in given.items() if isinstance(x, TensorDescriptor)}
        if own:
            self._before(config, {**given, **own})
            args = [own.get(name, x) for name, x in zip(self.arg_names, args)]
            kwargs = {name: own.get(name, x) for name, x in kwargs.items()}
        return self.fn.run(*args, grid=grid, warmup=True, **self._together(config, given, kwargs))

    def _before(self, config: Config, given: dict) -> None:
        if config.pre_hook is not None:
            config.pre_hook({**given, **config.all_kwargs()})

    def _together(self, config: Config, given: dict, kwargs: dict) -> dict:
        both = sorted(set(config.kwargs) & set(given))
        if both:
            raise ValueError(f"{self.__name__}: the launch gives {both[0]}, and so do the configurations of autotune; leave it out of the launch")
        return {**kwargs, **config.all_kwargs()}

    def _config(self, args, kwargs, given: dict, grid) -> Config:
        if len(self.configs) == 1:
            return self.configs[0]
        key = tuple(unwrapped(given.get(name)) for name in self.keys if not is_tensor(given.get(name)))
        key += tuple(element_of(name, value).name for name, value in given.items() if is_tensor(value))
        if key not in self.cache:
            self.cache[key] = self._found(self._pruned(given, kwargs), args, kwargs, given, grid)
        return self.cache[key]

    def _pruned(self, given: dict, kwargs: dict) -> list:
        configs = self.configs
        if "early_config_prune" in self.prune:
            configs = self.prune["early_config_prune"](configs, dict(given), **kwargs)
            if not configs:
                raise ValueError(f"{self.__name__}: early_config_prune leaves no configuration")
        model, top = self.prune.get("perf_model"), self.prune.get("top_k", 1.0)
        if model is not None:
            count = int(len(self.configs) * top) if isinstance(top, float) and top <= 1.0 else int(top)
            if len(configs) > count:
                configs = sorted(configs, key=lambda config: model(**given, **config.all_kwargs()))[: max(count, 1)]
        return list(configs)

    def _found(self, configs, args, kwargs, given, grid) -> Config:
        """The fastest of those that compile."""
        if emulated():
            config = self._first(configs, args, kwargs, given, grid)
            if config is not None:
                warnings.warn(f"{self.__name__}: kernels are emulated, and their times say nothing; the first configuration that compiles is "
                              f"taken: {config}", stacklevel=5)
                return config
        compiled, failures = self._compiled(configs, args, kwargs, given, grid)
        if not compiled:
            compiled, _ = self._compiled(_too_narrow(failures), args, kwargs, given, grid, may_spill=True)
        if not compiled:
            config, failure = failures[0]
            raise RuntimeError(f"{self.__name__}: none of {len(configs)} configurations compiles; {config}: {failure}") from failure
        times = [(self._times(config, args, kwargs, given, grid, (0.5,))[0], i) for i, (config, _) in enumerate(compiled)]
        best = compiled[min(times)[1]][0]
        self._reset(best, given, reset_only=True)  # the launch that follows must not find what the measurements left
        return best

    def pre_hook(self, given: dict, reset_only: bool = False) -> None:
        """Before a measurement, and before the launch that follows: the caller's hook, and zeros."""
        if self._own_pre_hook is not None:
            self._own_pre_hook(given, reset_only=reset_only)
        for name in self.reset_to_zero:
            _zero(given[name])

    def _first(self, configs, args, kwargs, given, grid):
        """The first configuration whose kernel compiles, for the emulator; None where there is none."""
        for may_spill in (False, True):
            failures = []
            for config in configs:
                compiled, failed = self._compiled([config], args, kwargs, given, grid, may_spill)
                if compiled:
                    return config if _is_emulated(compiled[0][1]) else None
                failures += failed
            configs = _too_narrow(failures)
        return None

    def _reset(self, config: Config, given: dict, reset_only: bool) -> None:
        self.pre_hook({**given, **config.all_kwargs()}, reset_only=reset_only)

    # What classes that derive from Triton's call.

    def prune_configs(self, kwargs: dict) -> list:
        return self._pruned({**(self.nargs or {}), **kwargs}, kwargs)

    def _bench(self, *args, config: Config, grid, **kwargs) -> list:
        """Milliseconds: the median, and those that a fifth of the launches is below and above. Endless where it does not compile; on the emulator
        none."""
        given = {**dict(zip(self.arg_names, args)), **kwargs}
        compiled, _ = self._compiled([config], args, kwargs, given, grid)
        if not compiled or _is_emulated(compiled[0][1]):
            return [0.0 if compiled else float("inf")] * 3
        return self._times(config, args, kwargs, given, grid, (0.5, 0.2, 0.8))

    def _compiled(self, configs, args, kwargs, given, grid, may_spill=False) -> tuple:
        """([(configuration, kernel)], [(configuration, why not)]), both in order. ``may_spill``: also those that need far more registers than a
        thread has."""
        if not configs:
            return [], []

        def one(config):
            others_may_serve.set(not may_spill)
            try:
                return config, self._warmed(config, args, kwargs, given, grid)
            except ValueError:
                raise
            except Exception as failure:  # a configuration may be impossible; the others decide
                return config, failure

        with ThreadPoolExecutor(min(8, len(configs))) as pool:
            futures = [pool.submit(contextvars.copy_context().run, one, config) for config in configs]
            results = [future.result() for future in futures]
        return ([(c, r) for c, r in results if not isinstance(r, Exception)], [(c, r) for c, r in results if isinstance(r, Exception)])

    def _times(self, config: Config, args, kwargs, given, grid, quantiles: tuple) -> list:
        """Milliseconds. What ``restore_value`` names is as it was afterwards."""
        kept = {name: _copy(given[name]) for name in self.restore_value}

        def call():
            self._before(config, given)
            self._reset(config, given, reset_only=False)
            self.fn.run(*args, grid=grid, warmup=False, **self._together(config, given, kwargs))
            for name, value in kept.items():
                _restore(given[name], value)
            if self.post_hook is not None:
                self.post_hook(given, exception=None)

        measured = (self.bench or do_bench)(call, quantiles=quantiles)
        return list(measured) if isinstance(measured, (list, tuple)) else [measured] * len(quantiles)


def _timed(warmup, rep):
    """By so many milliseconds."""
    return lambda call, quantiles: do_bench(call, 25 if warmup is None else warmup, 100 if rep is None else rep, quantiles=quantiles)


def _too_narrow(failures) -> list:
    """The configurations that would compile if their kernels might spill."""
    return [config for config, problem in failures if needs_more_registers(problem)]


def _is_emulated(kernel) -> bool:
    return kernel.target.startswith("emu:")


def _bare(tensor):
    return tensor.base if isinstance(tensor, TensorWrapper) else tensor


def _copy(tensor):
    tensor = _bare(tensor)
    return tensor.clone() if hasattr(tensor, "clone") else tensor.copy()


def _zero(tensor) -> None:
    tensor = _bare(tensor)
    tensor.zero_() if hasattr(tensor, "zero_") else tensor.fill(0)


def _restore(tensor, value) -> None:
    tensor = _bare(tensor)
    tensor.copy_(value) if hasattr(tensor, "copy_") else tensor.__setitem__(..., value)


def autotune(configs, key, prune_configs_by=None, reset_to_zero=None, restore_value=None, pre_hook=None, post_hook=None, warmup=None, rep=None,
             use_cuda_graph=False, do_bench=None, cache_results=False):
    """Decorator."""
    return lambda fn: Autotuner(fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook, post_hook, prune_configs_by, warmup, rep,
                                use_cuda_graph, do_bench, cache_results)
