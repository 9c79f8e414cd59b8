# SPDX-License-Identifier: Apache-2.0
"""Tuning by a real daemon, on its emulator: Client.tune, and kiln.autotune on it."""

import dataclasses
import os
import pathlib
import threading
import time
import warnings

import numpy
import pytest

import kiln
import kiln.language as T
from kiln import measured, remote
from kiln.client import Client
from kiln.language.dtypes import as_dtype

BIN = pathlib.Path(os.environ.get("KILN_BUILD", "build/release")).resolve() / "bin"
MISSING = [name for name in ("kilnd", "kiln-worker") if not os.access(BIN / name, os.X_OK)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"SKIPPED, NOTHING WAS MEASURED: {', '.join(MISSING)} not in {BIN}; set KILN_BUILD")

DEVICE = "emu:sm_90a"


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


@pytest.fixture
def default(client, monkeypatch):
    monkeypatch.setattr(kiln.compiler, "default_client", lambda: client)
    return client


def scale(n, block, factor=2.0):
    @T.prim_func
    def scale(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=128) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = X[bx * block + i] * factor

    return scale.with_outputs(-1)


def outcomes(client, record):
    return [client._pb.enum_name("TuneOutcome", said.outcome).removeprefix("TUNE_") for said in record.measurements]


def test_a_record_has_all_measurements_and_is_known_afterwards(client):
    programs = [scale(4096, block) for block in (128, 512, 2048)]
    how = dict(labels=["a", "b", "c"], measure_on_emulator=True)
    arguments = [kiln.Recipe("float32", (4096,))]
    assert client.tune(programs, DEVICE, arguments, known_only=True, **how) is None
    told = []
    found = client.tune(programs, DEVICE, arguments, on_progress=told.append, **how)
    assert [said.label for said in found.record.measurements] == ["a", "b", "c"]
    assert all(len(said.microseconds) >= 3 and said.median > 0 for said in found.record.measurements)
    assert found.best == found.record.winner and 1 <= found.record.winner <= 3
    assert all(progress.candidates == 3 and not progress.HasField("record") for progress in told)
    again = client.tune(programs, DEVICE, arguments, known_only=True, **how)
    assert again.record == found.record and client._pb.enum_name("Origin", again.origin) == "MEMORY"
    fresh = client.tune(programs, DEVICE, arguments, refresh=True, **how)
    assert fresh.record != found.record and client._pb.enum_name("Origin", fresh.origin) == "COMPILED"


def space_of(client, mode, blocks=(128, 512, 2048), **more):
    programs = [scale(8192, block) for block in blocks]
    return client.compile_space(programs, DEVICE, DEVICE, [kiln.Recipe("float32", (8192,))], mode=mode, measure_on_emulator=True, **more)


def test_a_space_is_compiled_as_its_mode_says(client):
    off = space_of(client, "off")
    assert off.index == 0 and list(off.tuned.choices) == [1, 2, 3] and off.reply.artifact.target == DEVICE
    model = space_of(client, "model")
    assert model.index == model.tuned.choices[0] - 1 and not model.tuned.HasField("record")
    background = space_of(client, "background")
    assert background.index == background.tuned.choices[0] - 1 and background.tuned.watch
    record = client.watch(background.tuned.watch).record
    told = []
    wait = space_of(client, "wait", on_progress=told.append)
    assert wait.index == record.winner - 1 and wait.tuned.record == record
    assert wait.reply.key == record.measurements[wait.index].key
    assert client._pb.enum_name("Origin", wait.reply.origin) == "MEMORY", "it is measured, and so compiled"


def test_a_space_says_how_far_it_is(client):
    told = []
    found = space_of(client, "wait", blocks=(256, 1024), on_progress=told.append)
    assert found.tuned.HasField("record") and told and all(progress.candidates == 2 for progress in told)


def test_a_space_passes_over_what_does_not_compile(client):
    programs = ["kiln 1\nfunc @none(", scale(8192, 64)]
    found = client.compile_space(programs, DEVICE, DEVICE, [kiln.Recipe("float32", (8192,))], mode="off", measure_on_emulator=True)
    assert found.index == 1


def test_a_space_of_options_has_its_program_once(client):
    requests = [client.request(scale(8192, 256), DEVICE, kiln.CompileOptions(fast_math=fast)) for fast in (True, False)]
    request = measured.space(measured.start("off", None), requests, ())
    assert request.ByteSize() < 1.2 * len(requests[0].module)
    found = client.compile_space(requests, DEVICE, DEVICE, [kiln.Recipe("float32", (8192,))], mode="off", measure_on_emulator=True)
    assert found.index == 0


