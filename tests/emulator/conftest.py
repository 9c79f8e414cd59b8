# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "generators"))
from emulated import BINARY, AsPtx, Emulator  # noqa: E402


def _gpu():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpu"))
    from random_device import Gpu

    return Gpu()


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    """One process for the tests of a file. With KILN_ON_GPU=1, for tests that look at results alone (scalar_test.py), the first GPU of this host
    in its place; with KILN_AS_PTX=1, tests/ptx for NVIDIA's architectures."""
    made = AsPtx if os.environ.get("KILN_AS_PTX") == "1" else Emulator
    emulator = _gpu() if os.environ.get("KILN_ON_GPU") == "1" else made(BINARY, tmp_path_factory.mktemp("emulated"))
    yield emulator
    emulator.close()


@pytest.fixture
def call(emulator):
    """``call(program, target, array, …)``: the arrays after the program ran on them, with nothing found wrong. ``check=0``: without shadow memory."""
    def called(program, target, *arrays, check=1):
        after, answer = emulator.call(emulator.module(program.serialized), target, [(a, str(a.dtype)) for a in arrays], check=check)
        assert "error" not in answer, answer["error"]
        assert answer["finished"] and not answer["findings"], [finding["message"] for finding in answer["findings"]]
        return after

    return called
