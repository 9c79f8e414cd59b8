# SPDX-License-Identifier: Apache-2.0
"""From nothing to a cubin: a request that is compiled anew, beside Triton's cold compile of its kernel for the same job."""

import statistics
import time

BAR = 0.5  # of Triton's time
ROUNDS = 5

# Row of bench_table → Triton's kernel in bench_triton_cold.
JOBS = {
    "gemm 8192x8192x8192 bfloat16 nt": "gemm",
    "gemm grouped 64x4096x7168 bfloat16": "grouped",
    "memory 8192x8192 bfloat16 softmax": "softmax",
    "memory 8192x8192 bfloat16 rms_norm": "rms_norm",
}


def milliseconds(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def measure(ours, peer, rounds=ROUNDS):
    """Medians of both in milliseconds, taken in turns: the second of each pair begins the next one."""
    times = {"kiln": [], "peer": []}
    calls = {"kiln": ours, "peer": peer}
    for call in calls.values():
        call()
    for turn in range(rounds):
        for name in sorted(calls, reverse=turn % 2 == 1):
            times[name].append(milliseconds(calls[name]))
    mine, other = statistics.median(times["kiln"]), statistics.median(times["peer"])
    return {"cubin_ms": round(mine, 1), "peer_ms": round(other, 1), "ratio": round(mine / other, 3), "bar": BAR, "holds": mine <= BAR * other}


def assemble(client, function, target, options):
    """A request that no cache may answer, up to the cubin."""
    reply = client.compile(function, target, options=options, timeout=120, refresh=True)
    if not reply.artifact.cubin:
        raise RuntimeError("kilnd has no ptxas: the cubin is not in the reply")


def measure_all(client, target, chosen):
    """One result for each job whose row is among `chosen`; each failure is its own."""
    import bench_triton_cold
    from bench_programs import program

    results = []
    for row in chosen:
        if row["name"] not in JOBS:
            continue
        result = {"name": f"to cubin: {row['name']}", "holds": False}
        try:
            function, options = program(row, target)
            peer = bench_triton_cold.compiler(JOBS[row["name"]])
            result.update(measure(lambda: assemble(client, function, target, options), peer))
        except Exception as problem:
            result["note"] = f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}"
        results.append(result)
        show(result)
    return results


def show(result):
    figures = (f"{result['cubin_ms']:.0f} ms, Triton {result['peer_ms']:.0f} ms: {result['ratio']:.3f} × (bar {BAR})" if "ratio" in result
               else f"not measured: {result['note']}")
    print(f"# {result['name']:<56} {figures}: {'holds' if result['holds'] else 'DOES NOT HOLD'}", flush=True)
