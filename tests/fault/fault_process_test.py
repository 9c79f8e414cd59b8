# SPDX-License-Identifier: Apache-2.0
"""Processes that end: workers under load, the daemon on SIGTERM, a second daemon where there is one."""

import os
import signal
import subprocess
import threading
import time

import pytest

from daemon import BUILD, TARGET, compile_many, program


@pytest.mark.parametrize("how", (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGSTOP))
def test_a_worker_that_ends_costs_its_request_alone(daemon, how):
    """SIGABRT is how LLVM ends a worker; a stopped one is ended by its time."""
    daemon.start("--compile-limit=2")
    expected = compile_many(daemon.client(), range(3))
    failures, answers = [], []
    stop = threading.Event()

    def load(first):
        n = first
        while not stop.is_set():
            try:
                answers.append(daemon.client().compile(program(n), TARGET).key)
            except Exception as failure:
                failures.append(failure)
            n += 1

    threads = [threading.Thread(target=load, args=(1000 * (i + 1),)) for i in range(2)]
    for thread in threads:
        thread.start()
    killed = 0
    for _ in range(5):
        threading.Event().wait(0.1)
        for worker in daemon.workers():
            try:
                os.kill(worker, how)
                killed += 1
            except ProcessLookupError:
                pass
    end = time.monotonic() + 30
    while not answers and time.monotonic() < end:
        time.sleep(0.02)  # where a compile takes longer than its worker lived
    stop.set()
    for thread in threads:
        thread.join()
    assert killed > 0
    assert len(failures) <= killed, failures
    assert answers
    assert daemon.process.poll() is None
    assert compile_many(daemon.client(), range(3, 6)) and compile_many(daemon.client(), range(3)) == expected


def test_sigterm_answers_what_runs_and_refuses_the_rest(daemon):
    daemon.start()
    daemon.client().compile(program(0), TARGET)  # a client asks who signs when its first answer is there
    answers = []
    caller = threading.Thread(target=lambda: answers.append(daemon.client().compile(program(1), TARGET)))
    caller.start()
    end = time.monotonic() + 20
    while daemon.client().stats().requests == 1:
        assert time.monotonic() < end, "the request does not arrive"
    assert daemon.stop(limit=30.0) == 0
    caller.join(timeout=30.0)
    assert answers, "the request that was accepted was not answered"
    assert not daemon.socket.exists()


def test_one_daemon_holds_a_store(daemon, sockets):
    daemon.start()
    second = [str(BUILD / "bin" / "kilnd"), f"--listen=unix:{sockets}/second.sock", f"--state-dir={daemon.state}"]
    ended = subprocess.run(second, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode != 0
    assert str(daemon.state) in ended.stderr and f"pid {daemon.process.pid}" in ended.stderr, ended.stderr
    assert daemon.client().compile(program(0), TARGET).key


def test_bytes_that_are_no_program_are_refused(daemon):
    from kiln.errors import CompileError

    daemon.start()
    client = daemon.client()
    good = client.compile(program(0), TARGET)
    serialized = client.request(program(0), TARGET).module
    for bad in (b"", b"\xff" * 100, serialized[: len(serialized) // 2], os.urandom(1 << 16)):
        try:
            reply = client.compile(bad, TARGET)
        except CompileError as refused:
            assert str(refused)
        else:
            raise AssertionError(f"{bad[:20]!r}… was compiled: {reply.key.hex()}")
    assert client.compile(program(0), TARGET).artifact.code == good.artifact.code
    assert daemon.client().stats().worker_crashes == 0
