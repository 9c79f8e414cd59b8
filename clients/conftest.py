# SPDX-License-Identifier: Apache-2.0
"""What the clients are tested against: a kilnd of the build that KILN_BUILD names."""

import contextlib
import os
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests"))


@pytest.fixture
def sockets():
    from daemon import socket_folder

    with socket_folder() as folder:
        yield folder


@contextlib.contextmanager
def served(folder, *options):
    """The address of a daemon that serves the tests of one file."""
    from daemon import Daemon, socket_folder

    with socket_folder() as sockets:
        daemon = Daemon(folder, sockets)
        try:
            daemon.start(*options)
            yield f"unix:{daemon.socket}"
            assert daemon.stop() == 0
        finally:
            daemon.end()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with served(tmp_path_factory.mktemp("state")) as address:
        yield address


@pytest.fixture(scope="module")
def raw_address(tmp_path_factory):
    """Of one whose caller may also have functions in other languages compiled."""
    folder = tmp_path_factory.mktemp("raw")
    access = folder / "access.toml"
    access.write_text(f'[[user]]\nuid = {os.getuid()}\ntenant = "raw"\nscopes = ["read", "compile", "tune", "run", "admin", "raw"]\n')
    access.chmod(0o600)
    with served(folder / "state", f"--access={access}") as address:
        yield address
