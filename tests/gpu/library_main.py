# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of kiln.library on this machine's GPU, through the bundle's daemon."""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/gpu/library", description=__doc__)
    parser.add_argument("--bundle", help="the archive to test; default: the newest dist/kiln-*.tar.*")
    parser.add_argument("--build", help="a build folder instead of a bundle")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="cases whose name or family matches this glob or contains it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="where the report goes; default: $OUT/library.json where OUT is set")
    parser.add_argument("--budget", type=float, default=510, help="seconds after which no further case is begun")
    return parser.parse_args(arguments)


def run_cases(options, results):
    import torch
    from plan import selected

    import library_cases
    import library_torch_cases

    deadline = time.monotonic() + options.budget
    cases = [case for module in (library_cases, library_torch_cases) for case in module.cases()]
    for name, family, call in cases:
        if not selected({"name": name, "family": family}, options.only):
            continue
        if time.monotonic() > deadline:
            results.append({"name": name, "ok": False, "note": "not run: the time was over"})
            continue
        torch.manual_seed(options.seed)
        begin = time.monotonic()
        try:
            note = call() or ""
            torch.cuda.synchronize()
            results.append({"name": name, "ok": True, "note": note})
        except Exception as problem:  # each case's failure is its own
            where = traceback.extract_tb(problem.__traceback__)[-1]
            results.append({"name": name, "ok": False,
                            "note": f"{type(problem).__name__}: {problem}"[:1500] + f" ({where.filename}:{where.lineno})"})
        result = results[-1]
        print(f"{name:<52} {'ok' if result['ok'] else 'FAIL':<5} {time.monotonic() - begin:6.1f} s  "
              f"{result['note'] if result['ok'] else ''}".rstrip(), flush=True)
        if not result["ok"]:
            print("    " + result["note"].replace("\n", "\n    "), flush=True)


def main():
    options = parse(sys.argv[1:])
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kiln-library-"))
    from daemon import Place

    options.compile_only = False
    place, results = None, []
    try:
        place = Place(options, scratch)
        place.start()
        print(f"# {place.description(options)}", flush=True)
        run_cases(options, results)
    finally:
        if place:
            place.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    where = options.json or (str(pathlib.Path(os.environ["OUT"]) / "library.json") if os.environ.get("OUT") else None)
    if where:
        pathlib.Path(where).write_text(json.dumps({"place": place.facts, "cases": results}, indent=1))
    failed = sum(not result["ok"] for result in results)
    print(f"# {len(results) - failed} ok, {failed} failed")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
