# SPDX-License-Identifier: Apache-2.0
import os
import pathlib

import pytest
from emulated import Emulator

BINARY = pathlib.Path(os.environ.get("KILN_BUILD", "build")) / "bin" / "kiln_emulate_jobs"


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    """One process for the tests of a file."""
    emulator = Emulator(BINARY, tmp_path_factory.mktemp("emulated"))
    yield emulator
    emulator.close()
