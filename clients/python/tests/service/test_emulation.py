# SPDX-License-Identifier: Apache-2.0
"""Kernels on emulated targets through a daemon: numpy in and out, faults at the program's lines, the command's view of the same."""

import inspect
import json
import pathlib
import subprocess

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from kiln.examples.add import add
from kiln.examples.attention import attention
from kiln.examples.rows import softmax
from kiln.library.programs.gemm import gemm
from needs import BIN, needs_kilnd

pytestmark = needs_kilnd

TARGETS = ("emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100")


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


@pytest.fixture
def default(client, monkeypatch):
    monkeypatch.setattr("kiln.compiler.default_client", lambda: client)
    return client


def normal(*shape, dtype=np.float16):
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


def error(actual, expected):
    return np.linalg.norm(actual.astype(np.float64) - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("target", TARGETS)
def test_products_agree_with_numpy(client, target):
    kernel = kiln.compile(gemm(None, None, None, bias=True, activation="relu"), target=target, client=client)
    a, b, bias = normal(100, 77), normal(77, 130), normal(130)
    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    assert error(kernel(a, b, bias), expected) < 2e-3
    out = np.zeros((100, 130), np.float16)
    assert kernel(a, b, bias, out) is None and error(out, expected) < 2e-3


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n, k, options", [(33, 1000, {}), (5, 3000, {"bias": True, "activation": "silu"}), (None, 72, {"activation": "relu"}),
                                           (64, 8192, {"bias": True}), (0, 512, {})])
def test_one_row_by_rows_of_weights(client, target, n, k, options):
    program = gemm(1, n, k, trans_b=True, **options)
    assert "gemv" in program.name
    n = 130 if n is None else n
    a, b, bias = normal(1, k), normal(n, k), normal(n)
    expected = a.astype(np.float64) @ b.astype(np.float64).T + (bias if options.get("bias") else 0)
    if "activation" in options:
        expected = np.maximum(expected, 0) if options["activation"] == "relu" else expected / (1 + np.exp(-expected))
    kernel = kiln.compile(program, target=target, client=client)
    with kiln.emulation(check=True):
        actual = kernel(a, b, *([bias] if options.get("bias") else []))
    assert actual.shape == (1, n) and (n == 0 or error(actual, expected) < 2e-3)


def test_attention_is_clean_when_checked(client):
    kernel = kiln.compile(attention(1, 2, 128, 64, causal=True), target="emu:sm_90a", client=client)
    q, k, v = (normal(1, 128, 2, 64) for _ in range(3))
    with kiln.emulation(check=True, seed=1):
        checked = kernel(q, k, v)
    assert np.array_equal(checked, kernel(q, k, v))
    scores = np.einsum("bihd,bjhd->bhij", q.astype(np.float64), k.astype(np.float64)) / 8
    scores = np.where(np.tri(128, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    assert error(checked, np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), v.astype(np.float64))) < 2e-3


def test_jit_functions_run_on_the_emulator(default):
    @kiln.jit(target="emu:sm_80")
    def scale(A, factor: float = 2.0):
        M, N = T.const("M, N")
        A: T.Tensor[[M, N], T.float16]
        B = T.empty((M, N), T.float16)
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 64), threads=128) as (bx, by):
            tile = T.alloc_fragment((64, 128), T.float16)
            T.copy(A[by * 64, bx * 128], tile)
            for i, j in T.Parallel(64, 128):
                tile[i, j] *= factor
            T.copy(tile, B[by * 64, bx * 128])
        return B

    a = normal(70, 200)
    assert np.array_equal(scale(a), a * np.float16(2))
    with pytest.raises(ValueError, match="contiguous"):
        scale(a[::2])


@pytest.mark.filterwarnings("ignore:.*there is no GPU to measure on")
def test_autotuned_functions_take_arguments_by_name(default, monkeypatch):
    monkeypatch.setattr("kiln.tuning.targets.device_target", lambda *args: None)

    @kiln.autotune(configs={"block": [128]})
    @kiln.jit(target="emu:sm_80")
    def difference(A, B, factor, block):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B: T.Tensor((N,), T.float32)
        factor: T.float32
        C = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, block), threads=64) as bx:
            for i in T.Parallel(block):
                C[bx * block + i] = (A[bx * block + i] - B[bx * block + i]) * factor
        return C

    a, b = normal(200, dtype=np.float32), np.ones(200, np.float32)
    assert np.array_equal(difference(factor=2.0, B=b, A=a), (a - b) * 2)
    assert np.array_equal(difference(b, factor=0.5, B=a), (b - a) / 2)


