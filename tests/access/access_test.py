# SPDX-License-Identifier: Apache-2.0
"""kilnd over TCP: TLS or nothing, certificates of clients, bearer tokens, all of them replaced while it runs. Through the Python client and
through `kiln`, which is the C++ client."""

import contextlib
import json
import os
import subprocess
import time

import grpc
import pytest
from daemon import ROOT, TARGET
from tls_host import ENVIRONMENT, KILND, Authority, Host

COMPILE = ("compile", str(ROOT / "tests" / "bench" / "programs" / "gemm_f16.kiln"), "-t", TARGET)


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # where clients keep the keys of daemons they know
    made = Host(tmp_path)
    yield made
    if made.process is not None:
        made.process.terminate()
        made.process.wait(30)


@pytest.fixture
def program():
    from kiln.examples.programs import PROGRAMS

    return PROGRAMS["softmax_f16"]()


def refusal(client, program=None):
    from kiln import KilnError

    with pytest.raises(KilnError) as failure, contextlib.closing(client):
        client.compile(program, TARGET, timeout=10) if program else client.capabilities(timeout=10)
    return str(failure.value)


def test_tcp_without_tls_is_refused_at_the_start(host):
    ended = subprocess.run(host.command(), capture_output=True, text=True, timeout=30, env=ENVIRONMENT)
    assert ended.returncode == 2 and "--tls-cert" in ended.stderr
    ended = subprocess.run(host.command(f"--tls-cert={host.certificate}", f"--tls-key={host.authority.key}"), capture_output=True, text=True,
                           timeout=30, env=ENVIRONMENT)
    assert ended.returncode == 1 and "is not the key of" in ended.stderr
    ended = subprocess.run(host.command(f"--tls-cert={host.folder / 'none'}", f"--tls-key={host.key}"), capture_output=True, text=True,
                           timeout=30, env=ENVIRONMENT)
    assert ended.returncode == 1 and "cannot read" in ended.stderr


def test_files_that_are_none_end_the_start_with_a_sentence(host):
    fifo = host.folder / "fifo"
    os.mkfifo(fifo, 0o600)
    tls = (f"--tls-cert={host.certificate}", f"--tls-key={host.key}")
    for words in ((f"--tls-cert={fifo}", f"--tls-key={host.key}"), (f"--tls-cert={host.certificate}", f"--tls-key={fifo}"),
                  (*tls, f"--tls-client-ca={fifo}"), (*tls, f"--trusted-keys={fifo}"), (*tls, f"--upstream={host.address}", f"--upstream-ca={fifo}"),
                  (*tls, "--cluster-store=rediss://localhost:1", f"--cluster-ca={fifo}"),
                  (*tls, "--cluster-store=redis://localhost:1", f"--cluster-credentials={fifo}")):
        ended = subprocess.run(host.command(*words), capture_output=True, text=True, timeout=30, env=ENVIRONMENT)
        assert ended.returncode == 1 and f"cannot read {fifo}: it is a FIFO; a regular file is needed" in ended.stderr, (words, ended.stderr)
    for name, file, kind in (("config", fifo, "a FIFO"), ("config", "/dev/zero", "a device"), ("config", host.folder, "a folder"),
                             ("log-file", fifo, "a FIFO"), ("audit-log", fifo, "a FIFO"), ("trace-file", fifo, "a FIFO"),
                             ("trace-file", "/dev/null", "a device")):
        for check in ((), ("--check-config", "--worker-executable=/bin/true")):
            ended = subprocess.run(host.command(*tls, f"--{name}={file}", *check), capture_output=True, text=True, timeout=30, env=ENVIRONMENT)
            assert ended.returncode == (2 if check or name == "config" else 1), (name, file, check, ended)
            assert f"{file}: it is {kind}; a regular file" in ended.stderr, (name, file, check, ended.stderr)
    ended = subprocess.run([KILND, f"--listen={host.address}", *tls, "--state-dir", ""], capture_output=True, text=True, timeout=30, env=ENVIRONMENT)
    assert ended.returncode == 2 and "kilnd: --state-dir ''" in ended.stderr, ended.stderr


