# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from daemon import Daemon  # noqa: E402


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
