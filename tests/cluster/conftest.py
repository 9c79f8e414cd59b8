# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from daemon import Daemon, socket_folder  # noqa: E402
from redis_servers import Cluster, Proxy, Server, eventually  # noqa: E402


@pytest.fixture
def redis_cluster(tmp_path):
    made = Cluster(tmp_path / "redis")
    yield made
    made.end()


@pytest.fixture
def redis(tmp_path):
    made = Server(tmp_path / "redis")
    eventually(made.answers)
    yield made
    made.kill()


@pytest.fixture
def proxy(redis):
    made = Proxy(redis)
    yield made
    made.end()


class Hosts:
    """kilnds of hosts of their own. Each has a key; all that are made with `trusted` trust each other's."""

    def __init__(self, folder, stack):
        self.folder, self.stack, self.trusted = folder, stack, folder / "trusted-keys"
        self.trusted.write_text("")
        self.all = []

    def start(self, store, *options, trusts=True):
        """`store`: the address of a Redis server, or what has `options` of its own."""
        number = len(self.all)
        sockets = self.stack.enter_context(socket_folder())
        host = Daemon(self.folder / f"host{number}", sockets)
        self.all.append(host)
        named = [] if not store else [f"--cluster-store=redis://{store}"] if isinstance(store, str) else store.options
        host.options = [*named, *([f"--trusted-keys={self.trusted}"] if trusts else []), *options]
        host.start(*host.options)
        if trusts:
            key = host.client().capabilities().signing_key
            with open(self.trusted, "a", encoding="utf-8") as file:
                file.write(f"ed25519:{key.hex()} host{number}\n")
            for other in self.all:
                if other.process.poll() is None:
                    other.process.send_signal(1)  # SIGHUP: read the file again
        return host

    def end(self):
        for host in self.all:
            host.end()


@pytest.fixture
def hosts(tmp_path):
    import contextlib

    with contextlib.ExitStack() as stack:
        made = Hosts(tmp_path, stack)
        yield made
        made.end()


@pytest.fixture
def sockets():
    with socket_folder() as folder:
        yield folder
