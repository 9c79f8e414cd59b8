# SPDX-License-Identifier: Apache-2.0
"""Functions of rows that the memory bounds, at sizes that nobody chose: ``kiln.library`` as users call it, beside a copy that moves as many bytes,
in the same run."""

import functools
import math
import random
import time

import bench_random

KINDS = ("rms_norm", "layer_norm", "softmax", "cross_entropy", "quantize_rows")
USUAL = (768, 1000, 1536, 5120, 7168)  # of models: each comes once
SHORTEST, LONGEST = 64, 131072
BYTES = 24 << 20, 192 << 20  # of x: more than an L2 keeps, and so few that many sizes are measured
BARS = {"each": 0.9}
ROUNDS, IDLE_SECONDS = 3, 0.004


def sizes(seed, count):
    """[(number, kind, (m, n))]: rows of all lengths, on a logarithmic scale; most begin at multiples of 16 bytes."""
    rng, made = random.Random(seed), []
    for number in range(count):
        n = int(math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST + 1))))
        grain = rng.choice((1, 8, 8, 64, 64, 256))
        n = USUAL[number] if number < len(USUAL) else min(LONGEST, max(grain, n // grain * grain))
        made.append((number, KINDS[(number + number // len(KINDS)) % len(KINDS)], (max(1, rng.randint(*BYTES) // (2 * n)), n)))
    return made


def row_of(kind, shape):
    """As bench_table.rows has it."""
    from bench_table import MEMORY

    function, arguments = MEMORY[kind]
    return {"name": f"{kind} {shape[0]}x{shape[1]}", "function": function, "arguments": arguments((shape, "bfloat16"), *shape), "shape": shape,
            "data": {"kind": kind}}


def prepare(job):
    """In a process of its own: the library's kernel goes to the daemon's store. job: kind, shape, target."""
    from bench_main import compile_row
    from kiln.client import default_client

    try:
        return compile_row(row_of(job["kind"], tuple(job["shape"])), default_client(), job["target"])
    except Exception as failure:  # each size's failure is its own
        return {"problem": f"{type(failure).__name__}: {str(failure).splitlines()[0][:200]}"}


def measure(kind, shape, timer, torch):
    import bench_data
    from bench_main import check, copy_of
    from bench_programs import call

    row = row_of(kind, shape)
    job = bench_data.MAKERS[kind](row)
    ours, bar = call(row, job.inputs), bench_data.BARS.get(kind, job.bar)
    job.poison()
    error = check(job, ours())
    if not error <= bar:
        return {"ok": False, "note": f"error {error:.2e}, bar {bar:.0e}"}
    job.references = []
    times = timer.burst({"kiln": ours, "copy": copy_of(job.moved, torch)}, rounds=ROUNDS, idle=IDLE_SECONDS)
    return {"ok": True, "us": round(times["kiln"] * 1e3, 2), "gbps": round(job.moved / times["kiln"] * 1e-6, 1),
            "ratio": round(times["copy"] / times["kiln"], 4)}


def show(row):
    figures = f"{row['us']:9.1f} µs {row['gbps']:7.0f} GB/s {row['ratio']:.3f} ×" if row.get("us") else row.get("note", "")
    print(f"{row['kind']:>14} {'x'.join(map(str, row['shape'])):>15} {'ok' if row['ok'] else 'FAIL':<5}{figures}  "
          f"{row.get('registers', '')} registers{f' SPILLS ' + str(row['spill_bytes']) + ' B' if row.get('spill_bytes') else ''}", flush=True)


def summarize(rows, wanted):
    """Whether the bar holds: a line for each function, and the worst sizes."""
    good = [row for row in rows if row["ok"] and "ratio" in row]
    for kind in KINDS:
        ratios = [row["ratio"] for row in good if row["kind"] == kind]
        if ratios:
            print(f"# {kind:<14} {len(ratios):>3} sizes, geomean {bench_random.geomean(ratios):.3f} × copy, least {min(ratios):.3f}")
    for row in sorted(good, key=lambda row: row["ratio"])[:10]:
        print(f"#   worst: {row['kind']} {'x'.join(map(str, row['shape']))} {row['ratio']:.3f}")
    spilling = [f"{row['kind']} {'x'.join(map(str, row['shape']))}" for row in rows if row.get("spill_bytes")]
    if not good and all(row["ok"] for row in rows):  # what only compiles
        print(f"# {len(rows)} of {wanted} sizes{f', of which spill: {spilling}' if spilling else ''}")
        return len(rows) == wanted and not spilling
    holds = len(good) == wanted and not spilling and min(row["ratio"] for row in good) >= BARS["each"]
    print(f"# {len(good)} of {wanted} sizes, each ≥ {BARS['each']}, without spills{f' (but {spilling})' if spilling else ''}: "
          f"{'holds' if holds else 'DOES NOT HOLD'}")
    return holds


def run(options, target, place):
    """(the rows, whether the bar holds)"""
    deadline, rows = time.monotonic() + options.budget, []
    wanted = sizes(options.seed, options.random_rows)
    jobs = {number: {"kind": kind, "shape": shape, "target": target} for number, kind, shape in wanted}
    made, measured = bench_random.prepare_all(prepare, jobs, deadline), lambda *_: {"ok": True}
    if not options.compile_only:
        import torch
        from bench_timing import Timer

        torch.manual_seed(options.seed)
        measured = functools.partial(measure, timer=Timer(options.seed), torch=torch)
    for number, kind, shape in wanted:
        if time.monotonic() > deadline:
            break
        prepared = made[number]
        try:
            result = {"ok": False, "note": prepared["problem"]} if "problem" in prepared else measured(kind, shape)
        except Exception as problem:  # each size's failure is its own
            result = {"ok": False, "note": f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"}
        rows.append({"number": number, "kind": kind, "shape": shape, **prepared, **result})
        show(rows[-1])
    if len(rows) < len(wanted):
        print(f"# {len(wanted) - len(rows)} sizes were not begun: the budget of {options.budget:.0f} s is spent", flush=True)
    return rows, summarize(rows, len(wanted))
