# SPDX-License-Identifier: Apache-2.0
"""Results and gradients of kiln.library's functions on a GPU, beside torch in float64."""

import functools

import torch
from kiln import library
from kiln.library.operation import OPERATIONS

from data import relative_error

BARS = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float8_e4m3fn: 0.07, torch.int32: 0.0}
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
HALVES = FLOATS[:2]
ROWS = [(5, 77), (3, 2, 64), (1000, 1000), (130,), (64, 8192), (2, 20000), (3, 131072)]


def normal(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def near(actual, expected, times=1.0):
    """Raises unless shape and numbers are right."""
    bar = BARS[actual.dtype] * times
    if actual.shape != expected.shape:
        raise AssertionError(f"shape {tuple(actual.shape)}, not {tuple(expected.shape)}")
    error = relative_error(actual, expected)
    if not error <= bar:
        raise AssertionError(f"error {error:.2e}, bar {bar:.0e}")


def rms(x, w, eps=1e-6):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


def silu_of_halves(x):
    gate, value = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * value


def rotated(x, cos, sin):
    low, high = x.chunk(2, -1)
    c, s = cos[..., None, :], sin[..., None, :]
    return torch.cat([low * c - high * s, high * c + low * s], -1)


def losses(x, label):
    return torch.nn.functional.cross_entropy(x.reshape(-1, x.shape[-1]), label.reshape(-1).long(), reduction="none").reshape(label.shape)


def row_wise(shape, dtype):
    """Forward and backward of the functions of rows."""
    n = shape[-1]
    x, w, b = normal(*shape, dtype=dtype), normal(n, dtype=dtype), normal(n, dtype=dtype)
    label = torch.randint(0, n, shape[:-1], device="cuda")
    checks = [
        ("rms_norm", library.rms_norm, rms, (x, w)),
        ("layer_norm", lambda *a: library.layer_norm(*a)[0], lambda x, w, b: torch.nn.functional.layer_norm(x, (n,), w, b), (x, w, b)),
        ("softmax", library.softmax, lambda x: torch.softmax(x, -1), (x,)),
        ("cross_entropy", lambda x: library.cross_entropy(x, label), lambda x: losses(x, label), (x,)),
        ("swiglu", library.swiglu, silu_of_halves, (normal(*shape[:-1], 2 * n, dtype=dtype),)),
        ("sum", library.sum, lambda x: x.sum(-1), (x,)),
        ("mean", library.mean, lambda x: x.mean(-1), (x,)),
    ]
    if len(shape) == 2:
        checks += [("sum 0", lambda x: library.sum(x, 0), lambda x: x.sum(0), (x,)),
                   ("transpose", library.transpose, lambda x: x.t(), (x,))]
    for name, ours, theirs, arguments in checks:
        try:
            differentiated(ours, theirs, arguments)
        except Exception as problem:
            raise AssertionError(f"{name}: {type(problem).__name__}: {problem}") from problem
    near(library.amax(x), x.double().amax(-1))
    near(library.amin(x), x.double().amin(-1))
    q, s = library.quantize_rows(x)
    scale = x.double().abs().amax(-1) / 448
    near(s, scale)
    near(q.float(), x.double() / scale[..., None], times=7000)


def differentiated(ours, theirs, arguments):
    """The result, and the gradients for a random one, beside float64."""
    mine = [a.detach().clone().requires_grad_() for a in arguments]
    wide = [a.detach().double().requires_grad_() for a in arguments]
    actual, expected = ours(*mine), theirs(*wide)
    near(actual.detach(), expected.detach(), times=10 if actual.dtype == torch.float32 else 1)
    gradient = torch.randn_like(actual)
    actual.backward(gradient)
    expected.backward(gradient.double())
    for a, e in zip(mine, wide):
        near(a.grad, e.grad, times=20 if a.dtype == torch.float32 else 2)


def products(dtype, shape, trans_a, trans_b):
    m, n, k = shape
    a, b = normal(*((k, m) if trans_a else (m, k)), dtype=dtype), normal(*((n, k) if trans_b else (k, n)), dtype=dtype)
    bias, residual = normal(n, dtype=dtype), normal(m, n, dtype=dtype)

    def reference(a, b, bias, residual):
        return (a.mT if trans_a else a) @ (b.mT if trans_b else b) + bias + residual

    def ours(a, b, bias, residual):
        return library.matmul(a, b, bias, residual=residual, trans_a=trans_a, trans_b=trans_b)

    differentiated(ours, reference, (a, b, bias, residual))
    wide = (a.double().mT if trans_a else a.double()) @ (b.double().mT if trans_b else b.double())
    near(library.matmul(a, b, bias, trans_a=trans_a, trans_b=trans_b, activation="gelu"), torch.nn.functional.gelu(wide + bias.double()),
         times=10 if dtype == torch.float32 else 1)
    scale = torch.rand(m, device="cuda") + 0.5
    near(library.matmul(a, b, trans_a=trans_a, trans_b=trans_b, row_scale=scale, out_dtype=torch.float32), wide * scale.double()[:, None],
         times=10)
    near(library.matmul(a, b.mT, trans_a=trans_a, trans_b=not trans_b), wide)


def other_products():
    a, b = (torch.randint(-128, 128, s, device="cuda", dtype=torch.int8) for s in ((100, 256), (96, 256)))
    if not torch.equal(library.matmul(a, b, trans_b=True), (a.double() @ b.double().t()).int()):
        raise AssertionError("int8 is not exact")
    a, b = normal(100, 256, dtype=torch.float8_e4m3fn), normal(96, 256, dtype=torch.float8_e4m3fn)
    near(library.matmul(a, b, trans_b=True), a.double() @ b.double().t())
    a, b = normal(3, 70, 128, dtype=torch.bfloat16), normal(3, 128, 200, dtype=torch.bfloat16)
    differentiated(library.matmul, torch.matmul, (a, b))
    differentiated(library.matmul, torch.matmul, (a, b[0]))
    w, x, bias = normal(1000, 4096, dtype=torch.float16), normal(4096, dtype=torch.float16), normal(1000, dtype=torch.float16)
    differentiated(library.gemv, lambda w, x, bias: w @ x + bias, (w, x, bias))
    a, b = normal(128, 256), normal(256, 128)
    near(library.matmul(a, b, allow_tf32=True), a.double() @ b.double(), times=200)


def quantized_products():
    m, n, k = 70, 256, 512
    a, b = normal(m, k, dtype=torch.float8_e4m3fn), normal(n, k, dtype=torch.float8_e4m3fn)
    scale_a, scale_b = torch.rand(k // 128, m, device="cuda") + 0.5, torch.rand(n // 128, k // 128, device="cuda") + 0.5
    left = (a.double().view(m, -1, 128) * scale_a.t().double()[:, :, None]).view(m, k)
    right = (b.double().view(n, -1, 128) * scale_b.double().repeat_interleave(128, 0)[:, :, None]).view(n, k)
    near(library.scaled_matmul(a, b, scale_a, scale_b), left @ right.t())
    tiles = torch.tensor([2, 0, 2], device="cuda", dtype=torch.int32)
    a, b = normal(3 * library.GROUP_ROWS, k, dtype=torch.bfloat16), normal(4, n, k, dtype=torch.bfloat16)
    expected = torch.cat([x.double() @ b[e].double().t() for x, e in zip(a.split(library.GROUP_ROWS), tiles.tolist())])
    near(library.grouped_matmul(a, b, tiles), expected)
    packed = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
    scale = (torch.rand(k // 128, n, device="cuda") + 0.5).to(torch.bfloat16)
    nibbles = torch.stack([packed & 15, packed >> 4], -1).view(n, k).double() - 8
    weights = (nibbles.view(n, -1, 128) * scale.t().double()[:, :, None]).view(n, k)
    for rows in (1, 9, 100):
        a = normal(rows, k, dtype=torch.bfloat16)
        for given in (packed, library.interleave(packed)):
            near(library.quantized_matmul(a, given, scale), a.double() @ weights.t())


def attention(dtype, causal):
    for batch, tokens, keys, heads, kv_heads, dim in ((2, 333, 333, 4, 4, 64), (1, 1, 1000, 8, 2, 128), (3, 100, 257, 6, 3, 80),
                                                      (1, 2048, 2048, 2, 2, 128)):
        q, k, v = normal(batch, tokens, heads, dim, dtype=dtype), *(normal(batch, keys, kv_heads, dim, dtype=dtype) for _ in range(2))
        wide = [t.double().transpose(1, 2) for t in (q, k.repeat_interleave(heads // kv_heads, 2),
                                                     v.repeat_interleave(heads // kv_heads, 2))]
        mask = torch.ones(tokens, keys, dtype=torch.bool, device="cuda").tril(keys - tokens) if causal else None
        expected = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=mask).transpose(1, 2)
        near(library.attention(q, k, v, causal=causal), expected)


def seen_by(q, keys, values, scale):
    """One head's softmax(q · keysᵀ · scale) · values."""
    return torch.softmax(q @ keys.transpose(-1, -2) * scale, -1) @ values


def cached(lengths, caches, page):
    """(the caches with NaN beyond each sequence, the table or None)"""
    for b, length in enumerate(lengths):
        for cache in caches:
            cache[b, length:] = float("nan")
    if not page:
        return caches, None
    batch, columns = len(lengths), -(-caches[0].shape[1] // page)
    order = torch.randperm(batch * columns, device="cuda").view(batch, columns)
    pages = []
    for cache in caches:
        made = cache.new_full((batch * columns, page, *cache.shape[2:]), float("nan"))
        for b in range(batch):
            for c in range(columns):
                part = cache[b, c * page:(c + 1) * page]
                made[order[b, c], :len(part)] = part
        pages.append(made)
    table = order.to(torch.int32)
    for b, length in enumerate(lengths):
        table[b, -(-length // page):] = -5
    return pages, table


def decode(dtype, dim, page):
    for lengths, capacity, tokens, heads, kv_heads in (([0, 1, 64, 333, 700], 701, 1, 8, 2), ([3, 130], 256, 5, 16, 1), ([20000], 20480, 1, 8, 1)):
        q = normal(len(lengths), tokens, heads, dim, dtype=dtype)
        k, v = (normal(len(lengths), capacity, kv_heads, dim, dtype=dtype) for _ in range(2))
        expected = torch.zeros(q.shape, device="cuda", dtype=torch.float64)
        for b, length in enumerate(lengths):
            for i in range(max(0, tokens - length), tokens):
                end = length - tokens + i + 1
                keys, values = (t[b, :end].double().repeat_interleave(heads // kv_heads, 1).transpose(0, 1) for t in (k, v))
                expected[b, i] = seen_by(q[b, i].double()[:, None], keys, values, dim**-0.5)[:, 0]
        caches, table = cached(lengths, [k, v], page)
        near(library.attention_decode(q, *caches, torch.tensor(lengths, dtype=torch.int32, device="cuda"), table), expected)


def latent(dtype, heads, page):
    for lengths, capacity, tokens in (([0, 1, 64, 333], 400, 1), ([5000], 5120, 1), ([2, 200], 256, 3)):
        q, kv = normal(len(lengths), tokens, heads, 576, dtype=dtype), normal(len(lengths), capacity, 576, dtype=dtype)
        expected = torch.zeros((*q.shape[:3], 512), device="cuda", dtype=torch.float64)
        for b, length in enumerate(lengths):
            for i in range(max(0, tokens - length), tokens):
                keys = kv[b, :length - tokens + i + 1].double()
                expected[b, i] = seen_by(q[b, i].double(), keys, keys[:, :512], 576**-0.5)
        (cache,), table = cached(lengths, [kv], page)
        near(library.latent_attention(q, cache, torch.tensor(lengths, dtype=torch.int32, device="cuda"), table), expected)


def chosen(dtype, heads):
    for tokens, keys, count, causal in ((7, 100, 33, True), (64, 3000, 512, False), (300, 300, 128, True)):
        q, kv = normal(2, tokens, heads, 576, dtype=dtype), normal(2, keys, 576, dtype=dtype)
        rows = torch.stack([torch.randperm(keys + 40, device="cuda")[:count] - 20 for _ in range(2 * tokens)]).view(2, tokens, count).to(torch.int32)
        rows[0, 0] = -1
        expected = torch.zeros((*q.shape[:3], 512), device="cuda", dtype=torch.float64)
        for b in range(2):
            for i in range(tokens):
                end = i + keys - tokens + 1 if causal else keys
                seen = kv[b, rows[b, i][(rows[b, i] >= 0) & (rows[b, i] < end)].long()].double()
                if len(seen):
                    expected[b, i] = seen_by(q[b, i].double(), seen, seen[:, :512], 576**-0.5)
        near(library.sparse_latent_attention(q, kv, rows, causal), expected)


def block_sparse(dtype, block):
    for tokens, keys, dim, most, causal in ((300, 300, 64, 3, True), (1000, 2000, 128, 5, False), (257, 513, 256, 2, True)):
        q, k, v = normal(2, tokens, 4, dim, dtype=dtype), *(normal(2, keys, 2, dim, dtype=dtype) for _ in range(2))
        lists, blocks = -(-tokens // block), -(-keys // block)
        chosen = torch.stack([torch.randperm(blocks + 1, device="cuda")[:most] for _ in range(8 * lists)]).view(2, 4, lists, -1).to(torch.int32)
        counts = torch.randint(0, chosen.shape[-1] + 1, (2, 4, lists), device="cuda", dtype=torch.int32)
        seen = torch.zeros(2, 4, lists, blocks + 1, dtype=torch.bool, device="cuda")
        for n in range(chosen.shape[-1]):
            seen.scatter_(3, chosen[..., n:n + 1].long(), (counts > n)[..., None] | seen.gather(3, chosen[..., n:n + 1].long()))
        seen = seen.repeat_interleave(block, 2)[:, :, :tokens].repeat_interleave(block, 3)[..., :keys]
        if causal:
            seen &= torch.ones(tokens, keys, dtype=torch.bool, device="cuda").tril(keys - tokens)
        wide = [t.double().transpose(1, 2) for t in (q, k.repeat_interleave(2, 2), v.repeat_interleave(2, 2))]
        scores = (wide[0] @ wide[1].transpose(2, 3) * dim**-0.5).masked_fill(~seen, -torch.inf)
        expected = (torch.softmax(scores, -1).nan_to_num(0.0) @ wide[2]).transpose(1, 2)
        near(library.block_sparse_attention(q, k, v, chosen, counts, block, causal), expected)


def linear(dtype, decays):
    for tokens, groups, heads, keys, values in ((333, 1, 4, 128, 64), (1, 2, 2, 16, 16), (1000, 4, 4, 64, 80), (129, 1, 2, 256, 48)):
        q, k = (normal(2, tokens, groups, keys, dtype=dtype, scale=0.3) for _ in range(2))
        v, decay = normal(2, tokens, heads, values, dtype=dtype), -torch.rand(2, tokens, heads, device="cuda") * 0.2 if decays else None
        total = torch.zeros(2, tokens, heads, device="cuda", dtype=torch.float64) if decay is None else decay.double().cumsum(1)
        later = ~torch.ones(tokens, tokens, dtype=torch.bool, device="cuda").tril()
        since = (total[:, :, None] - total[:, None]).masked_fill(later[None, :, :, None], -torch.inf).exp()
        scores = torch.einsum("btgk,bsgk->btsg", q.double(), k.double()).repeat_interleave(heads // groups, 3)
        near(library.linear_attention(q, k, v, decay), torch.einsum("btsh,bshn->bthn", scores * since, v.double()))


def attention_gradients(dtype, causal):
    """Those of torch's attention in float64; in order, twice the same bits."""
    for batch, tokens, keys, heads, kv_heads, dim in ((2, 333, 333, 4, 4, 64), (1, 1, 1000, 8, 2, 128), (3, 100, 257, 6, 3, 80),
                                                      (1, 70, 130, 2, 1, 112), (1, 2048, 2048, 4, 1, 128),
                                                      (2, 1500, 2048, 4, 4, 64), (1, 5, 5, 1, 1, 16)):
        q, k, v = normal(batch, tokens, heads, dim, dtype=dtype), *(normal(batch, keys, kv_heads, dim, dtype=dtype) for _ in range(2))
        mask = torch.ones(tokens, keys, dtype=torch.bool, device="cuda").tril(keys - tokens) if causal else None

        def theirs(q, k, v):
            shared = [t.repeat_interleave(heads // kv_heads, 2).transpose(1, 2) for t in (k, v)]
            return torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), *shared, attn_mask=mask).transpose(1, 2)

        differentiated(lambda q, k, v: library.attention(q, k, v, causal=causal), theirs, (q, k, v))
        torch.use_deterministic_algorithms(True)
        try:
            differentiated(lambda q, k, v: library.attention(q, k, v, causal=causal), theirs, (q, k, v))
        finally:
            torch.use_deterministic_algorithms(False)
        o, lse = library.attention_with_lse(q, k, v, causal)
        first, second = (library.attention_backward(q, k, v, o, lse, q, causal, deterministic=True) for _ in range(2))
        if not all(map(torch.equal, first, second)):
            raise AssertionError("equal calls in order give other bits")


def eight_bits():
    """Weights have three bits behind the first."""
    for batch, tokens, keys, heads, kv_heads, dim, causal in ((2, 333, 333, 4, 4, 128, True), (1, 1, 1000, 8, 2, 256, False),
                                                              (3, 100, 257, 6, 3, 64, True), (1, 2048, 2048, 2, 2, 128, False),
                                                              (1, 700, 2000, 4, 2, 256, True)):
        q, k, v = (normal(batch, n, h, dim, dtype=torch.float8_e4m3fn) for n, h in ((tokens, heads), (keys, kv_heads), (keys, kv_heads)))
        scales = [torch.rand(h, device="cuda") + 0.5 for h in (heads, kv_heads, kv_heads)]
        wide = [t.double() * s.double()[:, None] for t, s in zip((q, k, v), scales)]
        wide = [wide[0].transpose(1, 2), *(t.repeat_interleave(heads // kv_heads, 2).transpose(1, 2) for t in wide[1:])]
        mask = torch.ones(tokens, keys, dtype=torch.bool, device="cuda").tril(keys - tokens) if causal else None
        expected = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=mask).transpose(1, 2)
        near(library.scaled_attention(q, k, v, *scales, causal=causal), expected, times=5)


def rotary(dtype):
    x, angle = normal(2, 50, 8, 64, dtype=dtype), torch.rand(2, 50, 32, device="cuda") * 6.28
    cos, sin = angle.cos(), angle.sin()
    differentiated(lambda x: library.rope(x, cos, sin), lambda x: rotated(x, cos.double(), sin.double()), (x,))


def strided():
    x, w = normal(40, 300, dtype=torch.float16)[::2, ::3], normal(200, dtype=torch.float16)[::2]
    near(library.rms_norm(x, w), rms(x.double(), w.double()))
    offset = normal(4101, dtype=torch.float16)[1:4001].view(40, 100)
    near(library.rms_norm(offset, w), rms(offset.double(), w.double()))
    near(library.softmax(x.t()), torch.softmax(x.t().double(), -1))
    near(library.rms_norm(x[:0], w), rms(x[:0].double(), w.double()))


def batch_sizes():
    from kiln.library import plans

    w, b = normal(512, dtype=torch.bfloat16), normal(512, 256, dtype=torch.bfloat16)
    before = len(plans._kernels)
    for m in (*range(1, 130), 1000, 4097):
        x = normal(m, 512, dtype=torch.bfloat16)
        near(library.rms_norm(x, w), rms(x.double(), w.double()))
        near(library.matmul(x, b), x.double() @ b.double())
    made = len(plans._kernels) - before
    if made > 1 + 17 + 3:
        raise AssertionError(f"{made} kernels for 131 batch sizes of two functions")
    return f"{made} kernels for 131 batch sizes of two functions"


def cases():
    """(name, family, call) of each."""
    for shape in ROWS:
        for dtype in FLOATS:
            yield f"rows {'x'.join(map(str, shape))} {str(dtype)[6:]}", "rows", functools.partial(row_wise, shape, dtype)
    for shape in ((37, 40, 48), (1, 1000, 512), (300, 256, 1000), (1000, 777, 333)):
        for trans_a in (False, True):
            for trans_b in (False, True):
                name = f"matmul {'x'.join(map(str, shape))} {'tn'[not trans_a]}{'tn'[not trans_b]}"
                yield name + " bfloat16", "products", functools.partial(products, torch.bfloat16, shape, trans_a, trans_b)
    yield "matmul 100x64x80 nn float32", "products", functools.partial(products, torch.float32, (100, 64, 80), False, False)
    yield "matmul 100x64x80 nt float16", "products", functools.partial(products, torch.float16, (100, 64, 80), False, True)
    yield "other products", "products", other_products
    yield "quantized products", "products", quantized_products
    for dtype in HALVES:
        for causal in (False, True):
            yield f"attention {str(dtype)[6:]}{' causal' * causal}", "attention", functools.partial(attention, dtype, causal)
            yield f"attention gradients {str(dtype)[6:]}{' causal' * causal}", "attention", functools.partial(attention_gradients, dtype, causal)
        for dim in (64, 128, 256):
            for page in (0, 16, 64, 256):
                yield f"decode {dim} pages of {page} {str(dtype)[6:]}", "decode", functools.partial(decode, dtype, dim, page)
        for heads in (16, 128):
            for page in (0, 16, 64):
                yield f"latent {heads} heads pages of {page} {str(dtype)[6:]}", "decode", functools.partial(latent, dtype, heads, page)
            yield f"chosen rows {heads} heads {str(dtype)[6:]}", "decode", functools.partial(chosen, dtype, heads)
        for block in (64, 128):
            yield f"blocks of {block} {str(dtype)[6:]}", "attention", functools.partial(block_sparse, dtype, block)
        for decays in (False, True):
            yield f"linear attention{' with decay' * decays} {str(dtype)[6:]}", "attention", functools.partial(linear, dtype, decays)
    yield "scaled attention", "attention", eight_bits
    for dtype in FLOATS:
        yield f"rope {str(dtype)[6:]}", "rows", functools.partial(rotary, dtype)
    yield "strided, offset and empty tensors", "rows", strided
    yield "one kernel for many batch sizes", "buckets", batch_sizes
    if not OPERATIONS["matmul"].registered:
        raise RuntimeError("kiln.library is not registered with torch")
