# SPDX-License-Identifier: Apache-2.0
"""Hosts share results through an object store, believe nothing of what is in it, and wait for nobody.

KILN_PLANTED (120) is how many damaged, swapped, unsigned and re-signed entries are planted."""

import calendar
import email.message
import hashlib
import itertools
import os
import random
import statistics
import subprocess

import pytest

import stored
import moto
import object_store
from daemon import BUILD, TARGET, compile_many, program
from object_store import ObjectStore
from redis_servers import eventually
from s3rver import COMMAND, S3rver
from share_test import compile_at_once, compile_times, origin, tier, timed

PATIENT = "--tier-timeout=2000"  # on a machine that does other things


@pytest.fixture
def bucket(tmp_path):
    made = ObjectStore(tmp_path / "bucket")
    yield made
    made.stop()


def arrived(store, keys):
    eventually(lambda: all(store.path_of(key) in store.objects for key in keys))


def test_a_result_of_one_host_serves_the_others(bucket, hosts):
    one = hosts.start(bucket, PATIENT)
    other = hosts.start(bucket, PATIENT)
    made = compile_many(one.client(), range(8))
    arrived(bucket, [key for key, _ in made.values()])
    for number, (key, code) in made.items():
        reply = other.client().compile(program(number), TARGET)
        assert (reply.key, reply.artifact.code) == (key, code)
        assert origin(other.client(), reply) == "CLUSTER"
    assert other.client().stats().compiles == 0
    assert tier(other, "object").hits == 8 and tier(other, "object").refused == 0
    # What was taken in is this host's own from now on.
    assert other.stop() == 0
    bucket.stop()
    other.start(*other.options)
    for number in made:
        assert origin(other.client(), other.client().compile(program(number), TARGET)) == "DISK"


@pytest.mark.skipif(COMMAND is None, reason="NOT TESTED: an S3 server that others wrote; KILN_S3RVER names none (npm: s3rver)")
def test_an_s3_server_that_others_wrote(tmp_path, hosts):
    store = S3rver(tmp_path / "s3")
    try:
        one, other = hosts.start(store, PATIENT), hosts.start(store, PATIENT)
        made = compile_many(one.client(), range(8))
        eventually(lambda: store.count == 8)
        assert compile_many(other.client(), range(8)) == made
        assert other.client().stats().compiles == 0
        assert (tier(other, "object").hits, tier(other, "object").state) == (8, "ok")
        # Who has an id that it does not know is served by nobody, and waits for nobody.
        store.credentials.write_text(f"another\n{store.KEY}\n")
        stranger = hosts.start(store, PATIENT)
        assert compile_many(stranger.client(), range(8)) == made
        assert stranger.client().stats().compiles == 8
    finally:
        store.stop()


