# SPDX-License-Identifier: Apache-2.0
"""kill -9 right after a call was answered: what a Compile that asks for it, or a Put, has stored is found by the next kilnd.

    python3 tests/fault/kills.py [KILLS]     how many (500 each) of the results that were acknowledged are lost, and 1 if any is

KILN_BUILD names the build folder, or that of an unpacked bundle. Of Python's packages it needs grpcio and protobuf."""
import contextlib
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from daemon import TARGET, Daemon, program, socket_folder  # noqa: E402

OPTIONS = ("--workers=1", "--accept-put=yes")


def compiled(client, number):
    sealed = client._methods["Compile"](client.request(program(number), TARGET, durable=True), timeout=60)  # not checked, which takes time
    reply = client._pb.CompileReply.FromString(sealed.SerializeToString())
    assert reply.origin == client._pb.enums["Origin"].values_by_name["COMPILED"].number, "this program is new"
    assert reply.durable, "the store takes results"


class Put:
    """Of a result that a kilnd with another store made, under many requests."""

    def __init__(self):
        with tempfile.TemporaryDirectory() as state, socket_folder() as sockets, served(state, sockets, "first") as client:
            self.artifact = client.compile(program(0), TARGET).artifact

    def __call__(self, client, number):
        put = client._pb.PutRequest(request=client.request(program(number), TARGET), artifact=self.artifact)
        client._methods["Put"](put, timeout=60)


@contextlib.contextmanager
def served(state, sockets, name):
    """A client of a kilnd that is killed at the end. Each has a socket of its own: a channel waits before it tries one again that was closed."""
    folder = pathlib.Path(sockets) / str(name)
    folder.mkdir()
    daemon = Daemon(state, folder)
    try:
        daemon.start(*OPTIONS)
        yield daemon.client()
    finally:
        daemon.kill()
        daemon.end()


def lost(store, kills):
    """How many of so many results, each stored by a kilnd that was killed as soon as it had answered, are not on the disk."""
    with tempfile.TemporaryDirectory() as state, socket_folder() as sockets:
        for number in range(1, kills + 1):
            with served(state, sockets, number) as client:
                store(client, number)
        with served(state, sockets, "all") as client:
            disk = client._pb.enums["Origin"].values_by_name["DISK"].number
            found = [client.lookup(program(number), TARGET) for number in range(1, kills + 1)]
            return sum(kept is None or kept.origin != disk for kept in found)


def main():
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    if kills < 1:
        sys.exit(f"{kills} kills lose nothing: give a number from 1")
    missed = 0
    for name, store in (("a durable Compile", compiled), ("a Put", Put())):
        gone = lost(store, kills)
        print(f"kills right after {name}: {gone} of {kills} results lost (at most 0){': missed' if gone else ''}", flush=True)
        missed += gone
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
