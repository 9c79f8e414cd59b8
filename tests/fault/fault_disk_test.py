# SPDX-License-Identifier: Apache-2.0
"""The disk fails kilnd at the n-th call that would write, from its start on: once, or from there on until there is room again.

KILN_DISK_FAULTS (4) is at how many calls, drawn at random, each in a life of its own and for each kind of fault; "all": at every one."""

import errno
import mmap
import os
import pathlib
import random
import struct

import pytest

from daemon import BUILD, TARGET, program, shim

ANSWER, ABORT, REFUSE = 0, 2000, 6000  # of server/testing/fake_orders.h
OPTIONS = (f"--worker-executable={BUILD}/bin/kiln-fake-worker", "--memory-cache=1", "--accept-put=yes")
FOR_EVER = (1 << 63) - 1
FAULTS = {"full-once": (errno.ENOSPC, False), "full-from-there": (errno.ENOSPC, True), "bad-once": (errno.EIO, False),
          "bad-from-there": (errno.EIO, True)}


class Disk:
    """The DiskFaults of cache/testing/disk_faults.h in a file."""

    FORMAT = struct.Struct("<5q4096s")  # first, last, error, calls, failed, below

    def __init__(self, path):
        self.path = path
        path.write_bytes(bytes(self.FORMAT.size))
        with open(path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), self.FORMAT.size)

    def arm(self, folder, error, first, last):
        self._page[:] = self.FORMAT.pack(first, last, error, 0, 0, os.fsencode(folder))

    def heal(self):
        self._page[:8] = bytes(8)

    @property
    def calls(self):
        return self.FORMAT.unpack(self._page[:])[3]

    @property
    def failed(self):
        return self.FORMAT.unpack(self._page[:])[4]


@pytest.fixture
def disk(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", shim("disk"))
    made = Disk(tmp_path / "disk-faults")
    monkeypatch.setenv("DISK_SHIM", str(made.path))
    return made


def files_in(folder):
    return {str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if not path.is_dir()}


def try_all(daemon):
    """What callers ask for. Compiles must be answered; the store's upkeep may fail for want of a disk. The codes, and how the rest went."""
    from kiln.errors import KilnError

    client = daemon.client()
    codes = [client.compile(program(n), TARGET, {"max_registers": ANSWER + 200 * (n % 2)}, timeout=20.0).artifact.code for n in range(4)]
    for order in (REFUSE, ABORT):
        with pytest.raises(KilnError):
            client.compile(program(0), TARGET, {"max_registers": order}, timeout=20.0)
    trouble = []
    try:
        data = b"".join(chunk.data for chunk in client._stream("CacheExport", client._pb.CacheExportRequest(), 20.0))
        bundle = [client._pb.CacheChunk(data=part) for part in (data[:-100], data[-100:])]  # the last waits for the end in a buffer
        if client._retry(lambda left: client._methods["CacheImport"](iter(bundle), timeout=left), 20.0).rejected > 1:
            trouble.append("more rejected than what was refused, which no bundle brings")
    except KilnError as failure:
        assert "bundle:" not in str(failure), f"it is not the bundle's fault: {failure}"
        trouble.append(str(failure))
    try:
        report = client.cache_verify(timeout=20.0)
        assert (report.corrupt, report.forged, report.store_damaged) == (0, 0, False)
    except KilnError as failure:
        trouble.append(str(failure))
    return codes, trouble


def live(daemon):
    """A whole life. None where it would not start, for which the log must give a reason."""
    before = daemon.log.stat().st_size if daemon.log.exists() else 0
    try:
        daemon.start(*OPTIONS)
    except AssertionError:
        assert daemon.process.poll() not in (None, 0) and daemon.process.returncode > 0, "kilnd crashed, or hangs"
        assert daemon.log.stat().st_size > before, "kilnd ends and says nothing"
        return None
    outcome = try_all(daemon)
    assert daemon.stop() == 0
    return outcome


@pytest.mark.parametrize("fault", FAULTS)
def test_the_disk_fails_at_any_call_that_writes(daemon, disk, tmp_path, fault):
    error, lasts = FAULTS[fault]
    disk.arm(tmp_path, error, FOR_EVER, FOR_EVER)
    codes, trouble = live(daemon)
    assert not trouble
    files, most = files_in(daemon.state), disk.calls
    assert most > 50, "is anything intercepted?"
    wanted = os.environ.get("KILN_DISK_FAULTS", "4")
    calls = range(1, most + 1) if wanted == "all" else sorted(random.sample(range(1, most + 1), int(wanted)))
    for call in calls:
        print("fault at call", call, "of", most)
        daemon.state = tmp_path / f"state-{call}"
        disk.arm(tmp_path, error, call, FOR_EVER if lasts else call)
        during = live(daemon)
        assert during is None or during[0] == codes
        disk.heal()
        assert live(daemon) == (codes, []), "there is room again"
        assert files_in(daemon.state) <= files, "something was left behind"
