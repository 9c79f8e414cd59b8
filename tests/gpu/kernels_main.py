# SPDX-License-Identifier: Apache-2.0
"""The coordinator of tests/gpu/kernels. A kernel is right if the test that launches it passes."""

import argparse
import collections
import concurrent.futures
import fnmatch
import itertools
import json
import math
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

from kernels_corpora import CASES, HERE, REPOSITORIES, KernelTests, environment_of, environment_path, read_lines
from workers import Pool

LIST = HERE / "kernels.json"
COUNT = 150
NEEDED = 140


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/gpu/kernels", description=__doc__)
    parser.add_argument("--corpora", metavar="DIR", required=True, help="the folder with the checkouts liger, fla, unsloth and vllm")
    parser.add_argument("--bundle", help="the archive to test; default: the newest dist/kiln-*.tar.*")
    parser.add_argument("--build", help="a build folder instead of a bundle")
    parser.add_argument("--beside", metavar="FOLDERS", default="", help="other builds of Kiln (a,b), each timed by turns with this one")
    parser.add_argument("--ptxas", help="as of tests/gpu/run")
    parser.add_argument("--emulate", action="store_true", help="on the emulator, each kernel in its smallest test")
    parser.add_argument("--draw", type=int, metavar="SEED", help="with --emulate: which tests reach which kernels, and a new list of them")
    parser.add_argument("--small", action="store_true", help="on a GPU too each kernel in its smallest test")
    parser.add_argument("--only", metavar="PATTERNS", default="*", help="kernels whose name matches or contains one of these globs (a,b)")
    parser.add_argument("--times-only", action="store_true",
                        help="a test ends when its kernels' launches are recorded; whether it is right is not asked")
    parser.add_argument("--configs", type=int, default=2, metavar="N", help="how many configurations of a kernel are tried where it is tuned")
    parser.add_argument("--parallel", type=int, default=0, metavar="N", help="processes; default: 14, with --emulate 2")
    parser.add_argument("--limit", type=float, default=0, metavar="SECONDS", help="for one file of tests; default: 250, with --emulate 1200")
    parser.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="default: 560, with --emulate none")
    parser.add_argument("--json", metavar="FILE", help="where the report goes; default: $OUT/kernels.json where OUT is set")
    options = parser.parse_args(arguments)
    if options.draw is not None and not options.emulate:
        parser.error("--draw goes with --emulate")
    if options.beside and options.emulate:
        parser.error("--beside is about times, which --emulate has none of")
    options.compile_only = options.emulate
    options.packages = os.environ.get("PYTHONPATH", "")
    options.parallel = options.parallel or (2 if options.emulate else 14)
    options.limit = options.limit or (1200 if options.emulate else 250)
    options.budget = options.budget or (1e6 if options.emulate else 560)
    return options


