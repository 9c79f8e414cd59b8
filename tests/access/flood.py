# SPDX-License-Identifier: Apache-2.0
"""What callers see of a kilnd over TLS while others begin messages that they never end: calls that fail, and how long calls take.

    python3 tests/access/flood.py [CALLS]     the figures (2,000 calls each way), and 1 if one misses its bar"""
import contextlib
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from access_test import Host  # noqa: E402
from daemon import TARGET  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CALLERS = 2
CONNECTION_OF_A_CALLER = 25  # calls, after which a caller connects anew: who is new must come in, too


@contextlib.contextmanager
def flood(host, token=None):
    """Of strangers, or of who has the token. Yields a list, in which at its end is what they were told."""
    words = [sys.executable, str(HERE / "half_sender.py"), host.address, str(host.authority.roots), *([token] if token else [])]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    told = []
    try:
        assert process.stdout.readline() == "flooding\n"
        time.sleep(1)  # in which the flood fills what it can
        yield told
    finally:
        told.append(process.communicate(timeout=60)[0].strip())


def call(client, token, request):
    """Once: no second try, which clients make where they are told to."""
    client._methods["Compile"](request, timeout=20, metadata=(("authorization", f"Bearer {token}"),))


class Calls:
    """So many hits, by callers with a client of their own: the seconds of each, and what failed."""

    def __init__(self, host, token, request, count):
        self.seconds, self.failures = [], []
        self.threads = [threading.Thread(target=self.run, args=(host, token, request, count // CALLERS)) for _ in range(CALLERS)]
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()

    def run(self, host, token, request, count):
        done = 0
        while done < count:
            with host.client(token=token) as client:
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


def figures(calls):
    """(name, value, bar, holds) of each figure."""
    from kiln.examples.programs import PROGRAMS

    program = PROGRAMS["softmax_f16"]()
    with tempfile.TemporaryDirectory() as folder:
        host = Host(pathlib.Path(folder))
        try:
            token, other = host.token("caller", tenant="caller", scopes="read,compile"), host.token("other", tenant="other", scopes="read,compile")
            host.start()
            with host.client(token=token) as client:
                request = client.request(program, TARGET)
                call(client, token, request)
            for name, secret in (("strangers", None), ("another tenant", other)):
                quiet = Calls(host, token, request, calls)
                with flood(host, secret) as told:
                    flooded = Calls(host, token, request, calls)
                print(f"{name}: {told[0]}; {flooded.failures[:3]}", file=sys.stderr)
                ratio = flooded.p99() / quiet.p99()
                yield f"flood of {name}: calls of {calls} that failed", len(flooded.failures), 0, not flooded.failures
                yield (f"flood of {name}: p99 over without ({1e3 * flooded.p99():.1f} over {1e3 * quiet.p99():.1f} ms)", round(ratio, 2), 2, ratio <= 2)
        finally:
            if host.process is not None:
                host.process.terminate()
                host.process.wait(30)


def main():
    missed = 0
    for name, value, bar, holds in figures(int(sys.argv[1]) if len(sys.argv) > 1 else 2000):
        print(f"{name}: {value} (at most {bar}){'' if holds else ': missed'}", flush=True)
        missed += not holds
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
