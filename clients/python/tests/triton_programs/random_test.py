# SPDX-License-Identifier: Apache-2.0
"""Random kernels against numpy. KILN_TRITON_SEEDS=FIRST:COUNT chooses others; the name of a test has its seed. The script random_triton runs
thousands of them."""

import os
import pathlib
import subprocess
import sys

import pytest
import random_trials

_FIRST, _COUNT = map(int, os.environ.get("KILN_TRITON_SEEDS", "1:60").split(":"))
SEEDS = pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))


@SEEDS
def test_random_kernels_agree_with_numpy(seed, tmp_path):
    random_trials.statements(seed, tmp_path)


@SEEDS
def test_values_of_all_types_have_the_types_and_the_bits_that_triton_gives_them(seed, tmp_path):
    random_trials.types(seed, tmp_path)


@pytest.mark.parametrize("words, problem", [
    (["--gpu", "--target", "emu:sm_90a"], "give one of them"),
    (["--target", "cuda:sm_90a"], "begins with emu:"),
    (["--jobs", "0"], "at least 1"),
    (["--gpu"], "none is found"),
])
def test_the_script_refuses_what_would_run_elsewhere_than_asked(words, problem):
    script = pathlib.Path(__file__).with_name("random_triton")
    without_gpu = {"KILN_TARGET": "emu:sm_90a", "CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
    ran = subprocess.run([sys.executable, "-B", script, "--seed", "1", "--kind", "types", *words], env=os.environ | without_gpu,
                         capture_output=True, text=True, check=False)
    assert ran.returncode != 0 and problem in ran.stderr and "right" not in ran.stdout
