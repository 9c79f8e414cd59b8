# SPDX-License-Identifier: Apache-2.0
"""What torch does with kiln.library's operators: opcheck, torch.compile, graphs, streams, refusals, and tensors of the CPU."""

import functools

import kiln
import torch
import torch._dynamo.testing
from kiln import library
from kiln.library.operation import OPERATIONS

from library_cases import losses, near, normal, rms


def arguments(name, device="cuda", dtype=torch.bfloat16):
    """A call of each operator."""

    def t(*shape, dtype=dtype):
        return (torch.randn(shape) * 0.5).to(dtype).to(device)

    x, w, row = t(5, 48), t(48), t(5, dtype=torch.float32)
    label = torch.randint(0, 48, (5,)).to(torch.int32).to(device)
    q, half = t(2, 7, 4, 32), t(2, 7, 16, dtype=torch.float32)
    e4 = t(5, 128, dtype=torch.float8_e4m3fn)
    loss = losses(x.float(), label)
    q8, one = t(2, 7, 4, 32, dtype=torch.float8_e4m3fn), torch.ones(1, device=device)
    return {
        "rms_norm": (x, w, 1e-6), "rms_norm_backward": (t(5, 48), x, w, 1e-6), "layer_norm": (x, w, t(48), 1e-5),
        "layer_norm_backward": (t(5, 48), x, w, row, row), "norm_weight_backward": (t(5, 48), x, row, row), "softmax": (x,),
        "softmax_backward": (t(5, 48), torch.softmax(x.float(), -1).to(dtype)), "cross_entropy": (x, label),
        "cross_entropy_backward": (row, x, label, loss),
        "rope": (q, half, half), "swiglu": (x,), "swiglu_backward": (t(5, 24), x), "transpose": (x,), "reduce": (x, -1, "sum"),
        "matmul": (x, t(40, 48), t(40), None, None, None, False, True, None, False, False), "gemv": (t(40, 48), w, None),
        "scaled_matmul": (e4, e4, t(1, 5, dtype=torch.float32), t(1, 1, dtype=torch.float32), None),
        "grouped_matmul": (t(128, 48), t(3, 40, 48), torch.ones(1, dtype=torch.int32, device=device), False),
        "quantized_matmul": (t(5, 128), torch.randint(0, 256, (8, 64)).to(torch.uint8).to(device), t(1, 8), "int4", 128),
        "quantize_rows": (x,), "attention": (q, q, q, True, None), "attention_with_lse": (q, t(2, 7, 2, 32), t(2, 7, 2, 32), True, None),
        "attention_backward": (q, q, q, q, t(2, 4, 7, dtype=torch.float32), q, True, None, False),
        "scaled_attention": (q8, q8, q8, one, one, one, True, None, None),
        "block_sparse_attention": (q, q, q, torch.zeros(2, 4, 1, 2, dtype=torch.int32, device=device),
                                   torch.ones(2, 4, 1, dtype=torch.int32, device=device), 64, False, None),
        "linear_attention": (q, q, t(2, 7, 8, 16), -t(2, 7, 8, dtype=torch.float32).abs()),
        "attention_decode": (q, t(6, 16, 2, 32), t(6, 16, 2, 32), torch.tensor([40, 3], dtype=torch.int32, device=device),
                             torch.arange(6, dtype=torch.int32, device=device).view(2, 3), t(4, dtype=torch.float32), None),
        "latent_attention": (t(2, 1, 16, 192), t(2, 40, 192), torch.tensor([40, 3], dtype=torch.int32, device=device), None, None),
        "sparse_latent_attention": (t(2, 1, 16, 192), t(2, 40, 192), torch.randint(-1, 40, (2, 1, 20)).to(torch.int32).to(device), True, None),
    }[name]


