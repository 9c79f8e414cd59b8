# SPDX-License-Identifier: Apache-2.0
"""A kilnd that asks another over TLS: with a token, with a certificate of its own, and not where the other shows the wrong one."""

import pytest
from access_test import host  # noqa: F401  (a fixture)
from daemon import TARGET, Daemon, compile_many, program, socket_folder
from tls_host import Authority


@pytest.fixture
def below(tmp_path):
    with socket_folder() as sockets:
        made = Daemon(tmp_path / "below", sockets)
        yield made
        made.end()


def trusted(folder, upstream):
    with upstream as client:
        key = client.capabilities().signing_key.hex()
    path = folder / "trusted-keys"
    path.write_text(f"ed25519:{key} upstream\n")
    return f"--trusted-keys={path}"


def tokens(folder, line):
    path = folder / "upstream-tokens"
    path.touch(mode=0o600)
    path.write_text(line + "\n")
    return f"--upstream-tokens={path}"


def state(daemon):
    return next(t.state for t in daemon.client().stats().tiers if t.name == "upstream")


def test_a_token_and_roots_of_its_own(host, below, tmp_path):  # noqa: F811
    host.state.mkdir()
    secret = host.token("host", tenant="default", scopes="read,compile")
    host.start()
    trusts = trusted(tmp_path, host.client(token=secret))
    made = compile_many(host.client(token=secret), range(2))
    below.start(f"--upstream={host.address}", f"--upstream-ca={host.authority.roots}", tokens(tmp_path, f"default {secret}"), trusts, "--workers=0")
    assert state(below) == "ok"
    assert compile_many(below.client(), range(4)) == {**made, **compile_many(host.client(token=secret), range(2, 4))}
    below.stop()
    # Nobody answers for the host whose certificate is another authority's.
    other = tmp_path / "other"
    other.mkdir()
    below.start(f"--upstream={host.address}", f"--upstream-ca={Authority(other, 'other').roots}", tokens(tmp_path, f"default {secret}"), trusts)
    assert state(below) == "disabled"
    below.client().compile(program(100), TARGET)
    assert below.client().stats().compiles == 1


def test_a_certificate_of_its_own(host, below, tmp_path):  # noqa: F811
    certificate = host.authority.sign("node-1")
    access = tmp_path / "access.toml"
    access.write_text('[[certificate]]\nname = "node-1"\ntenant = "default"\nscopes = ["read", "compile"]\n')
    host.start(f"--tls-client-ca={host.authority.roots}", f"--access={access}")
    trusts = trusted(tmp_path, host.client(certificate=certificate))
    options = (f"--upstream={host.address}", f"--upstream-ca={host.authority.roots}", trusts, "--workers=0")
    below.start(*options, f"--upstream-cert={certificate[0]}", f"--upstream-key={certificate[1]}")
    made = compile_many(below.client(), range(3))
    assert compile_many(host.client(certificate=certificate), range(3)) == made
    below.stop()
    # Without one it is a stranger.
    below.start(*options)
    assert state(below) == "disabled"
    assert compile_many(below.client(), range(3)) == made, "what was taken in is its own"