def test_a_log_may_be_a_pipe_or_null(host):
    host.start("--audit-log=/dev/null")
    host.process.terminate()
    assert host.process.wait(30) == 0
    piped = subprocess.Popen(host.command(f"--tls-cert={host.certificate}", f"--tls-key={host.key}", "--log-file=/dev/stdout"),
                             stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    with piped:
        assert any("event=serving" in line for line in piped.stdout)
        piped.terminate()


def test_clients_do_not_wait_for_fifos(host):
    fifo = host.folder / "fifo"
    os.mkfifo(fifo, 0o600)
    for variable in ("KILN_TLS_ROOTS", "KILN_TOKEN_FILE"):
        ended = host.kiln("stats", **{variable: str(fifo)})
        assert ended.returncode == 1 and f"cannot read {fifo}: it is a FIFO" in ended.stdout, (variable, ended)


def test_tls_on_a_socket_is_refused(host):
    listen = f"--listen=unix:{host.folder}/sock"
    for name in ("tls-client-ca", "tls-cert"):
        words = (f"--{name}={host.folder}/none", *((f"--tls-key={host.folder}/none",) if name == "tls-cert" else ()))
        ended = subprocess.run(host.command(listen, *words), capture_output=True, text=True, timeout=30, env=ENVIRONMENT)
        assert ended.returncode == 2 and f"--{name}: unix:{host.folder}/sock is a Unix socket, which has no TLS" in ended.stderr, ended.stderr
    named = {f"KILN_TLS_{name}": str(host.folder / "none") for name in ("CERT", "KEY")}  # for other hosts
    checked = subprocess.run(host.command(listen, "--check-config", "--worker-executable=/bin/true"), capture_output=True, text=True,
                             env={**ENVIRONMENT, **named})
    assert "is a Unix socket" not in checked.stderr
    ran = host.kiln("stats", f"--tls-roots={host.folder}/none", KILN_ADDRESS=f"unix:{host.folder}/sock")
    assert ran.returncode == 1 and "are for TCP" in ran.stdout, ran


def test_nobody_without_token_or_certificate(host, program):
    host.start()
    assert "client certificate or a bearer token" in refusal(host.client())
    assert "client certificate or a bearer token" in refusal(host.client(), program)
    assert "does not know the bearer token" in refusal(host.client(token="kiln_wrong"))
    plain = grpc.insecure_channel(host.address)
    with pytest.raises(grpc.RpcError) as failure:
        plain.unary_unary("/kiln.v1.Kiln/Capabilities")(b"", timeout=5)
    assert failure.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_a_token_is_its_tenant_and_can_be_revoked(host, program):
    secret = host.token("team", tenant="team", scopes="read,compile")
    host.start()
    with host.client(token=secret) as client:
        assert client.compile(program, TARGET).artifact.code
        assert "needs the scope admin" in refusal_of_stats(client)
    ran = host.kiln(*COMPILE, KILN_TOKEN=secret)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    file = host.folder / "token"
    file.write_text(secret + "\n")
    assert host.kiln(*COMPILE, KILN_TOKEN_FILE=str(file)).returncode == 0
    refused = host.kiln("stats", KILN_TOKEN=secret)
    assert refused.returncode == 1 and json.loads(refused.stdout)["error"] == "refused"
    listed = subprocess.run([KILND, "token", "list", f"--tokens={host.state / 'tokens'}"], capture_output=True, text=True).stdout
    assert listed.split()[:3] == ["team", "team", "read,compile"] and secret[5:] not in listed

    subprocess.run([KILND, "token", "revoke", "team", f"--tokens={host.state / 'tokens'}"], check=True)
    end = time.monotonic() + 10
    while host.kiln(*COMPILE, KILN_TOKEN=secret).returncode == 0:
        assert time.monotonic() < end, "the token was revoked and still opens the door"
        time.sleep(0.2)


def refusal_of_stats(client):
    from kiln import KilnError

    with pytest.raises(KilnError) as failure:
        client.stats(timeout=10)
    return str(failure.value)


def test_another_authority_of_clients_is_taken_while_it_runs(host):
    roots = host.folder / "clients.pem"
    roots.write_bytes(host.authority.roots.read_bytes())
    host.start(f"--tls-client-ca={roots}")
    (host.folder / "other").mkdir()
    other = Authority(host.folder / "other", "other")
    before, after = host.authority.sign("maker"), other.sign("maker")
    with host.client(before) as client:
        assert client.capabilities(timeout=10).signing_key
    assert "no Kiln daemon answers" in refusal(host.client(after))
    os.replace(other.roots, roots)
    end = time.monotonic() + 20
    while not taken(host, after):
        assert time.monotonic() < end, "the new authority's clients stay outside"
        time.sleep(0.2)
    assert "no Kiln daemon answers" in refusal(host.client(before)), "who was let in by the old one is not any more"


def taken(host, certificate):
    from kiln import KilnError

    with host.client(certificate) as client, contextlib.suppress(KilnError):
        return bool(client.capabilities(timeout=5).signing_key)
    return False


def test_certificates_of_clients(host, program):
    access = host.folder / "access.toml"
    access.touch(0o600)
    access.write_text('[[certificate]]\nname = "reader"\ntenant = "shared"\nscopes = ["read"]\n'
                      '[[certificate]]\nname = "maker"\ntenant = "shared"\nscopes = ["read", "compile"]\n')
    host.start(f"--tls-client-ca={host.authority.roots}", f"--access={access}")
    maker, reader, unnamed = (host.authority.sign(name) for name in ("maker", "reader", "unnamed"))
    assert "needs the scope compile" in refusal(host.client(reader), program)
    with host.client(maker) as client:
        assert client.compile(program, TARGET).origin == 3
    with host.client(reader) as client:
        assert client.compile(program, TARGET).origin == 1
    assert "needs the scope read" in refusal(host.client(unnamed), program), "a certificate without a row is a stranger"
    assert 'tenant="cert:unnamed"' in host.text(), "the audit log names it"

    (host.folder / "other").mkdir()
    stranger = Authority(host.folder / "other", "stranger").sign("maker")
    assert "no Kiln daemon answers" in refusal(host.client(stranger)), "a certificate of another authority ends the handshake"
    assert "no Kiln daemon answers" in refusal(host.client())
    ran = host.kiln(*COMPILE, KILN_TLS_CERT=str(maker[0]), KILN_TLS_KEY=str(maker[1]))
    assert ran.returncode == 0, ran.stdout


def test_certificates_are_replaced_without_a_restart(host):
    secret = host.token("team")
    host.start()
    with host.client(token=secret) as client:
        client.capabilities()
    (host.folder / "new").mkdir()
    successor = Authority(host.folder / "new", "successor")
    certificate, key = successor.sign("server")
    os.replace(key, host.key)
    os.replace(certificate, host.certificate)
    from kiln import KilnError

    end = time.monotonic() + 15
    while True:
        try:
            with host.client(token=secret, roots=successor.roots) as client:
                client.capabilities(timeout=1)
            break
        except KilnError:
            assert time.monotonic() < end, "the new certificate is not in use"
            time.sleep(0.2)
    assert host.process.poll() is None


def test_the_key_of_the_first_contact_is_remembered_and_another_refused(host, program):
    secret = host.token("team")
    host.start()
    from kiln._seal import UntrustedArtifact

    with host.client(token=secret) as client:
        client.compile(program, TARGET)
    known = host.folder / "config" / "kiln" / "known_keys"
    address, key = known.read_text().split()
    assert address == host.address and key.startswith("ed25519:")
    ran = host.kiln(*COMPILE, KILN_TOKEN=secret)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert known.read_text().split() == [address, key], "both clients share the file"

    known.write_text(f"{address} ed25519:{'0' * 64}\n")
    with host.client(token=secret) as client, pytest.raises(UntrustedArtifact, match="signs with another key than before"):
        client.compile(program, TARGET)
    ran = host.kiln(*COMPILE, KILN_TOKEN=secret)
    assert ran.returncode == 1 and "signs with another key than before" in json.loads(ran.stdout)["message"]
    trusted = host.folder / "trusted"
    trusted.write_text(f"ed25519:{'0' * 64}\n")
    ran = host.kiln(*COMPILE, KILN_TOKEN=secret, KILN_TRUSTED_KEYS=str(trusted))
    assert ran.returncode == 1 and "nobody here trusts" in json.loads(ran.stdout)["message"]
    trusted.write_text(f"{key} the host of this test\n")
    assert host.kiln(*COMPILE, KILN_TOKEN=secret, KILN_TRUSTED_KEYS=str(trusted)).returncode == 0
