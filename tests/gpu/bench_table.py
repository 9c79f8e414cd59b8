# SPDX-License-Identifier: Apache-2.0
"""What is timed, against whom, and the bar: rows of plain data. A row calls a function of ``kiln.library``; sizes of tiles are the
library's business."""

from kiln.library import GROUP_ROWS

# A group's bar is on the geometric mean of its rows' ratios, `each` on every one; rows may have bars of their own.
GROUPS = {
    "gemm": {"peer": "cublas", "bar": 1.01, "each": 0.97},
    "gemm small": {"peer": "cublas", "bar": 1.05},
    "gemm fused": {"peer": "plain", "bar": 0.97, "each": 0.97},
    "gemm e4m3": {"peer": "cublas", "bar": 1.05},
    "gemm e4m3 scaled": {"peer": "published", "bar": None},
    "gemm int8": {"peer": "cublas", "bar": 1.1},
    "gemm batched": {"peer": "cublas", "bar": 1.0},
    "gemm grouped": {"peer": "triton", "bar": 1.2},
    "w4a16": {"peer": "cublas", "bar": None},
    "attention": {"peer": "cudnn", "bar": 1.05, "each": 0.95},
    "decode": {"peer": "copy", "bar": None, "each": 0.88},
    "latent decode, few heads": {"peer": "copy", "bar": None, "each": 0.85},
    "latent": {"peer": "published", "bar": None},
    "attention backward": {"peer": "cudnn", "bar": 1.0, "each": 0.9},
    "attention e4m3": {"peer": "our bf16", "bar": 1.5},
    "attention in order": {"peer": "cudnn", "bar": None, "each": 0.85},
    "memory": {"peer": "copy", "bar": None, "each": 0.93},
}

LARGE = [(8192, 8192, 8192), (4096, 4096, 4096), (16384, 8192, 1280), (1024, 8192, 8192), (8192, 28672, 4096), (2048, 7168, 7168), (5000, 3000, 2000)]
FUSED = [{"bias": True}, {"activation": "gelu"}]
EPILOGUES = [{"residual": True}, {"row_scale": True}, {"row_scale": True, "out_dtype": "float8_e4m3fn"}]


def _row(group, shape, function, arguments, data, bar=None, flop=None, moved=None):
    """``arguments``: of the operator, in its order; a tensor is (shape, dtype)."""
    name = f"{group} {'x'.join(map(str, shape))} {data.get('dtype', '')} {data.get('note', '')}".strip()
    return {"name": name, "group": group, "shape": shape, "function": function, "arguments": arguments, "data": data, "bar": bar,
            "flop": flop,
            "bytes": moved}


def _matmul(m, n, k, dtype, layout="nt", bias=False, residual=False, row_scale=False, activation=None, out_dtype=None, batch=()):
    b = (*batch, n, k) if layout == "nt" else (*batch, k, n)
    return [((*batch, m, k), dtype), (b, dtype), ((n,), dtype) if bias else None, ((m, n), dtype) if residual else None,
            ((m,), "float32") if row_scale else None, activation, False, layout == "nt", out_dtype, False, False]


def _gemm(group, shape, dtype, out, layout="nt", note="", **more):
    m, n, k = shape
    data = {"kind": "gemm", "dtype": dtype, "out": out, "layout": layout, "note": " ".join(filter(None, [layout, note])), **more}
    return _row(group, shape, "matmul", _matmul(*shape, dtype, layout, **more), data, flop=2 * m * n * k)


def _epilogue(shape, **extra):
    m, n, k = shape
    note = "+".join(str(value) if key == "out_dtype" else key for key, value in extra.items())
    return _row("gemm fused", shape, "matmul", _matmul(*shape, "bfloat16", **extra),
                {"kind": "with_epilogue", "dtype": "bfloat16", "note": note, **extra},
                flop=2 * m * n * k)


