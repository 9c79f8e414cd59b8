# SPDX-License-Identifier: Apache-2.0
"""What is timed of Triton's tutorials. A case makes its inputs, and gives a call with the bytes that it must move or the operations that it does."""

import importlib.util
import os
import pathlib
import sys

import torch


def tutorial(root, name: str):
    """The module of a tutorial, which tests itself where it is imported, but measures nothing."""
    import triton

    triton.testing.Mark.run = lambda self, *args, **kwargs: None
    return module(pathlib.Path(root) / "python/tutorials" / f"{name}.py")


def module(path):
    name = "tutorial_" + path.stem.replace("-", "_").replace(".", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    return sys.modules[name]


def softmax(root, columns: int):
    x = torch.randn(4096, columns, device="cuda")
    function = tutorial(root, "02-fused-softmax").softmax
    return (lambda: function(x)), {"bytes": 2 * x.nbytes}


def matmul(root, size: int):
    a, b = torch.randn(size, size, device="cuda", dtype=torch.float16), torch.randn(size, size, device="cuda", dtype=torch.float16)
    function = tutorial(root, "03-matrix-multiplication").matmul
    return (lambda: function(a, b)), {"flops": 2 * size ** 3}


def layer_norm(root, columns: int, backward: bool):
    function = tutorial(root, "05-layer-norm").LayerNorm.apply
    x = (torch.randn(4096, columns, device="cuda", dtype=torch.float16) * 0.5 - 2.3).requires_grad_()
    weight, bias = (torch.rand(columns, device="cuda", dtype=torch.float16).requires_grad_() for _ in range(2))
    if not backward:
        return (lambda: function(x, (columns,), weight, bias, 1e-5)), {"bytes": 2 * x.nbytes}
    y = function(x, (columns,), weight, bias, 1e-5)
    given = torch.randn_like(x)

    def call():
        x.grad = weight.grad = bias.grad = None
        y.backward(given, retain_graph=True)

    return call, {"bytes": 3 * x.nbytes}


def attention(root, length: int, depth: int, causal: bool):
    function = tutorial(root, "06-fused-attention").attention
    q, k, v = (torch.randn(4, 32, length, depth, device="cuda", dtype=torch.float16) for _ in range(3))
    return (lambda: function(q, k, v, causal, 1.3, False)), {"flops": 4 * 4 * 32 * length ** 2 * depth // (2 if causal else 1)}


def sparse_latent(root, block: int, warps: int):
    """4096 queries of 128 heads, each with 2048 keys of 576 elements, the first 512 of which are values."""
    kernel = module(pathlib.Path(os.environ["KILN_TUTORIALS_SEED"])).triton_sparse_mla_fwd
    queries, keys, heads, chosen, values, rest = 4096, 4096, 128, 2048, 512, 64
    generator = torch.Generator("cuda").manual_seed(0)
    q = torch.randn(1, queries, heads, values + rest, device="cuda", dtype=torch.bfloat16, generator=generator)
    kv = torch.randn(1, keys, 1, values + rest, device="cuda", dtype=torch.bfloat16, generator=generator)
    indices = torch.rand(queries, keys, device="cuda", generator=generator).topk(chosen).indices.to(torch.int32)[None, :, None]
    out, lse = torch.empty_like(q[..., :values]), torch.empty(1, queries, heads, device="cuda", dtype=torch.bfloat16)
    scale = (values + rest) ** -0.5
    strides = [stride for x in (q, kv) for stride in (x.stride(0), x.stride(2), x.stride(1), x.stride(3))]
    strides += [indices.stride(0), indices.stride(2), indices.stride(1), indices.stride(3)]
    strides += [out.stride(0), out.stride(2), out.stride(1), out.stride(3), lse.stride(0), lse.stride(2), lse.stride(1)]

    def call():
        kernel[(1, queries, heads // block)](q, kv, indices, scale, out, lse, *strides, 1, queries, keys, chosen, values, rest, values, rest, heads,
                                             heads, 1, 64, block, False, num_warps=warps)

    call()
    some = torch.arange(0, queries, 513, device="cuda")
    wide = kv[0, :, 0].double()[indices[0, some, 0].long()]
    weights = torch.softmax(q[0, some].double() @ wide.transpose(1, 2) * scale, -1)
    wanted = weights @ wide[..., :values]
    error = float((out[0, some].double() - wanted).norm() / wanted.norm())
    if not error < 2e-2:
        raise AssertionError(f"off by {error:.3e} of the result")
    return call, {"flops": 2 * queries * heads * chosen * (2 * values + rest)}


# name: (function, its arguments behind the checkout, "copy" where the bar is a copy of as many bytes, the tutorial's bar of Triton).
CASES = {
    **{f"02 softmax 4096x{n}": (softmax, (n,)) for n in (1024, 2048, 4096, 8192, 12416)},
    **{f"03 matmul {n}": (matmul, (n,)) for n in (2048, 4096, 8192)},
    **{f"05 layer norm 4096x{n}": (layer_norm, (n, False)) for n in (4096, 8192, 15872)},
    **{f"05 layer norm backward 4096x{n}": (layer_norm, (n, True)) for n in (4096, 8192)},
    **{f"06 attention {n} D{d}{' causal' if causal else ''}": (attention, (n, d, causal))
       for d in (64, 128) for n in (4096, 16384) for causal in (False, True)},
    **{f"sparse latent, {block} heads, {warps} warps": (sparse_latent, (block, warps)) for block, warps in ((32, 4), (64, 4), (64, 8), (128, 8))},
}
