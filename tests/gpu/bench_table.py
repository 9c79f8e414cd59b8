# SPDX-License-Identifier: Apache-2.0
"""What is timed, against whom, and the bar: rows of plain data."""

from kiln import tiles

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
    "memory": {"peer": "copy", "bar": None, "each": 0.93},
}

LARGE = [(8192, 8192, 8192), (4096, 4096, 4096), (16384, 8192, 1280), (1024, 8192, 8192), (8192, 28672, 4096), (2048, 7168, 7168), (5000, 3000, 2000)]
FUSED = [{"bias": True}, {"activation": "gelu"}]
EPILOGUES = [{"residual": True}, {"row_scale": True}, {"row_scale": True, "out_dtype": "float8_e4m3fn"}]
MULTIPROCESSORS = tiles.Hopper().multiprocessors


def packed_tile_for(m: int) -> dict:
    """Few rows: all multiprocessors stream weights, and two groups of warps in each share a block along k. More: two blocks do."""
    if m <= 16:
        return {"block_m": 8 if m <= 8 else 16, "block_n": 64, "block_k": 1024, "stages": 3, "threads": 256}
    if m <= 128:
        return {"block_m": 128, "block_n": 128, "block_k": 128, "stages": 3, "threads": 256}
    return {"block_m": 256, "block_n": 128, "block_k": 64, "stages": 5, "threads": 256}


def _row(group, shape, builder, arguments, data, bar=None, flop=None, moved=None, options=None):
    """``options``: fields of CompileOptions."""
    name = f"{group} {'x'.join(map(str, shape))} {data.get('dtype', '')} {data.get('note', '')}".strip()
    return {"name": name, "group": group, "shape": shape, "builder": builder, "arguments": arguments, "data": data, "bar": bar,
            "flop": flop, "bytes": moved, "options": options or {}}


def _gemm(group, shape, dtype, out, layout="nt", note="", **more):
    m, n, k = shape
    arguments = {"M": m, "N": n, "K": k, "in_dtype": dtype, "out_dtype": out, "trans_b": layout == "nt", "target": "cuda:sm_90a", **more}
    data = {"kind": "gemm", "dtype": dtype, "out": out, "layout": layout, "note": " ".join(filter(None, [layout, note])),
            **{key: more[key] for key in ("bias", "activation") if key in more}}
    return _row(group, shape, "gemm", arguments, data, flop=2 * m * n * k)


def products():
    rows = [_gemm("gemm", shape, dtype, dtype, layout) for shape in LARGE for dtype in ("bfloat16", "float16") for layout in ("nt", "nn")]
    rows += [_gemm("gemm small", (m, 8192, 8192), "bfloat16", "bfloat16") for m in (1, 16, 64, 128)]
    rows += [_gemm("gemm fused", (8192,) * 3, "bfloat16", "bfloat16", note="+".join(map(str, extra.keys())), **extra) for extra in FUSED]
    for extra in EPILOGUES:
        m, n, k = shape = (8192,) * 3
        rows.append(_row("gemm fused", shape, "with_epilogue", {"M": m, "N": n, "K": k, **extra},
                         {"kind": "with_epilogue", "dtype": "bfloat16", "note": "+".join(str(v) if k == "out_dtype" else k for k, v in extra.items()), **extra},
                         flop=2 * m * n * k))
    rows += [_gemm("gemm e4m3", shape, "float8_e4m3fn", "bfloat16") for shape in ((8192,) * 3, (4096, 7168, 2048), (128, 7168, 2048))]
    rows += [_gemm("gemm int8", (8192,) * 3, "int8", "int32")]
    # Against what others publish: TFLOP/s, GB/s of operands and result; nothing is asked of the second.
    for (m, n, k), published in (((4096, 7168, 16384), {"tflops": 1350}), ((4096, 7168, 2048), None), ((64, 7168, 16384), {"gbps": 3500})):
        tile = {"block_m": 64, "block_n": 64, "block_k": 256, "stages": 4, "threads": 128, "staged_scales": True} if m <= 64 else {}
        rows.append(_row("gemm e4m3 scaled", (m, n, k), "block_scaled", {"M": m, "N": n, "K": k, **tile},
                         {"kind": "block_scaled", "dtype": "float8_e4m3fn", "published": published}, bar=1.0 if published else None,
                         flop=2 * m * n * k, moved=m * k + n * k + 2 * m * n))
    batch, side = 64, 1024
    rows.append(_row("gemm batched", (batch, side, side, side), "batched", {"batch": batch, "M": side, "N": side, "K": side},
                     {"kind": "batched", "dtype": "bfloat16"}, flop=2 * batch * side**3))
    for dtype, deep in (("bfloat16", 64), ("float8_e4m3fn", 128)):
        experts, n, k = 64, 4096, 7168
        arguments = {"experts": experts, "N": n, "K": k, "dtype": dtype, "out_dtype": "bfloat16", "block_k": deep}
        data = {"kind": "grouped", "dtype": dtype, "block_m": 128}
        # Triton keeps the unit's own sums of 8-bit floats: 5e-3 of error at k = 8192.
        fast = dtype.startswith("float8")
        rows.append(_row("gemm grouped", (experts, n, k), "grouped", arguments, data | {"note": "fast accumulation"} if fast else data,
                         options={"fast_accumulation": fast}))
    for builder, note in (("packed_weights", ""), ("packed_mxfp4", "mxfp4")):
        for m, bar in ((1, 3.0), (16, 3.0), (128, 1.5), (4096, 0.8)):
            # One row: scales go to the product's sums, which rounds less often.
            options = {"fast_math": builder == "packed_weights" and m <= 8}
            rows.append(_row("w4a16", (m, 8192, 8192), builder, {"M": m, "N": 8192, "K": 8192, "interleaved": True, **packed_tile_for(m)},
                             {"kind": builder, "dtype": "bfloat16", "note": note}, bar=bar, flop=2 * m * 8192 * 8192, options=options))
    return rows


