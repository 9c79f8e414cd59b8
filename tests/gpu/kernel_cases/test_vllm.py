# SPDX-License-Identifier: Apache-2.0
"""vLLM's kernels through the functions that call them, against torch."""

import contextlib
import importlib
import itertools
import pathlib
import sys
import types

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stand_ins import CORPORA, Anything, Finder, close, smallest  # noqa: E402


class Platform(Anything):
    """A Hopper card."""

    is_cuda = is_cuda_alike = has_device_capability = staticmethod(lambda *of: True)
    is_rocm = is_xpu = is_cpu = is_hpu = staticmethod(lambda: False)
    get_device_capability = staticmethod(lambda *of: types.SimpleNamespace(major=9, minor=0, to_int=lambda: 90))
    fp8_dtype = staticmethod(lambda: torch.float16)
    get_device_name = staticmethod(lambda *of: "a card")


GIVEN = {
    "vllm.triton_utils": {"triton": triton, "tl": tl, "HAS_TRITON": True}, "vllm.platforms": {"current_platform": Platform()},
    "vllm.attention.backends.utils": {"PAD_SLOT_ID": -1},
    "vllm.utils": {"direct_register_custom_op": lambda **options: None, "round_up": lambda x, y: (x + y - 1) // y * y,
                   "cdiv": lambda a, b: -(a // -b)},
    "vllm.logger": {"init_logger": lambda name: __import__("logging").getLogger(name)}}


@contextlib.contextmanager
def modules():
    """In it the kernels can be imported."""
    finder = Finder("vllm", CORPORA / "vllm" / "vllm", GIVEN, ["vllm.lora.ops.triton_ops.utils"])
    sys.meta_path.insert(0, finder)
    yield
    sys.meta_path.remove(finder)


@pytest.fixture(autouse=True, scope="module")
def _modules():
    with modules():
        yield


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def of(name: str, *tuned):
    """A module; of the kernels ``tuned`` one configuration on the emulator."""
    found = importlib.import_module("vllm." + name)
    for kernel in tuned:
        smallest(getattr(found, kernel))
    return found


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def half(*shape):
    return torch.randn(*shape).half()


def paged(kv, d, lengths, page):
    """(the numbers of pages, keys, values, what gives those of a sequence in order)."""
    most = max(-(-n // page) for n in lengths)
    blocks = torch.randperm(len(lengths) * most).reshape(len(lengths), most).int()
    k, v = half(len(lengths) * most, page, kv, d), half(len(lengths) * most, page, kv, d)

    def whole(x, b):
        return x[blocks[b].long()].reshape(-1, kv, d)[:lengths[b]]

    return blocks, k, v, whole


def attend(q, k, v, scale, first=None, window=0, slopes=None):
    """Of one sequence. ``first``: the place of the first query, where they are causal."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.float().repeat_interleave(groups, 1), v.float().repeat_interleave(groups, 1)
    s = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if first is not None:
        qi, ki = first + torch.arange(q.shape[0])[:, None], torch.arange(k.shape[0])[None]
        if slopes is not None:
            s = s + slopes[:, None, None] * (ki - qi)
        s = s.masked_fill(ki > qi, -float("inf"))
        if window:
            s = s.masked_fill(qi - ki >= window, -float("inf"))
    return torch.einsum("hqk,khd->qhd", s.softmax(-1), v)


def in_fives(k, v, x=8):
    """Pages as older kernels have them: keys in parts of ``x``, values with their rows last."""
    pages, page, kv, d = k.shape
    return k.permute(0, 2, 3, 1).reshape(pages, kv, d // x, x, page).permute(0, 1, 2, 4, 3).contiguous(), v.permute(0, 2, 3, 1).contiguous()


@pytest.mark.parametrize("tokens, heads, d", [(3, 2, 40), (8192, 32, 128)])
def test_merged_attention(tokens, heads, d):
    p, s, pl, sl = torch.randn(tokens, heads, d), torch.randn(tokens, heads, d), torch.randn(heads, tokens), torch.randn(heads, tokens)
    o, ol = torch.empty(tokens, heads, d), torch.empty(heads, tokens)
    of("attention.ops.triton_merge_attn_states").merge_attn_states(o, p, pl, s, sl, ol)
    both = torch.stack([pl, sl])
    w = both.softmax(0)
    close(o, p * w[0].t()[..., None] + s * w[1].t()[..., None])
    close(ol, torch.logsumexp(both, 0))


@pytest.mark.parametrize("heads, kv", [(2, 2), (4, 1)])
@pytest.mark.parametrize("lengths, d", [((37, 64), 64), ((4000,) * 16, 128)], ids=["small", "large"])
def test_decoding(heads, kv, lengths, d):
    blocks, k, v, whole = paged(kv, d, lengths, 16)
    q, o, logits = half(len(lengths), heads, d), half(len(lengths), heads, d), torch.empty(len(lengths), heads, 4, d + 1)
    of("attention.ops.triton_decode_attention").decode_attention_fwd(q, k, v, o, blocks, ints(*lengths), logits, 4, 0.2, 16)
    for b in range(len(lengths)):
        close(o[b], attend(q[b:b + 1], whole(k, b), whole(v, b), 0.2)[0], 2e-2)


def starts(lengths):
    return ints(0, *itertools.accumulate(lengths))


@pytest.mark.parametrize("window, alibi", [(0, False), (16, True)])
@pytest.mark.parametrize("lengths, queries, heads, kv", [((20, 50), (20, 5), 4, 2), ((2048, 1500, 3000, 4000), (512, 1, 300, 1), 16, 4)],
                         ids=["small", "large"])
def test_unified_attention(window, alibi, lengths, queries, heads, kv):
    d = 64
    blocks, k, v, whole = paged(kv, d, lengths, 16)
    q, slopes, cu = half(sum(queries), heads, d), torch.rand(heads) if alibi else None, starts(queries)
    o = torch.zeros_like(q)
    of("attention.ops.triton_unified_attention").unified_attention(
        q, k, v, o, cu, max(queries), ints(*lengths), max(lengths), 0.2, True, (window - 1, 0), blocks, 0.0, None, torch.ones(1), torch.ones(1),
        slopes)
    for b, n in enumerate(lengths):
        part = slice(cu[b], cu[b + 1])
        close(o[part], attend(q[part], whole(k, b), whole(v, b), 0.2, n - queries[b], window, slopes), 2e-2)


@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("before, queries, heads, kv", [((16, 37), (20, 9), 2, 1), ((1024, 500), (512, 700), 16, 4)], ids=["small", "large"])
def test_prefill(alibi, before, queries, heads, kv):
    m = of("attention.ops.prefix_prefill", "_fwd_kernel")
    d, lengths = 64, [a + b for a, b in zip(before, queries)]
    blocks, k, v, whole = paged(kv, d, lengths, 16)
    q, slopes, cu = half(sum(queries), heads, d), torch.rand(heads) if alibi else None, starts(queries)
    o = torch.zeros_like(q)
    new = [torch.cat([whole(x, b)[before[b]:] for b in range(2)]) for x in (k, v)]
    m.context_attention_fwd(q, *new, o, "auto", *in_fives(k, v), blocks, cu, ints(*lengths), max(lengths), max(queries), torch.ones(1), torch.ones(1),
                            slopes, None, 0.2)
    for b in range(2):
        part = slice(cu[b], cu[b + 1])
        close(o[part], attend(q[part], whole(k, b), whole(v, b), 0.2, before[b], 0, slopes), 2e-2)


@pytest.mark.parametrize("lengths, heads, kv", [((37, 20), 4, 2), ((4000,) * 16, 32, 8)], ids=["small", "large"])
def test_paged_decoding(lengths, heads, kv):
    m = of("attention.ops.chunked_prefill_paged_decode")
    m.use_rocm_custom_paged_attention = lambda *arguments: False
    n, d = len(lengths), 64
    blocks, k, v, whole = paged(kv, d, lengths, 16)
    q = half(n, heads, d)
    o = torch.zeros_like(q)
    m.chunked_prefill_paged_decode(q, half(n, kv, d), half(n, kv, d), o, "auto", *in_fives(k, v), blocks, ints(*range(n + 1)), ints(*lengths),
                                   max(lengths), 1, torch.ones(1), torch.ones(1), None, None, 0.2)
    for b in range(n):
        close(o[b:b + 1], attend(q[b:b + 1], whole(k, b), whole(v, b), 0.2, lengths[b] - 1), 2e-2)


@pytest.mark.parametrize("lengths, heads, kv", [((20, 40), 2, 1), ((1000, 2048), 16, 4)], ids=["small", "large"])
def test_flash_attention(lengths, heads, kv):
    m = of("attention.ops.triton_flash_attention", "attn_fwd")
    m.on_gfx1x = lambda: False
    cu, n = starts(lengths), sum(lengths)
    q, k, v = half(n, heads, 64), half(n, kv, 64), half(n, kv, 64)
    o = m._attention.apply(q, k, v, None, cu, cu, max(lengths), max(lengths), True, 0.2)
    o = o[0] if isinstance(o, tuple) else o
    for b in range(len(lengths)):
        part = slice(cu[b], cu[b + 1])
        close(o[part], attend(q[part], k[part], v[part], 0.2, 0), 2e-2)


def adapters(mapping, n):
    """Which tokens have which adapter, as vLLM's kernels want it told; -1 is none."""
    which = torch.tensor(mapping)
    ids, counts = torch.full((n + 1,), -1, dtype=torch.int32), torch.zeros(n + 1, dtype=torch.int32)
    found, of_each = torch.unique(which, return_counts=True)
    ids[:len(found)], counts[:len(found)] = found.int(), of_each.int()
    return which.int(), torch.argsort(which, stable=True).int(), counts, torch.cat([ints(0), counts.cumsum(0).int()]), ids, torch.tensor([False])


MAPPINGS = pytest.mark.parametrize("mapping, width", [([0, 1, -1, 1, 0, 1], 64), ([0, 1, -1, 1] * 512, 4096)], ids=["small", "large"])


@MAPPINGS
def test_an_adapter_shrinks(mapping, width):
    x, w = half(len(mapping), width), half(2, 16, width)
    out = torch.zeros(1, len(mapping), 16)
    of("lora.ops.triton_ops.lora_shrink_op")._lora_shrink(x, [w], out, *adapters(mapping, 2), 0.5)
    wanted = 0.5 * torch.stack([x.float() @ w[i].float().t() for i in range(2)])
    chosen = torch.tensor(mapping)
    close(out[0], torch.where((chosen >= 0)[:, None], wanted[chosen.clamp(min=0), torch.arange(len(mapping))], 0.0), 1e-2)


@MAPPINGS
def test_an_adapter_expands(mapping, width):
    x, w, out = torch.randn(1, len(mapping), 16), half(2, width, 16), half(len(mapping), width)
    before, chosen = out.float(), torch.tensor(mapping)
    of("lora.ops.triton_ops.lora_expand_op")._lora_expand(x, [w], out, *adapters(mapping, 2), 0, True)
    added = torch.stack([x[0].half().float() @ w[i].float().t() for i in range(2)])[chosen.clamp(min=0), torch.arange(len(mapping))]
    close(out, before + torch.where((chosen >= 0)[:, None], added, 0.0), 1e-2)


@pytest.mark.parametrize("batch, heads, d, n", [(2, 2, 16, 16), (64, 64, 64, 128)])
def test_a_state_is_updated(batch, heads, d, n):
    state, x, dt, z = torch.randn(batch, heads, d, n), *(torch.randn(batch, heads, d) for _ in range(3))
    a, b, c, skip, bias = -torch.rand(heads, d, n), torch.randn(batch, 1, n), torch.randn(batch, 1, n), torch.randn(heads, d), torch.randn(heads, d)
    before = state.clone()
    y = of("model_executor.layers.mamba.ops.mamba_ssm").selective_state_update(state, x, dt, a, b, c, skip, z, bias, True)
    step = F.softplus(dt + bias)
    after = before * torch.exp(step[..., None] * a) + step[..., None] * b[:, :, None] * x[..., None]
    close(state, after)
    close(y, ((after * c[:, :, None]).sum(-1) + skip * x) * z * torch.sigmoid(z))


class Scan:
    """The inputs of Mamba 2's parts: ``length`` steps in chunks of ``chunk``."""

    def __init__(self, length, heads, d, n, chunk):
        self.chunks, self.chunk, self.heads, self.d, self.n = length // chunk, chunk, heads, d, n
        self.x, self.B, self.C = torch.randn(1, length, heads, d), torch.randn(1, length, 1, n), torch.randn(1, length, 1, n)
        self.dt, self.A = torch.rand(1, length, heads), -torch.rand(heads)
        state = of("model_executor.layers.mamba.ops.ssd_chunk_state", "_chunk_cumsum_fwd_kernel", "_chunk_state_fwd_kernel",
                   "_chunk_state_varlen_kernel")
        self.state = state
        self.sums, self.steps = state._chunk_cumsum_fwd(self.dt, self.A, chunk)

    def parts(self, x):
        return x.reshape(1, self.chunks, self.chunk, *x.shape[2:])


SCANS = pytest.mark.parametrize("sizes", [(64, 2, 32, 16, 32), (2048, 16, 64, 128, 128)], ids=["small", "large"])


@SCANS
def test_chunks_are_summed(sizes):
    s = Scan(*sizes)
    bias = torch.randn(s.heads)
    sums, steps = s.state._chunk_cumsum_fwd(s.dt, s.A, s.chunk, bias, True)
    wanted = s.parts(F.softplus(s.dt + bias)).permute(0, 3, 1, 2)
    close(steps, wanted)
    close(sums, (wanted * s.A[None, :, None, None]).cumsum(-1))


@SCANS
def test_states_of_chunks(sizes):
    s = Scan(*sizes)
    w = (s.sums[..., -1:] - s.sums).exp() * s.steps
    wanted = torch.einsum("bclhp,bcln,bhcl->bchpn", s.parts(s.x), s.parts(s.B)[:, :, :, 0], w)
    close(s.state._chunk_state_fwd(s.B, s.x, s.steps, s.sums), wanted, 2e-2)


@SCANS
def test_products_in_chunks(sizes):
    s = Scan(*sizes)
    o = of("model_executor.layers.mamba.ops.ssd_bmm", "_bmm_chunk_fwd_kernel")._bmm_chunk_fwd(s.C, s.B, s.chunk)
    close(o[:, :, 0], torch.einsum("bcln,bcsn->bcls", s.parts(s.C)[:, :, :, 0], s.parts(s.B)[:, :, :, 0]), 1e-2)


@SCANS
def test_a_scan_by_chunks(sizes):
    s = Scan(*sizes)
    products = of("model_executor.layers.mamba.ops.ssd_bmm", "_bmm_chunk_fwd_kernel")._bmm_chunk_fwd(s.C, s.B, s.chunk)
    states = torch.randn(1, s.chunks, s.heads, s.d, s.n)
    o = of("model_executor.layers.mamba.ops.ssd_chunk_scan", "_chunk_scan_fwd_kernel")._chunk_scan_fwd(products, s.x, s.steps, s.sums, s.C, states)[0]
    later = torch.triu(torch.ones(s.chunk, s.chunk), 1) > 0
    decay = (s.sums[..., :, None] - s.sums[..., None, :]).masked_fill(later, -float("inf")).exp()
    wanted = torch.einsum("bcls,bhcls,bhcs,bcshp->bclhp", products[:, :, 0], decay, s.steps, s.parts(s.x))
    wanted = wanted + torch.einsum("bcln,bchpn,bhcl->bclhp", s.parts(s.C)[:, :, :, 0], states, s.sums.exp())
    close(o, wanted.reshape(s.x.shape), 2e-2)


@pytest.mark.parametrize("chunks, heads, width", [(3, 2, 64), (32, 64, 8192)])
def test_states_are_passed(chunks, heads, width):
    states, a = torch.randn(1, chunks, heads, width), -torch.rand(1, heads, chunks)
    o, last = of("model_executor.layers.mamba.ops.ssd_state_passing", "_state_passing_fwd_kernel")._state_passing_fwd(states, a)[:2]
    now, found = torch.zeros(1, heads, width), []
    for c in range(chunks):
        found.append(now)
        now = now * a[:, :, c].exp()[..., None] + states[:, c]
    close(o, torch.stack(found, 1))
    close(last, now)


@SCANS
def test_states_of_sequences(sizes):
    s = Scan(*sizes)
    first, n = s.chunk * 5 // 8, s.x.shape[1] * 3 // 4
    o = s.state.chunk_state_varlen(s.B[0], s.x[0], s.steps[0], s.sums[0], ints(0, first, n), torch.randn(s.chunks, s.heads, s.d, s.n))
    w = (s.sums[0, :, 0, first - 1:first] - s.sums[0, :, 0, :first]).exp() * s.steps[0, :, 0, :first]
    close(o[0], torch.einsum("lhp,ln,hl->hpn", s.x[0, :first], s.B[0, :first, 0], w), 2e-2)


@pytest.mark.parametrize("heads, length", [(2, 40), (16, 2048)])
def test_lightning_attention(heads, length):
    q, k, v = (torch.randn(1, heads, length, 64) * 0.3 for _ in range(3))
    decay, t = torch.rand(heads), torch.arange(float(length))
    o, _ = of("model_executor.layers.lightning_attn").lightning_attention(q, k, v, decay)
    # To keys of an earlier block of 256 the kernels count one step less than to those of the query's own.
    steps = t[:, None] - t[None] - (t[:, None] // 256 - t[None] // 256).clamp(0, 1)
    w = torch.exp(-decay[:, None, None] * steps.clamp(min=0)).tril()
    close(o, torch.einsum("bhtd,bhsd,hts,bhse->bhte", q, k, w, v), 2e-2)


@pytest.mark.parametrize("batch, heads", [(2, 2), (64, 64)])
def test_linear_decoding(batch, heads):
    m = of("model_executor.layers.lightning_attn")
    m.rearrange = lambda x, pattern: x.permute(0, 2, 1, 3).reshape(x.shape[0], 1, -1)
    (q, k, v), states = (torch.randn(batch, heads, 1, 64) for _ in range(3)), torch.randn(batch + 1, heads, 64, 64)
    decay, places = torch.rand(heads), torch.randperm(batch + 1)[:batch]
    wanted = states[places] * torch.exp(-decay)[None, :, None, None] + k[:, :, 0, :, None] * v[:, :, 0, None, :]
    o = m.linear_decode_forward_triton(q, k, v, states, decay, places)
    close(o, torch.einsum("bhd,bhde->bhe", q[:, :, 0], wanted).reshape(batch, -1), 1e-2)
    close(states[places], wanted)


def of_four_bits(k, n, group=32):
    """(the words, zeros and scales of AWQ, and the numbers)."""
    order = [0, 4, 1, 5, 2, 6, 3, 7]

    def packed(w):
        words = sum(w[:, i::8].long() << (4 * order[i]) for i in range(8))
        return torch.where(words >= 1 << 31, words - (1 << 32), words).int()

    w, z, s = torch.randint(0, 16, (k, n)), torch.randint(0, 16, (k // group, n)), torch.rand(k // group, n).half()
    return packed(w), packed(z), s, (w - z.repeat_interleave(group, 0)).half() * s.repeat_interleave(group, 0)


@pytest.mark.parametrize("k, n", [(64, 64), (4096, 4096)])
def test_weights_of_four_bits(k, n):
    words, zeros, scales, numbers = of_four_bits(k, n)
    close(of("model_executor.layers.quantization.awq_triton").awq_dequantize_triton(words, scales, zeros), numbers)


@pytest.mark.parametrize("m, k, n", [(20, 64, 64), (128, 4096, 4096)])
def test_a_product_with_four_bits(m, k, n):
    words, zeros, scales, numbers = of_four_bits(k, n)
    x = half(m, k)
    close(of("model_executor.layers.quantization.awq_triton").awq_gemm_triton(x, words, scales, zeros, 2), x.float() @ numbers.float(), 1e-2)


def eight(*shape, most=100):
    return torch.randint(-most, most, shape, dtype=torch.int8)


@pytest.mark.parametrize("m, k, n", [(20, 64, 48), (2048, 4096, 4096)])
def test_a_scaled_product(m, k, n):
    a, b, sa, sb, bias = eight(m, k), eight(k, n), torch.rand(m, 1) / 100, torch.rand(n, 1) / 100, torch.randn(n)
    got = of("model_executor.layers.quantization.compressed_tensors.triton_scaled_mm").triton_scaled_mm(a, b, sa, sb, torch.float16, bias.half())
    close(got, a.float() @ b.float() * sa * sb.t() + bias, 1e-2)


@pytest.mark.parametrize("rows, width", [(5, 100), (8192, 4096)])
def test_tokens_to_eight_bits(rows, width):
    x = torch.randn(rows, width)
    q, s = of("model_executor.layers.quantization.utils.int8_utils").per_token_quant_int8(x)
    size = x.abs().amax(-1, keepdim=True) / 127
    close(s, size)
    assert (q.float() - x / size).abs().max() <= 0.51


@pytest.mark.parametrize("rows, width", [(5, 128), (8192, 4096)])
def test_groups_to_eight_bits(rows, width):
    x = torch.randn(rows, width)
    q, s = of("model_executor.layers.quantization.utils.int8_utils").per_token_group_quant_int8(x, 32)
    parts = x.reshape(rows, -1, 32)
    size = parts.abs().amax(-1) / 127
    close(s, size)
    assert (q.float().reshape(parts.shape) - parts / size[..., None]).abs().max() <= 1.01


def by_blocks(a, b, sa, sb, block=64):
    wide = (a.float().reshape(a.shape[0], -1, block) * sa[..., None]).reshape(a.shape)
    return wide @ (b.float() * sb.repeat_interleave(block, 0).repeat_interleave(block, 1)).t()


BLOCKS = pytest.mark.parametrize("m, n, k", [(20, 64, 128), (2048, 2048, 2048)])


@BLOCKS
def test_a_product_of_int8_by_blocks(m, n, k):
    a, b, sa, sb = eight(m, k, most=50), eight(n, k, most=50), torch.rand(m, k // 64) / 100, torch.rand(n // 64, k // 64) / 100
    got = of("model_executor.layers.quantization.utils.int8_utils").w8a8_block_int8_matmul(a, b, sa, sb, [64, 64], torch.float32)
    close(got, by_blocks(a, b, sa, sb), 1e-2)


@BLOCKS
def test_a_product_by_blocks(m, n, k):
    a, b, sa, sb = half(m, k), half(n, k), torch.rand(m, k // 64), torch.rand(n // 64, k // 64)
    got = of("model_executor.layers.quantization.utils.fp8_utils").w8a8_block_fp8_matmul(a, b, sa, sb, [64, 64], torch.float32)
    close(got, by_blocks(a, b, sa, sb), 1e-2)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("rows, width", [(4, 128), (8192, 4096)])
def test_groups_to_narrow_floats(rows, width, columns):
    x = torch.randn(rows, width)
    _, s = of("model_executor.layers.quantization.utils.fp8_utils").per_token_group_quant_fp8(x, 32, dtype=torch.float16, column_major_scales=columns)
    close(s * 1e5, x.reshape(rows, -1, 32).abs().amax(-1) / torch.finfo(torch.float16).max * 1e5)


def aligned(ids, experts, block):
    m, n = of("model_executor.layers.fused_moe.moe_align_block_size"), ids.numel()
    room = n + experts * (block - 1)
    places, of_block, count = torch.full((room,), n, dtype=torch.int32), torch.zeros(-(-room // block), dtype=torch.int32), ints(0)
    m.moe_align_block_size_triton(ids, experts, block, places, of_block, count)
    return places, of_block, count


@pytest.mark.parametrize("tokens, experts, block", [(6, 4, 8), (4096, 64, 64)])
def test_tokens_go_to_experts(tokens, experts, block):
    ids = torch.randint(0, experts, (tokens, 2)).int()
    places, of_block, count = aligned(ids, experts, block)
    begin, flat = 0, ids.flatten()
    for e in range(experts):
        mine = (flat == e).nonzero().flatten().tolist()
        room = -(-len(mine) // block) * block
        assert sorted(places[begin:begin + room].tolist())[:len(mine)] == sorted(mine)
        assert (of_block[begin // block:(begin + room) // block] == e).all()
        begin += room
    assert count.item() == begin


@pytest.mark.parametrize("kind", ["plain", "int8", "int4"])
@pytest.mark.parametrize("tokens, experts, n, k", [(6, 4, 48, 64), (2048, 8, 1024, 1024)])
def test_experts(kind, tokens, experts, n, k):
    m = of("model_executor.layers.fused_moe.fused_moe")
    small = n == 48
    ids, w, x = torch.randint(0, experts, (tokens, 2)).int(), torch.rand(tokens, 2), half(tokens, k)
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 2} if small else \
        {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8}
    places, of_block, count = aligned(ids, experts, config["BLOCK_SIZE_M"])
    weights = half(experts, n, k)
    numbers, scales = weights, None
    if kind == "int8":
        weights, scales = eight(experts, n, k), torch.rand(experts, n) / 100
        numbers = weights.float() * scales[..., None]
    if kind == "int4":
        whole = torch.randint(0, 16, (experts, n, k))
        weights, scales = (whole[..., ::2] | whole[..., 1::2] << 4).to(torch.uint8), torch.rand(experts, n, k // 32).half()
        numbers = (whole - 8).float() * scales.float().repeat_interleave(32, 2)
        m.should_moe_wna16_use_cuda = lambda **options: False
        m.get_moe_wna16_block_config = lambda **options: {"BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32}
    out = torch.zeros(tokens, 2, n).half()
    m.invoke_fused_moe_kernel(x, weights, out, None, scales, None, w, places, of_block, count, True, 2, config, tl.float16, False, False,
                              kind == "int8", kind == "int4", False, [0, 32] if kind == "int4" else None)
    wanted = torch.stack([x.float() @ e.float().t() for e in numbers])[ids.long().t(), torch.arange(tokens)].transpose(0, 1) * w[..., None]
    close(out, wanted, 2e-2)


@pytest.mark.parametrize("experts, tokens, n, k", [(2, 32, 48, 64), (16, 512, 1024, 1024)])
def test_experts_in_batches(experts, tokens, n, k):
    x, w, out = half(experts, tokens, k), half(experts, n, k), torch.zeros(experts, tokens, n).half()
    counts = torch.randint(5, tokens, (experts,)).int()
    config = dict(zip(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), (16, 16, 32) if n == 48 else (64, 128, 64)))
    m = of("model_executor.layers.fused_moe.fused_batched_moe")
    m.invoke_moe_batched_triton_kernel(x, w, out, counts, tl.float16, None, None, None, False, False, False, config)
    for e in range(experts):
        close(out[e, :counts[e]], x[e, :counts[e]].float() @ w[e].float().t(), 1e-2)


@pytest.mark.parametrize("sequences, words", [(2, 20), (64, 32000)])
def test_words_are_rejected(sequences, words):
    m = of("v1.sample.rejection_sampler")
    n = 3
    cu = ints(*range(n, n * sequences + 1, n))
    drafts, targets = torch.randint(0, words, (n * sequences,)).int(), torch.randint(0, words, (n * sequences,))
    targets[::2] = drafts[::2]
    bonus, out = torch.randint(0, words, (sequences, 1)).int(), torch.full((sequences, n + 1), -1, dtype=torch.int32)
    m.rejection_greedy_sample_kernel[(sequences,)](out, cu, drafts, targets, bonus, None, n)
    for b in range(sequences):
        mine, right = drafts[n * b:n * b + n].tolist(), targets[n * b:n * b + n].tolist()
        same = next((i for i in range(n) if mine[i] != right[i]), n)
        assert out[b].tolist() == (right[:same + 1] + [-1] * (n - same) if same < n else right + bonus[b].tolist())
    assert m.expand_batch_to_tokens(torch.arange(sequences), cu, n * sequences).tolist() == [b for b in range(sequences) for _ in range(n)]
    target, draft = (torch.softmax(torch.randn(n * sequences, words), -1) for _ in range(2))
    uniform, recovered = torch.rand(n * sequences).double(), torch.randint(0, words, (n * sequences,)).int()
    m.rejection_random_sample_kernel[(sequences,)](out.fill_(-1), cu, drafts, draft, target, bonus, recovered, uniform,
                                                   torch.zeros(sequences, dtype=torch.bool), n, words, NO_DRAFT_PROBS=False)
    at = torch.arange(n * sequences)
    kept = target[at, drafts.long()] / draft[at, drafts.long()] >= uniform
    for b in range(sequences):
        taken = kept[n * b:n * b + n].tolist()
        same = taken.index(False) if False in taken else n
        wanted = drafts[n * b:n * b + same].tolist() + ([recovered[n * b + same].item()] if same < n else bonus[b].tolist())
        assert out[b].tolist() == wanted + [-1] * (n + 1 - len(wanted))


@pytest.mark.parametrize("sequences, most", [(2, 16), (256, 512)])
def test_inputs_of_a_draft(sequences, most):
    lengths = torch.randint(3, most // 2, (sequences,))
    cu = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
    begins = torch.arange(sequences).int() * most
    out = torch.zeros(int(cu[-1]), dtype=torch.int32)
    of("v1.spec_decode.utils").prepare_eagle_input_kernel[(sequences,)](out, begins, cu, BLOCK_SIZE=most)
    assert out.tolist() == [int(begins[b]) + i for b in range(sequences) for i in range(int(lengths[b]))]