def test_bfloat16_travels_as_its_bits(client):
    kernel = kiln.compile(add(64, 64, "bfloat16"), target="emu:sm_90a", client=client)
    ones = np.full((64, 64), 0x3F80, np.uint16)
    result = kernel(ones, ones)
    assert result.dtype == np.uint16 and (result == 0x4000).all()


def test_arguments_that_do_not_fit_are_named(client):
    kernel = kiln.compile(softmax(16, 64), target="emu:sm_80", client=client)
    with pytest.raises(ValueError, match="num_args should be 1"):
        kernel(normal(16, 64), normal(16, 64), normal(16, 64))
    with pytest.raises(ValueError, match=r"x\.shape\[1\]"):
        kernel(normal(16, 32))
    with pytest.raises(ValueError, match="dtype"):
        kernel(normal(16, 64, dtype=np.float64))
    with pytest.raises(ValueError, match="expected to be a tensor"):
        kernel(3)


def test_integers_that_do_not_fit_are_refused(client):
    @T.prim_func
    def program(B: T.Tensor((4,), "uint64"), signed: T.int64, unsigned: T.uint64):
        with T.Kernel(1, threads=32):
            B[0], B[1] = T.cast(signed, "uint64"), unsigned

    kernel, b = kiln.compile(program, target="emu:sm_80", client=client), np.zeros(4, np.uint64)
    kernel(b, -1, (1 << 64) - 1)
    assert list(b[:2]) == [(1 << 64) - 1] * 2
    for arguments, says in (((1 << 63, 0), "signed: 9223372036854775808 does not fit int64"), ((0, 1 << 64), "unsigned: .* does not fit uint64"),
                            ((np.uint64(1 << 63), 0), "does not fit int64"), ((-(1 << 64), 0), "does not fit int64")):
        with pytest.raises(ValueError, match=says):
            kernel(b, *arguments)


