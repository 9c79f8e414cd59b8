# SPDX-License-Identifier: Apache-2.0
"""Loaded into the pytest processes of corpus.py. It writes one line for each test as it starts and as it ends, so that a process that is
lost costs the test it was in. KILN_CORPUS_LINES names that file, KILN_CORPUS_LEFT_OUT a JSON list of the tests that shall not run,
with or without their parameters. Of more than KILN_CORPUS_MOST cases that many are drawn by KILN_CORPUS_SEED."""

import importlib
import importlib.util
import json
import os
import random
import sys

LOST = 3  # the exit status of a process whose GPU context is lost


def _load():
    """The package under test, ours: a checkout's conftest may put its own first in sys.path. KILN_CORPUS_MODULE, "name=path", is a module of
    the checkout that its tests import from that package."""
    importlib.import_module(os.environ.get("KILN_CORPUS_PACKAGE", "tilelang"))
    name, _, path = os.environ.get("KILN_CORPUS_MODULE", "").partition("=")
    if name:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        package, _, last = name.rpartition(".")
        setattr(sys.modules[package], last, module)


_load()


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


def pytest_collection_modifyitems(config, items):
    with open(os.environ["KILN_CORPUS_LEFT_OUT"], encoding="utf-8") as file:
        left_out = set(json.load(file))
    most = int(os.environ.get("KILN_CORPUS_MOST", "0"))
    if most and len(items) > most:  # in the order that they stand in
        chosen = set(random.Random(os.environ["KILN_CORPUS_SEED"]).sample(range(len(items)), most))
        items[:] = [item for i, item in enumerate(items) if i in chosen]
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
