# SPDX-License-Identifier: Apache-2.0
"""Loaded into the pytest processes of corpus.py. It writes one line for each test as it starts and as it ends, so that a process that is
lost costs the test it was in. KILN_CORPUS_LINES names that file, KILN_CORPUS_LEFT_OUT a JSON list of the tests that shall not run,
with or without their parameters. Of a function with more than KILN_CORPUS_MOST cases that many run, drawn by KILN_CORPUS_SEED.
KILN_CORPUS_DEVICE is the device of tensors where it is not the GPU; kernels then run on the emulator."""

import importlib
import importlib.util
import json
import os
import random
import sys

import pytest

LOST = 3  # the exit status of a process whose GPU context is lost


def _load():
    """The package under test, ours: a checkout's conftest may put its own first in sys.path. KILN_CORPUS_MODULES, "name=path:…", are modules
    of the checkout that its tests import from that package."""
    importlib.import_module(os.environ.get("KILN_CORPUS_PACKAGE", "tilelang"))
    for named in filter(None, os.environ.get("KILN_CORPUS_MODULES", "").split(os.pathsep)):
        name, _, path = named.partition("=")
        if not os.path.exists(path):
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        package, _, last = name.rpartition(".")
        setattr(sys.modules[package], last, module)


def _of_device() -> str:
    return os.environ.get("KILN_CORPUS_DEVICE", "cuda")


if _of_device() != "cuda":
    import corpus_emulated

    corpus_emulated.install(_of_device())
_load()


# Fixtures that a checkout may leave to a plugin of its own.


@pytest.fixture
def device():
    return _of_device()


@pytest.fixture
def fresh_triton_cache(tmp_path):
    yield str(tmp_path)


@pytest.fixture
def fresh_knobs():
    yield sys.modules["triton"].knobs


def pytest_configure(config):
    if hasattr(config.option, "device"):
        config.option.device = _of_device()


def _write(**line):
    with open(os.environ["KILN_CORPUS_LINES"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _reason(report) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return crash.message
    if isinstance(report.longrepr, tuple):  # of a skip: file, line, reason
        return str(report.longrepr[2])
    lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E  ")]
    return (errors or lines or [""])[-1]


def _sample(items, most: int) -> list:
    """Of each function at most that many cases, in the order that they stand in; 0: all."""
    functions = {}
    for item in items:
        functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    chosen = set()
    for name, cases in functions.items():
        chance = random.Random(f"{os.environ.get('KILN_CORPUS_SEED')} {name}")
        chosen.update(id(item) for item in (cases if not 0 < most < len(cases) else chance.sample(cases, most)))
    return [item for item in items if id(item) in chosen]


def pytest_collection_modifyitems(config, items):
    with open(os.environ["KILN_CORPUS_LEFT_OUT"], encoding="utf-8") as file:
        left_out = set(json.load(file))
    items[:] = _sample(items, int(os.environ.get("KILN_CORPUS_MOST", "0")))
    _write(collected=[item.nodeid for item in items])
    items[:] = [item for item in items if not {item.nodeid, item.nodeid.split("[")[0]} & left_out]


def pytest_collectreport(report):
    if report.outcome != "passed":
        _write(file=report.nodeid, outcome=report.outcome, error=_reason(report))


def pytest_runtest_logstart(nodeid, location):
    _write(started=nodeid)


def pytest_runtest_logreport(report):
    """A test has three reports. That of the call tells; the others where they fail or skip."""
    if report.when == "call" or report.outcome != "passed":
        error = "" if report.outcome == "passed" else _reason(report)
        _write(id=report.nodeid, outcome=report.outcome, error=error, seconds=round(report.duration, 2))


def pytest_runtest_logfinish(nodeid, location):
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # other processes need it
    except RuntimeError:
        os._exit(LOST)
