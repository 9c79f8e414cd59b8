# SPDX-License-Identifier: Apache-2.0
"""Whether an artifact may be loaded: the signature that a reply carries (kiln/v1/seal.proto), and whose signatures count.

``$KILN_TRUSTED_KEYS`` names a file of public keys ("ed25519:HEX", one a line): those and no others. Without it, a daemon on a Unix socket is
trusted with the key it names, for the kernel guards the socket; one on TCP with the key it named the first time, which is kept in
``$XDG_CONFIG_HOME/kiln/known_keys`` (~/.config/…), or else refused. KILN_VERIFY=0 turns all of this off."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
import os
import pathlib
import re
import threading
import typing

from . import target
from .errors import KilnError, UntrustedArtifact

_MESSAGE = b"kiln.v1.Seal\n"
_ED25519 = 1087  # OpenSSL's number of the algorithm


@functools.lru_cache(maxsize=1)
def _verifier():
    """verify(public_key, signature, message) → bool, from OpenSSL's library or the cryptography package."""
    package = pathlib.Path(__file__).resolve().parent
    shipped = [library for folder in (package, package.parents[1]) for library in folder.glob("lib/libcrypto.so.*")]  # by the wheel, or the bundle
    names = [*shipped, "libcrypto.so.3", "libcrypto.so.1.1", ctypes.util.find_library("crypto")]
    for name in filter(None, names):
        try:
            return _openssl(ctypes.CDLL(str(name)))
        except (OSError, AttributeError):
            continue
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise KilnError("no library that verifies signatures is found: install OpenSSL's libcrypto or the Python package cryptography, or turn "
                        "verification off with KILN_VERIFY=0") from None

    def verify(key, signature, message):
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    return verify


def _openssl(library):
    pointer, size = ctypes.c_void_p, ctypes.c_size_t

    def function(name, result, *arguments):
        found = getattr(library, name)
        found.restype, found.argtypes = result, arguments
        return found

    new_key = function("EVP_PKEY_new_raw_public_key", pointer, ctypes.c_int, pointer, ctypes.c_char_p, size)
    new_context = function("EVP_MD_CTX_new", pointer)
    begin = function("EVP_DigestVerifyInit", ctypes.c_int, *[pointer] * 5)
    finish = function("EVP_DigestVerify", ctypes.c_int, pointer, ctypes.c_char_p, size, ctypes.c_char_p, size)
    free_key, free_context = function("EVP_PKEY_free", None, pointer), function("EVP_MD_CTX_free", None, pointer)

    def verify(key, signature, message):
        handle, context = new_key(_ED25519, None, key, len(key)), new_context()
        try:
            return bool(handle) and begin(context, None, None, None, handle) == 1 and finish(
                context, signature, len(signature), message, len(message)) == 1
        finally:
            free_context(context)
            free_key(handle)

    return verify


class Asked(typing.NamedTuple):
    """What a reply is to be for: the key, where it is known before, and the kiln.v1.CompileRequest, where it was not asked for by key."""

    key: bytes = b""
    request: object = None


def check(reply, keys, asked: Asked) -> None:
    """That one of ``keys`` vouches for the artifact in this kiln.v1.SealedReply, for it under its key, and as what was asked for."""
    from . import _proto

    if not reply.HasField("seal"):
        raise UntrustedArtifact("the artifact is not signed; an older kilnd made it, or somebody removed the signature")
    seal = reply.seal
    if seal.public_key not in keys:
        raise UntrustedArtifact(f"the artifact is signed by ed25519:{seal.public_key.hex()}, which nobody here trusts; if you do, add the key to "
                                "the file that KILN_TRUSTED_KEYS names")
    if not _verifier()(seal.public_key, seal.signature, _MESSAGE + seal.provenance):
        raise UntrustedArtifact("the artifact's signature is wrong: it was changed after it was signed")
    provenance = _proto.messages().Provenance.FromString(seal.provenance)
    if provenance.artifact_sha256 != hashlib.sha256(reply.artifact).digest():
        raise UntrustedArtifact("the artifact is not the one that was signed: it was changed on its way or in the store")
    if provenance.key != reply.key:
        raise UntrustedArtifact("the artifact was signed for another program than it is sent for")
    _check_answers(provenance, asked)


