# SPDX-License-Identifier: Apache-2.0
"""For each row: its inputs, what Kiln's kernel must give (float64, or exact), and the peer's call."""

import functools
import math

import torch
from kiln import library

HALF = 2e-3, 1e-2  # largest relative error of f16, of bf16
# What rounds to e4m3 is off by up to 1/16 of itself.
BARS = {"quantize_rows": 0.07, "scaled_attention": 0.07, "float8_e4m3fn": 0.07}


class Job:
    """``inputs``: the tensors of the call, in order. ``outputs``: shape and dtype of each result. ``references``: (its number, float64);
    ``peer``: a call, or None. ``part``: what of a result the reference is of. ``moved``: bytes that the call has to read and write; else those of
    all inputs and results."""

    def __init__(self, inputs, outputs, references, peer=None, bar=HALF[1], flop=None, part=lambda result: result, moved=None):
        self.part = part
        self.inputs, self.outputs, self.references, self.peer, self.bar, self.flop = inputs, outputs, references, peer, bar, flop
        self.moved = moved or sum(t.numel() * t.element_size() for t in inputs) + sum(math.prod(shape) * getattr(torch, dtype).itemsize for shape,
                                                                             dtype in outputs)

    def poison(self):
        """Leaves blocks of the results' sizes to the allocator that are full of NaN, so that a result that nobody writes is not an earlier
        one."""
        blocks = [_empty(*output) for output in self.outputs]
        del blocks


def _normal(shape, dtype):
    if dtype == "int8":
        return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def _empty(shape, dtype):
    """Full of NaN, or of a pattern."""
    tensor = torch.empty(shape, device="cuda", dtype=getattr(torch, dtype))
    tensor.view(torch.uint8).fill_(0xFF if tensor.dtype.is_floating_point else 0x7B)
    return tensor


def _exact(a, b):
    """a · b in float64; integers exactly."""
    return a.double() @ b.double()


def _activate(name, x):
    functions = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, None: lambda v: v}
    return functions[name](x)


def gemm(row):
    m, n, k = row["shape"]
    data = row["data"]
    a, b = _normal((m, k), data["dtype"]), _normal((n, k) if data["layout"] == "nt" else (k, n), data["dtype"])
    right = b.t() if data["layout"] == "nt" else b
    out = ((m, n), data["out"])
    reference = _exact(a, right)
    inputs = [a, b]
    if data.get("bias"):
        inputs.append(_normal((n,), data["out"]))
        reference = reference + inputs[-1].double()
    reference = _activate(data.get("activation"), reference)
    if data["dtype"] == "int8":
        return Job(inputs, [out], [(0, reference)], lambda: torch._int_mm(a, right), bar=0.0)
    if data["dtype"] == "float8_e4m3fn":
        one = torch.ones((), device="cuda")
        return Job(inputs, [out], [(0, reference)], lambda: torch._scaled_mm(a, right, one, one, out_dtype=torch.bfloat16))
    given = torch.empty((m, n), device="cuda", dtype=getattr(torch, data["out"]))
    return Job(inputs, [out], [(0, reference)], lambda: torch.matmul(a, right, out=given), bar=HALF[data["out"] == "bfloat16"])


def with_epilogue(row):
    m, n, k = row["shape"]
    data = row["data"]
    a, b, residual = _normal((m, k), "bfloat16"), _normal((n, k), "bfloat16"), _normal((m, n), "bfloat16")
    scale = (torch.rand((m,), device="cuda") + 0.5) / k**0.5  # into the range of e4m3
    reference = _exact(a, b.t())
    if data.get("row_scale"):
        reference = reference * scale[:, None].double()
    if data.get("residual"):
        reference = reference + residual.double()
    out = data.get("out_dtype", "bfloat16")
    inputs = [a, b] + [residual] * bool(data.get("residual")) + [scale] * bool(data.get("row_scale"))
    return Job(inputs, [((m, n), out)], [(0, reference)], bar=BARS.get(out, HALF[1]))


