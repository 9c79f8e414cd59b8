# SPDX-License-Identifier: Apache-2.0
"""unsloth's kernels through the functions that call them, against torch."""

import contextlib
import importlib
import pathlib
import sys
import types

import pytest
import torch
import torch.nn.functional as F
import triton

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stand_ins import CORPORA, Anything, Finder, close, module, unchanged  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

FOLDER = CORPORA / "unsloth" / "unsloth"


def calculate_settings(n):
    block = triton.next_power_of_2(n)
    return block, 32 if block >= 32768 else 16 if block >= 8192 else 8 if block >= 2048 else 4


@triton.jit
def triton_cast(x, dtype):
    return x.to(dtype)


GIVEN = {
    "unsloth": {"DEVICE_TYPE": "cuda"}, "unsloth.kernels": {}, "unsloth.device_type": {"DEVICE_COUNT": 1, "DEVICE_TYPE": "cuda"},
    "unsloth.kernels.utils": {"calculate_settings": calculate_settings, "torch_gpu_device": lambda device: contextlib.nullcontext(),
                              "torch_device_stream": lambda device: None, "triton_tanh": libdevice.tanh, "triton_cast": triton_cast,
                              "MAX_FUSED_SIZE": 65536, "is_cdna": lambda: False, "is_rdna": lambda: False}}
REAL = [f"unsloth.kernels.moe.grouped_gemm.{name}" for name in ("interface", "kernels.tuning", "kernels.autotuning")]


@contextlib.contextmanager
def modules():
    """In it the kernels can be imported."""
    before = dict(sys.modules)
    finder = Finder("unsloth", FOLDER, GIVEN, REAL)
    sys.meta_path.insert(0, finder)
    module("unsloth_zoo")
    module("unsloth_zoo.temporary_patches")
    module("unsloth_zoo.temporary_patches.common", torch_compile=unchanged)
    module("unsloth_zoo.utils", Version=lambda text: tuple(int(part) for part in str(text).split("+")[0].split("a")[0].split(".")[:2]))
    module("unsloth_zoo.log", logger=Anything())
    module("unsloth_zoo.loss_utils", patch_loss_functions=None, post_patch_loss_function=None)
    module("unsloth_zoo.patching_utils", patch_layernorm=None)
    module("transformers")
    module("transformers.models")
    module("transformers.models.llama")
    module("transformers.models.llama.modeling_llama", logger=Anything(), LlamaRMSNorm=torch.nn.Module)
    module("pandas")
    torch.manual_seed(0)
    yield
    sys.meta_path.remove(finder)
    for name in set(sys.modules) - set(before):
        if name.split(".")[0] in ("unsloth", "unsloth_zoo", "transformers", "pandas"):
            del sys.modules[name]


@pytest.fixture(autouse=True, scope="module")
def _modules():
    with modules():
        yield


def kernels(name: str):
    return importlib.import_module("unsloth.kernels." + name)


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("rows, width", [(4, 64), (2048, 8192)])
@pytest.mark.parametrize("file, forward, backward, activation", [
    ("geglu", "geglu_exact_forward_kernel", "geglu_exact_backward_kernel", F.gelu),
    ("geglu", "geglu_approx_forward_kernel", "geglu_approx_backward_kernel", tanh_gelu),
    ("swiglu", "swiglu_fg_kernel", "swiglu_DWf_DW_dfg_kernel", F.silu)])
def test_gated_units(file, forward, backward, activation, rows, width):
    of = kernels(file)
    e, g = (torch.randn(1, rows, width, requires_grad=True) for _ in range(2))
    wanted = activation(e) * g
    close(getattr(of, forward)(e.detach(), g.detach()), wanted)
    weights = torch.randn(rows, width)
    wanted.backward(weights.reshape(1, rows, width))
    a = getattr(of, backward)(weights.clone(), *(x.detach().reshape(rows, width).clone() for x in (e, g)))
    for got, right in zip(a, (wanted, weights * activation(e).reshape(rows, width), e.grad)):
        close(got, right.detach().reshape(rows, width))


