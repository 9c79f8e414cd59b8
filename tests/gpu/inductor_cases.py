# SPDX-License-Identifier: Apache-2.0
"""Small functions, one for each thing that torch.compile lowers to a Triton kernel. A case has a function, what makes its inputs, and the settings
of Inductor that it needs."""

import torch
import torch.nn.functional as F

CASES: dict = {}


class Case:
    def __init__(self, function, inputs, *, dynamic=False, backward=False, tolerance=None, patch=None, exact_random=False, tiles=False,
                 elsewhere=False):
        """``tiles``: products and convolutions become kernels of Inductor's templates, and not a library's. ``exact_random``: as eager has them.
        ``backward``: the gradients of inputs that ask for one are compared too. ``elsewhere``: kernels are compiled in other processes."""
        self.function, self.inputs, self.dynamic, self.backward, self.tolerance = function, inputs, dynamic, backward, tolerance
        self.patch, self.elsewhere = dict(patch or {}), elsewhere
        if exact_random:
            self.patch["fallback_random"] = True
        if tiles:
            self.patch |= {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON", "max_autotune_conv_backends": "TRITON",
                           "max_autotune": True, "autotune_in_subproc": False, "benchmark_epilogue_fusion": False}


class Inputs:
    """Made by one seed, on the device."""

    def __init__(self, device: str, seed: int = 0):
        self.device = device
        self.source = torch.Generator().manual_seed(seed)

    def f(self, *shape, dtype=torch.float32, grad=False):
        return torch.randn(shape, generator=self.source).to(self.device, dtype).requires_grad_(grad)

    def h(self, *shape, dtype=torch.bfloat16):
        return self.f(*shape, dtype=dtype)

    def u(self, *shape):
        return torch.rand(shape, generator=self.source).to(self.device)

    def i(self, high, *shape, low=0, dtype=torch.int64):
        return torch.randint(low, high, shape, generator=self.source).to(self.device, dtype)

    def b(self, *shape):
        return self.u(*shape) > 0.5

    def order(self, n):
        return torch.randperm(n, generator=self.source).to(self.device)


def case(name, inputs, **options):
    def kept(function):
        CASES[name] = Case(function, inputs, **options)
        return function

    return kept


def row(name, function, inputs, **options):
    CASES[name] = Case(function, inputs, **options)


