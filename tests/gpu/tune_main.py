# SPDX-License-Identifier: Apache-2.0
"""The tuner beside Triton's: the same configurations of one product of bfloat16."""

import argparse
import itertools
import json
import os
import pathlib
import random
import secrets
import shutil
import statistics
import sys
import tempfile
import time

HIT_ROUNDS = 20
BARS = {"seconds": 5.0, "of_triton": 0.15, "of_best": 0.98, "cancel_ms": 200.0}

# Its loop ends with a value that random data never have.
HANGS = b"""kiln 1
func @hangs(%A: global f32[64, 64], %B: global f32[64, 64]) outputs(1) {
  kernel @main grid(1) threads 128 blocks(%bx) {
    while %A[0, 0] < 10.0 {
      store %B[0, 0] = %A[0, 0] + 1.0
    }
  }
}
"""


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/gpu/tune", description=__doc__)
    parser.add_argument("--bundle", help="the archive to test; default: the newest dist/kiln-*.tar.*")
    parser.add_argument("--build", help="a build folder instead of a bundle")
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--size", type=int, default=4096, help="of the three sides of the product")
    parser.add_argument("--devices", type=int, default=0, help="tune once more with so many GPUs of the host together")
    parser.add_argument("--energy", type=int, default=None, help="of so many of the fastest the energy is measured; default: kilnd's own number")
    parser.add_argument("--no-triton", action="store_true", help="leave Triton's autotuner out")
    parser.add_argument("--seed", type=int, default=None, help="of the choice of configurations; default: fresh in each run, and printed")
    parser.add_argument("--json", metavar="FILE", help="where the report goes; default: $OUT/tune.json where OUT is set")
    options = parser.parse_args(arguments)
    options.compile_only = False
    options.seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    return options


def configurations(options):
    """Sizes that both compilers take: powers of two."""
    names = ("block_m", "block_n", "block_k", "stages", "threads")
    every = [dict(zip(names, values)) for values in itertools.product((32, 64, 128, 256), (64, 128, 256), (32, 64, 128), (2, 3, 4, 5), (128, 256))]
    return random.Random(options.seed).sample(every, min(options.candidates, len(every)))


def tune(client, device, configs, options):
    """(the record, the programs, seconds of tracing, of the whole call, of a call that finds the record, of a compile that finds its result)."""
    import kiln
    from kiln.examples.gemm import gemm

    begin = time.perf_counter()
    programs = [gemm(options.size, options.size, options.size, "bfloat16", **config) for config in configs]
    requests = [client.request(program, device.target, priority="TUNING") for program in programs]
    traced = time.perf_counter() - begin
    labels = [" ".join(f"{name}={value}" for name, value in config.items()) for config in configs]
    matrix = kiln.Recipe("bfloat16", (options.size, options.size))

    def ask(**more):
        begin = time.perf_counter()
        found = client.tune(requests, device.name, [matrix, matrix], labels=labels, energy_candidates=options.energy, **more)
        return found, time.perf_counter() - begin

    told, seconds = ask()
    hits = [ask()[1] for _ in range(HIT_ROUNDS)]
    winner = programs[told.record.winner - 1]
    cached = []
    for _ in range(HIT_ROUNDS):
        begin = time.perf_counter()
        client.compile(winner, device.target)
        cached.append(time.perf_counter() - begin)
    if options.devices > 1:  # what one measures alone and several together, when all is compiled
        together = [(count, *ask(refresh=True, devices=count)) for count in (0, options.devices)]
    else:
        together = []
    return told.record, programs, traced, seconds, statistics.median(hits), statistics.median(cached), together


