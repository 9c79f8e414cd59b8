# SPDX-License-Identifier: Apache-2.0
"""Choosing the fastest of several configurations. The daemon compiles and measures them on a GPU of its host like this process's, and remembers
what it found. Where it cannot, all are compiled (at once, with the priority of tuning), and those that compile are timed one after the other on
the GPU of this process; a line says why. Where there is no GPU the first that compiles is taken, with a warning."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import warnings
from dataclasses import dataclass
from typing import Any

from . import _proto, compiler, measured, notices
from . import target as targets
from ._calls import Calls, freeze
from .bench import check_backend, do_bench
from .compiler import no_backends
from .configurations import expand, label, parameters, spared
from .errors import CompileError, KilnError
from .functions import JITFunction
from .profiler import NeedsInputs, Profiler, TensorSupplyType, _as_list, assert_close

_inputs = threading.local()
_log = logging.getLogger("kiln")


@contextlib.contextmanager
def set_autotune_inputs(*tensors):
    """Configurations that are timed inside this block get these tensors; those of a function in the eager style that is called with its
    tensors get the call's."""
    before = getattr(_inputs, "tensors", None)
    _inputs.tensors = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else list(tensors)
    try:
        yield
    finally:
        _inputs.tensors = before


def get_autotune_inputs():
    """The tensors of the innermost ``set_autotune_inputs`` of this thread; None outside."""
    return getattr(_inputs, "tensors", None)


@dataclass
class AutotuneResult:
    """The fastest configuration and its kernel. ``libcode`` is the kernel's source, ``func`` its PrimFunc."""

    latency: float | None = None  # milliseconds; None: not measured
    config: dict | None = None
    ref_latency: float | None = None
    libcode: str | None = None
    func: Any = None
    kernel: Any = None
    watch: bytes = b""  # of the tuning that goes on behind it, for kiln.Client.watch


@dataclass
class ProfileArgs:
    """How configurations are timed and checked.

    ``warmup`` and ``rep``: milliseconds, as kiln.do_bench's; ``timeout``: seconds for compiling one. Inputs come from
    ``supply_prog(parameters)``, else are made up by ``supply_type``. Outputs are compared with those of ``ref_prog(*inputs)`` by ``rtol``,
    ``atol`` and ``max_mismatched_ratio``, or by ``manual_check_prog(ours, theirs)``, unless ``skip_check``; ``ref_prog`` is timed as well.
    ``early_stop``: a configuration whose first few calls take more than ``early_stop_factor`` times the fastest one's is measured no
    further. ``backend``: as kiln.do_bench's. ``do_not_specialize``: parameters whose values are not searched for anew: the configuration that was
    found for others is compiled for theirs. ``cache_input_tensors`` has no effect, with a warning.

    Where the daemon measures, ``warmup``, ``rep``, ``early_stop`` and ``timeout`` are its own; configurations are compared there with the first
    that runs, unless two others agree against it, and here with ``ref_prog`` unless ``skip_check``. ``in_process``: measure in this process.
    ``budget``: seconds that the daemon may take; 0: as long as it allows. ``budget_candidates``: it compiles and measures so many, of which its
    planner expects most; 0: all, the most promising first.

    ``tune``: "wait" for what is measured. "background": a call runs what the daemon's planner expects most of, or what was measured with another
    driver or compiler, and waits for no measurement (20 s at most for the planner); the daemon tunes behind it, and the first call after that runs
    what it found. "model": only the
    planner's word; "off": the first configuration that compiles. What was not measured is not compared with ``ref_prog``. A record that the
    daemon has counts in all of them but "off". ``measure_on_emulator``: where the target is the emulator's, for
    tests."""

    warmup: float = 25
    rep: float = 100
    timeout: float = 100
    supply_type: TensorSupplyType = TensorSupplyType.Auto
    ref_prog: Any = None
    supply_prog: Any = None
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    manual_check_prog: Any = None
    cache_input_tensors: bool = False
    do_not_specialize: Any = ()
    early_stop: bool = False
    early_stop_factor: float = 2.0
    backend: str = "event"
    in_process: bool = False
    budget: float = 0.0
    budget_candidates: int = 0
    measure_on_emulator: bool = False
    tune: str = "wait"

    def __post_init__(self):
        check_backend(self.backend)
        if self.tune not in measured.MODES:
            raise ValueError(f"tune is one of {', '.join(measured.MODES)}, not {self.tune!r}")
        notices.unused("autotune", cache_input_tensors=(self.cache_input_tensors, (False, None),
                                                        "each configuration gets inputs of its own; give them with "
                                                        "set_autotune_inputs(…) for all to have the same"))
        names = self.do_not_specialize
        self.do_not_specialize = frozenset([names] if isinstance(names, str) else names or ())


