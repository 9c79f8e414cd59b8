# SPDX-License-Identifier: Apache-2.0
"""A kilnd that asks another believes nothing that comes without a trusted seal for this program, build and tenant; and kilnds that ask each
other come to an end."""

import concurrent.futures
import pathlib
import signal
import subprocess
import time

import grpc
import pytest

import stored
from daemon import BUILD, TARGET, compile_many, program, socket_folder
from lying_kilnd import Refusal
from once_test import too_large
from redis_servers import eventually
from share_test import origin, tier
from upstream_calls import NO_WORKERS, ask, below, compile_once, forwards, is_unavailable, known, lying

# An upstream that lies


def resealed(pb, sealed, change):
    """The bytes of an entry, its reply changed, with digests that are right."""
    size = stored.size_of_head(sealed)
    key, metadata, blobs = stored.open_entry(sealed[:size], sealed[size:])
    name = stored.reply_in(blobs)
    reply = pb.SealedReply.FromString(blobs[name])
    return b"".join(stored.seal_entry(key, metadata, blobs | {name: change(reply).SerializeToString()}))


def planted(pb, reply):
    artifact = pb.Artifact.FromString(reply.artifact)
    artifact.code = b"planted" + artifact.code
    reply.artifact = artifact.SerializeToString()
    return reply


def unsigned(reply):
    reply.ClearField("seal")
    return reply


KINDS = ("damaged", "cut", "swapped", "unsigned", "changed", "re-signed", "empty", "noise")