def _check_answers(provenance, asked: Asked) -> None:
    """A signature of the daemon's does not make one program's artifact another's."""
    if asked.key and provenance.key != asked.key:
        raise UntrustedArtifact("it is the artifact of another key than the one asked for")
    if asked.request is None:
        return
    if target.canonical(provenance.target) != target.canonical(asked.request.target):
        raise UntrustedArtifact(f"the artifact was made for {provenance.target}, but the request was for {asked.request.target}")
    if provenance.options != asked.request.options:
        raise UntrustedArtifact("the artifact was made with other options than those asked for")


class Trust:
    """Whose artifacts the client of ``address`` takes; ``ask(seconds)`` gets the daemon's own key."""

    def __init__(self, address: str, ask):
        self._address, self._ask, self._lock, self._keys = address, ask, threading.Lock(), None

    def learn(self, timeout: float | None = None) -> None:
        """Before anything is asked for: a kilnd that ends once it has answered says no more who signs."""
        if self._keys is None and os.environ.get("KILN_VERIFY") != "0":
            self._keys = self._find(timeout)

    def check(self, reply, asked: Asked) -> None:
        self.learn()
        if os.environ.get("KILN_VERIFY") != "0":
            check(reply, self._keys, asked)

    def _find(self, timeout: float | None) -> frozenset:
        named = os.environ.get("KILN_TRUSTED_KEYS")
        if named:
            return _trusted(pathlib.Path(named))
        key = self._ask(timeout)
        if len(key) != 32:
            raise UntrustedArtifact(f"the kilnd at {self._address} names no signing key; it is older than this client")
        if not self._address.startswith("unix:"):
            with self._lock:  # two first contacts at one time are one
                self._compare(f"ed25519:{key.hex()}")
        return frozenset((key,))

    def _compare(self, key: str) -> None:
        """With the key of the first contact, which adds a line to the file."""
        path = _known_keys()
        text = _contents(path)
        known = _key_of(self._address, text, path)
        if known is None:
            _append(path, ("" if text.endswith("\n") or not text else "\n") + f"{self._address} {key}\n")
        elif known != key:
            raise UntrustedArtifact(f"the kilnd at {self._address} signs with another key than before ({key}): it was reinstalled, or another "
                                    f"server takes its place. If the new key is right, remove its line from {path}")


def _trusted(path) -> frozenset:
    """The keys that a file names, one at the beginning of each line; the rest of the line is a remark."""
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
    except OSError as problem:
        raise UntrustedArtifact(f"cannot read {path} (KILN_TRUSTED_KEYS): {problem.strerror}") from None
    keys = []
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if words and not re.fullmatch("ed25519:[0-9a-fA-F]{64}", words[0]):
            raise UntrustedArtifact(f"{path}, line {number}: a line begins with ed25519: and 64 hexadecimal digits")
        keys += [bytes.fromhex(word.removeprefix("ed25519:")) for word in words[:1]]
    return frozenset(keys)


def _forgetful(problem: str) -> UntrustedArtifact:
    """Every contact would be a first one without that file."""
    return UntrustedArtifact(f"{problem}. That file keeps the first key of each kilnd, so that a false kilnd in its place is noticed; or name the "
                             "keys to trust in a file, with KILN_TRUSTED_KEYS")


def _known_keys() -> pathlib.Path:
    for variable, folder in (("XDG_CONFIG_HOME", ""), ("HOME", ".config")):
        place = os.environ.get(variable, "")
        if place.startswith("/"):
            return pathlib.Path(place, folder, "kiln/known_keys")
    raise _forgetful("there is no place for kiln/known_keys: set HOME or XDG_CONFIG_HOME to a whole path")


def _contents(path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as problem:
        raise _forgetful(f"cannot read {path}: {problem.strerror}; make it readable") from None


def _key_of(address: str, text: str, path) -> str | None:
    """What the file says of an address, first; '#' begins a comment. What is no such line may be of any address, so that none is a new one then."""
    known = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise UntrustedArtifact(f"{path}, line {number}: each line holds an address and its key; correct this line, or remove it")
        known.setdefault(*words)
    return known.get(address)


def _append(path, line: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as problem:
        raise _forgetful(f"cannot write {path}: {problem.strerror}; make it and its folder writable") from None