def opcheck(name, gradients):
    given = arguments(name)
    if gradients:
        differentiable = {"rope": 1, "cross_entropy": 1}.get(name, len(given))
        given = tuple(a.requires_grad_() if i < differentiable and isinstance(a, torch.Tensor) and a.dtype.is_floating_point else a
                      for i, a in enumerate(given))
    # torch has no product of 8-bit floats, with which its test of schemas changes arguments.
    small = any(isinstance(a, torch.Tensor) and a.dtype.is_floating_point and a.element_size() == 1 for a in given)
    utilities = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if not small:
        utilities.insert(0, "test_schema")
    torch.library.opcheck(getattr(torch.ops.kiln, name).default, given, test_utils=utilities)


def block(x, w, b, weight, cos, sin, label):
    """A function of many operators."""
    h = library.rms_norm(x, w)
    h = library.matmul(h, weight, trans_b=True)
    tokens, heads = x.shape[0], weight.shape[0] // 32
    turned = library.rope(h.view(tokens, heads, 32), cos, sin)
    seen = library.attention(turned.unsqueeze(0), turned.unsqueeze(0), h.view(1, tokens, heads, 32), causal=True)
    y, _, _ = library.layer_norm(seen.reshape(tokens, -1)[:, : x.shape[1]], w, b)
    gated = library.swiglu(y)
    wide = library.matmul(gated, weight[:, : gated.shape[1]], trans_b=True, activation="silu", out_dtype=torch.float32)
    q, s = library.quantize_rows(wide)
    return library.cross_entropy(library.softmax(wide), label) + library.sum(wide) + s + library.amax(q.to(torch.float32))


def block_arguments(tokens):
    n, heads = 64, 4
    angle = torch.rand(tokens, 16, device="cuda")
    return (normal(tokens, n, dtype=torch.bfloat16), normal(n, dtype=torch.bfloat16), normal(n, dtype=torch.bfloat16),
            normal(heads * 32, n, dtype=torch.bfloat16), angle.cos(), angle.sin(),
            torch.randint(0, heads * 32, (tokens,), device="cuda", dtype=torch.int32))


def equal(actual, expected):
    if not torch.equal(actual, expected):
        raise AssertionError(f"other bits than eagerly; largest difference {float((actual - expected).abs().max())}")


def compiled(backend, mode):
    torch._dynamo.reset()
    options = {"mode": mode} if mode else {"backend": backend}
    function = torch.compile(block, fullgraph=True, dynamic=False, **options)
    for _ in range(3):
        given = block_arguments(33)
        equal(function(*given).clone(), block(*given))


def compiled_for_all_sizes(backend):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    function = torch.compile(lambda x, w: library.softmax(library.rms_norm(x, w)), fullgraph=True, dynamic=True, backend=counter)
    w = normal(64, dtype=torch.bfloat16)
    for tokens in (5, 33, 100, 1000):
        x = normal(tokens, 64, dtype=torch.bfloat16)
        equal(function(x, w), library.softmax(library.rms_norm(x, w)))
    if counter.frame_count != 1:
        raise AssertionError(f"compiled {counter.frame_count} times for four sizes")


def compiled_training(backend):
    """Forward and backward of a compiled function."""
    torch._dynamo.reset()

    def loss(x, w, b, label):
        return library.cross_entropy(library.matmul(library.swiglu(library.layer_norm(x, w, b)[0]), x[:, :32], trans_b=True), label).mean()

    x, w, b = normal(24, 64, dtype=torch.bfloat16), normal(64, dtype=torch.bfloat16), normal(64, dtype=torch.bfloat16)
    label = torch.randint(0, 24, (24,), device="cuda")
    found = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend=backend)):
        leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
        function(*leaves, label).backward()
        found.append([t.grad for t in leaves])
    for eager, made in zip(*found):
        near(made, eager.double(), times=2)


def graph():
    """Captured without a call before, so kernels are loaded meanwhile; replayed on new numbers."""
    given = block_arguments(45)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = block(*given)
    for _ in range(3):
        for tensor, new in zip(given, block_arguments(45)):
            tensor.copy_(new)
        captured.replay()
        torch.cuda.synchronize()
        equal(result, block(*given))


