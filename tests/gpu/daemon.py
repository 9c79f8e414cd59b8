# SPDX-License-Identifier: Apache-2.0
"""The bundle on this machine: unpacking it, and its daemon."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _unpack(archive: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    if archive.name.endswith(".zst"):
        subprocess.run(["tar", "--zstd", "-xf", str(archive), "-C", str(folder)], check=True)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(folder)
    roots = [folder] + [path for path in folder.iterdir() if path.is_dir()]
    for root in roots:
        if (root / "bin" / "kilnd").exists():
            return root
    raise FileNotFoundError(f"{archive} holds no bin/kilnd")


def _newest_bundle() -> pathlib.Path:
    found = sorted(ROOT.glob("dist/kiln-*.tar.*"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise FileNotFoundError("no dist/kiln-*.tar.*; make one with deploy/bundle, or pass --bundle FILE or --build FOLDER")
    return found[-1]


def _ptxas() -> str | None:
    """CUDA's own, as kilnd finds it: no script; else the one that torch brings inside triton. Registers and spills are then in the reports."""
    import importlib.util

    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if (found := shutil.which("ptxas", path=folder)) and pathlib.Path(found).read_bytes()[:2] != b"#!":
            return found
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return None
    candidate = pathlib.Path(spec.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / "ptxas"
    return str(candidate) if os.access(candidate, os.X_OK) else None


class Place:
    """An unpacked bundle (or a build folder) and its daemon on a socket of its own."""

    def __init__(self, options, scratch: pathlib.Path, *, ptxas: str | None = None, kilnd: tuple = ()):
        """``kilnd``: options of its, beside those that every run gives it."""
        self.scratch, self.ptxas, self.kilnd = scratch, ptxas, kilnd
        archive = None
        if options.build:
            root = pathlib.Path(options.build).resolve()
        else:
            archive = pathlib.Path(options.bundle).resolve() if options.bundle else _newest_bundle()
            (scratch / "bundle").mkdir()
            root = _unpack(archive, scratch / "bundle")
        self.root, self.process, self.facts = root, None, {"from": str(archive or root)}
        self.address = f"unix:{scratch}/kiln.sock"
        home = scratch / "home"
        home.mkdir()
        here = str(pathlib.Path(__file__).resolve().parent)
        # Scripts see the packages alone; our own processes see our modules too.
        self.script_environment = {**os.environ, "KILN_ADDRESS": self.address, "KILN_AUTOSTART": "0", "XDG_CACHE_HOME": str(home),
                                   "PYTHONPATH": os.pathsep.join([str(root / "python"), str(root / "python-compat")]),
                                   "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment = {**self.script_environment, "PYTHONPATH": os.pathsep.join([str(root / "python"), here])}
        os.environ.update(self.environment)  # for the compiling processes
        sys.path[:0] = [str(root / "python")]

    def start(self):
        log = self.scratch / "kilnd.log"
        command = [str(self.root / "bin" / "kilnd"), "--listen", self.address, "--state-dir", str(self.scratch / "state")]
        ptxas = self.ptxas or _ptxas()
        if ptxas:
            command += ["--ptxas", ptxas]
        command += self.kilnd
        self.facts["ptxas"] = ptxas
        begin = time.monotonic()
        with open(log, "wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        from kiln import daemon

        path = daemon.socket_path(self.address)
        while not daemon.listening(path):
            if self.process.poll() is not None or time.monotonic() - begin > 20:
                raise RuntimeError(f"kilnd does not serve: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.005)
        self.facts["daemon_start_ms"] = round((time.monotonic() - begin) * 1e3, 1)

    def stop(self):
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def counts(self):
        from kiln.client import default_client

        return default_client().stats()

    def device_target(self, options) -> str | None:
        if options.compile_only:
            return None
        from kiln import _runtime

        devices = _runtime.devices()
        if not devices:
            raise RuntimeError(f"no GPU: {_runtime.driver_problem('cuda')}. Without one, pass --compile-only")
        self.facts["devices"] = devices
        return devices[0]["arch"]

    def description(self, options) -> str:
        from kiln.client import default_client

        capabilities = default_client().capabilities()
        self.facts.update(version=capabilities.version, compiler=capabilities.compiler)
        text = f"kiln {capabilities.version} ({capabilities.compiler[:16]}), daemon up in {self.facts['daemon_start_ms']} ms"
        target = self.device_target(options)
        if target:
            device = self.facts["devices"][0]
            text += f", {device['name']} {target}, driver {device['driver_version']}"
        return text
