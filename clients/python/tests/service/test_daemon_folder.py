# SPDX-License-Identifier: Apache-2.0
"""The default socket lies below /tmp, where anybody can make its folder first."""
import os

import kiln
import pytest
from kiln import daemon

UID = 3_999_000_000 + os.getpid() % 1_000_000  # nobody's


@pytest.fixture
def folder(monkeypatch):
    path = f"/tmp/kiln-{UID}"
    monkeypatch.delenv("KILN_ADDRESS", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("KILN_AUTOSTART", "0")
    yield path
    (os.unlink if os.path.islink(path) else os.rmdir)(path)


@pytest.fixture
def own(monkeypatch):
    """This user's, under another number: its folder is not the one of a daemon at work."""
    real_lstat = os.lstat

    class Status:
        def __init__(self, status):
            self.st_mode, self.st_uid = status.st_mode, UID if status.st_uid == os.geteuid() else status.st_uid

    monkeypatch.setattr(os, "getuid", lambda: UID)
    monkeypatch.setattr(daemon.os, "lstat", lambda path: Status(real_lstat(path)))


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    os.mkdir(folder, 0o700)
    monkeypatch.setattr(os, "getuid", lambda: UID)
    with pytest.raises(kiln.ServiceUnavailable, match="belongs to another user"):
        kiln.Client(token="kiln_secret")


def test_a_link_is_refused(folder, own):
    os.symlink("/tmp", folder)
    with pytest.raises(kiln.ServiceUnavailable, match="is no folder"):
        kiln.Client()


def test_a_folder_that_others_can_write_is_refused(folder, own):
    os.mkdir(folder)
    os.chmod(folder, 0o770)
    with pytest.raises(kiln.ServiceUnavailable, match="can be written by others"):
        kiln.Client()


def test_a_missing_folder_is_made_before_another_user_makes_it(folder, own):
    kiln.Client().close()
    assert os.stat(folder).st_mode & 0o777 == 0o700
