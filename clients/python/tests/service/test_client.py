# SPDX-License-Identifier: Apache-2.0
"""The client against a gRPC server in this process: what is sent, and what becomes of each kind of failure."""

import concurrent.futures
import os
import threading

import grpc
import pytest

import kiln
import kiln.language as T
from kiln import _proto, daemon
from kiln.client import Client


class Server:
    """Answers with what a test puts into ``handler``."""

    def __init__(self, address):
        self.pb, self.handler, self.calls = _proto.messages(), None, []
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        methods = {}
        for method in self.pb.service.methods:
            request = getattr(self.pb, method.input_type.name)
            make = (grpc.unary_stream_rpc_method_handler if method.name in _proto.SERVER_STREAMING
                    else grpc.unary_unary_rpc_method_handler)
            methods[method.name] = make(self._answer(method.name), request.FromString, lambda m: m.SerializeToString())
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self.pb.service.full_name, methods),))
        self.server.add_insecure_port(address)
        self.server.start()

    def _answer(self, name):
        def call(request, context):
            self.calls.append((name, request, dict(context.invocation_metadata())))
            return self.handler(name, request, context)

        return call

    def fail(self, context, code, message, detail=None):
        if detail is not None:
            status = self.pb.Status(code=3, message=message)
            status.details.add(type_url=f"type.googleapis.com/kiln.v1.{type(detail).DESCRIPTOR.name}", value=detail.SerializeToString())
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(code, message)


@pytest.fixture
def server(sockets, monkeypatch):
    address = f"unix:{sockets}/kiln.sock"
    monkeypatch.setenv("KILN_ADDRESS", address)
    monkeypatch.setenv("KILN_VERIFY", "0")  # what it answers is not signed; test_seal.py is about that
    server = Server(address)
    yield server
    server.server.stop(None)


@T.prim_func
def program(A: T.Tensor((8,), "float32")):
    with T.Kernel(8) as bx:
        A[bx] = 1.0  # the offending line


def test_compile_sends_the_module_and_returns_the_reply(server):
    server.handler = lambda name, request, context: server.pb.CompileReply(key=b"k", artifact={"target": request.target}, origin=2)
    with Client() as client:
        reply = client.compile(program, "cuda:sm_90a", {"fast_math": True}, priority="BATCH", refresh=True, explain={"assembly": True})
    assert reply.artifact.target == "cuda:sm_90a"
    name, request, metadata = server.calls[0]
    assert name == "Compile" and request.module == program.serialized and request.options.fast_math
    assert request.priority == 1 and request.refresh and request.explain.assembly
    assert int(metadata["kiln-details-bytes"]) > 5 << 10


def test_diagnostics_tell_statement_line_and_what_to_try(server):
    line = next(n for n, text in enumerate(open(__file__, encoding="utf-8"), 1) if "# the offending line" in text)
    failure = server.pb.CompileFailure(diagnostics=[dict(message="no good", hint="do better", statement="store A", file=__file__, line=line)])
    server.handler = lambda name, request, context: server.fail(context, grpc.StatusCode.INVALID_ARGUMENT, "1 error", failure)
    with Client() as client, pytest.raises(kiln.CompileError) as error:
        client.compile(program, "cuda:sm_90a")
    text = str(error.value)
    assert error.value.code == "INVALID_ARGUMENT" and len(error.value.diagnostics) == 1
    for part in (f"{__file__}:{line}: error: no good", "A[bx] = 1.0", "statement: store A", "try: do better"):
        assert part in text
    assert len(server.calls) == 1, "a refused program is not sent again"


def test_an_internal_failure_names_the_reproducer(server):
    failure = server.pb.CompileFailure(reproducer="/var/cache/kiln/repro/1")
    server.handler = lambda name, request, context: server.fail(context, grpc.StatusCode.INTERNAL, "the compiler ended", failure)
    with Client() as client, pytest.raises(kiln.CompileError, match="kiln compile --repro /var/cache/kiln/repro/1"):
        client.compile(program, "cuda:sm_90a")


def test_a_full_queue_is_tried_again_when_it_says(server):
    def handler(name, request, context):
        if len(server.calls) == 1:
            server.fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", server.pb.RetryInfo(retry_delay={"nanos": 1000000}))
        return server.pb.CompileReply(key=b"k")

    server.handler = handler
    with Client() as client:
        assert client.compile(program, "cuda:sm_90a").key == b"k"
    assert len(server.calls) == 2


