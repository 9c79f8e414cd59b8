# SPDX-License-Identifier: Apache-2.0
import importlib.util
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
if importlib.util.find_spec("triton") is None:
    sys.path.insert(0, str(HERE.parents[1] / "compat-triton"))


@pytest.fixture(autouse=True)
def emulated(request, monkeypatch):
    """Kernels run on the emulator, through the daemon of the file's tests, which looks for races and accesses out of bounds. Files that
    compile nothing say so: DAEMON = False. KILN_TRITON_TARGET names another target."""
    import kiln

    monkeypatch.setenv("KILN_TARGET", os.environ.get("KILN_TRITON_TARGET", "emu:sm_90a"))
    if not getattr(request.module, "DAEMON", True):
        yield
        return
    from kiln.client import Client

    with Client(request.getfixturevalue("address")) as client:
        monkeypatch.setattr("kiln.compiler.default_client", lambda: client)
        with kiln.emulation(check=True):
            yield client