IN_REGISTERS = 16384  # elements of a row; longer ones are programs of their own
RESIDENT = 896  # threads on a multiprocessor whose loads are under way together, where registers are spared for them
CLUSTERS = 15  # of eight large blocks, that an H200 has at once


def sizes_for(builder: str, n: int) -> dict:
    """Sizes of a memory-bound program for rows of n elements. Rows in registers: 64 elements a thread, whose eight loads of 16 bytes are
    under way together; fewer where every element is a float32 of its thread until the row is written. Strips of columns: 128 wide where
    four blocks come on each multiprocessor, else 64 wide, with twice the threads and twice the loads of each. Rows in shared memory: the
    part in registers is the larger, the fewer float32 the program keeps beside it. Blocks that share the rows: as many as there are at
    once."""
    if builder in ("rms_norm", "softmax"):
        return {"threads": max(128, n // (32 if builder == "rms_norm" else 16)), "dtype": "bfloat16"}
    if builder in ("layer_norm_backward", "quantize_rows"):
        return {"threads": max(128, n // 64)}
    if builder == "layer_norm":
        threads = max(128, n // 64)
        return {"threads": threads, "min_blocks": RESIDENT // threads}
    if builder == "row_sum":
        return {"columns": min(n, IN_REGISTERS), "threads": 512}
    if builder == "column_sum" and n // 128 < 4 * MULTIPROCESSORS:
        return {"steps": 8, "rows": 64, "columns": 64, "threads": 512}
    if builder in ("layer_norm_long", "layer_norm_backward_long"):
        return {"blocks": CLUSTERS}
    return {"columns": 32768} if builder == "rms_norm_long" else {}


def memory():
    """What the memory bounds: bytes are counted from the tensors. Cross-entropy of rows in registers is compiled with `fast_math`, without which
    each power of two takes three operations more for results below 2^-126; beside the largest, which is 1, they count for nothing."""
    rows = []
    for m, n in ((8192, 8192), (4096, 131072)):
        suffix = "" if n <= IN_REGISTERS else "_long"
        names = ["cross_entropy", "row_sum", "column_sum", "transpose", "swiglu"]
        names += [name + suffix for name in ("rms_norm", "layer_norm", "layer_norm_backward", "quantize_rows", "softmax")]
        for builder in names:
            kind = builder.removesuffix("_long")
            data = {"kind": kind, "dtype": "bfloat16", "note": kind}
            options = {"fast_math": True} if builder == "cross_entropy" and n <= IN_REGISTERS else None
            rows.append(_row("memory", (m, n), builder, {"M": m, "N": n, **sizes_for(builder, n)}, data, options=options))
    rows.append(_row("memory", (8192, 64, 128), "rope", {"tokens": 8192, "heads": 64, "dim": 128}, {"kind": "rope", "dtype": "bfloat16", "note": "rope"}))
    return rows


PLAIN = "gemm 8192x8192x8192 bfloat16 nt"  # what fused epilogues are measured beside


def rows():
    return products() + memory()
