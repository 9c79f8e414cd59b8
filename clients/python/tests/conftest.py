# SPDX-License-Identifier: Apache-2.0
import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS.parents[2] / "tests")]
for package, folder in (("kiln", TESTS.parent), ("tilelang", TESTS.parent / "compat")):
    if importlib.util.find_spec(package) is None:
        sys.path.insert(0, str(folder))


def pytest_configure(config):
    """Run from the source tree, the description of the messages is made here."""
    import kiln

    if "KILN_DESCRIPTOR" in os.environ or pathlib.Path(kiln.__file__).with_name("kiln.desc").exists():
        return
    proto = TESTS.parents[2] / "proto"
    out = pathlib.Path(tempfile.mkdtemp(prefix="kiln-test-")) / "kiln.desc"
    files = map(str, (proto / "kiln").glob("*/*.proto"))
    subprocess.run(["protoc", "-I", str(proto), "--include_imports", f"--descriptor_set_out={out}", *files], check=True)
    os.environ["KILN_DESCRIPTOR"] = str(out)


@pytest.fixture
def service(monkeypatch):
    """No daemon: programs end in ``service.requests``."""
    import kiln.compiler
    from fake_service import FakeClient

    client = FakeClient()
    monkeypatch.setattr(kiln.compiler, "default_client", lambda: client)
    return client


@pytest.fixture
def emulated(address, monkeypatch):
    """``emulated(target)``: the library's functions run there, through the daemon of the file's tests."""
    import kiln.library.plans
    from kiln.client import Client

    with Client(address) as client:
        monkeypatch.setattr(kiln.library.plans, "default_client", lambda: client)
        monkeypatch.setattr(kiln.library.plans, "_kernels", {})
        for operation in kiln.library.operation.OPERATIONS.values():
            monkeypatch.setattr(operation, "_ready", {})
        yield lambda target: monkeypatch.setenv("KILN_TARGET", target)


@pytest.fixture
def torch(monkeypatch):
    """No torch and no GPU: tensors without data on a device that does nothing."""
    import fake_service
    import fake_torch
    import kiln
    import kiln.target

    fake = fake_torch.install(monkeypatch)
    extension = fake_service.extension(fake)
    monkeypatch.setitem(sys.modules, "kiln._runtime", extension)
    monkeypatch.setattr(kiln, "_runtime", extension, raising=False)
    kiln.target.device_target.cache_clear()
    yield fake
    kiln.target.device_target.cache_clear()


@pytest.fixture
def tilelang():
    """The package, imported anew."""
    yield importlib.import_module("tilelang")
    for name in [n for n in sys.modules if n.split(".")[0] in ("tilelang", "tvm")]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith("tilelang")]
