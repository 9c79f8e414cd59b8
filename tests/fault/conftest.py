# SPDX-License-Identifier: Apache-2.0
import tempfile

import pytest

from fault_harness import Daemon


@pytest.fixture
def sockets():
    # A Unix socket's path has 107 bytes at most: pytest's own folders may be longer.
    with tempfile.TemporaryDirectory(prefix="kiln-") as folder:
        yield folder


@pytest.fixture
def daemon(tmp_path, sockets):
    made = Daemon(tmp_path / "state", sockets)
    yield made
    made.end()
