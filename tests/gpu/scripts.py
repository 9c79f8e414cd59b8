# SPDX-License-Identifier: Apache-2.0
"""Five scripts of a checkout of tile-ai/tilelang, unchanged, one after another: a case each."""

import pathlib
import subprocess
import sys

from plan import selected

SCRIPTS = ("examples/quickstart.py", "examples/gemm/example_gemm.py", "examples/elementwise/example_elementwise_add.py",
           "examples/flash_attention/example_mha_fwd_bshd.py", "examples/norm/rms_norm.py")
LIMIT = 120  # seconds for one


def results(place, root, pattern):
    """(case, result) of each."""
    for script in SCRIPTS:
        path = pathlib.Path(root).resolve() / script
        case = {"name": f"script.{path.stem}", "family": "script", "shape": "", "dtype": "", "bar": 0}
        if selected(case, pattern):
            yield case, _run(place, path)


def _run(place, path):
    if not path.exists():
        return {"ok": False, "note": f"there is no {path}"}
    try:
        ran = subprocess.run([sys.executable, path], cwd=path.parent, env=place.script_environment, capture_output=True, text=True,
                             timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"ok": False, "note": f"not done after {LIMIT} s"}
    last = (ran.stdout + ran.stderr).strip().splitlines()[-6:]
    return {"ok": ran.returncode == 0, "note": "" if ran.returncode == 0 else f"status {ran.returncode}\n" + "\n".join(last)}
