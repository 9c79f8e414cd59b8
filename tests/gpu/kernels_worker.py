# SPDX-License-Identifier: Apache-2.0
"""The process of kernels_main.py that makes recorded launches with one package called ``triton``. It reads a JSON line for each, and writes one for
each result: ``{"kind": "compile" or "time", "name": kernel, "record": file}``. Its first argument is a module of kernel_cases/ whose ``modules``
let the kernels' package be imported, or empty."""

import gc
import importlib
import json
import os
import sys
import traceback

import torch

import kernels_record


def answered(asked: dict) -> dict:
    launch, tensors = kernels_record.read(asked["record"])
    if asked["kind"] == "time":
        return {"ok": True, "ms": kernels_record.timed(launch, tensors)}
    launch()
    torch.cuda.synchronize()
    return {"ok": True}


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    kernels_record.try_few(int(os.environ["KILN_KERNELS_CONFIGS"]))
    if sys.argv[1]:
        around = importlib.import_module(sys.argv[1]).modules()
        around.__enter__()
    torch.zeros(1, device="cuda")
    print(json.dumps({"ready": sys.modules["triton"].__file__ if "triton" in sys.modules else ""}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            result = answered(asked)
        except Exception as problem:
            traceback.print_exc()
            result = {"ok": False, "note": f"{type(problem).__name__}: {problem}"[:500]}
        try:
            torch.cuda.synchronize()
        except Exception:
            traceback.print_exc()
            os._exit(1)  # the context is lost
        gc.collect()
        print(json.dumps({**asked, **result}), file=out, flush=True)


if __name__ == "__main__":
    main()
