# SPDX-License-Identifier: Apache-2.0
"""podman, with images and containers of its own in a folder, and an empty Debian 12 for the base image: no registry is asked."""

import re
import resource
import shutil
import subprocess

import pytest

from empty_root import base, unless_it_can_be_made


class Engine:
    def __init__(self, folder):
        unless_it_can_be_made()
        if shutil.which("podman") is None:
            pytest.skip("NOT TESTED: the image as an engine builds and runs it; apt-get install podman, and crun or runc")
        self.folder = folder
        runtime = shutil.which("runc") or shutil.which("crun")
        if runtime is None:
            pytest.skip("NOT TESTED: the image as an engine runs it; apt-get install runc")
        self.words = ["podman", f"--root={folder}/images", f"--runroot={folder}/run", "--cgroup-manager=cgroupfs", f"--runtime={runtime}"]

    def run(self, *words, check=True, timeout=600, **more):
        ran = subprocess.run([*self.words, *map(str, words)], capture_output=True, text=True, timeout=timeout, check=False, **more)
        assert not check or ran.returncode == 0, f"{words}: {ran.stdout[-3000:]}{ran.stderr[-3000:]}"
        return ran

    def bring_base(self, name):
        """The empty Debian 12 as the image that a container file begins with."""
        with subprocess.Popen(["tar", "-C", base(), "-c", "."], stdout=subprocess.PIPE) as tar:
            self.run("import", "-", name, stdin=tar.stdout)
        assert tar.returncode == 0

    def limits(self):
        """No higher than those of this process: where it may not raise them, nor may the engine."""
        most = {"nofile": (resource.RLIMIT_NOFILE, 65536), "nproc": (resource.RLIMIT_NPROC, 4096)}
        return [f"--ulimit={name}={min(resource.getrlimit(which)[1] % 2**64, cap)}" for name, (which, cap) in most.items()]

    def end(self):
        self.run("rm", "--all", "--force", "--time=10", check=False)
        self.run("rmi", "--all", "--force", check=False)


def documented(text, command):
    """The words of a command that the head of the container file gives."""
    found = re.search(rf"{command} (.*)$", text, re.MULTILINE)[1]
    return found.split()