class Tuner:
    """Searches the configurations of one function for one set of arguments."""

    def __init__(self, function: JITFunction, configs, profile: ProfileArgs):
        self.function, self.configs, self.profile = function, configs, profile
        self._hopeless = None  # milliseconds beyond which a configuration is measured no further

    def run(self, args=(), kwargs=None) -> AutotuneResult:
        """The result for these arguments. RuntimeError where no configuration compiles, or none runs and gives the right result."""
        self.args, self.kwargs = args, kwargs or {}
        configs = expand(self.configs, self.args, self.kwargs)
        if not configs:
            raise ValueError(f"{self.function.__name__}: autotune has no configurations")
        if self.profile.tune == "off":
            return self._first_of(configs, range(len(configs)), self._trace)
        best = self._by_daemon(configs)
        if best is None and self.profile.tune != "wait":
            best = self._by_model(configs)
        return self._in_process(configs) if best is None else best

    def _by_model(self, configs) -> AutotuneResult:
        """Where the daemon has no such device: its planner knows it nevertheless."""
        client, target = compiler.default_client(), self.function.target_of(self.args, self.kwargs)
        kept, programs, failures = self._traced(configs)
        if not kept:
            raise self._none_compiles(configs, failures)
        own = targets.device_name(targets.current_device()) if targets.device_target(targets.current_device()) == target else None
        ranked = client.rank([client.request(func, target, options) for func, options in programs], target, board=own or "")
        runs = [one.index for one in ranked if not one.problem]
        if not runs:
            raise self._none_compiles(configs, [(kept[one.index], one.problem) for one in ranked])
        return self._first_of(kept, runs, lambda config: programs[kept.index(config)][0])

    def _first_of(self, configs, order, program, watch: bytes = b"") -> AutotuneResult:
        """The first that compiles. Nothing of it is measured."""
        failures = []
        for index in order:
            try:
                kernel = compiler.compile(program(configs[index]), config=configs[index], priority="TUNING",
                                          **{**self.function.compile_options(), "target": self.function.target_of(self.args, self.kwargs)})
            except Exception as failure:  # a configuration may be impossible; the others decide
                failures.append((configs[index], failure))
                continue
            return AutotuneResult(None, configs[index], None, kernel.get_kernel_source(), kernel.prim_func, kernel, watch)
        raise self._none_compiles(configs, failures)

    def _in_process(self, configs) -> AutotuneResult:
        kernels = self._compile(configs)
        if targets.device_target(0) is None or kernels[0][1].target.startswith("emu:"):
            return self._unmeasured(kernels)
        best = problem = None
        for config, kernel in kernels:
            try:
                latency = self._measure(kernel)
            except NeedsInputs as failure:
                raise ValueError(f"{failure}. While it is tuned, give them: `with set_autotune_inputs(…):`, or supply_prog=…") from failure
            except Exception as failure:  # out of resources, or a wrong result: the configuration loses
                warnings.warn(f"{self.function.__name__} with {config}: {failure}", stacklevel=4)
                problem = problem or (config, failure)
                continue
            if self.profile.early_stop and latency * self.profile.early_stop_factor < (self._hopeless or math.inf):
                self._hopeless = latency * self.profile.early_stop_factor
            if best is None or latency < best.latency:
                best = AutotuneResult(latency, config, None, kernel.get_kernel_source, kernel.prim_func, kernel)
        if best is None:
            raise RuntimeError(f"{self.function.__name__}: none of the {len(kernels)} configurations that compile ran and gave the right "
                               f"result; {problem[0]}: {problem[1]}") from problem[1]
        return self._finished(best)

    def _finished(self, best: AutotuneResult) -> AutotuneResult:
        best.libcode = best.libcode()
        best.ref_latency = self._reference_latency(best.kernel)
        best.kernel.update_tuner_result(best.latency, best.config, best.ref_latency)
        return best

    def _by_daemon(self, configs) -> AutotuneResult | None:
        """What the daemon finds or knows; None where it cannot measure for this process."""
        profile, target = self.profile, self.function.target_of(self.args, self.kwargs)
        emulates = target.startswith("emu:") and (profile.measure_on_emulator or profile.tune == "model")
        if targets.device_target(0) is None and not emulates:
            return None
        client = compiler.default_client()
        try:
            if profile.in_process or profile.backend != "event":
                raise measured.InProcess("so it was asked" if profile.in_process else f"backend={profile.backend!r} times launches its own way")
            device = measured.device_for(client, target, emulates)
            kept, programs, failures = self._traced(configs)
            if not kept:
                raise self._none_compiles(configs, failures)
            arguments = self._arguments(kept[0], programs[0][0])
        except measured.InProcess as why:
            self._say_unmeasured(why)
            return None
        labels = [label(config) for config in kept]
        requests = [client.request(func, target, options, priority="TUNING") for func, options in programs]
        bar = measured.progress_bar(self.function.__name__)
        try:
            found = client.tune(requests, device, arguments, labels=labels, budget=profile.budget, on_progress=bar, mode=profile.tune,
                                 budget_candidates=profile.budget_candidates, measure_on_emulator=profile.measure_on_emulator)
        except KilnError as failure:
            if measured.unavailable(failure):
                self._say_unmeasured(failure)
                return None
            if isinstance(failure, CompileError):
                raise RuntimeError(f"{self.function.__name__}: {failure}") from failure
            raise
        finally:
            measured.end_bar(bar)
        if not found.HasField("record"):
            if found.untuned:
                _log.info("kiln: %s is not tuned in the background: %s", self.function.__name__, found.untuned)
            order = [choice - 1 for choice in found.choices]
            return self._first_of(kept, order, lambda config: programs[kept.index(config)][0], bytes(found.watch))
        return self._best_of(found.record, kept, programs, target)

    def _say_unmeasured(self, why):
        """Of a tuning that is waited for, once."""
        if self.profile.tune == "wait":
            measured.say_in_process(why)
        elif self.profile.tune == "background":
            _log.info("kiln: %s is not tuned in the background: %s", self.function.__name__, why)

    def _best_of(self, record, configs, programs, target: str) -> AutotuneResult:
        """The winner; where there is a ``ref_prog`` that it does not agree with, the next. The daemon may have found others wrong because the one
        that it compares with is."""
        numbers = _proto.messages().enums["TuneOutcome"].values_by_name
        runs, wrong = [numbers[f"TUNE_{name}"].number for name in ("MEASURED", "DROPPED")], numbers["TUNE_WRONG"].number
        checks = self.profile.ref_prog is not None and not self.profile.skip_check
        for config, said in zip(configs, record.measurements):
            if said.problem:
                warnings.warn(f"{self.function.__name__} with {config}: {said.problem}", stacklevel=5)
        if record.caution and not checks:
            warnings.warn(f"{self.function.__name__}: the check of the outputs says little: {record.caution}; give other inputs", stacklevel=5)
        order = sorted((i for i, said in enumerate(record.measurements) if said.outcome in runs or (checks and said.outcome == wrong)),
                       key=lambda i: (i != record.winner - 1, record.measurements[i].outcome == wrong, record.measurements[i].median))
        problem = None
        for i in order:
            kernel = compiler.compile(programs[i][0], config=configs[i], priority="TUNING",
                                      **{**self.function.compile_options(), "target": target})
            try:
                if checks:
                    self._check(kernel, self._tensors(kernel))
            except Exception as failure:
                warnings.warn(f"{self.function.__name__} with {configs[i]}: {failure}", stacklevel=5)
                problem = problem or failure
                continue
            latency = record.measurements[i].median / 1000
            return self._finished(AutotuneResult(latency, configs[i], None, kernel.get_kernel_source, kernel.prim_func, kernel))
        raise RuntimeError(f"{self.function.__name__}: none of the configurations agrees with ref_prog; {problem}") from problem

    def _arguments(self, config, func) -> list:
        """What the daemon gives the configurations, chosen as ``_tensors`` chooses."""
        if self.function.mode == "eager":
            values = self.function.launch_arguments(self.args, {**self.kwargs, **parameters(config)})
            if not any(value is None for value in values):
                return measured.given(values, func, exactly=False)
        if get_autotune_inputs() is not None:
            return measured.given(get_autotune_inputs(), func, exactly=True)
        if self.profile.supply_prog is not None:
            raise measured.InProcess("supply_prog makes the inputs here")
        return measured.recipes(func, self.profile.supply_type)

    def _traced(self, configs) -> tuple[list, list, list]:
        """(configurations that can be traced, (function, compile options) of each, (configuration, failure) of the others)."""
        kept, programs, failures = [], [], []
        options = {name: value for name, value in self.function.compile_options().items()
                   if name in ("out_idx", "pass_configs", "compile_flags", "allow_tf32")}
        for config in configs:
            try:
                programs.append(compiler.prepared(self._trace(config), **options))
                kept.append(config)
            except Exception as failure:  # a configuration may be impossible; the others decide
                failures.append((config, failure))
        return kept, programs, failures

    def _none_compiles(self, configs, failures) -> RuntimeError:
        cause = failures[0][1] if failures else None
        error = RuntimeError(f"{self.function.__name__}: none of {len(configs)} configurations compiles"
                             + (f"; {failures[0][0]}: {cause}" if failures else ""))
        error.__cause__ = cause
        return error

    def compiled(self, best: AutotuneResult, args, kwargs) -> AutotuneResult:
        """A result for other arguments: the same configuration, compiled for these, and not measured."""
        self.args, self.kwargs = args, kwargs
        ((config, kernel),) = self._compile([best.config])
        return AutotuneResult(None, config, None, kernel.get_kernel_source(), kernel.prim_func, kernel)

    def _compile(self, configs):
        kept, functions, failures = [], [], []
        for config in configs:
            try:
                functions.append(self._trace(config))
                kept.append(config)
            except Exception as failure:  # a configuration may be impossible; the others decide
                failures.append((config, failure))
        labels = [f"{self.function.__name__} with {config}" for config in kept]
        kernels = compiler.par_compile(functions, ignore_error=True, labels=labels, priority="TUNING", timeout=self.profile.timeout,
                              **{**self.function.compile_options(), "target": self.function.target_of(self.args, self.kwargs)})
        result = [(c, k) for c, k in zip(kept, kernels) if k is not None]
        if not result:
            raise self._none_compiles(configs, failures)
        for config, kernel in result:
            kernel.config = config
        return result

    def _trace(self, config):
        """The program of a configuration, which may hold pass_configs of its own."""
        func = self.function.get_tir(*self.args, **{**self.kwargs, **parameters(config)})
        func.pass_configs.update(config.get("pass_configs") or {})
        return func

    def _unmeasured(self, kernels) -> AutotuneResult:
        config, kernel = kernels[0]
        warnings.warn(f"{self.function.__name__}: there is no GPU to measure on; the first configuration that compiles is taken, {config}",
                      stacklevel=4)
        return AutotuneResult(None, config, None, kernel.get_kernel_source(), kernel.prim_func, kernel)

    def _tensors(self, kernel):
        if self.function.mode == "eager":
            arguments = self.function.launch_arguments(self.args, {**self.kwargs, **parameters(kernel.config)})
            if not any(argument is None for argument in arguments):
                return arguments
        if get_autotune_inputs() is not None:
            return get_autotune_inputs()
        if self.profile.supply_prog is not None:
            return self.profile.supply_prog([p for p in kernel.params if not p.output])
        return Profiler(kernel, self.profile.supply_type).inputs()

    def _measure(self, kernel):
        tensors = self._tensors(kernel)
        if not self.profile.skip_check:
            self._check(kernel, tensors)
        timed = spared(kernel, tensors)
        return do_bench(lambda: kernel(*timed), self.profile.warmup, self.profile.rep, backend=self.profile.backend,
                        early_stop_baseline=self._hopeless)

    def _check(self, kernel, tensors):
        if self.profile.ref_prog is None:
            return
        ours, theirs = _as_list(kernel(*spared(kernel, tensors))), _as_list(self.profile.ref_prog(*spared(kernel, tensors)))
        if self.profile.manual_check_prog is not None:
            self.profile.manual_check_prog(ours, theirs)
            return
        for a, b in zip(ours, theirs):
            assert_close(a, b, self.profile.rtol, self.profile.atol, self.profile.max_mismatched_ratio)

    def _reference_latency(self, kernel):
        if self.profile.ref_prog is None:
            return None
        tensors = spared(kernel, self._tensors(kernel))
        return do_bench(lambda: self.profile.ref_prog(*tensors), self.profile.warmup, self.profile.rep)


