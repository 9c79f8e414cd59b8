# SPDX-License-Identifier: Apache-2.0
"""A kilnd that asks another: for results before it compiles, and for compiles where it has no workers. It waits for nobody."""

import concurrent.futures
import os
import signal
import threading
import time

import grpc
import pytest

import stored
from daemon import TARGET, compile_many, program
from object_store import ObjectStore
from once_test import too_large
from redis_servers import eventually
from share_test import origin, tier
from upstream_calls import NO_WORKERS, ask, below, compile_once, forwards, is_unavailable, known, lying

# Lookups


def test_what_the_upstream_has_is_not_compiled_again(hosts):
    upstream = hosts.start(None)
    made = compile_many(upstream.client(), range(6))
    host = hosts.start(None, below(upstream))
    for number, (key, code) in made.items():
        reply = host.client().compile(program(number), TARGET)
        assert (reply.key, reply.artifact.code, origin(host.client(), reply)) == (key, code, "CLUSTER")
        assert origin(host.client(), host.client().compile(program(number), TARGET)) == "MEMORY"
    assert host.client().stats().compiles == 0
    assert (tier(host, "upstream").hits, tier(host, "upstream").refused) == (6, 0)
    # What nobody has is compiled here, and stays here.
    reply = host.client().compile(program(100), TARGET)
    assert origin(host.client(), reply) == "COMPILED"
    assert not known(upstream, reply.key)
    # What was taken in is this host's own from now on.
    upstream.kill()
    assert host.stop() == 0
    host.start(*host.options)
    for number in made:
        assert origin(host.client(), host.client().compile(program(number), TARGET)) == "DISK"


def test_the_cluster_store_comes_first(redis, hosts):
    upstream = hosts.start(None)
    other = hosts.start(redis.address)
    made = compile_many(other.client(), range(3))
    compile_many(upstream.client(), range(3))
    eventually(lambda: all(redis.ask("EXISTS", stored.name_of(key)) == 1 for key, _ in made.values()))
    host = hosts.start(redis.address, below(upstream))
    assert [t.name for t in host.client().stats().tiers] == ["memory", "sqlite", "redis", "upstream"]
    compile_many(host.client(), range(3))
    assert (tier(host, "redis").hits, tier(host, "upstream").hits) == (3, 0)


def test_a_refusal_of_the_upstream_is_known_here(hosts):
    upstream = hosts.start(None)
    host = hosts.start(None, below(upstream))
    said = []
    for one in (upstream, host):
        with pytest.raises(Exception, match="shared memory") as refused:
            one.client().compile(too_large(), TARGET)
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert host.client().stats().failed == 0, "it has the diagnostics from the upstream kilnd"


def test_nobody_is_trusted_who_is_not_named(hosts):
    stranger = hosts.start(None, trusts=False)
    made = compile_many(stranger.client(), range(3))
    host = hosts.start(None, below(stranger))
    assert "nobody here trusts its key" in host.log.read_text()
    assert compile_many(host.client(), range(3)) == made
    assert host.client().stats().compiles == 3
    assert tier(host, "upstream").refused == 3
    eventually(lambda: 'event=refused-entry tier="upstream"' in host.log.read_text())


# Compiles of a host without workers


def test_a_host_without_workers_forwards(hosts):
    upstream = hosts.start(None)
    host = hosts.start(None, below(upstream), NO_WORKERS)
    made = compile_many(host.client(), range(4))
    assert upstream.client().stats().compiles == 4
    assert host.client().stats().compiles == 0
    assert compile_many(upstream.client(), range(4)) == made
    assert forwards(host) == {"ok": 4}
    assert host.client().compile(program(60), TARGET, durable=True).durable
    stages = list(host.client().compile_stream(program(50), TARGET))
    assert "upstream" in stages[:-1]
    # A second request is a hit of this host's own, also when the upstream is dead, and after a restart.
    upstream.kill()
    assert compile_many(host.client(), range(4)) == made
    assert {origin(host.client(), host.client().compile(program(n), TARGET)) for n in made} == {"MEMORY"}
    assert host.stop() == 0
    host.start(*host.options)
    assert {origin(host.client(), host.client().compile(program(n), TARGET)) for n in made} == {"DISK"}
    is_unavailable(host.client(), compile_once(host, 7), "no workers")


def test_a_manifest_is_forwarded(hosts):
    upstream = hosts.start(None)
    host = hosts.start(None, below(upstream), NO_WORKERS)
    requests = [host.client().request(program(n), TARGET) for n in range(40)]
    *_, last = host.client().ensure_kernels(requests)
    assert (last.total, last.compiled, last.failed) == (40, 40, 0)
    *_, again = host.client().ensure_kernels(requests)
    assert again.known == 40
    assert upstream.client().stats().compiles == 40


