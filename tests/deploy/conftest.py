# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from daemon import socket_folder  # noqa: E402


@pytest.fixture
def folder():
    """One that the containers' user may enter, which pytest's own is not."""
    with socket_folder() as made:
        pathlib.Path(made).chmod(0o755)
        yield pathlib.Path(made)