def race_in_a_pipeline():
    @T.prim_func
    def program(A: T.Tensor((256, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            total = T.alloc_fragment((64, 64), "float32")
            row = T.alloc_shared((64,), "float32")
            T.clear(total)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k * 64, 0], tile)
                for i, j in T.Parallel(64, 64):
                    if tile[i, j] < 1e6:
                        row[j] = tile[i, j]  # planted
                for i, j in T.Parallel(64, 64):
                    total[i, j] += row[j]
            T.copy(total, C)

    return program.with_outputs(-1)


def one_row_too_far():
    @T.prim_func
    def program(A: T.Tensor((256, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A[0, 0], tile)
            for i, j in T.Parallel(64, 64):
                if A[0, 0] < 1e6:
                    C[i, j] = tile[i + 1, j]  # planted

    return program.with_outputs(-1)


PLANTED = [(race_in_a_pipeline, "race", "row[j] = tile[i, j]"), (one_row_too_far, "out of bounds", "C[i, j] = tile[i + 1, j]")]
BUFFERS = {"race": "row", "out of bounds": "tile"}


def planted_line(build):
    lines, first = inspect.getsourcelines(build)
    return first + next(i for i, text in enumerate(lines) if "# planted" in text)


@pytest.mark.parametrize("build, kind, source", PLANTED)
@pytest.mark.parametrize("target", ("emu:sm_80", "emu:gfx942"))
def test_planted_mistakes_are_raised_with_their_line(client, target, build, kind, source):
    kernel = kiln.compile(build(), target=target, client=client)
    with kiln.emulation(check=True), pytest.raises(kiln.KernelFault) as raised:
        kernel(normal(256, 64, dtype=np.float32))
    fault = raised.value.faults[0]
    assert fault.kind == kind and fault.statement.line == planted_line(build) and fault.statement.file == __file__
    assert source in str(raised.value) and f"{__file__}:{planted_line(build)}" in str(raised.value)
    assert len(fault.block) == 3 and fault.buffer == BUFFERS[kind]
    assert f"in thread {fault.thread} of block (0, 0, 0)" in str(raised.value)
    assert f"{fault.buffer}: element {fault.element}, at byte {fault.address}\n" in str(raised.value)


def local_too_far():
    @T.prim_func
    def program(A: T.Tensor((256, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            few = T.alloc_local((4,), "float32")
            for i in T.serial(8):
                if A[0, 0] < 1e6:
                    few[i * 1000000] = A[i, 0]  # planted
            C[0, 0] = few[0]

    return program.with_outputs(-1)


def blocks_race():
    @T.prim_func
    def program(A: T.Tensor((256, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(4, threads=128) as bx:
            for i, j in T.Parallel(64, 64):
                C[i, j] = A[bx * 64 + i, j]  # planted

    return program.with_outputs(-1)


def test_plain_runs_name_the_statement_too(client):
    kernel = kiln.compile(local_too_far(), target="emu:sm_90a", client=client)
    with kiln.emulation(), pytest.raises(kiln.KernelFault) as raised:
        kernel(normal(256, 64, dtype=np.float32))
    assert f"{__file__}:{planted_line(local_too_far)}" in str(raised.value)
    assert "few: element 1000000, at byte 4000000\n" in str(raised.value)


def test_the_same_seed_gives_the_same_result_where_blocks_race(client):
    kernel, data = kiln.compile(blocks_race(), target="emu:sm_90a", client=client), normal(256, 64, dtype=np.float32)
    for seed in range(4):
        with kiln.emulation(seed=seed):
            first, *others = (np.asarray(kernel(data)) for _ in range(4))
        assert all(np.array_equal(first, other) for other in others)


def test_a_race_of_blocks_names_the_address(client):
    kernel = kiln.compile(blocks_race(), target="emu:sm_90a", client=client)
    with kiln.emulation(check=True), pytest.raises(kiln.KernelFault) as raised:
        kernel(normal(256, 64, dtype=np.float32))
    fault = raised.value.faults[0]
    assert fault.kind == "race" and fault.address == 4 * fault.element
    assert f"C: element {fault.element}, at byte {fault.address}\n" in str(raised.value) and str(raised.value).count("of block (") >= 2


LIMITS = (2, 8, 32)  # in seconds, until the machine has come as far as to the race


def race_then_spin():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((1,), "int32")
            for i, j in T.Parallel(64, 64):
                if A[i, j] < 1e6:
                    s[0] = T.cast(A[i, j], "int32") | 1
            while s[0] != 0:  # planted
                C[1, 0] = 1.0

    return program.with_outputs(-1)


def test_a_timeout_tells_what_was_found_and_where_the_threads_are(client, tmp_path):
    line = planted_line(race_then_spin)
    kernel = kiln.compile(race_then_spin(), target="emu:sm_90a", client=client)
    for limit in LIMITS:
        with kiln.emulation(check=True, timeout=limit), pytest.raises(kiln.KernelFault) as raised:
            kernel(np.arange(4096, dtype=np.float32).reshape(64, 64))
        text, (timeout, *found) = str(raised.value), raised.value.faults
        assert timeout.kind == "timeout" and f"ended after {limit} s" in text and timeout.statement.line == line
        if found:
            break
    assert f" runs ({pathlib.Path(__file__).name}:{line})" in text and "race" in {fault.kind for fault in found}
    program = tmp_path / "program.pb"
    program.write_bytes(race_then_spin().serialized)
    for limit in LIMITS:
        status, out, _ = kiln_command(client, "run", program, "-t", "emu:gfx942", "--check", "--run-limit", limit)
        faults = json.loads(out)["faults"]
        assert status == 1 and faults[0]["kind"] == "timeout" and faults[0]["statement"]["line"] == line
        if len(faults) > 1:
            break
    assert faults[-1]["kind"] == "race"


def kiln_command(client, *words):
    done = subprocess.run([BIN / "kiln", "--address", client.address, *map(str, words)], capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("build, kind, source", PLANTED)
def test_the_command_reports_planted_mistakes(client, tmp_path, build, kind, source):
    program = tmp_path / "program.pb"
    program.write_bytes(build().serialized)
    status, out, _ = kiln_command(client, "run", program, "-t", "emu:sm_80", "--check")
    report = json.loads(out)
    assert status == 1 and report["faults"][0]["kind"] == kind and report["faults"][0]["buffer"] == BUFFERS[kind]
    assert report["faults"][0]["statement"]["line"] == planted_line(build) and source in report["faults"][0]["statement"]["source"]
    status, _, err = kiln_command(client, "--text", "run", program, "-t", "emu:sm_80", "--check")
    assert status == 1 and f"{__file__}:{planted_line(build)}" in err and source in err and "in thread " in err
    assert f"{BUFFERS[kind]}: element {report['faults'][0]['element']}, at byte {report['faults'][0]['address']}\n" in err


def test_the_command_runs_and_lists_devices(client, tmp_path):
    program = tmp_path / "program.pb"
    program.write_bytes(gemm(None, None, None).serialized)
    words = ("run", program, "--device", "emu:gfx942", "--dim", "M=65", "--dim", "N=40", "--dim", "K=33", "--check", "--repeat", 2)
    status, out, err = kiln_command(client, *words)
    assert status == 0, err + out
    report = json.loads(out)
    assert report["finished"] and not report["faults"] and report["target"] == "emu:gfx942" and report["microseconds"] > 0
    assert [t["name"] for t in report["tensors"]] == ["C"] and report["tensors"][0]["not_finite"] == 0
    status, out, _ = kiln_command(client, "run", program, "-t", "emu:sm_80")
    assert status == 1 and "--dim" in json.loads(out)["message"]
    _, out, _ = kiln_command(client, "devices")
    assert {d["name"] for d in json.loads(out)["daemon"]} >= set(TARGETS)
    _, out, _ = kiln_command(client, "stats")
    assert json.loads(out)["devices"][0]["runs"] > 0


def halves(m, n):
    """x and −x into two tensors whose rows lie apart."""
    a_row, b_row = T.dynamic("a_row, b_row")

    @T.prim_func
    def halves(X: T.Tensor((m, n), "float32"), A: T.StridedTensor((m, n), (a_row, 1), "float32"), B: T.StridedTensor((m, n), (b_row, 1), "float32")):
        with T.Kernel(1, threads=64):
            for i, j in T.Parallel(m, n):
                A[i, j] = X[i, j]
                B[i, j] = -X[i, j]

    return halves


def test_written_tensors_overlap_nothing(client):
    kernel = kiln.compile(halves(4, 8), target="emu:sm_80", client=client)
    x, whole = normal(4, 8, dtype=np.float32), np.zeros((4, 20), np.float32)
    kernel(x, whole[:, :8], whole[:, 8:16])
    assert (whole[:, :8] == x).all() and (whole[:, 8:16] == -x).all() and not whole[:, 16:].any(), "side by side in one array"
    with pytest.raises(ValueError, match="A and B overlap, and the kernel writes B; pass a copy"):
        kernel(x, whole[:, :8], whole[:, 7:15])
    with pytest.raises(ValueError, match="X and A overlap"):
        kernel(x, x, whole[:, :8])


def shifted(n):
    """Y[i] = 2 · X[i] + 1, one element after the other; the two may overlap."""

    @T.prim_func
    def shifted(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32"), Z: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=64):
            T.annotate_restrict_buffers(X, Y)
            for i in T.serial(n):
                Y[i] = X[i] * 2 + Z[i]

    return shifted


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shift", [64, 4, 1, 0, -3])
def test_tensors_that_may_overlap(client, target, shift):
    """With any distance: where it is less than tensors are aligned to, the program is compiled once more."""
    kernel, memory, z = kiln.compile(shifted(64), target=target, client=client), normal(128, dtype=np.float32), normal(64, dtype=np.float32)
    first, second = (0, shift) if shift >= 0 else (-shift, 0)
    expected = memory.copy()
    for i in range(64):
        expected[second + i] = expected[first + i] * np.float32(2) + z[i]
    with kiln.emulation(check=True):
        assert kernel(memory[first : first + 64], memory[second : second + 64], z) is None
    np.testing.assert_allclose(memory, expected, rtol=1e-6)


def test_those_that_may_overlap_overlap_no_others(client):
    kernel, memory = kiln.compile(shifted(64), target="emu:sm_80", client=client), np.zeros(128, np.float32)
    with pytest.raises(ValueError, match="Y and Z overlap, and the kernel writes Y; .*T.annotate_restrict_buffers"):
        kernel(memory[64:], memory[:64], memory[32:96])
    kernel(memory[64:], memory[:64], memory[64:])  # X and Z are read alone


def test_the_command_gives_tensors_the_same_memory(client, tmp_path):
    program = tmp_path / "program.pb"
    program.write_bytes(shifted(64).serialized)
    words = ("run", program, "-t", "emu:sm_90a", "--check")
    status, out, err = kiln_command(client, *words, "--share", "Y=X+16")
    assert status == 0, out + err
    assert json.loads(out)["tensors"][0]["largest"] > 8, "each sixteenth element is twice the one before, and more"
    status, out, _ = kiln_command(client, *words)
    assert status == 0 and json.loads(out)["tensors"][0]["largest"] <= 6
    for share, says in (("Z=Y", "Z overlap, and the kernel writes Y"), ("Y=Q", "has no tensor Q"), ("Y=Y", "its own memory anyway"),
                        ("Y=X+", "is not NAME=OTHER"),
                        ("Y=X-1", "has no tensor X-1")):
        status, out, _ = kiln_command(client, *words, "--share", share)
        assert status == 1 and says in json.loads(out)["message"], out
    status, out, _ = kiln_command(client, *words, "--share", "Y=X", "--share", "Z=Y")
    assert status == 1 and "lies in another tensor's memory itself" in json.loads(out)["message"]


def test_what_is_assumed_of_the_arguments_is_checked(client):
    N = T.dynamic("N")

    @T.prim_func
    def quarters(A: T.Tensor((N,), "float32"), n: T.int32):
        with T.Kernel(1, threads=64):
            T.assume(N % 4 == 0 and n < N)
            for i in T.serial(N):
                if i < n:
                    T.assume(n > 100)  # not unconditional: the host does not ask
                A[i] = 1.0

    for target in ("emu:sm_80", "emu:gfx942"):
        kernel, array = kiln.compile(quarters, target=target, client=client), np.zeros(8, np.float32)
        kernel(array, 0)
        assert (array == 1).all()
        with pytest.raises(ValueError, match="Assume: N % 4 == 0 does not hold: 3 and 0"):
            kernel(np.zeros(7, np.float32), 0)
        with pytest.raises(ValueError, match="Assume: n < N does not hold: 8 and 8"):
            kernel(array, 8)


def test_tensors_without_elements(client):
    kernel = kiln.compile(gemm(None, None, None), target="emu:sm_80", client=client)
    assert kernel(normal(0, 8), normal(8, 4)).shape == (0, 4)
    out = np.zeros((0, 4), np.float16)
    assert kernel(normal(0, 8), normal(8, 4), out) is None


def test_the_command_times_programs_in_turns(client, tmp_path):
    small, large = tmp_path / "small.pb", tmp_path / "large.pb"
    small.write_bytes(gemm(32, 32, 32).serialized)
    large.write_bytes(gemm(None, None, None).serialized)
    dims = [word for dim in ("M", "N", "K") for word in ("--dim", f"{dim}=64")]
    words = ("bench", small, large, "--device", "emu:sm_80", "--rounds", 2, "--repeat", 3, *dims, "--flop", 2 * 64**3)
    status, out, err = kiln_command(client, *words)
    assert status == 0, out + err
    report = json.loads(out)
    assert report["target"] == "emu:sm_80" and [p["file"] for p in report["programs"]] == [str(small), str(large)]
    for program, count in zip(report["programs"], (3 * 32 * 32 * 2, 3 * 64 * 64 * 2)):
        assert program["launches"] == 6 and 0 < program["best"] <= program["microseconds"]
        assert program["gigabytes_per_second"] == pytest.approx(count / program["microseconds"] * 1e-3, rel=1e-3)
        assert program["teraflops"] == pytest.approx(2 * 64**3 / program["microseconds"] * 1e-6, rel=1e-3)
    status, out, err = kiln_command(client, "--text", *words)
    assert status == 0, err
    assert "6 launches each" in out and "1.000" in out
    status, _, err = kiln_command(client, "--text", "bench", small, "--device", "cuda:99")
    assert status == 1 and "has no device cuda:99" in err and "emu:sm_90a" in err