def streams():
    """Each call runs on the current stream: behind a long copy there, its input is right."""
    source, w = normal(4096, 4096), torch.ones(4096, device="cuda")
    expected = rms(source.double() * 3, w.double())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x = torch.zeros_like(source)
        for _ in range(20):
            x.copy_(source)
        y = library.rms_norm(x.mul_(3), w)
    torch.cuda.current_stream().wait_stream(stream)
    near(y, expected)


def refusals():
    """By their kind, where torch.compile and meta tensors see them too."""
    x, w = normal(4, 8, dtype=torch.float16), normal(8, dtype=torch.float16)
    for call, kind, says in (
            (lambda: library.rms_norm(x, w[:5]), ValueError, "weight has shape"),
            (lambda: library.rms_norm(x.long(), w), TypeError, "x has dtype int64"),
            (lambda: library.rms_norm(x, w.cpu()), ValueError, "weight is on cpu"),
            (lambda: library.rms_norm(x.to("meta"), w[:5].to("meta")), ValueError, "weight has shape"),
            (lambda: library.rms_norm(x.cpu(), w.cpu()), ValueError, "x is on the CPU"),
            (lambda: torch.ops.kiln.attention(*[normal(1, 4, 2, 16, dtype=torch.float16).requires_grad_()] * 3, False, None).sum().backward(),
             NotImplementedError, "attention has no gradient: use kiln.library.attention"),
            (lambda: library.attention(*[normal(1, 4, 2, 144, dtype=torch.float16).requires_grad_()] * 3).sum().backward(),
             ValueError, "use a multiple of 16 up to 128")):
        try:
            call()
        except kind as refusal:
            if says not in str(refusal):
                raise AssertionError(f"says: {refusal}") from refusal
        else:
            raise AssertionError(f"no {kind.__name__}: {says}")


def on_the_cpu():
    """Emulated, as operators of torch."""
    with kiln.emulation():
        for name in sorted(OPERATIONS):
            given = arguments(name, "cpu")
            results = getattr(torch.ops.kiln, name)(*given)
            same = getattr(torch.ops.kiln, name)(*[a.cuda() if isinstance(a, torch.Tensor) else a for a in given])
            for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (results, same))):
                if a.device.type != "cpu":
                    raise AssertionError(f"{name}: a result on {a.device}")
                near(a.float().cuda(), b.double(), times=5000)


def known_calls():
    """Calls like earlier ones, which the extension launches: the same results, for all operators; how many are launched so."""
    kept = []
    for name in sorted(OPERATIONS):
        operation, given = OPERATIONS[name], arguments(name)
        if operation.calls is None:
            raise AssertionError("this torch does not say what is in the way of a call: every call takes the long way")
        with torch.no_grad():
            first, second = operation(*given), operation.calls.called(given)
            operator = getattr(torch.ops.kiln, name)(*given)
        if second is NotImplemented:
            continue
        kept.append(name)
        for results in (second, operator):
            for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (first, results))):
                if a.shape != b.shape or a.dtype != b.dtype or a.stride() != b.stride():
                    raise AssertionError(f"{name}: {tuple(b.shape)} of {b.dtype} at once, {tuple(a.shape)} of {a.dtype} the long way")
                near(b.float(), a.double(), times=2)
    if not {"matmul", "rms_norm", "softmax", "attention"} <= set(kept):
        raise AssertionError(f"launched at once are {', '.join(kept)} only")
    return f"{len(kept)} of {len(OPERATIONS)} operators; not {', '.join(sorted(set(OPERATIONS) - set(kept)))}"


