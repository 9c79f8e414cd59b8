# SPDX-License-Identifier: Apache-2.0
"""What callers see of a kilnd while others begin messages that they never end: calls that fail, and how long calls take. Over TLS others are
strangers and another tenant; on the socket, which takes root to try, another user of the machine.

    python3 tests/access/flood.py [CALLS]     the figures (2,000 calls each way), and 1 if one misses its bar

KILN_BUILD names the build folder, or that of an unpacked bundle. It needs the openssl command, and of Python's packages grpcio and protobuf."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from daemon import TARGET, Daemon  # noqa: E402
from tls_host import Host  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CALLERS = 2
CONNECTION_OF_A_CALLER = 25  # calls, after which a caller connects anew: who is new must come in, too
NOBODY = 65534  # a user who is not kilnd's


@contextlib.contextmanager
def flood(host, token=None):
    """Of strangers, or of who has the token. Yields a list, in which at its end is what they were told."""
    with half_senders([host.address, str(host.authority.roots), *([token] if token else [])]) as told:
        yield told


@contextlib.contextmanager
def flood_of_nobody(socket):
    """Of another user, who has a copy of the script where he can read it."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder).chmod(0o755)
        script = shutil.copy(HERE / "half_sender.py", folder)
        with half_senders([f"unix:{socket}"], script=script, user=NOBODY, group=NOBODY, extra_groups=[]) as told:
            yield told


@contextlib.contextmanager
def half_senders(words, script=HERE / "half_sender.py", **who):
    process = subprocess.Popen([sys.executable, str(script), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **who)
    told = []
    try:
        assert process.stdout.readline() == "flooding\n"
        time.sleep(1)  # in which the flood fills what it can
        yield told
    finally:
        told.append(process.communicate(timeout=60)[0].strip())


def call(client, token, request):
    """Once: no second try, which clients make where they are told to."""
    client._methods["Compile"](request, timeout=20, metadata=(("authorization", f"Bearer {token}"),) if token else ())


class Calls:
    """So many hits, by callers with a client of their own: the seconds of each, and what failed."""

    def __init__(self, connect, token, request, count):
        self.seconds, self.failures = [], []
        self.threads = [threading.Thread(target=self.run, args=(connect, token, request, count // CALLERS)) for _ in range(CALLERS)]
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()

    def run(self, connect, token, request, count):
        done = 0
        while done < count:
            with connect() as client:
                for _ in range(min(CONNECTION_OF_A_CALLER, count - done)):
                    began = time.perf_counter()
                    try:
                        call(client, token, request)
                    except Exception as failure:  # whatever it is, it is counted
                        self.failures.append(str(failure))
                    self.seconds.append(time.perf_counter() - began)
                    done += 1
                    time.sleep(0.002)

    def p99(self):
        return sorted(self.seconds)[len(self.seconds) * 99 // 100]


def compared(name, connect, token, request, calls, flooding):
    """(name, value, bar, holds) of each figure of one flood."""
    quiet = Calls(connect, token, request, calls)
    with flooding as told:
        flooded = Calls(connect, token, request, calls)
    print(f"{name}: {told[0]}; {flooded.failures[:3]}", file=sys.stderr)
    ratio = flooded.p99() / quiet.p99()
    yield f"flood of {name}: calls of {calls} that failed", len(flooded.failures), 0, not flooded.failures
    yield f"flood of {name}: p99 over without ({1e3 * flooded.p99():.1f} over {1e3 * quiet.p99():.1f} ms)", round(ratio, 2), 2, ratio <= 2


@contextlib.contextmanager
def keys_kept_in(folder):
    """Clients keep the keys of daemons they know there."""
    before = os.environ.get("XDG_CONFIG_HOME")
    os.environ["XDG_CONFIG_HOME"] = folder
    try:
        yield
    finally:
        del os.environ["XDG_CONFIG_HOME"]
        if before is not None:
            os.environ["XDG_CONFIG_HOME"] = before


def over_tls(program, calls):
    with tempfile.TemporaryDirectory() as folder, keys_kept_in(f"{folder}/config"):
        host = Host(pathlib.Path(folder))
        try:
            token, other = host.token("caller", tenant="caller", scopes="read,compile"), host.token("other", tenant="other", scopes="read,compile")
            host.start()
            with host.client(token=token) as client:
                request = client.request(program, TARGET)
                call(client, token, request)
            for name, secret in (("strangers", None), ("another tenant", other)):
                yield from compared(name, lambda: host.client(token=token), token, request, calls, flood(host, secret))
        finally:
            if host.process is not None:
                host.process.terminate()
                host.process.wait(30)


def on_the_socket(program, calls):
    from kiln.client import Client

    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryDirectory() as sockets:
        pathlib.Path(sockets).chmod(0o755)
        daemon = Daemon(state, sockets).start("--socket-mode=0666", "--workers=1")
        try:
            with Client(f"unix:{daemon.socket}") as client:
                request = client.request(program, TARGET)
                call(client, None, request)
            yield from compared("another user of the socket", lambda: Client(f"unix:{daemon.socket}"), None, request, calls,
                                flood_of_nobody(daemon.socket))
        finally:
            daemon.end()


def figures(calls):
    from kiln.examples.programs import PROGRAMS

    program = PROGRAMS["softmax_f16"]()
    yield from over_tls(program, calls)
    if os.geteuid() == 0:
        yield from on_the_socket(program, calls)
    else:
        print("another user of the socket: not tried, which takes root", file=sys.stderr)


def main():
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    if calls < CALLERS:
        sys.exit(f"{calls} calls: each of the {CALLERS} callers makes at least one")
    missed = 0
    for name, value, bar, holds in figures(calls):
        print(f"{name}: {value} (at most {bar}){'' if holds else ': missed'}", flush=True)
        missed += not holds
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
