# SPDX-License-Identifier: Apache-2.0
"""Who begins messages and never ends them takes nothing from others: strangers nothing but a room of their own, a tenant its own part."""
import re
import socket
import time

import grpc
import pytest
from access_test import host  # noqa: F401, a fixture
from daemon import TARGET
from flood import Calls, call, flood
from half_sender import MIB, HalfSender, over_tls
from memory_test import resident

MEMORY = "--connection-memory=32MiB"
CALLS = 200


@pytest.fixture
def tokens(host):  # noqa: F811
    return [host.token(name, tenant=name, scopes="read,compile") for name in ("caller", "other")]


def a_request(host, token):  # noqa: F811
    from kiln.examples.programs import PROGRAMS

    with host.client(token=token) as client:
        request = client.request(PROGRAMS["softmax_f16"](), TARGET)
        call(client, token, request)
        return request


def requests(text, tenant, outcome):
    return [line for line in text.splitlines() if "event=request" in line and f'tenant="{tenant}"' in line and f'outcome="{outcome}"' in line]


def connect(host, **options):  # noqa: F811
    name, port = host.address.rsplit(":", 1)
    return HalfSender(over_tls(name, int(port), host.authority.roots), **options)


def test_strangers_take_nothing_from_others(host, tokens):  # noqa: F811
    host.start(MEMORY)
    request = a_request(host, tokens[0])
    before = resident(host.process.pid)
    with flood(host) as told:
        calls = Calls(lambda: host.client(token=tokens[0]), tokens[0], request, CALLS)
        grown = resident(host.process.pid) - before
    print(told, f"{grown / MIB:.0f} MiB")
    assert not calls.failures
    assert "answered" in told[0], "strangers were answered at their headers"
    assert grown < 60 * MIB
    refused = [line for line in host.text().splitlines() if "event=request" in line and 'outcome="UNAUTHENTICATED"' in line]
    assert refused and not any("bytes_in=" in line for line in refused), "nothing of their messages was read"


def test_a_tenant_takes_nothing_from_others(host, tokens):  # noqa: F811
    host.start(MEMORY)
    request = a_request(host, tokens[0])
    before = resident(host.process.pid)
    with flood(host, tokens[1]) as told:
        calls = Calls(lambda: host.client(token=tokens[0]), tokens[0], request, CALLS)
        grown = resident(host.process.pid) - before
    print(told, f"{grown / MIB:.0f} MiB")
    assert not calls.failures
    assert grown < 150 * MIB
    assert requests(host.text(), "other", "RESOURCE_EXHAUSTED"), "who floods is told so"
    assert not requests(host.text(), "caller", "RESOURCE_EXHAUSTED")


def test_who_fills_its_part_is_told_so(host, tokens):  # noqa: F811
    host.start(MEMORY)
    senders = [connect(host, streams=4, message=12 * MIB, token=tokens[0]) for _ in range(2)]
    for sender in senders:
        sender.run(4)
    assert sum(sender.ended["answered"] for sender in senders) >= 1
    line = requests(host.text(), "caller", "RESOURCE_EXHAUSTED")[0]
    assert 'reason="queue-full"' in line
    with host.client(token=tokens[0]) as client:
        assert client.capabilities(timeout=10).signing_key, "and served again, while the rest of it hangs"


def test_each_refusal_of_a_stranger_is_one_line_of_the_audit(host):  # noqa: F811
    host.start()
    sender = connect(host, streams=5, message=8 * MIB).run(3)
    assert sender.ended == {"answered": 5}
    lines = [line for line in host.text().splitlines() if 'audit="refused"' in line]
    assert len(lines) == 5 and all('method="Compile"' in line for line in lines)


def test_the_health_is_for_those_who_are_known(host, tokens):  # noqa: F811
    host.start()
    credentials = grpc.ssl_channel_credentials(host.authority.roots.read_bytes())
    with grpc.secure_channel(host.address, credentials) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=10, metadata=(("authorization", f"Bearer {tokens[0]}"),)) == b"\x08\x01"
        for metadata in ((), (("authorization", "Bearer kiln_nobody"),)):
            with pytest.raises(grpc.RpcError) as refused:
                check(b"", timeout=10, metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", metadata=(("authorization", f"Bearer {tokens[0]}"),))
        assert next(watch) == b"\x08\x01"
        host.process.terminate()
        assert next(watch) == b"\x08\x02"
        with pytest.raises(grpc.RpcError):
            next(watch)


def test_many_connections_of_strangers_leave_room_for_one_who_is_known(host, tokens):  # noqa: F811
    host.start()
    name, port = host.address.rsplit(":", 1)
    idle = [socket.create_connection((name, int(port))) for _ in range(400)]
    with host.client(token=tokens[0]) as client:
        assert client.capabilities(timeout=10).signing_key
        gone = 0
        for connection in idle:
            connection.settimeout(0)
            try:
                gone += connection.recv(1) == b""
            except (BlockingIOError, ConnectionResetError) as error:
                gone += isinstance(error, ConnectionResetError)
        assert 400 - 256 <= gone < 400, "the oldest gave way"
        assert client.capabilities(timeout=10).signing_key
    for connection in idle:
        connection.close()


LINE = re.compile(r'time=\S+ level=(debug|info|warning|error) event=[a-z0-9-]+( [a-z0-9_-]+=("([^"\\]|\\.)*"|[-0-9.]+))*')


def test_what_grpc_says_are_lines_of_the_log(host):  # noqa: F811
    host.start()
    name, port = host.address.rsplit(":", 1)
    for _ in range(40):
        with socket.create_connection((name, int(port))) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")  # no TLS
            connection.settimeout(5)
            connection.recv(100)
    end = time.monotonic() + 10
    while "event=grpc" not in host.text():
        assert time.monotonic() < end, host.text()
        time.sleep(0.05)
    lines = host.text().splitlines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    said = [line for line in lines if "event=grpc" in line]
    assert "level=error" in said[0] and 'at="ssl_transport_security.cc:' in said[0]
    assert len(said) <= 33, "16 a second for each place"
