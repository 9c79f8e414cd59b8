# SPDX-License-Identifier: Apache-2.0
"""kiln.jit in both styles, kiln.compile and autotune, with a client that compiles nothing."""

import inspect
import subprocess
import sys

import pytest

import kiln
import kiln.language as T
from kiln.functions import JITFunction


@kiln.jit
def eager(A, B, block=32, flag=False):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float16")
    B: T.StridedTensor((N, M), (T.const("S"), 1), "float32")
    C = T.empty((M,), "float32")
    with T.Kernel(T.ceildiv(M, block)) as bx:
        A_shared = T.alloc_shared((block, N), "float16")
        T.copy(A[bx * block, 0], A_shared)
        if flag:
            T.fill(A_shared, 1)
        for i in T.Parallel(block):
            C[bx * block + i] = A_shared[i, 0] + B[0, i]
    return C


@kiln.jit(out_idx=[-1], target="cuda:sm_80", pass_configs={"tl.enable_fast_math": True, "tl.disable_tma_lower": True})
def lazy(N, dtype="float32"):
    @T.prim_func
    def double(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype)):
        with T.Kernel(N) as bx:
            B[bx] = A[bx] * 2

    return double


def test_lazy(service, torch):
    kernel = lazy(64)
    assert lazy.mode == "lazy" and lazy(64) is kernel and lazy(64, "float16") is not kernel
    assert len(service.requests) == 2
    request = service.requests[0]
    assert request.target == "cuda:sm_80" and request.options == {"fast_math": True, "disable_tma": True}
    out = kernel(torch.randn(64, device="cuda"))
    assert tuple(out.shape) == (64,) and out.dtype is torch.float32
    assert kernel.out_idx == [1] and kernel.get_kernel_source().startswith("// ptx")
    assert [(p.name, p.dtype, p.shape, p.output) for p in kernel.params] == [("A", "float32", (64,), False), ("B", "float32", (64,), True)]


def test_eager_takes_dimensions_from_the_tensors(service, torch):
    a = torch.empty(96, 16, dtype=torch.float16, device="cuda")
    b = torch.empty(16, 96, device="cuda")
    out = eager(a, b, block=32)
    assert eager.mode == "eager" and tuple(out.shape) == (96,)
    eager(a, b)
    assert len(service.requests) == 1, "the same constants and arguments are the same kernel"
    eager(a, b, flag=True)
    eager(torch.empty(64, 16, dtype=torch.float16), torch.empty(16, 64))
    assert len(service.requests) == 3
    assert service.requests[0].target == "cuda:sm_90a"
    text = service.requests[1].func.script()
    assert "fill A_shared" in text and "A: float16[96, 16]" in text and "B: float32[16, 96] strides [96, 1]" in text


def test_eager_compiles_from_names_alone(service, torch):
    kernel = eager.compile(M=128, N=8, S=200, block=64)
    assert kernel.prim_func.params[1].buffer.strides == (200, 1)
    assert kernel.prim_func.outputs == [2]