def show_devices(client):
    """What each GPU does now, as its driver says."""
    found = {}
    for one in client.stats(device_states=True).devices:
        if not one.HasField("state"):
            continue
        s = one.state
        found[one.name] = {"problem": s.problem, "mhz": s.compute_mhz, "memory_mhz": s.memory_mhz, "celsius": s.celsius, "watts": s.watts,
                           "memory_used_bytes": s.memory_used_bytes, "joules": s.joules, "knows_processes": s.knows_processes,
                           "processes": [(p.pid, p.name, p.memory_bytes) for p in s.processes]}
        print(f"# {one.name} now: {found[one.name]}")
    return found


def cancel_ms(client, device):
    """Milliseconds from the cancelling of a tuning whose kernel never ends until the device does nothing more."""
    import kiln
    from kiln import measured

    pb = client._pb
    described, _ = measured.describe([kiln.Recipe("float32", (64, 64))])
    start = pb.TuneStart(device=device.name, arguments=described, candidates=1, candidate_seconds=50, measure_on_emulator=True)
    call = client._methods["Tune"](measured.messages(start, [pb.CompileRequest(module=HANGS, target=device.target)], (), []), timeout=90)

    def busy():
        line = "emu" if device.name.startswith("emu:") else device.name
        return next(one.busy for one in client.stats().devices if one.name == line)

    def wait_for(count, limit=60.0):
        end = time.perf_counter() + limit
        while busy() != count:
            if time.perf_counter() > end:
                raise RuntimeError(f"{device.name} is not {'busy' if count else 'idle'} after {limit} s")

    wait_for(1)
    time.sleep(3.0)  # until its driver has started and the kernel runs
    begin = time.perf_counter()
    call.cancel()
    wait_for(0)
    return (time.perf_counter() - begin) * 1e3


def every_time(programs, record, target, options):
    """Microseconds of each candidate that runs, measured in this process, by its number."""
    import kiln
    import torch

    a, b = (torch.randn(options.size, options.size, device="cuda").bfloat16() for _ in range(2))
    times = {}
    for number, (program, said) in enumerate(zip(programs, record.measurements)):
        if not said.median:
            continue
        kernel = kiln.compile(program, target=target)
        times[number] = kiln.do_bench(lambda kernel=kernel: kernel(a, b), 5, 20) * 1e3
    return times


