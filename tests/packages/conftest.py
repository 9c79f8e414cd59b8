# SPDX-License-Identifier: Apache-2.0
"""What deploy/bundle --wheels and deploy/debian/build have left in dist. tests/packages/run makes both first."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
from daemon import ROOT, socket_folder  # noqa: E402
from empty_root import EmptyRoot, unless_it_can_be_made  # noqa: E402

DIST = ROOT / "dist"
PYTHON = os.environ.get("PYTHON", "/usr/bin/python3")
README_KERNEL = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]
TILELANG_SCRIPT = """
import numpy as np
import tilelang
import tilelang.language as T

@tilelang.jit
def twice(n: int):
    @T.prim_func
    def kernel(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 128), threads=128) as bx:
            for i in T.Parallel(128):
                B[bx * 128 + i] = A[bx * 128 + i] * 2.0
    return kernel

a, b = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
twice(256)(a, b)
assert (b == 2 * a).all(), b
print(tilelang.__file__)
"""
TRITON_SCRIPT = """
import numpy as np
import triton
import triton.language as tl

@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)

a, b = np.arange(250, dtype=np.float32), np.zeros(250, np.float32)
twice[(triton.cdiv(250, 128),)](a, b, 250, BLOCK=128)
assert (b == 2 * a).all(), b
print(triton.__file__)
"""


def pytest_configure(config):
    config.addinivalue_line("markers", "roots: takes minutes, or more than deploy/install-deps brings: only by tests/packages/run --roots")


def pytest_collection_modifyitems(config, items):
    if os.environ.get("KILN_ROOTS") != "1":
        left_out = [item for item in items if item.get_closest_marker("roots")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


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


@pytest.fixture(scope="session")
def triton_wheel():
    return built("kiln_triton-*.whl", "deploy/bundle --wheels")


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


@contextlib.contextmanager
def empty_root(**which):
    """In a folder of everybody's, as a root is: workers give up root's rights."""
    unless_it_can_be_made()
    with tempfile.TemporaryDirectory(prefix="kiln-root-", dir="/var/tmp") as folder:
        pathlib.Path(folder).chmod(0o755)
        made = EmptyRoot(pathlib.Path(folder) / "root", **which)
        try:
            yield made
        finally:
            made.end()


@pytest.fixture
def root():
    """An empty Debian 12."""
    with empty_root() as made:
        yield made


@pytest.fixture
def later_root():
    """An empty Debian 13."""
    with empty_root(suite="trixie") as made:
        yield made


def debian(name):
    return built(f"{name}_*.deb", "deploy/debian/build")
