# SPDX-License-Identifier: Apache-2.0
"""The example programs through a daemon, for four GPUs. KILN_BUILD is the build folder with kilnd and kiln-worker."""

import os
import pathlib
import re

import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from kiln.examples.programs import PROGRAMS

BIN = pathlib.Path(os.environ.get("KILN_BUILD", "build/release")).resolve() / "bin"
MISSING = [name for name in ("kilnd", "kiln-worker") if not os.access(BIN / name, os.X_OK)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"SKIPPED, NOTHING WAS COMPILED: {', '.join(MISSING)} not in {BIN}; set KILN_BUILD")

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "hip:gfx1100")
EVERYWHERE = ("gemm_f16", "gemm_f16_bias_relu", "gemm_bf16_bias_gelu", "gemm_f16_bias_silu_odd", "gemm_s8", "gemm_f16_symbolic",
              "gemm_f16_tile_192_80", "gemm_f16_nt_odd", "gemm_f16_tn", "gemm_f16_tt_odd", "gemm_f32", "attention_f16",
              "attention_f16_causal", "attention_f16_causal_odd", "attention_bf16_causal_symbolic", "rms_norm_f16", "rms_norm_f32_odd",
              "softmax_f16", "softmax_f32_odd", "softmax_online", "add_f32", "add_symbolic")
CASES = [(name, target) for name in EVERYWHERE for target in TARGETS] + [
    ("gemm_tf32", "cuda:sm_80"), ("gemm_tf32", "cuda:sm_90a"), ("gemm_e4m3", "cuda:sm_90a"), ("gemm_e5m2", "cuda:sm_90a"),
    ("gemm_e4m3fnuz", "hip:gfx942"),
]


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


@pytest.mark.parametrize("name, target", CASES)
def test_programs_compile(client, name, target):
    kernel = kiln.compile(PROGRAMS[name](), target=target, client=client)
    assert kernel.origin == "COMPILED" and kernel.target == target
    code = kernel.artifact.code
    assert code.startswith(b"\x7fELF") if target.startswith("hip:") else b".version" in code
    launch = kernel.artifact.launch
    assert [p.name for p in launch.params] == [p.name for p in kernel.prim_func.params]
    assert [p.output for p in launch.params] == [i in kernel.out_idx for i in range(len(launch.params))]
    again = kiln.compile(PROGRAMS[name](), target=target, client=client)
    assert again.origin == "MEMORY" and again.artifact.code == code and again.key == kernel.key


def test_a_durable_compile_waits_for_the_store(client):
    program = PROGRAMS["add_f32"]()
    assert client.compile(program, "cuda:sm_80", durable=True, refresh=True).durable
    assert kiln.compile(program, target="cuda:sm_80", client=client).durable


def test_a_refused_program_tells_its_line(client):
    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(1) as bx:
            s = T.alloc_shared((1 << 20, 64), "float32")  # far too large
            T.copy(A, s[0, 0:8])

    with pytest.raises(kiln.CompileError) as failure:
        kiln.compile(f, target="cuda:sm_90a", client=client)
    line = next(n for n, text in enumerate(open(__file__, encoding="utf-8"), 1) if "# far too large" in text)
    assert failure.value.code == "INVALID_ARGUMENT" and f"{__file__}:{line}: error:" in str(failure.value)


def test_unknown_targets_are_refused(client):
    with pytest.raises(kiln.CompileError, match="sm_13"):
        kiln.compile(PROGRAMS["add_f32"](), target="cuda:sm_13", client=client)


def test_names_and_lines_do_not_change_the_key(client):
    @T.prim_func
    def one(X: T.Tensor((8,), "float32")):
        with T.Kernel(8) as bx:
            X[bx] = 1.0

    @T.prim_func
    def two(Y: T.Tensor((8,), "float32")):

        with T.Kernel(8) as other:
            Y[other] = 1.0

    first, second = (kiln.compile(f, target="cuda:sm_80", client=client) for f in (one, two))
    assert first.key == second.key and second.origin in ("MEMORY", "DISK")


def aligned_addresses(ptx):
    """Registers that begin a vector, whatever the program's pointers are, or lie a vector behind one that does."""
    begin = set(re.findall(r"and\.b64\s+(%rd\d+), %rd\d+, -(?:8|16);", ptx))
    return begin | {there for there, here in re.findall(r"add\.s64\s+(%rd\d+), (%rd\d+), %rd\d+;", ptx) if here in begin}