def test_what_a_space_cannot_have_is_refused_by_name(client):
    with pytest.raises(ValueError, match="mode is one of wait, background, model, off, not 'guess'"):
        space_of(client, "guess")
    data = remote.host_tensor(numpy.zeros(8192, "float32"), as_dtype("float32"), "X")
    with pytest.raises(ValueError, match="a space takes recipes"):
        client.compile_space([scale(8192, 128)], DEVICE, DEVICE, [data], measure_on_emulator=True)


def test_what_wins_agrees_with_the_named_reference(client):
    programs = [scale(4096, 2048, 3.0), scale(4096, 64)]
    found = client.tune(programs, DEVICE, [kiln.Recipe("float32", (4096,))], reference=1, measure_on_emulator=True).record
    assert found.winner == 2 and found.reference == 2
    faster = found.measurements[0].median < found.measurements[1].median
    assert not faster or outcomes(client, found)[0] == "WRONG"


def test_a_budget_of_candidates_takes_what_the_planner_expects_most_of(client):
    programs = [scale(8192, block) for block in (8192, 256, 128)]
    found = client.tune(programs, DEVICE, [kiln.Recipe("float32", (8192,))], budget_candidates=2, measure_on_emulator=True)
    said = found.record.measurements
    assert all(one.estimate.microseconds > 2 and one.estimate.kernels[0].units for one in said)
    assert said[0].estimate.microseconds > max(one.estimate.microseconds for one in said[1:])
    assert outcomes(client, found.record)[0] == "NOT_REACHED" and said[0].problem == ""
    assert found.record.budget_candidates == 2 and found.record.winner > 1


def test_autotune_passes_its_budget_of_candidates_on(default, recwarn):
    @kiln.autotune(configs={"block": [8192, 256, 128]}, measure_on_emulator=True, budget_candidates=1)
    @kiln.jit(target=DEVICE, out_idx=-1)
    def make(n, block):
        return scale(n, block)

    best = make.tune(8192)
    assert best.config["block"] != 8192
    assert not [w for w in recwarn if "8192" in str(w.message)], "what was left out is no problem"


def test_who_does_not_wait_gets_choices_and_watches(client):
    programs = [scale(16384, block) for block in (16384, 256, 128)]
    arguments = [kiln.Recipe("float32", (16384,))]
    off = client.tune(programs, DEVICE, arguments, mode="off")
    assert list(off.choices) == [1, 2, 3] and not off.HasField("record")
    model = client.tune(programs, DEVICE, arguments, mode="model")
    assert sorted(model.choices) == [1, 2, 3] and model.choices[-1] == 1 and not model.watch
    background = client.tune(programs, DEVICE, arguments, mode="background", measure_on_emulator=True)
    assert list(background.choices) == list(model.choices) and len(background.watch) == 32
    found = client.watch(background.watch)
    assert found.record.key == background.watch and len(found.record.measurements) == 3
    assert client.tune(programs, DEVICE, arguments, mode="model").record.winner == found.record.winner
    assert client.watch(b"\0" * 32) is None
    with pytest.raises(ValueError, match="mode is one of wait, background, model, off, not 'sometimes'"):
        client.tune(programs, DEVICE, arguments, mode="sometimes")


def swapping(tune, **more):
    """A function whose planner's choice is not the first configuration."""

    @kiln.autotune(configs={"block": [32768, 256, 64]}, tune=tune, **more)
    @kiln.jit(target=DEVICE, out_idx=-1)
    def make(n, block):
        return scale(n, block)

    return make


def test_off_takes_the_first_and_model_the_planners(default):
    values = numpy.arange(32768, dtype="float32")
    off = swapping("off")(32768)
    assert off.config == {"block": 32768} and off.latency is None
    model = swapping("model")(32768)
    assert model.config != {"block": 32768} and model.latency is None
    assert (model(values) == 2 * values).all()
    with pytest.raises(ValueError, match="tune is one of"):
        swapping("later")


def test_the_model_answers_where_the_daemon_has_no_such_gpu(default, monkeypatch):
    monkeypatch.setattr(kiln.tuning.targets, "device_target", lambda *args: "cuda:sm_90a")

    @kiln.autotune(configs={"block": [32768, 256]}, tune="model")
    @kiln.jit(target="cuda:sm_90a", out_idx=-1)
    def make(n, block):
        return scale(n, block)

    assert make.tune(32768).config == {"block": 256}