def calls_that_torch_sees():
    """What changes or watches operators is not passed by."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    x, w, seen = normal(8, 64, dtype=torch.bfloat16), normal(64, dtype=torch.bfloat16), []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Renaming(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    expected = library.rms_norm(x, w)
    equal(library.rms_norm(x, w), expected)
    for mode in (Watching, Renaming):
        seen.clear()
        with mode():
            equal(library.rms_norm(x, w), expected)
        if not any("rms_norm" in name for name in seen):
            raise AssertionError(f"{mode.__name__} has seen {seen}")
    with torch.inference_mode():
        equal(library.rms_norm(x, w), expected)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        made = library.rms_norm(fake.from_tensor(x), fake.from_tensor(w))
    if type(made) is torch.Tensor or made.shape != x.shape:
        raise AssertionError(f"of fake tensors: {type(made).__name__}")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        library.rms_norm(x, w)
    if not any("rms_norm" in event.key for event in profile.key_averages()):
        raise AssertionError("the profiler does not see the operator")
    wanted = x.clone().requires_grad_()
    if library.rms_norm(wanted, w).grad_fn is None:
        raise AssertionError("no gradient")
    with torch.no_grad():
        if library.rms_norm(wanted, w).requires_grad:
            raise AssertionError("a gradient within no_grad")
    odd = normal(8 * 64 + 1, dtype=torch.bfloat16)[1:].view(8, 64)
    for _ in range(2):
        equal(library.rms_norm(odd, w), library.rms_norm(odd.clone(), w))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late = x * 2
        made = library.rms_norm(late, w)
    side.synchronize()
    equal(made, library.rms_norm(x * 2, w))


def overhead():
    """Host time of a call, in microseconds: the median of bursts that fit the stream's queue. Fails where a product takes twice torch's."""
    import statistics
    import time

    x, w = normal(8, 1024, dtype=torch.bfloat16), normal(1024, dtype=torch.bfloat16)
    a, b, q = normal(16, 256, dtype=torch.bfloat16), normal(256, 256, dtype=torch.bfloat16), normal(1, 64, 4, 64, dtype=torch.bfloat16)
    heads, figures = q.transpose(1, 2), {}
    with torch.no_grad():
        for name, call in (("torch.empty", lambda: torch.empty((16, 256), dtype=torch.bfloat16, device="cuda")),
                           ("kiln.library.matmul", lambda: library.matmul(a, b)), ("torch.matmul", lambda: torch.matmul(a, b)),
                           ("kiln.library.rms_norm", lambda: library.rms_norm(x, w)),
                           ("torch.nn.functional.rms_norm", lambda: torch.nn.functional.rms_norm(x, (1024,), w)),
                           ("kiln.library.attention", lambda: library.attention(q, q, q)),
                           ("torch's attention", lambda: torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)),
                           ("torch.ops.kiln.rms_norm", lambda: torch.ops.kiln.rms_norm(x, w, 1e-6))):
            bursts = []
            for _ in range(51):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(100):
                    call()
                bursts.append((time.perf_counter() - begin) * 1e4)
            figures[name] = statistics.median(bursts)
    said = ", ".join(f"{name} {figure:.1f} µs" for name, figure in figures.items())
    if figures["kiln.library.matmul"] > 2 * figures["torch.matmul"]:
        raise AssertionError(said)
    return said


def cases():
    """(name, family, call) of each."""
    for name in sorted(OPERATIONS):
        yield f"opcheck {name}", "opcheck", functools.partial(opcheck, name, False)
        if OPERATIONS[name].backward is not None:
            yield f"opcheck {name} with gradients", "opcheck", functools.partial(opcheck, name, True)
    for backend, mode in (("eager", None), ("aot_eager", None), ("inductor", None), ("inductor", "reduce-overhead")):
        yield f"torch.compile {backend} {mode or ''}".strip(), "compile", functools.partial(compiled, backend, mode)
    for backend in ("aot_eager", "inductor"):
        yield f"torch.compile {backend} for all sizes", "compile", functools.partial(compiled_for_all_sizes, backend)
        yield f"torch.compile {backend} with gradients", "compile", functools.partial(compiled_training, backend)
    yield "CUDA graph", "graph", graph
    yield "streams", "streams", streams
    yield "refusals", "refusals", refusals
    yield "tensors of the CPU", "emulated", on_the_cpu
    yield "calls like earlier ones", "known calls", known_calls
    yield "calls that torch sees", "known calls", calls_that_torch_sees
    yield "host time", "overhead", overhead
