# SPDX-License-Identifier: Apache-2.0
"""The benchmark's coordinator: compiles every program through the bundle's daemon, then checks and times each beside its peer."""

import argparse
import json
import math
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile
import time


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/gpu/bench", description=__doc__)
    parser.add_argument("--bundle", help="the archive to test; default: the newest dist/kiln-*.tar.*")
    parser.add_argument("--build", help="a build folder instead of a bundle")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="rows whose name or group matches this glob or contains it")
    parser.add_argument("--target", default="cuda:sm_90a", help="with --compile-only; else the GPU's own")
    parser.add_argument("--compile-only", action="store_true", help="for a host with no GPU: which programs compile, how fast, with what spills")
    parser.add_argument("--seed", type=int, default=None, help="default: fresh in each run, and printed")
    parser.add_argument("--json", metavar="FILE", help="where the report goes; default: $OUT/bench.json where OUT is set")
    parser.add_argument("--random-products", type=int, metavar="N", help="instead of the rows: N products of bf16 whose shapes the seed chooses")
    parser.add_argument("--random-rows", type=int, metavar="N", help="instead of the rows: N norms, softmaxes and the like, of sizes of the seed")
    parser.add_argument("--choices", type=int, default=0, metavar="N", help="with --random-products: time the planner's first N choices as well")
    parser.add_argument("--budget", type=float, default=510, help="seconds after which no further row is begun")
    options = parser.parse_args(arguments)
    if options.choices and not options.random_products:
        parser.error("--choices goes with --random-products")
    if options.random_products and options.random_rows:
        parser.error("--random-products and --random-rows are two runs")
    if (options.random_products or options.random_rows) and options.only != "*":
        parser.error("--only is for the rows; --random-products and --random-rows have none")
    return options


def compile_row(row, client, target):
    """What the library will compile for the row's call, which then finds it in the cache."""
    from bench_programs import program

    function, options = program(row, target)
    start = time.perf_counter()
    reply = client.compile(function, target, options=options, timeout=120)
    kernels = reply.artifact.report.kernels
    return {
        "compile_ms": round((time.perf_counter() - start) * 1e3, 1),
        "to_ptx_ms": round(sum(t.milliseconds for t in reply.timings if t.stage not in ("ptxas", "queue", "cache")), 1),
        "spill_bytes": sum(k.spill_bytes + k.local_bytes for k in kernels), "registers": max((k.registers for k in kernels), default=0),
    }


def check(job, results):
    """The largest relative error of the results, NaN where one has a NaN."""
    from data import relative_error

    errors = [relative_error(job.part(results[index]), reference) for index, reference in job.references]
    return next((error for error in errors if error != error), max(errors))


def plain_product(inputs):
    """A call of our own product without an epilogue, on the same operands."""
    from kiln import library

    return lambda: library.matmul(inputs[0], inputs[1], trans_b=True)


