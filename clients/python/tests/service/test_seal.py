# SPDX-License-Identifier: Apache-2.0
"""What a client verifies before an artifact is loaded, with keys and signatures made by the openssl command."""

import hashlib
import subprocess

import pytest

from kiln import KilnError, _proto, _seal


class Signer:
    def __init__(self, folder):
        self.file = folder / "key.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", self.file], check=True)
        exported = subprocess.run(["openssl", "pkey", "-in", self.file, "-pubout", "-outform", "DER"], check=True, capture_output=True)
        self.public = exported.stdout[-32:]

    def sign(self, message):
        text = self.file.with_name("message")
        text.write_bytes(message)
        return subprocess.run(["openssl", "pkeyutl", "-sign", "-inkey", self.file, "-rawin", "-in", text], check=True,
                              capture_output=True).stdout

    def reply(self, artifact=b"code", key=b"k" * 32, **known):
        pb = _proto.messages()
        provenance = pb.Provenance(key=key, artifact_sha256=hashlib.sha256(artifact).digest(), **known).SerializeToString()
        seal = pb.Seal(provenance=provenance, public_key=self.public, signature=self.sign(b"kiln.v1.Seal\n" + provenance))
        return pb.SealedReply(key=key, artifact=artifact, seal=seal)


NOTHING = _seal.Asked()


@pytest.fixture
def signer(tmp_path):
    return Signer(tmp_path)


