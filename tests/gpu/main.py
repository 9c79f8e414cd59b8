# SPDX-License-Identifier: Apache-2.0
"""The GPU run's coordinator: unpacks the bundle, starts its daemon, compiles everything in parallel, then runs the cases one after
another in a process that can be lost. It needs neither torch nor a GPU itself."""

import argparse
import json
import os
import pathlib
import platform
import secrets
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEFAULT_TARGETS = "cuda:sm_80,cuda:sm_90a,hip:gfx942,hip:gfx1100"


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/gpu/run", description=__doc__)
    parser.add_argument("--bundle", help="the archive to test; default: the newest dist/kiln-*.tar.*")
    parser.add_argument("--build", help="a build folder to test instead of a bundle")
    parser.add_argument("--ptxas", help="kilnd's; none: the client's driver compiles the PTX. Default: the first on PATH, else the one of torch")
    parser.add_argument("--scripts", metavar="DIR", help="also run five scripts of this checkout of tile-ai/tilelang")
    parser.add_argument("--precompiled", metavar="FILE",
                        help="kilnd serves this bundle, signed by a key of FILE.keys, and the run fails where kilnd compiles")
    parser.add_argument("--tilelang", metavar="DIR", help="run the tests and scripts of this checkout of tile-ai/tilelang, and nothing else; "
                        "PYTHONPATH names folders of what they import beside")
    parser.add_argument("--tilelang-bless", metavar="REPORT", help="expect from now on what passed in this report of --tilelang; runs nothing")
    parser.add_argument("--tilelang-parallel", type=int, default=16, metavar="N", help="how many of its files at a time")
    parser.add_argument("--tilelang-figures", type=int, metavar="N", help="with --tilelang: its N largest scripts that time themselves, one after "
                        "another, and how fast each says it is beside its reference")
    parser.add_argument("--tilelang-limit", type=float, default=120, metavar="SECONDS", help="for one of its files")
    parser.add_argument("--triton", metavar="DIR",
                        help="run the tutorials and language tests of this checkout of triton-lang/triton, and nothing else")
    parser.add_argument("--flaggems", metavar="DIR", help="run the tests of this checkout of FlagOpen/FlagGems, and nothing else")
    parser.add_argument("--emulate", action="store_true", help="with --triton: on the emulator, with a torch that has no GPU")
    parser.add_argument("--triton-bless", metavar="REPORT", help="as --tilelang-bless, of a report of --triton")
    parser.add_argument("--triton-most", type=int, default=0, metavar="N",
                        help="cases of each test function of --triton (default: 24) or --flaggems (default: 6), drawn by the seed")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="cases whose name or family matches this glob or contains it")
    parser.add_argument("--seed", type=int, default=None, help="default: fresh in each run, and printed")
    parser.add_argument("--count", type=int, default=40, help="random cases in each GEMM and attention family")
    parser.add_argument("--targets", default=DEFAULT_TARGETS, help="the fixed programs are compiled for these, and their bytes recorded")
    parser.add_argument("--compare", metavar="FILE", help="a report of another host: the same programs must have the same bytes")
    parser.add_argument("--mma-sync", action="store_true", help="sm_90a: without wgmma, tensor copies and warp roles")
    parser.add_argument("--compile-only", action="store_true", help="for a host with no GPU")
    parser.add_argument("--json", metavar="FILE", help="where the report goes; default: $OUT/gpu.json where OUT is set")
    parser.add_argument("--budget", type=float,
                        help="seconds after which the remaining cases are given up; default: 510, of --tilelang, --triton and --flaggems 400")
    parser.add_argument("--case-timeout", type=float, default=45, help="seconds for one case")
    options = parser.parse_args(arguments)
    if options.emulate and not options.triton:
        parser.error("--emulate goes with --triton")
    if options.tilelang_figures and not options.tilelang:
        parser.error("--tilelang-figures goes with --tilelang")
    options.compile_only |= options.emulate
    options.packages = os.environ.get("PYTHONPATH", "")  # as the caller has it; our processes get other ones
    options.budget = options.budget or (400 if options.tilelang or options.triton or options.flaggems else 510)
    return options


def sweep_cases(options):
    """The fixed programs for each target, compiled and compared but not run."""
    from programs import PROGRAMS

    cases = []
    for target in filter(None, options.targets.split(",")):
        for name in sorted(PROGRAMS):
            cases.append({"name": f"bytes.{name}@{target}", "family": "bytes", "builder": f"program:{name}", "arguments": {},
                          "target": target, "shape": "", "dtype": "", "bar": 0})
    return cases


