# SPDX-License-Identifier: Apache-2.0
"""Feeds cases to a worker process, one at a time. A worker that ends, hangs or says that its context is lost is replaced by one that
stands by; the case costs its own result alone."""

import json
import os
import pathlib
import select
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
START_LIMIT = 120  # importing torch and making a context on a cold machine


class Worker:
    def __init__(self, options, place, number):
        self.log = place.scratch / f"worker{number}.log"
        with open(self.log, "wb") as errors:
            self.process = subprocess.Popen([sys.executable, str(HERE / "worker.py"), str(options.seed)], env=place.environment,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self.buffer = b""
        self.ready = False

    def read(self, seconds):
        """The next answer; None: the process ended; False: nothing came in time."""
        end = time.monotonic() + seconds
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            if not select.select([descriptor], [], [], max(end - time.monotonic(), 0))[0]:
                return False
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return None
            self.buffer += piece
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def ask(self, case, seconds):
        if not self.ready:
            greeting = self.read(START_LIMIT)
            if not greeting:
                return greeting
            self.ready = True
        try:
            self.process.stdin.write(json.dumps(case).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self.read(seconds)

    def end(self):
        self.process.kill()
        self.process.wait()

    def last_words(self):
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-6:])


class Runner:
    def __init__(self, options, place, deadline):
        self.options, self.place, self.deadline, self.started = options, place, deadline, 0
        self.active, self.spare = self._start(), self._start()

    def _start(self):
        self.started += 1
        return Worker(self.options, self.place, self.started)

    def _replace(self):
        self.active.end()
        self.active, self.spare = self.spare, self._start()

    def run(self, cases):
        """Yields (case, result) in order."""
        try:
            for case in cases:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    yield case, {"ok": False, "note": "not run: the time was over"}
                    continue
                answer = self.active.ask(case, min(self.options.case_timeout, left))
                if answer:
                    yield case, answer
                    continue
                status = self.active.process.wait(10) if answer is None else None
                why = f"not done after {self.options.case_timeout:.0f} s" if answer is False else f"the process ended with status {status}"
                words = self.active.last_words()
                self._replace()
                # Status 3: the case before said that the context is lost, and this one was not started.
                if answer is None and status == 3:
                    answer = self.active.ask(case, self.options.case_timeout)
                yield case, answer or {"ok": False, "note": f"{why}\n{words}"}
        finally:
            self.active.end()
            self.spare.end()
