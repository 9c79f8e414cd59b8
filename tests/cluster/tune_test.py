# SPDX-License-Identifier: Apache-2.0
"""Records of tunings travel like results: through the cluster store, the object store, an upstream kilnd and a bundle, and nothing else than what
their makers have signed is believed."""

import pytest

import stored
from object_store import ObjectStore
from redis_servers import eventually
from share_test import origin, tier
from upstream_calls import below

PATIENT = "--tier-timeout=2000"  # on a machine that does other things
DEVICE = "emu:sm_90a"


def scale(block, factor=2.0):
    import kiln.language as T

    @T.prim_func
    def scale(X: T.Tensor((4096,), "float32"), Y: T.Tensor((4096,), "float32")):
        with T.Kernel(T.ceildiv(4096, block), threads=128) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = X[bx * block + i] * factor

    return scale.with_outputs(-1)


def tune(host, blocks=(128, 512), factor=2.0, **how):
    import kiln

    return host.client().tune([scale(block, factor) for block in blocks], DEVICE, [kiln.Recipe("float32", (4096,))], measure_on_emulator=True, **how)


def known(host, **how):
    """Where the record comes from that the host knows; None: it knows none."""
    found = tune(host, known_only=True, **how)
    return found and origin(host.client(), found)


class Redis:
    def __init__(self, redis):
        self.redis, self.address, self.tier = redis, redis.address, "redis"

    def await_record(self, key):
        eventually(lambda: self.redis.ask("EXISTS", stored.name_of(key)) == 1)


class Objects:
    def __init__(self, folder):
        self.store, self.tier = ObjectStore(folder), "object"
        self.address = self.store

    def await_record(self, key):
        eventually(lambda: self.store.path_of(key) in self.store.objects)


@pytest.fixture(params=["redis", "objects"])
def shared(request, tmp_path):
    if request.param == "redis":
        yield Redis(request.getfixturevalue("redis"))
        return
    made = Objects(tmp_path / "bucket")
    yield made
    made.store.stop()


def test_a_record_of_one_host_serves_the_others(shared, hosts):
    one, other = (hosts.start(shared.address, PATIENT) for _ in range(2))
    assert known(other) is None
    made = tune(one).record
    shared.await_record(made.key)
    assert known(other) == "CLUSTER"
    found = tune(other).record
    assert (found.winner, found.key, found.device) == (made.winner, made.key, made.device)
    assert [list(said.microseconds) for said in found.measurements] == [list(said.microseconds) for said in made.measurements]
    assert other.client().stats().compiles == 0
    assert known(other) == "MEMORY"
    # What was taken in is this host's own from now on, with its own seal.
    assert other.stop() == 0
    other.start(*(option for option in other.options if not option.startswith(("--cluster-", "--object-"))))
    assert known(other) == "DISK"
    assert other.client().cache_verify().forged == 0


def test_the_record_of_a_stranger_is_not_believed(shared, hosts):
    stranger = hosts.start(shared.address, PATIENT, trusts=False)
    shared.await_record(tune(stranger).record.key)
    host = hosts.start(shared.address, PATIENT)
    assert known(host) is None
    assert tier(host, shared.tier).refused >= 1
    assert origin(host.client(), tune(host)) == "COMPILED"


def record_in(blobs):
    return next(name for name in blobs if name.startswith(b"record"))


def forged(kind, pb, entry, other):
    """The parts of an entry whose digests are right and which says what nobody has signed."""
    key, metadata, blobs = entry
    name = record_in(blobs)
    record = pb.TuneRecord.FromString(blobs[name])
    if kind == "another winner":
        record.winner = 3 - record.winner
    elif kind == "other times":
        record.measurements[0].microseconds[0] = 1e-3
    elif kind == "unsigned":
        record.ClearField("seal")
    elif kind == "under another key":
        record = pb.TuneRecord.FromString(other[2][record_in(other[2])])
    blobs = {name: record.SerializeToString()}
    if kind == "twice":
        blobs[name] += pb.TuneRecord(winner=3 - record.winner).SerializeToString()
    elif kind == "another tenant's":
        label = pb.CacheEntry.FromString(metadata)
        label.tenant = "another"
        metadata, blobs = label.SerializeToString(), {name + b" of another": blobs[name]}
    elif kind == "more beside it":
        blobs[b"module"] = b"kiln 1\nfunc @planted() {}\n"
    return key, metadata, blobs


