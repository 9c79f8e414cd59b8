# SPDX-License-Identifier: Apache-2.0
"""Names of TileLang's modules and of the language that scripts import, annotate with and ask about: that they are there, what they do, and that
what Kiln does not have says so where it is used."""

import importlib
import json
import sys
from typing import Optional

import pytest

import kiln
import kiln.language as T
from kiln.language.encode import EncodeError
from kiln.language.trace import TraceError


def test_tvm_is_an_alias(tilelang):
    import tvm
    import tvm.tirx.expr
    from tvm import tirx
    from tvm.script.ir_builder.base import IRBuilderFrame

    assert tvm is tilelang.tvm and tirx is tilelang.tvm.tirx and tvm.tirx.expr is tirx
    assert isinstance(T.float16, tvm.DataType) and isinstance(T.float32x2, tvm.DataType)
    assert isinstance(T.serial(1, 10, 1), IRBuilderFrame) and not isinstance(T.serial(1, 10, 2), IRBuilderFrame)
    with pytest.raises(AttributeError, match="tilelang.tvm.tirx.ForNode is not part"):
        tirx.ForNode
    with pytest.raises(ImportError):
        import tvm.relay  # noqa: F401


def test_an_installed_tvm_comes_first(tilelang, tmp_path, monkeypatch):
    (tmp_path / "tvm.py").write_text("REAL = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.import_module("tvm").REAL


def test_expressions_by_their_tvm_names(tilelang):
    from tvm import tirx

    a, b = tirx.Var("a", "int32"), tirx.Var("b", "int32")
    five = tirx.IntImm("int32", 5)
    assert isinstance(five, tirx.IntImm) and not isinstance(five, tirx.FloatImm) and isinstance(tirx.FloatImm("float32", 2), tirx.FloatImm)
    assert isinstance(a, tirx.Var) and isinstance(a, T.Var) and not isinstance(five, T.Var) and isinstance(a, T.PrimExpr)
    assert isinstance(tirx.Cast("float32", a), tirx.Cast) and tirx.Cast("float32", a).dtype == "float32"
    assert isinstance(a + b, tirx.Add) and not isinstance(a + b, tirx.Sub) and tirx.Min(a, b) is T.min(a, b)
    assert tirx.all(a < b, b < 3) is T.And(a < b, b < 3) and tirx.any(a < b, b < 3) is T.Or(a < b, b < 3)
    assert isinstance(tirx.Not(tirx.all(a < b, b < 3)), tirx.Not) and isinstance(tirx.Or(a < b, b < 3), tirx.Or)
    assert tirx.Select(a < b, a, b) is T.if_then_else(a < b, a, b) and tirx.reinterpret("float32", a).dtype == "float32"
    with pytest.raises(TypeError, match="a class to ask about"):
        T.PrimExpr()


def test_dimensions_are_variables():
    m = T.dynamic("m")
    assert isinstance(m, T.Var) and not isinstance(m + 1, T.Var) and not isinstance(3, T.Var) and isinstance(m + 1, T.PrimExpr)


@pytest.mark.parametrize("module, name, says", [
    ("engine.lower", "lower", "use tilelang.compile"),
    ("engine.callback", "register_cuda_postproc_callback", "Kiln emits PTX"),
    ("carver.template", "ConvTemplate", "kiln.rank"),
    ("carver", "TensorCorePolicy", "kiln.rank"),
    ("carver.arch", "CDNA", "kiln.rank"),
    ("cuda.intrinsics.macro.mma_macro_generator", "TensorCoreIntrinEmitterWithLadderTransform", "use T.gemm"),
    ("tools", "plot_layout", "kiln explain"),
])
def test_what_can_be_imported_and_is_refused(tilelang, module, name, says):
    thing = getattr(importlib.import_module(f"tilelang.{module}"), name)
    assert not isinstance(3, thing)
    with pytest.raises(NotImplementedError, match=f"{name} is not part of Kiln: .*{says}"):
        thing(1, key=2)
    with pytest.raises(NotImplementedError, match=f"{name}.analysis is not part of Kiln"):
        thing.analysis


def test_modules_that_hold_names_of_kiln(tilelang):
    import tilelang.jit.kernel
    from tilelang.backend.target import determine_target
    from tilelang.cuda.intrinsics import get_swizzle_layout, make_mma_swizzle_layout
    from tilelang.language import dtypes
    from tilelang.language.dtypes import DType, _all_dtypes, _TORCH_DTYPE_TO_STR
    from tilelang.language.tir import op
    from tilelang.language.tir.ir import _VALID_CAST_ROUNDING_MODES
    from tilelang.transform.simplify import apply_simplify

    assert op.exp is T.exp and sys.modules["tilelang.language.tir"].cast is T.cast
    for mode in _VALID_CAST_ROUNDING_MODES - {"", "rs"}:
        assert T.cast(T.float32(1.0), "float8_e4m3fn", round=mode).dtype == "float8_e4m3fn"
    assert tilelang.jit.func is kiln.jit, "the decorator, not the module of that name"
    assert sys.modules["tilelang.jit.kernel"].JITKernel is tilelang.JITKernel
    assert determine_target("sm_90a") == "cuda:sm_90a" and dtypes.DType is DType is T.DType
    assert "float16" in _all_dtypes and _TORCH_DTYPE_TO_STR["torch.float16"] == "float16"
    with pytest.raises(ValueError, match="takes what T.prim_func gives"):
        apply_simplify(3)
    assert isinstance(make_mma_swizzle_layout(None), T.Layout)
    assert importlib.import_module("tilelang.language") is T
    assert importlib.import_module("tilelang.language.loops") is importlib.import_module("kiln.language.loops"), "one of each"
    places = {get_swizzle_layout(row, column, 64, "float16") for row in range(8) for column in range(64)}
    assert len(places) == 512, "a permutation"
    banks = {get_swizzle_layout(row, 0, 64, "float16")[2] // 8 for row in range(8)}
    assert banks == set(range(8)), "the vectors of a column are in different banks"
    assert get_swizzle_layout(3, 70, 128, "float16") == (1, 3, (0 ^ 3) * 8 + 6)
    with pytest.raises(ValueError, match="a multiple of 32"):
        get_swizzle_layout(0, 0, 5, "float16")


def test_unused_tensors_are_left_out(tilelang):
    from tilelang.transform.simplify import apply_simplify

    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), Bias: T.Tensor((8,), "float32"), S: T.Tensor((n,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            T.copy(A, B)

    func = apply_simplify(main.with_outputs(3))
    assert [param.name for param in func.params] == ["A", "S", "B"], "S says what n is"
    assert func.outputs == [2] and len(func.module.params) == 3 and len(main.params) == 4


def test_templates_are_ranked_by_the_planner(tilelang, address, monkeypatch):
    from kiln.client import Client
    from tilelang import carver
    from tilelang.carver.roller.rasterization import NoRasterization

    class Hopper:
        target = "cuda:sm_90a"

    client = Client(address)
    monkeypatch.setattr("kiln.client.default_client", lambda: client)
    for template, dims in ((carver.MatmulTemplate(256, 256, 128), 2), (carver.GEMVTemplate(64, 256), 1), (carver.ElementwiseTemplate([8, 64]), 1),
                           (carver.GeneralReductionTemplate("SRS", [4, 8, 64]), 1)):
        with pytest.raises(ValueError, match="with_arch"):
            template.recommend_hints()
        assert template.equivalent_function().kernels
        if isinstance(template, carver.MatmulTemplate):
            template.space = lambda template=template: [h for h in type(template).space(template) if h.pipeline_stage == 2 and h.thread == 128]
        hints = template.with_arch(Hopper).recommend_hints(topk=3)
        assert 0 < len(hints) <= 3 and all(len(hint.block) == dims for hint in hints)
        assert [hint.microseconds for hint in hints] == sorted(hint.microseconds for hint in hints)
        assert hints[0].rasterization_plan is NoRasterization
    with pytest.raises(NotImplementedError, match="with a bias"):
        carver.MatmulTemplate(64, 64, 64, with_bias=True)


def test_layouts_of_sparse_matrices(tilelang):
    from tilelang.cuda.intrinsics.sparse_layout import GROUP_CONFIG, get_e_factor, get_e_replicate_factor

    assert GROUP_CONFIG[T.float16] == (2, 4) and GROUP_CONFIG[T.float32] == (1, 2)
    assert [get_e_factor(d, e) for d, e in (("float16", "int16"), (T.int8, T.int32), ("float32", "int8"))] == [16, 32, 4]
    assert get_e_replicate_factor("int8") == 1 and get_e_replicate_factor(T.bfloat16) == 2


def test_architectures(tilelang, monkeypatch):
    from tilelang.carver import matmul_analysis
    from tilelang.carver.arch import cuda
    from tilelang.contrib import nvcc
    from tilelang.rocm.target import target_is_gfx950

    assert [cuda.check_sm_version(a) for a in ("sm_90a", "sm_120f", "90", "sm_", "gfx90a", "sm_sm_90", "")] == [90, 120, 90, -1, -1, -1, -1]
    assert matmul_analysis.check_sm_version is cuda.check_sm_version
    archs = {version: cuda.CUDA.__new__(cuda.CUDA) for version in (70, 80, 89, 90, 100)}
    for version, arch in archs.items():
        arch.sm_version = version
    asked = (cuda.is_volta_arch, cuda.is_ampere_arch, cuda.is_ada_arch, cuda.is_hopper_arch, cuda.has_mma_support)
    assert {v: [ask(a) for ask in asked] for v, a in archs.items()} == {
        70: [True, False, False, False, False], 80: [False, True, False, False, True], 89: [False, False, True, False, True],
        90: [False, False, False, True, True], 100: [False, False, False, False, True]}
    assert not cuda.is_hopper_arch("sm_90")
    assert nvcc.get_target_compute_version("cuda:sm_90a") == "9.0" and nvcc.get_target_compute_version("cuda:sm_120a") == "12.0"
    assert nvcc.parse_compute_version("8.6") == (8, 6) and target_is_gfx950("hip:gfx950") and not target_is_gfx950("hip:gfx942")
    with pytest.raises(ValueError, match="no target of NVIDIA's"):
        nvcc.get_target_compute_version("hip:gfx942")
    with pytest.raises(ValueError, match="no target of NVIDIA's"):
        cuda.CUDA("hip:gfx942")


def test_the_driver_is_asked(tilelang, torch, monkeypatch):
    from tilelang.carver.arch import cuda
    from tilelang.carver.arch.driver import cuda_driver

    class Driver:
        def cuDeviceGetAttribute(self, value, attribute, device):
            value._obj.value = attribute.value * 1024 + device.value
            return 101 if attribute.value == 999 else 0

    monkeypatch.setattr(cuda_driver, "_driver", Driver)
    assert cuda_driver.get_num_sms(2) == 132 and cuda_driver.get_device_name() == "fake"
    assert cuda_driver.get_device_attribute(16, 2) == 16 * 1024 + 2 and cuda_driver.get_registers_per_block() == 12 * 1024
    assert cuda_driver.get_shared_memory_per_block(format="kb") == 8 and cuda_driver.get_max_dynamic_shared_size_bytes() == 81 * 1024
    assert cuda_driver.get_persisting_l2_cache_max_size() == 108 * 1024
    found = cuda.CUDA("cuda:sm_90a")
    assert found.clock == 13 * 1024 * 1000 and found.compute_max_core == 132
    assert found.bandwidth == [36 * 1024 * 1000 * 2 * 37 * 1024 // 8 // 10**6] * 2
    with pytest.raises(RuntimeError, match="attribute 999 of GPU 0: cuDeviceGetAttribute gives 101"):
        cuda_driver.get_device_attribute(999)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="torch finds no GPU"):
        cuda_driver.get_num_sms()
    with pytest.raises(ValueError, match="format 'gb'"):
        cuda_driver.get_shared_memory_per_block(format="gb")


def test_folders_of_the_environment(tilelang, monkeypatch, tmp_path):
    from tilelang.env import env

    monkeypatch.delenv("TILELANG_CACHE_DIR", raising=False)
    monkeypatch.delenv("TILELANG_TMP_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tilelang.env is env and env.TILELANG_CACHE_DIR == str(tmp_path / ".tilelang/cache")
    assert env.TILELANG_TMP_DIR == str(tmp_path / ".tilelang/cache/tmp")
    monkeypatch.setenv("TILELANG_CACHE_DIR", "/named")
    assert env.TILELANG_CACHE_DIR == "/named" and env.TILELANG_TMP_DIR == "/named/tmp"
    with pytest.warns(kiln.NoEffectWarning, match="tilelang.env.TILELANG_CACHE_DIR has no effect in Kiln: results are in the store of kilnd"):
        env.TILELANG_CACHE_DIR = "/assigned"
    assert env.TILELANG_CACHE_DIR == "/assigned" and env.TILELANG_TMP_DIR == "/assigned/tmp"
    with pytest.raises(AttributeError, match="tilelang.env.CUTLASS_INCLUDE_DIR is not part of Kiln"):
        env.CUTLASS_INCLUDE_DIR


def test_regression(tilelang, capsys, monkeypatch):
    from tilelang import testing

    script = ("import tilelang.testing as t\nfrom itertools import count\nn = count()\n"
              "def regression_b(): t.process_func(lambda size: size * 2, 'regression_b_named', size=2)\n"
              "def regression_a(): t.process_func(next, 'late') if False else t.process_func(lambda: next(n))\n"
              "def other(): raise SystemExit\nt.regression()\n")
    exec(script, {"__name__": "file"})
    assert capsys.readouterr().out == "  a\n  b\nfile: 1.0\nb_named: 4.0\n"
    monkeypatch.setenv("TL_PERF_REGRESSION_FORMAT", "json")
    monkeypatch.setenv("TL_PERF_REGRESSION_ONLY", "B")
    exec(script.replace("t.regression()", "t.regression(verbose=False)"), {"__name__": "file"})
    mark, rows = capsys.readouterr().out.split("=", 1)
    assert mark == "__TILELANG_PERF_RESULTS_JSON__" and json.loads(rows) == [{"name": "b_named", "latency": 4.0}]
    with pytest.warns(UserWarning, match="measures 0.0, which is no latency"):
        testing.process_func(lambda: 0, "nothing")


def test_requirements(tilelang, monkeypatch):
    from tilelang import testing

    monkeypatch.setattr(testing, "device_target", lambda index, kind="auto": "cuda:sm_90a" if kind in ("auto", "cuda") else None)
    ran = lambda decorate: decorate(lambda: "ran")()  # noqa: E731
    assert ran(testing.requires_cuda_or_cdna) == ran(testing.requires_cuda_compute_version(9, 0)) == "ran"
    assert ran(testing.requires_cuda_compute_version(9, mode="eq")) == ran(testing.requires_cuda_compute_version_lt(10)) == "ran"
    for decorate in (testing.requires_cdna, testing.requires_gfx950, testing.requires_llvm, testing.requires_cuda_compute_version_gt(9, 0)):
        with pytest.raises(pytest.skip.Exception):
            ran(decorate)


def test_four_bit_floats_say_how_they_are_stored():
    from tilelang.language.dtypes import is_float4, is_float4_e2m1_unpacked, is_float4_e2m1fn

    packed, unpacked = T.float4_e2m1fn, T.float4_e2m1_unpacked
    assert (packed.bits, packed.type_code, unpacked.bits, unpacked.type_code) == (4, 17, 8, 131)
    assert packed.is_float4_e2m1fn() and T.float4_e2m1fnx2.is_float4_e2m1fn() and not unpacked.is_float4_e2m1fn()
    assert unpacked.is_float4_e2m1_unpacked() and not packed.is_float4_e2m1_unpacked() and not hasattr(T, "float4_e2m1_unpackedx2")
    assert is_float4("float4_e2m1fn") and is_float4(str(unpacked)) and not is_float4(T.float16)
    assert is_float4_e2m1fn(packed) and is_float4_e2m1_unpacked(unpacked)

    @T.prim_func
    def main(A: T.Tensor((64,), T.float4_e2m1fn)):
        with T.Kernel(1):
            T.copy(A, T.alloc_shared((64,), T.float4_e2m1_unpacked))

    with pytest.raises(EncodeError, match="float4_e2m1_unpacked.* is not supported"):
        main.serialized


def test_intrinsics_of_hints():
    from tilelang.carver.roller.hint import IntrinInfo

    info = IntrinInfo("float16", out_dtype="float32", trans_b=True, input_transform_kind=1, weight_transform_kind=2)
    assert "input_transform_kind=1" in repr(info) and info.trans_b and not info.trans_a and not info.is_input_8bit()
    assert (info.inter_transform_a, info.smooth_a, info.inter_transform_b, info.smooth_b) == (True, False, True, True)


def test_vectors_have_names():
    assert T.float32x2 is T.DType("float32x2") and T.float32x2.lanes == 2 and T.float32x2.bits == 64 and T.float32.lanes == 1
    assert T.DType("float4_e2m1fn_x2") is T.float4_e2m1fnx2
    with pytest.raises(TypeError, match="float16x2 of 3 values: it has 2 lanes"):
        T.float16x2(1, 2, 3)

    @T.prim_func
    def main(A: T.Tensor((4,), T.float32x2)):
        with T.Kernel(1):
            T.alloc_shared((4,), T.float32)

    with pytest.raises(EncodeError, match="main: float32x2 is a vector type; buffers have elements of one number"):
        main.serialized


def test_parameters_typed_in_the_body():
    @T.prim_func
    def main(A, n, B):
        n: T.int32
        T.annotate_compile_flags(["--use_fast_math"])
        B: T.Tensor((8,), T.float16)
        A: T.Tensor[[4, 8], T.float32]
        with T.Kernel(n):
            B[0] = A[0, 0]

    assert [(p.name, (p.buffer if p.var is None else p.var).dtype) for p in main.params] == [("A", "float32"), ("n", "int32"), ("B", "float16")]
    assert main.attrs == {"global_symbol": "main", "tilelang_compile_flags": ["--use_fast_math"]}

    @T.prim_func
    def gives(A: T.Tensor((4,), T.float32)):
        B, C = T.empty((4,), T.float32), T.empty((4,), T.float32)
        with T.Kernel(1):
            B[0], C[0] = A[0], A[1]
        return B, C

    assert gives.attrs["tilelang_out_idx"] == [-2, -1]


def test_a_parameter_without_a_type():
    with pytest.raises(TraceError, match="parameter B needs a type"):

        @T.prim_func
        def never(A: T.Tensor((4,), T.float32), B):
            with T.Kernel(1):
                A[0] = 1.0

    with pytest.raises(TraceError, match="parameter B needs a type"):

        @T.prim_func
        def used(B):
            with T.Kernel(1):
                B[0] = B.shape[0]


def test_annotations_that_are_no_types_of_tensors():
    @kiln.jit
    def f(A, scale: Optional[float] = None):
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1):
            A[0] = 1.0 if scale is None else scale

    assert "A[0] = 2.0" in f.get_tir(None, scale=2.0).script() and "A[0] = 1.0" in f.get_tir(None).script()


def test_a_kernel_in_a_macro_is_eager():
    @T.macro
    def copy(A, B):
        with T.Kernel(1):
            T.copy(A, B)

    @kiln.jit
    def f(A: T.Tensor[[8], T.float32], B: T.Tensor[[8], T.float32]):
        copy(A, B)

    assert f.mode == "eager" and len(f.get_tir(None, None).kernels) == 1


@pytest.mark.parametrize("kind", [T.Ref, T.Var], ids=["Ref", "Var"])
def test_by_reference(kind):
    @T.macro
    def set_it(x: kind):
        x = 7  # noqa: F841

    @T.prim_func
    def main(A: T.Tensor((1,), T.int32)):
        with T.Kernel(1, threads=1):
            x = T.alloc_var(T.int32, init=1)
            set_it(x)
            A[0] = x

    assert "= 7" in main.script()
    with pytest.raises(ValueError, match="argument x is taken by reference: pass a T.alloc_var"):

        @T.prim_func
        def wrong(A: T.Tensor((1,), T.int32)):
            with T.Kernel(1):
                set_it(1)


@pytest.mark.parametrize("call, says", [
    (lambda: T.thread_binding(0, 64, thread="threadIdx.x"), "T.Kernel has opened a launch with 32 there"),
    (lambda: T.thread_binding(1, 32), "T.Kernel has opened a launch with 32 there"),
    (lambda: T.thread_binding(0, 4, thread="vthread"), r"thread='vthread'\): one of threadIdx.x"),
    (lambda: T.thread_binding(32, annotations={"a": 1}), "leave them out"),
    (lambda: T.alloc_buffer((4,), "float32", scope="shared.barrier"), "scope='shared.barrier'"),
    (lambda: T.alloc_buffer((4,), "float32", scope="shared", strides=[2]), r"T.alloc_buffer\(strides=…\)"),
])
def test_refused(call, says):
    with pytest.raises(TraceError, match=says):

        @T.prim_func
        def main(A: T.Tensor((1,), T.int32)):
            with T.Kernel(3, threads=32):
                call()


def test_searched_once_for_what_counts(service, torch, monkeypatch):
    import kiln.tuning

    latencies = iter([2.0, 1.0, 1.0, 2.0])
    monkeypatch.setattr(kiln.tuning, "do_bench", lambda *args, **kwargs: next(latencies))

    @kiln.autotune(configs=[{"threads": 64}, {"threads": 128}], do_not_specialize=["N"])
    @kiln.jit(out_idx=-1)
    def f(M, N, threads=32):
        @T.prim_func
        def main(A: T.Tensor((M, N), T.float32), B: T.Tensor((M, N), T.float32)):
            with T.Kernel(M, threads=threads) as bx:
                T.copy(A[bx, 0:N], B[bx, 0:N])

        return main

    first = f(4, 8)
    assert first.config == {"threads": 128} and len(f._tuner_cache) == 1
    other = f(4, N=16)
    assert other.config == {"threads": 128} and other.prim_func.params[0].buffer.shape == (4, 16), "the configuration for other values"
    assert len(f._tuner_cache) == 1 and f(4, N=16) is other
    assert f(8, 8).config == {"threads": 64} and len(f._tuner_cache) == 2, "M counts"
    f(4, 8, threads=32)
    assert len(f._tuner_cache) == 3
    f._tuner_cache.clear()
    latencies = iter([1.0, 2.0])
    assert f(4, 8).config == {"threads": 64}, "forgotten, and searched again"
    assert f(4, 8, __return_kernel=True).config == {"threads": 64}


def test_scalars_are_given_while_tuning(service, torch):
    @kiln.autotune(configs=[{"threads": 64}])
    @kiln.jit
    def f(threads=32):
        @T.prim_func
        def main(A: T.Tensor((4,), T.float32), s: T.float32):
            with T.Kernel(1, threads=threads):
                A[0] = s

        return main

    with pytest.raises(ValueError, match="takes the scalar s; pass input_tensors. While it is tuned, give them: `with set_autotune_inputs"):
        f()