def test_background_swaps_at_the_first_call_after_the_tuning(default, monkeypatch):
    make = swapping("background", measure_on_emulator=True)
    watching, may_go_on = [], threading.Event()
    watch = default.watch

    def late(key, **more):
        watching.append(key)
        assert may_go_on.wait(60)
        return watch(key, **more)

    monkeypatch.setattr(default, "watch", late)
    values = numpy.arange(49152, dtype="float32")
    first = make(49152)
    assert first.latency is None and (first(values) == 2 * values).all()
    assert make(49152) is first and len(watching) == 1
    may_go_on.set()
    for _ in range(600):
        swapped = make(49152)
        if swapped is not first:
            break
        time.sleep(0.1)
    assert swapped is not first and swapped.latency > 0 and (swapped(values) == 2 * values).all()
    assert make(49152) is swapped and len(watching) == 1


def test_a_tuning_in_the_background_that_fails_leaves_the_choice(default, monkeypatch, caplog):
    make = swapping("background", measure_on_emulator=True, budget=0.5)
    monkeypatch.setattr(default, "watch", lambda key: (_ for _ in ()).throw(kiln.KilnError("none runs")))
    first = make(65536)
    for _ in range(600):
        if not make._watching:
            break
        time.sleep(0.1)
    assert make(65536) is first and "was not tuned in the background: none runs" in caplog.text


def test_what_the_daemon_cannot_keep_is_not_tuned_for_ever(default, monkeypatch):
    """It answers with choices and a key each time, though it has told a record."""
    make = swapping("model")
    run, told = kiln.tuning.Tuner.run, []
    monkeypatch.setattr(kiln.tuning.Tuner, "run", lambda *given: dataclasses.replace(run(*given), watch=b"key"))
    monkeypatch.setattr(default, "watch", lambda key: told.append(key) or "a record")
    for _ in range(4):
        make(40960)
        for _ in range(600):
            if not make._watching:
                break
            time.sleep(0.1)
    assert told == [b"key"]


def test_without_a_budget_the_daemons_time_counts_and_not_the_clients(address, monkeypatch):
    monkeypatch.setattr(kiln.client, "_TRANSFER", 0.0)
    with Client(address, timeout=0.05) as hasty:
        found = hasty.tune([scale(4096, 256), scale(4096, 1024)], DEVICE, [kiln.Recipe("float32", (4096,))], measure_on_emulator=True)
        assert found.record.seconds > 0.05 and found.record.winner


def test_a_check_that_says_little_is_told(client):
    zeros = [kiln.Recipe("float32", (4096,), None, "zeros")]
    found = client.tune([scale(4096, 64), scale(4096, 512)], DEVICE, zeros, measure_on_emulator=True).record
    assert found.caution == "in Y of the reference every element that is a number is 0"
    assert not client.tune([scale(4096, 64), scale(4096, 512)], DEVICE, [kiln.Recipe("float32", (4096,))], measure_on_emulator=True).record.caution


def test_own_data_travel_and_name_the_record(client):
    programs = [scale(256, 64), scale(256, 128)]
    array = numpy.arange(256, dtype="float32")

    def ask(values, **how):
        return client.tune(programs, DEVICE, [remote.host_tensor(values, as_dtype("float32"), "X")], measure_on_emulator=True, **how)

    assert ask(array).record.winner
    assert ask(array.copy(), known_only=True) is not None
    assert ask(array + 1, known_only=True) is None


def test_the_emulators_time_says_nothing_unless_it_is_asked(client):
    with pytest.raises(kiln.CompileError, match="emulates a GPU: which candidate is emulated fastest says nothing of the GPU"):
        client.tune([scale(64, 64)], DEVICE, [kiln.Recipe("float32", (64,))])


def test_recipes_are_described_as_they_are():
    (random, strided, numbers, whole, real), payloads = measured.describe(
        [kiln.Recipe("bfloat16", (3, 5)), kiln.Recipe("float16", (2, 3), (8, 1), "zeros"), kiln.Recipe("int32", (4,), None, "range", 0, 9), 7, 1.5])
    assert not payloads and random.tensor.bytes == 30 and list(random.tensor.shape) == [3, 5]
    assert strided.tensor.bytes == 2 * (8 + 2 + 1) and (numbers.low, numbers.high) == (0, 9)
    assert whole.integer == 7 and real.real == 1.5
    with pytest.raises(ValueError, match="a recipe's fill"):
        measured.describe([kiln.Recipe("float32", (1,), None, "ones")])


