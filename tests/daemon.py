# SPDX-License-Identifier: Apache-2.0
"""A real kilnd on a store of its own, for tests that hurt it.

KILN_BUILD names the build folder (tests/run sets it); its default is build/release."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("KILN_BUILD", ROOT / "build" / "release"))
sys.path.insert(0, str(BUILD / "python"))

TARGET = "hip:gfx942"  # no ptxas in the way


@contextlib.contextmanager
def socket_folder():
    """A folder for sockets: their paths have 107 bytes at most, and pytest's folders, or TMPDIR itself, may be longer."""
    roomy = len(os.fsencode(tempfile.gettempdir())) <= 80
    with tempfile.TemporaryDirectory(prefix="kiln-", dir=None if roomy else "/tmp") as folder:
        yield folder


@contextlib.contextmanager
def planned_by(client):
    """Inside, this client's daemon chooses the sizes of kiln.library's matrix products."""
    from kiln.library import plans

    before, plans.default_client = plans.default_client, lambda: client
    try:
        yield client
    finally:
        plans.default_client = before


def shim(name):
    """A library to be preloaded into kilnd. ld.so would go on without it, and tests pass whatever kilnd does."""
    import pytest

    if any(runtime in (BUILD / "bin" / "kilnd").read_bytes() for runtime in (b"__asan_init", b"__tsan_init")):
        pytest.skip("a sanitizer's runtime must be the first library")
    library = BUILD / "testing" / f"libkiln_{name}_shim.so"
    if not library.exists():
        pytest.skip(f"build kiln_{name}_shim, for {library}")
    return str(library)


class Daemon:
    """kilnd on `state`; start and stop as often as wanted."""

    def __init__(self, state, sockets):
        self.state, self.socket = pathlib.Path(state), pathlib.Path(sockets) / "kiln.sock"
        self.log, self.process, self._client = pathlib.Path(sockets) / "kilnd.log", None, None
        self.wrapper = []  # a command before kilnd's, which it becomes

    @property
    def store(self):
        """Where kiln.db is."""
        found = sorted(self.state.rglob("kiln.db"))
        assert found, f"no kiln.db under {self.state}"
        return found[0]

    def start(self, *options, ptxas="none"):
        kilnd = BUILD / "bin" / "kilnd"
        command = [str(kilnd), f"--listen=unix:{self.socket}", f"--state-dir={self.state}", f"--ptxas={ptxas}", "--workers=2", *options]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KILN_")}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.wrapper, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        self.await_serving()
        return self

    def listens(self):
        """gRPC's channels wait a second or two after a socket that does not answer: they are not made before it does."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(self.socket))
            return True
        return False

    def await_serving(self, limit=20.0):
        end = time.monotonic() + limit
        while not self.listens() and time.monotonic() < end and self.process.poll() is None:
            time.sleep(0.01)
        while True:
            try:
                return self.client(fresh=True).stats(timeout=2.0)
            except Exception as failure:  # whatever it is, it is shown if it lasts
                assert self.process.poll() is None, f"kilnd ended with {self.process.returncode}:\n{self.tail()}"
                assert time.monotonic() < end, f"kilnd does not serve after {limit} s: {failure}\n{self.tail()}"
                time.sleep(0.02)

    def client(self, fresh=False):
        from kiln.client import Client

        os.environ["KILN_AUTOSTART"] = "0"
        if fresh and self._client is not None:
            self._client.close()
            self._client = None
        if self._client is None:
            self._client = Client(f"unix:{self.socket}", timeout=60.0)
        return self._client

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, limit=30.0):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=limit)

    def workers(self):
        """Process ids of kiln-worker processes below this kilnd that are not the zygote."""
        children = {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
                except OSError:
                    continue  # ended meanwhile
        zygotes = children.get(self.process.pid, [])
        return [worker for zygote in zygotes for worker in children.get(zygote, [])]

    def tail(self, lines=15):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def end(self):
        if self._client is not None:
            self._client.close()
        if self.process is not None and self.process.poll() is None:
            self.kill()


def program(number):
    """A small program, another one for each number."""
    import kiln.language as T

    factor = 1.0 + number / 1024.0

    @T.prim_func
    def scale(A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "float32")):
        with T.Kernel(8, threads=128) as bx:
            for i in T.Parallel(128):
                B[bx * 128 + i] = A[bx * 128 + i] * factor

    return scale


def compile_many(client, numbers, target=TARGET):
    """number → (key, code) of each, compiled or found."""
    replies = {n: client.compile(program(n), target) for n in numbers}
    return {n: (r.key, r.artifact.code) for n, r in replies.items()}
