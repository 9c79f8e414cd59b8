# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from daemon import Daemon, socket_folder  # noqa: E402

collect_ignore = ["gpu/kernel_cases"]  # they need torch and checkouts: tests/gpu/kernels runs them


@pytest.fixture
def sockets():
    with socket_folder() as folder:
        yield folder


@pytest.fixture
def daemon(tmp_path, sockets):
    made = Daemon(tmp_path / "state", sockets)
    yield made
    made.end()
