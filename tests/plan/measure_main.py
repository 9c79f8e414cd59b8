# SPDX-License-Identifier: Apache-2.0
"""Compiles every candidate of the workloads, several processes at once, then measures all of them on the GPU: bursts behind a flush of the L2,
in rounds of random order. Writes one file for each workload."""

import argparse
import collections
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]
CLOCKS = "clocks.sm,clocks.mem,power.draw,temperature.gpu"
SILENT_SECONDS = 30  # after which a candidate that is being measured hangs


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/plan/measure", description=__doc__)
    parser.add_argument("--bundle", help="the archive to test; default: the newest dist/kiln-*.tar.*")
    parser.add_argument("--build", help="a build folder instead of a bundle")
    parser.add_argument("--only", default="", metavar="PATTERN", help="workloads whose name matches")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="the first N candidates of each workload only")
    parser.add_argument("--seconds", type=float, default=540, help="for all; compiling takes up to 0.6 of it")
    parser.add_argument("--target", default=None, help="default: the GPU's")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), metavar="FOLDER", help="where the files go; default: $OUT, else here")
    parser.add_argument("--jobs", type=int, default=0, help="compiling processes; default: one for each core")
    parser.add_argument("--fake-clock", action="store_true", help="measure nothing: times are made up from the sizes, to test this script")
    options = parser.parse_args(arguments)
    options.compile_only = options.fake_clock
    if options.fake_clock and not options.target:
        parser.error("--fake-clock needs --target")
    return options


def label(sizes: dict) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def compile_one(job: dict) -> dict:
    """In a process of its own. job: workload, sizes, target, path for the artifact."""
    begin = time.perf_counter()
    try:
        from kiln.client import default_client
        from workloads import by_name

        program = by_name(job["workload"]).build(job["sizes"])
        reply = default_client().compile(program, job["target"], priority="BATCH", timeout=240)
        pathlib.Path(job["path"]).write_bytes(reply.artifact.SerializeToString())
        return {"seconds": time.perf_counter() - begin}
    except Exception as failure:  # a candidate may be impossible
        return {"problem": f"{type(failure).__name__}: {failure}"[:300], "seconds": time.perf_counter() - begin}


def compile_all(workloads, options, folder, deadline) -> dict:
    """{workload: [result of each candidate]}; those for which there was no time have a problem. In turns, so that all come equally far."""
    jobs = []
    for workload, candidates in workloads:
        for index, sizes in enumerate(candidates):
            path = str(folder / f"{workload.name}.{index}")
            jobs.append((index, {"workload": workload.name, "sizes": sizes, "target": options.target, "path": path}))
    jobs.sort(key=lambda job: job[0])
    results = {workload.name: [{"problem": "not compiled in time"} for _ in candidates] for workload, candidates in workloads}
    pool = concurrent.futures.ProcessPoolExecutor(options.jobs or os.cpu_count(), mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = {pool.submit(compile_one, job): (job["workload"], index, job["path"]) for index, job in jobs}
        for future in concurrent.futures.as_completed(futures, timeout=max(1.0, deadline - time.monotonic())):
            name, index, path = futures[future]
            results[name][index] = {**future.result(), "path": path}
    except concurrent.futures.TimeoutError:
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return results


class Clocks:
    """What the card says of itself while something runs."""

    def __init__(self, real: bool):
        self.rows, self.process = [], None
        if real and shutil.which("nvidia-smi"):
            self.process = subprocess.Popen(["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader,nounits", "-i", "0", "-lms", "250"],
                                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            try:
                self.rows.append([float(value) for value in line.split(",")])
            except ValueError:
                pass

    def take(self) -> dict:
        """Smallest, middle and largest since the last time."""
        rows, self.rows = self.rows, []
        columns = dict(zip(CLOCKS.split(","), zip(*rows))) if rows else {}
        return {name: [min(values), statistics.median(values), max(values)] for name, values in columns.items()}

    def stop(self):
        if self.process:
            self.process.terminate()


class Device:
    """The measuring process, started anew after a fault or a hang."""

    def __init__(self, options):
        self.options, self.process = options, None

    def _start(self):
        from measure_device import serve

        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.options.fake_clock), daemon=True)
        self.process.start()
        theirs.close()
        self.facts = self.pipe.recv()

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.join()
        self.process = None

    def measure(self, name: str, jobs: dict, until: float) -> dict:
        """{index: {times, …} or {problem}} of {index: (sizes, path)}."""
        found = collections.defaultdict(dict)
        left = dict(jobs)
        while left and time.monotonic() < until:
            if self.process is None:
                self._start()
            self.pipe.send((name, left, until - time.monotonic()))
            under_way = None
            try:
                while True:
                    if not self.pipe.poll(SILENT_SECONDS):
                        raise EOFError
                    kind, index, value = self.pipe.recv()
                    if kind == "done":
                        return found
                    if kind == "begin":
                        under_way = index
                    else:
                        found[index].update(value)
            except (EOFError, OSError):
                self.stop()
                if under_way is None:
                    raise RuntimeError("the measuring process ended before it began")
                found[under_way] = {"problem": "the GPU faulted or hung"}
                left = {index: job for index, job in left.items() if index != under_way}
        return found


