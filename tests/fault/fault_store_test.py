# SPDX-License-Identifier: Apache-2.0
"""What was in the store stays in the store: kill -9, a corrupt file, corrupt rows, a full disk; and no store is on a network file system.

KILN_KILLS (6) is how often the daemon is killed under load; a release has seen 500. KILN_STORE_FLIPS (6) is how many bits of its store
are flipped, one at a time."""

import contextlib
import os
import random
import sqlite3
import subprocess
import threading
import time

import pytest

from daemon import BUILD, TARGET, Daemon, compile_many, program, shim


def origin(client, reply):
    return client._pb.enums["Origin"].values_by_number[reply.origin].name


def all_there(daemon, expected):
    """Every entry of `expected` is found without a compile, with the bytes it had."""
    client = daemon.client()
    for number, (key, code) in expected.items():
        found = client.lookup(key)
        assert found is not None, f"program {number} was in the store and is gone"
        assert found.artifact.code == code
        assert origin(client, found) in ("MEMORY", "DISK")


def committed(daemon, expected):
    """Waits until the store lists every key of `expected`: from then on they have to survive."""
    wanted = {key for key, _ in expected.values()}
    for _ in range(500):
        wanted = {key for key in wanted if not any(entry.key == key for entry in daemon.client().cache_list(key_prefix=key))}
        if not wanted:
            return
        threading.Event().wait(0.02)
    raise AssertionError("kilnd does not list what it compiled 10 s ago")


def evicted(daemon, rows):
    """Waits until so many corrupt rows are evicted: a writer's thread does that, behind the answers."""
    for _ in range(500):
        found = sum(tier.corrupt for tier in daemon.client().stats().tiers)
        if found >= rows:
            return
        threading.Event().wait(0.02)
    raise AssertionError(f"kilnd evicted {found} corrupt rows in 10 s, not {rows}")


def test_a_clean_stop_keeps_everything(daemon):
    daemon.start()
    kept = compile_many(daemon.client(), range(5))
    assert daemon.stop() == 0
    daemon.start()
    all_there(daemon, kept)
    assert daemon.client().stats().compiles == 0