STREAMS = {
    "CompileStream": (lambda client: client.compile_stream(program, "cuda:sm_90a"), lambda pb: pb.CompileProgress(stage="decode")),
    "EnsureKernels": (lambda client: client.ensure_kernels([client.request(program, "cuda:sm_90a")]), lambda pb: pb.EnsureProgress(total=1)),
    "CacheList": (lambda client: client.cache_list(), lambda pb: pb.CacheEntry(key=b"k")),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_tried_again_until_it_has_begun(server, name):
    call, message = STREAMS[name]

    def handler(name, request, context):
        if len(server.calls) > 1:
            yield message(server.pb)
        server.fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", server.pb.RetryInfo(retry_delay={"nanos": 1000000}))

    server.handler = handler
    with Client() as client:
        told = iter(call(client))
        assert next(told) == ("decode" if name == "CompileStream" else message(server.pb))
        with pytest.raises(kiln.KilnError, match="full"):
            next(told)
    assert [made for made, _, _ in server.calls] == [name, name]


def test_a_run_is_tried_again(server):
    def handler(name, request, context):
        yield server.pb.RunReply(result={"finished": True, "target": str(len(server.calls))})
        if len(server.calls) == 1:
            server.fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", server.pb.RetryInfo(retry_delay={"nanos": 1000000}))

    server.handler = handler
    with Client() as client:
        assert client.run(program, "emu:sm_90a", [])[0].target == "2", "of what failed nothing was given to the caller"


def test_a_stream_is_not_tried_again_after_its_time(server):
    server.handler = lambda name, request, context: server.fail(
        context, grpc.StatusCode.RESOURCE_EXHAUSTED, "a full queue", server.pb.RetryInfo(retry_delay={"seconds": 70}))
    with Client(timeout=60) as client, pytest.raises(kiln.KilnError, match="a full queue"):
        list(client.compile_stream(program, "cuda:sm_90a"))
    assert len(server.calls) == 1


@pytest.fixture
def cache(server):
    """Lists ``cache.entries`` entries as a kilnd does: 12,000 at once."""
    server.entries, server.old = 0, False
    keys = [b"%032d" % number for number in range(30_000)]

    def handler(name, request, context):
        first = int(request.after) + 1 if request.after and not server.old else 0
        return (server.pb.CacheEntry(key=key) for key in keys[first : min(server.entries, first + min(request.limit or 12_000, 12_000))])

    server.handler = handler
    return server


def test_more_is_listed_than_a_kilnd_does_at_once(cache):
    cache.entries = 24_500
    with Client() as client:
        keys = [entry.key for entry in client.cache_list(b"0", "cuda:sm_90a")]
        assert keys == [b"%032d" % number for number in range(24_500)]
        assert {(request.key_prefix, request.target) for _, request, _ in cache.calls} == {(b"0", "cuda:sm_90a")}
        for limit in (1, 10_000, 10_001, 20_000):
            assert len(list(client.cache_list(limit=limit))) == limit
        for cache.entries in (0, 10_000):  # the last page is empty
            assert len(list(client.cache_list())) == cache.entries


def test_a_kilnd_that_cannot_list_more_is_told(cache):
    cache.entries, cache.old = 10_001, True
    with Client() as client, pytest.raises(kiln.KilnError, match="older than its client"):
        list(client.cache_list())


def test_a_compile_that_no_queue_took_is_tried_again(server):
    def handler(name, request, context):
        yield server.pb.CompileProgress(stage="queued")
        if len(server.calls) == 1:
            server.fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", server.pb.RetryInfo(retry_delay={"nanos": 1000000}))
        yield server.pb.CompileProgress(stage="decode")
        yield server.pb.CompileProgress(reply={"key": b"k"})

    server.handler = handler
    with Client() as client:
        *stages, reply = client.compile_stream(program, "cuda:sm_90a")
    assert stages == ["queued", "queued", "decode"] and reply.key == b"k"


def test_a_stream_that_the_transport_ended_for_want_of_memory_is_tried_again(server):
    def handler(name, request, context):
        if len(server.calls) < 3:
            server.fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "Received RST_STREAM with error code 11")
        return server.pb.CompileReply(key=b"k")

    server.handler = handler
    with Client() as client:
        assert client.compile(program, "cuda:sm_90a").key == b"k"
    assert len(server.calls) == 3


