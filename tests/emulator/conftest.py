# SPDX-License-Identifier: Apache-2.0
import pytest
from emulated import BINARY, Emulator


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    """One process for the tests of a file."""
    emulator = Emulator(BINARY, tmp_path_factory.mktemp("emulated"))
    yield emulator
    emulator.close()