def sweep_result(case, compiled, other):
    result = {"ok": compiled["ok"], "note": f"{compiled.get('bytes', 0)} bytes {compiled.get('digest', '')[:12]}"}
    if not compiled["ok"]:
        if compiled.get("unsupported"):
            return {"ok": True, "note": "unsupported: " + compiled["error"].splitlines()[0][:120]}
        return {"ok": False, "note": compiled["error"]}
    if compiled.get("reproducible") is False:
        return {"ok": False, "note": "two compiles on this host gave different bytes or keys"}
    theirs = other.get(case["name"])
    if theirs is not None and theirs != compiled["digest"]:
        return {"ok": False, "note": f"other bytes than on the other host: {compiled['digest'][:12]} and {theirs[:12]}"}
    if theirs is not None:
        result["note"] += ", the same on both hosts"
    return result


def precompiled_result(counts):
    """Of a run with a bundle: that kilnd has compiled nothing, and that it was asked."""
    case = {"name": "precompiled", "family": "precompiled", "shape": "", "dtype": "", "bar": 0}
    note = f"{counts.compiles} compiles, {counts.hits} hits of {counts.requests} requests"
    return case, {"ok": counts.compiles == 0 and counts.hits > 0, "note": note}


class Report:
    """Prints one line for each case, and gathers them."""

    def __init__(self):
        self.rows = []

    def add(self, case, result, compiled=None):
        row = {key: case.get(key) for key in ("name", "family", "shape", "dtype", "bar")}
        row.update(result)
        if compiled:
            row.update(compile_ms=compiled.get("ms"), digest=compiled.get("digest"), request_key=compiled.get("request_key"))
        self.rows.append(row)
        error, bar = row.get("error"), row["bar"]
        figures = "" if error is None else f"error {error:.2e} bar {bar:.0e}" if case["family"] != "overhead" else f"{error:.2f} bar {bar:.2f}"
        compile_ms = "" if row.get("compile_ms") is None else f"compile {row['compile_ms']:.0f} ms"
        kernel = "" if row.get("us") is None else f"{row['us']:.1f} µs"
        note = str(row.get("note", ""))
        lines = note.splitlines() or [""]
        what = f"{row['name']:<18} {row['shape']}"
        print(f"{what:<52} {row['dtype']:<14} {figures:<28} {'ok' if row['ok'] else 'FAIL':<4} {compile_ms:<15} {kernel:<11} "
              f"{lines[0]}".rstrip(), flush=True)
        if not row["ok"]:
            for line in lines[1:12]:
                print(f"    {line}", flush=True)

    @property
    def failures(self):
        return [row for row in self.rows if not row["ok"]]


def run_all(options, place, report, start):
    """With the daemon up: `place` is the unpacked bundle or build, with its environment."""
    import compiling
    import device_worker
    import plan
    import scripts
    from plan import selected
    from runner import Runner

    deadline = start + options.budget
    target = place.device_target(options)
    cases = [c for c in plan.plan(options.seed, options.count) if selected(c, options.only)] if target else []
    sweep = [c for c in sweep_cases(options) if selected(c, options.only)]
    runner = Runner(options, place, deadline) if cases else None
    folder = place.scratch / "artifacts"
    folder.mkdir()
    common = {"folder": str(folder), "timeout": 120, "mma_sync": options.mma_sync}
    jobs = [{"builder": c["builder"], "arguments": c["arguments"], "target": c.get("target", target), **common,
             "refresh": c["family"] == "bytes" and not options.precompiled} for c in cases + sweep]
    print(f"# compiling {len(jobs)} programs", flush=True)
    compiled = compiling.compile_all(jobs, min(deadline - 60, time.monotonic() + 200))

    def of(case):
        return compiled[compiling.program_key(case["builder"], case["arguments"], case.get("target", target))]

    print(f"# compiled after {time.monotonic() - start:.0f} s", flush=True)
    if target:
        for case, result in device_worker.results(place, options.only):
            report.add(case, result)
    other = {}
    if options.compare:
        other = {row["name"]: row["digest"] for row in json.loads(pathlib.Path(options.compare).read_text())["cases"] if row.get("digest")}
    for case in sweep:
        report.add(case, sweep_result(case, of(case), other), of(case))
    for case in cases:
        if not of(case)["ok"]:
            report.add(case, {"ok": False, "note": "does not compile: " + of(case)["error"]}, of(case))
    if runner:
        for case, result in runner.run([{**c, "artifact": of(c)["path"]} for c in cases if of(c)["ok"]]):
            report.add(case, result, of(case))
    if options.scripts:
        for case, result in scripts.results(place, options.scripts, options.only):
            report.add(case, result)
    if options.precompiled:
        report.add(*precompiled_result(place.counts()))