def rms(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("rows, width", [(5, 96), (4096, 4096)])
@pytest.mark.parametrize("kind", ["rms", "gemma", "layer"])
def test_norms(kind, rows, width):
    x, w, b = torch.randn(2, rows, width, requires_grad=True), torch.randn(width), torch.randn(width)
    if kind == "layer":
        got, wanted = kernels("layernorm").Fast_Layernorm.apply(x, w, b, 1e-6), F.layer_norm(x, (width,), w, b, 1e-6)
    else:
        got = kernels("rms_layernorm").Fast_RMS_Layernorm.apply(x, w, 1e-6, kind == "gemma")
        wanted = rms(x) * (w + 1 if kind == "gemma" else w)
    close(got, wanted)
    gradient = torch.randn_like(wanted)
    got.backward(gradient.clone())
    mine, x.grad = x.grad.clone(), None
    wanted.backward(gradient)
    close(mine, x.grad)


def turned(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


@pytest.mark.parametrize("length, heads, width", [(6, 4, 32), (2048, 32, 128)])
@pytest.mark.parametrize("together", [False, True])
def test_rope(together, length, heads, width):
    of = kernels("rope_embedding")
    c, s = torch.randn(length, width // 2), torch.randn(length, width // 2)
    cc, ss = torch.cat([c, c], -1), torch.cat([s, s], -1)
    if together:
        q, k = torch.randn(1, heads, length, width), torch.randn(1, heads // 2, length, width)
        got = of.Fast_RoPE_Embedding_QK.apply(q.clone(), k.clone(), cc, ss, None)
        for mine, x in zip(got, (q, k)):
            close(mine, x * cc + turned(x) * ss)
    else:
        q = torch.randn(1, length, heads, width)
        close(of.Fast_RoPE_Embedding.apply(q.clone(), c, s), q * cc[None, :, None] + turned(q) * ss[None, :, None])


@pytest.mark.parametrize("rows, words", [(7, 90), (2048, 32000)])
def test_cross_entropy(rows, words):
    of = kernels("cross_entropy_loss")
    x, t = torch.randn(rows, words, requires_grad=True), torch.randint(0, words, (rows,))
    t[2] = -100
    got, wanted = of.Fast_CrossEntropyLoss.apply(x, t, 0, 0), F.cross_entropy(x, t, reduction="none", ignore_index=-100)
    close(got, wanted)
    gradient = torch.randn(rows)
    wanted.backward(gradient)
    right, x.grad = x.grad.clone(), None
    got.backward(gradient)
    close(x.grad, right)


@pytest.mark.parametrize("rows, words", [(3, 150), (512, 128000)])
def test_cross_entropy_of_chunks(rows, words, monkeypatch):
    of = kernels("cross_entropy_loss")
    monkeypatch.setattr(of, "MAX_FUSED_SIZE", 64 if words == 150 else 65536)
    x, t = torch.randn(rows, words), torch.randint(0, words, (rows,))
    close(of.Fast_CrossEntropyLoss.apply(x, t, 30.0, 0), F.cross_entropy(30 * torch.tanh(x / 30), t, reduction="none"))


@pytest.mark.parametrize("m, n", [(128, 256), (4096, 4096)])
def test_weights_from_eight_bits(m, n):
    x, s, y = torch.randn(m, n).half(), torch.rand(m // 128, n // 128), torch.empty(m, n)
    kernels("fp8").weight_dequant_kernel[(m // 128, n // 128)](x, s, y, m, n, BLOCK_SIZE=128)
    close(y, x.float() * s.repeat_interleave(128, 0).repeat_interleave(128, 1))


@pytest.mark.parametrize("m, n", [(2, 256), (4096, 4096)])
def test_activations_to_eight_bits(m, n):
    x = torch.randn(m, n)
    y, s = torch.empty(m, n).half(), torch.empty(m, n // 128)
    kernels("fp8").act_quant_kernel[(m * n // 128,)](x, y, s, BLOCK_SIZE=128)
    size = x.reshape(m, -1, 128).abs().amax(-1) / 448
    close(s, size)
    close(y, (x.reshape(m, -1, 128) / size[..., None]).reshape(m, n))


@pytest.mark.parametrize("m, n, k", [(20, 64, 128), (2048, 2048, 2048)])
def test_a_product_by_blocks(m, n, k):
    a, b, block = torch.randn(m, k).half(), torch.randn(n, k).half(), 64
    sa, sb = torch.rand(m, k // block), torch.rand(n // block, k // block)
    wide = (a.float().reshape(m, -1, block) * sa[..., None]).reshape(m, k)
    wanted = wide @ (b.float() * sb.repeat_interleave(block, 0).repeat_interleave(block, 1)).t()
    close(kernels("fp8").w8a8_block_fp8_matmul_triton(a, b, sa, sb, [block, block], torch.float32), wanted, 1e-2)


@pytest.fixture
def grouped():
    """The interface, which asks for the device's name."""
    name = "unsloth.kernels.moe.grouped_gemm.interface"
    if name not in sys.modules:
        importlib.import_module("unsloth.kernels.moe.grouped_gemm")
        file = FOLDER / "kernels/moe/grouped_gemm/interface.py"
        made = types.ModuleType(name)
        made.__package__, made.__file__ = name.rpartition(".")[0], str(file)
        sys.modules[name] = made
        exec(compile(file.read_text(encoding="utf-8").replace(' == "cuda"', ' in ("cuda", "cpu")'), str(file), "exec"), made.__dict__)
    return sys.modules[name]


SIZES = pytest.mark.parametrize("experts, n, k, tokens", [(3, 64, 64, 10), (16, 1024, 1024, 2048)])


@SIZES
@pytest.mark.parametrize("how", [{}, {"permute_x": True}, {"permute_y": True}, {"use_tma_load_w": True, "use_tma_load_x": True}],
                         ids=["plain", "permuted x", "permuted y", "descriptors"])
def test_grouped_products(grouped, how, experts, n, k, tokens):
    weights, ids = torch.randn(experts, n, k).half(), torch.randint(0, experts, (tokens * 2,))
    order, counts = torch.argsort(ids, stable=True), torch.bincount(ids, minlength=experts).int()
    x = torch.randn(tokens, k).half()
    sorted_x = x[order // 2]
    permuted = how.get("permute_x") or how.get("permute_y")
    got = grouped.grouped_gemm_forward(x if how.get("permute_x") else sorted_x, weights, 2, counts,
                                       gather_indices=order.int() if permuted else None, **how)
    wanted = torch.cat([part.float() @ w.float().t() for part, w in zip(sorted_x.split(counts.tolist()), weights)])
    if how.get("permute_y"):
        wanted = torch.empty_like(wanted).index_copy_(0, order, wanted)
    close(got, wanted, 1e-2)


@SIZES
def test_grouped_gradients(grouped, experts, n, k, tokens):
    weights, ids = torch.randn(experts, n, k).half(), torch.randint(0, experts, (tokens,)).sort()[0]
    counts, dy, x = torch.bincount(ids, minlength=experts).int(), torch.randn(tokens, n).half(), torch.randn(tokens, k).half()
    plain = {"topk": 1, "permute_x": False, "permute_y": False}
    parts = [(dy.float()[ids == e], x.float()[ids == e], weights.float()[e]) for e in range(experts)]
    close(grouped.grouped_gemm_dX(dy, weights, None, counts, **plain), torch.cat([d @ w for d, _, w in parts]), 1e-2)
    close(grouped.grouped_gemm_dW(x, dy, counts, None, **plain), torch.stack([d.t() @ y for d, y, _ in parts]), 1e-2)
