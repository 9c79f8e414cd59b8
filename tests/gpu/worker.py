# SPDX-License-Identifier: Apache-2.0
"""Runs cases on the device: a case as a JSON line comes in, its result as a JSON line goes out. Ends with status 3 where a case has left
the device's context unusable; the coordinator then starts another."""

import json
import os
import pathlib
import statistics
import sys
import time
import zlib

POISONED = ("ILLEGAL", "LAUNCH_FAILED", "MISALIGNED", "ASSERT", "illegal", "unspecified launch", "misaligned", "device-side assert",
            "HARDWARE_STACK", "ECC", "NOT_INITIALIZED", "CONTEXT_IS_DESTROYED")
_loaded = {}


def load(path, runtime, device):
    if path not in _loaded:
        if len(_loaded) > 64:
            _loaded.clear()
        start = time.perf_counter()
        kernel = runtime.load(pathlib.Path(path).read_bytes(), device)
        _loaded[path] = (kernel, (time.perf_counter() - start) * 1e3)
    return _loaded[path]


def launch_through_client(case, target, inputs, out):
    """As users call it."""
    import kiln
    import programs

    kernel = kiln.compile(programs.build(case["builder"], case["arguments"], target), target=target)
    kernel(*inputs, out.tensor)
    return kernel


def check(case, seed, runtime, torch, data):
    """The result's fields: error, ok, what; µs of the kernel."""
    device = torch.device("cuda", 0)
    generator = torch.Generator(device=device)
    generator.manual_seed(seed * 1_000_003 + zlib.crc32(case["name"].encode()))
    kernel, load_ms = load(case["artifact"], runtime, device.index)
    inputs, out, reference = data.MAKERS[case["data"]["kind"]](case, generator)
    result = {"load_ms": load_ms, "registers": max(r["registers"] for r in kernel.resources),
              "local_bytes": max(r["local_bytes"] for r in kernel.resources)}
    try:
        kernel(*inputs, out.tensor)
    except runtime.AlignmentError as refusal:
        result["note"] = f"compiled again for tensors at multiples of {refusal.alignment} bytes"
        kernel = launch_through_client(case, kernel.target, inputs, out).aligned_to(refusal.alignment).loaded(device.index)
    torch.cuda.synchronize()
    error = data.relative_error(out.tensor.reshape(reference.shape), reference)
    intact = out.intact()
    result.update(error=error, ok=bool(error <= case["bar"]) and intact)
    if not intact:
        result["note"] = "wrote outside its output"
    if result["ok"] and out.tensor.numel():
        result["us"] = statistics.median(kernel.measure(*inputs, out.tensor, warmup=1, repeat=7))
    return result


def overhead(case, seed, runtime, torch, data):
    """Host time of a launch with four tensors: the median over rounds of the mean of a burst that fits the stream's queue, all
    calls in turns. A figure, which a slower host may miss; no test."""
    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    import kiln
    import programs

    bare, _ = load(case["artifact"], runtime, 0)
    kernel = kiln.compile(programs.build(case["builder"], case["arguments"], bare.target), target=bare.target)  # as users call it
    inputs, out, _ = data.gemm(case, generator)

    def burst_us(call, burst=200):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(burst):
            call()
        return (time.perf_counter() - start) / burst * 1e6

    a, b, bias = inputs
    c, sink = out.tensor, torch.empty(16, device="cuda")
    calls = [lambda: kernel(a, b, bias, c), lambda: bare(a, b, bias, c), lambda: kernel(a, b, bias), lambda: torch.add(sink, 1, out=sink),
             lambda: None]
    rounds = [[burst_us(call) for call in calls] for _ in range(101)]
    launch, directly, allocating, torch_add, empty = (statistics.median(times) for times in zip(*rounds))
    missed = "" if launch - empty <= case["bar"] else ", above its bar"
    return {"error": launch - empty, "ok": True,
            "note": f"µs a launch{missed}; {directly - empty:.2f} by kiln._runtime; {allocating - empty:.2f} with the output allocated; "
                    f"torch.add(out=) {torch_add - empty:.2f}"}


def graph(case, seed, runtime, torch, data):
    """A CUDA graph that captures a kernel's first launch, with its loading: replayed on two streams while the kernel is launched outside of it."""
    from kiln import _proto

    artifact = pathlib.Path(case["artifact"]).read_bytes()
    if not any(workspace.zeroed for workspace in _proto.messages().Artifact.FromString(artifact).launch.workspaces):
        return {"ok": False, "note": "the kernel's blocks share no sums: another shape is needed"}
    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    inputs, out, reference = data.gemm(case, generator)
    outside, captured = torch.empty_like(out.tensor), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(captured):
        kernel = runtime.load(artifact, 0)
        kernel(*inputs, out.tensor)
        runtime.load(artifact, 0)  # unloaded at once
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    errors, same = [], True
    for turn in range(20):
        out.tensor.zero_()
        outside.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[turn % 2]):
            captured.replay()
        with torch.cuda.stream(streams[1]):
            for _ in range(4):
                kernel(*inputs, outside)
        torch.cuda.synchronize()
        errors.append(data.relative_error(out.tensor, reference))
        same &= torch.equal(out.tensor, outside)
    error = max(errors)
    return {"error": error, "ok": bool(error <= case["bar"]) and same and out.intact(),
            "note": "the same bits as outside" if same else "other bits than outside"}


def main():
    import torch

    import data
    from kiln import _runtime as runtime

    seed = int(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints may mix with the answers
    torch.zeros(1, device="cuda")
    print(json.dumps({"ready": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        poisoned = False
        try:
            run = {"overhead": overhead, "graph": graph}.get(case["data"]["kind"], check)
            result = run(case, seed, runtime, torch, data)
        except Exception as failure:  # any failure is this case's
            text = f"{type(failure).__name__}: {failure}"
            result = {"ok": False, "note": text}
            poisoned = any(word in text for word in POISONED) or "CUDA error" in text
        print(json.dumps({"name": case["name"], **result}), file=answers, flush=True)
        if poisoned:
            os._exit(3)


if __name__ == "__main__":
    main()
