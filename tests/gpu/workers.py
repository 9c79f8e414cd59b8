# SPDX-License-Identifier: Apache-2.0
"""Processes that each hold one package called ``triton``, and do what they are asked by lines of JSON."""

import collections
import json
import os
import selectors
import subprocess
import sys
import time


class Worker:
    """A process with one package called ``triton``. ``asked``: what it is at, and since when. ``models``: those that it keeps."""

    def __init__(self, command: list, environment: dict, log):
        self.process = subprocess.Popen([sys.executable, "-B", *map(str, command)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=log, text=True)
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
    """Does what is asked of one package by ``command``, a script with its arguments that reads a JSON line for each case and writes one for each
    result, the first with "ready". A worker that is lost, or at a case for longer than ``limit`` seconds, costs the case that it is at. ``jobs``: the
    most workers. ``scratch``: a folder for what they print."""

    def __init__(self, command, environment, scratch, *, jobs, limit, deadline):
        self.command, self.environment, self.scratch, self.jobs, self.limit, self.deadline = command, environment, scratch, jobs, limit, deadline
        self.results, self.workers, self.selector, self.waiting = [], [], selectors.DefaultSelector(), collections.deque()
        self.package = ""

    def start(self, jobs: list) -> None:
        """The models first, each with a worker that keeps it."""
        self.waiting.extend(sorted(jobs, key=lambda job: job["kind"] != "model"))
        for _ in range(min(self.jobs, len(jobs))):
            self._more()

    def _more(self) -> None:
        log = open(self.scratch / f"worker{len(os.listdir(self.scratch))}.log", "wb")
        worker = Worker(self.command, self.environment, log)
        self.workers.append(worker)
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    def busy(self) -> bool:
        return any(worker.asked for worker in self.workers)

    def step(self) -> None:
        for key, _ in self.selector.select(0.1):
            self._read(key.data)
        for worker in list(self.workers):
            late = time.monotonic() - worker.since > self.limit
            over = time.monotonic() > self.deadline
            if worker.asked and (late or over):
                self._lost(worker, "the time was over" if over else f"not done after {self.limit:.0f} s")

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
        if asked and asked["kind"] == "start" and self.waiting:  # else one that cannot start would be started for ever
            asked = self.waiting.popleft()
        if asked and asked["kind"] != "start":
            self.results.append({**asked, "ok": False, "note": why})
        if self.waiting and time.monotonic() < self.deadline:
            self._more()

    def rest(self) -> list:
        """What nobody began."""
        return [{**job, "ok": False, "note": "the time was over"} for job in self.waiting]

    def open(self) -> None:
        """A worker that waits for one()."""
        self._more()

    def one(self, job: dict, worker=None) -> dict:
        """The result of a job that runs while this pool does nothing else. ``worker``: who does it; default: the one there is, or a new one."""
        before = len(self.results)
        self.waiting.clear()
        if worker is None and self.workers:
            worker = self.workers[0]
        if worker is not None and worker.asked is None:
            worker.ask(job)
        else:
            self.waiting.append(job)
            if worker is None:
                self._more()
        while len(self.results) == before and self.workers:
            self.step()
        self.waiting.clear()
        return self.results[-1] if len(self.results) > before else {**job, "ok": False, "note": "no worker has started"}

    def end(self) -> None:
        for worker in self.workers:
            worker.end()