@pytest.mark.parametrize("name", ["gemm_f16_bias_relu", "gemm_f16_symbolic", "gemm_s8", "attention_f16_causal", "softmax_f32_odd", "add_f32"])
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_programs_compile_for_offset_tensors(client, name, target):
    kernel = kiln.compile(PROGRAMS[name](), target=target, client=client)
    for alignment in (8, 1):
        variant = kernel.aligned_to(alignment)
        assert variant.key != kernel.key and variant is kernel.aligned_to(alignment)
        assert {p.alignment for p in variant.artifact.launch.params if p.tensor} == {alignment}
        if alignment == 1 and target.startswith("cuda"):
            source = variant.get_kernel_source()
            assert not re.search(r"\bst\.global[.\w]*\.v\d|cp\.async\.c[ag]\.", source)
            assert {address for address in re.findall(r"\bld\.global[.\w]*\.v\d\S*\s[^[]*\[(%rd\d+)\]", source)} <= aligned_addresses(source)
            assert not re.search(r"\bld\.global[.\w]*\.v\d\S*\s[^[]*\[%rd\d+\+", source)


def test_assembly_is_of_the_kernel_itself(client):
    """For AMD the daemon is asked once more: the same daemon, for the same options."""
    plain, fast = (kiln.compile(PROGRAMS["softmax_f16"](), target="hip:gfx942", client=client, pass_configs=configs)
                   for configs in (None, {"tl.enable_fast_math": True}))
    assert "s_endpgm" in plain.get_kernel_source() and plain.get_kernel_source() != fast.get_kernel_source()
    product = kiln.compile(PROGRAMS["gemm_f16_bias_relu"](), target="hip:gfx942", client=client)
    assert product.aligned_to(1).get_kernel_source() != product.get_kernel_source()


@kiln.autotune(configs={"block": [64, 1 << 22, 128], "stages": [1, 2]}, warmup=1, rep=1)
@kiln.jit(out_idx=-1, target="cuda:sm_90a")
def tuned(n, block=64, stages=1):
    @T.prim_func
    def scale(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 2 * block)) as bx:
            tile = T.alloc_shared((block,), "float32")
            for i in T.Pipelined(2, num_stages=stages):
                T.copy(X[(2 * bx + i) * block], tile)
                T.copy(tile, Y[(2 * bx + i) * block])

    return scale


@pytest.mark.filterwarnings("ignore")
def test_autotune_compiles_all_and_keeps_the_fastest(client, monkeypatch):
    import kiln.compiler
    import kiln.tuning

    monkeypatch.setattr(kiln.compiler, "default_client", lambda: client)
    monkeypatch.setattr(kiln.tuning.targets, "device_target", lambda *args: "cuda:sm_90a")
    monkeypatch.setattr(kiln.tuning, "do_bench", lambda call, *args, **kwargs: call())
    times = {(64, 1): 4.0, (64, 2): 3.0, (128, 1): 1.0, (128, 2): 2.0}
    monkeypatch.setattr(kiln.Kernel, "__call__", lambda kernel: times[kernel.config["block"], kernel.config["stages"]])
    with kiln.tuning.set_autotune_inputs([]):
        best = tuned(1000)
        assert best.config == {"block": 128, "stages": 1} and best.latency == 1.0 and best is tuned(1000)
        assert best.key != tuned(2000).key
        monkeypatch.setattr(kiln.Kernel, "__call__", lambda kernel: 1 / 0)
        with pytest.raises(RuntimeError, match=r"none of the 4 configurations that compile ran .*'block': 64, 'stages': 1}: division by zero"):
            tuned(3000)


def test_a_manifest_is_compiled_once(client):
    requests = [client.request(PROGRAMS[name](), "") for name in ("add_f32", "softmax_f16")]
    first = list(client.ensure_kernels(requests, ("cuda:sm_75", "hip:gfx90a")))
    kernels = [kernel for progress in first for kernel in progress.kernels]
    assert first[-1].total == 4 and first[-1].failed == 0, kernels
    assert {(k.request, k.target) for k in kernels} == {(r, t) for r in (0, 1) for t in ("cuda:sm_75", "hip:gfx90a")}
    assert all(client.lookup(kernel.key).artifact.target == kernel.target for kernel in kernels)
    assert list(client.ensure_kernels(requests, ("cuda:sm_75", "hip:gfx90a")))[-1].known == 4


def test_a_manifest_larger_than_a_message_has_one_progress(client):
    def variant(number):  # of one program, with names for people of 3 MiB
        module = client._pb.Module.FromString(PROGRAMS["add_f32"]().serialized)
        module.debug.module_name = f"{number}-" + "n" * (3 << 20)
        return client.request(module, "")

    progress = list(client.ensure_kernels([variant(number) for number in range(7)], ("cuda:sm_75", "cuda:sm_86")))
    kernels = [kernel for news in progress for kernel in news.kernels]
    assert {(k.request, k.target) for k in kernels} == {(r, t) for r in range(7) for t in ("cuda:sm_75", "cuda:sm_86")}
    assert len(kernels) == 14 and {news.total for news in progress} == {14}
    done = [news.known + news.compiled + news.failed for news in progress]
    assert done == sorted(done) and done[-1] == 14 and progress[-1].failed == 0
    assert progress[-1].remaining_seconds == 0
    assert [news.elapsed_seconds for news in progress] == sorted(news.elapsed_seconds for news in progress)