def test_what_is_too_much_is_not_tried_again(server):
    server.handler = lambda name, request, context: server.fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "the message has 9 bytes")
    with Client() as client, pytest.raises(kiln.KilnError, match="9 bytes"):
        client.compile(program, "cuda:sm_90a")
    assert len(server.calls) == 1


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_a_draining_daemon_is_tried_again(server, status):
    def handler(name, request, context):
        if len(server.calls) < 3:
            server.fail(context, status, "draining")
        return server.pb.StatsReply(requests=7)

    server.handler = handler
    with Client() as client:
        assert client.stats().requests == 7


@pytest.mark.parametrize("name", ["root_certificates", "private_key", "certificate_chain"])
def test_a_unix_socket_has_no_tls(server, name):
    with pytest.raises(ValueError, match=f"^{name} of a Client: TLS is for TCP, and unix:"):
        Client(os.environ["KILN_ADDRESS"], **{name: b"PEM"})
    Client(os.environ["KILN_ADDRESS"], root_certificates=None, private_key=b"").close()


def test_deadline(server):
    release = threading.Event()
    server.handler = lambda name, request, context: release.wait(5) and server.pb.StatsReply()
    with Client() as client, pytest.raises(kiln.DeadlineExceeded):
        client.stats(timeout=0.1)
    release.set()


@pytest.mark.parametrize("timeout", [1e10, 1e30, float("inf")])
def test_a_timeout_may_be_longer_than_clocks_go(server, timeout):
    def handler(name, request, context):
        return iter([server.pb.CacheEntry(key=b"k")]) if name == "CacheList" else server.pb.StatsReply(requests=7)

    server.handler = handler
    with Client() as client, Client(timeout=timeout) as patient:
        assert patient.stats().requests == client.stats(timeout=timeout).requests == 7
        assert len(list(client.cache_list(timeout=timeout))) == 1


def test_a_timeout_that_is_no_number_is_refused(server):
    release = threading.Event()
    server.handler = lambda name, request, context: release.wait(60)
    with Client() as client:
        for call in (lambda timeout: client.stats(timeout), lambda timeout: list(client.cache_list(timeout=timeout))):
            with pytest.raises(ValueError, match="a number of seconds, not nan"):
                call(float("nan"))
            with pytest.raises(kiln.DeadlineExceeded):
                call(-1.0)
    release.set()


def test_a_runs_own_timeout_is_not_cut_short_by_the_clients(server):
    left = []

    def handler(name, request, context):
        left.append(context.time_remaining())
        yield server.pb.RunReply(result={"finished": True})

    server.handler = handler
    with Client(timeout=5) as client:
        for timeout in (100, None):
            result, _ = client.run(program, "emu:sm_90a", [], timeout=timeout)
            assert result.finished
    assert left[0] > 150 and left[1] < 10


def test_a_run_that_does_not_end_in_time_is_told_as_a_run(server):
    release = threading.Event()
    server.handler = lambda name, request, context: iter([server.pb.RunReply()] if release.wait(5) else [])
    with Client(timeout=0.1) as client, pytest.raises(kiln.DeadlineExceeded, match="the run at .* had not ended after 0.1 s; give it a longer"):
        client.run(program, "emu:sm_90a", [])
    release.set()


def test_lookup_of_nothing_is_none(server):
    server.handler = lambda name, request, context: server.fail(context, grpc.StatusCode.NOT_FOUND, "nothing")
    with Client() as client:
        assert client.lookup(b"key") is None and client.lookup(program, "cuda:sm_90a") is None
    assert server.calls[1][1].request.module == program.serialized


def test_progress(server):
    def handler(name, request, context):
        for stage in ("queued", "emit"):
            yield server.pb.CompileProgress(stage=stage)
        yield server.pb.CompileProgress(reply=server.pb.CompileReply(key=b"k"))

    server.handler = handler
    with Client() as client:
        *stages, reply = client.compile_stream(program, "cuda:sm_90a")
    assert stages == ["queued", "emit"] and reply.key == b"k"


def test_what_kilnd_itself_cannot_do_is_told_in_its_words(server, monkeypatch):
    started = []
    monkeypatch.setattr(daemon, "ensure", started.append)

    def handler(name, request, context):
        context.set_trailing_metadata((("kiln-request-id", "r7"),))
        server.fail(context, grpc.StatusCode.UNAVAILABLE, "the compile worker ended")

    server.handler = handler
    with Client(timeout=60.0) as client:  # it tries a few times, which takes less
        started.clear()
        with pytest.raises(kiln.ServiceUnavailable, match=r"^the compile worker ended \(request r7 in the daemon's log\)$"):
            client.compile(program, "cuda:sm_90a")
    assert len(server.calls) > 1 and not started


