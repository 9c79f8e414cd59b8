# SPDX-License-Identifier: Apache-2.0
"""Loaded beside corpus_plugin.py into pytest's processes of kernels_main.py. It notes which kernels each test launches, and with
KILN_KERNELS_TIME=1 times them on the test's own arguments. KILN_KERNELS_LINES names the file that it writes a line for each test into.
KILN_KERNELS_DRY=1: nothing is launched, and nothing compared, to see quickly which kernels a test reaches. KILN_KERNELS_CONFIGS: of what a
kernel may be tuned over, so many configurations are tried, the same ones by every package."""

import json
import os
import statistics
import sys

import pytest

_DRY, _TIME = os.environ.get("KILN_KERNELS_DRY") == "1", os.environ.get("KILN_KERNELS_TIME") == "1"
_WANTED = json.loads(os.environ.get("KILN_KERNELS_WANTED", "{}"))  # {test: the kernels to be timed in it}
_LAUNCHES = 7
_QUEUE_CYCLES = 8_000_000  # the card waits until all launches are in its queue, so that the host's part counts for nobody


class Seen:
    """Of the test that runs: its name, and {kernel: milliseconds, or None}."""

    test = ""
    kernels: dict = {}


def name_of(kernel) -> str:
    """"module:function" of what was decorated with triton.jit."""
    while not hasattr(kernel, "__code__"):
        kernel = kernel.fn
    return f"{kernel.__module__}:{kernel.__qualname__}"


def _tensors(x, found: list) -> list:
    if hasattr(x, "data_ptr") and hasattr(x, "clone"):
        found.append(x)
    elif isinstance(x, (tuple, list)):
        for part in x:
            _tensors(part, found)
    elif hasattr(x, "base") and hasattr(x.base, "clone"):
        found.append(x.base)
    return found


def _timed(launch, arguments) -> float:
    """Milliseconds of a launch, the median. Before each one its tensors are what they were at first, and afterwards as well."""
    import torch

    kept = [(tensor, tensor.detach().clone()) for tensor in arguments]

    def restore():
        for tensor, value in kept:
            tensor.detach().copy_(value)

    launch()  # tuned, compiled and loaded
    restore()
    torch.cuda.synchronize()
    torch.cuda._sleep(_QUEUE_CYCLES)
    events = []
    for _ in range(_LAUNCHES):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        launch()
        end.record()
        restore()
        events.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def _watched(kernel, grid, launch):
    """What ``kernel[grid]`` gives."""
    name = name_of(kernel)

    def call(*args, **kwargs):
        first = name not in Seen.kernels
        Seen.kernels.setdefault(name, None)
        if _DRY:
            return None
        wanted = _WANTED.get(Seen.test, ()) if _TIME else ()
        if first and name in wanted:
            Seen.kernels[name] = _timed(lambda: launch(*args, **kwargs), _tensors([*args, *kwargs.values()], []))
            if all(Seen.kernels.get(other) for other in wanted):
                pytest.skip("all that was wanted is timed")
        return launch(*args, **kwargs)

    return call


def _few(configs: list, most: int) -> list:
    """Some of them, from the first to the last."""
    return configs if len(configs) <= most else [configs[i * (len(configs) - 1) // max(most - 1, 1)] for i in range(most)]


def _install():
    from triton.runtime import autotuner, jit

    plain = jit.KernelInterface.__getitem__
    jit.KernelInterface.__getitem__ = lambda self, grid: _watched(self, grid, plain(self, grid))
    most = int(os.environ.get("KILN_KERNELS_CONFIGS", "0"))
    if most:
        begin = autotuner.Autotuner.__init__

        def fewer(self, fn, arg_names, configs, *args, **kwargs):
            begin(self, fn, arg_names, _few(list(configs), most), *args, **kwargs)

        autotuner.Autotuner.__init__ = fewer
    if _DRY:
        import torch

        torch.testing.assert_close, torch.allclose = (lambda *args, **kwargs: None), (lambda *args, **kwargs: True)


_install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid, location):
    Seen.test, Seen.kernels = nodeid, {}


def pytest_runtest_logreport(report):
    if report.when == "call":
        with open(os.environ["KILN_KERNELS_LINES"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"id": report.nodeid, "outcome": report.outcome, "kernels": Seen.kernels}) + "\n")


def _do_not_refuse() -> None:
    """FLA refuses a product that versions of Triton's own compiler get wrong on Hopper. Kiln has the version, and not the fault."""
    refuses = sys.modules.get("fla.ops.common.chunk_o")
    if refuses is not None and "kiln" in sys.modules:
        refuses.TRITON_ABOVE_3_7_1 = True


def _numbers(x) -> list:
    if isinstance(x, (list, tuple)):
        return [n for part in x for n in _numbers(part)]
    return [x] if isinstance(x, int) and not isinstance(x, bool) and x > 0 else []


def size_of(item) -> float:
    """Of a test's parameters: the product of its numbers, by which tests of one function are compared."""
    size = 1.0
    for value in getattr(getattr(item, "callspec", None), "params", {}).values():
        for number in _numbers(value):
            size *= number
    return size


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Of each function the smallest test, and the names of the others by size, where nothing is launched. Nothing is compared either."""
    _do_not_refuse()
    if not _DRY:
        return
    for module in {item.module for item in items}:
        for name in [name for name in vars(module) if name.startswith("assert_") or name == "close"]:
            setattr(module, name, lambda *args, **kwargs: None)
    functions: dict = {}
    for item in items:
        functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    ordered = {name: sorted(cases, key=size_of) for name, cases in functions.items()}
    with open(os.environ["KILN_KERNELS_LINES"], "a", encoding="utf-8") as file:
        file.writelines(json.dumps({"function": name, "sizes": [[item.nodeid, size_of(item)] for item in cases]}) + "\n"
                        for name, cases in ordered.items())
    items[:] = [item for item in items if item is ordered[item.nodeid.split("[")[0]][0]]
