# SPDX-License-Identifier: Apache-2.0
"""The steps of tests/gpu/precompiled, of what the GPU run asks for without a GPU: recorded, compiled elsewhere, and served."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("KILN_BUILD", HERE.parents[1] / "build/release")).resolve()
ARGUMENTS = ("--seed", "1", "--compile-only", "--build", BUILD, "--targets", "hip:gfx942")

pytestmark = pytest.mark.skipif(not (BUILD / "bin/kiln").exists(), reason=f"SKIPPED, NOTHING WAS RECORDED: there is no {BUILD}/bin/kiln")


@pytest.fixture
def step(tmp_path):
    def run(*words):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")} | {"PYTHON": sys.executable}
        return subprocess.run([HERE / "precompiled", *map(str, words)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    return run


def test_a_run_with_the_bundle_compiles_nothing(step):
    recorded = step("record", "app.manifest", *ARGUMENTS, "--only", "bytes.gemm_*")
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    made = step("compile", "app.manifest", "app.bundle", "hip:gfx942", "--build", BUILD)
    assert made.returncode == 0 and ", 0 are; " in made.stdout and not made.stdout.startswith("# 0 "), made.stdout + made.stderr
    ran = step("run", "app.bundle", *ARGUMENTS, "--only", "bytes.gemm_*")
    assert ran.returncode == 0 and " 0 compiles" in ran.stdout, ran.stdout + ran.stderr

    # One that asks for more than was recorded fails.
    more = step("run", "app.bundle", *ARGUMENTS, "--only", "bytes.*")
    assert more.returncode == 1 and "FAIL" in more.stdout and " 0 compiles" not in more.stdout, more.stdout + more.stderr


def test_without_a_seed_nothing_is_recorded(step):
    ran = step("record", "app.manifest", "--compile-only", "--build", BUILD)
    assert ran.returncode == 1 and "--seed" in ran.stderr