def test_kill_at_any_moment_loses_nothing(daemon):
    seed = int(os.environ.get("KILN_SEED", random.randrange(1 << 30)))
    print("KILN_SEED =", seed)
    rng = random.Random(seed)
    daemon.start()
    kills = int(os.environ.get("KILN_KILLS", "6"))
    kept, number, written = {}, 0, []
    for _ in range(kills):
        newest = compile_many(daemon.client(), range(number, number + 4))
        kept.update(newest)
        number += 4
        committed(daemon, newest)
        stop = threading.Event()

        def load(first):
            n = first
            while not stop.is_set():
                try:
                    daemon.client().compile(program(n), TARGET, timeout=0.3)
                    written.append(n)
                except Exception:  # the daemon dies under this call, or the machine is slow
                    pass
                n += 1

        threads = [threading.Thread(target=load, args=(10_000 + rng.randrange(1 << 20) * 100,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        threading.Event().wait(rng.uniform(0.0, 0.4))
        daemon.kill()
        stop.set()
        for thread in threads:
            thread.join()
        daemon.start()
        all_there(daemon, newest | {n: kept[n] for n in rng.sample(sorted(kept), min(len(kept), 40))})
    # A few kills on a slow machine may find no compile done in their fractions of a second.
    assert len(written) >= kills or kills < 100, f"{kills} kills among {len(written)} compiles are none under load"
    all_there(daemon, kept)
    assert daemon.client().cache_verify().corrupt == 0


def test_a_corrupt_file_is_set_aside(daemon):
    daemon.start()
    before = compile_many(daemon.client(), range(3))
    daemon.stop()
    database = daemon.store
    size = database.stat().st_size
    database.write_bytes(random.Random(7).randbytes(size))
    for extra in ("-wal", "-shm"):
        database.with_name(database.name + extra).unlink(missing_ok=True)

    daemon.start()
    assert daemon.client().lookup(next(iter(before.values()))[0]) is None
    assert compile_many(daemon.client(), range(3)) == before, "the same programs give the same keys and bytes"
    aside = list(database.parent.glob("kiln.db.corrupt-*"))
    assert [p.stat().st_size for p in aside if not p.name.endswith(("-wal", "-shm"))] == [size]


def test_corrupt_rows_are_never_served(daemon):
    daemon.start("--memory-cache=1")
    before = compile_many(daemon.client(), range(20), "cuda:sm_80")
    committed(daemon, before)
    daemon.stop()
    database = daemon.store
    data = database.read_bytes()
    assert data.count(b".visible .entry") >= 20, "the PTX is stored in the clear, which this test relies on"
    database.write_bytes(data.replace(b".visible .entry", b".visible .extry"))

    daemon.start("--memory-cache=1")
    assert compile_many(daemon.client(), range(20), "cuda:sm_80") == before
    stats = daemon.client().stats()
    assert stats.compiles == 20
    evicted(daemon, 20)
    assert daemon.client().cache_verify().corrupt == 0


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True, text=True, check=False)
    if mount.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mount.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_costs_the_store_and_not_the_service(small_disk, sockets):
    daemon = Daemon(small_disk / "state", sockets)
    try:
        daemon.start()
        kept = compile_many(daemon.client(), range(4))
        committed(daemon, kept)
        filler = small_disk / "filler"
        with open(filler, "wb", buffering=0) as file:
            with pytest.raises(OSError):
                while True:
                    file.write(bytes(4096))
        during = compile_many(daemon.client(), range(100, 140))
        assert len(during) == 40, "every request is answered while nothing can be written"
        all_there(daemon, kept)
        filler.unlink()
        daemon.kill()
        daemon.start()
        all_there(daemon, kept)
        assert daemon.client().cache_verify().corrupt == 0
    finally:
        daemon.end()


def test_a_small_disk_is_written_again_soon_after_there_is_space(small_disk, sockets):
    daemon = Daemon(small_disk / "state", sockets)
    try:
        daemon.start()
        client = daemon.client()
        assert client.compile(program(0), TARGET, durable=True).durable
        filler = small_disk / "filler"
        with open(filler, "wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))
        end = time.monotonic() + 20
        number = 1
        while client.compile(program(number), TARGET, durable=True).durable:  # what the store had taken of the disk before is used up first
            number += 1
            assert time.monotonic() < end, "the disk is full, and everything is called durable"
        assert client.stats().tiers[1].state == "read-only"
        filler.unlink()
        began = time.monotonic()
        while not client.compile(program(number), TARGET, durable=True).durable:
            assert time.monotonic() < began + 5, "there has been space for 5 s"
            time.sleep(0.05)
        assert client.stats().tiers[1].state == "ok"
        daemon.kill()
        daemon.start()
        assert origin(daemon.client(), daemon.client().compile(program(number), TARGET)) == "DISK"
    finally:
        daemon.end()


def test_what_a_damaged_store_has_lost_is_not_called_durable(daemon):
    daemon.start()
    kept = compile_many(daemon.client(), range(20))
    committed(daemon, kept)
    assert daemon.stop() == 0  # so that all is in the file, and nothing in its log
    daemon.start()
    client = daemon.client()
    for where in ("DISK", "MEMORY"):
        found = client.compile(program(1), TARGET)
        assert (origin(client, found), found.durable) == (where, True)
    with open(daemon.store, "r+b") as file:  # every page but the first
        file.seek(16384)
        file.write(b"\xee" * (daemon.store.stat().st_size - 16384))
    end, number = time.monotonic() + 20, 100
    while not list(daemon.store.parent.glob("kiln.db.corrupt-*")):
        client.compile(program(number), TARGET)  # a commit, after which pages are read again
        number += 1
        with contextlib.suppress(Exception):  # whose words are another test's
            client.cache_verify()
        assert time.monotonic() < end, daemon.tail()
    found = client.compile(program(1), TARGET)
    assert (origin(client, found), found.durable) == ("MEMORY", False)
    assert client.compile(program(1), TARGET, durable=True).durable, "put again"
    daemon.kill()
    daemon.start()
    assert origin(daemon.client(), daemon.client().compile(program(1), TARGET)) == "DISK"


def flip_a_bit(rng, store):
    """Of the database or of the log beside it."""
    files = [path for path in (store, store.with_name(store.name + "-wal")) if path.exists() and path.stat().st_size > 0]
    path = rng.choice(files)
    bit = rng.randrange(8 * path.stat().st_size)
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes((byte ^ (1 << bit % 8),)))


def test_after_a_flipped_bit_the_same_is_served(daemon):
    seed = int(os.environ.get("KILN_SEED", random.randrange(1 << 30)))
    print("KILN_SEED =", seed)
    rng = random.Random(seed)
    daemon.start("--memory-cache=1")
    expected = compile_many(daemon.client(), range(12))
    committed(daemon, expected)
    compiled = 0
    for _ in range(int(os.environ.get("KILN_STORE_FLIPS", "6"))):
        daemon.kill()
        flip_a_bit(rng, daemon.store)
        daemon.start("--memory-cache=1")
        for _ in range(2):
            assert compile_many(daemon.client(), range(12)) == expected
        compiled += daemon.client().stats().compiles
        daemon.client().cache_verify()  # waits for what was put, and evicts what nobody asked for
    print(compiled, "programs were compiled again")
    assert daemon.client().cache_verify().corrupt == 0


def serves_without_its_store(daemon, kept, why):
    daemon.start()
    assert compile_many(daemon.client(), range(4)) == kept
    assert daemon.client().compile(program(4), TARGET).key
    assert origin(daemon.client(), daemon.client().compile(program(4), TARGET)) == "MEMORY"
    assert why in daemon.log.read_text()
    assert daemon.stop() == 0


def test_a_store_that_is_mounted_read_only_serves_what_it_has(small_disk, sockets):
    daemon = Daemon(small_disk / "state", sockets)
    try:
        daemon.start()
        kept = compile_many(daemon.client(), range(4))
        assert daemon.stop() == 0
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        daemon.start()
        assert origin(daemon.client(), daemon.client().compile(program(0), TARGET)) == "DISK"
        assert compile_many(daemon.client(), range(4)) == kept
        assert origin(daemon.client(), daemon.client().compile(program(4), TARGET)) == "COMPILED"
        assert origin(daemon.client(), daemon.client().compile(program(4), TARGET)) == "MEMORY"
        assert "mounted read-only" in daemon.log.read_text()
        assert daemon.stop() == 0
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        daemon.start()
        all_there(daemon, kept)
    finally:
        daemon.end()


def test_a_store_that_may_not_be_written_costs_the_store_and_not_the_service(daemon):
    if os.geteuid() == 0:  # who may write everything otherwise
        daemon.wrapper = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    daemon.start()
    kept = compile_many(daemon.client(), range(4))
    assert daemon.stop() == 0
    files = [path for path in daemon.state.rglob("*") if path.is_file()]
    for path in files:
        path.chmod(0o400)
    daemon.state.chmod(0o500)
    try:
        serves_without_its_store(daemon, kept, "Permission denied")
    finally:
        daemon.state.chmod(0o700)
    for path in files:
        path.chmod(0o600)
    daemon.start()
    all_there(daemon, kept)


def refusal(daemon, state):
    """What kilnd says that does not start on `state`."""
    command = [str(BUILD / "bin" / "kilnd"), f"--listen=unix:{daemon.socket}", f"--state-dir={state}", "--ptxas=none"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1, ended
    assert not daemon.socket.exists()
    return ended.stderr


def test_no_store_is_opened_on_a_network_file_system(daemon, tmp_path, monkeypatch):
    daemon.start()
    kept = compile_many(daemon.client(), range(3))
    assert daemon.stop() == 0
    before = {path.name: path.read_bytes() for path in daemon.state.iterdir() if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", shim("filesystem"))
        patch.setenv("FILESYSTEM_SHIM", str(daemon.state))
        for state in (daemon.state, daemon.state / "below"):
            said = refusal(daemon, state)
            assert f"{state} is on a network or shared file system" in said
            assert "give a directory on a local disk" in said and "--state-dir" in said
            command = [BUILD / "bin" / "kilnd", "--check-config", f"--state-dir={state / 'new'}", "--ptxas=none"]
            checked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            assert checked.returncode == 2
            assert f"state-dir: {state} is on a network or shared file system" in checked.stderr
            assert not (state / "new").exists()
        assert {path.name: path.read_bytes() for path in daemon.state.iterdir() if path.is_file()} == before
        local = Daemon(tmp_path / "local", daemon.socket.parent)
        try:
            local.start()
            assert compile_many(local.client(), range(3)) == kept, "elsewhere it starts, and has nothing"
            assert local.client().stats().compiles == 3
        finally:
            local.end()
    daemon.start()
    all_there(daemon, kept)


def test_a_newer_kilnds_store_is_refused_and_left_alone(daemon):
    daemon.start()
    kept = compile_many(daemon.client(), range(3))
    assert daemon.stop() == 0

    def add_to_version(number):
        with contextlib.closing(sqlite3.connect(daemon.store)) as store:
            version = store.execute("SELECT version FROM store").fetchone()[0] + number
            store.executescript(f"PRAGMA user_version = {version}; UPDATE store SET version = {version};")
        return version

    newer = add_to_version(1)
    said = refusal(daemon, daemon.state)
    assert f"version {newer}" in said and "a newer one wrote it" in said and "--state-dir" in said
    assert not list(daemon.state.glob("kiln.db.corrupt-*"))
    add_to_version(-1)
    daemon.start()
    all_there(daemon, kept)