class _Noted(dict):
    """The kernel, or in the eager style the launch, of each set of arguments that counts. Emptied, the function forgets what it found."""

    def __init__(self, forget):
        super().__init__()
        self._forget = forget

    def note(self, calls: Calls, counting: dict, result, scalars: frozenset):
        try:
            self[calls.key((), counting, scalars)] = result
        except TypeError:  # an unhashable argument
            pass

    def clear(self):
        super().clear()
        self._forget()


class AutotunedFunction:
    """What ``autotune`` makes of a jit function. Where a call gives every tuned parameter, nothing is searched."""

    def __init__(self, function: JITFunction, configs, profile: ProfileArgs):
        functools.update_wrapper(self, function)
        self.jit, self.configs, self.profile = function, configs, profile
        self._names = list(function.signature.parameters)
        self._tuner_cache = _Noted(self._forget)
        self._watching: set = set()  # keys of tunings that go on
        self._watched: set = set()  # and of those whose end has been told
        self._forget()

    def _forget(self):
        self._best, self._calls = Calls(self._names), Calls(self._names)

    def _given(self, args, kwargs) -> bool:
        supplied = set(self._names[: len(args)]) | set(kwargs)
        tuned = {name for config in expand(self.configs, args, kwargs) for name in parameters(config)}
        return tuned <= supplied

    def _counting(self, args, kwargs) -> tuple[dict, tuple]:
        """(the arguments that decide what is found, by name; the values of the others)."""
        given = {**dict(zip(self._names, args)), **kwargs}
        if len(args) > len(self._names):
            given["*"] = args[len(self._names):]
        others = self.profile.do_not_specialize
        return ({name: given[name] for name in sorted(given) if name not in others},
                tuple((name, freeze(given[name])) for name in sorted(given) if name in others))

    def tune(self, *args, **kwargs) -> AutotuneResult:
        """The search's result for these arguments; what was found is kept by shapes, strides and types of tensors and by other arguments'
        values, those of ``do_not_specialize`` left out: for other values of these the configuration is compiled anew. Scalars that the kernel
        takes at run time do not count; which these are is known once a search is over."""
        counting, others = self._counting(args, kwargs)
        tuner = Tuner(self.jit, self.configs, self.profile)
        known = self._best  # another one, once a tuning in the background has ended
        found = known.find((), counting)
        if found is None:
            best = tuner.run(args, kwargs)
            known.keep((), counting, (best, others), self._launch(best, args, kwargs)[1])
            # One whose record the daemon could not keep would be tuned and watched for ever.
            if best.watch and best.watch not in self._watching and best.watch not in self._watched:
                self._watching.add(best.watch)
                threading.Thread(target=self._await, args=(compiler.default_client(), best.watch), name="kiln-watch", daemon=True).start()
            return best
        best, searched = found
        return best if searched == others else tuner.compiled(best, args, kwargs)

    def _await(self, client, key: bytes):
        """Until the daemon has tuned: then nothing that was chosen before counts, and the next call asks again."""
        try:
            found = client.watch(key)
        except Exception as failure:
            found = None
            _log.warning("kiln: %s was not tuned in the background: %s", self.jit.__name__, failure)
        if found is not None:
            self._watched.add(key)
        self._watching.discard(key)  # of a tuning that has ended in vain whoever chooses again watches again
        if found is not None:
            self._tuner_cache.clear()

    def _launch(self, best: AutotuneResult, args, kwargs):
        if self.jit.mode == "lazy":
            return best.kernel, frozenset()
        return self.jit.launch(best.kernel, args, kwargs, parameters(best.config))

    def __call__(self, *args, **kwargs):
        if kwargs.pop("__return_kernel", False):  # TileLang's way to ask for it
            return self.compile(*args, **kwargs)
        calls = self._calls  # another one, once a tuning in the background has ended
        known = calls.find(args, kwargs)
        if known is None:
            known, scalars = self._prepared(args, kwargs)
            calls.keep(args, kwargs, known, scalars)
            self._tuner_cache.note(Calls(self._names), self._counting(args, kwargs)[0], known, scalars)
        return known if self.jit.mode == "lazy" else known(args, kwargs)

    def _prepared(self, args, kwargs):
        if self._given(args, kwargs):
            return self.jit.prepared(args, kwargs)
        return self._launch(self.tune(*args, **kwargs), args, kwargs)

    def compile(self, *args, **kwargs):
        """The Kernel: of the fastest configuration, or of the one that the arguments give."""
        return self.jit.compile(*args, **kwargs) if self._given(args, kwargs) else self.tune(*args, **kwargs).kernel

    def __getattr__(self, name):
        return getattr(self.__dict__["jit"], name)


