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
import selectors
import shutil
import subprocess
import sys
import tempfile
import time

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


class Worker:
    """A process with one package called ``triton``. ``asked``: what it is at, and since when."""

    def __init__(self, environment: dict, device: str, log):
        self.process = subprocess.Popen([sys.executable, str(HERE / "inductor_worker.py"), device], env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=log, text=True)
        self.asked, self.since, self.models = {"kind": "start", "name": "a worker's start"}, time.monotonic(), []

    def ask(self, what: dict) -> None:
        self.asked, self.since = what, time.monotonic()
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is read where results are

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Pool:
    """Does what is asked of one package. A worker that is lost, or late, costs the case that it is at."""

    def __init__(self, environment, device, scratch, options, deadline):
        self.environment, self.device, self.scratch, self.options, self.deadline = environment, device, scratch, options, deadline
        self.results, self.workers, self.selector = [], [], selectors.DefaultSelector()
        self.package = ""

    def start(self, jobs: list) -> None:
        """The models first, each with a worker that keeps it."""
        self.waiting = collections.deque(sorted(jobs, key=lambda job: job["kind"] != "model"))
        for _ in range(min(self.options.jobs, len(jobs))):
            self._more()

    def _more(self) -> None:
        log = open(self.scratch / f"worker{len(os.listdir(self.scratch))}.log", "wb")
        worker = Worker(self.environment, self.device, log)
        self.workers.append(worker)
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    def busy(self) -> bool:
        return any(worker.asked for worker in self.workers)

    def step(self) -> None:
        for key, _ in self.selector.select(0.1):
            self._read(key.data)
        for worker in list(self.workers):
            late = time.monotonic() - worker.since > self.options.case_timeout
            over = time.monotonic() > self.deadline
            if worker.asked and (late or over):
                self._lost(worker, "the time was over" if over else f"not done after {self.options.case_timeout:.0f} s")

    def _read(self, worker) -> None:
        line = worker.process.stdout.readline()
        if not line:
            self._lost(worker, f"the process ended with status {worker.process.wait()}")
            return
        result = json.loads(line)
        if "ready" in result:
            self.package = result["ready"]
        else:
            self.results.append(result)
            if result["kind"] == "model" and result["ok"]:
                worker.models.append(result["name"])
        worker.asked = None
        self._next(worker)

    def _next(self, worker) -> None:
        if self.waiting and not worker.models:
            worker.ask(self.waiting.popleft())

    def _lost(self, worker, why: str) -> None:
        asked, worker.asked = worker.asked, None
        self.selector.unregister(worker.process.stdout)
        self.workers.remove(worker)
        worker.end()
        if asked and asked["kind"] != "start":
            self.results.append({**asked, "ok": False, "note": why})
        if self.waiting and time.monotonic() < self.deadline:
            self._more()

    def rest(self) -> list:
        """What nobody began."""
        return [{**job, "ok": False, "note": "the time was over"} for job in self.waiting]

    def timed(self, name: str) -> dict | None:
        worker = next((worker for worker in self.workers if name in worker.models), None)
        if worker is None:
            return None
        before = len(self.results)
        self.deadline += KEPT
        worker.ask({"kind": "time", "name": name})
        while worker.asked:
            self.step()
        return next((result for result in self.results[before:] if result["ok"]), None)


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
        pools[name] = Pool(environment, device, folder, options, deadline)
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
        for worker in p.workers:
            worker.end()
    rows = [{**row, "package": name} for name, p in pools.items() for row in p.results if row["kind"] != "time"]
    return {"rows": rows, "times": times, "packages": {name: p.package for name, p in pools.items()}}


def model_times(name: str, pools: dict) -> dict:
    found = {package: pool.timed(name) for package, pool in pools.items()}
    row = {"name": name, **{package: times for package, times in found.items() if times}}
    if all(found.values()):
        for what in ("forward_ms", "step_ms"):
            row[what.replace("_ms", "_ratio")] = round(found["triton"][what] / found["kiln"][what], 3)
        print(f"{name:<20} forward {found['kiln']['forward_ms']:.3f} ms, {row['forward_ratio']:.3f} × Triton; with backward "
              f"{found['kiln']['step_ms']:.3f} ms, {row['step_ratio']:.3f} ×; eager forward {found['kiln']['eager_ms']:.3f} ms", flush=True)
        show_kernels(*(found[package].get("forward_us", {}) for package in ("kiln", "triton")))
    else:
        print(f"{name:<20} was not timed", flush=True)
    return row


def show_kernels(kiln: dict, triton: dict, most: int = 8) -> None:
    """Those of a forward pass whose times differ most, in microseconds. Names are Inductor's, so they are the same with both packages."""
    def more(name):
        return kiln.get(name, 0) - triton.get(name, 0)

    for name in sorted({*kiln, *triton}, key=lambda name: -abs(more(name)))[:most]:
        print(f"  {kiln.get(name, 0):>9.2f} µs, {triton.get(name, 0):>9.2f} with Triton  {name[:100]}", flush=True)


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
