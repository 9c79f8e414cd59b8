# SPDX-License-Identifier: Apache-2.0
"""Runs programs on the emulator, in a process that answers one job after another."""

import json
import os
import pathlib
import select
import subprocess

import numpy as np
from data import GUARD, STORED, decode

BINARY = pathlib.Path(os.environ.get("KILN_BUILD", "build")) / "bin" / "kiln_emulate_jobs"


class Stopped(Exception):
    """The process ended in the middle of a job."""


class Emulator:
    """``place``: a folder for modules and arrays. ``seconds``: after which a job without an answer has hung."""

    def __init__(self, binary, place, seconds=None):
        self.binary, self.place, self.process, self.modules, self.seconds = str(binary), pathlib.Path(place), None, 0, seconds

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.process = None

    def module(self, serialized):
        """A file with this program."""
        self.modules += 1
        path = self.place / f"{self.modules}.pb"
        path.write_bytes(serialized)
        return path

    def job(self, line):
        if self.process is None:
            self.process = subprocess.Popen([self.binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], self.seconds)[0]:
            self.process.kill()
        answer = self.process.stdout.readline()
        if not answer:
            status = self.process.wait()
            self.process = None
            raise Stopped(f"the emulator ended with {status}: {line}")
        return json.loads(answer)

    def run(self, module, target, inputs, output, **keys):
        """The answer, with ``result`` (float64) and ``intact``: nothing around the output was written."""
        words = [str(module), target, *(f"{key}={value}" for key, value in keys.items())]
        for index, (array, dtype) in enumerate(inputs):
            words.append(self._tensor(f"in{index}", dtype, array.shape, array.tobytes()))
        shape, dtype = output
        element = np.dtype(STORED[dtype]).itemsize
        poison = np.full((int(np.prod(shape)) + 2 * GUARD) * element, 0xFF, np.uint8)
        words.append(self._tensor("out", dtype, shape, poison.tobytes()) + f"@{GUARD * element}")
        answer = self.job(" ".join(words))
        if "error" in answer:
            return answer
        raw = np.frombuffer((self.place / "out").read_bytes(), STORED[dtype])
        answer["result"] = decode(raw[GUARD : len(raw) - GUARD].reshape(shape), dtype)
        edges = np.concatenate([raw[:GUARD], raw[len(raw) - GUARD :]]).view(np.uint8)
        answer["intact"] = bool((edges == 0xFF).all())
        return answer

    def call(self, module, target, tensors, places=None, **keys):
        """Every parameter as it is after the run (arrays of its stored type), and the answer. ``places``: of tensors that lie in another's
        memory: their number → that one's, and the first element there."""
        words = [str(module), target, *(f"{key}={value}" for key, value in keys.items())]
        parts = {i: (i, 0) for i in range(len(tensors))} | (places or {})
        for i, (array, dtype) in enumerate(tensors):
            base, first = parts[i]
            data = "x".join(map(str, array.shape)) if base != i else None
            words.append(self._tensor(f"t{i}", dtype, array.shape, array.tobytes()) if data is None else
                         f"{dtype}:{self.place / f't{base}'}:{data}@{first * array.itemsize}")
        answer = self.job(" ".join(words))
        after = []
        for i, (array, _) in enumerate(tensors):
            base, first = parts[i]
            whole = np.frombuffer((self.place / f"t{base}").read_bytes(), array.dtype)
            after.append(whole[first : first + array.size].reshape(array.shape))
        return after, answer

    def _tensor(self, name, dtype, shape, data):
        path = self.place / name
        path.write_bytes(data)
        return f"{dtype}:{path}:{'x'.join(map(str, shape))}"


class AsPtx(Emulator):
    """Runs the PTX of the emulator's NVIDIA targets instead, which checks results alone."""

    def job(self, line):
        return super().job(line.replace(" emu:sm_", " cuda:sm_", 1))
