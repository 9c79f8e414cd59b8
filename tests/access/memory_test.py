# SPDX-License-Identifier: Apache-2.0
"""Strangers who send messages and never end them: what kilnd holds for them before it can ask who they are is bounded."""
import os
import pathlib
import socket
import subprocess
import threading
import time

from daemon import BUILD
from half_sender import MIB, HalfSender

STREAMS = 64


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def stranger(path):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return HalfSender(connection, STREAMS // 8)


def growth(folder, sockets, seconds, *options):
    """Bytes that kilnd grows by while strangers send for that long."""
    folder.mkdir()
    path, log = pathlib.Path(sockets) / "kiln.sock", folder / "log"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KILN_")}
    with open(log, "wb") as output:
        kilnd = subprocess.Popen([BUILD / "bin" / "kilnd", f"--listen=unix:{path}", f"--state-dir={folder / 'state'}", "--ptxas=none", "--workers=1",
                                  *options], stdout=output, stderr=output, env=environment)
    try:
        end = time.monotonic() + 30
        while "event=serving" not in log.read_text():
            assert kilnd.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        before, most = resident(kilnd.pid), 0
        threads = [threading.Thread(target=stranger(path).run, args=(seconds,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, resident(kilnd.pid))
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        assert kilnd.poll() is None
        return most - before
    finally:
        kilnd.terminate()
        kilnd.wait(30)


def test_what_strangers_send_is_bounded(tmp_path, sockets):
    for seconds in (4, 16, 60):  # the strangers need processors too
        free = growth(tmp_path / f"free for {seconds}", sockets, seconds, "--connection-memory=64GiB")
        if free > 200 * MIB:
            break
    bounded = growth(tmp_path / "bounded", sockets, seconds, "--connection-memory=32MiB")
    print(f"bounded: {bounded / MIB:.0f} MiB; free: {free / MIB:.0f} MiB")
    assert free > 200 * MIB, "the strangers get through where there is room"
    assert bounded < 120 * MIB and bounded < free / 2