def spoiled_entry(kind, pb, bytes_of, key, others, stranger):
    """What a liar sends in place of a FetchReply."""
    sealed = bytearray(bytes_of)
    if kind == "damaged":
        sealed[len(sealed) // 2] ^= 1
    elif kind == "cut":
        del sealed[-7:]
    elif kind == "swapped":
        sealed = others(key)
    elif kind == "unsigned":
        sealed = resealed(pb, bytes_of, unsigned)
    elif kind == "changed":
        sealed = resealed(pb, bytes_of, lambda reply: planted(pb, reply))
    elif kind == "re-signed":
        sealed = stranger(key)
    elif kind == "empty":
        sealed = b""
    elif kind == "noise":
        return b"\xff" * 100
    return pb.FetchReply(sealed=bytes(sealed)).SerializeToString()


def fetched(host, key):
    reply = ask(host.client(), "Fetch", host.client()._pb.FetchRequest(entry=key))
    return None if isinstance(reply, grpc.RpcError) else reply.sealed


def test_what_is_planted_is_not_served(hosts, sockets):
    real, stranger = hosts.start(None), hosts.start(None, trusts=False)
    numbers = range(len(KINDS))
    made = compile_many(real.client(), numbers)
    assert compile_many(stranger.client(), numbers) == made
    keys = [made[n][0] for n in numbers]
    pb = real.client()._pb

    def change(method, request, ask_real):
        if method != "Fetch":
            return ask_real()
        key = pb.FetchRequest.FromString(request).entry
        if key not in keys:
            return ask_real()
        kind = KINDS[keys.index(key)]
        truth = pb.FetchReply.FromString(ask_real()).sealed
        return spoiled_entry(kind, pb, truth, key, lambda k: fetched(real, keys[keys.index(k) - 1]), lambda k: fetched(stranger, k))

    with lying(sockets, real, change) as upstream:
        host = hosts.start(None, below(upstream), "--tier-timeout=2000")
        for number in numbers:
            eventually(lambda: tier(host, "upstream").state == "ok")
            reply = host.client().compile(program(number), TARGET)
            assert (reply.key, reply.artifact.code) == made[number], KINDS[number]
            assert origin(host.client(), reply) == "COMPILED", KINDS[number]
        found = tier(host, "upstream")
        assert found.refused + found.corrupt >= len(KINDS) - 1, "noise is no message at all, and an error"
        assert found.hits == found.refused, "as of a tier whose entries are not taken in"


def test_what_is_planted_in_a_forwarded_compile_is_not_served(hosts, sockets):
    real, stranger = hosts.start(None), hosts.start(None, trusts=False)
    pb = real.client()._pb
    lie = {}

    def change(method, request, ask_real):
        if method == "Compile" and lie:
            return lie["do"](request, ask_real)
        return ask_real()

    def reply_with(change_reply):
        def do(_, ask_real):
            return change_reply(pb.SealedReply.FromString(ask_real())).SerializeToString()
        return do

    def of_stranger(request, _):
        return ask(stranger.client(), "Compile", pb.CompileRequest.FromString(request)).SerializeToString()

    def of_another_program(*_):
        return compile_once(real, 9000).SerializeToString()

    def refuse(code):
        def do(*_):
            failure = pb.CompileFailure(diagnostics=[pb.Diagnostic(message="this is a lie")])
            status = pb.Status(code=code.value[0], message="this is a lie")
            status.details.add().Pack(failure)
            raise Refusal(code, "this is a lie", status.SerializeToString())
        return do

    def other_build(reply):
        provenance = pb.Provenance.FromString(reply.seal.provenance)
        provenance.compiler = "another build"
        reply.seal.provenance = provenance.SerializeToString()
        return reply

    lies = {
        "unsigned": reply_with(unsigned),
        "changed": reply_with(lambda reply: planted(pb, reply)),
        "of another build": reply_with(other_build),
        "re-signed": of_stranger,
        "swapped": of_another_program,
        "noise": lambda *_: b"\xff" * 50,
        "empty": lambda *_: b"",
        "a refusal": refuse(grpc.StatusCode.INVALID_ARGUMENT),
        "a refusal of the target": refuse(grpc.StatusCode.UNIMPLEMENTED),
    }
    with lying(sockets, real, change) as upstream:
        host = hosts.start(None, below(upstream), NO_WORKERS, "--tier-timeout=2000")
        for number, (what, do) in enumerate(lies.items()):
            lie["do"] = do
            assert is_unavailable(host.client(), compile_once(host, number), "is not taken in"), what
            lie.clear()
            eventually(lambda: tier(host, "upstream").state == "ok")
            reply = host.client().compile(program(number), TARGET)
            assert not reply.artifact.code.startswith(b"planted"), what
            assert (reply.key, reply.artifact.code) == compile_many(real.client(), [number])[number], what
        assert forwards(host)["distrusted"] == len(lies)
        assert host.log.read_text().count("event=refused-entry") == len(lies)


def test_an_upstream_of_another_build_compiles_nothing_for_us(hosts, sockets):
    real = hosts.start(None)
    pb = real.client()._pb

    def change(method, request, ask_real):
        if method != "Capabilities":
            return ask_real()
        reply = pb.CapabilitiesReply.FromString(ask_real())
        reply.compiler = "another build"
        return reply.SerializeToString()

    with lying(sockets, real, change) as upstream:
        host = hosts.start(None, below(upstream), NO_WORKERS)
        assert "its compiler is another build" in host.log.read_text()
        is_unavailable(host.client(), compile_once(host, 1), "install one version of Kiln on both hosts")
        assert upstream.calls["Compile"] == 0


# Tenants


def new_token(host, tenant, scopes="read,compile"):
    made = subprocess.run([BUILD / "bin" / "kilnd", "token", "new", f"{tenant}-{time.monotonic_ns()}", f"--tokens={host.state / 'tokens'}",
                           f"--tenant={tenant}", f"--scopes={scopes}"], capture_output=True, text=True, check=True)
    return made.stdout.strip().splitlines()[-1]


def upstream_tokens(folder, lines):
    path = pathlib.Path(folder) / "upstream-tokens"
    path.touch(mode=0o600)
    path.write_text("".join(f"{tenant} {token}\n" for tenant, token in lines.items()))
    return path


def awaits_token(host, token):
    """kilnd looks at its file of tokens once a second."""
    client = host.client()
    eventually(lambda: not isinstance(ask(client, "Capabilities", client._pb.CapabilitiesRequest(at_once=True), token), grpc.RpcError))


def tokens_of(host, *tenants):
    """A token for each tenant, all of which the host knows. Start a host below it only then: a kilnd that has refused a tenant's token is not
    asked for that tenant in the next ten seconds."""
    made = {tenant: new_token(host, tenant) for tenant in tenants}
    for token in made.values():
        awaits_token(host, token)
    return made


@pytest.mark.parametrize("workers", ["--workers=2", NO_WORKERS])
def test_nobody_gets_what_is_another_tenants(hosts, sockets, workers):
    upstream = hosts.start(None)
    there = tokens_of(upstream, "team-a", "team-b")
    host = hosts.start(None, below(upstream), workers, f"--upstream-tokens={upstream_tokens(sockets, there)}")
    here = tokens_of(host, "team-a", "team-b", "team-c")
    made = compile_once(upstream, 1, there["team-a"])
    # By its key: the tenant's own alone, here and there.
    assert known(host, made.key, here["team-a"])
    for other in ("team-b", "team-c"):
        assert not known(host, made.key, here[other])
    assert not known(host, made.key), "nor the tenant default's"
    # By the program: each tenant's is its own, though it is the same program.
    compiles = upstream.client().stats().compiles + host.client().stats().compiles
    reply = compile_once(host, 1, here["team-b"])
    assert reply.key == made.key and reply.artifact == made.artifact
    assert upstream.client().stats().compiles + host.client().stats().compiles == compiles + 1
    # Of a tenant without a token nobody is asked.
    asked = tier(host, "upstream")
    result = compile_once(host, 2, here["team-c"])
    if workers == NO_WORKERS:
        assert result.code() == grpc.StatusCode.PERMISSION_DENIED and "no token for the tenant team-c" in result.details()
    else:
        assert not isinstance(result, grpc.RpcError)
    assert tier(host, "upstream").hits == asked.hits
    # What is kept for another is not given, whatever key of the store is named.
    entry = fetched_as(upstream, kept_under("team-a", made.key), there["team-a"])
    assert entry is not None
    for token in (there["team-b"], None):
        assert fetched_as(upstream, kept_under("team-a", made.key), token) is None


def kept_under(tenant, key):
    import hashlib

    return hashlib.sha256(f"tenant {tenant}\n".encode() + key).digest()


def fetched_as(host, key, token):
    reply = ask(host.client(), "Fetch", host.client()._pb.FetchRequest(entry=key), token)
    return None if isinstance(reply, grpc.RpcError) else reply.sealed


def test_a_token_of_another_tenant_brings_nothing(hosts, sockets):
    """By a mistake in the file of tokens: what comes is sealed for the other tenant, and is refused."""
    upstream = hosts.start(None)
    token = new_token(upstream, "team-a")
    awaits_token(upstream, token)
    host = hosts.start(None, below(upstream), NO_WORKERS, f"--upstream-tokens={upstream_tokens(sockets, {'team-b': token})}")
    here = new_token(host, "team-b")
    awaits_token(host, here)
    failure = compile_once(host, 1, here)
    is_unavailable(host.client(), failure, "signed for another tenant")


def test_a_token_that_is_revoked_hurts_nobody_else(hosts, sockets):
    upstream = hosts.start(None)
    there = tokens_of(upstream, "team-a", "team-b")
    compile_once(upstream, 1, there["team-b"])
    path = upstream_tokens(sockets, {"team-a": "kiln_of-nobody", "team-b": there["team-b"]})
    host = hosts.start(None, below(upstream), f"--upstream-tokens={path}")
    here = tokens_of(host, "team-a", "team-b")
    for number in range(2, 5):
        assert not isinstance(compile_once(host, number, here["team-a"]), grpc.RpcError)
    # Once for each reading of the file, and not for each of six lookups.
    assert 1 <= host.log.read_text().count("does not serve the tenant team-a") <= 2
    assert compile_once(host, 1, here["team-b"]).artifact
    assert tier(host, "upstream").hits == 1
    # A new token is read without a restart.
    path.write_text(f"team-a {there['team-a']}\nteam-b {there['team-b']}\n")
    host.process.send_signal(signal.SIGHUP)
    compile_once(upstream, 7, there["team-a"])
    eventually(lambda: "upstream-tokens-reloaded" in host.log.read_text())
    assert compile_once(host, 7, here["team-a"]).artifact
    assert tier(host, "upstream").hits == 2


# Circles and chains


def test_kilnds_that_forward_to_each_other_end(hosts, sockets):
    with socket_folder() as other:
        from daemon import Daemon

        one, two = Daemon(hosts.folder / "one", sockets), Daemon(hosts.folder / "two", other)
        hosts.all += [one, two]
        one.start(f"--upstream=unix:{two.socket}", NO_WORKERS)
        two.start(f"--upstream=unix:{one.socket}", NO_WORKERS)
        for host in (one, two):
            eventually(lambda host=host: "no kilnd answers" not in compile_once(host, 0).details())
        began = time.monotonic()
        is_unavailable(one.client(), compile_once(one, 1), "in a circle")
        # Both at one time: neither waits for the other's flight.
        programs = {n: one.client().request(program(n), TARGET) for n in range(8)}
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            failures = list(pool.map(lambda n: ask((one, two)[n % 2].client(), "Compile", programs[n // 2]), range(16)))
        assert all(failure.code() == grpc.StatusCode.UNAVAILABLE for failure in failures)
        assert time.monotonic() - began < 10
        assert one.client().stats().flights == two.client().stats().flights == 0


def test_kilnds_with_workers_may_ask_each_other(hosts, sockets):
    with socket_folder() as other:
        from daemon import Daemon

        options = [f"--trusted-keys={hosts.trusted}"]
        one, two = Daemon(hosts.folder / "one", sockets), Daemon(hosts.folder / "two", other)
        hosts.all += [one, two]
        one.start(f"--upstream=unix:{two.socket}", *options)
        two.start(f"--upstream=unix:{one.socket}", *options)
        for host in (one, two):
            with open(hosts.trusted, "a", encoding="utf-8") as file:
                file.write(f"ed25519:{host.client().capabilities().signing_key.hex()} name\n")
        for host in (one, two):
            host.process.send_signal(signal.SIGHUP)
            eventually(lambda host=host: tier(host, "upstream").state == "ok")
        time.sleep(0.3)
        made = compile_many(one.client(), range(4))
        assert compile_many(two.client(), range(8)) == {**made, **compile_many(one.client(), range(4, 8))}
        assert one.client().stats().compiles + two.client().stats().compiles == 8


def test_a_chain_reaches_who_compiles(hosts):
    top = hosts.start(None)
    middle = hosts.start(None, below(top), NO_WORKERS)
    host = hosts.start(None, below(middle), NO_WORKERS)
    made = compile_many(host.client(), range(3))
    assert compile_many(top.client(), range(3)) == made
    assert top.client().stats().compiles == 3
    assert all(known(middle, key) for key, _ in made.values())
    with pytest.raises(Exception, match="shared memory"):
        host.client().compile(too_large(), TARGET)
    # Not further than some: each trusts only the next.
    for _ in range(3):
        host = hosts.start(None, below(host), NO_WORKERS)
    is_unavailable(host.client(), compile_once(host, 10), "has come through 4 kilnds")


# Settings


def check_config(*options):
    ran = subprocess.run([BUILD / "bin" / "kilnd", "--check-config", *options], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stderr


def test_settings_that_make_no_sense_are_refused(tmp_path):
    state = f"--state-dir={tmp_path}"
    assert check_config(state, "--upstream=unix:/run/kiln.sock", NO_WORKERS) == (0, "")
    for options, why in (((NO_WORKERS,), "nobody would compile"), (("--upstream=nowhere",), "--upstream: nowhere is no address"),
                         (("--upstream-tokens=/x",), "belong to --upstream"),
                         (("--upstream=unix:/a", "--upstream-ca=/x"), "a Unix socket has no TLS"),
                         (("--upstream=a:1", "--upstream-cert=/x"), "belong together"), (("--upstream=a:1", "--upstream-ca=/x"), "cannot read /x"),
                         (("--upstream=a:1", f"--upstream-tokens={tmp_path}/no"), "there is no")):
        status, said = check_config(state, *options)
        assert status == 2 and why in said, (options, said)
