# SPDX-License-Identifier: Apache-2.0
"""torch.compile on Kiln: the coordinator. Workers compile and check in parallel; those that hold a model time it at the end, one after the other."""

import argparse
import collections
import fnmatch
import json
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time

from workers import Pool

HERE = pathlib.Path(__file__).resolve().parent
MODELS = ("transformer block", "convolutional net", "MLP mixer")
KEPT = 25  # seconds at the end for the times of the models


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/gpu/inductor", description=__doc__)
    parser.add_argument("--bundle", help="the archive to test; default: the newest dist/kiln-*.tar.*")
    parser.add_argument("--build", help="a build folder instead of a bundle")
    parser.add_argument("--ptxas", help="as of tests/gpu/run")
    parser.add_argument("--emulate", action="store_true", help="on the emulator, with a torch of the CPU that has Inductor")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="cases and models whose name matches this glob or contains it")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="processes; default: 12, with --emulate 1")
    parser.add_argument("--case-timeout", type=float, default=0, metavar="SECONDS", help="for one case; default: 60, with --emulate 300")
    parser.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="default: 200, with --emulate none")
    parser.add_argument("--json", metavar="FILE", help="where the report goes; default: $OUT/inductor.json where OUT is set")
    options = parser.parse_args(arguments)
    options.compile_only = options.emulate
    options.packages = os.environ.get("PYTHONPATH", "")
    options.jobs = options.jobs or (1 if options.emulate else 12)
    options.case_timeout = options.case_timeout or (300 if options.emulate else 60)
    options.budget = options.budget or (math.inf if options.emulate else 200)
    return options


def names() -> list:
    """The cases of inductor_cases.py, which needs torch, as its text has them."""
    text = (HERE / "inductor_cases.py").read_text(encoding="utf-8")
    return re.findall(r'^(?:row|@case)\("([^"]+)"', text, re.MULTILINE)


def show(package: str, row: dict) -> None:
    print(f"{row['name']:<20} {package:<7} {'ok' if row['ok'] else 'FAIL':<5} {row.get('kernels', ''):>3} kernels {row.get('seconds', ''):>6} s  "
          f"{row.get('note', '')}".rstrip(), flush=True)


def run(options, place, start) -> dict:
    selected = [name for name in (*MODELS, *names()) if fnmatch.fnmatchcase(name, options.only) or options.only in name]
    jobs = [{"kind": "model" if name in MODELS else "case", "name": name} for name in selected]
    deadline = start + options.budget - KEPT
    ours = {**place.script_environment, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(place.scratch / "ours"), "PYTHONPATH": os.pathsep.join(
        filter(None, [str(place.root / "python"), str(place.root / "python-compat-triton"), str(HERE), options.packages]))}
    pools = {}

    def pool(name, environment, device):
        folder = place.scratch / f"logs-{name}"
        folder.mkdir()
        pools[name] = Pool([HERE / "inductor_worker.py", device], environment, folder, jobs=options.jobs, limit=options.case_timeout,
                           deadline=deadline)
        return pools[name]

    pool("kiln", {**ours, **({"KILN_TARGET": "emu:sm_90a"} if options.emulate else {})}, "cpu" if options.emulate else "cuda").start(jobs)
    if not options.emulate:
        theirs = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(place.scratch / "theirs"),
                  "TRITON_CACHE_DIR": str(place.scratch / "triton"), "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), options.packages]))}
        pool("triton", theirs, "cuda").start([job for job in jobs if job["kind"] == "model"])
    shown = collections.Counter()
    while any(p.busy() for p in pools.values()):
        for name, p in pools.items():
            p.step()
            for row in p.results[shown[name]:]:
                show(name, row)
            shown[name] = len(p.results)
    for name, p in pools.items():
        for row in p.rest():
            p.results.append(row)
            show(name, row)
    times = [] if options.emulate else [model_times(name, pools) for name in MODELS if name in selected]
    for p in pools.values():
        p.end()
    rows = [{**row, "package": name} for name, p in pools.items() for row in p.results if row["kind"] != "time"]
    return {"rows": rows, "times": times, "packages": {name: p.package for name, p in pools.items()}}


def timed(name: str, pool) -> dict | None:
    """By the worker that keeps the model."""
    worker = next((worker for worker in pool.workers if name in worker.models), None)
    if worker is None:
        return None
    pool.deadline += KEPT
    result = pool.one({"kind": "time", "name": name}, worker)
    return result if result["ok"] else None


def model_times(name: str, pools: dict) -> dict:
    found = {package: timed(name, pool) for package, pool in pools.items()}
    row = {"name": name, **{package: times for package, times in found.items() if times}}
    if all(found.values()):
        for what in ("forward_ms", "step_ms"):
            row[what.replace("_ms", "_ratio")] = round(found["triton"][what] / found["kiln"][what], 3)
        print(f"{name:<20} forward {found['kiln']['forward_ms']:.3f} ms, {row['forward_ratio']:.3f} × Triton; with backward "
              f"{found['kiln']['step_ms']:.3f} ms, {row['step_ratio']:.3f} ×; eager forward {found['kiln']['eager_ms']:.3f} ms", flush=True)
        show_kernels(*(found[package].get("forward_us", []) for package in ("kiln", "triton")))
    else:
        print(f"{name:<20} was not timed", flush=True)
    return row


def show_kernels(kiln: list, triton: list, most: int = 8) -> None:
    """What of a forward pass differs most, in microseconds. Both packages run the same kernels in the same order; the names are Triton's."""
    if len(kiln) != len(triton):
        print(f"  {len(kiln)} kernels, {len(triton)} with Triton", flush=True)
        return
    for (_, mine), (name, theirs) in sorted(zip(kiln, triton), key=lambda pair: -abs(pair[0][1] - pair[1][1]))[:most]:
        print(f"  {mine:>9.2f} µs, {theirs:>9.2f} with Triton  {name[:100]}", flush=True)


def main():
    options = parse(sys.argv[1:])
    start = time.monotonic()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kiln-inductor-"))
    from daemon import Place

    place, report, failure = None, {"rows": [], "times": []}, None
    try:
        place = Place(options, scratch, ptxas=options.ptxas)
        place.start()
        report = run(options, place, start)
    except Exception as problem:  # what was found so far is still written
        failure = f"{type(problem).__name__}: {problem}"
        print(f"FAIL {failure}", flush=True)
    finally:
        if place:
            place.stop()
    where = options.json or (str(pathlib.Path(os.environ["OUT"]) / "inductor.json") if os.environ.get("OUT") else None)
    if where:
        pathlib.Path(where).write_text(json.dumps({**report, "failure": failure, "seconds": round(time.monotonic() - start, 1)}, indent=1))
    shutil.rmtree(scratch, ignore_errors=True)
    mine = [row for row in report["rows"] if row["package"] == "kiln"]
    bad = [row["name"] for row in mine if not row["ok"]]
    print(f"# {len(mine) - len(bad)} of {len(mine)} are right, {time.monotonic() - start:.0f} s; packages: {report.get('packages')}")
    return 1 if failure or bad or not mine else 0


if __name__ == "__main__":
    sys.exit(main())
