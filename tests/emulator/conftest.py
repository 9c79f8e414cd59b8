# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import sys

import pytest
from emulated import BINARY, Emulator


def _gpu():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpu"))
    from random_device import Gpu

    return Gpu()


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    """One process for the tests of a file. With KILN_ON_GPU=1, for tests that look at results alone (scalar_test.py), the first GPU of this host
    in its place."""
    emulator = _gpu() if os.environ.get("KILN_ON_GPU") == "1" else Emulator(BINARY, tmp_path_factory.mktemp("emulated"))
    yield emulator
    emulator.close()
