# SPDX-License-Identifier: Apache-2.0
"""Products of bf16 whose shapes nobody chose: ``kiln.library.matmul`` as users call it, beside cuBLAS in the same run. Kernels are compiled by
several processes at once, then measured one after the other."""

import concurrent.futures
import math
import multiprocessing
import os
import random
import time

LARGEST, LEAST = 16384, 8  # of N and K; M begins at 1
BARS = {"geomean": 0.98, "each": 0.85}
DTYPE = "bfloat16"
GRAINS = (8, 16, 64, 128)
ROUNDS = 4
IDLE_SECONDS = 0.004, 0.04  # the least and the most between two bursts; between them, so many times the product's own time
IDLE_TIMES = 40
FLOPS, BYTES = 7e14, 2.5e12  # a second, of which the time of a product is guessed
COMPILING = 0.6  # part of the budget at most
CHECKED = 64  # rows at the top and at the bottom that are compared with float64; cuBLAS stands for the others


def _extent(rng, least):
    """As many small ones as large ones, or any."""
    low, high = math.log(least), math.log(LARGEST + 1)
    return min(LARGEST, int(math.exp(rng.uniform(low, high)))) if rng.random() < 0.5 else rng.randint(least, LARGEST)


def products(seed, count):
    """[(number, (m, n, k), layout)]; three of five have rows that begin at multiples of 16 bytes."""
    rng, made = random.Random(seed), []
    for number in range(count):
        m, n, k = _extent(rng, 1), _extent(rng, LEAST), _extent(rng, LEAST)
        if rng.random() < 0.6:
            grain = rng.choice(GRAINS)
            n, k = (max(grain, extent // grain * grain) for extent in (n, k))
        made.append((number, (m, n, k), rng.choice(("nt", "nn"))))
    return made


def is_aligned(shape, layout):
    """Whether the rows of both operands begin at multiples of 16 bytes."""
    _m, n, k = shape
    return k % 8 == 0 and (layout == "nt" or n % 8 == 0)


def planned(shape, layout, target):
    from kiln import library

    m, n, k = shape
    b = (n, k) if layout == "nt" else (k, n)
    arguments = [library.Spec((m, k), DTYPE), library.Spec(b, DTYPE), None, None, None, None, False, layout == "nt", None, False, False]
    return library.plan("matmul", *arguments, target=target)


def prepare(job):
    """In a process of its own: the library's kernel goes to the daemon's store, and so do those that its planner expects most of, where they are
    asked for. job: shape, layout, target, board, choices."""
    from kiln.client import default_client

    begin, client = time.perf_counter(), default_client()
    try:
        plan = planned(job["shape"], job["layout"], job["target"])
        client.compile(plan.program.trace(), job["target"], options=dict(plan.options), timeout=120)
        found = {"sizes": sizes_of(plan)}
        if job["choices"]:
            import product_choices

            found.update(product_choices.ranked(plan, job["shape"], job["target"], job["board"], job["choices"], client))
            for sizes in found["choices"]:
                client.compile(product_choices.with_sizes(plan, sizes).program.trace(), job["target"], options=dict(plan.options), timeout=120)
        return {**found, "seconds": round(time.perf_counter() - begin, 3)}
    except Exception as failure:  # each product's failure is its own
        return {"problem": f"{type(failure).__name__}: {str(failure).splitlines()[0][:200]}"}


def sizes_of(plan):
    """The program's own arguments that are no part of the problem."""
    problem = {"M", "N", "K", "in_dtype", "out_dtype", "trans_a", "trans_b", "activation", "bias"}
    return {name: value for name, value in plan.program.arguments if name not in problem}


class Bench:
    """What measures."""

    def __init__(self, options, target, torch):
        from bench_timing import Timer

        self.options, self.target, self.torch = options, target, torch
        self.timer = Timer(options.seed)
        torch.manual_seed(options.seed)

    def job(self, shape, layout):
        from bench_data import HALF, Job

        torch, (m, n, k) = self.torch, shape
        a = torch.randn((m, k), device="cuda").to(torch.bfloat16)
        b = torch.randn((n, k) if layout == "nt" else (k, n), device="cuda").to(torch.bfloat16)
        right = b.t() if layout == "nt" else b
        rows = torch.arange(m, device="cuda")
        rows = torch.cat([rows[:CHECKED], rows[max(CHECKED, m - CHECKED) :]])
        given = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
        exact = a[rows].double() @ right.double()
        return Job([a, b], [((m, n), DTYPE)], [(0, exact)], lambda: torch.matmul(a, right, out=given), bar=HALF[1], part=lambda r: r[rows])

    def problem(self, job, call):
        """What is wrong with the result; empty: nothing."""
        from bench_main import check
        from data import relative_error

        theirs = job.peer()
        job.poison()
        ours = call()
        error = max(check(job, [ours]), relative_error(ours, theirs), key=lambda e: math.inf if e != e else e)
        return "" if error <= job.bar else f"error {error:.2e}, bar {job.bar:.0e}"

    def measure(self, shape, layout, made):
        from kiln import library

        m, n, k = shape
        job = self.job(shape, layout)
        calls = {"kiln": lambda: library.matmul(*job.inputs, trans_b=layout == "nt")}
        for number, sizes in enumerate(made.get("choices", ())):
            if sizes != made["sizes"]:
                calls[f"choice {number}"] = self.chosen(shape, layout, sizes, job.inputs)
        problems = {name: said for name, call in calls.items() if (said := self.problem(job, call))}
        if problems:
            return {"ok": False, "note": "; ".join(f"{name}: {said}" for name, said in problems.items())}
        job.references = []
        guess = max(2 * m * n * k / FLOPS, 2 * (m * k + n * k + m * n) / BYTES)
        idle = min(IDLE_SECONDS[1], max(IDLE_SECONDS[0], IDLE_TIMES * guess))
        times = self.timer.burst({**calls, "cublas": job.peer}, rounds=ROUNDS, idle=idle)
        for number, sizes in enumerate(made.get("choices", ())):
            times.setdefault(f"choice {number}", times["kiln"])
        us = {name: round(value * 1e3, 3) for name, value in times.items()}
        return {"ok": True, "us": us, "ratio": {name: round(us["cublas"] / value, 4) for name, value in us.items() if name != "cublas"}}

    def chosen(self, shape, layout, sizes, inputs):
        import product_choices
        from kiln.library.operation import _Ready
        from kiln.library.plans import kernel_of

        plan = product_choices.with_sizes(planned(shape, layout, self.target), sizes)
        ready = _Ready(plan, kernel_of(plan, self.target))
        return lambda: ready(inputs)


class Compiler:
    """In its place where there is no GPU."""

    def measure(self, shape, layout, made):
        return {"ok": True}


def show(row):
    head = f"{'x'.join(map(str, row['shape'])):>19} {row['layout']} {'aligned  ' if row['aligned'] else 'unaligned'}"
    if not row["ok"] or "us" not in row:
        print(f"{head} {'ok' if row['ok'] else 'FAIL ' + row['note']}  {' '.join(map(str, row.get('sizes', {}).values()))}  "
              f"{row.get('expected', '')} {row.get('choices', '')} {row.get('seconds', '')}", flush=True)
        return
    ratios = "  ".join(f"{name} {row['us'][name]:.1f} µs {ratio:.3f} ×" for name, ratio in row["ratio"].items())
    print(f"{head} cublas {row['us']['cublas']:.1f} µs  {ratios}  {' '.join(map(str, row['sizes'].values()))}", flush=True)


def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def kind_of(row):
    m = row["shape"][0]
    return f"{row['layout']} {'aligned' if row['aligned'] else 'unaligned'} {'M ≤ 128' if m <= 128 else 'M > 128'}"


def summarize(rows, wanted):
    """Whether the bars hold for the library's own; a line for each contender, its kinds of products, and its worst rows."""
    good = [row for row in rows if row["ok"]]
    holds = len(good) == wanted and not any("ratio" in row for row in good)  # what only compiles
    for name in sorted({name for row in good for name in row.get("ratio", ())}, key=lambda name: (name != "kiln", name)):
        ratios = {row["number"]: row["ratio"][name] for row in good if name in row.get("ratio", ())}
        mean, least = geomean(ratios.values()), min(ratios.values())
        said = ""
        if name == "kiln":
            holds = len(good) == wanted and mean >= BARS["geomean"] and least >= BARS["each"]
            said = f" (bars {BARS['geomean']}, {BARS['each']}: {'holds' if holds else 'DOES NOT HOLD'})"
        print(f"# {name}: {len(ratios)} of {wanted} products, geomean {mean:.3f} × cuBLAS, least {least:.3f}{said}")
        for kind in sorted({kind_of(row) for row in good}):
            some = [ratios[row["number"]] for row in good if kind_of(row) == kind and row["number"] in ratios]
            if some:
                print(f"#   {kind:<24} {len(some):>3} products, geomean {geomean(some):.3f}, least {min(some):.3f}")
        for row in sorted((row for row in good if row["number"] in ratios), key=lambda row: ratios[row["number"]])[:10]:
            print(f"#   worst: {'x'.join(map(str, row['shape']))} {row['layout']} {ratios[row['number']]:.3f}")
    return holds


def prepare_all(prepare, wanted, deadline):
    """{number: what ``prepare`` says of its job}. All are compiled before the first is measured: launches must not wait for a processor."""
    made = {number: {"problem": "not compiled in time"} for number in wanted}
    pool = concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=multiprocessing.get_context("spawn"))
    try:
        jobs = {pool.submit(prepare, job): number for number, job in wanted.items()}
        for future in concurrent.futures.as_completed(jobs, timeout=max(1.0, (deadline - time.monotonic()) * COMPILING)):
            made[jobs[future]] = future.result()
    except concurrent.futures.TimeoutError:
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    print(f"# {sum('problem' not in one for one in made.values())} of {len(wanted)} compiled", flush=True)
    return made


def run(options, target, place):
    """(the rows, whether the bars hold)"""
    deadline, bench, rows, board = time.monotonic() + options.budget, Compiler(), [], ""
    if not options.compile_only:
        import torch

        bench, board = Bench(options, target, torch), place.facts["devices"][0]["name"]
    wanted = products(options.seed, options.random_products)
    common = {"target": target, "board": board, "choices": options.choices}
    made = prepare_all(prepare, {number: {"shape": shape, "layout": layout, **common} for number, shape, layout in wanted}, deadline)
    for number, shape, layout in wanted:
        if time.monotonic() > deadline:
            break
        prepared = made[number]
        try:
            result = {"ok": False, "note": prepared["problem"]} if "problem" in prepared else bench.measure(shape, layout, prepared)
        except Exception as problem:  # each product's failure is its own
            result = {"ok": False, "note": f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"}
        rows.append({"number": number, "shape": shape, "layout": layout, "aligned": is_aligned(shape, layout), **prepared, **result})
        show(rows[-1])
    if len(rows) < len(wanted):
        print(f"# {len(wanted) - len(rows)} products were not begun: the budget of {options.budget:.0f} s is spent", flush=True)
    return rows, summarize(rows, len(wanted))
