# SPDX-License-Identifier: Apache-2.0
"""Redis servers on loopback ports, and what may stand between them and kilnd."""

import contextlib
import itertools
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

SLOTS = 16384


def program():
    """Debian's package redis-tools brings the server under another name, which does what its first argument says."""
    found = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if found is None:
        pytest.skip("NOT TESTED: there is no redis-server here; deploy/install-deps installs it (redis-tools)")
    return found


_ports = itertools.count(os.getpid() * 64)


def free_port():
    """A port that nobody listens on, for a server that binds it later. It is below those that connections get (Linux: from 32768 on), which
    could take it meanwhile; processes begin at places of their own, and no process gets one twice."""
    while True:
        port = 10000 + next(_ports) % 22000
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


def eventually(holds, limit=20.0, pause=0.02):
    end = time.monotonic() + limit
    while True:
        value = holds()
        if value:
            return value
        assert time.monotonic() < end, "it does not come true"
        time.sleep(pause)


class Server:
    def __init__(self, folder, *more):
        self.port, self.more, self.folder = free_port(), more, pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = None
        self.start()

    def start(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", str(self.folder),
                 *self.more], executable=program(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def ask(self, *words):
        with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as connection:
            parts = [w if isinstance(w, bytes) else str(w).encode() for w in words]
            connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
            return self._read(connection.makefile("rb"))

    def _read(self, file):
        line = file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind in (b"+", b"-"):
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else file.read(int(rest) + 2)[:-2]
        assert kind == b"*", line
        return [self._read(file) for _ in range(max(0, int(rest)))]

    def answers(self):
        try:
            return self.ask("PING") == "PONG"
        except OSError:
            return False

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"


class Cluster:
    """Three masters, and a replica of each: the first three servers, and the last three."""

    def __init__(self, folder):
        self.servers = [Server(pathlib.Path(folder) / str(i), "--cluster-enabled", "yes", "--cluster-port", str(free_port()),
                               "--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0",
                               "--cluster-require-full-coverage", "no", "--repl-diskless-sync", "no",
                               "--repl-ping-replica-period", "1") for i in range(6)]
        for server in self.servers:
            eventually(server.answers)
        for i, server in enumerate(self.servers[:3]):
            server.ask("CLUSTER", "ADDSLOTSRANGE", (i * SLOTS + 2) // 3, ((i + 1) * SLOTS + 2) // 3 - 1)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for i, server in enumerate(self.servers):
            bus = server.ask("CONFIG", "GET", "cluster-port")[1]
            for other in self.servers[:i]:
                other.ask("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        for i in range(3):
            name = self.servers[i].ask("CLUSTER", "MYID")
            eventually(lambda name=name, i=i: self.servers[3 + i].ask("CLUSTER", "REPLICATE", name) == "OK")
        eventually(self.whole, limit=60.0)

    def whole(self):
        for i, server in enumerate(self.servers):
            if b"cluster_state:ok" not in server.ask("CLUSTER", "INFO"):
                return False
            slots = server.ask("CLUSTER", "SLOTS")
            if len(slots) != 3 or any(len(part) != 4 for part in slots):
                return False
            if i >= 3 and b"master_link_status:up" not in server.ask("INFO", "replication"):
                return False
        return True

    @property
    def address(self):
        return ",".join(server.address for server in self.servers)

    def end(self):
        for server in self.servers:
            server.kill()


class Proxy:
    """Between kilnd and one server. `mode` is "pass", "stall" (bytes wait), or "lose" (connections end); bytes take `delay` seconds."""

    def __init__(self, server):
        self.server, self.mode, self.delay = server, "pass", 0.0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def set(self, mode):
        self.mode = mode
        if mode == "lose":
            for one in self.sockets:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                if self.mode == "lose":
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.server.port))
            except OSError:
                if self.listener.fileno() < 0:
                    return
                continue
            self.sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source, sink):
        try:
            while data := source.recv(65536):
                while self.mode == "stall":
                    time.sleep(0.005)
                time.sleep(self.delay)
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            one.close()

    def end(self):
        self.listener.close()
        self.set("lose")


__all__ = ["Cluster", "Proxy", "Server", "eventually", "signal"]