def test_what_is_planted_is_not_served(redis, hosts):
    maker = hosts.start(redis.address)
    keys = [tune(maker, factor=factor).record.key for factor in (2.0, 3.0)]
    eventually(lambda: all(redis.ask("EXISTS", stored.name_of(key)) == 1 for key in keys))
    entries = []
    for key in keys:
        head, frame = redis.ask("HMGET", stored.name_of(key), "h", "b")
        entries.append(stored.open_entry(head, stored.decompress(frame, sum(size for _, size in stored.open_head(head)[2]))))
    for kind in ("another winner", "other times", "unsigned", "under another key", "twice", "another tenant's", "more beside it"):
        host = hosts.start(redis.address)
        head, body = stored.seal_entry(*forged(kind, host.client()._pb, *entries))
        redis.ask("HSET", stored.name_of(keys[0]), "h", head, "b", stored.compress(body))
        assert known(host) is None, kind
        assert tier(host).refused >= 1, kind
        if kind == "more beside it":  # the last: its own goes in its place
            assert origin(host.client(), tune(host)) == "COMPILED"
            eventually(lambda: redis.ask("HGET", stored.name_of(keys[0]), "h") != head)
        host.end()


def test_an_upstream_kilnd_has_records_too(hosts):
    upstream = hosts.start(None)
    host = hosts.start(None, below(upstream))
    stranger = hosts.start(None, below(upstream), trusts=False)
    tune(upstream)
    assert known(host) == "CLUSTER"
    assert tier(host, "upstream").refused == 0
    assert known(stranger) is None
    upstream.kill()
    assert known(host) == "MEMORY"


def test_a_bundle_that_kilnd_is_started_with_has_records_too(tmp_path, hosts):
    maker = hosts.start(None)
    tune(maker)
    bundle = tmp_path / "made.kilnpack"
    chunks = maker.client()._methods["CacheExport"](maker.client()._pb.CacheExportRequest(), timeout=30)
    bundle.write_bytes(b"".join(chunk.data for chunk in chunks))
    host = hosts.start(None, f"--bundle={bundle}")
    assert known(host) == "BUNDLE"
    stranger = hosts.start(None, f"--bundle={bundle}", trusts=False)
    assert known(stranger) is None


def short(host):
    """A tuning whose budget ended before it had come to all candidates."""
    import kiln

    blocks = [128 * number for number in range(1, 60)]
    for budget in (0.2, 0.4, 0.8, 1.6, 3.2):
        try:
            made = tune(host, blocks, budget=budget, refresh=True).record
        except kiln.KilnError:
            continue  # nothing was measured
        if any(said.outcome == 0 for said in made.measurements):
            return blocks, budget, made
    pytest.fail("no budget was too short")


def test_a_better_record_replaces_a_poorer_one_for_all(shared, hosts):
    one, other, third = (hosts.start(shared.address, PATIENT) for _ in range(3))
    blocks, budget, poor = short(one)
    shared.await_record(poor.key)
    assert known(other, blocks=blocks, budget=budget) == "CLUSTER"
    assert known(other, blocks=blocks) is None, "it does not say all that a longer tuning would"
    better = tune(other, blocks).record
    assert better.budget_seconds > poor.budget_seconds

    def sees_better():
        found = tune(third, blocks, known_only=True)
        return found and found.record.winner == better.winner and found.record.created_unix == better.created_unix

    eventually(sees_better)
