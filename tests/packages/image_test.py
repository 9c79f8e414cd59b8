# SPDX-License-Identifier: Apache-2.0
"""deploy/container/Containerfile, carried out step by step in an empty Debian 12, and what it starts."""

import json
import os
import subprocess
import sys

import pytest

from conftest import PYTHON, README_KERNEL, ROOT, built

sys.path.insert(0, str(ROOT / "tests/container"))
import containerfile  # noqa: E402


def carry_out(root):
    """The environment, the user and the command that the image ends with."""
    environment, user, entrypoint = {}, None, None
    for step, text in containerfile.steps():
        if step == "ADD":  # an archive is unpacked
            source, target = text.split()
            root.shell(f"tar -xJf {root.bring(ROOT / source)} -C {target}")
        elif step == "RUN":
            root.shell(text)
        elif step == "ENV":
            environment |= dict(word.split("=", 1) for word in text.split())
        elif step == "USER":
            user = text
        elif step == "ENTRYPOINT":
            entrypoint = json.loads(text)
        else:
            assert step in ("FROM", "ARG", "VOLUME"), f"this test does not know {step}"
    return environment, user, entrypoint


@pytest.mark.roots
def test_the_image_serves(root):
    built("kiln-*-linux-x86_64.tar.xz", "deploy/bundle")
    root.install("xz-utils")  # the engine's, for ADD
    environment, user, entrypoint = carry_out(root)
    root.start(*entrypoint, user=user, environment=[f"{name}={value}" for name, value in environment.items()])
    socket = environment["KILN_LISTEN"].removeprefix("unix:")
    root.await_socket(socket)
    # The client of the host, on the socket that it shares with the container.
    script = root.write("/tmp/first.py", README_KERNEL)
    ran = subprocess.run([PYTHON, root.folder / script.lstrip("/")], capture_output=True, text=True, timeout=120, check=False,
                         env={"PATH": os.environ["PATH"], "HOME": str(root.folder / "tmp"), "KILN_ADDRESS": f"unix:{root.folder}{socket}",
                              "KILN_AUTOSTART": "0", "PYTHONPATH": str(root.folder / "opt/kiln/python")})
    assert ran.returncode == 0 and "3." in ran.stdout, ran.stderr
    assert (root.folder / environment["KILN_STATE_DIR"].lstrip("/") / "kiln.db").exists()
    assert (root.folder / socket.lstrip("/")).stat().st_mode & 0o777 == int(environment["KILN_SOCKET_MODE"], 8)