def test_eager_errors(service, torch):
    a, b = torch.empty(96, 16, dtype=torch.float16), torch.empty(16, 95)
    with pytest.raises(ValueError, match=r"Argument eager.B.shape\[1\] has an unsatisfied constraint: 95 == M, which is 96"):
        eager(a, b)
    with pytest.raises(ValueError, match="eager.A.ndim is expected to equal 2, but got 1"):
        eager(torch.empty(96), b)
    with pytest.raises(TypeError, match="T.const S has no value"):
        eager.compile(M=1, N=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'Q'; its T.const names are"):
        eager.compile(M=1, N=2, S=3, Q=4)
    with pytest.raises(ValueError, match="make the output with T.empty"):
        kiln.jit(eager.function, out_idx=[0])


def test_a_const_must_be_a_dimension(service, torch):
    @kiln.jit
    def f(A):
        M, K = T.const("M K")
        A: T.Tensor((M,), "float32")
        with T.Kernel(M):
            T.sync_threads()

    with pytest.raises(RuntimeError, match="Constexpr variable K is not used in any buffer shape or stride"):
        f(torch.empty(4))


def test_every_empty_tensor_is_returned(service, torch):
    @kiln.jit
    def f(A):
        M = T.const("M")
        A: T.Tensor((M,), "float32")
        B = T.empty((M,), "float32")
        with T.Kernel(M) as bx:
            B[bx] = A[bx]

    with pytest.raises(RuntimeError, match="made by T.empty, is not returned"):
        f(torch.empty(4))


def test_two_outputs_and_scalars(service, torch):
    @kiln.jit
    def f(A, scale):
        M = T.const("M")
        A: T.Tensor((M,), "float32")
        scale: T.float32
        B, C = T.empty((M,), "float32"), T.empty(M, 2, dtype="int32")
        with T.Kernel(M) as bx:
            B[bx] = A[bx] * scale
            C[bx, 0] = 1
        return C, B

    assert f.mode == "eager"
    c, b = f(torch.empty(4, device="cuda"), 2.0)
    assert tuple(c.shape) == (4, 2) and tuple(b.shape) == (4,)
    assert f(torch.empty(4, device="cuda"), 3.0) is not None and len(service.requests) == 1, "a scalar is no compile-time argument"


def test_a_tensor_may_be_left_out(service, torch, monkeypatch):
    @kiln.jit
    def f(A, bias=None):
        M = T.const("M")
        A: T.Tensor((M,), "float32")
        if bias is not None:
            bias: T.Tensor((M,), "float32")
        C = T.empty((M,), "float32")
        with T.Kernel(M) as bx:
            C[bx] = A[bx] if bias is None else A[bx] + bias[bx]
        return C

    a, b = torch.empty(4, device="cuda"), torch.empty(4, device="cuda")
    for _ in range(2):
        assert tuple(f(a).shape) == tuple(f(a, b).shape) == tuple(f(a, bias=b).shape) == (4,)
    assert [len(r.func.params) for r in service.requests] == [2, 3]


def test_a_tensor_says_nothing_before_its_declaration(service, torch):
    @kiln.jit
    def f(A):
        M = A.shape[0]
        A: T.Tensor((M,), "float32")
        with T.Kernel(M):
            T.clear(A)

    with pytest.raises(AttributeError, match="shape of a tensor before its declaration; declare it first"):
        f(torch.empty(4))


def test_symbolic_dimensions_share_one_kernel(service, torch):
    @kiln.jit
    def f(A):
        n = T.dynamic("n")
        A: T.Tensor((n,), "float32")
        B = T.empty((n,), "float32")
        with T.Kernel(n) as bx:
            B[bx] = A[bx]
        return B

    assert tuple(f(torch.empty(4, device="cuda")).shape) == (4,)
    assert tuple(f(torch.empty(9, device="cuda")).shape) == (9,)
    assert len(service.requests) == 1


def test_compile_and_par_compile(service, torch):
    func = lazy.get_tir(32)
    assert kiln.compile(func, target="hip:gfx942").target == "hip:gfx942"
    assert [k.prim_func.params[0].buffer.shape for k in lazy.par_compile([{"N": 8}, (16,)])] == [(8,), (16,)]
    with pytest.raises(TypeError, match="takes a T.prim_func"):
        kiln.compile(len)
    with pytest.raises(ValueError, match="target 'tpu'"):
        kiln.compile(func, target="tpu")


def test_a_lazy_function_must_return_a_program(service):
    assert isinstance(kiln.jit(lambda: 3), JITFunction)
    with pytest.raises(TypeError, match="must return a T.prim_func"):
        kiln.jit(lambda: 3)()


@kiln.autotune(configs={"block": [16, 32], "stages": [1, 2]}, warmup=1, rep=1)
@kiln.jit(out_idx=-1)
def tuned(N, block=16, stages=1):
    @T.prim_func
    def f(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx:
            if block == 32 and stages == 2:
                raise ValueError("no such configuration")
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i]

    return f


def test_autotune(service, torch, monkeypatch):
    import kiln.tuning

    latencies = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(kiln.tuning, "do_bench", lambda *args, **kwargs: next(latencies))
    kernel = tuned(64)
    assert kernel.latency == 1.0 and kernel.config == {"block": 16, "stages": 2}
    assert tuned(64) is kernel and len(service.requests) == 3
    direct = tuned(64, block=8, stages=1)
    assert direct.latency is None and len(service.requests) == 4


@kiln.autotune(configs={"block": [16, 32]}, warmup=1, rep=1)
@kiln.jit
def tuned_scale(A, B, factor, block=16):
    M = T.const("M")
    A: T.Tensor((M,), "float32")
    B: T.Tensor((M,), "int32")
    factor: T.float32
    C = T.empty((M,), "float32")
    with T.Kernel(T.ceildiv(M, block)) as bx:
        for i in T.Parallel(block):
            C[bx * block + i] = A[bx * block + i] * factor + B[bx * block + i]
    return C


def test_autotune_in_the_eager_style_passes_arguments_by_name(service, torch, monkeypatch):
    import kiln.tuning

    launches = []
    monkeypatch.setattr(kiln.Kernel, "__call__", lambda kernel, *args: launches.append((kernel.config["block"], args)))
    latencies = iter([2.0, 1.0])
    monkeypatch.setattr(kiln.tuning, "do_bench", lambda call, *args, **kwargs: (call(), next(latencies))[1])
    a, b = torch.empty(64, device="cuda"), torch.empty(64, dtype=torch.int32, device="cuda")
    tuned_scale(factor=2.0, B=b, A=a)
    assert launches == [(16, (a, b, 2.0)), (32, (a, b, 2.0)), (32, (a, b, 2.0))]
    tuned_scale(B=b, A=a, factor=3.0)
    assert launches[3:] == [(32, (a, b, 3.0))], "another scalar is no other search"
    assert len(service.requests) == 2


def test_a_lazy_function_of_any_number_of_arguments(service, torch):
    @kiln.jit
    def f(*shape):
        @T.prim_func
        def zero(A: T.Tensor(shape, "float32")):
            with T.Kernel(1):
                T.clear(A)

        return zero

    assert f(4, 8) is f(4, 8) and f(4, 8) is not f(4, 16)


def test_autotune_without_a_gpu_takes_the_first(service, monkeypatch):
    import kiln.tuning

    monkeypatch.setenv("KILN_TARGET", "cuda:sm_80")
    monkeypatch.setattr(kiln.tuning.targets, "device_target", lambda *args: None)
    with pytest.warns(UserWarning, match="no GPU to measure on"):
        assert tuned(128).config == {"block": 16, "stages": 1}


def test_public_names_are_there():
    names = ["UntrustedArtifact", "sparse", "language", *kiln.__all__]
    assert all(callable(getattr(kiln, name)) or inspect.ismodule(getattr(kiln, name)) for name in names)
    fresh = "import kiln; kiln.sparse.__doc__; kiln.UntrustedArtifact; from kiln import *; sparse, jit"
    assert subprocess.run([sys.executable, "-c", fresh]).returncode == 0


@pytest.mark.parametrize("thing", [T, kiln.sparse, *(getattr(kiln, name) for name in kiln.__all__ if not inspect.ismodule(getattr(kiln, name)))])
def test_public_names_are_described(thing):
    public = {name: value for name, value in vars(thing).items()
              if not name.startswith("_") and (inspect.isroutine(value) or inspect.isclass(value) or isinstance(value, property))}
    assert thing.__doc__ and not [name for name, value in public.items() if not value.__doc__]


def test_target_auto(monkeypatch):
    from kiln import target

    monkeypatch.setenv("KILN_TARGET", "hip:gfx942")
    assert target.resolve() == "hip:gfx942" and target.resolve("gfx1100") == "hip:gfx1100"
    assert target.resolve("cuda -arch=sm_90a") == "cuda:sm_90a" and target.resolve({"kind": "hip", "mcpu": "gfx942"}) == "hip:gfx942"
    monkeypatch.delenv("KILN_TARGET")
    monkeypatch.setattr(target, "device_target", lambda *args: None)
    with pytest.raises(RuntimeError, match="name the target"):
        target.resolve("cuda")