class Run:
    """What one package makes of tests, in parallel."""

    def __init__(self, options, place, package: str):
        self.options, self.place, self.package = options, place, package
        if package == "kiln":
            folders = [place.root / "python", place.root / "python-compat-triton"]
            self.environment = dict(place.script_environment)
        else:
            folders, self.environment = [], {**os.environ, "TRITON_CACHE_DIR": str(place.scratch / "triton")}
        self.environment["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *filter(None, [options.packages])])
        if options.emulate:
            self.environment |= {"KILN_TARGET": "emu:sm_90a", "KILN_CORPUS_DEVICE": "cpu"}
        self.environment["KILN_KERNELS_CONFIGS"] = str(options.configs)

    def tests(self, chosen: dict, deadline: float, *, wanted=None, dry=False) -> tuple:
        """({test: row}, what the plugin wrote). ``chosen``: {repository: tests, or None for all}. ``wanted``: {test: kernels to be recorded}."""
        (self.place.scratch / "records").mkdir(exist_ok=True)
        count = sum(len(tests or [None] * 20) for tests in chosen.values())
        environment = {**self.environment, "KILN_KERNELS_DRY": str(int(dry)), "KILN_KERNELS_STOP": str(int(self.options.times_only)),
                       "KILN_KERNELS_RECORDS": str(self.place.scratch / "records"), "KILN_KERNELS_WANTED": json.dumps(wanted or {})}

        def of_repository(name: str):
            folder = self.scratch(name)
            share = max(1, round(self.options.parallel * len(chosen[name] or [None] * 20) / count))
            found = KernelTests(REPOSITORIES[name], self.options.corpora, environment, folder, folder / "lines", chosen=chosen[name],
                                parallel=share, limit=self.options.limit, deadline=deadline + 60)
            found.run()
            return {(name, case): row for case, row in found.rows.items()}, [{**line, "corpus": name} for line in read_lines(folder / "lines")]

        rows, written = {}, []
        with concurrent.futures.ThreadPoolExecutor() as threads:
            for results, lines in threads.map(of_repository, chosen):
                rows |= results
                written += lines
        return rows, written

    def pool(self, name: str, jobs: int, deadline: float) -> Pool:
        """Of workers that make recorded launches of a repository's kernels."""
        repository = REPOSITORIES[name]
        tests = "" if repository.own else pathlib.Path(repository.tests[0]).stem
        path = os.pathsep.join([environment_path(repository, self.options.corpora, self.environment), str(HERE), str(CASES)])
        return Pool([HERE / "kernels_worker.py", tests], {**self.environment, **environment_of(self.options.corpora), "PYTHONPATH": path},
                    self.scratch(name), jobs=jobs, limit=60, deadline=deadline)

    def scratch(self, name: str) -> pathlib.Path:
        folder = self.place.scratch / f"{self.package}-{name}-{time.monotonic_ns()}"
        folder.mkdir()
        return folder


def listed(options) -> list:
    rows = json.loads(LIST.read_text(encoding="utf-8"))["kernels"]
    patterns = [pattern for pattern in options.only.split(",") if pattern]
    return [row for row in rows if any(fnmatch.fnmatchcase(row["kernel"], pattern) or pattern in row["kernel"] for pattern in patterns)]


def by_repository(rows, which: str) -> dict:
    chosen = collections.defaultdict(set)
    for row in rows:
        chosen[row["corpus"]].add(row[which])
    return {name: sorted(tests) for name, tests in chosen.items()}


def outcome_of(results, row, which: str) -> dict:
    return results.get((row["corpus"], row[which]), {"outcome": "not_run", "error": "no result", "seconds": 0})


def run(options, place, start) -> dict:
    rows = listed(options)
    which = "small" if options.emulate or options.small else "large"
    deadline = start + options.budget
    wanted = collections.defaultdict(list)
    for row in rows if not options.emulate else ():
        wanted[row[which]].append(row["kernel"])
    results, written = Run(options, place, "kiln").tests(by_repository(rows, which), start + options.budget * (1 if options.emulate else 0.45),
                                                        wanted=wanted)
    records = {(line["corpus"], name): record for line in written for name, record in line.get("records", {}).items()}
    report = []
    for row in rows:
        found = outcome_of(results, row, which)
        record = records.get((row["corpus"], row["kernel"]), {"note": "" if options.emulate else "not reached"})
        report.append({**row, "outcome": found["outcome"], "error": found["error"], "seconds": found["seconds"], **record})
    if not options.emulate:
        others: dict = {}
        try:
            for folder in filter(None, options.beside.split(",")):
                others[folder] = beside(place, folder, len(others))
            time_all([row for row in report if "record" in row], options, place, others, deadline)
        finally:
            for other in others.values():
                other.stop()
    return {"kernels": report}


def beside(place, folder: str, number: int):
    """Another build, with a daemon of its own that has compiled nothing yet."""
    scratch = place.scratch / f"beside{number}"
    scratch.mkdir()
    environment = dict(os.environ)
    found = type(place)(argparse.Namespace(build=folder, bundle=None), scratch, ptxas=place.ptxas)
    try:
        found.start()
    except Exception:
        found.stop()
        raise
    finally:
        os.environ.update(environment)
    return found


def time_all(rows: list, options, place, others: dict, deadline: float) -> None:
    """All packages compile, many at once; then each kernel is timed with one after the other, while nothing else runs. ``others``: builds of Kiln
    by their folders."""
    packages = {name: Run(options, place, name) for name in ("triton", "kiln")}
    packages |= {folder: Run(options, other, "kiln") for folder, other in others.items()}
    until = time.monotonic() + (deadline - time.monotonic()) * 0.6
    for package in packages.values():
        compile_all(rows, package, until)
    repositories = dict.fromkeys(row["corpus"] for row in rows)
    pools = {(name, corpus): found.pool(corpus, 1, deadline) for name, found in packages.items() for corpus in repositories}
    for pool in pools.values():
        pool.open()
    for i, row in enumerate(rows):
        for package in list(packages)[:: (1, -1)[i % 2]]:
            found = pools[package, row["corpus"]].one({"kind": "time", "name": row["kernel"], "record": row["record"]})
            if package in others:
                row.setdefault("beside_ms", {})[package] = found.get("ms")
                continue
            row[f"{package}_ms"] = found.get("ms")
            if not found["ok"]:
                row["note"] = f"with {package}: {found['note']}"
        if row["kiln_ms"] and row["triton_ms"]:
            row["ratio"] = round(row["triton_ms"] / row["kiln_ms"], 4)
    for pool in pools.values():
        pool.end()


def compile_all(rows: list, package: Run, deadline: float) -> None:
    """What is tuned and compiled here is read from caches when it is timed."""
    pools = []
    for name, some in itertools.groupby(rows, key=lambda row: row["corpus"]):
        some = list(some)
        pools.append(package.pool(name, max(1, package.options.parallel * len(some) // len(rows)), deadline))
        pools[-1].start([{"kind": "compile", "name": row["kernel"], "record": row["record"]} for row in some])
    while any(pool.busy() for pool in pools):
        for pool in pools:
            pool.step()
    for pool in pools:
        pool.end()


def show(report: dict, emulated: bool, only_times: bool = False) -> bool:
    rows = report["kernels"]
    for row in sorted(rows, key=lambda row: row.get("ratio") or 0):
        state = {"passed": "ok", "skipped": "-"}.get(row["outcome"], "FAIL")
        times = f"{row['kiln_ms'] * 1e3:9.1f} µs {row['ratio']:7.3f} ×" if row.get("ratio") else ""
        for ms in row.get("beside_ms", {}).values():
            times += f" beside {ms * 1e3:9.1f} µs" if ms else " beside         -"
        other = f"  (not timed: {row['note'][:200]})" if row.get("note") else ""
        print(f"{row['corpus']:<8}{row['kernel'].split('.')[-1]:<70} {state:<5}{times}{other} {row['error'][:200]}".rstrip())
    right = sum(row["outcome"] == "passed" for row in rows)
    ratios = [row["ratio"] for row in rows if row.get("ratio")]
    line = f"# {len(rows)} kernels" if only_times else f"# {right} of {len(rows)} kernels are right"
    if not emulated:
        line += f", {len(ratios)} timed"
    if ratios:
        line += f", geomean {geomean(ratios):.3f} × Triton, least {min(ratios):.3f}"
    for folder in dict.fromkeys(folder for row in rows for folder in row.get("beside_ms", {})):
        against = [row["beside_ms"][folder] / row["kiln_ms"] for row in rows if row.get("kiln_ms") and row.get("beside_ms", {}).get(folder)]
        line += f"; {geomean(against):.3f} × {folder} in {len(against)}" if against else ""
    print(line, flush=True)
    return bool(ratios) if only_times else right >= min(NEEDED, len(rows))


def geomean(ratios) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def draw(options, place, start) -> bool:
    """Which kernels the tests reach, without a launch; then a list."""
    _, written = Run(options, place, "kiln").tests({name: None for name in REPOSITORIES}, start + options.budget, dry=True)
    document = drawn(options, written)
    LIST.write_text('{"seed": %d, "found": %s, "reached": %s,\n"kernels": [\n %s]}\n' % (
        options.draw, json.dumps(document["found"]), json.dumps(document["reached"]),
        ",\n ".join(json.dumps(row) for row in document["kernels"])), encoding="utf-8")
    print(f"# {document['found']} kernels, {document['reached']} reached, {len(document['kernels'])} drawn")
    return True


def drawn(options, written: list) -> dict:
    """Kernels in an order of the seed, each that a test reaches, until there are enough. A kernel has two tests of one function: the one by which it
    was reached, and the largest."""
    sizes = {(line["corpus"], line["function"]): line["sizes"] for line in written if "function" in line}
    reached: dict = {}
    for line in written:
        for name in line.get("kernels", ()):
            cases = sizes.get((line["corpus"], line["id"].split("[")[0]), [[line["id"], 1.0]])
            place = {"small": line["id"], "large": cases[-1][0], "size": cases[0][1]}
            if name not in reached or place["size"] < reached[name]["size"]:
                reached[name] = place
    names = [(name, kernel) for name, r in REPOSITORIES.items() for kernel in r.kernels(options.corpora)]
    random.Random(options.draw).shuffle(names)
    usable = [(name, kernel) for name, kernel in names if kernel in reached]
    rows = [{"corpus": name, "kernel": kernel, **{which: reached[kernel][which] for which in ("small", "large")}} for name, kernel in usable[:COUNT]]
    return {"found": dict(collections.Counter(name for name, _ in names)), "reached": dict(collections.Counter(name for name, _ in usable)),
            "kernels": sorted(rows, key=lambda row: (row["corpus"], row["kernel"]))}


def main():
    options = parse(sys.argv[1:])
    start = time.monotonic()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kiln-kernels-"))
    from daemon import Place

    place, report, good, failure = None, {}, False, None
    try:
        place = Place(options, scratch, ptxas=options.ptxas)
        place.start()
        if options.draw is not None:
            good = draw(options, place, start)
        else:
            report = run(options, place, start)
            good = show(report, options.emulate, options.times_only)
    except Exception as problem:  # what was found so far is still written
        failure = f"{type(problem).__name__}: {problem}"
        print(f"FAIL {failure}", flush=True)
    finally:
        if place:
            place.stop()
    where = options.json or (str(pathlib.Path(os.environ["OUT"]) / "kernels.json") if os.environ.get("OUT") else None)
    if where and report:
        pathlib.Path(where).write_text(json.dumps({**report, "failure": failure, "seconds": round(time.monotonic() - start, 1)}, indent=1))
    shutil.rmtree(scratch, ignore_errors=True)
    print(f"# {time.monotonic() - start:.0f} s")
    return 0 if good and not failure else 1


if __name__ == "__main__":
    sys.exit(main())