def run_tilelang(options, place, start) -> dict:
    """TileLang's own tests and scripts. Gives what the report says of them."""
    import corpus
    import corpus_figures

    environment = dict(place.script_environment)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), options.packages)))
    shared = {"only": options.only, "limit": options.tilelang_limit, "deadline": start + options.budget}
    place_of = (options.tilelang, environment, place.scratch / "tilelang", corpus.Expected())
    if options.tilelang_figures:
        found = corpus_figures.Figures(*place_of, most=options.tilelang_figures, **shared)
        found.run()
        print(corpus_figures.table(found.report()), flush=True)
    else:
        found = corpus.Corpus(*place_of, parallel=options.tilelang_parallel, **shared)
        found.run()
        print(corpus.table(found.report()), flush=True)
    return found.report()


def run_triton(options, place, start) -> dict:
    """Triton's own tutorials and tests, likewise."""
    import corpus
    import corpus_triton

    environment = {**place.script_environment, "PYTHONPATH": os.pathsep.join([str(place.root / "python"), str(place.root / "python-compat-triton")])}
    if options.emulate:
        environment = corpus_triton.emulated(environment, options.packages)
    found = corpus_triton.TritonCorpus(options.triton, environment, place.scratch / "triton", corpus.Expected(corpus_triton.EXPECTED),
                                       most=options.triton_most or 24, seed=options.seed, only=options.only, parallel=options.tilelang_parallel,
                                       limit=options.budget if options.emulate else options.tilelang_limit, deadline=start + options.budget,
                                       together=options.emulate)
    found.run()
    print(corpus.table(found.report()), flush=True)
    return found.report()


def run_flaggems(options, place, start) -> dict:
    """FlagGems' own tests. None is expected to pass by name: what counts is how many functions do."""
    import corpus
    import corpus_flaggems
    from kernels_corpora import NothingExpected

    environment = {**place.script_environment, "PYTHONPATH": os.pathsep.join(
        filter(None, [str(place.root / "python"), str(place.root / "python-compat-triton"), options.packages]))}
    found = corpus_flaggems.FlagGemsCorpus(options.flaggems, environment, place.scratch / "flaggems", NothingExpected(),
                                           most=options.triton_most or 6, seed=options.seed, only=options.only, parallel=options.tilelang_parallel,
                                           limit=options.tilelang_limit, deadline=start + options.budget)
    found.run()
    report = found.report()
    print(corpus.table(report), flush=True)
    functions = report["functions"]
    passed, ran = functions.get("passed", 0), sum(functions.values()) - functions.get("skipped", 0)
    return {**report, "regressions": [] if 0 < 0.9 * ran <= passed else ["fewer than nine of ten test functions pass"]}


def bless(options) -> int:
    import corpus
    import corpus_triton

    path = corpus_triton.EXPECTED if options.triton_bless else corpus.EXPECTED
    print(f"# {corpus.bless(options.triton_bless or options.tilelang_bless, path)} cases are expected to pass")
    return 0


def main():
    options = parse(sys.argv[1:])
    if options.tilelang_bless or options.triton_bless:
        return bless(options)
    start = time.monotonic()
    options.seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kiln-gpu-"))
    from daemon import Place

    report, place, failure, corpus = Report(), None, None, {}
    try:
        served = ("--bundle", options.precompiled, "--trusted-keys", f"{options.precompiled}.keys") if options.precompiled else ()
        place = Place(options, scratch, ptxas=options.ptxas, kilnd=served)
        place.start()
        print(f"# seed {options.seed}; {place.description(options)}", flush=True)
        if options.tilelang:
            corpus = run_tilelang(options, place, start)
        elif options.triton:
            corpus = run_triton(options, place, start)
        elif options.flaggems:
            corpus = run_flaggems(options, place, start)
        else:
            run_all(options, place, report, start)
    except Exception as problem:  # what was found so far is still written
        failure = f"{type(problem).__name__}: {problem}"
        print(f"FAIL {failure}", flush=True)
    finally:
        if place:
            place.stop()
    seconds = time.monotonic() - start
    where = options.json or (str(pathlib.Path(os.environ["OUT"]) / "gpu.json") if os.environ.get("OUT") else None)
    if where:
        document = {"seed": options.seed, "host": platform.node(), "seconds": round(seconds, 1), "failure": failure,
                    "place": place.facts if place else {}, "cases": report.rows, **corpus}
        pathlib.Path(where).write_text(json.dumps(document, indent=1))
    shutil.rmtree(scratch, ignore_errors=True)
    if options.tilelang or options.triton or options.flaggems:
        print(f"# {seconds:.0f} s")
        return 1 if failure or corpus["regressions"] or not corpus["rows"] else 0
    print(f"# {len(report.rows) - len(report.failures)} ok, {len(report.failures)} failed, {seconds:.0f} s, seed {options.seed}")
    return 1 if failure or report.failures or not report.rows else 0


if __name__ == "__main__":
    sys.exit(main())
