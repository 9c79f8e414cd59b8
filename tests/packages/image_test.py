# SPDX-License-Identifier: Apache-2.0
"""deploy/container/Containerfile, carried out step by step in an empty Debian 12, and what it starts; and as an engine builds and runs it."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import pytest
import yaml

from conftest import PYTHON, README_KERNEL, ROOT, built
from engine import Engine, documented

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


@pytest.fixture
def engine():
    with tempfile.TemporaryDirectory(prefix="kiln-engine-", dir="/var/tmp") as folder:
        pathlib.Path(folder).chmod(0o755)
        made = Engine(pathlib.Path(folder))
        yield made
        made.end()


def kilnds_confinement():
    """The options that the Compose file gives its container."""
    kilnd = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text(encoding="utf-8"))["services"]["kilnd"]
    assert kilnd["read_only"]
    return ["--read-only", *(f"--tmpfs={path}" for path in kilnd["tmpfs"]), *(f"--cap-drop={name}" for name in kilnd["cap_drop"]),
            *(f"--security-opt={option.replace(':true', '')}" for option in kilnd["security_opt"])]


@pytest.mark.roots
def test_an_engine_builds_and_runs_it(engine):
    """By the commands at the head of the file, confined as in Compose: the client of the host is served, and results stay in the volume."""
    built("kiln-*-linux-x86_64.tar.xz", "deploy/bundle")
    text = (ROOT / "deploy/container/Containerfile").read_text(encoding="utf-8")
    engine.bring_base(dict(containerfile.steps())["FROM"])
    engine.run("build", "--isolation=chroot", "--pull=never", *documented(text, "podman build"), cwd=ROOT)
    said = json.loads(engine.run("image", "inspect", "kiln").stdout)[0]["Config"]
    assert said["User"] == "kiln" and said["Entrypoint"] == ["/opt/kiln/bin/kilnd"] and "/var/cache/kiln" in said["Volumes"]

    run = engine.folder / "socket"
    run.mkdir()
    os.chown(run, 7461, 7461)
    words = [word.replace("/run/kiln:", f"{run}:", 1) for word in documented(text, "podman run")]
    assert f"{run}:/run/kiln" in words
    script = engine.folder / "first.py"
    script.write_text(README_KERNEL, encoding="utf-8")
    python = ROOT / "build/release/python"
    client = {"PATH": os.environ["PATH"], "HOME": str(engine.folder), "KILN_ADDRESS": f"unix:{run}/kiln.sock", "KILN_AUTOSTART": "0",
              "PYTHONPATH": str(python), "CUDA_VISIBLE_DEVICES": ""}
    for _ in range(2):  # once more with the volume of the first
        engine.run("run", "--detach", "--name=kilnd", "--network=none", *engine.limits(), *kilnds_confinement(), *words)
        end = time.monotonic() + 60
        while not (run / "kiln.sock").is_socket():
            assert time.monotonic() < end, engine.run("logs", "kilnd").stderr
            time.sleep(0.2)
        ran = subprocess.run([PYTHON, script], capture_output=True, text=True, timeout=120, check=False, env=client)
        assert ran.returncode == 0 and "3." in ran.stdout, ran.stderr + engine.run("logs", "kilnd").stderr
        stats = json.loads(engine.run("exec", "kilnd", "/opt/kiln/bin/kiln", "--address=unix:/run/kiln/kiln.sock", "--json", "stats").stdout)
        engine.run("stop", "--time=30", "kilnd")
        assert engine.run("wait", "kilnd").stdout.strip() == "0", "it ends by itself on SIGTERM"
        engine.run("rm", "kilnd")
    assert stats["compiles"] == 0 and stats["hits"] > 0, "the second has the results of the first"
