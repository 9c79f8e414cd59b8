# SPDX-License-Identifier: Apache-2.0
"""Random kernels against numpy. KILN_TRITON_SEEDS=FIRST:COUNT chooses others; the name of a test has its seed. The script random_triton runs
thousands of them."""

import os

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
