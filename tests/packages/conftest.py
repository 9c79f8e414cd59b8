# SPDX-License-Identifier: Apache-2.0
"""What deploy/bundle --wheels and deploy/debian/build have left in dist. tests/packages/run makes both first."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from daemon import ROOT, socket_folder  # noqa: E402

DIST = ROOT / "dist"
PYTHON = os.environ.get("PYTHON", "/usr/bin/python3")


def built(pattern, maker):
    found = sorted(DIST.glob(pattern))
    if not found:
        pytest.skip(f"NOT TESTED: there is no dist/{pattern}; {maker} makes it")
    assert len(found) == 1, f"dist has several versions: {[f.name for f in found]}"
    return found[0]


@pytest.fixture(scope="session")
def kiln_wheel():
    return built("kiln-*.whl", "deploy/bundle --wheels")


@pytest.fixture(scope="session")
def tilelang_wheel():
    return built("kiln_tilelang-*.whl", "deploy/bundle --wheels")


def end_daemons(home):
    """Of those that hold a state folder there, as clients have started them."""
    for lock in pathlib.Path(home).rglob("lock"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.kill(int(lock.read_text()), signal.SIGTERM)


class Environment:
    """A fresh venv that sees Debian's numpy, grpcio and protobuf, a home of its own, and nothing of the build."""

    def __init__(self, folder, sockets):
        self.folder, self.home = folder / "venv", folder / "home"
        self.home.mkdir()
        self.variables = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.home), "KILN_ADDRESS": f"unix:{sockets}/kiln.sock",
                          "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "LANG": "C.UTF-8"}
        subprocess.run([PYTHON, "-m", "venv", "--system-site-packages", self.folder], check=True, timeout=120)

    def run(self, *command, check=True, timeout=120, **more):
        ran = subprocess.run([str(part) for part in command], env=self.variables | more, cwd=self.home, capture_output=True, text=True,
                             timeout=timeout, check=False)
        assert not check or ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
        return ran

    def pip(self, *arguments, **more):
        return self.run(self.folder / "bin/pip", *arguments, **more)

    def python(self, text, **more):
        script = self.home / "script.py"  # the source of a tile function is read from its file
        script.write_text(text, encoding="utf-8")
        return self.run(self.folder / "bin/python", script, **more)


@pytest.fixture
def fresh(tmp_path):
    with socket_folder() as sockets:
        made = Environment(tmp_path, sockets)
        yield made
        end_daemons(made.home)
