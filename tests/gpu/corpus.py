# SPDX-License-Identifier: Apache-2.0
"""TileLang's own tests and scripts, unchanged, through the package that takes its name: each file in a process of its own, many at once.
tilelang_expected.json says which of them are not applicable, and which passed before; one of those that does not pass fails the run."""

import ast
import collections
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "tilelang_expected.json"
LOST = 3  # as in corpus_plugin.py
KEPT = 60  # seconds at the end for what ran out of memory beside others


class Expected:
    """What tilelang_expected.json says: for each file, names of tests, or "" for a script. Where they are not applicable, both are globs over
    the names without their parameters."""

    def __init__(self, path=EXPECTED):
        self.document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.rules = [(case, row["reason"]) for row in self.document["not_applicable"] for case in _cases(row["cases"])]
        self.passed = set(_cases(self.document["passed"]))

    def not_applicable(self, case: str) -> str | None:
        """Why, or None."""
        name = case.split("[")[0]
        return next((reason for pattern, reason in self.rules if fnmatch.fnmatchcase(name, pattern)), None)


def _cases(files: dict) -> list[str]:
    return [f"{file}::{name}" if name else file for file, names in files.items() for name in names]


def bless(report: str, path=EXPECTED) -> int:
    """What passed in a report is expected from now on; what it did not run stays. Returns how many there are."""
    document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    rows = json.loads(pathlib.Path(report).read_text(encoding="utf-8"))["rows"]
    ran = {row["case"] for row in rows}
    passed = {row["case"] for row in rows if row["outcome"] == "passed"} | {case for case in Expected(path).passed if case not in ran}
    files = collections.defaultdict(list)
    for case in sorted(passed):
        file, _, name = case.partition("::")
        files[file].append(name)
    document["passed"] = files
    write(document, path)
    return len(passed)


def write(document: dict, path=EXPECTED) -> None:
    """One line for each file, so that a change is read in a diff."""
    rows = [f' {{"reason": {json.dumps(row["reason"])}, "cases": {_lines(row["cases"])}}}' for row in document["not_applicable"]]
    text = f'{{"commit": {json.dumps(document["commit"])},\n"not_applicable": [\n' + ",\n".join(rows)
    pathlib.Path(path).write_text(f'{text}],\n"passed": {_lines(document["passed"])}}}\n', encoding="utf-8")


def _lines(files: dict) -> str:
    return "{" + ",".join(f"\n  {json.dumps(file)}: {json.dumps(names)}" for file, names in sorted(files.items())) + "}"


