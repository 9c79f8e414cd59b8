# SPDX-License-Identifier: Apache-2.0
"""The second half of deploy/demo: example kernels for four GPUs through the daemon, then on the GPU of this machine, or emulated."""

import sys
import time
import warnings

import numpy as np

import kiln
from kiln.examples.attention import attention
from kiln.examples.programs import PROGRAMS
from kiln.library.programs.gemm import gemm
from kiln.library.programs.rms_norm import rms_norm
from kiln.library.programs.softmax import softmax
from kiln.target import device_target

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "hip:gfx1100")


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16)


def gemm_inputs(rng, size):
    return normal(rng, size, size), normal(rng, size, size), normal(rng, size)


def gemm_reference(a, b, bias):
    return np.maximum(a @ b + bias, 0.0)


def attention_inputs(rng, batch, length, heads):
    return tuple(normal(rng, batch, length, heads, 64) for _ in range(3))


def attention_reference(q, k, v, causal):
    scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(scores.shape[-2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), v)


def rms_norm_reference(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def softmax_reference(x):
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


# Program → (inputs, float64 reference). All give f16, whose bound is 2e-3.
CASES = {
    "gemm_f16_bias_relu": (lambda rng: gemm_inputs(rng, 1024), gemm_reference),
    "attention_f16": (lambda rng: attention_inputs(rng, 2, 512, 8), lambda *qkv: attention_reference(*qkv, causal=False)),
    "attention_f16_causal": (lambda rng: attention_inputs(rng, 2, 512, 8), lambda *qkv: attention_reference(*qkv, causal=True)),
    "rms_norm_f16": (lambda rng: (normal(rng, 512, 1024), normal(rng, 1024)), rms_norm_reference),
    "softmax_f16": (lambda rng: (normal(rng, 512, 1024),), softmax_reference),
}

# The same at sizes that the emulator runs in a second or two: the program, and its inputs.
EMULATED = {
    "gemm_f16_bias_relu": (lambda: gemm(256, 256, 256, bias=True, activation="relu"), lambda rng: gemm_inputs(rng, 256)),
    "attention_f16": (lambda: attention(1, 2, 256, 64), lambda rng: attention_inputs(rng, 1, 256, 2)),
    "attention_f16_causal": (lambda: attention(1, 2, 256, 64, causal=True), lambda rng: attention_inputs(rng, 1, 256, 2)),
    "rms_norm_f16": (lambda: rms_norm(32, 1024), lambda rng: (normal(rng, 32, 1024), normal(rng, 1024))),
    "softmax_f16": (lambda: softmax(32, 1024), lambda rng: (normal(rng, 32, 1024),)),
}
EMULATED_TARGETS = ("emu:sm_90a", "emu:gfx942")
BOUND = 2e-3


def compile_all():
    """Prints a row for each kernel and target; how many could not be compiled."""
    print(f"{'kernel':22} {'target':13} {'bytes':>7} {'registers':>9} {'spilled':>8} {'time':>10}  {'from'}")
    hits = compiled = failed = 0
    for name in CASES:
        function = PROGRAMS[name]()
        for target in TARGETS:
            start = time.perf_counter()
            try:
                kernel = kiln.compile(function, target=target)
            except kiln.KilnError as problem:
                failed += 1
                print(f"{name:22} {target:13} failed: {str(problem).splitlines()[0]}")
                continue
            elapsed = (time.perf_counter() - start) * 1e3
            hit = kernel.origin in ("MEMORY", "DISK")
            hits += hit
            compiled += not hit
            print(f"{name:22} {target:13} {len(kernel.artifact.code):7} {known(kernel.n_regs):>9} {known(kernel.n_spills):>8} "
                  f"{elapsed:7.1f} ms  {f'hit ({kernel.origin.lower()})' if hit else 'compiled'}")
    print(f"\n{compiled} compiled, {hits} hits" + (f", {failed} failed" if failed else ""))
    return failed


def known(value):
    return "–" if value is None else value


def run_all(target, cases):
    """Prints a row for each kernel that runs; how many disagree with their reference. ``cases``: name → (program, inputs)."""
    print(f"\n{'kernel':22} {'on ' + target:20} {'relative error':>14}  bound {BOUND:g}")
    rng = np.random.default_rng()
    wrong = 0
    for name, (program, inputs) in cases.items():
        arrays, reference = inputs(rng), CASES[name][1]
        result = np.asarray(kiln.compile(program(), target=target)(*arrays), dtype=np.float64)
        expected = reference(*(a.astype(np.float64) for a in arrays))
        error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
        agrees = error <= BOUND  # false for NaN
        wrong += not agrees
        print(f"{name:22} {'':20} {error:14.2e}  {'agrees' if agrees else 'DISAGREES'}")
    return wrong


# What a newcomer may do next, from the folder of the clone; each line with what it is for.
NEXT = (
    ("export PATH=$PWD/build/release/bin:$PATH PYTHONPATH=$PWD/build/release/python", "kiln and its Python package, for this shell"),
    ("kiln serve &", "a daemon that stays; clients find it by themselves"),
    (f"{sys.executable} -m kiln.examples.dump build/demo/programs gemm_f16 rms_norm_f16_symbolic", "two of the example kernels as programs"),
    ("kiln explain build/demo/programs/gemm_f16.pb -t cuda:sm_90a", "what the compiler decides for an H100"),
    ("kiln run build/demo/programs/rms_norm_f16_symbolic.pb -t emu:sm_90a --dim M=16 --check",
     "a run on the emulator, which looks for races and the like"),
)
READ = (("clients/python/tutorial/README.md", "five steps from a first kernel to attention"), ("README.md", "everything else"))


def next_steps() -> str:
    lines = ["", "Next, in this folder:"]
    for command, purpose in NEXT:
        lines += [f"  # {purpose}", f"  {command}"]
    return "\n".join(lines + ["To read:"] + [f"  {page:36} {about}" for page, about in READ])


def main():
    warnings.simplefilter("ignore")
    problems = compile_all()
    target = device_target(0)
    if target is None:
        print("\nNo GPU is found on this machine: the emulator runs the kernels, at smaller sizes.")
        problems += sum(run_all(emulated, EMULATED) for emulated in EMULATED_TARGETS)
    else:
        problems += run_all(target, {name: (PROGRAMS[name], inputs) for name, (inputs, _) in CASES.items()})
    if problems == 0:
        print(next_steps())
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