def summary(sizes: dict, compiled: dict, measured: dict) -> list:
    """A candidate's row: sizes, microseconds, the quartiles' distance, registers, bytes of local memory; or sizes and the problem."""
    problem = compiled.get("problem") or measured.get("problem")
    times = sorted(measured.get("times", ()))
    if problem or not times:
        return [*sizes.values(), problem or "not measured in time"]
    spread = times[(3 * len(times)) // 4] - times[len(times) // 4]
    return [*sizes.values(), round(statistics.median(times), 2), round(spread, 2), measured["registers"], measured["local"]]


def write(options, workload, candidates, compiled, measured, facts, clocks):
    rows = [summary(sizes, compiled[index], measured.get(index, {})) for index, sizes in enumerate(candidates)]
    measured_rows = [row for row in rows if not isinstance(row[-1], str)]
    data = {"workload": workload.name, "target": options.target, **facts, "clocks": clocks,
            "columns": [*workload.space, "us", "spread", "registers", "local"]}
    path = pathlib.Path(options.out) / f"{workload.name}.json"
    lines = [json.dumps(data)[:-1] + ', "candidates": [', ",\n".join(json.dumps(row) for row in rows), "]}"]
    path.write_text("\n".join(lines) + "\n")
    best = min(measured_rows, key=lambda row: row[len(workload.space)], default=None)
    problems = collections.Counter(row[-1][:90] for row in rows if isinstance(row[-1], str))
    print(f"{workload.name:20} {len(measured_rows):4} measured  best {best}", flush=True)
    for problem, count in problems.most_common(3):
        print(f"{'':20} {count:4} × {problem}", flush=True)


def run(options, place):
    from workloads import WORKLOADS

    begin = time.monotonic()
    chosen = [(w, w.candidates()[: options.limit or None]) for w in WORKLOADS if re.search(options.only, w.name)]
    pathlib.Path(options.out).mkdir(parents=True, exist_ok=True)
    folder = place.scratch / "artifacts"
    folder.mkdir()
    compiled = compile_all(chosen, options, folder, begin + 0.6 * options.seconds)
    spent = time.monotonic() - begin
    print(f"# {sum(len(c) for _, c in chosen)} candidates compiled in {spent:.0f} s", flush=True)
    device, clocks = Device(options), Clocks(not options.fake_clock)
    try:
        for number, (workload, candidates) in enumerate(chosen):
            clocks.take()
            left = begin + options.seconds - time.monotonic()
            until = time.monotonic() + max(1.0, left / (len(chosen) - number))
            jobs = {index: (sizes, compiled[workload.name][index]["path"]) for index, sizes in enumerate(candidates)
                    if "problem" not in compiled[workload.name][index]}
            measured = device.measure(workload.name, jobs, until)
            facts = {**getattr(device, "facts", {}), "compiler": place.facts.get("compiler", "")}
            write(options, workload, candidates, compiled[workload.name], measured, facts, clocks.take())
    finally:
        clocks.stop()
        device.stop()
    print(f"# done in {time.monotonic() - begin:.0f} s", flush=True)


def main():
    options = parse(sys.argv[1:])
    sys.path.append(str(HERE.parent / "gpu"))
    from daemon import Place

    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kiln-plan-"))
    place = None
    try:
        place = Place(options, scratch)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(place.root / "python"), str(HERE)])
        place.start()
        print(f"# {place.description(options)}", flush=True)
        options.target = options.target or place.facts["devices"][0]["arch"]
        run(options, place)
    finally:
        if place:
            place.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