def autotune(function=None, *, configs=None, **profile):
    """Decorator, above kiln.jit. ``configs``: a list of dicts, a dict of lists, or a function of the arguments. ``profile``: fields of
    ProfileArgs; ``tune="background"`` lets no call wait for a measurement."""
    if function is None:
        return lambda f: autotune(f, configs=configs, **profile)
    if not isinstance(function, JITFunction):
        raise TypeError("autotune goes above jit: @autotune(configs=…) on the line over @jit")
    if configs is None:
        raise ValueError("autotune needs configs: a list of dicts, a dict of lists, or a function that returns one of them")
    return AutotunedFunction(function, configs, ProfileArgs(**profile))


class AutoTuner:
    """The same with the settings given one after the other: ``AutoTuner.from_kernel(f, configs).set_profile_args(…).run()``."""

    ALLOW_TF32 = False  # as jit takes it, for a function that is not one yet

    def __init__(self, kernel, configs):
        self.kernel, self.configs, self.profile, self.compile_args = kernel, configs, ProfileArgs(), {}

    @classmethod
    def from_kernel(cls, kernel, configs):
        """``kernel``: a jit function, or one that jit takes."""
        return cls(kernel, configs)

    def set_compile_args(self, out_idx=None, target=None, execution_backend=None, target_host=None, verbose=None, pass_configs=None):
        """As jit's, for a function that is not one yet. ``execution_backend`` and ``target_host`` have no effect, with a warning."""
        no_backends(execution_backend, target_host)
        self.compile_args = dict(out_idx=out_idx, target=target, pass_configs=pass_configs, verbose=verbose)
        return self

    def set_profile_args(self, **profile):
        """Fields of ProfileArgs. TypeError for others."""
        self.profile = ProfileArgs(**profile)
        return self

    def run(self, warmup=25, rep=100, timeout=100, use_pipeline=False, enable_grouped_compile=False, group_compile_size=2,
            benchmark_devices=None,
            benchmark_multi_gpu=False, early_stop=None, early_stop_factor=None):
        """The AutotuneResult. ``warmup`` and ``rep`` in milliseconds, ``timeout`` in seconds; ``early_stop`` and ``early_stop_factor`` as
        in ProfileArgs. The others have no effect, with a warning."""
        alone = "configurations are measured one after the other on the GPU of this process"
        at_once = "all configurations are compiled at once anyway"
        notices.unused("AutoTuner.run", use_pipeline=(use_pipeline, (False,), alone), benchmark_devices=(benchmark_devices, (None, []),
            alone),
                       benchmark_multi_gpu=(benchmark_multi_gpu, (False,), alone), enable_grouped_compile=(enable_grouped_compile, (False,
                           ), at_once),
                       group_compile_size=(group_compile_size, (2,), at_once))
        self.profile.warmup, self.profile.rep, self.profile.timeout = warmup, rep, timeout
        if early_stop is not None:
            self.profile.early_stop = early_stop
        if early_stop_factor is not None:
            self.profile.early_stop_factor = early_stop_factor
        compile_args = {"allow_tf32": self.ALLOW_TF32, **self.compile_args}
        function = self.kernel if isinstance(self.kernel, JITFunction) else JITFunction(self.kernel, **compile_args)
        return Tuner(function, self.configs, self.profile).run()
