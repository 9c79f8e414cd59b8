# SPDX-License-Identifier: Apache-2.0
"""The units of the Debian package, run by systemd itself in an empty Debian 12: with everything that they forbid, kilnd serves."""

import re

import pytest

from booted import Booted, unless_it_can_boot
from conftest import README_KERNEL, debian
from debian_test import PROGRAM, SOCKET

CLIENT = ("env", f"KILN_ADDRESS=unix:{SOCKET}", "KILN_AUTOSTART=0")


@pytest.fixture
def booted(root):
    unless_it_can_boot()
    root.install("systemd", "systemd-sysv", "dbus", "util-linux", *map(debian, ("kilnd", "kiln", "python3-kiln")))
    root.shell("useradd -m -G kiln alice; useradd -m bob")
    root.write("/srv/first.py", README_KERNEL)  # /tmp is made anew at the start
    root.write("/srv/scale.kiln", PROGRAM)
    made = Booted(root, "kiln-test")
    yield made
    made.end()


def journal(booted):
    return booted.run("journalctl", "--no-pager", "-u", "kilnd.service", "-o", "cat").stdout


@pytest.mark.roots
def test_the_service_under_systemd(booted):
    booted.eventually("systemctl", "is-active", "kilnd.service", says=lambda said: said == "active")
    assert booted.property("kilnd.service", "User") == "kiln" and booted.property("kilnd.service", "Type") == "notify"

    # The emulator and the compiler work under all that the unit forbids; somebody outside of the group is kept out.
    ran = booted.run(*CLIENT, "python3", "/srv/first.py", user="alice")
    assert "3." in ran.stdout and "emulator" in ran.stderr, ran.stdout + ran.stderr
    booted.run(*CLIENT, "kiln", "compile", "/srv/scale.kiln", "-t", "cuda:sm_90a", "-o", "/home/alice/out", user="alice")
    other = booted.run(*CLIENT, "kiln", "compile", "/srv/scale.kiln", "-t", "cuda:sm_90a", "-o", "/home/bob/out", user="bob", check=False)
    assert other.returncode != 0
    workers = re.search(r"\{[^\n]*event[^\n]*workers[^\n]*\}", journal(booted))
    assert workers and "trouble" not in workers[0], journal(booted)

    # Reloaded it is the same process; killed it is another one, which has the results.
    before = booted.property("kilnd.service", "MainPID")
    booted.run("systemctl", "reload", "kilnd.service")
    assert booted.property("kilnd.service", "MainPID") == before
    booted.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", "kilnd.service")
    booted.eventually("systemctl", "show", "--value", "--property=MainPID", "kilnd.service", says=lambda said: said not in ("0", before))
    booted.eventually("systemctl", "is-active", "kilnd.service", says=lambda said: said == "active")
    booted.run(*CLIENT, "kiln", "compile", "/srv/scale.kiln", "-t", "cuda:sm_90a", "-o", "/home/alice/again", user="alice")

    booted.run("systemctl", "stop", "kilnd.service")
    assert booted.property("kilnd.service", "Result") == "success" and booted.property("kilnd.service", "ActiveState") == "inactive"


@pytest.mark.roots
def test_the_socket_under_systemd(booted):
    """As its head says: instead of the service, and the first client starts that."""
    booted.run("systemctl", "disable", "--now", "kilnd.service")
    booted.run("systemctl", "enable", "--now", "kilnd.socket")
    assert booted.property("kilnd.service", "ActiveState") == "inactive" and booted.property("kilnd.socket", "SubState") == "listening"
    booted.run(*CLIENT, "kiln", "compile", "/srv/scale.kiln", "-t", "hip:gfx942", "-o", "/home/alice/out", user="alice")
    assert booted.property("kilnd.service", "ActiveState") == "active"
