# SPDX-License-Identifier: Apache-2.0
"""What the clients are tested against: a kilnd of the build that KILN_BUILD names."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests"))


@pytest.fixture
def sockets():
    from daemon import socket_folder

    with socket_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of a daemon that serves the tests of one file."""
    from daemon import Daemon, socket_folder

    with socket_folder() as sockets:
        daemon = Daemon(tmp_path_factory.mktemp("state"), sockets)
        try:
            daemon.start()
            yield f"unix:{daemon.socket}"
            assert daemon.stop() == 0
        finally:
            daemon.end()
