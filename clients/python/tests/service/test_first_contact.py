# SPDX-License-Identifier: Apache-2.0
"""What a newcomer meets first: daemons that start by themselves, sockets of one's own, mistyped names."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time

import kiln
import kiln.language as T
import pytest
from kiln.language import elsewhere

BUILD = pathlib.Path(os.environ.get("KILN_BUILD", pathlib.Path(__file__).resolve().parents[4] / "build" / "release")).resolve()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without a daemon; those that are started are ended."""
    for name in [n for n in os.environ if n.startswith(("KILN_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KILN_KILND", str(BUILD / "bin" / "kilnd"))
    yield tmp_path
    for lock in tmp_path.rglob("lock"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(lock.read_text()), signal.SIGTERM)


def test_a_second_socket_has_a_daemon_with_a_store_of_its_own(home, sockets):
    """The first one holds the default store."""
    stores = []
    for name in ("first", "second", "third"):
        client = kiln.Client(f"unix:{sockets}/{name}.sock")
        assert client.stats(timeout=20.0)
        client.close()
        stores.append({p.parent for p in home.rglob("kiln.db")})
    assert [len(found) for found in stores] == [1, 2, 3], stores
    assert (home / ".cache" / "kiln").samefile(stores[0].pop())


def serving(command, environment, socket):
    """The status of a command that is to listen at the socket; 0 where it does."""
    process = subprocess.Popen(command, env=os.environ | environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20.0
        while not pathlib.Path(socket).is_socket() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        return 0 if pathlib.Path(socket).is_socket() else process.poll() or 1
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("form", ["KILN_ADDRESS", "--address", "--listen", "KILN_LISTEN"])
def test_kiln_serve_listens_where_its_clients_look(home, sockets, form):
    socket, other = f"{sockets}/here.sock", f"unix:{sockets}/elsewhere.sock"
    command = [str(BUILD / "bin" / "kiln"), "serve", "--ptxas=none"]
    if form == "--address":
        command[1:1] = ["--address", f"unix:{socket}"]
    if form == "--listen":
        command.append(f"--listen=unix:{socket}")
    environment = {"KILN_ADDRESS": f"unix:{socket}" if form == "KILN_ADDRESS" else other}
    if form != "KILN_ADDRESS":
        environment["KILN_LISTEN"] = f"unix:{socket}" if form == "KILN_LISTEN" else other
    assert serving(command, environment, socket) == 0
    assert not pathlib.Path(other.removeprefix("unix:")).exists()


@pytest.mark.parametrize("module, name, meant", [
    (T, "expp", "T.exp"), (T, "Copy", "T.copy"), (T, "alloc_frag", "T.alloc_fragment"), (T, "float61", "T.float64"), (kiln, "compil", "kiln.compile"),
    (kiln, "Jit", "kiln.jit"),
])
def test_a_mistyped_name_is_answered_with_the_one_that_is_meant(module, name, meant):
    with pytest.raises(AttributeError) as raised:
        getattr(module, name)
    assert str(raised.value).endswith(f": did you mean {meant}?")


def test_a_name_that_is_near_none_is_answered_without_a_guess():
    for module in (T, kiln):
        with pytest.raises(AttributeError) as raised:
            module.zzzzzz
        assert "did you mean" not in str(raised.value)


def test_what_tilelang_has_and_kiln_refuses_is_not_there_and_says_what_to_use():
    for name, hint in elsewhere.INSTEAD.items():
        with pytest.raises(AttributeError) as raised:
            getattr(T, name)
        assert str(raised.value).endswith(hint)


def test_mistyped_commands_and_options_are_answered_with_those_that_are_meant():
    for command, said in ((["kiln", "compil", "x.kiln"], "did you mean compile?"), (["kiln", "compile", "x", "--traget=y"], "did you mean --target?"),
                          (["kilnd", "--lisen=unix:/x"], "did you mean --listen?")):
        ran = subprocess.run([str(BUILD / "bin" / command[0]), *command[1:]], capture_output=True, text=True, timeout=60)
        assert ran.returncode != 0 and said in ran.stderr, (command, ran.stdout, ran.stderr)
        assert ran.stderr.count("did you mean") == 1