# Elementwise.
row("pointwise", lambda x, y: torch.relu(x) * y + 1, lambda r: (r.f(100, 37), r.f(100, 37)))
row("broadcast", lambda x, y: (x + y).sigmoid() * x, lambda r: (r.f(64, 1, 33), r.f(7, 33)))
row("halves", lambda x, y: F.gelu(x) * y - x, lambda r: (r.h(1000), r.h(1000)), tolerance=2e-2)
row("float64", lambda x: torch.erf(x).exp() + x.tanh(), lambda r: (r.f(300, dtype=torch.float64),))
row("integers", lambda x, y: (x // y, x % y, torch.div(x, y, rounding_mode="trunc"), x << 2, x ^ y),
    lambda r: (r.i(100, 500, low=-100), r.i(9, 500, low=1)))
row("comparisons", lambda x, y: (x < y) | (x == 0) & ~(y > 1), lambda r: (r.f(200), r.f(200)))
row("where", lambda c, x, y: torch.where(c, x, y.clamp(-1, 1)), lambda r: (r.b(9, 50), r.f(9, 50), r.f(9, 1)))
row("math", lambda x: (x.abs().log1p(), x.sin() + x.cos(), x.exp2(), x.expm1(), torch.rsqrt(x.abs() + 1), torch.lgamma(x.abs() + 0.5)),
    lambda r: (r.f(400),), tolerance=2e-4)
row("powers", lambda x, n: (x.abs() ** 2.5, x ** 3, torch.pow(n, 3), torch.fmod(x, 0.7), torch.remainder(x, 0.7), x.floor(), x.round()),
    lambda r: (r.f(300), r.i(9, 300)), tolerance=1e-4)
row("bits", lambda x: (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32), lambda r: (r.f(256),))
row("casts", lambda x: (x.to(torch.int8), x.to(torch.bfloat16), x.to(torch.float16).float(), x.bool(), x.to(torch.uint8).float()),
    lambda r: (r.u(256) * 100,), patch={"emulate_precision_casts": True})
row("bessel", lambda x: (torch.special.i0(x), torch.special.erfinv(x / 4), torch.special.digamma(x.abs() + 1)), lambda r: (r.u(200) * 3,),
    tolerance=1e-3)
row("transposed", lambda x: (x.t() + 1).contiguous() * 2, lambda r: (r.f(70, 130),))
row("permuted", lambda x, y: x.permute(2, 0, 1) + y, lambda r: (r.f(9, 33, 65), r.f(65, 9, 33)))
row("strided", lambda x: x[::2, 1::3] * x[1::2, ::3][:, :13], lambda r: (r.f(40, 40),))
row("dynamic sizes", lambda x, y: (x * y.unsqueeze(1)).sum(-1), lambda r: (r.f(37, 53), r.f(37)), dynamic=True)
row("elsewhere", lambda x, y: torch.softmax(x, -1) * y, lambda r: (r.f(60, 100), r.f(60, 100)), elsewhere=True, patch={"compile_threads": 2},
    tolerance=1e-4)
row("mutated", lambda x, y: (x.add_(y), x.mul(2))[1], lambda r: (r.f(333), r.f(333)))

# Joined, moved and filled.
row("cat", lambda x, y: torch.cat([x + 1, y * 2, x[:, :3]], 1), lambda r: (r.f(20, 30), r.f(20, 17)))
row("stack", lambda x, y: torch.stack([x, y, x * y], 1), lambda r: (r.f(20, 30), r.f(20, 30)))
row("split", lambda x: [part * 2 for part in torch.split(x, [5, 9, 18], 1)], lambda r: (r.f(12, 32),))
row("padded", lambda x: F.pad(x, (1, 2, 3, 0), value=7.0) + 1, lambda r: (r.f(5, 6, 7),))
row("reflected", lambda x: F.pad(x, (2, 3), mode="reflect") * 2, lambda r: (r.f(4, 6, 17),))
row("rolled", lambda x: torch.roll(x, 5, 1) + torch.flip(x, [0]), lambda r: (r.f(30, 17),))
row("triangles", lambda x: torch.tril(x) + torch.triu(x, 2), lambda r: (r.f(30, 30),))
row("made", lambda x: x + torch.arange(50, device=x.device) * torch.full((50,), 0.5, device=x.device) + torch.eye(50, device=x.device),
    lambda r: (r.f(50, 50),))
row("upsampled", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda r: (r.f(2, 3, 9, 11),))
row("nearest", lambda x: F.interpolate(x, size=(13, 17), mode="nearest"), lambda r: (r.f(2, 3, 9, 11),))
row("foreach", lambda x, y, z: torch._foreach_add(torch._foreach_mul([x, y, z], 2.0), [x, y, z]),
    lambda r: (r.f(100), r.f(7, 9), r.f(33)))
row("optimiser step", lambda p, g, m: (lambda n: (p - 0.1 * n, n))(0.9 * m + g), lambda r: (r.f(5000), r.f(5000), r.f(5000)))

# Reductions.
row("sums", lambda x: (x.sum(), x.sum(0), x.sum(1), x.mean(1)), lambda r: (r.f(70, 300),), tolerance=1e-4)
row("long sum", lambda x: (x * 2).sum(-1), lambda r: (r.f(3, 20000),), tolerance=1e-4)
row("split sum", lambda x: x.sum(), lambda r: (r.f(200000),), tolerance=1e-3)
row("extremes", lambda x: (x.amax(1), x.amin(0), x.max(), torch.aminmax(x)[0]), lambda r: (r.f(50, 130),))
row("argmax", lambda x: (x.argmax(1), x.argmin(0), x.max(1)), lambda r: (r.f(50, 130),))
row("any and all", lambda x: ((x > 2).any(1), (x > -3).all(0)), lambda r: (r.f(40, 90),))
row("product", lambda x: x.prod(1), lambda r: (r.u(30, 20) + 0.5,), tolerance=1e-4)
row("norms", lambda x: (torch.linalg.vector_norm(x, dim=1), x.norm(p=1, dim=0)), lambda r: (r.f(40, 90),), tolerance=1e-4)
row("variance", lambda x: torch.var_mean(x, 1), lambda r: (r.f(40, 700),), tolerance=1e-4)
row("long variance", lambda x: torch.var_mean(x, 1), lambda r: (r.f(3, 9000),), tolerance=1e-4)
row("layer norm", lambda x, w, b: F.layer_norm(x, (300,), w, b), lambda r: (r.f(40, 300, grad=True), r.f(300, grad=True), r.f(300, grad=True)),
    backward=True, tolerance=1e-3)
row("rms norm", lambda x, w: x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w, lambda r: (r.h(40, 320), r.h(320)),
    tolerance=3e-2)
row("group norm", lambda x, w, b: F.group_norm(x, 4, w, b), lambda r: (r.f(3, 16, 9, 9), r.f(16), r.f(16)), tolerance=1e-3)
row("batch norm", lambda x, m, v: F.batch_norm(x, m, v, training=True), lambda r: (r.f(8, 6, 10), r.f(6), r.u(6)), tolerance=1e-3)
row("softmax", lambda x: torch.softmax(x, -1), lambda r: (r.f(60, 200, grad=True),), backward=True, tolerance=1e-4)
row("long softmax", lambda x: torch.log_softmax(x, -1), lambda r: (r.f(4, 9000),), tolerance=1e-4)
row("logsumexp", lambda x: torch.logsumexp(x, 1), lambda r: (r.f(30, 200),), tolerance=1e-4)
row("cross entropy", lambda x, t: F.cross_entropy(x, t), lambda r: (r.f(50, 100, grad=True), r.i(100, 50)), backward=True, tolerance=1e-4)
row("two dimensions", lambda x: (x * 2).sum((0, 2)), lambda r: (r.f(12, 40, 31),), tolerance=1e-4)
row("cooperative", lambda x: (x - x.mean(-1, keepdim=True)).abs().sum(-1), lambda r: (r.f(2, 70000),), tolerance=1e-3,
    patch={"triton.force_cooperative_reductions": True})

# Scans, orders and places.
row("cumsum", lambda x: x.cumsum(1), lambda r: (r.f(20, 300),), tolerance=1e-4)
row("cumulative", lambda x: (x.cumprod(1), torch.logcumsumexp(x, 1)), lambda r: (r.u(8, 60) + 0.5,), tolerance=1e-3)
row("split scan", lambda x: x.cumsum(0), lambda r: (r.f(20000),), tolerance=1e-2)
row("integer scan", lambda x: x.cumsum(0), lambda r: (r.i(9, 700),))
row("cummax", lambda x: torch.cummax(x, 1), lambda r: (r.f(8, 60),))
row("sort", lambda x: torch.sort(x, dim=1, stable=True), lambda r: (r.f(9, 60),))
row("descending", lambda x: torch.sort(x, dim=1, descending=True, stable=True), lambda r: (r.i(20, 5, 100).float(),))
row("index", lambda x, i, j: x[i, j] + x[i].sum(1), lambda r: (r.f(40, 30), r.i(40, 90), r.i(30, 90)), tolerance=1e-4)
row("negative index", lambda x, i: x[i] * 2, lambda r: (r.f(40, 30), r.i(40, 90, low=-40)))
row("gather", lambda x, i: torch.gather(x, 1, i) + 1, lambda r: (r.f(40, 30), r.i(30, 40, 12)))
row("embedding", lambda i, w: F.embedding(i, w).sum(1), lambda r: (r.i(100, 8, 20), r.f(100, 64, grad=True)), backward=True, tolerance=1e-3)
row("scatter", lambda x, i, y: x.scatter(1, i, y), lambda r: (r.f(30, 40), torch.stack([r.order(40)[:12] for _ in range(30)]), r.f(30, 12)))
row("scatter add", lambda x, i, y: x.scatter_add(0, i, y), lambda r: (r.f(30, 40), r.i(30, 90, 40), r.f(90, 40)), tolerance=1e-3)
row("index put", lambda x, i, y: torch.index_put(x, (i,), y), lambda r: (r.f(50, 8), r.order(50)[:20], r.f(20, 8)))
row("index add", lambda x, i, y: x.index_add(0, i, y), lambda r: (r.f(50, 8), r.i(50, 200), r.f(200, 8)), tolerance=1e-3)
row("masked fill", lambda x, m: x.masked_fill(m, -1e9).softmax(-1), lambda r: (r.f(9, 65), r.b(9, 65)), tolerance=1e-4)
row("bucketize", lambda x, e: torch.bucketize(x, e), lambda r: (r.f(300), r.f(20).sort()[0]))
row("pooling", lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2)), lambda r: (r.f(2, 5, 18, 18),), tolerance=1e-4)
row("adaptive pooling", lambda x: F.adaptive_avg_pool2d(x, (5, 3)), lambda r: (r.f(2, 5, 18, 17),), tolerance=1e-4)