def flip(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def test_what_was_signed_is_accepted_and_everything_else_refused(signer):
    keys = {signer.public}
    _seal.check(signer.reply(), keys, NOTHING)
    changes = {
        "is not the one that was signed": lambda r: setattr(r, "artifact", flip(r.artifact)),
        "another program": lambda r: setattr(r, "key", flip(r.key)),
        "signature is wrong": lambda r: setattr(r.seal, "signature", flip(r.seal.signature)),
        "nobody here trusts": lambda r: setattr(r.seal, "public_key", flip(r.seal.public_key)),
        "not signed": lambda r: r.ClearField("seal"),
    }
    for why, change in changes.items():
        reply = signer.reply()
        change(reply)
        with pytest.raises(_seal.UntrustedArtifact, match=why):
            _seal.check(reply, keys, NOTHING)


def test_an_artifact_that_answers_something_else_is_refused(signer):
    pb, keys = _proto.messages(), {signer.public}
    reply = signer.reply(target="cuda:sm_90a", options={"fast_math": True})
    _seal.check(reply, keys, _seal.Asked(key=reply.key))
    for spelling in ("cuda:sm_90a", "cuda -arch=sm_90a"):
        _seal.check(reply, keys, _seal.Asked(request=pb.CompileRequest(target=spelling, options={"fast_math": True})))
    swaps = {
        "another key than the one asked for": _seal.Asked(key=flip(reply.key)),
        "made for cuda:sm_90a, but the request was for cuda:sm_80": _seal.Asked(
            request=pb.CompileRequest(target="cuda:sm_80", options={"fast_math": True})),
        "other options": _seal.Asked(request=pb.CompileRequest(target="cuda:sm_90a")),
    }
    for why, asked in swaps.items():
        with pytest.raises(_seal.UntrustedArtifact, match=why):
            _seal.check(reply, keys, asked)


def test_the_key_of_a_unix_socket_is_asked_once_and_of_tcp_remembered(signer, tmp_path, monkeypatch):
    monkeypatch.delenv("KILN_VERIFY", raising=False)
    monkeypatch.delenv("KILN_TRUSTED_KEYS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    asked = []

    def ask(seconds, key=signer.public):
        asked.append(key)
        return key

    local = _seal.Trust("unix:/x", ask)
    local.check(signer.reply(), NOTHING)
    local.check(signer.reply(), NOTHING)
    assert len(asked) == 1
    assert not (tmp_path / "kiln").exists()

    _seal.Trust("host:1", ask).check(signer.reply(), NOTHING)
    _seal.Trust("host:1", ask).check(signer.reply(), NOTHING)
    assert (tmp_path / "kiln" / "known_keys").read_text() == f"host:1 ed25519:{signer.public.hex()}\n"
    with pytest.raises(_seal.UntrustedArtifact, match="signs with another key than before"):
        _seal.Trust("host:1", lambda seconds: ask(seconds, flip(signer.public))).check(signer.reply(), NOTHING)
    with pytest.raises(_seal.UntrustedArtifact, match="names no signing key"):
        _seal.Trust("host:2", lambda seconds: b"").check(signer.reply(), NOTHING)


@pytest.fixture
def contact(signer, tmp_path, monkeypatch):
    """Of a daemon on TCP, whose key is kept in config/kiln/known_keys."""
    monkeypatch.chdir(tmp_path)
    for name in ("KILN_VERIFY", "KILN_TRUSTED_KEYS", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return lambda address="host:1": _seal.Trust(address, lambda seconds: signer.public).check(signer.reply(), NOTHING)


def test_the_first_key_is_kept_or_the_contact_refused(contact, tmp_path, monkeypatch):
    known = tmp_path / "config" / "kiln" / "known_keys"
    known.mkdir(parents=True)
    with pytest.raises(_seal.UntrustedArtifact, match=f"cannot read {known}: Is a directory; make it readable.*KILN_TRUSTED_KEYS"):
        contact()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "key.pem"))
    with pytest.raises(_seal.UntrustedArtifact, match=f"cannot (read|write) {tmp_path}/key.pem/kiln/known_keys: .*KILN_TRUSTED_KEYS"):
        contact()
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    for home in ("here", ""):
        monkeypatch.setenv("HOME", home)
        with pytest.raises(_seal.UntrustedArtifact, match="there is no place for kiln/known_keys: set HOME or XDG_CONFIG_HOME"):
            contact()
    assert not (tmp_path / "here").exists() and not (tmp_path / ".config").exists()
    monkeypatch.setenv("HOME", str(tmp_path))
    contact()
    assert (tmp_path / ".config" / "kiln" / "known_keys").exists()


def test_what_people_write_into_the_file_of_known_keys(contact, signer, tmp_path):
    known, line = tmp_path / "config" / "kiln" / "known_keys", f"host:1 ed25519:{signer.public.hex()}\n"
    known.parent.mkdir(parents=True)
    known.write_text("# host:1 ed25519:00\n\nhost:2 ed25519:11")
    contact()
    assert known.read_text() == "# host:1 ed25519:00\n\nhost:2 ed25519:11\n" + line
    contact()
    for wrong in ("host:1", "host:1 ed25519:00 # old"):
        known.write_text("host:2 ed25519:11\n" + wrong + "\n" + line)
        why = f"^{known}, line 2: each line holds an address and its key; correct this line, or remove it"
        with pytest.raises(_seal.UntrustedArtifact, match=why):
            contact()


def test_a_file_of_trusted_keys_that_says_nothing_clear_is_refused(contact, tmp_path, monkeypatch):
    file = tmp_path / "trusted"
    monkeypatch.setenv("KILN_TRUSTED_KEYS", str(file))
    with pytest.raises(_seal.UntrustedArtifact, match=rf"cannot read {file} \(KILN_TRUSTED_KEYS\): No such file"):
        contact()
    for wrong in ("ed25519:00", "0" * 64, "ed25519:" + "0" * 65):
        file.write_text("# mine\n" + wrong + "\n")
        with pytest.raises(_seal.UntrustedArtifact, match=f"{file}, line 2: a line begins with ed25519: and 64 hexadecimal digits"):
            contact()


def test_a_file_of_keys_comes_before_what_the_daemon_says(signer, tmp_path, monkeypatch):
    monkeypatch.delenv("KILN_VERIFY", raising=False)
    file = tmp_path / "trusted"
    monkeypatch.setenv("KILN_TRUSTED_KEYS", str(file))
    file.write_text(f"# mine\ned25519:{signer.public.hex()} host\n")
    never = _seal.Trust("unix:/x", lambda seconds: pytest.fail("the daemon was asked"))
    never.check(signer.reply(), NOTHING)
    file.write_text("")
    with pytest.raises(_seal.UntrustedArtifact, match="nobody here trusts"):
        _seal.Trust("unix:/x", lambda seconds: b"").check(signer.reply(), NOTHING)
    monkeypatch.setenv("KILN_VERIFY", "0")
    _seal.Trust("unix:/x", lambda seconds: b"").check(_proto.messages().SealedReply(key=b"k"), NOTHING)


def test_without_a_library_nothing_is_accepted(signer, monkeypatch):
    monkeypatch.setattr(_seal.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    monkeypatch.setitem(__import__("sys").modules, "cryptography.exceptions", None)
    _seal._verifier.cache_clear()
    with pytest.raises(KilnError, match="no library that verifies"):
        _seal.check(signer.reply(), {signer.public}, NOTHING)
    _seal._verifier.cache_clear()
