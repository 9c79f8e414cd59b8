# SPDX-License-Identifier: Apache-2.0
"""The library as operators of torch, with a torch that computes nothing and a client that compiles nothing: registration, shapes of results
and of what torch.compile sees, gradients and their refusals, devices, how often something is compiled. tests/gpu/library runs the same on a
GPU."""

import pytest

import kiln.library.plans
from kiln import library
from kiln.library import torch_operators
from kiln.library.operation import OPERATIONS, parse


@pytest.fixture
def operators(torch, service, monkeypatch):
    """``torch.ops.kiln``, registered with the fake."""
    import fake_torch_library

    made = fake_torch_library.install(torch)
    monkeypatch.setattr(kiln.library.plans, "default_client", lambda: service)
    monkeypatch.setattr(kiln.library.plans, "_kernels", {})
    for operation in OPERATIONS.values():
        for name, value in (("_ready", {}), ("registered", None), ("tensor_type", ()), ("torch_dtypes", {}), ("torch", None)):
            monkeypatch.setattr(operation, name, value)
    torch_operators.register(torch)
    return made


def tensors(torch, device="cuda"):
    def make(*shape, dtype="bfloat16"):
        return torch.empty(*shape, dtype=getattr(torch, dtype), device=device)

    return make


def calls(t):
    """A call of every operator: its arguments."""
    x, w, row, square = t(5, 48), t(48), t(5, dtype="float32"), t(5, 48)
    label, q = t(5, dtype="int32"), t(2, 7, 4, 32)
    e4, packed, scales = t(5, 128, dtype="float8_e4m3fn"), t(8, 16, dtype="uint32"), t(1, 8)
    half = t(2, 7, 16, dtype="float32")
    return {
        "rms_norm": (x, w, 1e-6), "rms_norm_backward": (square, x, w, 1e-6), "layer_norm": (x, w, w, 1e-5),
        "layer_norm_backward": (square, x, w, row, row),
        "norm_weight_backward": (square, x, row, row), "softmax": (x,), "softmax_backward": (square, x), "cross_entropy": (x, label),
        "cross_entropy_backward": (row, x, label, row), "rope": (q, half, half), "swiglu": (x,),
        "swiglu_backward": (t(5, 24), x), "transpose": (x,),
        "reduce": (x, -1, "sum"), "matmul": (x, t(40, 48), t(40), None, None, None, False, True, None, False, False), "gemv": (x, w, None),
        "scaled_matmul": (e4, e4, t(1, 5, dtype="float32"), t(1, 1, dtype="float32"), None),
        "grouped_matmul": (t(128, 48), t(3, 40, 48), t(1, dtype="int32"), False),
        "quantized_matmul": (t(5, 128), packed, scales, "int4", 128), "quantize_rows": (x,), "attention": (q, q, q, True, None),
        "block_sparse_attention": (q, q, q, t(2, 4, 1, 2, dtype="int32"), t(2, 4, 1, dtype="int32"), 64, False, None),
        "linear_attention": (q, q, t(2, 7, 8, 16), t(2, 7, 8, dtype="float32")),
        "attention_decode": (q, t(6, 16, 2, 32), t(6, 16, 2, 32), t(2, dtype="int32"), t(2, 3, dtype="int32"), t(4, dtype="float32"), None),
        "latent_attention": (t(2, 1, 16, 192), t(2, 40, 192), t(2, dtype="int32"), None, None),
        "sparse_latent_attention": (t(2, 1, 16, 192), t(2, 40, 192), t(2, 1, 20, dtype="int32"), True, None),
        "scaled_attention": (*[t(2, 7, 4, 32, dtype="float8_e4m3fn")] * 3, *[t(4, dtype="float32")] * 3, True, None, None),
        "attention_with_lse": (q, q, q, True, None), "attention_backward": (q, q, q, q, t(2, 4, 7, dtype="float32"), q, True, None, False),
    }


NAMES = sorted(OPERATIONS)


