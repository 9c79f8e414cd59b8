# SPDX-License-Identifier: Apache-2.0
"""An empty Debian made by debootstrap from the mirror that this machine's apt uses, and commands in copies of it: Debian 12, or a later one.

tests/packages/run --roots asks for it: it takes root, debootstrap, a mirror, and minutes."""

import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest

from daemon import ROOT

SUITE = "bookworm"
CACHE = ROOT / "build" / "packages"

# Before a command: in that root with /proc and /dev and nothing else of this machine. The process is the command itself.
ENTER = ("unshare", "--mount", "--", "bash", "-c", 'root=$1; shift; mount --rbind /proc "$root/proc" && mount --rbind /dev "$root/dev" && '
         'exec /usr/bin/env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin '
         '"$(command -v chroot)" "$root" "$@"',
         "enter")


def unless_it_can_be_made():
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED in an empty root: that needs root, for chroot and mount")
    if shutil.which("debootstrap") is None:
        pytest.skip("NOT TESTED in an empty root: there is no debootstrap; apt-get install debootstrap")


def mirror():
    """Where this machine's apt takes the suite from."""
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(SUITE) $(CODENAME) $(REPO_URI)", "Created-By: Packages"],
                            capture_output=True, text=True, check=True).stdout
    found = [line.split()[-1] for line in listed.splitlines() if SUITE in line.split()[:-1]]
    if not found:
        pytest.skip(f"NOT TESTED in an empty root: this machine's apt has no {SUITE}")
    return found[0]


def base(suite=SUITE):
    """The folder of the root that others of the suite are copied from; made once."""
    made = CACHE / suite
    if not (made / "etc/debian_version").exists() or not (made / ".complete").exists():
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, made, mirror()]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"debootstrap: {ran.stdout[-1500:]}{ran.stderr[-1500:]}"
        (made / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # no package starts a service
        (made / "usr/sbin/policy-rc.d").chmod(0o755)
        (made / ".complete").touch()
    return made


class EmptyRoot:
    def __init__(self, folder, suite=SUITE):
        self.folder = pathlib.Path(folder)
        subprocess.run(["cp", "-a", "--reflink=auto", base(suite), self.folder], check=True)
        self.folder.chmod(0o755)
        for name in ("resolv.conf", "hosts"):
            shutil.copy(f"/etc/{name}", self.folder / "etc" / name)
        settings = pathlib.Path("/etc/apt/apt.conf.d")
        for file in settings.iterdir() if settings.is_dir() else ():
            if re.search(r"(?i)proxy|ssl|https", file.read_text(errors="replace")):  # how the mirror is reached
                shutil.copy(file, self.folder / "etc/apt/apt.conf.d")
        self.started = []

    def command(self, *words, user=None):
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"] if user else []
        return [*ENTER, str(self.folder), *as_user, *map(str, words)]

    def run(self, *words, user=None, check=True, timeout=600, text=None):
        ran = subprocess.run(self.command(*words, user=user), capture_output=True, text=True, timeout=timeout, check=False, input=text)
        assert not check or ran.returncode == 0, f"{words}: {ran.stdout[-3000:]}{ran.stderr[-3000:]}"
        return ran

    def shell(self, script, **more):
        return self.run("sh", "-euc", script, **more)

    def start(self, *words, user=None, environment=()):
        """A process that runs until the root is taken away; its output is in its log."""
        log = open(self.folder / "tmp" / f"log{len(self.started)}", "ab")
        # In this mount namespace the process is the command itself: what is signalled is kilnd.
        process = subprocess.Popen(self.command("env", *environment, *words, user=user), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.started.append((process, log))
        return process

    def await_socket(self, path, limit=20.0):
        end = time.monotonic() + limit
        while not (self.folder / path.lstrip("/")).is_socket():
            process, log = self.started[-1]
            said = pathlib.Path(log.name).read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"it ended with {process.returncode}: {said}"
            assert time.monotonic() < end, f"no {path} after {limit} s: {said}"
            time.sleep(0.05)

    def bring(self, file, to="/tmp"):
        shutil.copy(file, self.folder / to.lstrip("/"))
        return f"{to}/{pathlib.Path(file).name}"

    def bring_tree(self, source, to):
        """A file or a folder, under another name."""
        target = self.folder / to.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)

    def write(self, path, text):
        file = self.folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return path

    def add_suites(self, *suites):
        """More of the mirror's, whose packages are taken where they are asked for: with -t. A mirror may stand still."""
        for suite in suites:
            self.write(f"/etc/apt/sources.list.d/{suite}.list", f"deb [check-valid-until=no] {mirror()} {suite} main\n")
        self.write("/etc/apt/preferences.d/more", "".join(f"Package: *\nPin: release n={suite}\nPin-Priority: 100\n\n" for suite in suites))

    def install(self, *packages):
        """Of the mirror's packages by name, of ours by file; no more than they depend on."""
        names = [self.bring(p) if isinstance(p, pathlib.Path) else p for p in packages]
        self.shell("apt-get -qq update")
        return self.run("apt-get", "-y", "-qq", "-o", "Dpkg::Use-Pty=0", "install", "--no-install-recommends", *names)

    def end(self):
        for process, log in self.started:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