@kiln.autotune(configs={"block": [64, 2048, 1 << 22]}, measure_on_emulator=True)
@kiln.jit(out_idx=-1, target=DEVICE)
def tuned(n, block=64):
    @T.prim_func
    def scale(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=128) as bx:
            tile = T.alloc_shared((block,), "float32")
            T.copy(X[bx * block], tile)
            T.copy(tile, Y[bx * block])

    return scale


def test_autotune_measures_in_the_daemon_and_remembers(default):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kernel = tuned(4096)
    assert kernel.config["block"] in (64, 2048) and kernel.latency > 0
    assert any("with {'block': 4194304}" in str(warning.message) for warning in said), "the reason of the one that is too large"
    values = numpy.arange(4096, dtype="float32")
    assert (kernel(values) == values).all()
    busy = [device.busy_seconds for device in default.stats().devices]
    tuned._tuner_cache.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = tuned(4096)
    assert again.config == kernel.config and again.latency == kernel.latency
    assert [device.busy_seconds for device in default.stats().devices] == busy, "nothing is measured"


@kiln.autotune(configs={"block": [64, 128]}, measure_on_emulator=True)
@kiln.jit(target=DEVICE)
def gathered(X, I, block=64):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    I: T.Tensor((N,), "int32")
    Y = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, block), threads=64) as bx:
        for i in T.Parallel(block):
            Y[bx * block + i] = X[I[bx * block + i]]
    return Y


def test_autotune_sends_the_callers_own_indices(default):
    values, indices = numpy.arange(256, dtype="float32"), numpy.arange(255, -1, -1, dtype="int32")
    assert (gathered(values, indices) == values[::-1]).all()
    arguments = measured.given([values, indices], gathered.get_tir(values, indices), exactly=False)
    assert isinstance(arguments[0], kiln.Recipe) and isinstance(arguments[1], remote.HostTensor)
    assert all(isinstance(a, remote.HostTensor) for a in measured.given([values, indices], gathered.get_tir(values, indices), exactly=True))


def test_ref_prog_decides_where_the_first_configuration_is_wrong(default, monkeypatch):
    @kiln.autotune(configs={"factor": [3.0, 2.0]}, measure_on_emulator=True, ref_prog=lambda X: X * 2)
    @kiln.jit(out_idx=-1, target=DEVICE)
    def scaled(n, factor=1.0):
        return scale(n, 512, factor)

    values = numpy.arange(4096, dtype="float32")
    monkeypatch.setattr(kiln.tuning.Tuner, "_tensors", lambda *_: [values])
    monkeypatch.setattr(kiln.tuning.Tuner, "_reference_latency", lambda *_: None)

    def agrees(ours, theirs, *_):
        assert (ours == theirs).all()

    monkeypatch.setattr(kiln.tuning, "assert_close", agrees)
    with pytest.warns(UserWarning):
        kernel = scaled(4096)
    assert kernel.config == {"factor": 2.0} and (kernel(values) == 2 * values).all()


def test_where_the_daemon_has_no_such_gpu_this_process_measures_and_says_so_once(default, monkeypatch, caplog):
    monkeypatch.setattr(kiln.tuning.targets, "device_target", lambda *args: "cuda:sm_90a")
    monkeypatch.setattr(kiln.tuning, "do_bench", lambda call, *args, **kwargs: 1.0)
    monkeypatch.setattr(measured, "_said", False)

    @kiln.autotune(configs={"block": [64, 128]})
    @kiln.jit(out_idx=-1, target="cuda:sm_90a")
    def copied(n, block=64):
        return scale(n, block)

    with kiln.tuning.set_autotune_inputs([]):
        assert copied(256).latency == 1.0 and copied(512).latency == 1.0
    lines = [record.message for record in caplog.records if "measured in this process" in record.message]
    assert len(lines) == 1 and "has no " in lines[0]


def test_what_the_daemon_cannot_measure_is_measured_here():
    """By what it says; what a program did wrong is the caller's to see."""
    large = kiln.CompileError("INVALID_ARGUMENT",
                              "none of the 2 candidates runs; the tensors have more than the 268435456 bytes that a run may have (--run-data)")
    assert measured.unavailable(large) and measured.unavailable(kiln.CompileError("UNIMPLEMENTED", "no such method"))
    assert not measured.unavailable(kiln.CompileError("INVALID_ARGUMENT", "none of the 2 candidates runs; candidate 1: a fault"))
