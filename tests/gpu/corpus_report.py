#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A report of tests/gpu/run --tilelang as Markdown: what passes, what does not and why, what does not apply.

  tests/gpu/corpus_report.py REPORT.json            prints it
  tests/gpu/corpus_report.py REPORT.json --write    puts it into TILELANG.md"""

import collections
import json
import pathlib
import re
import sys

OUTCOMES = ("passed", "failed", "not_run", "skipped", "not_applicable")
WORST = ("failed", "not_run", "passed", "skipped", "not_applicable")  # of a function's cases, the one that tells


def is_test(case: str) -> bool:
    return "::" in case


def functions(rows) -> dict:
    """The outcome of each test function: it passes where one of its cases does and none fails."""
    outcomes = collections.defaultdict(set)
    for row in rows:
        if is_test(row["case"]):
            outcomes[row["case"].split("[")[0]].add(row["outcome"])
    return {name: next(outcome for outcome in WORST if outcome in found) for name, found in outcomes.items()}


def counts(outcomes) -> list:
    """How many there are of each outcome, and what part of those that apply and find their hardware passes."""
    count = collections.Counter(outcomes)
    asked = sum(count[o] for o in ("passed", "failed", "not_run"))
    return [*(count[o] for o in OUTCOMES), f"{100 * count['passed'] / asked:.1f} %" if asked else ""]


def table(header, rows):
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"


HEADER = ["", "pass", "fail", "not run", "skipped by hardware", "not applicable", "of those that apply"]


def totals(rows):
    tests = [row for row in rows if is_test(row["case"])]
    yield from table(HEADER, [
        ["test functions", *counts(functions(rows).values())],
        ["their cases", *counts(row["outcome"] for row in tests)],
        ["scripts", *counts(row["outcome"] for row in rows if not is_test(row["case"]))],
    ])


def folder(case: str) -> str:
    """examples/NAME, or testing/python/NAME."""
    parts = case.split("::")[0].split("/")
    return "/".join(parts[: 3 if parts[0] == "testing" else 2] if len(parts) > 2 else parts[:1])


def folders(rows):
    """Of each folder, its functions and scripts."""
    outcomes = {**functions(rows), **{row["case"]: row["outcome"] for row in rows if not is_test(row["case"])}}
    of = collections.defaultdict(list)
    for case, outcome in outcomes.items():
        of[folder(case)].append(outcome)
    yield from table(HEADER, [[name, *counts(found)] for name, found in sorted(of.items()) if set(found) != {"not_applicable"}])


def shortened(error: str) -> str:
    """Without the place where the report's machine keeps its files."""
    return re.sub(r"(?:/[\w.+-]+)+/(?=[\w.-]+)", "", error)[:200].replace("`", "'")


def failures(report):
    yield from table(["why", "what"], [[f"`{shortened(group['error'])}`", ", ".join(group["cases"])] for group in report["errors"]])


def exempt(rows):
    """What does not apply, by reason."""
    reasons = collections.defaultdict(lambda: [set(), set()])
    for row in rows:
        if row["outcome"] == "not_applicable":
            reasons[row["error"]][0 if is_test(row["case"]) else 1].add(row["case"].split("[")[0])
    found = sorted(reasons.items(), key=lambda item: (-sum(map(len, item[1])), item[0]))
    yield from table(["not applicable, because they", "test functions", "scripts"],
                     [[reason, len(tests) or "", len(scripts) or ""] for reason, (tests, scripts) in found])


def markdown(report) -> str:
    devices = report.get("place", {}).get("devices") or [{}]
    of = f"{devices[0].get('name', 'no GPU')}, driver CUDA {devices[0].get('driver_version', '')}, {report['seconds']:.0f} s"
    rows = report["rows"]
    return "\n".join([of, "", *totals(rows), "", "What does not pass:", "", *failures(report), "", *exempt(rows), "",
                      "<details><summary>Every folder, functions and scripts</summary>", "", *folders(rows), "", "</details>"])


def main(arguments):
    if not arguments or arguments[1:] not in ([], ["--write"]):
        return __doc__
    text = markdown(json.loads(pathlib.Path(arguments[0]).read_text(encoding="utf-8")))
    if not arguments[1:]:
        print(text)
        return 0
    here = pathlib.Path(__file__).resolve().parent
    sys.path.insert(0, str(here.parent / "docs"))
    from parts import write

    write(here / "TILELANG.md", "corpus", text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
