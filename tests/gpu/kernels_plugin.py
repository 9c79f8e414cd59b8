# SPDX-License-Identifier: Apache-2.0
"""Loaded beside corpus_plugin.py into pytest's processes of kernels_main.py. It notes which kernels each test launches. KILN_KERNELS_LINES names
the file that it writes a line for each test into. KILN_KERNELS_WANTED: {test: kernels} whose first launch in the test is written to a file of the
folder KILN_KERNELS_RECORDS; with KILN_KERNELS_STOP=1 a test ends when all of its kernels are. KILN_KERNELS_DRY=1: nothing is launched, and nothing
compared, to see quickly which kernels a test reaches. KILN_KERNELS_CONFIGS: of what a kernel may be tuned over, so many configurations are tried,
the same ones by every package."""

import json
import os
import sys
import tempfile

import pytest

import kernels_record
from kernels_record import name_of

_DRY, _STOP = (os.environ.get(f"KILN_KERNELS_{name}") == "1" for name in ("DRY", "STOP"))
_WANTED = json.loads(os.environ.get("KILN_KERNELS_WANTED", "{}"))


class Seen:
    """Of the test that runs: its name, its kernels, and of those that are wanted {kernel: its file, or why there is none}."""

    test = ""
    kernels: list = []
    records: dict = {}


def _record(name, kernel, grid, args, kwargs) -> None:
    handle, path = tempfile.mkstemp(dir=os.environ["KILN_KERNELS_RECORDS"])
    os.close(handle)
    try:
        kernels_record.write(path, kernel, grid, args, kwargs)
        Seen.records[name] = {"record": path}
    except Exception as problem:  # the test goes on
        os.remove(path)
        Seen.records[name] = {"note": f"not recorded: {type(problem).__name__}: {problem}"}


def _watched(kernel, grid, launch):
    """What ``kernel[grid]`` gives."""
    name = name_of(kernel)

    def call(*args, **kwargs):
        if name not in Seen.kernels:
            Seen.kernels.append(name)
        if _DRY:
            return None
        wanted = _WANTED.get(Seen.test, ())
        if name in wanted and name not in Seen.records:
            _record(name, kernel, grid, args, kwargs)
            if _STOP and len(Seen.records) == len(wanted):
                pytest.skip("all that was wanted is recorded")
        return launch(*args, **kwargs)

    return call


def _install():
    from triton.runtime import jit

    plain = jit.KernelInterface.__getitem__
    jit.KernelInterface.__getitem__ = lambda self, grid: _watched(self, grid, plain(self, grid))
    kernels_record.try_few(int(os.environ.get("KILN_KERNELS_CONFIGS", "0")))
    if _DRY:
        import torch

        torch.testing.assert_close, torch.allclose = (lambda *args, **kwargs: None), (lambda *args, **kwargs: True)


_install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid, location):
    Seen.test, Seen.kernels, Seen.records = nodeid, [], {}


def pytest_runtest_logreport(report):
    if report.when == "call":
        with open(os.environ["KILN_KERNELS_LINES"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"id": report.nodeid, "outcome": report.outcome, "kernels": Seen.kernels, "records": Seen.records}) + "\n")


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