def _scaled(shape, published):
    m, n, k = shape
    fp8, steps = "float8_e4m3fn", k // 128
    arguments = [((m, k), fp8), ((n, k), fp8), ((steps, m), "float32"), ((-(-n // 128), steps), "float32"), None]
    return _row("gemm e4m3 scaled", shape, "scaled_matmul", arguments, {"kind": "block_scaled", "dtype": fp8, "published": published},
                bar=1.0 if published else None, flop=2 * m * n * k, moved=m * k + n * k + 2 * m * n)


def _grouped(dtype):
    experts, n, k = 64, 4096, 7168
    # Triton keeps the unit's own sums of 8-bit floats: 5e-3 of error at k = 8192.
    fast = dtype.startswith("float8")
    arguments = [((experts * GROUP_ROWS, k), dtype), ((experts, n, k), dtype), ((experts,), "int32"), fast]
    data = {"kind": "grouped", "dtype": dtype, "tile": GROUP_ROWS, **({"note": "fast accumulation"} if fast else {})}
    return _row("gemm grouped", (experts, n, k), "grouped_matmul", arguments, data)


def _packed(m, kind, bar):
    n, k, mxfp4 = 8192, 8192, kind == "packed_mxfp4"
    scale = ((k // 128, n), "uint32" if mxfp4 else "bfloat16")
    arguments = [((m, k), "bfloat16"), ((n, k // 8), "uint32"), scale, *(("mxfp4", 32) if mxfp4 else ("int4", 128))]
    return _row("w4a16", (m, n, k), "quantized_matmul", arguments, {"kind": kind, "dtype": "bfloat16", "note": "mxfp4" if mxfp4 else ""},
                bar=bar,
                flop=2 * m * n * k)


def products():
    rows = [_gemm("gemm", shape, dtype, dtype, layout) for shape in LARGE for dtype in ("bfloat16", "float16") for layout in ("nt", "nn")]
    rows += [_gemm("gemm small", (m, 8192, 8192), "bfloat16", "bfloat16") for m in (1, 16, 64, 128)]
    rows += [_gemm("gemm fused", (8192,) * 3, "bfloat16", "bfloat16", note="+".join(map(str, extra.keys())), **extra) for extra in FUSED]
    rows += [_epilogue((8192,) * 3, **extra) for extra in EPILOGUES]
    rows += [_gemm("gemm e4m3", shape, "float8_e4m3fn", "bfloat16") for shape in ((8192,) * 3, (4096, 7168, 2048), (128, 7168, 2048))]
    rows += [_gemm("gemm int8", (8192,) * 3, "int8", "int32")]
    # Against what others publish: TFLOP/s, GB/s of operands and result; nothing is asked of the second.
    rows += [_scaled(*row) for row in (((4096, 7168, 16384), {"tflops": 1350}), ((4096, 7168, 2048), None),
                                       ((64, 7168, 16384), {"gbps": 3500}))]
    batch, side = 64, 1024
    rows.append(_row("gemm batched", (batch, side, side, side), "matmul", _matmul(side, side, side, "bfloat16", batch=(batch,)),
                     {"kind": "batched", "dtype": "bfloat16"}, flop=2 * batch * side**3))
    rows += [_grouped(dtype) for dtype in ("bfloat16", "float8_e4m3fn")]
    return rows + [_packed(m, kind, bar) for kind in ("packed_weights", "packed_mxfp4") for m,
                   bar in ((1, 3.0), (16, 3.0), (128, 1.5), (4096, 0.8))]


def _attention(dim, tokens, causal, dtype="bfloat16", groups=1):
    """16,384 tokens in batches, and heads of 2,048 columns together. The arithmetic of a causal row is half of the other's."""
    batch, heads = 16384 // tokens, 2048 // dim
    shape = (batch, tokens, heads, dim)
    keys = (batch, tokens, heads // groups, dim)
    note = " ".join(["causal"] * causal + [f"{groups} heads share keys"] * (groups > 1))
    return _row("attention", shape, "attention", [(shape, dtype), (keys, dtype), (keys, dtype), causal, None],
                {"kind": "attention", "dtype": dtype, "causal": causal, "groups": groups, "note": note},
                flop=4 * batch * heads * tokens**2 * dim // (1 + causal))


def attention():
    sizes = [(dim, tokens) for dim in (64, 128, 256) for tokens in (1024, 2048, 8192, 16384)] + [(dim, 8192) for dim in (80, 96, 192)]
    rows = [_attention(dim, tokens, causal) for dim, tokens in sizes for causal in (False, True)]
    rows += [_attention(128, 8192, causal, "float16") for causal in (False, True)]
    return rows + [_attention(128, tokens, True, groups=8) for tokens in (1024, 8192)]


def _decode(batch, capacity, dim=128, page=0, kv_heads=4, dtype="bfloat16", tokens=1, ragged=False):
    """Eight heads share keys. ``ragged``: sequences of half the capacity and more, none of them whole pages."""
    q, pages = (batch, tokens, 8 * kv_heads, dim), batch * -(-capacity // page) if page else 0
    cache = (pages, page, kv_heads, dim) if page else (batch, capacity, kv_heads, dim)
    table = ((batch, pages // batch), "int32") if page else None
    note = " ".join([f"pages of {page}"] * (page > 0) + [f"{tokens} tokens"] * (tokens > 1) + ["ragged"] * ragged)
    arguments = [(q, dtype), (cache, dtype), (cache, dtype), ((batch,), "int32"), table, None, None]
    return _row("decode", (batch, capacity, kv_heads, dim), "attention_decode", arguments,
                {"kind": "decode", "dtype": dtype, "ragged": ragged, "note": note})


def _latent(heads, batch, capacity, page=0, tflops=None):
    """Rows of 576 elements, for all heads."""
    pages = batch * capacity // page if page else 0
    q, cache = (batch, 1, heads, 576), (pages, page, 576) if page else (batch, capacity, 576)
    table = ((batch, capacity // page), "int32") if page else None
    data = {"kind": "latent", "dtype": "bfloat16", "ragged": False, "note": f"{heads} heads" + f" pages of {page}" * (page > 0)}
    if tflops:
        data["published"] = {"tflops": tflops}
    return _row("latent" if tflops else "latent decode, few heads", (batch, capacity, heads), "latent_attention",
                [(q, "bfloat16"), (cache, "bfloat16"), ((batch,), "int32"), table, None], data, bar=1.0 if tflops else None,
                flop=2 * batch * heads * capacity * (576 + 512), moved=batch * capacity * 1152 + batch * heads * (576 + 512) * 2)


def _chosen(tokens, keys, heads, chosen, tflops):
    """The last ``tokens`` tokens of a sequence of ``keys``."""
    arguments = [((1, tokens, heads, 576), "bfloat16"), ((1, keys, 576), "bfloat16"), ((1, tokens, chosen), "int32"), True, None]
    return _row("latent", (tokens, keys, heads, chosen), "sparse_latent_attention", arguments,
                {"kind": "chosen", "dtype": "bfloat16", "note": "chosen rows", "published": {"tflops": tflops}}, bar=1.0,
                flop=2 * tokens * heads * chosen * (576 + 512), moved=tokens * heads * (576 + 512) * 2 + tokens * chosen * 1152)


def decode():
    """Caches of 16 MiB to 1 GiB. Of latent rows: what FlashMLA's page says of an H800."""
    rows = [_decode(*size) for size in ((1, 8192), (1, 65536), (16, 8192), (128, 1024), (64, 8192))]
    rows += [_decode(*size, page=page) for page in (16, 64, 256) for size in ((1, 65536), (16, 8192))]
    rows += [_decode(16, 8192, dim, page) for dim in (64, 256) for page in (0, 16)]
    rows += [_decode(32, 8192, page=page, ragged=True) for page in (0, 16)] + [_decode(16, 8192, tokens=4), _decode(16, 8192, dtype="float16")]
    rows += [_latent(16, 128, capacity, page) for capacity, page in ((4096, 0), (16384, 0), (4096, 64))]
    rows += [_latent(128, 128, capacity, page, tflops=640) for capacity, page in ((4096, 0), (16384, 0), (4096, 64))]
    return rows + [_chosen(4096, 8192, 128, 2048, tflops=600)]


def _gradients(dim, tokens, causal, dtype="bfloat16", groups=1, deterministic=False):
    """Sizes as of ``_attention``; two and a half times the arithmetic. The peer adds in any order, too."""
    batch, heads = 16384 // tokens, 2048 // dim
    shape, sums = (batch, tokens, heads, dim), (batch, heads, tokens)
    keys = (batch, tokens, heads // groups, dim)
    note = " ".join(["causal"] * causal + [f"{groups} heads share keys"] * (groups > 1))
    arguments = [*((given, dtype) for given in (shape, keys, keys, shape)), (sums, "float32"), (shape, dtype), causal, None, deterministic]
    return _row("attention in order" if deterministic else "attention backward", shape, "attention_backward", arguments,
                {"kind": "attention_backward", "dtype": dtype, "causal": causal, "groups": groups, "note": note},
                flop=10 * batch * heads * tokens**2 * dim // (1 + causal))


def _eight_bits(dim, tokens, causal):
    """Sizes as of ``_attention``; a scale for each head."""
    batch, heads = 16384 // tokens, 2048 // dim
    shape, dtype, scales = (batch, tokens, heads, dim), "float8_e4m3fn", ((heads,), "float32")
    return _row("attention e4m3", shape, "scaled_attention", [*[(shape, dtype)] * 3, *[scales] * 3, causal, None, None],
                {"kind": "scaled_attention", "dtype": dtype, "causal": causal, "note": "causal" * causal},
                flop=4 * batch * heads * tokens**2 * dim // (1 + causal))


def scaled_attention():
    return [_eight_bits(dim, tokens, causal) for dim in (128, 256) for tokens in (2048, 8192, 16384) for causal in (False, True)]


def attention_backward():
    rows = [_gradients(dim, tokens, causal) for dim in (64, 128) for tokens in (1024, 2048, 8192, 16384) for causal in (False, True)]
    rows += [_gradients(128, 8192, causal, "float16") for causal in (False, True)]
    rows += [_gradients(dim, 8192, True, groups=8) for dim in (64, 128)]
    return rows + [_gradients(dim, 8192, causal, deterministic=True) for dim in (64, 128) for causal in (False, True)]


# Memory-bound functions: the kind of data, the operator, and its arguments for rows of (m, n).
MEMORY = {
    "cross_entropy": ("cross_entropy", lambda x, m, n: [x, ((m,), "int32")]),
    "row_sum": ("reduce", lambda x, m, n: [x, -1, "sum"]),
    "column_sum": ("reduce", lambda x, m, n: [x, 0, "sum"]),
    "transpose": ("transpose", lambda x, m, n: [x]),
    "swiglu": ("swiglu", lambda x, m, n: [((m, 2 * n), "bfloat16")]),
    "rms_norm": ("rms_norm", lambda x, m, n: [x, ((n,), "bfloat16"), 1e-6]),
    "layer_norm": ("layer_norm", lambda x, m, n: [x, ((n,), "bfloat16"), ((n,), "bfloat16"), 1e-5]),
    "layer_norm_backward": ("layer_norm_backward", lambda x, m, n: [x, x, ((n,), "bfloat16"), ((m,), "float32"), ((m,), "float32")]),
    "quantize_rows": ("quantize_rows", lambda x, m, n: [x]),
    "softmax": ("softmax", lambda x, m, n: [x]),
}


def memory():
    """What the memory bounds: bytes are counted from the tensors."""
    rows = []
    for m, n in ((8192, 8192), (4096, 131072)):
        for kind, (function, arguments) in MEMORY.items():
            data = {"kind": kind, "dtype": "bfloat16", "note": kind}
            rows.append(_row("memory", (m, n), function, arguments(((m, n), "bfloat16"), m, n), data))
    tokens, heads, dim = shape = (8192, 64, 128)
    table = ((tokens, dim // 2), "float32")
    return rows + [_row("memory", shape, "rope", [(shape, "bfloat16"), table, table],
                        {"kind": "rope", "dtype": "bfloat16", "note": "rope"})]


PLAIN = "gemm 8192x8192x8192 bfloat16 nt"  # what fused epilogues are measured beside


def rows():
    return products() + attention() + scaled_attention() + attention_backward() + decode() + memory()
