# SPDX-License-Identifier: Apache-2.0
import pytest

from daemon import Daemon, planned_by, socket_folder


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The client of a kilnd without ptxas, one for all files: what several of them compile is compiled once."""
    with socket_folder() as sockets:
        daemon = Daemon(tmp_path_factory.mktemp("k") / "state", sockets)
        daemon.start()
        with planned_by(daemon.client()) as client:
            yield client
        daemon.end()
