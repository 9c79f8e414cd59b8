# SPDX-License-Identifier: Apache-2.0
"""A store that lies, or is slow, costs its time-out and nothing else."""

import contextlib
import threading
import time

import pytest

import stored
from daemon import TARGET, program
from lying_server import LyingServer


@pytest.fixture
def lying():
    with contextlib.ExitStack() as stack:

        def start(answer):
            server = LyingServer(answer)
            stack.callback(server.end)
            return server

        yield start


@pytest.mark.parametrize("answer", [b"*1\r\n:0\r\n", b"*1\r\n$1\r\nx\r\n", b"*2\r\n:1\r\n$1\r\nx\r\n", b":0\r\n"])
def test_a_result_that_is_said_to_be_there_is_not_looked_for_again_and_again(lying, hosts, answer):
    asked = []

    def lie(words):
        if words[0] == b"EVAL":
            asked.append(words)
            return answer
        return None

    host = hosts.start(lying(lie).address)
    assert host.client().compile(program(1), TARGET, timeout=15.0).artifact.code
    assert 0 < sum(words[2] == b"3" for words in asked) <= 2, "once, and once more for what is of no use"


def test_a_lease_that_does_not_end_holds_up_nobody_for_ever(redis, hosts):
    first = hosts.start(redis.address)
    key = first.client().compile(program(1), TARGET).key
    first.end()
    redis.ask("FLUSHALL")
    over = threading.Event()

    def renew():
        while not over.wait(0.3):
            redis.ask("SET", stored.name_of(key) + ":lease", "nobody", "PX", "2500")

    redis.ask("SET", stored.name_of(key) + ":lease", "nobody", "PX", "2500")
    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        host = hosts.start(redis.address, "--compile-limit=3")
        began = time.monotonic()
        assert host.client().compile(program(1), TARGET, timeout=30.0).artifact.code
        assert 2.5 < time.monotonic() - began < 15, "as long as a compile may take"
    finally:
        over.set()
        renewing.join()


def test_a_request_with_two_keys_waits_once(lying, hosts):
    """A look for a program is one for its result and one for its refusal. Each answer comes in time; both together do not."""

    def late(words):
        if words[0] == b"HMGET":
            time.sleep(0.035)

    host = hosts.start(lying(late).address)
    client = host.client()
    times = []
    for number in range(10):
        wanted = program(number)
        began = time.monotonic()
        assert client.lookup(wanted, TARGET) is None
        times.append(time.monotonic() - began)
    assert min(times) < 0.068, times