def copy_of(size, torch):
    """A call that reads and writes `size` bytes in all."""
    source = torch.empty(size // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def measure(row, timer, bandwidth, torch):
    import bench_data
    import bench_table
    from bench_programs import call

    job = bench_data.make(row["name"])
    ours = call(row, job.inputs)
    job.poison()
    error = check(job, ours())
    if not error <= job.bar:
        return {"ok": False, "note": f"error {error:.2e}, bar {job.bar:.0e}"}
    job.references = []  # gigabytes
    if row["group"] == "gemm fused":
        job.peer = plain_product(job.inputs)
    by_bytes = bench_table.GROUPS[row["group"]]["peer"] == "copy"
    if by_bytes:
        job.peer = copy_of(job.moved, torch)
    calls = {"kiln": ours, **({"peer": job.peer} if job.peer else {})}
    burst = timer.burst(calls)
    result = {"ok": True, "error": error, "burst_ms": round(burst["kiln"], 5)}
    flop = row["flop"] or job.flop
    if flop:
        result["tflops"] = round(flop / burst["kiln"] * 1e-9, 1)
    if by_bytes:
        result["gbps"] = round(job.moved / burst["kiln"] * 1e-6, 1)
        result["ratio"] = round(job.moved / (burst["kiln"] * 1e-3) / bandwidth, 4)
        # Launch and write-back of what the flush left dirty weigh more in a short copy, as they do in the row.
        result["same_size_ratio"] = round(burst["peer"] / burst["kiln"], 4)
    elif row["data"].get("published"):
        result["gbps"] = round(row["bytes"] / burst["kiln"] * 1e-6, 1)
        result["ratio"] = round(min(result[unit] / figure for unit, figure in row["data"]["published"].items()), 4)
    elif job.peer:
        before = timer.sustained(job.peer)
        mine = timer.sustained(ours)
        after = timer.sustained(job.peer)
        result.update(ratio=round(burst["peer"] / burst["kiln"], 4), peer_burst_ms=round(burst["peer"], 5),
                      sustained_ratio=round((before + after) / 2 / mine, 4))
    return result


def show(row, result):
    figures = [f"{result['burst_ms']:.4f} ms" if "burst_ms" in result else ""]
    figures.append(f"{result['tflops']:.0f} TFLOP/s" if "tflops" in result else f"{result['gbps']:.0f} GB/s" if "gbps" in result else "")
    figures.append(f"{result['ratio']:.3f} ×" if result.get("ratio") else "")
    figures.append(f"sustained {result['sustained_ratio']:.3f} ×" if "sustained_ratio" in result
                   else f"same size {result['same_size_ratio']:.3f} ×" if "same_size_ratio" in result else "")
    figures.append(f"to PTX {result['to_ptx_ms']:.0f} ms" if "to_ptx_ms" in result else "")
    figures.append(f"SPILLS {result['spill_bytes']} B" if result.get("spill_bytes") else "")
    print(f"{row['name']:<58} {'ok' if result['ok'] else 'FAIL':<5}" + "".join(f"{f:<18}" for f in figures) + str(result.get("note", "")), flush=True)


def summarize(results, chosen):
    """One line a group: its geometric mean, its least, and whether the bars hold for all of its chosen rows. A group without any ratio
    does not hold."""
    from bench_table import GROUPS

    lines = []
    for group, bars in GROUPS.items():
        ratios = [r["ratio"] for r in results if r["group"] == group and r.get("ratio")]
        wanted = sum(1 for row in chosen if row["group"] == group)
        missing = wanted - sum(1 for r in results if r["group"] == group and r["ok"])
        own = [(r.get("ratio") or 0) >= r["bar"] for r in results if r["group"] == group and r.get("bar")]
        if not wanted:
            continue
        if not ratios:
            lines.append({"group": group, "peer": bars["peer"], "geomean": None, "holds": False})
            print(f"# {group:<18} against {bars['peer']}: no ratio was measured: DOES NOT HOLD")
            continue
        mean, least = math.exp(sum(map(math.log, ratios)) / len(ratios)), min(ratios)
        holds = missing == 0 and all(own) and mean >= (bars["bar"] or 0) and least >= bars.get("each", 0)
        lines.append({"group": group, "peer": bars["peer"], "geomean": round(mean, 4), "least": least, "bar": bars["bar"],
                      "each": bars.get("each"), "holds": holds})
        print(f"# {group:<18} against {bars['peer']}: geomean {mean:.3f} (bar {bars['bar']}), least {least:.3f} (bar {bars.get('each')}): "
              f"{'holds' if holds else 'DOES NOT HOLD'}")
    return lines


def clocks():
    query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu"
    try:
        return subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, timeout=20,
                              check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def run_rows(options, target, facts):
    from bench_table import rows
    from kiln.client import default_client
    from plan import selected

    client, results, deadline = default_client(), [], time.monotonic() + options.budget
    chosen = [row for row in rows() if selected({"name": row["name"], "family": row["group"]}, options.only)]
    timer = bandwidth = torch = None
    if not options.compile_only:
        import torch
        from bench_timing import Timer

        torch.manual_seed(options.seed)
        timer = Timer(options.seed)
        bandwidth = facts["copy_bytes_per_second"] = timer.copy_bandwidth()
        print(f"# copy {bandwidth * 1e-9:.0f} GB/s; {clocks()}", flush=True)
    for row in chosen:
        if time.monotonic() > deadline:
            print(f"# {len(chosen) - len(results)} rows were not begun: the budget of {options.budget:.0f} s is spent", flush=True)
            break
        result = {}
        try:
            compiled = compile_row(row, client, target)
            result = {"ok": True} if timer is None else measure(row, timer, bandwidth, torch)
            result.update(compiled)
        except Exception as problem:  # each row's failure is its own
            result.update(ok=False, note=f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}")
        results.append({key: row[key] for key in ("name", "group", "shape", "bar")} | result)
        show(row, result)
    return results, chosen


def run_cold(target, chosen):
    import bench_cold
    from kiln.client import default_client

    return bench_cold.measure_all(default_client(), target, chosen)


def report(options, contents):
    where = options.json or (str(pathlib.Path(os.environ["OUT"]) / "bench.json") if os.environ.get("OUT") else None)
    if where:
        pathlib.Path(where).write_text(json.dumps({"seed": options.seed, "card": clocks(), **contents}, indent=1))


def run_random(options, target, place):
    import bench_random
    import bench_random_rows

    rows, holds = (bench_random if options.random_products else bench_random_rows).run(options, target, place)
    report(options, {"place": place.facts, "products" if options.random_products else "sizes": rows})
    return 0 if holds else 1


def main():
    options = parse(sys.argv[1:])
    options.seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kiln-bench-"))
    from daemon import Place

    place, results, chosen, groups, cold = None, [], [], [], []
    try:
        place = Place(options, scratch)
        place.start()
        print(f"# seed {options.seed}; {place.description(options)}", flush=True)
        target = place.device_target(options) or options.target
        if options.random_products or options.random_rows:
            return run_random(options, target, place)
        results, chosen = run_rows(options, target, place.facts)
        if not options.compile_only:
            groups = summarize(results, chosen)
            cold = run_cold(target, chosen)
    finally:
        if place:
            place.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    report(options, {"place": place.facts, "groups": groups, "rows": results, "cold": cold})
    failed = sum(not r["ok"] for r in results)
    print(f"# {len(results) - failed} rows, {failed} failed")
    return 1 if failed or len(results) < len(chosen) or not results or not all(line["holds"] for line in groups + cold) else 0


if __name__ == "__main__":
    sys.exit(main())