# Random numbers.
row("eager's dropout", lambda x: F.dropout(x, 0.3), lambda r: (r.f(100),), exact_random=True)


@case("random", lambda r: (r.f(40000),))
def _random(x):
    """Of Inductor's own numbers only moments can be told."""
    a, b, kept = torch.rand_like(x), torch.randn_like(x), F.dropout(torch.ones_like(x), 0.25)
    n = torch.randint(0, 10, (40000,), device=x.device).float()
    near = [(a.mean() - 0.5).abs() < 0.02, (a.var() - 1 / 12).abs() < 0.01, b.mean().abs() < 0.03, (b.var() - 1).abs() < 0.05,
            ((kept > 0).float().mean() - 0.75).abs() < 0.02, (n.mean() - 4.5).abs() < 0.1, (a >= 0).all() & (a < 1).all()]
    return torch.stack(near)


# Products and convolutions.
row("mm", lambda x, y: x @ y, lambda r: (r.h(96, 64), r.h(64, 80)), tiles=True, tolerance=2e-2)
row("mm float32", lambda x, y: x @ y, lambda r: (r.f(64, 48), r.f(48, 64)), tiles=True, tolerance=2e-2)
row("mm with more", lambda x, y, b: F.relu(x @ y + b) * 2, lambda r: (r.h(96, 64), r.h(64, 80), r.h(80)), tiles=True, tolerance=3e-2)
row("addmm", lambda b, x, y: torch.addmm(b, x, y), lambda r: (r.h(80), r.h(64, 64), r.h(64, 80)), tiles=True, tolerance=3e-2)
row("transposed mm", lambda x, y: x.t() @ y.t(), lambda r: (r.h(64, 96), r.h(80, 64)), tiles=True, tolerance=2e-2)
row("odd mm", lambda x, y: x @ y, lambda r: (r.h(57, 39), r.h(39, 45)), tiles=True, tolerance=2e-2)
row("bmm", lambda x, y: torch.bmm(x, y), lambda r: (r.h(3, 48, 64), r.h(3, 64, 32)), tiles=True, tolerance=2e-2)
row("int8 mm", lambda x, y: torch._int_mm(x, y), lambda r: tuple(r.i(100, 64, n, low=-100, dtype=torch.int8) for n in (64, 32)), tiles=True)
row("conv", lambda x, w: F.conv2d(x, w, padding=1), lambda r: (r.f(2, 16, 10, 10), r.f(32, 16, 3, 3)), tiles=True, tolerance=2e-2)
row("conv 1x1", lambda x, w, b: F.relu(F.conv2d(x, w, b)), lambda r: (r.f(2, 16, 10, 10), r.f(32, 16, 1, 1), r.f(32)), tiles=True, tolerance=2e-2)
row("mv", lambda x, y: (x.unsqueeze(0) @ y)[0] + 1, lambda r: (r.f(64), r.f(64, 50)), tolerance=1e-3)


