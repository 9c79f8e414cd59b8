# SPDX-License-Identifier: Apache-2.0
"""ptxas takes what Kiln writes: every example program for the architectures that are served most, one of each kind for all others;
the programs of the GPU benchmark without a spill.

PTXAS names the assembler; else the one on PATH or in /usr/local/cuda/bin is used. Without one, nothing is tested, and said so."""

import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys

import pytest

from daemon import Daemon, socket_folder

ALL_PROGRAMS_FOR = ("sm_80", "sm_90a")
ONE_OF_EACH = ("gemm_f16_bias_relu", "gemm_s8", "attention_f16_causal_odd", "rms_norm_f16", "softmax_online", "add_symbolic")
# Arithmetic that starts with an architecture: below it, a refusal that names the type is the right answer.
SINCE = {"e4m3": 89, "e5m2": 89, "bf16": 80, "tf32": 80}


def find_ptxas():
    named = os.environ.get("PTXAS")
    return named or shutil.which("ptxas", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")


PTXAS = find_ptxas()  # may be a script, which kilnd passes over where it looks for itself
KILNDS_PTXAS = os.environ.get("PTXAS", "auto")
pytestmark = pytest.mark.skipif(PTXAS is None, reason="no ptxas on this machine: NOTHING checks here that the PTX is accepted; set PTXAS")


@pytest.fixture(scope="module")
def assembling(tmp_path_factory):
    """Of a kilnd that makes cubins."""
    with socket_folder() as sockets:
        daemon = Daemon(tmp_path_factory.mktemp("k") / "state", sockets)
        daemon.start(ptxas=KILNDS_PTXAS)
        yield daemon.client()
        daemon.end()


def number(arch):
    return int("".join(c for c in arch if c.isdigit()))


def may_be_refused(name, arch):
    return any(kind in name and number(arch) < since for kind, since in SINCE.items()) or "fnuz" in name


def assemble(ptx, arch, folder):
    source = folder / "kernel.ptx"
    source.write_bytes(ptx)
    command = [PTXAS, f"-arch={arch}", "-v", str(source), "-o", str(folder / "kernel.cubin")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def refused_by_ptxas(client, name, arch, folder):
    """What is wrong, or None."""
    from kiln.errors import CompileError
    from kiln.examples.programs import PROGRAMS

    try:
        reply = client.compile(PROGRAMS[name](), f"cuda:{arch}")
    except CompileError as problem:
        return None if may_be_refused(name, arch) else f"{name}: not compiled: {problem}"
    done = assemble(reply.artifact.code, arch, folder)
    if done.returncode != 0:
        return f"{name}: {done.stdout[-500:]}{done.stderr[-500:]}"
    # C75xx: ptxas serialises wgmma, which costs most of its speed.
    return f"{name}: {done.stderr}" if "(C75" in done.stderr else None


def architectures(client):
    return [t.removeprefix("cuda:") for t in client.capabilities().targets if t.startswith("cuda:")]


def complaint(client, name, arch):
    """What is wrong with the cubin that kilnd makes, or None: where ptxas serialises wgmma, and where its code was wrong, kilnd warns."""
    from kiln.errors import CompileError
    from kiln.examples.programs import PROGRAMS

    try:
        reply = client.compile(PROGRAMS[name](), f"cuda:{arch}")
    except CompileError as problem:
        return None if may_be_refused(name, arch) else f"{name}: {problem}"
    assert reply.artifact.cubin, f"{name}: no cubin"
    said = [d.message for d in reply.diagnostics if "(C75" in d.message or "code was wrong" in d.message]
    return f"{arch} {name}: {said}" if said else None


def test_every_program(assembling):
    from kiln.examples.programs import PROGRAMS

    wrong = [complaint(assembling, name, arch) for arch in ALL_PROGRAMS_FOR for name in PROGRAMS]
    assert [w for w in wrong if w] == []


def test_every_architecture(served, tmp_path):
    rest = [arch for arch in architectures(served) if arch not in ALL_PROGRAMS_FOR]
    assert rest, "kilnd tells of no other CUDA target"
    known = subprocess.run([PTXAS, "--help"], capture_output=True, text=True, check=True).stdout
    unknown = [arch for arch in rest if f"'{arch}'" not in known]
    print("not known to this ptxas:", unknown)
    wrong = [refused_by_ptxas(served, name, arch, tmp_path) for arch in rest if arch not in unknown for name in ONE_OF_EACH]
    assert [w for w in wrong if w] == []


def test_streams_do_not_spill(served, tmp_path):
    """Blocks that share tiles: parts of a sum come into registers that hold another."""
    from kiln import CompileOptions
    from kiln.library.programs.gemm import gemm

    wrong = []
    for tile in ({"block_m": 128, "block_n": 256, "stages": 4}, {"block_m": 152, "block_n": 256, "stages": 3},
                 {"block_m": 128, "block_n": 128, "stages": 6}):
        program = gemm(2048, 7168, 7168, "bfloat16", trans_b=True, block_k=64, threads=256, **tile)
        reply = served.compile(program, "cuda:sm_90a", options=CompileOptions(stream_k="STREAM_K_ALWAYS"))
        assert any(getattr(decision, "pass") == "stream_k" for decision in reply.artifact.report.decisions)
        done = assemble(reply.artifact.code, "sm_90a", tmp_path)
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", done.stderr)]
        if done.returncode != 0 or not spills or any(spills) or "(C75" in done.stderr:
            wrong.append(f"{tile}: spills {spills}: {done.stderr[-400:]}")
    assert wrong == []


def sparse_product(dtype, accum, meta, kept, transposed):
    import kiln.language as T
    from kiln.language.sparse import elements_of

    each = elements_of(T.dtype(dtype), T.dtype(meta))
    b_tile, b_tensor = ((128, kept * 2), (512, 4096)) if transposed else ((kept * 2, 128), (4096, 512))

    @T.prim_func
    def program(A: T.Tensor((512, 2048), dtype), E: T.Tensor((512, 4096 // each), meta), B: T.Tensor(b_tensor, dtype),
                C: T.Tensor((512, 512), accum)):
        with T.Kernel(4, 4, threads=256) as (bx, by):
            a, e, b = T.alloc_shared((128, kept), dtype), T.alloc_shared((128, kept * 2 // each), meta), T.alloc_shared(b_tile, dtype)
            c = T.alloc_fragment((128, 128), accum)
            T.clear(c)
            for k in T.Pipelined(2048 // kept, num_stages=3):
                T.copy(A[by * 128, k * kept], a)
                T.copy(E[by * 128, k * kept * 2 // each], e)
                T.copy(B[bx * 128, k * kept * 2] if transposed else B[k * kept * 2, bx * 128], b)
                T.gemm_sp(a, e, b, c, transpose_B=transposed)
            T.copy(c, C[by * 128, bx * 128])

    return program


@pytest.mark.parametrize("arch, instruction", [("sm_80", "mma.sp.sync"), ("sm_90a", "wgmma.mma_async.sp"), ("sm_120a", "mma.sp::ordered_metadata")])
@pytest.mark.parametrize("dtype, accum, meta, kept, transposed", [
    ("float16", "float32", "int16", 32, False), ("bfloat16", "float32", "int8", 32, True), ("tfloat32", "float32", "int16", 16, True),
    ("int8", "int32", "int32", 64, True)])
def test_sparse_products(served, tmp_path, arch, instruction, dtype, accum, meta, kept, transposed):
    code = served.compile(sparse_product(dtype, accum, meta, kept, transposed), f"cuda:{arch}").artifact.code
    done = assemble(code, arch, tmp_path)
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", done.stderr)]
    assert done.returncode == 0 and spills == [0] and "(C75" not in done.stderr, done.stderr
    assert instruction.encode() in code and b"mma.sync" not in code and b"wgmma.mma_async.sync" not in code


def conditional_stores(count):
    """A text of so many branches, which no program of ours has."""
    lines = (f"    if %A[%t + {i}] > 0.5 {{ store %C[%t + {3 * i}] = %A[%t + {i}] * {i}.5 }}" for i in range(count))
    head = "kiln 1\nfunc @f(%A: global f32[65536], %C: global f32[65536]) thread(%t) {\n  kernel @k grid(1) threads 128 blocks(%b) {\n"
    return head + "\n".join(lines) + "\n  }\n}\n"


def test_long_kernels_take_time_in_proportion(tmp_path):
    """What LLVM does not optimize because it is long, ptxas does not either, and it gets functions: its optimizer would take two minutes
    for the longer one, and without functions its time and memory would grow with the square of the branches.

    Other work on the machine makes a compile longer, never shorter: one of three measurements must hold."""
    from kiln import CompileOptions

    with socket_folder() as sockets:
        daemon = Daemon(tmp_path / "state", sockets)
        daemon.start(ptxas=KILNDS_PTXAS)
        measured = []
        for count in (3510, 3511, 3512):  # each program is new to the store
            seconds = []
            for length in (count, 4 * count):
                reply = daemon.client().compile(conditional_stores(length), "cuda:sm_90a", CompileOptions(max_code=2_000_000), timeout=300.0)
                assert reply.artifact.cubin and reply.artifact.code.count(b"\n.func") > length // 256
                assert [kernel.entry for kernel in reply.artifact.report.kernels] == ["kernel_0"], "functions are no kernels"
                seconds.append(sum(timing.milliseconds for timing in reply.timings if timing.stage == "ptxas") / 1000)
            assert seconds[0] > 0
            measured.append(seconds)
            if seconds[1] < 7 * seconds[0]:  # n·log n is 4.7 times as long, quadratic time 16 times
                break
        daemon.end()
    assert seconds[1] < 7 * seconds[0], f"ptxas took {measured} s for pairs of kernels of which one is four times as long"


def products(count):
    """A text of so many products that add to one fragment."""
    tile = "%h[0, 0; 64, 64]"
    steps = f"    gemm {tile}, {tile} -> %f[0, 0; 64, 64]\n    copy %f[0, 0; 64, 64] -> {tile}\n"
    head = ("kiln 1\nfunc @f(%A: global f16[64, 64], %B: global f16[64, 64]) outputs(1) {\n  kernel @k grid(1) threads 128 blocks(%b) {\n"
            f"    %h = alloc shared f16[64, 64]\n    %f = alloc fragment f32[64, 64]\n    copy %A[0, 0; 64, 64] -> {tile}\n"
            "    fill %f[0, 0; 64, 64] = 0.0\n")
    return head + count * steps + "    copy %f[0, 0; 64, 64] -> %B[0, 0; 64, 64]\n  }\n}\n"


def test_many_products_take_time_in_proportion(served, tmp_path):
    """On sm_90a ptxas would take time with the cube of the products that add to the same registers. Processor time, since others use the machine."""
    def seconds(count):
        code = served.compile(products(count), "cuda:sm_90a").artifact.code
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = assemble(code, "sm_90a", tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0 and "(C75" not in done.stderr and " 0 bytes spill stores" in done.stderr, done.stderr[-500:]
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    few, many = seconds(14), seconds(56)
    assert many < 20 * few, f"ptxas took {few} and {many} s for kernels of which one is four times as long"


def test_kept_ptx_gives_the_cubin_that_a_compile_gives(tmp_path):
    """After the upgrade of ptxas only the cubin is made, and it is the one that a compile of everything makes."""
    from kiln.examples.programs import PROGRAMS

    def stages(reply):
        return [timing.stage for timing in reply.timings if timing.stage != "queue"]

    program = PROGRAMS["gemm_f16_bias_relu"]()
    with socket_folder() as sockets:
        daemon = Daemon(tmp_path / "state", sockets)
        daemon.start()  # without ptxas
        plain = daemon.client().compile(program, "cuda:sm_90a", durable=True)
        assert not plain.artifact.cubin and not plain.artifact.report.kernels[0].HasField("registers")
        daemon.end()
        daemon.start(ptxas=KILNDS_PTXAS)
        client = daemon.client(fresh=True)
        assembled = client.compile(program, "cuda:sm_90a")
        assert stages(assembled) == ["ptxas"]
        whole = client.compile(program, "cuda:sm_90a", refresh=True)
        assert "llvm" in stages(whole) and stages(whole)[-1] == "ptxas"
        daemon.end()
    assert assembled.artifact.cubin and assembled.artifact.report.kernels[0].registers > 0
    assert assembled.artifact.code == plain.artifact.code
    assert assembled.artifact.SerializeToString(deterministic=True) == whole.artifact.SerializeToString(deterministic=True)
    assert [d.message for d in assembled.diagnostics] == [d.message for d in whole.diagnostics]


def test_benchmark_programs_do_not_spill(served, tmp_path):
    """On sm_90a, by warp groups and tensor copies: ptxas has registers for all of it, and leaves wgmma asynchronous."""
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
    from bench_programs import program
    from bench_table import rows

    wrong = []
    for row in rows():
        function, options = program(row, "cuda:sm_90a")
        reply = served.compile(function, "cuda:sm_90a", options=options)
        done = assemble(reply.artifact.code, "sm_90a", tmp_path)
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", done.stderr)]
        if done.returncode != 0 or not spills or any(spills) or "(C75" in done.stderr:
            wrong.append(f"{row['name']}: spills {spills}: {done.stderr[-400:]}")
    assert wrong == []
