# SPDX-License-Identifier: Apache-2.0
"""Hosts that ask for the same programs at one time compile each once between them, whatever becomes of a host or of the store.

KILN_CLUSTER_HOSTS (4) and KILN_CLUSTER_KEYS (24) are their numbers."""

import os
import signal
import threading
import time

import pytest

from daemon import TARGET, compile_many, program

HOSTS = int(os.environ.get("KILN_CLUSTER_HOSTS", "4"))
KEYS = int(os.environ.get("KILN_CLUSTER_KEYS", "24"))


def at_once(hosts, numbers, threads=4, meanwhile=lambda: None):
    """Each host is asked for all programs at one time: host → number → (key, code), and the failures."""
    from kiln.client import Client

    found, failures = [{} for _ in hosts], []
    programs = {n: program(n) for n in numbers}  # the front end is the test's own, and takes longer than a hit

    def ask(which, part):
        client = Client(f"unix:{hosts[which].socket}", timeout=60.0)
        for number in part:
            try:
                reply = client.compile(programs[number], TARGET)
                found[which][number] = (reply.key, reply.artifact.code)
            except Exception as failure:  # every kind of it is what the test is about
                if hosts[which].process.poll() is None:
                    failures.append((which, number, failure))
        client.close()

    numbers = list(numbers)
    asking = [threading.Thread(target=ask, args=(which, numbers[t::threads])) for which in range(len(hosts)) for t in range(threads)]
    for thread in asking:
        thread.start()
    meanwhile()
    for thread in asking:
        thread.join()
    return found, failures


def compiles(hosts):
    return sum(host.client().stats().compiles for host in hosts)


def test_each_program_is_compiled_once(redis_cluster, hosts):
    many = [hosts.start(redis_cluster.address) for _ in range(HOSTS)]
    found, failures = at_once(many, range(KEYS))
    assert failures == []
    assert all(one == found[0] for one in found) and len(found[0]) == KEYS
    assert compiles(many) == KEYS
    assert sum(host.client().stats().compiles > 0 for host in many) >= 2, "the hosts share the work"


def too_large():
    import kiln.language as T

    @T.prim_func
    def refused(A: T.Tensor((8,), "float32")):
        with T.Kernel(1) as bx:
            s = T.alloc_shared((1 << 20, 64), "float32")
            T.copy(A, s[0, 0:8])

    return refused


def test_a_refusal_is_shared(redis, hosts):
    one, other, stranger = hosts.start(redis.address), hosts.start(redis.address), hosts.start(redis.address, trusts=False)
    said = []
    for host in (one, other, stranger):
        with pytest.raises(Exception, match="shared memory") as refused:
            host.client().compile(too_large(), TARGET)
        said.append(str(refused.value))
        time.sleep(0.3)  # puts go out behind the replies
    assert said[0] == said[1] == said[2]
    assert one.client().stats().failed == 1
    assert other.client().stats().failed == 0, "it has the diagnostics from the store"
    assert stranger.client().stats().failed == 1, "it believes nobody"


def test_the_keys_of_hosts_that_die_are_taken_over(redis, hosts):
    many = [hosts.start(redis.address, "--workers=1") for _ in range(HOSTS)]

    def kill():
        time.sleep(0.15)
        many[0].kill()

    found, failures = at_once(many, range(KEYS), meanwhile=kill)
    assert failures == []
    for host in many[1:]:
        assert host.process.poll() is None, host.tail(40)
    assert [len(one) for one in found[1:]] == [KEYS] * (HOSTS - 1)
    assert all(one == found[1] for one in found[1:])


def test_an_owner_that_stalls_is_replaced(redis, hosts):
    one, other = hosts.start(redis.address, "--workers=1"), hosts.start(redis.address, "--workers=1")

    def stall():
        time.sleep(0.05)
        one.process.send_signal(signal.SIGSTOP)

    began = time.monotonic()
    threading.Thread(target=lambda: (time.sleep(6), one.process.send_signal(signal.SIGCONT)), daemon=True).start()
    found, failures = at_once([one, other], range(8), meanwhile=stall)
    assert failures == []
    assert found[0] == found[1] and len(found[1]) == 8
    assert time.monotonic() - began < 20


def test_the_store_may_die_meanwhile(redis_cluster, hosts):
    many = [hosts.start(redis_cluster.address) for _ in range(HOSTS)]

    def kill():
        time.sleep(0.1)
        redis_cluster.servers[0].kill()
        time.sleep(0.2)
        for server in redis_cluster.servers:
            server.kill()

    found, failures = at_once(many, range(KEYS), meanwhile=kill)
    assert failures == []
    assert all(one == found[0] and len(one) == KEYS for one in found)
    assert compiles(many) <= KEYS * HOSTS


def test_callers_that_leave_hold_up_nobody(redis, hosts):
    """A host waits for one that has stopped; its callers' deadlines pass, and it ends without delay."""
    one, other = hosts.start(redis.address, "--workers=1"), hosts.start(redis.address, "--workers=1")
    compile_many(one.client(), [100])
    numbers = list(range(4))
    one.process.send_signal(signal.SIGSTOP)
    found, failures = at_once([other], numbers)
    assert failures == [] and len(found[0]) == 4
    one.process.send_signal(signal.SIGCONT)
    assert other.stop(limit=10.0) == 0