def _flex(score=None, mask=None):
    def attention(q, k, v):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        block = create_block_mask(mask, None, None, q.shape[2], k.shape[2], device=q.device) if mask else None
        return flex_attention(q, k, v, score_mod=score, block_mask=block, enable_gqa=q.shape[1] != k.shape[1])

    return attention


def _causal(b, h, q, k):
    return q >= k


_QKV = (lambda r: tuple(r.h(1, 2, 256, 64, dtype=torch.float16) for _ in range(3)))
row("flex attention", _flex(lambda s, b, h, q, k: s + (q - k) * 0.01), _QKV, tolerance=2e-2)
row("flex causal", _flex(None, _causal), _QKV, tolerance=2e-2)
row("flex decoding", _flex(), lambda r: (r.h(1, 4, 1, 64, dtype=torch.float16), *(r.h(1, 2, 256, 64, dtype=torch.float16) for _ in range(2))),
    tolerance=2e-2)
row("attention by hand", lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v, lambda r: tuple(r.f(2, 32, 64) for _ in range(3)),
    tiles=True, tolerance=2e-2)


def prepare() -> None:
    """What needs the package ``triton``."""
    global scale
    import triton
    import triton.language as tl

    @triton.jit
    def scale(x, y, n, factor, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)


@case("a kernel of one's own", lambda r: (r.f(1000),))
def _own(x):
    y = torch.empty_like(x)
    scale[(8,)](x, y, x.numel(), 2.0, BLOCK=128)
    return y + 1