def _tests_in(path) -> list[str]:
    """Names of the test functions of a file that cannot be collected."""
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            found.append(node.name)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found += [f"{node.name}::{n.name}" for n in node.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test")]
    return found


def is_program(path) -> bool:
    return not path.name.startswith(("test_", "conftest")) and "__main__" in path.read_text(encoding="utf-8", errors="replace")


class Job:
    """One file: a script, or tests."""

    def __init__(self, root, path, left_out=(), only=None):
        self.root, self.path, self.name = root, path, str(path.relative_to(root))
        self.left_out, self.only = set(left_out), only
        self.is_script = not path.name.startswith("test_")
        self.process = None

    def cases(self) -> list[str]:
        """What it was to run, without parameters where it has not told."""
        if self.is_script:
            return [self.name]
        return list(self.only) if self.only else [f"{self.name}::{test}" for test in _tests_in(self.path)]

    def start(self, scratch, environment):
        folder = scratch / f"job{time.monotonic_ns()}"
        folder.mkdir(parents=True)
        self.log, self.lines = folder / "log", folder / "lines"
        self.lines.touch()
        (folder / "left_out").write_text(json.dumps(sorted(self.left_out)))
        environment = {**environment, "KILN_CORPUS_LINES": str(self.lines), "KILN_CORPUS_LEFT_OUT": str(folder / "left_out"),
                       "TILELANG_CACHE_DIR": str(folder / "cache"), "MPLBACKEND": "Agg"}
        if self.is_script:
            command = [sys.executable, str(self.path)]
        else:
            # -P: else the checkout, where it runs, comes before our package.
            environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(HERE)])
            command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "corpus_plugin", "-p", "no:cacheprovider",
                       "--rootdir", str(self.root), *(str(self.root / case) for case in self.only or [self.name])]
        self.begin = time.monotonic()
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(command, cwd=self.path.parent if self.is_script else self.root, env=environment,
                                            stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def last_error(self) -> str:
        lines = [re.sub(r"\s+", " ", line).strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit|Interrupt|Failed)\b", line)]
        return (errors or lines or [""])[-1]

    def read(self) -> list[dict]:
        return [json.loads(line) for line in self.lines.read_text(encoding="utf-8").splitlines()]


class Corpus:
    """Runs files, ``parallel`` at a time, until ``deadline``; ``rows`` gathers a dict for each case."""

    def __init__(self, root, environment, scratch, expected, *, only="*", parallel=16, limit=120, deadline=400.0):
        self.root, self.environment, self.scratch = pathlib.Path(root).resolve(), environment, scratch
        self.expected, self.only, self.parallel, self.limit, self.deadline = expected, only, parallel, limit, deadline
        self.rows = {}

    def files(self) -> list:
        """Examples first: these take longest."""
        found = sorted(self.root.glob("examples/**/test_*.py")) + sorted(p for p in self.root.glob("examples/**/*.py") if is_program(p))
        return found + sorted(self.root.glob("testing/python/**/test_*.py"))

    def jobs(self, path, reasons: dict) -> list:
        """How a file is run. ``reasons``: of its cases, why each is not applicable, or None."""
        return [Job(self.root, path, [case for case, reason in reasons.items() if reason])]

    def _selected(self, case: str) -> bool:
        return fnmatch.fnmatchcase(case, self.only) or self.only in case

    def _add(self, case, outcome, error="", seconds=0.0):
        if self._selected(case):
            self.rows[case] = {"case": case, "outcome": outcome, "error": re.sub(r"\s+", " ", error).strip()[:500], "seconds": seconds}

    def run(self):
        waiting = []
        for path in self.files():
            name = str(path.relative_to(self.root))
            cases = [f"{name}::{test}" for test in _tests_in(path)] if path.name.startswith("test_") else [name]
            reasons = {case: self.expected.not_applicable(case) for case in cases}
            if all(reasons.values()):
                for case, reason in reasons.items():
                    self._add(case, "not_applicable", reason)
            elif any(self._selected(case) for case in cases):
                waiting += self.jobs(path, reasons)
        self._drain(waiting, self.parallel, self.deadline - KEPT)
        again = [row["case"] for row in self.rows.values() if row["outcome"] == "failed" and "out of memory" in row["error"].lower()]
        jobs = collections.defaultdict(list)
        for case in again:
            jobs[case.split("::")[0]].append(case)
        self._drain([Job(self.root, self.root / file, only=cases if "::" in cases[0] else None) for file, cases in jobs.items()], 1,
                    self.deadline)

    def _drain(self, waiting, parallel, deadline):
        waiting, running = collections.deque(waiting), []
        while waiting or running:
            over = time.monotonic() > deadline
            while waiting and len(running) < parallel and not over:
                job = waiting.popleft()
                job.start(self.scratch, self.environment)
                running.append(job)
            for job in list(running):
                late = over or job.seconds() > self.limit
                if job.process.poll() is None and not late:
                    continue
                running.remove(job)
                late = late and job.process.poll() is None
                job.end()
                waiting.extend(self._finished(job, late, over))
            if over:
                for job in waiting:
                    cases = job.cases()
                    for case in cases:
                        if not any(row == case or row.startswith(case + "[") for row in self.rows):
                            self._add(case, "not_run", "the time was over")
                return
            time.sleep(0.05)

    def _finished(self, job, late, over) -> list:
        """Takes the results of a job; returns the job that goes on where its process was lost."""
        status = job.process.returncode
        lost = f"not done after {job.seconds():.0f} s" if late else f"the process ended with status {status}: {job.last_error()}"
        if job.is_script:
            ok = status == 0 and not late
            self._add(job.name, "passed" if ok else "failed", "" if ok else lost if late or status < 0 else job.last_error(),
                      round(job.seconds(), 1))
            return []
        collected, started, done = [], None, set()
        for line in job.read():
            if "collected" in line:
                collected = line["collected"]
            elif "started" in line:
                started = line["started"]
            elif "file" in line:
                for case in job.cases():
                    self._outcome(case, line["outcome"], line["error"], 0.0)
                return []
            else:
                done.add(line["id"])
                self._outcome(line["id"], line["outcome"], line["error"], line["seconds"])
        for case in collected:
            if self.expected.not_applicable(case):
                self._add(case, "not_applicable", self.expected.not_applicable(case))
        left = [case for case in collected if case not in done and not {case, case.split("[")[0]} & job.left_out]
        if not collected:
            for case in job.cases():
                self._outcome(case, "failed", lost, 0.0)
            return []
        if started in left and status != LOST:
            left.remove(started)
            self._outcome(started, "failed", lost, round(job.seconds(), 1))
        left = [case for case in left if self._selected(case)]
        if not left or over or not done and started is None:
            for case in left:
                self._add(case, "not_run", "the time was over" if over else lost)
            return []
        return [Job(self.root, job.path, [case for case in collected if case not in left], job.only)]

    def _outcome(self, case, outcome, error, seconds):
        reason = self.expected.not_applicable(case)
        before = self.rows.get(case)
        if reason:
            self._add(case, "not_applicable", reason)
        elif before is None or before["outcome"] != "failed" or "out of memory" in before["error"].lower():
            self._add(case, outcome, error, seconds)

    def report(self) -> dict:
        """Totals, the errors with what fails by them, and what passed before and does not now."""
        rows = sorted(self.rows.values(), key=lambda row: row["case"])
        totals = {kind: dict(collections.Counter(row["outcome"] for row in rows if ("::" in row["case"]) == (kind == "tests")))
                  for kind in ("tests", "scripts")}
        groups = collections.defaultdict(list)
        for row in rows:
            if row["outcome"] in ("failed", "not_run"):
                groups[re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "N", row["error"])[:160]].append(row["case"])
        ran = {row["case"]: row["outcome"] for row in rows}
        lost = sorted(case for case in self.expected.passed if case in ran and ran[case] != "passed")
        absent = sorted(case for case in self.expected.passed if case not in ran and self._selected(case))
        new = sorted(row["case"] for row in rows if row["outcome"] == "passed" and row["case"] not in self.expected.passed)
        ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        return {"totals": totals, "errors": [{"error": error, "cases": cases} for error, cases in ordered], "regressions": lost + absent,
                "new": new, "rows": rows}


def table(report: dict) -> str:
    lines = []
    for group in report["errors"]:
        first, *rest = group["cases"]
        lines.append(f"{len(group['cases']):>4}  {group['error'][:110]:<110}  {first}" + (f" and {len(rest)} more" if rest else ""))
    for kind, counts in report["totals"].items():
        lines.append(f"# {kind}: " + ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in sorted(counts.items())))
    if "functions" in report:
        lines.append("# test functions: " + ", ".join(f"{count} {kind}" for kind, count in sorted(report["functions"].items())))
    errors = {row["case"]: row["error"] for row in report["rows"]}
    lines += [f"FAIL {case} passed before: {errors.get(case, 'it is gone')}" for case in report["regressions"]]
    lines.append(f"# {len(report['new'])} pass that the file of expectations does not have (--tilelang-bless or --triton-bless REPORT takes "
                 f"them in), "
                 f"{len(report['regressions'])} that it has do not")
    return "\n".join(lines)
