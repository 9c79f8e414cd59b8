# SPDX-License-Identifier: Apache-2.0
"""Random kernels in LLVM's IR: what Kiln makes of them stores what it ought to, and ptxas takes it. Whether ptxas' code does, a GPU says."""

import pathlib
import subprocess
import sys

import pytest
from known_values import find_ptxas
from random_code import Kernel, byte_bits

TOOL = pathlib.Path(__file__).with_name("random_kernels")


def test_a_seed_is_a_kernel():
    assert Kernel(5).text("k") == Kernel(5).text("k") != Kernel(6).text("k")
    assert all(Kernel(seed).stored for seed in range(50))


def test_bytes_of_floats():
    assert [byte_bits(number, "e4m3") for number in (0.0, 1.0, -1.5, 16.0)] == [0, 0x38, 0xbc, 0x58]
    assert [byte_bits(number, "e5m2") for number in (0.0, 1.0, -1.5, 16.0)] == [0, 0x3c, 0xbe, 0x4c]


@pytest.mark.parametrize("seed", ([], ["--seed", "1"]), ids=("fresh", "fixed"))
def test_the_ptx_is_right(seed):
    made = subprocess.run([sys.executable, TOOL, "--ptx", "--files", "10", *seed], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.endswith("0 wrong\n")


@pytest.mark.parametrize("target", ("sm_89", "sm_90a", "sm_120a"))
def test_ptxas_takes_them(target):
    if find_ptxas() is None:
        pytest.skip("SKIPPED, NO MACHINE CODE WAS MADE: there is no ptxas")
    command = [sys.executable, TOOL, "--assemble", "--files", "10", "--target", target]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.endswith("0 not assembled\n")


def test_shows_a_kernel():
    made = subprocess.run([sys.executable, TOOL, "--show", "7"], capture_output=True, text=True, check=True)
    assert "define ptx_kernel void @k0" in made.stdout and ".visible .entry k0" in made.stdout
