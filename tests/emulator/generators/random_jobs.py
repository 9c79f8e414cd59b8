# SPDX-License-Identifier: Apache-2.0
"""Random programs in several processes: each takes every n-th seed and tells line by line what it does. One that ends before it is through
is begun again behind the program that it had under way, which counts as "stopped"."""

import json
import subprocess
import sys
import threading
import time

from random_tally import Tally

MARK = "\x1e"  # in front of what is for the parent process


def tell(**words):
    print(MARK + json.dumps(words), flush=True)


class Part:
    """One process at a time, for the seeds from ``first`` on, ``step`` apart."""

    def __init__(self, command, first, step, end):
        self.command, self.first, self.step, self.end, self.tally, self.done = command, first, step, end, Tally(), False
        self.under_way = None

    def run(self):
        while not self.done:
            began = self.under_way
            self._once()
            if not self.done and self.under_way == began:
                print(f"a process for the seeds from {self.first} on ends before its first program", flush=True)
                self.tally.add("none", "none", "stopped", None, ())
                return

    def _once(self):
        left = str(max(0.0, self.end - time.monotonic()))
        part = ["--seed", str(self.first), "--step", str(self.step), "--seconds", left, "--tell"]
        process = subprocess.Popen([sys.executable, *self.command, *part], stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.startswith(MARK):
                self._heard(json.loads(line[len(MARK):]))
            else:
                print(line, end="", flush=True)
        status = process.wait()
        if self.done or self.under_way is None:
            return
        generator, seed = self.under_way
        print(f"{generator} {seed}: the process ended with {status}", flush=True)
        self.tally.add(generator, "?", "stopped", None, ())
        self.first = seed + self.step

    def _heard(self, words):
        if "begin" in words:
            self.under_way = tuple(words["begin"])
        if "counts" in words:  # since the last time
            self.tally.merge(Tally(words["counts"]))
        self.done |= "done" in words


def in_parts(command, seed, count, jobs, seconds=float("inf")):
    """The tally of all."""
    end = time.monotonic() + seconds
    parts = [Part([*command, "--count", str(count), "--origin", str(seed)], seed + part, jobs, end) for part in range(jobs)]
    threads = [threading.Thread(target=part.run) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = Tally()
    for part in parts:
        total.merge(part.tally)
    return total