def test_nobody_listens(sockets, monkeypatch):
    monkeypatch.setenv("KILN_AUTOSTART", "0")
    with Client(f"unix:{sockets}/none.sock", timeout=60) as client, pytest.raises(kiln.ServiceUnavailable, match="Start one with `kilnd`"):
        client.stats()


def test_a_daemon_is_started(tmp_path, sockets, monkeypatch):
    kilnd = tmp_path / "kilnd"
    kilnd.write_text("#!/bin/sh\necho broken configuration >&2\nexit 3\n")
    kilnd.chmod(0o755)
    monkeypatch.setenv("KILN_KILND", str(kilnd))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KILN_AUTOSTART", raising=False)
    with pytest.raises(kiln.ServiceUnavailable, match="ended with status 3 before it served.*\n.*broken configuration"):
        daemon.ensure(f"unix:{sockets}/other.sock")


def test_a_socket_path_that_no_socket_can_have_is_told(monkeypatch):
    monkeypatch.setenv("KILN_AUTOSTART", "0")
    for address, size in (("unix:/" + "x" * 107, 108), ("unix:/" + "ü" * 54, 109)):
        with pytest.raises(kiln.ServiceUnavailable, match=f"has {size} bytes and Unix sockets take at most 107"):
            Client(address)
    assert not daemon.listening("/" + "x" * 106)


def test_default_addresses(monkeypatch):
    monkeypatch.delenv("KILN_ADDRESS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert daemon.default_address() == "unix:/run/user/7/kiln.sock"
    monkeypatch.setenv("KILN_ADDRESS", "/some/where.sock")
    assert daemon.default_address() == "unix:/some/where.sock"
    monkeypatch.setenv("KILN_ADDRESS", "build-host:7070")
    assert daemon.default_address() == "build-host:7070" and daemon.socket_path("build-host:7070") is None


def test_the_descriptor_must_be_there(monkeypatch, tmp_path):
    monkeypatch.setenv("KILN_DESCRIPTOR", str(tmp_path / "none.desc"))
    with pytest.raises(FileNotFoundError, match="kiln_python"):
        _proto.descriptor_path()


def test_each_call_for_an_artifact_says_what_it_asked_for(server, monkeypatch):
    checked, calls = [], []
    monkeypatch.setattr("kiln._seal.check", lambda reply, keys, asked: checked.append(asked))
    monkeypatch.delenv("KILN_VERIFY")
    replies = {"CompileStream": lambda: iter([server.pb.CompileProgress(reply={"key": b"k"})]),
               "Capabilities": lambda: server.pb.CapabilitiesReply(signing_key=b"s" * 32)}

    def answer(name, request, context):
        calls.append(name)
        return replies.get(name, lambda: server.pb.CompileReply(key=b"k"))()

    server.handler = answer
    with Client() as client:
        client.lookup(b"k" * 32)
        client.lookup(program, "cuda:sm_80")
        client.compile(program, "cuda:sm_90a", {"fast_math": True})
        list(client.compile_stream(program, "cuda:sm_90"))
    assert [(asked.key, asked.request and asked.request.target) for asked in checked] == [
        (b"k" * 32, None), (b"", "cuda:sm_80"), (b"", "cuda:sm_90a"), (b"", "cuda:sm_90")]
    assert checked[2].request.options.fast_math
    assert calls == ["Capabilities", "Lookup", "Lookup", "Compile", "CompileStream"], "who signs is asked before there is an answer to lose"


def test_a_token_that_no_header_can_carry_is_named(monkeypatch, tmp_path):
    for token in ("tok\nen", "tök", "a b"):
        with pytest.raises(kiln.KilnError, match="the token has characters that no token has"):
            Client("unix:/nowhere.sock", token=token)
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("KILN_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(kiln.KilnError, match="KILN_TOKEN_FILE"):
        Client("unix:/nowhere.sock")


def test_a_fifo_is_no_file_of_a_token(monkeypatch, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("KILN_TOKEN_FILE", str(tmp_path / "fifo"))
    with pytest.raises(kiln.KilnError, match="KILN_TOKEN_FILE: cannot read .*fifo: it is a FIFO"):
        Client("unix:/nowhere.sock")
    reading, writing = os.pipe()
    os.write(writing, b"a b")  # which no token is: it was read
    os.close(writing)
    monkeypatch.setenv("KILN_TOKEN_FILE", f"/dev/fd/{reading}")
    with pytest.raises(kiln.KilnError, match="the token has characters"):
        Client("unix:/nowhere.sock")
    os.close(reading)
