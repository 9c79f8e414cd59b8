# SPDX-License-Identifier: Apache-2.0
"""Runs a random tile program on the emulator and with numpy, and says where they differ."""

import importlib.util
import random
from dataclasses import dataclass
from typing import Optional

import interpreter
import numpy as np
from data import FP8, SHORT, STORED, decode, fp8_values, packed
from emulated import Stopped
from random_edges import RandomEdges
from random_facts import RandomFacts
from random_kernels import RandomKernels
from random_products import RandomProduct
from random_ranges import RandomRanges
from random_short import RandomShort
from random_tally import refusal
from random_text import PLACES
from random_threads import RandomThreads
from random_tiles import RandomTiles

GENERATORS = {"tiles": RandomTiles, "products": RandomProduct, "threads": RandomThreads, "kernels": RandomKernels,
              "edges": RandomEdges, "ranges": RandomRanges, "short": RandomShort, "facts": RandomFacts}
TARGETS = ("emu:sm_90a", "emu:sm_90a", "emu:sm_80", "emu:sm_75", "emu:gfx942", "emu:gfx90a", "emu:gfx1100")
PTX = ("cuda:sm_90a", "cuda:sm_80", "cuda:sm_75")  # whose PTX tests/ptx runs
STORAGE = {**STORED, "bool": np.bool_, "int16": np.int16, "uint16": np.uint16, "uint32": np.uint32, "int64": np.int64, "uint64": np.uint64}
MARK = 3  # what outputs hold before
ANOTHER_WAY = "cannot be moved by tensor copies (TMA)"  # an empty tensor; kiln.Kernel compiles once more, as we do


@dataclass
class Outcome:
    target: str
    kind: str  # "right", "refused" for a reason of random_tally, or what is wrong: "wrong", "finding", "error", "stopped"
    text: str = ""
    reason: Optional[str] = None  # why it is refused

    @property
    def good(self):
        return self.kind in ("right", "refused")


class Trial:
    """One seed of one generator: its program and what it computes."""

    def __init__(self, generator, seed, place):
        self.text = GENERATORS[generator](seed)
        self.source = self.text.build()
        self.path = place / f"{generator}_{seed}.py"
        self.path.write_text(self.source)
        spec = importlib.util.spec_from_file_location(self.path.stem, self.path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.function = module.program
        self.given = values(self.text.tensors, np.random.default_rng(seed), self.text.largest)
        self.places = {i: t.inside for i, t in enumerate(self.text.tensors) if t.inside}
        for index, (base, first) in self.places.items():
            self.given[index] = self.given[base].reshape(-1)[first : first + self.given[index].size].reshape(self.given[index].shape)
        self.seed = seed

    def expected(self):
        """Every tensor after the program."""
        run = interpreter.Interpreter(self.function, self.given, (), self.places)
        run.run()
        return [np.asarray(run.memory[param.buffer], np.float64) for param in self.function.params]

    def run(self, emulator, target, expected, **keys):
        tensors, keys = self.text.tensors, {**keys, "places": self.places}
        arguments = [(stored(array, t.dtype), "uint8" if t.dtype in SHORT else t.dtype) for array, t in zip(self.given, tensors)]
        module = emulator.module(self.function.serialized)
        keys = {"seed": self.seed % 997, "check": 1, "alignment": self.text.alignment, **keys}
        try:
            after, answer = emulator.call(module, target, arguments, **keys)
            if ANOTHER_WAY in answer.get("error", ""):
                after, answer = emulator.call(module, target, arguments, **{**keys, "alignment": min(8, self.text.alignment or 8)})
        except Stopped as stopped:
            return Outcome(target, "stopped", str(stopped))
        if "error" in answer:
            reason = refusal(answer["error"])
            return Outcome(target, "refused" if reason else "error", answer["error"], reason)
        if answer["findings"] or not answer["finished"]:
            return Outcome(target, "finding", "; ".join(finding["message"] for finding in answer["findings"]) or "it did not finish")
        wrong = [difference(t, decode(array, t.dtype), reference) for t, array, reference in zip(tensors, after, expected)]
        return Outcome(target, "wrong" if any(wrong) else "right", "; ".join(filter(None, wrong)))


def target_of(seed, targets=TARGETS):
    return random.Random(seed).choice(targets)


def options_of(seed):
    which = random.Random(~seed).random()
    return {"wgmma": 0} if which < 0.1 else {"stream_k": 2} if which < 0.4 else {}


def values(tensors, rng, largest):
    arrays = []
    for tensor in tensors:
        if tensor.start in PLACES:
            arrays.append(places(tensor, rng))
            continue
        least = 0 if tensor.dtype.startswith("u") else -largest
        array = rng.integers(least, largest + 1, tensor.shape).astype(np.float64)
        arrays.append({"values": array, "zero": array * 0, "marks": array * 0 + MARK}[tensor.start])
    return arrays


def places(tensor, rng):
    """Metadata of a sparse matrix."""
    bits = 8 * STORAGE[tensor.dtype](0).itemsize
    fours = rng.choice(PLACES[tensor.start], (*tensor.shape, bits // 4)).astype(np.uint32)
    words = (fours << 4 * np.arange(bits // 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return words.astype(f"uint{bits}").view(STORAGE[tensor.dtype]).astype(np.float64)


def stored(array, dtype):
    """Small integers as the dtype has them in memory."""
    if dtype == "bfloat16":
        return (np.array(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype in SHORT:
        return packed(array, dtype)
    if dtype in FP8:
        codes = {float(value): bits for bits, value in reversed(list(enumerate(fp8_values(dtype)))) if not np.isnan(value)}
        return np.vectorize(codes.__getitem__, otypes=[np.uint8])(array) if array.size else np.zeros(array.shape, np.uint8)
    return array.astype(STORAGE[dtype])


def difference(tensor, result, reference):
    places = np.argwhere(result != reference) if result.shape == reference.shape else np.zeros((1, result.ndim), int)
    if not len(places):
        return ""
    at = tuple(places[0])
    return (f"{tensor.name} {tensor.dtype}{list(tensor.shape)}: {len(places)} elements differ, the first at {list(map(int, at))}: "
            f"{result[at]} instead of {reference[at]}")
