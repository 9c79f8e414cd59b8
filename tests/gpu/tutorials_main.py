# SPDX-License-Identifier: Apache-2.0
"""The coordinator of tests/gpu/tutorials. Both packages compile and tune, many cases at once. Then each case is tuned and timed with the one and with
the other, while nothing else runs."""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time

from workers import Pool

HERE = pathlib.Path(__file__).resolve().parent


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/gpu/tutorials", description=__doc__)
    parser.add_argument("--triton", metavar="DIR", required=True, help="a checkout of Triton")
    parser.add_argument("--seed", metavar="FILE", help="the sparse latent attention in TLE")
    parser.add_argument("--bundle", help="the archive to test; default: the newest dist/kiln-*.tar.*")
    parser.add_argument("--build", help="a build folder instead of a bundle")
    parser.add_argument("--ptxas", help="as of tests/gpu/run")
    parser.add_argument("--only", metavar="PATTERNS", default="*", help="cases whose name matches or contains one of these globs (a,b)")
    parser.add_argument("--jobs", type=int, default=8, metavar="N", help="processes of each package that compile")
    parser.add_argument("--budget", type=float, default=300, metavar="SECONDS")
    parser.add_argument("--json", metavar="FILE", help="where the report goes; default: $OUT/tutorials.json where OUT is set")
    options = parser.parse_args(arguments)
    options.compile_only = False
    options.packages = os.environ.get("PYTHONPATH", "")
    return options


def names(only: str, seed: bool) -> list:
    """The cases' names, from a process that has torch."""
    import subprocess

    printed = subprocess.run([sys.executable, "-c", "import tutorials_cases; print(*tutorials_cases.CASES, sep='\\n')"], cwd=HERE, check=True,
                             stdout=subprocess.PIPE, text=True).stdout
    patterns = [pattern for pattern in only.split(",") if pattern]
    return [name for name in printed.splitlines() if (seed or not name.startswith("sparse"))
            and any(fnmatch.fnmatchcase(name, pattern) or pattern in name for pattern in patterns)]


def environment(options, place, package: str) -> dict:
    folders = [HERE]
    if package == "kiln":
        folders += [place.root / "python", place.root / "python-compat-triton"]
        found = dict(place.script_environment)
    else:
        found = {**os.environ, "TRITON_CACHE_DIR": str(place.scratch / "triton")}
    found["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *filter(None, [options.packages])])
    return found | ({"KILN_TUTORIALS_SEED": options.seed} if options.seed else {})


def has(package: str, name: str) -> bool:
    """The real Triton has no TLE."""
    return package == "kiln" or not name.startswith("sparse")


def run(options, place, start) -> list:
    deadline = start + options.budget
    selected = names(options.only, bool(options.seed))

    def pool(package, jobs, until):
        folder = place.scratch / f"{package}-{time.monotonic_ns()}"
        folder.mkdir()
        command = [HERE / "tutorials_worker.py", options.triton]
        return Pool(command, environment(options, place, package), folder, jobs=jobs, limit=400, deadline=until)

    compiling = []
    for package in ("triton", "kiln"):
        compiling.append(pool(package, options.jobs, start + 0.6 * options.budget))
        first = sorted(selected, key=lambda name: re.match(r"06|03", name) is None)  # what is tuned takes longest
        compiling[-1].start([{"kind": "compile", "name": name} for name in first if has(package, name)])
    while any(found.busy() for found in compiling):
        for found in compiling:
            found.step()
    for found in compiling:
        found.end()
    print(f"# compiled after {time.monotonic() - start:.0f} s", flush=True)
    pools = {package: pool(package, 1, deadline) for package in ("triton", "kiln")}
    for found in pools.values():
        found.open()
    rows = []
    for i, name in enumerate(selected):
        row = {"name": name}
        for package in (("kiln", "triton"), ("triton", "kiln"))[i % 2]:
            if has(package, name):
                row[package] = pools[package].one({"kind": "time", "name": name})
        rows.append(row)
        show(row)
    for found in pools.values():
        found.end()
    return rows


def show(row: dict) -> None:
    kiln, triton = row["kiln"], row.get("triton", {})
    if "ms" not in kiln:
        print(f"{row['name']:<40} FAIL {kiln.get('note')}", flush=True)
        return
    rate = f"{kiln['flops'] / kiln['ms'] * 1e-9:8.1f} TFLOP/s" if "flops" in kiln else f"{kiln['copy_ms'] / kiln['ms']:8.3f} of a copy"
    other = f"{triton['ms'] / kiln['ms']:7.3f} × Triton" if "ms" in triton else f"Triton: {triton.get('note', 'has no TLE')}"
    print(f"{row['name']:<40} {kiln['ms'] * 1e3:9.1f} µs {rate} {other}", flush=True)


def main():
    options = parse(sys.argv[1:])
    start = time.monotonic()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kiln-tutorials-"))
    from daemon import Place

    place, rows, failure = None, [], None
    try:
        place = Place(options, scratch, ptxas=options.ptxas)
        place.start()
        rows = run(options, place, start)
    except Exception as problem:  # what was found so far is still written
        failure = f"{type(problem).__name__}: {problem}"
        print(f"FAIL {failure}", flush=True)
    finally:
        if place:
            place.stop()
    where = options.json or (str(pathlib.Path(os.environ["OUT"]) / "tutorials.json") if os.environ.get("OUT") else None)
    if where:
        pathlib.Path(where).write_text(json.dumps({"rows": rows, "failure": failure}, indent=1))
    shutil.rmtree(scratch, ignore_errors=True)
    bad = [row["name"] for row in rows if "ms" not in row["kiln"]]
    print(f"# {len(rows) - len(bad)} of {len(rows)} timed, {time.monotonic() - start:.0f} s")
    return 1 if failure or bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
