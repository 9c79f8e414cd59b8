# SPDX-License-Identifier: Apache-2.0
"""TileLang's own scripts, unchanged, with a torch that computes nothing and a client that compiles nothing: they trace, encode, and reach
their end. KILN_TILELANG is a checkout of tile-ai/tilelang; without it only the scripts written here run."""

import importlib.util
import os
import pathlib
import runpy
import sys

import pytest

SOURCE = os.environ.get("KILN_TILELANG", "")
SCRIPTS = ("examples/quickstart.py", "examples/gemm/example_gemm.py", "examples/elementwise/example_elementwise_add.py",
           "examples/flash_attention/example_mha_fwd_bshd.py", "examples/norm/rms_norm.py")


@pytest.fixture
def quiet(monkeypatch, torch):
    import kiln.bench
    import kiln.profiler

    monkeypatch.setattr(kiln.profiler, "assert_close", lambda *args, **kwargs: True)
    monkeypatch.setattr(kiln.profiler, "do_bench", lambda function, *args, **kwargs: (function(), 1.0)[1])
    monkeypatch.setattr(kiln.bench, "do_bench", lambda function, *args, **kwargs: (function(), 1.0)[1])
    yield
    for name in [n for n in sys.modules if n == "tilelang" or n.startswith("tilelang.")]:
        del sys.modules[name]


@pytest.mark.skipif(not SOURCE, reason="SKIPPED, TILELANG'S SCRIPTS WERE NOT RUN: set KILN_TILELANG to a checkout of tile-ai/tilelang")
@pytest.mark.parametrize("script", SCRIPTS)
def test_tilelangs_scripts(service, quiet, monkeypatch, script):
    path = pathlib.Path(SOURCE) / script
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert service.requests
    for request in service.requests:
        assert request.module.kernels and len(request.module.outputs) == 1


EAGER = '''
import argparse
import torch
import tilelang
import tilelang.language as T
from tilelang.profiler import do_bench

@tilelang.jit(pass_configs={tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True})
def matvec(A, x, rows: int, accum=T.float):
    M, K = T.const("M, K")
    A: T.Tensor((M, K), T.float16)
    x: T.Tensor[[K], T.float16]
    y = T.empty([M], T.float16)
    with T.Kernel(T.ceildiv(M, rows), threads=64) as bx:
        a = T.alloc_fragment((rows, K), accum)
        r = T.alloc_fragment((rows,), accum)
        T.copy(A[bx * rows, 0], a)
        for i, j in T.Parallel(rows, K):
            a[i, j] *= x[j]
        T.reduce_sum(a, r)
        T.copy(r, y[bx * rows])
    return y

if __name__ == "__main__":
    A, x = torch.randn(256, 128, device="cuda", dtype=torch.float16), torch.randn(128).cuda().half()
    y = matvec(A, x, rows=4)
    torch.testing.assert_close(y, A @ x)
    kernel = matvec.compile(M=256, K=128, rows=4)
    profiler = kernel.get_profiler(tensor_supply_type=tilelang.TensorSupplyType.Normal)
    profiler.assert_allclose(lambda A, x: y, rtol=1e-2, atol=1e-2)
    print(kernel.get_kernel_source(), profiler.do_bench(backend="cupti"), do_bench(lambda: matvec(A, x, rows=4)))
'''

LAZY = '''
import itertools
import torch
import tilelang
import tilelang.language as T
from tilelang.autotuner import *

def configs():
    return [dict(block=b, threads=t) for b, t in itertools.product([32, 64], [64])]

@autotune(configs=configs(), warmup=1, rep=1)
@tilelang.jit(out_idx=[1], target="cuda")
def relu(N, block=32, threads=64):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=threads) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = T.max(A[bx * block + i], 0)
    return main

best = relu(1000)
assert best.config == {"block": 32, "threads": 64}, best.config
assert relu(1000, block=64, threads=64)(torch.randn(1000, device="cuda")).shape == (1000,)
program = relu.get_tir(1000)
assert tilelang.compile(program, out_idx=-1).out_idx == [1]
'''


@pytest.mark.parametrize("text", [EAGER, LAZY], ids=["eager", "lazy"])
def test_scripts_of_both_styles(service, quiet, monkeypatch, tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", [str(path)])
    if text is LAZY:
        import kiln.tuning

        latencies = iter([1.0, 2.0])
        monkeypatch.setattr(kiln.tuning, "do_bench", lambda *args, **kwargs: next(latencies))
    runpy.run_path(str(path), run_name="__main__")
    assert service.requests


def test_what_is_missing_is_named(quiet):
    import tilelang

    with pytest.raises(AttributeError, match="tilelang.lower is not part of Kiln's compatibility package: use tilelang.compile"):
        tilelang.lower
    with pytest.raises(ModuleNotFoundError, match="tilelang.ir is not part of Kiln's compatibility package: TVM structures"):
        import tilelang.ir  # noqa: F401
    from tilelang import layout

    with pytest.raises(AttributeError, match="tilelang.layout.make_nothing"):
        layout.make_nothing
    import tilelang.language
    import tilelang.tileop.base

    assert tilelang.tileop.base.GemmWarpPolicy is tilelang.language.GemmWarpPolicy


def test_importing_needs_little():
    """Neither torch, nor numpy, nor gRPC, nor a descriptor."""
    import subprocess

    code = ("import sys, os; os.environ['KILN_DESCRIPTOR'] = '/nowhere'\n"
            "import kiln, kiln.language, tilelang; kiln.jit, kiln.Client, kiln.autotune\n"
            "assert not {'torch', 'numpy', 'grpc', 'google.protobuf'} & set(sys.modules), sorted(sys.modules)")
    folders = [str(pathlib.Path(importlib.util.find_spec(name).origin).parents[1]) for name in ("kiln", "tilelang")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
