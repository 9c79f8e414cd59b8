# SPDX-License-Identifier: Apache-2.0
"""Tracing and compiling in several processes at once, through the daemon. Results are plain data; artifacts go to files."""

import concurrent.futures
import hashlib
import multiprocessing
import os
import pathlib
import time


def program_key(builder: str, arguments: dict, target: str) -> str:
    text = f"{builder} {sorted(arguments.items())} {target}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def compile_one(job: dict) -> dict:
    """In a worker process. job: builder, arguments, target, folder, refresh."""
    result = {"key": program_key(job["builder"], job["arguments"], job["target"]), "ok": False}
    try:
        from kiln.client import CompileOptions, default_client
        from programs import build

        function = build(job["builder"], job["arguments"], job["target"])
        client = default_client()
        start = time.perf_counter()
        options = CompileOptions(disable_wgmma=job["mma_sync"])
        reply = client.compile(function, job["target"], options, timeout=job["timeout"])
        result["ms"] = (time.perf_counter() - start) * 1e3
        if job["refresh"]:
            again = client.compile(function, job["target"], options, timeout=job["timeout"], refresh=True)
            result["reproducible"] = again.artifact.code == reply.artifact.code and again.key == reply.key
        artifact = reply.artifact
        result.update(ok=True, bytes=len(artifact.code), request_key=reply.key.hex(), digest=hashlib.sha256(artifact.code).hexdigest(),
                      passes={t.stage: round(t.milliseconds, 2) for t in reply.timings})
        path = pathlib.Path(job["folder"]) / f"{result['key']}.artifact"
        path.write_bytes(artifact.SerializeToString())
        result["path"] = str(path)
    except Exception as failure:  # each program's failure is its own line
        code = getattr(failure, "code", "")
        result.update(error=f"{type(failure).__name__}: {failure}", unsupported="UNIMPLEMENTED" in f"{code} {failure}")
    return result


def compile_all(jobs: list[dict], deadline: float) -> dict:
    """Results by program_key; programs that occur twice are compiled once."""
    unique = {}
    for job in jobs:
        unique.setdefault(program_key(job["builder"], job["arguments"], job["target"]), job)
    results = {}
    context = multiprocessing.get_context("spawn")
    workers = max(2, min(12, os.cpu_count() or 2, len(unique)))
    pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)
    try:
        futures = {pool.submit(compile_one, job): key for key, job in unique.items()}
        try:
            for future in concurrent.futures.as_completed(futures, timeout=max(deadline - time.monotonic(), 1)):
                key = futures[future]
                try:
                    results[key] = future.result()
                except Exception as failure:
                    results[key] = {"ok": False, "error": f"{type(failure).__name__}: {failure}"}
        except concurrent.futures.TimeoutError:
            pass
        for key in unique:
            results.setdefault(key, {"ok": False, "error": "not compiled before the time for compiling was over"})
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return results