def test_every_operator_is_defined(operators, torch):
    assert sorted(calls(tensors(torch))) == NAMES
    for name, operation in OPERATIONS.items():
        registered = getattr(operators, name)
        assert registered.schema == operation.schema and set(registered.kernels) == {"CPU", "CUDA"}
        assert registered.fake is not None and registered.backward is not None


@pytest.mark.parametrize("name", NAMES)
def test_what_torch_compile_sees_is_what_comes(operators, torch, name):
    results = OPERATIONS[name](*calls(tensors(torch))[name])
    seen = OPERATIONS[name](*calls(tensors(torch, "meta"))[name])
    results, seen = (r if isinstance(r, tuple) else (r,) for r in (results, seen))
    assert [(tuple(r.shape), r.dtype) for r in results] == [(tuple(s.shape), s.dtype) for s in seen]
    assert {r.device.type for r in results} == {"cuda"} and {s.device.type for s in seen} == {"meta"}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_have_the_shapes_of_arguments_or_are_refused(operators, torch, name):
    arguments = calls(tensors(torch))[name]
    output = OPERATIONS[name](*arguments)
    first = output[0] if isinstance(output, tuple) else output
    zeros = [r._like() for r in (output if isinstance(output, tuple) else (output,))]
    if OPERATIONS[name].backward is None:
        with pytest.raises(NotImplementedError, match=rf"kiln.library.{name} has no gradient: (compute|use) "):
            first._backward(*zeros)
        return
    if name == "rope":
        with pytest.raises(NotImplementedError, match="cos.detach"):
            first._backward(*zeros)
        return
    gradients = first._backward(*zeros)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    assert len(gradients) == len(arguments)
    for gradient, argument in zip(gradients, arguments):
        assert gradient is None or (tuple(gradient.shape), gradient.dtype) == (tuple(argument.shape), argument.dtype)
    assert gradients[0] is not None


def test_gradients_that_depend_on_arguments(operators, torch):
    t = tensors(torch)
    for keywords in ({"activation": "relu"}, {"row_scale": t(5, dtype="float32")}, {"out_dtype": torch.float32}):
        with pytest.raises(NotImplementedError, match="matmul has no gradient with activation, row_scale or an out_dtype"):
            library.matmul(t(5, 48), t(48, 40), **keywords)._backward(t(5, 40))
    with pytest.raises(NotImplementedError, match="amax has no gradient: use torch.amax"):
        library.amax(t(5, 48))._backward(t(5))
    for ta in (False, True):
        for tb in (False, True):
            a, b = t(*((48, 5) if ta else (5, 48))), t(*((40, 48) if tb else (48, 40)))
            da, db, *_ = library.matmul(a, b, trans_a=ta, trans_b=tb)._backward(t(5, 40))
            assert da.shape == a.shape and db.shape == b.shape
    da, db, *_ = library.matmul(t(2, 5, 48), t(48, 40))._backward(t(2, 5, 40))
    assert (tuple(da.shape), tuple(db.shape)) == ((2, 5, 48), (48, 40))


def test_attention_keeps_sums_where_a_gradient_is_wanted(operators, torch, service, monkeypatch):
    """And in order where torch asks for that; dq, dk and dv come from one call."""
    q, k = tensors(torch)(2, 7, 4, 32), tensors(torch)(2, 9, 2, 32)
    called = []
    for name in ("attention", "attention_with_lse", "attention_backward"):
        operator = getattr(operators, name)
        monkeypatch.setitem(operator.kernels, "CUDA", lambda *a, run=operator.kernels["CUDA"], name=name: called.append((name, a)) or run(*a))
    q.requires_grad = k.requires_grad = False
    library.attention(q, k, k)
    k.requires_grad = True
    output = library.attention(q, k, k, causal=True, scale=0.5)
    for deterministic in (False, True):
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
        dq, dk, dv, *others = output._backward(output._like(), None)
        assert (dq.shape, dk.shape, dv.shape, others) == (q.shape, k.shape, k.shape, [None, None])
    assert [name for name, _ in called] == ["attention", "attention_with_lse", "attention_backward", "attention_backward"]
    assert [given[6:] for _, given in called[2:]] == [(True, 0.5, False), (True, 0.5, True)]
    monkeypatch.setattr(torch, "is_grad_enabled", lambda: False)
    library.attention(q, k, k)
    assert called[-1][0] == "attention", "nothing is differentiated within torch.no_grad()"


