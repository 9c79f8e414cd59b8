# SPDX-License-Identifier: Apache-2.0
"""An empty root whose own systemd runs, in a container of systemd-nspawn, and commands in it."""

import pathlib
import shutil
import signal
import subprocess
import time

import pytest


def unless_it_can_boot():
    if shutil.which("systemd-nspawn") is None:
        pytest.skip("NOT TESTED under systemd: there is no systemd-nspawn; apt-get install systemd-container")


def _below(process):
    """Process ids of what it has started, the nearest first."""
    found, left = [], [process]
    while left:
        at = left.pop(0)
        for children in pathlib.Path(f"/proc/{at}/task").glob("*/children"):
            below = [int(word) for word in children.read_text().split()]
            found += below
            left += below
    return found


def _is_first(process):
    """Whether it is process 1 of a namespace of its own."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    return len(numbers) > 1 and numbers[-1] == "1"


class Booted:
    """`root` is an EmptyRoot with systemd in it. It is ended by its own shutdown."""

    def __init__(self, root, name):
        unless_it_can_boot()
        self.log_file = root.folder.parent / "boot.log"
        command = ["systemd-nspawn", "-q", "-D", root.folder, f"--machine={name}", "--boot", "--register=no", "--keep-unit", "--console=read-only",
                   "--private-network", "--resolv-conf=off", "--timezone=off"]
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.first = None
        self._await(lambda: self._find_first() and self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"))

    def _find_first(self):
        try:
            self.first = next((process for process in _below(self.process.pid) if _is_first(process)), None)
        except (OSError, StopIteration):  # one that ended meanwhile
            self.first = None
        return self.first

    def _await(self, holds, limit=90.0):
        end = time.monotonic() + limit
        while not holds():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.log()}"
            assert time.monotonic() < end, f"it is not up after {limit} s: {self.log()}"
            time.sleep(0.2)

    def log(self):
        return self.log_file.read_text(errors="replace")[-3000:]

    def run(self, *words, user=None, check=True, timeout=120):
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"] if user else []
        command = ["nsenter", f"--target={self.first}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd=/", "--",
                   "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", *as_user, *map(str, words)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert not check or ran.returncode == 0, f"{words}: {ran.stdout[-3000:]}{ran.stderr[-3000:]}"
        return ran

    def eventually(self, *words, says, limit=30.0):
        self._await(lambda: says(self.run(*words, check=False).stdout.strip()), limit)

    def property(self, unit, name):
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # its shutdown
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
