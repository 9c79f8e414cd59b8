# SPDX-License-Identifier: Apache-2.0
"""Which cases are run. A case is plain data: what to compile (builder and arguments), what to feed it, and the bar. The same seed gives
the same cases."""

import fnmatch
import random

# Largest relative error of a result of this type, against a float64 reference. A product of tf32 operands is bound by their rounding.
BARS = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "int32": 0.0, "int64": 0.0}
TF32_BAR = 2e-3

GEMM_FAMILIES = {  # family: (operands, result)
    "gemm_f16": ("float16", "float16"),
    "gemm_bf16": ("bfloat16", "bfloat16"),
    "gemm_s8": ("int8", "int32"),
    "gemm_e4m3": ("float8_e4m3fn", "float16"),
    "gemm_tf32": ("tfloat32", "float32"),
}
LAYOUTS = {"nn": (False, False), "nt": (False, True), "tn": (True, False), "tt": (True, True)}
ODD = (1000, 777, 333)
CHOSEN = "chosen"  # a tile of those among which the daemon's planner chooses


def _extent(rng, low=1, high=2048):
    """Half of them round, half anything; small ones as often as large ones."""
    value = round(2 ** rng.uniform(0, 11))
    if rng.random() < 0.5:
        value = max(16, value // 16 * 16)
    return min(max(value, low), high)


def _case(name, family, builder, arguments, data, shape, dtype, bar):
    return {"name": name, "family": family, "builder": builder, "arguments": arguments, "data": data, "shape": shape, "dtype": dtype,
            "bar": bar}


def _gemm_case(family, index, shape, layout, *, symbolic=False, tile=None, bias=False, activation=None, offset=0, kind="gemm"):
    in_dtype, out_dtype = GEMM_FAMILIES[family]
    trans_a, trans_b = LAYOUTS[layout]
    given = tile or ((64, 64, 64, 128) if in_dtype in ("int8", "float8_e4m3fn") else (128, 128, 32, 128))
    arguments = {"in_dtype": in_dtype, "out_dtype": out_dtype, "trans_a": trans_a, "trans_b": trans_b,
                 **({"choice": index} if tile == CHOSEN else dict(zip(("block_m", "block_n", "block_k", "threads"), given)))}
    if bias or activation:
        arguments.update(bias=bias, activation=activation)
    if not symbolic:
        arguments.update(zip("MNK", shape))
    data = {"kind": kind, "M": shape[0], "N": shape[1], "K": shape[2], "in": in_dtype, "out": out_dtype, "trans_a": trans_a,
            "trans_b": trans_b, "bias": bias, "activation": activation, "offset": offset}
    notes = [layout] + ["symbolic"] * symbolic + [f"offset {offset}"] * (offset > 0) + ["bias"] * bias + [activation] * bool(activation)
    notes += [CHOSEN] * (tile == CHOSEN)
    text = "×".join(map(str, shape)) + " " + " ".join(notes)
    bar = TF32_BAR if in_dtype == "tfloat32" else BARS[out_dtype]
    return _case(f"{family}.{index}", family, "gemm_chosen" if tile == CHOSEN else "gemm", arguments, data, text, in_dtype, bar)


def _strided_case(family, index, shape):
    in_dtype, out_dtype = GEMM_FAMILIES[family]
    data = {"kind": "gemm_strided", "M": shape[0], "N": shape[1], "K": shape[2], "in": in_dtype, "out": out_dtype}
    bar = TF32_BAR if in_dtype == "tfloat32" else BARS[out_dtype]
    return _case(f"{family}.{index}", family, "gemm_strided", {"in_dtype": in_dtype, "out_dtype": out_dtype}, data,
                 "×".join(map(str, shape)) + " strided", in_dtype, bar)


def gemm_cases(rng, family, count):
    narrow = family in ("gemm_s8", "gemm_e4m3")
    tiles = [(128, 128, 64, 128), (64, 64, 64, 128), (64, 128, 128, 256), (192, 64, 128, 384)] if narrow else [
        (128, 128, 32, 128), (64, 64, 32, 128), (128, 64, 64, 128), (128, 256, 32, 256), (192, 80, 48, 128), (192, 128, 64, 384)]
    if family == "gemm_tf32":
        tiles = [(128, 128, 32, 128), (64, 64, 32, 128), (64, 128, 16, 256)]
    layouts = ["nn", "nt"] if family != "gemm_f16" else list(LAYOUTS)
    fixed = [("case", ODD, "nn", {}), ("case", ODD, "nt", {}), ("case", ODD, "nn", {"symbolic": True}),
             ("case", ODD, "nt", {"symbolic": True, "offset": 16}), ("case", (256, 256, 256), "nn", {"symbolic": True, "offset": 1}),
             ("case", (0, 64, 64), "nn", {"symbolic": True}), ("case", (64, 0, 64), "nn", {"symbolic": True}),
             ("case", (65, 63, 0), "nn", {"symbolic": True}), ("case", (1, 1, 1), "nn", {"symbolic": True}),
             ("strided", ODD, None, {}), ("strided", (256, 384, 128), None, {}),
             ("strided", (_extent(rng), _extent(rng), _extent(rng)), None, {})]
    if family in ("gemm_f16", "gemm_bf16"):
        few = {"tile": CHOSEN}
        fixed += [("case", (1, 777, 1000), "nt", {**few, "bias": True, "activation": "silu"}), ("case", (1, 1000, 14336), "nt", few),
                  *[("case", (rng.randint(low, 2 * low), 8 * _extent(rng), _extent(rng)), rng.choice(("nn", "nt")), few)
                    for low in (1, 30, 60, 90, 120, 180)]]
    cases = []
    for kind, shape, layout, extra in fixed[:count]:
        index = len(cases)
        cases.append(_strided_case(family, index, shape) if kind == "strided" else _gemm_case(family, index, shape, layout, **extra))
    while len(cases) < count:
        shape = (_extent(rng), _extent(rng), _extent(rng))
        symbolic = rng.random() < 0.5
        cases.append(_gemm_case(family, len(cases), shape, rng.choice(layouts), symbolic=symbolic,
                                tile=None if symbolic else rng.choice(tiles)))
    return cases


def attention_cases(rng, count):
    cases = []
    while len(cases) < count:
        index = len(cases)
        dim = rng.choice([64, 64, 128, 128, 80, 96])
        batch, heads = rng.randint(1, 3), rng.randint(1, 8)
        seq_len = [333, 1, 0, 1000, 777][index] if index < 5 else _extent(rng, 1, 1536)
        causal, dtype = rng.random() < 0.5, rng.choice(["float16", "bfloat16"])
        symbolic = index in (2, 4) or rng.random() < 0.3
        block = rng.choice([64, 128]) if dim <= 64 and not symbolic else 64
        arguments = {"batch": batch, "heads": heads, "dim": dim, "causal": causal, "dtype": dtype, "block_m": block, "block_n": 64}
        if not symbolic:
            arguments["seq_len"] = seq_len
        data = {"kind": "attention", "batch": batch, "heads": heads, "seq_len": seq_len, "dim": dim, "causal": causal, "out": dtype}
        text = f"{batch}×{seq_len}×{heads}×{dim}" + (" causal" if causal else "") + (" symbolic" if symbolic else "")
        cases.append(_case(f"attention.{index}", "attention", "attention", arguments, data, text, dtype, BARS[dtype]))
    return cases


def row_cases(rng, family, count):
    """rms_norm and softmax: whole rows in registers; softmax_online: rows of any length."""
    cases = []
    for index in range(count):
        rows, columns = _extent(rng), [777, 1024, 576, 80][index] if index < 4 else _extent(rng, 2, 4096)
        if index == 4:
            rows = 0
        dtype = rng.choice(["float16", "bfloat16", "float32"])
        arguments = {"dtype": dtype}
        if family != "softmax_online":
            arguments["N"] = columns
            if index % 2 and rows:
                arguments["M"] = rows
        data = {"kind": family, "M": rows, "N": columns, "out": dtype}
        text = f"{rows}×{columns}" + ("" if "M" in arguments else " symbolic")
        cases.append(_case(f"{family}.{index}", family, family, arguments, data, text, dtype, BARS[dtype]))
    return cases


def epilogue_cases(rng, count):
    cases = []
    for index in range(count):
        shape = ODD if index == 0 else (_extent(rng), _extent(rng), _extent(rng))
        case = _gemm_case(rng.choice(["gemm_f16", "gemm_bf16"]), index, shape, rng.choice(["nn", "nt"]), symbolic=bool(index % 2),
                          bias=True, activation=("relu", "gelu", "silu", None)[index % 4])
        cases.append({**case, "name": f"gemm_bias.{index}", "family": "gemm_bias"})
    return cases


def quotient_cases(rng):
    """Differences of 64 bits from quotients of 32: ptxas subtracts wrongly from the upper word of a product."""
    cases = []
    for index, divisor in enumerate((3, 5, 7, rng.randint(9, 1000))):
        data = {"kind": "quotients", "N": _extent(rng), "divisor": divisor, "out": "int64"}
        shape = f"{data['N']} // {divisor}"
        cases.append(_case(f"quotients.{index}", "quotients", "quotients", {"divisor": divisor}, data, shape, "int64", BARS["int64"]))
    return cases


def overhead_case():
    """A launch with four tensors, too small for the device to be what is waited for."""
    case = _gemm_case("gemm_f16", 0, (64, 64, 32), "nn", symbolic=True, bias=True)
    return {**case, "name": "launch_overhead", "family": "overhead", "bar": 5.0, "data": {**case["data"], "kind": "overhead"}}


def graph_case():
    """Few tiles with long sums: blocks share them through memory, which a graph that captures the first launch has to own."""
    case = _gemm_case("gemm_bf16", 0, (512, 512, 16384), "nt", tile=(128, 128, 64, 256))
    return {**case, "name": "graph.shared_sums", "family": "graph", "data": {**case["data"], "kind": "graph"}}


def selected(case, pattern: str) -> bool:
    """``pattern`` is a glob over the name or the family, or a part of one."""
    return any(fnmatch.fnmatch(word, pattern) or pattern in word for word in (case["name"], case["family"]))


def plan(seed: int, count: int):
    rng = random.Random(seed)
    cases = [overhead_case(), graph_case()]
    for family in GEMM_FAMILIES:
        cases += gemm_cases(rng, family, count)
    cases += attention_cases(rng, count)
    few = max(count // 4, 4)
    for family in ("rms_norm", "softmax", "softmax_online"):
        cases += row_cases(rng, family, few)
    return cases + epilogue_cases(rng, few) + quotient_cases(rng)