def triton_seconds(configs, options):
    """(seconds of Triton's search with an empty cache, microseconds of what it finds)."""
    import torch
    import triton
    from bench_triton_cold import _gemm

    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-tune-")
    try:
        chosen = [triton.Config({"BLOCK_M": c["block_m"], "BLOCK_N": c["block_n"], "BLOCK_K": c["block_k"], "GROUP": 8}, num_warps=c["threads"] // 32,
                                num_stages=c["stages"]) for c in configs]
        kernel = triton.autotune(configs=chosen, key=["m", "n", "k"])(triton.jit(_gemm.fn))
        n = options.size
        a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
        c = torch.empty_like(a)

        def call():
            kernel[lambda meta: (triton.cdiv(n, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)](a, b, c, n, n, n)

        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - begin, triton.testing.do_bench(call, 5, 20) * 1e3
    finally:
        shutil.rmtree(os.environ.pop("TRITON_CACHE_DIR"), ignore_errors=True)


def run(options):
    from kiln import _proto
    from kiln.client import default_client

    client = default_client()
    device = next(d for d in client.capabilities().devices if d.name.startswith("cuda:"))
    configs = configurations(options)
    states = show_devices(client)
    record, programs, traced, seconds, hit, cached, together = tune(client, device, configs, options)
    outcomes = [_proto.messages().enum_name("TuneOutcome", said.outcome).removeprefix("TUNE_").lower() for said in record.measurements]
    winner = record.measurements[record.winner - 1]
    result = {"candidates": len(configs), "trace_s": traced, "request_to_record_s": seconds, "rounds": record.rounds, "hit_ms": hit * 1e3,
              "compile_hit_ms": cached * 1e3, "winner": winner.label, "winner_us": winner.median, "noise_us": winner.noise,
              "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))}}
    print(f"# {len(configs)} candidates: request to record {seconds:.2f} s (bar {BARS['seconds']} s for 100), traced in {traced:.2f} s, "
          f"{record.rounds} rounds, {result['outcomes']}")
    print(f"# winner {winner.label}: {winner.median:.1f} us, noise {winner.noise:.2f} us")
    clocks = sorted(clock for said in record.measurements for clock in said.compute_mhz)
    result["devices"] = states
    result["mhz"] = [clocks[0], clocks[-1]] if clocks else []
    result["energy"] = {said.label: [said.energy.joules, said.energy.watts, said.energy.microseconds, said.median] for said in record.measurements
                        if said.HasField("energy")}
    result["energy_problem"] = record.energy_problem
    print(f"# clocks {result['mhz']} MHz; energy problem: {record.energy_problem or 'none'}")
    for label, (joules, watts, sustained, median) in result["energy"].items():
        print(f"#   {label}: {joules * 1e3:.2f} mJ a launch at {watts:.0f} W, {sustained:.1f} us without a pause, {median:.1f} us after a flush")
    result["together"] = [{"devices": count, "seconds": took, "winner": found.record.measurements[found.record.winner - 1].label,
                           "used": [(one.name, one.scale, one.measured, one.left) for one in found.record.devices]}
                          for count, found, took in together]
    for one in result["together"]:
        print(f"# {one['devices'] or 1} GPUs, compiled before: {one['seconds']:.2f} s, winner {one['winner']}, {one['used']}")
    result["cancel_ms"] = cancel_ms(client, device)
    print(f"# cancelled: the device is idle after {result['cancel_ms']:.0f} ms (bar {BARS['cancel_ms']:.0f} ms)")
    print(f"# record hit {hit * 1e3:.2f} ms, compile hit {cached * 1e3:.2f} ms")
    for said in record.measurements:
        if said.problem:
            print(f"#   {said.label}: {said.problem[:160]}")
    times = every_time(programs, record, device.target, options)
    best = min(times, key=times.get)
    result.update(best=record.measurements[best].label, best_us=times[best], winner_here_us=times[record.winner - 1])
    result["of_best"] = times[best] / times[record.winner - 1]
    print(f"# in this process: winner {times[record.winner - 1]:.1f} us, best of all {times[best]:.1f} us ({result['best']}): "
          f"{result['of_best']:.3f} "
          f"(bar {BARS['of_best']})")
    if not options.no_triton:
        result["triton_s"], result["triton_us"] = triton_seconds(configs, options)
        result["of_triton"] = seconds / result["triton_s"]
        print(f"# Triton's autotuner {result['triton_s']:.2f} s: {result['of_triton']:.3f} × (bar {BARS['of_triton']}); its kernel "
              f"{result['triton_us']:.1f} us")
    result["holds"] = (seconds <= BARS["seconds"] * max(1, len(configs) / 100) and result["of_best"] >= BARS["of_best"]
                       and result.get("of_triton", 0) <= BARS["of_triton"] and result["cancel_ms"] <= BARS["cancel_ms"])
    return result


def main():
    options = parse(sys.argv[1:])
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kiln-tune-"))
    from daemon import Place

    place = None
    try:
        place = Place(options, scratch)
        place.start()
        print(f"# seed {options.seed}; {place.description(options)}", flush=True)
        result = run(options)
    finally:
        if place:
            place.stop()
            log = scratch / "kilnd.log"
            if os.environ.get("OUT") and log.exists():
                shutil.copy(log, pathlib.Path(os.environ["OUT"]) / "tune-kilnd.log")
        shutil.rmtree(scratch, ignore_errors=True)
    where = options.json or (str(pathlib.Path(os.environ["OUT"]) / "tune.json") if os.environ.get("OUT") else None)
    if where:
        pathlib.Path(where).write_text(json.dumps({"seed": options.seed, "place": place.facts, **result}, indent=1))
    print(f"# {'holds' if result['holds'] else 'DOES NOT HOLD'}")
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
