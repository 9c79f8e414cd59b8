# SPDX-License-Identifier: Apache-2.0
"""Clients that vanish, stop answering or read slowly; a wall clock that jumps."""

import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest

from daemon import BUILD, TARGET, compile_many, program, shim

SLEEP, HANG = 1, 4  # of server/testing/fake_orders.h
FAKE_WORKER = f"--worker-executable={BUILD}/bin/kiln-fake-worker"


def order(what, amount=0):
    return {"max_registers": what * 1000 + amount}


@pytest.fixture
def child(daemon):
    """Starts Python code with a `client` of the daemon as a process of its own; it is killed in the end."""
    started = []

    def start(code):
        tests = os.path.dirname(os.path.dirname(__file__))
        prologue = f"import os, signal, sys\nsys.path[:0] = [{tests!r}, {str(BUILD / 'python')!r}]\n"
        prologue += f"from kiln.client import Client\nfrom daemon import program\nclient = Client('unix:{daemon.socket}', timeout=120)\n"
        environment = os.environ | {"KILN_AUTOSTART": "0", "KILN_BUILD": str(BUILD)}
        process = subprocess.Popen([sys.executable, "-c", prologue + code], stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def eventually(condition, limit=15.0):
    end = time.monotonic() + limit
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


HANGING_STREAM = f"""
for stage in client.compile_stream(program(1), {TARGET!r}, {order(HANG)!r}):
    print(stage, flush=True)
"""


def hanging_client(daemon, child):
    process = child(HANGING_STREAM)
    while process.stdout.readline().strip() != "decode":
        assert process.poll() is None
    assert daemon.client().stats().workers_busy == 1
    return process


def test_a_client_that_dies_in_mid_stream_frees_its_worker(daemon, child):
    daemon.start(FAKE_WORKER)
    hanging_client(daemon, child).kill()
    assert eventually(lambda: daemon.client().stats().workers_busy == 0)
    assert daemon.client().compile(program(2), TARGET).key


def test_a_half_open_connection_is_noticed(daemon, child):
    """The socket stays open and takes bytes, but nobody is there: only the keepalive can tell."""
    daemon.start(FAKE_WORKER, "--keepalive=1")
    process = hanging_client(daemon, child)
    process.send_signal(signal.SIGSTOP)
    assert eventually(lambda: daemon.client().stats().workers_busy == 0)
    assert process.poll() is None, "it was there all the time"


def resident_mib(daemon):
    for line in open(f"/proc/{daemon.process.pid}/status", encoding="ascii"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


SLOW_READER = f"""
request = client.request(program(1), {TARGET!r}, {order(0, 900)!r})
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
calls = [client._methods["Compile"].future(request, timeout=120) for _ in range(1500)]
print("sent", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
print(sum(len(call.result().artifact) > 90_001 for call in calls), flush=True)  # still in its seal
"""


def go_on(process):
    """Once it has stopped: a signal that comes before would be lost."""
    assert eventually(lambda: pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
    process.send_signal(signal.SIGCONT)


def test_a_slow_reader_costs_nobody_anything(daemon, child):
    daemon.start(FAKE_WORKER)
    assert len(daemon.client().compile(program(1), TARGET, order(0, 900)).artifact.code) == 90_001
    slow = child(SLOW_READER)
    assert slow.stdout.readline().strip() == "ready"
    before = resident_mib(daemon)
    go_on(slow)
    assert slow.stdout.readline().strip() == "sent"
    for _ in range(200):
        assert daemon.client().compile(program(1), TARGET, order(0, 900), timeout=10.0).key
    assert resident_mib(daemon) - before < 100, "1,500 answers of 90 KB wait, and share their bytes"
    go_on(slow)
    assert slow.stdout.readline().strip() == "1500"


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """Starts daemons whose wall clock can be set: clock(daemon, options…)(seconds ahead)."""
    library = shim("clock")
    offset = tmp_path / "offset"
    offset.write_bytes(struct.pack("d", 0.0))

    def set_to(ahead):
        with open(offset, "r+b") as file:
            file.write(struct.pack("d", ahead))

    def start(daemon, *options, ahead=0.0):
        set_to(ahead)
        with monkeypatch.context() as patch:
            patch.setenv("LD_PRELOAD", library)
            patch.setenv("CLOCK_SHIM", str(offset))
            daemon.start(*options)
        return set_to

    return start


def test_a_clock_that_jumps_changes_nothing(daemon, clock):
    set_clock = clock(daemon)
    expected = compile_many(daemon.client(), range(4))
    failures, stop = [], threading.Event()

    def load(first):
        n = first
        while not stop.is_set():
            try:
                daemon.client().compile(program(n), TARGET, timeout=20.0)
                assert daemon.client().compile(program(n % 4), TARGET, timeout=20.0).artifact.code == expected[n % 4][1]
            except Exception as failure:
                failures.append(failure)
            n += 1

    threads = [threading.Thread(target=load, args=(1000 * (i + 1),)) for i in range(2)]
    for thread in threads:
        thread.start()
    year = 365 * 86400.0

    def stored_at(jump):  # with the clock as it was set
        return any(abs(entry.created_unix - time.time() - jump) < 600 for entry in daemon.client().cache_list())

    try:
        for jump in (3600.0, -3600.0, 10 * year, -10 * year, year, 0.0):
            set_clock(jump)
            assert eventually(lambda: stored_at(jump), 60.0), jump
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert daemon.stop() == 0
    daemon.start()
    assert compile_many(daemon.client(), range(4)) == expected
    assert daemon.client().stats().compiles == 0


def test_a_clock_that_jumps_gives_no_new_quota(daemon, clock, tmp_path):
    from kiln.errors import KilnError

    access = tmp_path / "access.toml"
    access.write_text('[[tenant]]\nname = "default"\ncompile-seconds = 0.1\n')
    access.chmod(0o600)
    start = 300.0 - time.time() % 3600  # five minutes past an hour
    set_clock = clock(daemon, FAKE_WORKER, f"--access={access}", ahead=start)
    assert daemon.client().compile(program(1), TARGET, order(SLEEP, 30)).key
    for hours in (0, 1, -1, 24 * 365, 0):
        set_clock(start + hours * 3600)
        with pytest.raises(KilnError, match="compile-seconds of this hour"):
            daemon.client().compile(program(2), TARGET, order(SLEEP), timeout=20.0)