# The examples of "Authenticating Requests: Using the Authorization Header" in Amazon S3's API reference.
EXAMPLE_TIME = calendar.timegm((2013, 5, 24, 0, 0, 0))
EXAMPLES = [
    ("GET", "/test.txt", b"", {"Range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
    ("PUT", "/test%24file.text", b"Welcome to Amazon S3.", {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd")]


@pytest.mark.parametrize("method, path, body, more, signature", EXAMPLES)
def test_our_own_store_verifies_as_amazon_does(method, path, body, more, signature):
    """Without it, a signature that only we take for right would pass all the other tests here."""
    headers = email.message.Message()
    for name, value in {"Host": "examplebucket.s3.amazonaws.com", "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
                        "x-amz-date": "20130524T000000Z", **more}.items():
        headers[name] = value
    names = ";".join(sorted(name.lower() for name in headers.keys()))

    def wrong(signature):
        del headers["Authorization"]
        headers["Authorization"] = ("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
                                    f"SignedHeaders={names},Signature={signature}")
        return object_store.wrong_with(method, path, headers, body, "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                                       "us-east-1", now=lambda: EXAMPLE_TIME)

    assert wrong(signature) is None
    assert wrong(signature[:-1] + ("0" if signature[-1] != "0" else "1")) == "SignatureDoesNotMatch"


@pytest.mark.skipif(not moto.COMMAND, reason="NOT TESTED: an S3 server of others that verifies signatures; KILN_MOTO names none (moto_server)")
def test_an_s3_server_of_others_that_verifies_signatures(tmp_path, hosts):
    store = moto.Moto(tmp_path / "s3")
    try:
        one, other = hosts.start(store, PATIENT), hosts.start(store, PATIENT)
        made = compile_many(one.client(), range(4))
        eventually(lambda: store.puts >= 4)
        assert compile_many(other.client(), range(4)) == made
        assert other.client().stats().compiles == 0
        assert (tier(other, "object").hits, tier(other, "object").state) == (4, "ok")
        store.give("x" * len(store.secret))
        stranger = hosts.start(store, PATIENT)
        assert compile_many(stranger.client(), range(4)) == made
        assert stranger.client().stats().compiles == 4
        eventually(lambda: "SignatureDoesNotMatch" in stranger.log.read_text())
    finally:
        store.stop()


def test_a_store_without_conditions_is_shared_as_well(bucket, hosts):
    bucket.conditional = False
    one = hosts.start(bucket, PATIENT)
    made = compile_many(one.client(), range(12))
    arrived(bucket, [key for key, _ in made.values()])
    other = hosts.start(bucket, PATIENT)
    assert compile_many(other.client(), range(12)) == made
    assert other.client().stats().compiles == 0
    assert bucket.asked.count("PUT") <= len(bucket.objects) + 4, "each writer tries the condition once"


def test_the_cluster_store_is_nearer_and_gets_what_it_lacks(redis, bucket, hosts):
    both = [*bucket.options, PATIENT]
    one = hosts.start(redis.address, *both)
    made = compile_many(one.client(), range(4))
    arrived(bucket, [key for key, _ in made.values()])
    eventually(lambda: all(redis.ask("EXISTS", stored.name_of(key)) == 1 for key, _ in made.values()))
    redis.ask("FLUSHALL")
    other = hosts.start(redis.address, *both)
    assert compile_many(other.client(), range(4)) == made
    assert other.client().stats().compiles == 0 and tier(other, "object").hits == 4
    eventually(lambda: all(redis.ask("EXISTS", stored.name_of(key)) == 1 for key, _ in made.values()))
    gets = bucket.asked.count("GET")
    third = hosts.start(redis.address, *both)
    assert compile_many(third.client(), range(4)) == made
    assert third.client().stats().compiles == 0 and tier(third, "redis").hits == 4 and tier(third, "object").hits == 0
    assert bucket.asked.count("GET") <= gets + 4, "its probes"


def test_an_entry_that_nobody_takes_is_replaced(bucket, hosts):
    """A host that is not trusted yet, or never will be, keeps its keys from nobody: the next host that compiles puts its own there."""
    stranger = hosts.start(bucket, PATIENT)
    made = compile_many(stranger.client(), range(6))
    arrived(bucket, [key for key, _ in made.values()])
    strangers = dict(bucket.objects)
    hosts.trusted.write_text("")
    one = hosts.start(bucket, PATIENT)
    assert compile_many(one.client(), range(6)) == made
    assert one.client().stats().compiles == 6 and tier(one, "object").refused == 6
    eventually(lambda: all(bucket.objects[path] != planted for path, planted in strangers.items()))
    other = hosts.start(bucket, PATIENT)
    assert compile_many(other.client(), range(6)) == made
    assert other.client().stats().compiles == 0 and tier(other, "object").hits == 6
    # Two who never trust each other put once for each of them that looks in vain, and stay as they are after that.
    puts, trusted = bucket.asked.count("PUT"), dict(bucket.objects)
    alone = hosts.start(bucket, PATIENT, trusts=False)
    assert compile_many(alone.client(), range(6)) == made
    eventually(lambda: all(bucket.objects[path] != before for path, before in trusted.items()))
    for host in (alone, one, other):
        assert compile_many(host.client(), range(6)) == made
    assert bucket.asked.count("PUT") == puts + 6


def test_a_key_for_the_moment_seals_nothing_for_others(bucket, hosts, tmp_path):
    folder = tmp_path / "keys"
    host = hosts.start(bucket, PATIENT, f"--signing-key={folder}/key.pem")
    assert "event=signing-key" in host.log.read_text()
    made = compile_many(host.client(), range(4))
    other = hosts.start(bucket, PATIENT)
    assert compile_many(other.client(), range(2)) == {n: made[n] for n in range(2)}
    arrived(bucket, [made[n][0] for n in range(2)])
    assert len(bucket.objects) == 2, "the other host's"
    folder.mkdir()
    eventually(lambda: "event=store-opened" in host.log.read_text())
    made = compile_many(host.client(), range(10, 14))
    arrived(bucket, [key for key, _ in made.values()])


def test_a_store_that_dies_costs_nothing_but_speed(bucket, hosts):
    host = hosts.start(bucket)
    compile_many(host.client(), range(4))
    bucket.stop()
    compile_many(host.client(), range(4, 12))
    eventually(lambda: tier(host, "object").state == "disabled")
    eventually(lambda: 'event=object-store state="left-alone"' in host.log.read_text())
    assert host.stop() == 0
    host.start(*host.options)  # without any store
    compile_many(host.client(), range(14))
    bucket.start()
    eventually(lambda: tier(host, "object").state == "ok")
    eventually(lambda: 'event=object-store state="ok"' in host.log.read_text())
    made = compile_many(host.client(), range(14, 16))
    arrived(bucket, [key for key, _ in made.values()])


def test_a_store_that_stands_still_costs_a_moment(bucket, hosts):
    host = hosts.start(bucket)
    usual = compile_times(host, range(2, 9))
    bucket.delay = 30.0
    times = compile_times(host, range(10, 30))
    assert tier(host, "object").state == "disabled"
    assert statistics.median(times) < 1.5 * statistics.median(usual) + 0.1, (times, usual)
    assert timed(host.stop) < 5.0
    bucket.delay = 0.0


def spoil(rng, bucket, pb, key, packed, foreign, others):
    kind, head, frame = stored.spoilt(rng, pb, (key, *packed), foreign, others)
    bucket.objects[bucket.path_of(key)] = head + frame
    return kind


def stored_entries(host, bucket, numbers):
    """Compiles them; number → (key, code), and key → head and frame of what the store has of it."""
    made = {n: (key, code) for n, (key, code, _) in compile_at_once(host, numbers).items()}
    arrived(bucket, [key for key, _ in made.values()])
    entries = {}
    for key, _ in made.values():
        packed = bucket.objects[bucket.path_of(key)]
        size = stored.size_of_head(packed)
        entries[key] = (packed[:size], packed[size:])
    return made, entries


def test_what_is_planted_is_not_served(bucket, hosts):
    """Neither by hosts that trust the maker's key nor by those that have it themselves."""
    seed = int(os.environ.get("KILN_SEED", random.randrange(1 << 30)))
    print("KILN_SEED =", seed)
    rng = random.Random(seed)
    wanted = int(os.environ.get("KILN_PLANTED", "120"))
    numbers = range(min(50, (wanted + 1) // 2))
    stranger = hosts.start(bucket, PATIENT, trusts=False)
    _, foreign = stored_entries(stranger, bucket, numbers)
    stranger.end()
    bucket.objects.clear()
    maker = hosts.start(bucket, PATIENT)
    made, entries = stored_entries(maker, bucket, numbers)
    maker.end()
    planted = 0
    for round_number in itertools.count():
        if planted >= wanted:
            break
        bucket.objects.clear()
        victim = hosts.start(bucket, PATIENT, *([f"--signing-key={maker.state}/signing-key.pem"] if round_number % 2 else []))
        pb = victim.client()._pb
        kinds = {key: spoil(rng, bucket, pb, key, entry, foreign, [e for k, e in entries.items() if k != key]) for key, entry in entries.items()}
        planted += len(entries)
        for number, (key, code, came_from) in compile_at_once(victim, numbers).items():
            assert (key, code) == made[number], kinds[key]
            assert came_from != "CLUSTER", kinds[key]
        found = tier(victim, "object")
        assert found.refused + found.corrupt >= len(entries), kinds
        eventually(lambda: 'event=refused-entry tier="object"' in victim.log.read_text() or 'error="corrupt"' in victim.log.read_text())
        victim.end()


def test_a_wrong_secret_fails_nothing_and_is_not_told(bucket, hosts):
    bucket.give((bucket.KEY_ID, "a-wrong-secret"))
    host = hosts.start(bucket, PATIENT)
    compile_many(host.client(), range(2))
    eventually(lambda: "SignatureDoesNotMatch" in host.log.read_text())
    assert tier(host, "object").state == "disabled" and not bucket.objects
    bucket.give((bucket.KEY_ID, bucket.SECRET))
    eventually(lambda: tier(host, "object").state == "ok")
    made = compile_many(host.client(), range(2, 4))
    arrived(bucket, [key for key, _ in made.values()])
    assert "a-wrong-secret" not in host.log.read_text() and bucket.SECRET not in host.log.read_text()


def make_certificate(folder, name):
    files = (folder / f"{name}.crt", folder / f"{name}.key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
                    "subjectAltName=IP:127.0.0.1", "-keyout", files[1], "-out", files[0]], check=True, capture_output=True)
    return files


def test_a_server_with_a_certificate_and_a_password(tmp_path, hosts):
    store = ObjectStore(tmp_path / "store", make_certificate(tmp_path, "store"))
    try:
        one = hosts.start(store, PATIENT)
        made = compile_many(one.client(), range(3))
        arrived(store, [key for key, _ in made.values()])
        other = hosts.start(store, PATIENT)
        assert compile_many(other.client(), range(3)) == made
        assert other.client().stats().compiles == 0
        # One that trusts somebody else says nothing to it, and works without it.
        asked = len(store.asked)
        others_ca = make_certificate(tmp_path, "other")[0]
        third = hosts.start(store, PATIENT, f"--object-ca={others_ca}")
        assert compile_many(third.client(), range(3)) == made
        assert third.client().stats().compiles == 3 and len(store.asked) - asked <= 8, "its neighbours' looks"
        eventually(lambda: "--object-ca" in third.log.read_text())
        for host in hosts.all:
            assert store.PASSWORD not in host.log.read_text()
    finally:
        store.stop()


def check(*options):
    ran = subprocess.run([BUILD / "bin" / "kilnd", "--check-config", *options], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_settings_that_cannot_work_are_told(tmp_path):
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("id\nkey\n")
    state = f"--state-dir={tmp_path}/state"
    right = [state, "--object-store=s3://kernels", f"--object-credentials={secret}"]
    assert check(*right)[0] == 0
    secret.chmod(0o644)
    assert "chmod 600" in check(*right)[1]
    secret.chmod(0o600)
    secret.write_text("id\n")
    code, said = check(*right)
    assert code == 2 and "S3 needs the key's id and its secret" in said
    for options, words in ((["--object-credentials=x"], "which is not given"),
                           (["--object-store=http://a/b", f"--object-credentials={secret}"], "write https://"),
                           (["--object-store=http://a/b", "--object-ca=x"], "write https://"),
                           (["--object-store=ftp://a"], "does not begin with s3://"),
                           (["--object-store=https://a/b", "--object-region=x"], "belong to an s3:// store"),
                           (["--object-store=https://a/b", "--object-ca=/missing"], "--object-ca: cannot read /missing"),
                           (["--object-store=s3://id:hidden@a"], "--object-credentials")):
        code, said = check(state, *options)
        assert code == 2 and words in said, said
        assert "hidden" not in said.replace("s3://id:hidden@a", "")