def test_batch_sizes_share_kernels(operators, torch, service):
    t = tensors(torch)
    for m in (3, 700, 8191):
        assert tuple(library.rms_norm(t(m, 48), t(48)).shape) == (m, 48)
        library.softmax(t(m, 48)), library.layer_norm(t(m, 48), t(48), t(48)), library.swiglu(t(m, 96))
    assert len(service.requests) == 4 and {r.target for r in service.requests} == {"cuda:sm_90a"}
    for m in range(2, 129):
        assert tuple(library.matmul(t(m, 512), t(512, 256)).shape) == (m, 256)
    assert len(service.requests) == 4 + 16, "one for each eight rows"
    for batch, tokens in ((1, 8), (3, 100), (2, 4096)):
        library.attention(*[t(batch, tokens, 4, 64)] * 3)
    assert len(service.requests) == 4 + 16 + 1, "the client that stands in for the planner expects the same of few tokens and of many"


def test_options_that_results_are_compiled_with(operators, torch, service):
    t = tensors(torch)
    library.cross_entropy(t(5, 48), t(5, dtype="int64"))
    library.grouped_matmul(t(128, 128, dtype="float8_e4m3fn"), t(3, 40, 128, dtype="float8_e4m3fn"), t(1, dtype="int32"),
                           fast_accumulation=True)
    library.softmax(t(5, 48))
    assert [r.options for r in service.requests] == [{"fast_math": True}, {"fast_accumulation": True}, {}]


def test_devices(operators, torch, service):
    t, host = tensors(torch), tensors(torch, "cpu")
    with pytest.raises(ValueError, match=r"rms_norm: weight is on cpu:0 and x on cuda:0; move weight with .to\(x.device\)"):
        library.rms_norm(t(5, 48), host(48))
    with pytest.raises(ValueError, match="rms_norm: x is on the CPU; move it to the GPU with .cuda"):
        library.rms_norm(host(5, 48), host(48))
    import numpy

    with pytest.raises(TypeError, match="weight is ndarray, while x is a tensor of torch"):
        library.rms_norm(t(5, 48), numpy.zeros(48))
    with pytest.raises(TypeError, match="weight is a tensor of torch, while x is none"):
        library.rms_norm(numpy.zeros((5, 48), numpy.float32), t(48))
    assert not service.requests


def test_dtypes_by_name(operators, torch):
    t = tensors(torch)
    a, b = t(5, 48), t(48, 40)
    assert library.matmul(a, b, out_dtype="float32").dtype is library.matmul(a, b, out_dtype=torch.float32).dtype is torch.float32
    with pytest.raises(TypeError, match="out_dtype is 'float33'; use a dtype of torch, or one of"):
        library.matmul(a, b, out_dtype="float33")


class Calls:
    """As kiln._runtime.Calls keeps calls, by what their arguments are."""

    def __init__(self):
        self.kept, self.made, self.watched, self.result = {}, [], False, None

    def key(self, arguments):
        return tuple((tuple(a.shape), a.dtype) if hasattr(a, "shape") else a for a in arguments)

    def keep(self, arguments, kernel, inputs, outputs):
        self.kept[self.key(arguments)] = (kernel, inputs, outputs)
        return True

    def launched(self, arguments):
        if self.key(arguments) not in self.kept:
            return NotImplemented
        self.made.append(arguments)
        self.result = arguments[0]._like()
        return self.result

    def called(self, arguments):
        return NotImplemented if self.watched else self.launched(arguments)


@pytest.fixture
def known(operators, torch, monkeypatch):
    """``known(name)``: the Calls of an operation."""
    import types

    monkeypatch.setattr(torch, "compiler", types.SimpleNamespace(is_compiling=lambda: False), raising=False)

    def give(name):
        monkeypatch.setattr(OPERATIONS[name], "calls", Calls())
        return OPERATIONS[name].calls

    return give


