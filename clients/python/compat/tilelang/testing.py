# SPDX-License-Identifier: Apache-2.0
"""Helpers of TileLang's own tests."""

from __future__ import annotations

import fnmatch
import functools
import json
import operator
import os
import random
import sys
import warnings

from kiln.profiler import assert_close as torch_assert_close
from kiln.target import device_target

from . import _absent

__all__ = ["main", "process_func", "regression", "requires_cdna", "requires_cuda", "requires_cuda_compute_version",
           "requires_cuda_compute_version_eq", "requires_cuda_compute_version_ge", "requires_cuda_compute_version_gt",
           "requires_cuda_compute_version_le", "requires_cuda_compute_version_lt", "requires_cuda_or_cdna", "requires_gfx950", "requires_llvm",
           "requires_package", "requires_rocm", "set_random_seed", "torch_assert_close"]


def main() -> None:
    """Runs the tests of the calling file."""
    import pytest

    sys.exit(pytest.main([sys._getframe(1).f_globals["__file__"], *sys.argv[1:]]))


def set_random_seed(seed: int = 42) -> None:
    random.seed(seed)
    for name in ("numpy", "torch"):
        module = sys.modules.get(name)
        if name == "numpy" and module is not None:
            module.random.seed(seed)
        if name == "torch" and module is not None:
            module.manual_seed(seed)


def _skip_unless(holds, reason: str):
    def decorate(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            if not holds():
                import pytest

                pytest.skip(reason)
            return function(*args, **kwargs)

        return run

    return decorate


def requires_cuda(function=None):
    decorate = _skip_unless(lambda: (device_target(0) or "").startswith("cuda:"), "needs an NVIDIA GPU")
    return decorate if function is None else decorate(function)


def requires_rocm(function=None):
    decorate = _skip_unless(lambda: (device_target(0) or "").startswith("hip:"), "needs an AMD GPU")
    return decorate if function is None else decorate(function)


def requires_gfx950(function):
    return _skip_unless(lambda: device_target(0, "hip") == "hip:gfx950", "needs an AMD gfx950")(function)


def requires_cdna(function):
    return _skip_unless(_is_cdna, "needs an AMD CDNA GPU")(function)


def requires_cuda_or_cdna(function):
    return _skip_unless(lambda: device_target(0, "cuda") is not None or _is_cdna(), "needs an NVIDIA or an AMD CDNA GPU")(function)


def _is_cdna() -> bool:
    return (device_target(0, "hip") or "").startswith("hip:gfx9")


def requires_llvm(function):
    return _skip_unless(lambda: False, "runs TVM's programs for the host's processor, which Kiln does not have")(function)


def _capability() -> tuple[int, int] | None:
    name = device_target(0) or ""
    if not name.startswith("cuda:sm_"):
        return None
    digits = name.removeprefix("cuda:sm_").rstrip("af")
    return int(digits[:-1]), int(digits[-1])


_MODES = {"ge": ("≥", operator.ge), "gt": (">", operator.gt), "eq": ("=", operator.eq), "le": ("≤", operator.le), "lt": ("<", operator.lt)}


def requires_cuda_compute_version(major: int, minor: int = 0, mode: str = "ge"):
    """Skips the test unless the GPU's compute capability compares so: "ge", "gt", "eq", "le" or "lt"."""
    symbol, compare = _MODES[mode]
    return _skip_unless(lambda: _capability() is not None and compare(_capability(), (major, minor)),
                        f"needs compute capability {symbol} {major}.{minor}")


def _mode(mode: str):
    return functools.partial(requires_cuda_compute_version, mode=mode)


requires_cuda_compute_version_ge, requires_cuda_compute_version_gt, requires_cuda_compute_version_eq = _mode("ge"), _mode("gt"), _mode("eq")
requires_cuda_compute_version_le, requires_cuda_compute_version_lt = _mode("le"), _mode("lt")


def requires_package(name: str):
    """A mark of pytest's: a script that calls the function itself runs it."""
    import importlib.util

    try:
        import pytest
    except ModuleNotFoundError:
        return lambda function: function
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs the package {name}")


_latencies: list[tuple[str, float]] = []


def process_func(function, name: str | None = None, /, **arguments) -> None:
    """Calls a function that measures something and keeps what it returns, a latency, for ``regression`` to print. ``name``: by default that of
    its module. Where five more calls give nothing above 0, a warning."""
    name = (name or function.__module__).removeprefix("regression_")
    for _ in range(6):
        latency = float(function(**arguments))
        if latency > 0:
            _latencies.append((name, latency))
            return
    warnings.warn(f"{name} measures {latency}, which is no latency", stacklevel=2)


def regression(prefixes=("regression_",), verbose: bool = True) -> None:
    """Calls the functions of the calling file that have such names, in order of the names, and prints a line "name: latency" for each
    ``process_func`` in them. ``verbose``: which is running, too. With TL_PERF_REGRESSION_FORMAT=json in the environment one line holds all; with
    TL_PERF_REGRESSION_ONLY the functions with one of these words, between commas, in their names are called alone."""
    names = sys._getframe(1).f_globals
    only = [word.strip() for word in os.environ.get("TL_PERF_REGRESSION_ONLY", "").split(",") if word.strip()]
    _latencies.clear()
    for name in sorted(n for n, value in names.items() if n.startswith(tuple(prefixes)) and callable(value)):
        short = name.removeprefix("regression_")
        if only and not any(word.lower() in short.lower() or fnmatch.fnmatch(short.lower(), word.lower()) for word in only):
            continue
        if verbose:
            print(f"  {short}", flush=True)
        names[name]()
    if os.environ.get("TL_PERF_REGRESSION_FORMAT", "").lower() == "json":
        rows = [{"name": name, "latency": latency} for name, latency in _latencies]
        print("__TILELANG_PERF_RESULTS_JSON__=" + json.dumps(rows, separators=(",", ":")))
        return
    for name, latency in _latencies:
        print(f"{name}: {latency}")


__getattr__ = _absent.getter(__name__)