def block_scaled(row):
    m, n, k = row["shape"]
    a, b = _normal((m, k), "float8_e4m3fn"), _normal((n, k), "float8_e4m3fn")
    scale_a = torch.rand((k // 128, m), device="cuda") + 0.5
    scale_b = torch.rand((-(-n // 128), k // 128), device="cuda") + 0.5
    left = (a.double().view(m, -1, 128) * scale_a.t().double()[:, :, None]).view(m, k)
    spread = scale_b.double().repeat_interleave(128, 0)[:n]
    right = (b.double().view(n, -1, 128) * spread[:, :, None]).view(n, k)
    return Job([a, b, scale_a, scale_b], [((m, n), "bfloat16")], [(0, left @ right.t())])


def batched(row):
    count, m, n, k = row["shape"]
    a, b = _normal((count, m, k), "bfloat16"), _normal((count, n, k), "bfloat16")
    reference = torch.stack([_exact(x, y.t()) for x, y in zip(a, b)])
    return Job([a, b], [((count, m, n), "bfloat16")], [(0, reference)], lambda: torch.bmm(a, b.transpose(1, 2)))


def grouped(row):
    experts, n, k = row["shape"]
    block = row["data"]["tile"]
    counts = (torch.randint(1, 9, (experts,)) * block).tolist()  # uneven, whole tiles
    m = sum(counts)
    a, b = _normal((m, k), row["data"]["dtype"]), _normal((experts, n, k), row["data"]["dtype"])
    expert = torch.repeat_interleave(torch.arange(experts, device="cuda", dtype=torch.int32), torch.tensor(counts, device="cuda") // block)
    reference, first = torch.empty((m, n), device="cuda", dtype=torch.float64), 0
    for index, count in enumerate(counts):
        reference[first : first + count] = _exact(a[first : first + count], b[index].t())
        first += count
    from bench_triton import grouped_gemm

    out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    return Job([a, b, expert], [((m, n), "bfloat16")], [(0, reference)], lambda: grouped_gemm(a, b, expert, out, block), flop=2 * m * n * k)


def packed_weights(row):
    m, n, k = row["shape"]
    a, packed = _normal((m, k), "bfloat16"), torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
    scale = (torch.rand((n, k // 128), device="cuda") + 0.5).to(torch.bfloat16)
    nibbles = torch.stack([packed & 15, packed >> 4], -1).view(n, k).double() - 8
    weights = (nibbles.view(n, -1, 128) * scale.double()[:, :, None]).view(n, k)
    dense = weights.to(torch.bfloat16)
    given = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    return Job([a, library.interleave(packed), scale.t().contiguous()], [((m, n), "bfloat16")], [(0, a.double() @ weights.t())],
               lambda: torch.matmul(a, dense.t(), out=given))


def packed_mxfp4(row):
    m, n, k = row["shape"]
    a, packed = _normal((m, k), "bfloat16"), torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
    exponent = torch.randint(123, 131, (n, k // 32), device="cuda", dtype=torch.uint8)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], device="cuda", dtype=torch.float64)
    numbers = values[torch.stack([packed & 15, packed >> 4], -1).view(n, k).long()]
    weights = (numbers.view(n, -1, 32) * torch.exp2(exponent.double() - 127)[:, :, None]).view(n, k)
    dense = weights.to(torch.bfloat16)
    given = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    return Job([a, library.interleave(packed, "mxfp4"), exponent.view(torch.int32).t().contiguous().view(torch.uint32)],
               [((m, n), "bfloat16")], [(0, a.double() @ weights.t())],
               lambda: torch.matmul(a, dense.t(), out=given))


def attention(row):
    """Each head of some tokens is compared."""
    batch, tokens, heads, dim = row["shape"]
    data = row["data"]
    q, k, v = (_normal((batch, tokens, heads // groups, dim), data["dtype"]) for groups in (1, data["groups"], data["groups"]))
    some = torch.randperm(tokens, device="cuda")[:64]
    reference = _some_rows(q, k, v, data["causal"], some)
    for backend in ("flash", "mem_efficient", "math"):
        getattr(torch.backends.cuda, f"enable_{backend}_sdp")(False)
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]
    shared = {"enable_gqa": True} if data["groups"] > 1 else {}
    return Job([q, k, v], [(tuple(q.shape), data["dtype"])], [(0, reference)],
               lambda: torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=data["causal"], **shared),
               bar=HALF[data["dtype"] == "bfloat16"], part=lambda result: result[-1, some])


def _cached(row, caches, batch):
    """(the caches as the row has them, the lengths, the table or None). ``caches``: whole, (batch, capacity, …)."""
    capacity = caches[0].shape[1]
    lengths = torch.full((batch,), capacity, device="cuda", dtype=torch.int32)
    if row["data"]["ragged"]:
        lengths = torch.randint(capacity // 2, capacity, (batch,), device="cuda", dtype=torch.int32) | 1
    shape, table = row["arguments"][1][0], row["arguments"][len(caches) + 2]
    if table is None:
        return caches, lengths, None
    order = torch.randperm(shape[0], device="cuda")
    pages = [torch.empty_like(cache.reshape(shape)) for cache in caches]
    for target, cache in zip(pages, caches):
        target[order] = cache.reshape(shape)
    return pages, lengths, order.to(torch.int32).view(table[0])


def _mixed(scores, values):
    return torch.softmax(scores, -1) @ values


def decode(row):
    """All heads of the last sequence are compared."""
    batch, capacity, kv_heads, dim = row["shape"]
    (q_shape, dtype), *_ = row["arguments"]
    q, caches = _normal(q_shape, dtype), [_normal((batch, capacity, kv_heads, dim), dtype) for _ in range(2)]
    given, lengths, table = _cached(row, caches, batch)
    tokens, length = q_shape[1], int(lengths[-1])
    heads = q[-1].double().view(tokens, kv_heads, -1, dim).permute(1, 0, 2, 3)
    keys, values = (cache[-1, :length].double().transpose(0, 1) for cache in caches)
    scores = torch.einsum("ktgd,ksd->ktgs", heads, keys) * dim**-0.5
    unseen = torch.arange(length, device="cuda") > length - tokens + torch.arange(tokens, device="cuda")[:, None]
    scores = scores.masked_fill(unseen[None, :, None], -math.inf)
    reference = torch.einsum("ktgs,ksd->ktgd", torch.softmax(scores, -1), values).permute(1, 0, 2, 3).reshape(q_shape[1:])
    moved = int(lengths.sum()) * 2 * kv_heads * dim * q.element_size() + 2 * q.numel() * q.element_size()
    return Job([q, *given, lengths, *([] if table is None else [table])], [(q_shape, dtype)], [(0, reference)], bar=HALF[dtype == "bfloat16"],
               part=lambda result: result[-1], moved=moved)


def latent(row):
    """All heads of the last sequence are compared."""
    batch, capacity, _ = row["shape"]
    (q_shape, dtype), *_ = row["arguments"]
    q, cache = _normal(q_shape, dtype), _normal((batch, capacity, q_shape[-1]), dtype)
    (given,), lengths, table = _cached(row, [cache], batch)
    keys = cache[-1].double()
    reference = _mixed(q[-1, 0].double() @ keys.t() * q_shape[-1]**-0.5, keys[:, :-64])
    return Job([q, given, lengths, *([] if table is None else [table])], [((*q_shape[:-1], q_shape[-1] - 64), dtype)], [(0, reference)],
               part=lambda result: result[-1, 0], moved=row["bytes"])


def chosen(row):
    """Some tokens are compared. Of the rows that a token may see, each list has different ones, and −1 where there are fewer."""
    tokens, keys, _, count = row["shape"]
    (q_shape, dtype), (kv_shape, _), *_ = row["arguments"]
    q, kv = _normal(q_shape, dtype), _normal(kv_shape, dtype)
    rows = torch.full((1, tokens, count), -1, device="cuda", dtype=torch.int32)
    for i in range(tokens):
        seen = torch.randperm(i + keys - tokens + 1, device="cuda")[:count]
        rows[0, i, :len(seen)] = seen
    some = torch.randperm(tokens, device="cuda")[:16]
    references = []
    for i in some.tolist():
        seen = kv[0, rows[0, i][rows[0, i] >= 0].long()].double()
        references.append(_mixed(q[0, i].double() @ seen.t() * q_shape[-1]**-0.5, seen[:, :-64]))
    return Job([q, kv, rows], [((*q_shape[:-1], q_shape[-1] - 64), dtype)], [(0, torch.stack(references))], part=lambda result: result[0, some],
               moved=row["bytes"])


def _some_rows(q, k, v, causal, some):
    """Attention of some tokens of the last sequence in float64: all scores would not fit the memory. q, k, v: (batch, tokens, heads, D)."""
    left, right, values = (t[-1].transpose(0, 1).double() for t in (q[:, some], k, v))
    right, values = (t.repeat_interleave(q.shape[2] // k.shape[2], 0) for t in (right, values))
    scores = left @ right.transpose(1, 2) * q.shape[3]**-0.5
    if causal:
        scores = scores.masked_fill(some[:, None] < torch.arange(k.shape[1], device="cuda"), -math.inf)
    return (torch.softmax(scores, -1) @ values).transpose(0, 1)


def scaled_attention(row):
    """Beside our own attention of bfloat16."""
    batch, tokens, heads, dim = row["shape"]
    causal = row["data"]["causal"]
    eights = [_normal(row["shape"], "float8_e4m3fn") for _ in range(3)]
    scales = [torch.rand((heads,), device="cuda") + 0.5 for _ in range(3)]
    some = torch.randperm(tokens, device="cuda")[:64]
    halves = [t.to(torch.bfloat16) for t in eights]
    reference = _some_rows(*(t[-1:].double() * s.double()[:, None] for t, s in zip(eights, scales)), causal, some)
    return Job([*eights, *scales], [(row["shape"], "bfloat16")], [(0, reference)], lambda: library.attention(*halves, causal=causal),
               part=lambda result: result[-1, some])


def attention_backward(row):
    """Of one head of one sequence, some tokens of each gradient are compared: those of some queries, and those of some keys for which all queries of
    the heads that share them count."""
    batch, tokens, heads, dim = row["shape"]
    data = row["data"]
    groups, dtype = data["groups"], data["dtype"]
    q, k, v, do = (_normal((batch, tokens, heads // g, dim), dtype) for g in (1, groups, groups, 1))
    inputs = [t.transpose(1, 2).requires_grad_() for t in (q.clone(), k.clone(), v.clone())]
    for backend in ("flash", "mem_efficient", "math"):
        getattr(torch.backends.cuda, f"enable_{backend}_sdp")(False)
    shared = {"enable_gqa": True} if groups > 1 else {}
    theirs = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=data["causal"], **shared)
    slope = do.transpose(1, 2)
    o, lse = library.attention_with_lse(q, k, v, data["causal"])

    some = torch.randperm(tokens, device="cuda")[:64]
    position = torch.arange(tokens, device="cuda")
    sums = {name: 0.0 for name in ("dk", "dv")}
    for head in range(groups):  # of the first that share keys, a part of the queries at a time
        query, slopes, result = (t[-1, :, head].double() for t in (q, do, o))
        key, value = (t[-1, :, 0].double() for t in (k, v))
        for begin in range(0, tokens, 2048):
            part = slice(begin, begin + 2048)
            scores = query[part] @ key.t() * dim**-0.5
            if data["causal"]:
                scores = scores.masked_fill(position[part, None] < position, -math.inf)
            weights = torch.softmax(scores, -1)
            delta = (slopes[part] * (weights @ value)).sum(-1, True)
            scored = weights * (slopes[part] @ value.t() - delta) * dim**-0.5
            sums["dv"] = sums["dv"] + weights[:, some].t() @ slopes[part]
            sums["dk"] = sums["dk"] + scored[:, some].t() @ query[part]
            if head == 0:
                sums.setdefault("dq", []).append(scored @ key)
    references = [torch.cat(sums["dq"])[some], sums["dk"], sums["dv"]]
    return Job([q, k, v, o, lse, do], [(tuple(t.shape), dtype) for t in (q, k, v)], list(enumerate(references)),
               lambda: torch.autograd.grad(theirs, inputs, slope, retain_graph=True), bar=2 * HALF[dtype == "bfloat16"],
               part=lambda result: result[-1, some, 0])


def _rows(function, outputs, extra=()):
    """Row-wise programs on x: `function` of x in float64 and the extra inputs gives the references."""

    def job(row):
        m, n = row["shape"]
        x = _normal((m, n), "bfloat16")
        more = [make(m, n) for make in extra]
        references = function(x.double(), *[t.double() if t.is_floating_point() else t for t in more])
        results = [(tuple(r.shape), dtype) for r, dtype in zip(references, outputs)]
        return Job([x, *more], results, list(enumerate(references)))

    return job


def _layer_norm(x, w, b):
    mean, variance = x.mean(1), x.var(1, unbiased=False)
    rstd = torch.rsqrt(variance + 1e-5)
    return [(x - mean[:, None]) * rstd[:, None] * w + b, mean, rstd]


def layer_norm_backward(row):
    m, n = row["shape"]
    dy, x, w = _normal((m, n), "bfloat16"), _normal((m, n), "bfloat16"), _normal((n,), "bfloat16")
    mean, rstd = x.double().mean(1), torch.rsqrt(x.double().var(1, unbiased=False) + 1e-5)
    g, normal = dy.double() * w.double(), (x.double() - mean[:, None]) * rstd[:, None]
    dx = rstd[:, None] * (g - g.mean(1, True) - normal * (g * normal).mean(1, True))
    return Job([dy, x, w, mean.float(), rstd.float()], [((m, n), "bfloat16")], [(0, dx)])


def swiglu(row):
    m, n = row["shape"]
    x = _normal((m, 2 * n), "bfloat16")
    gate, value = x.double().chunk(2, 1)
    return Job([x], [((m, n), "bfloat16")], [(0, torch.nn.functional.silu(gate) * value)])


def rope(row):
    tokens, heads, dim = row["shape"]
    x, angle = _normal((tokens, heads, dim), "bfloat16"), torch.rand((tokens, dim // 2), device="cuda") * 6.28
    cos, sin = angle.cos(), angle.sin()
    low, high = x.double().chunk(2, 2)
    c, s = cos.double()[:, None], sin.double()[:, None]
    return Job([x, cos, sin], [(tuple(x.shape), "bfloat16")], [(0, torch.cat([low * c - high * s, high * c + low * s], 2))])


def _quantized(x):
    scale = (x.abs().amax(1) / 448.0).clamp_min(1e-12)
    return [x / scale[:, None], scale]


MAKERS = {
    "gemm": gemm, "with_epilogue": with_epilogue, "block_scaled": block_scaled, "batched": batched, "grouped": grouped,
    "packed_weights": packed_weights, "packed_mxfp4": packed_mxfp4, "attention": attention,
    "decode": decode, "latent": latent, "chosen": chosen,
    "attention_backward": attention_backward, "scaled_attention": scaled_attention,
    "softmax": _rows(lambda x: [torch.softmax(x, 1)], ["bfloat16"]),
    "cross_entropy": _rows(lambda x, label: [torch.nn.functional.cross_entropy(x, label.long(), reduction="none")], ["float32"],
                           [lambda m, n: torch.randint(0, n, (m,), device="cuda", dtype=torch.int32)]),
    "row_sum": _rows(lambda x: [x.sum(1)], ["float32"]), "column_sum": _rows(lambda x: [x.sum(0)], ["float32"]),
    "transpose": _rows(lambda x: [x.t().contiguous()], ["bfloat16"]), "swiglu": swiglu, "rope": rope,
    "rms_norm": _rows(lambda x, w: [x * torch.rsqrt((x * x).mean(1, True) + 1e-6) * w], ["bfloat16"], [lambda m, n: _normal((n,), "bfloat16")]),
    "layer_norm": _rows(_layer_norm, ["bfloat16", "float32", "float32"], [lambda m, n: _normal((n,), "bfloat16")] * 2),
    "layer_norm_backward": layer_norm_backward, "quantize_rows": _rows(_quantized, ["float8_e4m3fn", "float32"]),
}


@functools.lru_cache(maxsize=1)
def make(name):
    import bench_table

    row = next(r for r in bench_table.rows() if r["name"] == name)
    job = MAKERS[row["data"]["kind"]](row)
    job.bar = BARS.get(row["data"]["kind"], job.bar)
    return job
