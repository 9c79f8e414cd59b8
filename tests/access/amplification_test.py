# SPDX-License-Identifier: Apache-2.0
"""Messages that would take many times their bytes in memory: what kilnd grows by for them is bounded, each is refused with what it is over,
has its line in the log, and what it took is given back."""
import collections
import re
import threading
import time

import grpc
import pytest

from memory_test import MIB, resident

STRANGER = (("authorization", "Bearer kiln_nobody"),)
KILN = "/kiln.v1.Kiln/"
# gRPC's own words for a stream that it ends since messages under way hold what --connection-memory says, and for a whole connection: these are
# many (GOAWAY received, Socket closed, Broken pipe), and depend on where the client was.
AT_CONNECTION_MEMORY = ("RESOURCE_EXHAUSTED: Received RST_STREAM with error code 11", "UNAVAILABLE: ")


def field(number, payload):
    length, rest = bytearray(), len(payload)
    while rest >= 0x80:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((number << 3 | 2,)) + bytes(length) + bytes((rest,)) + payload


def compile_request(module):
    return field(1, module) + field(2, b"hip:gfx942")


class Flood:
    """Calls at one time: how far kilnd grows, and what each is told."""

    def __init__(self, daemon, method, bodies, stream=False, metadata=()):
        self.daemon, self.method, self.stream, self.metadata = daemon, method, stream, metadata
        self.told, self.most = collections.Counter(), 0
        threads = [threading.Thread(target=self.call, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.most = max(self.most, resident(daemon.process.pid))
            time.sleep(0.01)

    def call(self, body):
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"unix:{self.daemon.socket}", options=options) as channel:
            make = channel.unary_stream if self.stream else channel.unary_unary
            try:
                answer = make(KILN + self.method, lambda sent: sent, lambda got: got)(body, metadata=self.metadata, timeout=120)
                if self.stream:
                    collections.deque(answer, maxlen=0)
                self.told["OK"] += 1
            except grpc.RpcError as refused:
                self.told[f"{refused.code().name}: {refused.details()}"] += 1


def lines(daemon, method, outcome, count):
    """Those of the log with this outcome, of which so many are awaited: calls are logged once they have been answered."""
    end = time.monotonic() + 20
    while True:
        found = [line for line in daemon.log.read_text().splitlines()
                 if f'event=request method="{method}"' in line and f'outcome="{outcome}"' in line]
        if len(found) >= count or time.monotonic() > end:
            return found
        time.sleep(0.02)


def settles(daemon, limit):
    """Bytes that kilnd comes down to."""
    end = time.monotonic() + 20
    while (now := resident(daemon.process.pid)) > limit and time.monotonic() < end:
        time.sleep(0.1)
    return now


EMPTY_REQUESTS, UNKNOWN_FIELDS = b"\x0a\x00" * (8 * MIB - 8), b"\xa2\x06\x00" * (5 * MIB)
BODIES = {"empty requests": EMPTY_REQUESTS, "unknown fields": UNKNOWN_FIELDS}  # by names: pytest puts parameters into the environment


@pytest.mark.parametrize("method, body, stream", [
    ("EnsureKernels", "empty requests", True), ("Rank", "empty requests", True), ("CacheExport", "empty requests", True),
    ("CacheList", "unknown fields", True), ("Watch", "unknown fields", True), ("Stats", "unknown fields", False),
    ("Put", "unknown fields", False), ("Lookup", "unknown fields", False)])
def test_what_a_stranger_sends_is_not_parsed(daemon, method, body, stream):
    daemon.start()
    flood = Flood(daemon, method, [BODIES[body]] * 6, stream, STRANGER)
    assert sum(flood.told.values()) == 6 and all(told.startswith("UNAUTHENTICATED") for told in flood.told), flood.told
    assert flood.most < 300 * MIB
    assert settles(daemon, 90 * MIB) <= 90 * MIB
    assert len(lines(daemon, method, "UNAUTHENTICATED", 6)) == 6


def test_there_is_no_other_service_that_parses(daemon):
    daemon.start()
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        listed = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", lambda s: s, lambda g: g)
        with pytest.raises(grpc.RpcError) as refused:
            list(listed(iter([UNKNOWN_FIELDS[:3 * MIB]]), timeout=60))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_manifest_of_empty_requests(daemon):
    daemon.start()
    flood = Flood(daemon, "EnsureKernels", [EMPTY_REQUESTS] * 6, True)
    assert flood.told == {"INVALID_ARGUMENT: the manifest has 8388600 requests × targets; send it in parts of at most 100000 (--max-manifest)": 6}
    assert flood.most < 300 * MIB
    assert settles(daemon, 90 * MIB) <= 90 * MIB


def test_manifests_as_large_as_they_may_be(daemon):
    daemon.start()
    requests = b"".join(field(1, field(1, b"no module %06d" % i + bytes(280))) for i in range(50_000))
    manifest = requests + field(2, b"cuda:sm_80") + field(2, b"hip:gfx942")
    assert 14 * MIB < len(manifest) < 16 * MIB
    flood = Flood(daemon, "EnsureKernels", [manifest] * 16, True)
    refused = "RESOURCE_EXHAUSTED: the manifests of the tenant default that are under way hold its part of the 100663296 bytes"
    assert sum(flood.told.values()) == 16, flood.told
    assert all(told == "OK" or told.startswith((refused, *AT_CONNECTION_MEMORY)) for told in flood.told), flood.told
    assert flood.most < 300 * MIB
    assert settles(daemon, 90 * MIB) <= 90 * MIB
    assert Flood(daemon, "EnsureKernels", [manifest], True).told == {"OK": 1}


def text(statements):
    return b"kiln 1\nfunc @f() {\nkernel @k grid(1) threads 32 blocks(%b) {\n" + statements + b"}\n}\n"


def named(module, i):
    """The same program under another name, which is another request."""
    if module.startswith(b"kiln"):
        return module.replace(b"@f", b"@f%d" % i, 1)
    return b"\x08\x01" + module + b"\x7a\x03\x32\x01" + b"%c" % (97 + i)


MODULES = {
    "empty expressions": (b"\x2a\x00" * (2 * MIB - 200),
                          r"INVALID_ARGUMENT: the expressions of the module are 20\d{5}; this kilnd takes 250000 \(--max-expressions\)"),
    "empty buffers": (b"\x22\x00" * (2 * MIB - 200),
                      r"INVALID_ARGUMENT: the buffers of the module are 20\d{5}; this kilnd takes 10000 \(--max-buffers\)"),
    "empty statements": (field(6, field(5, b"\x0a\x00" * (2 * MIB - 200))),
                         r"INVALID_ARGUMENT: the statements of the module are 20\d{5}; this kilnd takes 100000 \(--max-statements\)"),
    "names": (field(15, b"\x1a\x00" * (2 * MIB - 200)),
              r"INVALID_ARGUMENT: the module's \d+ bytes would take \d+ in memory; a module may take 67108864"),
    "unknown fields": (b"\xa2\x06\x00" * (4 * MIB // 3 - 200),
                       r"INVALID_ARGUMENT: the module's \d+ bytes would take \d+ in memory; a module may take 67108864"),
    "expressions": (b"\x2a\x06\x08\x01\x10\x04\x20\x02" * 249_000, "NOT_FOUND: this program has not been compiled"),
    "text of statements": (text(b"barrier\n" * 99_000), "NOT_FOUND: this program has not been compiled"),
    "text of expressions": (text(b"".join(b"assume %%b * %d < %d\n" % (2 * i, 2 * i + 1) for i in range(30_000))),
                            "NOT_FOUND: this program has not been compiled"),
}


@pytest.mark.parametrize("what", MODULES)
def test_programs_that_grow(daemon, what):
    module, told = MODULES[what]
    daemon.start()
    bodies = [field(2, compile_request(named(module, i))) for i in range(8)]
    flood = Flood(daemon, "Lookup", bodies)
    assert sum(flood.told.values()) == 8 and all(re.match(told, said) for said in flood.told), flood.told
    assert flood.most < 300 * MIB
    assert settles(daemon, 90 * MIB) <= 90 * MIB


def test_results_that_many_put_at_once(daemon):
    daemon.start("--accept-put=yes")
    module = b"\x08\x01\x2a\x06\x08\x01\x10\x04\x20\x02"
    reply = daemon.client().capabilities()
    bodies = [field(1, compile_request(module + b"\x2a\x06\x08\x01\x10\x04\x20" + bytes((2 * i + 4,)))) +
              field(2, field(1, b"hip:gfx942") + field(3, bytes(14 * MIB)) + field(7, reply.compiler.encode())) for i in range(40)]
    flood = Flood(daemon, "Put", bodies)
    busy = "RESOURCE_EXHAUSTED: the requests of the tenant default that are under way hold its part of the 67108864 bytes"
    assert sum(flood.told.values()) == 40, flood.told
    assert all(told == "OK" or told.startswith((busy, *AT_CONNECTION_MEMORY)) for told in flood.told), flood.told
    assert flood.most < 300 * MIB
    end = time.monotonic() + 20  # until the last of them is done
    while (told := Flood(daemon, "Put", bodies[-1:]).told) != {"OK": 1}:
        assert time.monotonic() < end, told


@pytest.mark.parametrize("method, stream", [("Put", False), ("EnsureKernels", True), ("Compile", False), ("CacheVerify", False)])
def test_what_is_over_max_message_is_told_and_logged(daemon, method, stream):
    daemon.start("--max-message=9MiB")
    flood = Flood(daemon, method, [bytes(10 * MIB)], stream)
    assert flood.told == {f"RESOURCE_EXHAUSTED: the message has {10 * MIB} bytes; this kilnd takes {9 * MIB} (--max-message)": 1}
    (line,) = lines(daemon, method, "RESOURCE_EXHAUSTED", 1)
    assert 'reason="too-much"' in line and f"bytes_in={10 * MIB}" in line


@pytest.mark.parametrize("method, stream", [("Put", False), ("EnsureKernels", True), ("Lookup", False), ("CacheExport", True), ("CacheGc", False)])
def test_bytes_that_are_no_message(daemon, method, stream):
    daemon.start()
    flood = Flood(daemon, method, [b"\xff" * 20], stream)
    ((told, _),) = flood.told.items()
    assert re.fullmatch(r"INVALID_ARGUMENT: the request is no kiln\.v1\.\w+; is the client of this protocol version\?", told)
