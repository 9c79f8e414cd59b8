# SPDX-License-Identifier: Apache-2.0
"""Helpers of TileLang's own tests."""

from __future__ import annotations

import functools
import random
import sys

from kiln.profiler import assert_close as torch_assert_close
from kiln.target import device_target

from . import _absent

__all__ = ["main", "requires_cuda", "requires_rocm", "requires_cuda_compute_version", "requires_cuda_compute_version_ge",
           "requires_cuda_compute_version_eq", "requires_cuda_compute_version_le", "requires_cuda_compute_version_lt", "requires_package",
           "set_random_seed", "torch_assert_close"]


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


def _capability() -> tuple[int, int] | None:
    name = device_target(0) or ""
    if not name.startswith("cuda:sm_"):
        return None
    digits = name.removeprefix("cuda:sm_").rstrip("af")
    return int(digits[:-1]), int(digits[-1])


def _compare(compare, symbol: str):
    def requires(major: int, minor: int = 0):
        holds = lambda: _capability() is not None and compare(_capability(), (major, minor))  # noqa: E731
        return _skip_unless(holds, f"needs compute capability {symbol} {major}.{minor}")

    return requires


requires_cuda_compute_version = requires_cuda_compute_version_ge = _compare(lambda a, b: a >= b, "≥")
requires_cuda_compute_version_eq = _compare(lambda a, b: a == b, "=")
requires_cuda_compute_version_le = _compare(lambda a, b: a <= b, "≤")
requires_cuda_compute_version_lt = _compare(lambda a, b: a < b, "<")


def requires_package(name: str):
    import importlib.util

    return _skip_unless(lambda: importlib.util.find_spec(name) is not None, f"needs the package {name}")


__getattr__ = _absent.getter(__name__)
