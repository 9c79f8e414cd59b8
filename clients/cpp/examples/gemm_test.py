# SPDX-License-Identifier: Apache-2.0
"""kiln-example-gemm through a daemon of the build that KILN_BUILD names."""

import os
import pathlib
import subprocess

import pytest

BUILD = pathlib.Path(os.environ.get("KILN_BUILD", "build/release")).resolve()
NEEDED = ("kilnd", "kiln-worker", "kiln-example-gemm")
MISSING = [name for name in NEEDED if not os.access(BUILD / "bin" / name, os.X_OK)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"SKIPPED, NOTHING WAS COMPILED: {BUILD}/bin lacks {', '.join(MISSING)}")
FAKE = BUILD / "testing" / "libkiln_fake_driver.so"


def example(address, *arguments, **environment):
    return subprocess.run([BUILD / "bin/kiln-example-gemm", *arguments], env={**os.environ, "KILN_ADDRESS": address, **environment},
                          capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("target, instruction", [("cuda:sm_80", "mma.m16n8k16"), ("cuda:sm_90a", "wgmma.m64n128k16"), ("hip:gfx942", "mfma")])
def test_it_compiles_and_tells_why(address, target, instruction):
    run = example(address, target)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"{target}: ") and instruction in run.stdout and "bytes of shared memory" in run.stdout


def test_a_wrong_target_is_named(address):
    run = example(address, "cuda:sm_13")
    assert run.returncode == 1 and "sm_13" in run.stderr


@pytest.mark.skipif(not FAKE.exists(), reason=f"{FAKE} is not built")
def test_it_launches_and_checks(address, tmp_path):
    """The driver here takes every launch and runs none, which the example must notice."""
    (tmp_path / "libcuda.so.1").symlink_to(FAKE)
    run = example(address, LD_LIBRARY_PATH=str(tmp_path))
    assert "1000 × 777 × 333: error" in run.stdout, run.stderr
    assert run.returncode == 1
