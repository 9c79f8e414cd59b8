# SPDX-License-Identifier: Apache-2.0
"""Containers of a manifest as plain processes: their commands with paths of a folder, and addresses of the loopback network, in place of the
container's own. Each Redis server has an address of its own there, as in a network of containers."""

import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess

import pytest

from daemon import BUILD, ROOT

OWNER = 7461  # the user of the image, as Containerfile makes it


def needs_root():
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can give files to the containers' user")


def redis():
    """Debian's package redis-tools brings the server under another name, which does what its first argument says."""
    server = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if server is None or shutil.which("redis-cli") is None:
        pytest.skip("NOT TESTED: there is no Redis here; deploy/install-deps installs it (redis-tools)")
    return server


def free_port(address, bus=False):
    """With `bus`, one whose neighbour 10,000 higher is a port, too."""
    while True:
        port = random.randrange(20_000, 50_000)
        try:
            for number in (port, port + 10_000) if bus else (port,):
                with socket.socket() as probe:
                    probe.bind((address, number))
            return port
        except OSError:
            continue


class Host:
    """The folder that is a container's file system, and what its words become."""

    def __init__(self, folder, replaced):
        self.folder = pathlib.Path(folder)
        self.replaced = dict(sorted(replaced.items(), key=lambda item: -len(item[0])))
        self.processes = []
        self.programs = self.folder / "opt/kiln/bin"
        self.programs.mkdir(parents=True)
        for name in ("kilnd", "kiln-worker", "kiln"):  # where the containers' user can read them
            shutil.copy(BUILD / "bin" / name, self.programs)
        self.tools = self.folder / "usr/bin"
        self.tools.mkdir(parents=True)

    def word(self, text):
        """Longest first, and nothing twice."""
        return re.sub("|".join(map(re.escape, self.replaced)), lambda found: str(self.replaced[found[0]]), text)

    def words(self, command):
        return [self.word(str(part)) for part in command]

    def settings(self, environment):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("KILN_")}
        return kept | {"PATH": f"{self.programs}:{os.environ['PATH']}"} | {k: self.word(str(v)) for k, v in environment.items()}

    def start(self, command, environment=(), user=None, log="log", executable=None):
        command = self.words(command)
        with open(self.folder / log, "ab") as out:
            process = subprocess.Popen(command, executable=executable, env=self.settings(dict(environment)), stdout=out, stderr=out,
                                       stdin=subprocess.DEVNULL, user=user, group=user, extra_groups=None if user is None else [])
        self.processes.append(process)
        return process

    def run(self, command, environment=(), user=None, timeout=60.0):
        return subprocess.run(self.words(command), env=self.settings(dict(environment)), capture_output=True, text=True, timeout=timeout, check=False,
                              user=user, group=user, extra_groups=None if user is None else [])

    def log(self, name="log"):
        return (self.folder / name).read_text(errors="replace")[-3000:]

    def end(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def make_secrets(folder):
    environment = os.environ | {"KILND": str(BUILD / "bin" / "kilnd")}
    ran = subprocess.run([ROOT / "deploy/secrets", folder], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


def workers_memory(options):
    """Bytes that the workers of these options may take together."""
    return int(options["--workers"]) * int(re.fullmatch(r"(\d+)MiB", options["--worker-memory"])[1]) << 20


def image_settings():
    """The environment that the image gives kilnd."""
    line = re.search(r"^ENV (.*)$", (ROOT / "deploy/container/Containerfile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    return dict(word.split("=", 1) for word in line.split())