def test_a_call_like_an_earlier_one_is_launched_at_once(torch, known, service):
    t, calls = tensors(torch), known("matmul")
    a, b, bias = t(2, 3, 48), t(40, 48), t(40)
    first = library.matmul(a, b, bias, trans_b=True, out_dtype="float32")
    (_, inputs, outputs), = calls.kept.values()
    assert inputs == ((0, (6, 48)), (1, (40, 48)), (0, (1,)), (2, (40,)), (0, (1, 1)))
    assert outputs == (((2, 3, 40), {"dtype": torch.float32, "device": a.device}, (6, 40)),)
    for dtype in ("float32", torch.float32):
        assert library.matmul(a, b, bias, trans_b=True, out_dtype=dtype) is calls.result
    assert first.dtype is torch.float32 and tuple(library.matmul(a, b, trans_b=True).shape) == (2, 3, 40), "another call"
    made = len(calls.made)
    torch.compiler.is_compiling = lambda: True
    assert library.matmul(a, b, bias, trans_b=True, out_dtype="float32") is calls.result and len(calls.made) == made + 1, "by the operator"


def test_calls_that_torch_has_to_see_go_through_its_operator(torch, operators, known):
    t, calls, seen = tensors(torch), known("layer_norm"), []
    x, w = t(5, 48), t(48)
    library.layer_norm(x, w, w)
    (_, _, outputs), = calls.kept.values()
    assert [(size, keywords["dtype"]) for size, keywords, _ in outputs] == [((5, 48), torch.bfloat16), ((5,), torch.float32), ((5,), torch.float32)]
    operators.layer_norm.kernels["CUDA"] = lambda *arguments: seen.append(arguments) or OPERATIONS["layer_norm"].run(*arguments)
    calls.watched = True
    calls.launched = lambda arguments: calls.made.append(arguments) or (x, w, w)
    library.layer_norm(x, w, w)
    assert seen == [(x, w, w, 1e-5)] and calls.made == seen


def test_calls_with_more_to_do_than_a_launch_are_not_kept(torch, known, monkeypatch):
    t, losses, norms, sums = tensors(torch), known("cross_entropy"), known("softmax"), known("reduce")
    library.cross_entropy(t(5, 48), t(5, dtype="int64"))  # labels are converted
    spread = t(9, 48)
    monkeypatch.setattr(type(spread), "is_contiguous", lambda self: self is not spread)
    library.softmax(spread)
    library.sum(t(0, 48))
    assert not losses.kept and not norms.kept and not sums.kept
    library.cross_entropy(t(5, 48), t(5, dtype="int32")), library.softmax(t(5, 48)), library.sum(t(3, 48))
    assert len(losses.kept) == len(norms.kept) == len(sums.kept) == 1
    monkeypatch.setenv("KILN_TARGET", "cuda:sm_80")
    library.softmax(t(7, 48))
    assert len(norms.kept) == 1, "for another target than the device's own"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_what_the_kernel_takes(torch, known, name):
    kept = known(name).kept
    OPERATIONS[name](*calls(tensors(torch))[name])
    for kernel, inputs, outputs in kept.values():
        assert [len(inputs), len(outputs)] == [sum(param.output is output for param in kernel.launch.params) for output in (False, True)]
    if name in ("attention_backward", "scaled_attention"):
        assert not kept, "its kernel writes sums of its own as well"


def test_schemas():
    assert parse("f(Tensor x, Tensor? y, float eps) -> (Tensor, Tensor)")[0] == "f"
    parameters = parse("f(Tensor x, Tensor? y) -> Tensor")[1]
    assert [(p.kind, p.optional, p.name) for p in parameters] == [("Tensor", False, "x"), ("Tensor", True, "y")]


def test_a_torch_that_is_too_old_is_refused(torch, monkeypatch):
    import importlib
    import types

    monkeypatch.setattr(torch, "library", types.SimpleNamespace())
    with pytest.raises(ImportError, match="kiln.library needs torch 2.4 or newer, whose torch.library has register_autograd; this is "
                                          "2.9.0"):
        torch_operators.register(torch)
    assert importlib.import_module("kiln.library") is library
