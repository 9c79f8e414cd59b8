# SPDX-License-Identifier: Apache-2.0
"""The process of tutorials_main.py that runs tutorials with one package called ``triton``. It reads a JSON line for each case,
``{"kind": "compile" or "time", "name"}``, and writes one for each result. Its argument is the checkout."""

import gc
import json
import os
import sys
import traceback

import torch

from bench_timing import Timer
from tutorials_cases import CASES


def copied(timer, count: int) -> float:
    """Milliseconds of a copy that reads and writes so many bytes in all."""
    source = torch.empty(count // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return timer.burst({"copy": lambda: target.copy_(source)})["copy"]


def answered(asked: dict, root: str, timer) -> dict:
    function, arguments = CASES[asked["name"]]
    call, work = function(root, *arguments)
    call()
    torch.cuda.synchronize()
    if asked["kind"] == "compile":
        return {"ok": True}
    found = {"ok": True, "ms": timer.burst({"call": call})["call"], **work}
    if "bytes" in work:
        found["copy_ms"] = copied(timer, work["bytes"])
    return found


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tutorials print goes elsewhere
    import triton

    timer = Timer()
    print(json.dumps({"ready": triton.__file__}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            result = answered(asked, sys.argv[1], timer)
        except Exception as problem:
            traceback.print_exc()
            result = {"ok": False, "note": f"{type(problem).__name__}: {problem}"[:500]}
        gc.collect()
        print(json.dumps({**asked, **result}), file=out, flush=True)


if __name__ == "__main__":
    main()