def test_many_who_want_the_same_ask_once(hosts):
    upstream = hosts.start(None, "--workers=1")
    some = [hosts.start(None, below(upstream), NO_WORKERS) for _ in range(2)]
    programs = [program(n) for n in range(6)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda n: some[n % 2].client().compile(programs[n // 4 % 6], TARGET).key, range(48)))
    assert len(set(replies)) == 6
    assert upstream.client().stats().compiles == 6
    assert all(sum(forwards(host).values()) <= 6 for host in some)


def test_diagnostics_of_a_wrong_program_come_as_they_are(hosts):
    upstream = hosts.start(None)
    host = hosts.start(None, below(upstream), NO_WORKERS)
    said = []
    for one in (host, upstream):
        with pytest.raises(Exception, match="shared memory") as refused:
            one.client().compile(too_large(), TARGET)
        said.append((type(refused.value), refused.value.code, str(refused.value), [d.message for d in refused.value.diagnostics]))
    assert said[0] == said[1]
    assert upstream.client().stats().failed == 1
    assert forwards(host) == {"refused": 1}
    upstream.kill()
    with pytest.raises(Exception, match="shared memory"):
        host.client().compile(too_large(), TARGET)


def test_explained_compiles_are_forwarded_and_not_kept(hosts):
    upstream = hosts.start(None)
    host = hosts.start(None, below(upstream), NO_WORKERS)
    reply = host.client().compile(program(1), TARGET, explain={"assembly": True})
    assert reply.dumps and any(dump.text for dump in reply.dumps)
    assert not known(host, reply.key)


def test_a_call_that_is_cancelled_is_cancelled_there(hosts):
    upstream = hosts.start(None, "--workers=1")
    host = hosts.start(None, below(upstream), NO_WORKERS)
    for worker in eventually(upstream.workers):
        os.kill(worker, signal.SIGSTOP)
    client = host.client()
    calls = [client._methods["Compile"].future(client.request(program(1), TARGET), timeout=60) for _ in range(2)]
    eventually(lambda: upstream.client().stats().flights == 1)
    # A caller's deadline ends what it alone waits for.
    failure = ask(client, "Compile", client.request(program(2), TARGET), timeout=0.5)
    assert failure.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: upstream.client().stats().flights == 1)
    calls[0].cancel()
    time.sleep(0.3)
    assert upstream.client().stats().flights == 1, "somebody still waits"
    calls[1].cancel()
    eventually(lambda: upstream.client().stats().flights == 0)


def test_a_busy_upstream_says_when_to_come_back(hosts):
    upstream = hosts.start(None, "--workers=1", "--queue=1")
    host = hosts.start(None, below(upstream), NO_WORKERS)
    for worker in eventually(upstream.workers):
        os.kill(worker, signal.SIGSTOP)
    client = host.client()
    calls = [client._methods["Compile"].future(client.request(program(n), TARGET), timeout=60) for n in range(4)]
    failures = [call for call in eventually(lambda: [c for c in calls if c.done()])]
    assert {call.code() for call in failures} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert client._details(failures[0], "RetryInfo") is not None
    for call in calls:
        call.cancel()


def test_a_drain_ends_what_is_forwarded(hosts):
    upstream = hosts.start(None, "--workers=1")
    host = hosts.start(None, below(upstream), NO_WORKERS, "--grace=0.3")
    for worker in eventually(upstream.workers):
        os.kill(worker, signal.SIGSTOP)
    client = host.client()
    call = client._methods["Compile"].future(client.request(program(1), TARGET), timeout=60)
    eventually(lambda: upstream.client().stats().flights == 1)
    assert host.stop(limit=15) == 0
    assert call.code() == grpc.StatusCode.UNAVAILABLE
    eventually(lambda: upstream.client().stats().flights == 0)


# An upstream that dies, or is slow


def test_nobody_with_workers_fails_because_of_it(hosts):
    upstream = hosts.start(None)
    host = hosts.start(None, below(upstream))
    bare = hosts.start(None, below(upstream), NO_WORKERS)
    compile_many(upstream.client(), range(0, 40, 2))
    programs, failures = [program(n) for n in range(40)], []

    def compile_all(part):
        from kiln.client import Client

        with Client(f"unix:{host.socket}", timeout=60.0) as client:
            for number in part:
                result = ask(client, "Compile", client.request(programs[number], TARGET))
                if isinstance(result, grpc.RpcError):
                    failures.append(result)

    asking = [threading.Thread(target=compile_all, args=(range(t, 40, 4),)) for t in range(4)]
    for thread in asking:
        thread.start()
    time.sleep(0.1)
    upstream.kill()
    for thread in asking:
        thread.join()
    assert failures == []
    eventually(lambda: (compile_once(host, 1000), tier(host, "upstream").state == "disabled")[1])
    assert 'event=upstream state="left-alone"' in host.log.read_text()
    began = time.monotonic()
    is_unavailable(bare.client(), compile_once(bare, 500), "no workers")
    assert time.monotonic() - began < 5.0
    # It is used again once it answers.
    upstream.start(*upstream.options)
    eventually(lambda: tier(host, "upstream").state == "ok")
    eventually(lambda: not isinstance(compile_once(bare, 500), grpc.RpcError))
    assert origin(host.client(), host.client().compile(program(500), TARGET)) == "CLUSTER"


def test_a_slow_upstream_is_left_alone(hosts, sockets):
    real = hosts.start(None)
    made = compile_many(real.client(), range(6))
    slow = threading.Event()

    def change(method, request, ask_real):
        if method == "Fetch" and slow.is_set():
            time.sleep(1.0)
        return ask_real()

    with lying(sockets, real, change) as upstream:
        host = hosts.start(None, below(upstream))
        slow.set()
        calls = upstream.calls["Fetch"]
        began = time.monotonic()
        assert compile_many(host.client(), range(6)) == made
        assert time.monotonic() - began < 5.0
        assert host.client().stats().compiles == 6, "nothing came in time"
        # One request was kept waiting. What else asked were the probes, in growing distances: not each request, twice.
        assert upstream.calls["Fetch"] - calls < 10
        slow.clear()
        eventually(lambda: tier(host, "upstream").state == "ok")


def test_the_upstreams_own_stores_keep_nobody_waiting(hosts, tmp_path):
    """It asks no store of its own for others, who wait for less time than that store may take."""
    store = ObjectStore(tmp_path / "bucket")
    try:
        upstream = hosts.start(store, "--tier-timeout=2000")
        eventually(lambda: tier(upstream, "object").state == "ok")
        made = compile_many(upstream.client(), range(2))
        host = hosts.start(None, below(upstream), "--tier-timeout=500")
        store.delay = 1.0
        asked = store.asked.count("GET")
        assert compile_many(host.client(), range(2)) == made
        for number in range(10, 14):
            host.client().compile(program(number), TARGET)
        assert store.asked.count("GET") == asked
        assert tier(host, "upstream").hits == 2 and tier(host, "upstream").state == "ok"
        assert 'event=upstream state="left-alone"' not in host.log.read_text()
    finally:
        store.delay = 0.0
        store.stop()


def test_it_may_come_later(hosts, sockets):
    host = hosts.start(None, f"--upstream=unix:{sockets}/kiln.sock", NO_WORKERS)
    eventually(lambda: "it has not yet said what it is" not in compile_once(host, 1).details())
    is_unavailable(host.client(), compile_once(host, 1), "no kilnd answers at")
    from daemon import Daemon

    upstream = Daemon(hosts.folder / "late", sockets)
    hosts.all.append(upstream)
    upstream.start()
    key = upstream.client().capabilities().signing_key
    with open(hosts.trusted, "a", encoding="utf-8") as file:
        file.write(f"ed25519:{key.hex()} late\n")
    host.process.send_signal(signal.SIGHUP)
    eventually(lambda: not isinstance(compile_once(host, 1), grpc.RpcError))


def test_the_ptxas_is_that_of_the_upstream(hosts):
    upstream = hosts.start(None, "--ptxas=auto")
    if not upstream.client().capabilities().ptxas:
        pytest.skip("NOT TESTED: a ptxas, whose version is a part of keys; kilnd finds none here")
    host = hosts.start(None, below(upstream), NO_WORKERS)
    assert host.client().capabilities().ptxas == upstream.client().capabilities().ptxas != ""
    made = compile_many(host.client(), range(2), "cuda:sm_90a")
    assert compile_many(upstream.client(), range(2), "cuda:sm_90a") == made
    assert compile_many(hosts.start(None).client(), range(2), "cuda:sm_90a")[0][0] != made[0][0], "another key: it has no ptxas"
    # It is remembered, as what it has made is.
    upstream.kill()
    assert host.stop() == 0
    host.start(*host.options)
    assert compile_many(host.client(), range(2), "cuda:sm_90a") == made
