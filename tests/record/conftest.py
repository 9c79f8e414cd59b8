# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from daemon import BUILD, Daemon, socket_folder  # noqa: E402

MISSING = [name for name in ("kiln", "kilnd", "kiln-worker") if not os.access(BUILD / "bin" / name, os.X_OK)]


def pytest_collection_modifyitems(items):
    for item in items if MISSING else ():
        item.add_marker(pytest.mark.skip(reason=f"SKIPPED, NOTHING WAS RECORDED: {', '.join(MISSING)} not in {BUILD}/bin; set KILN_BUILD"))


class Host:
    """A machine without a GPU: a kilnd of its own, and what runs beside it."""

    def __init__(self, folder, sockets):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.daemon = Daemon(folder / "state", sockets)
        build = BUILD.resolve()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("KILN_", "XDG_"))} | {
            "KILN_ADDRESS": f"unix:{self.daemon.socket}", "KILN_AUTOSTART": "0", "HOME": str(folder), "CUDA_VISIBLE_DEVICES": "",
            "HIP_VISIBLE_DEVICES": "", "PATH": f"{build / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": f"{build / 'python'}:{build / 'python-compat'}"}

    def run(self, *words, **environment):
        return subprocess.run([str(word) for word in words], env=self.environment | environment, cwd=self.folder, capture_output=True, text=True,
                              timeout=300)

    def kiln(self, *words, **environment):
        return self.run("kiln", *words, **environment)

    def record(self, manifest, *command, **environment):
        return self.kiln("record", "-o", manifest, "--", *command, **environment)

    def script(self, text, name="script.py"):
        """[what runs it]."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return [sys.executable, str(path)]

    def requests(self, manifest):
        """(program, target, whether it was refused) of each of a manifest's requests."""
        shown = self.kiln("--json", "manifest", manifest)
        assert shown.returncode == 0, shown.stdout + shown.stderr
        return sorted((r["program"], r["target"], r["refused"]) for r in json.loads(shown.stdout)["requests"])

    def compiles(self):
        return self.daemon.client().stats().compiles


@pytest.fixture
def hosts(tmp_path):
    """``hosts(*options)``: another machine, whose kilnd runs."""
    import contextlib

    with contextlib.ExitStack() as stack:
        made = []

        def make(*options, running=True):
            host = Host(tmp_path / f"host{len(made)}", stack.enter_context(socket_folder()))
            made.append(host)
            if running:
                host.daemon.start(*options)
            return host

        yield make
        for host in made:
            host.daemon.end()


@pytest.fixture
def host(hosts):
    return hosts()
