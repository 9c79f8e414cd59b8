# SPDX-License-Identifier: Apache-2.0
"""Random kernels against numpy. KILN_TRITON_SEEDS=FIRST:COUNT chooses others; the name of a test has its seed."""

import importlib.util
import os

import numpy as np
import pytest
from random_kernels import N, Interpreter, Program, source

_FIRST, _COUNT = map(int, os.environ.get("KILN_TRITON_SEEDS", "1:60").split(":"))


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))
def test_random_kernels_agree_with_numpy(seed, tmp_path):
    program = Program(seed)
    path = tmp_path / f"kernel_{seed}.py"
    path.write_text(source(program))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generator = np.random.default_rng(seed)
    ints, floats = generator.integers(-50, 100, N, np.int32), generator.standard_normal(N).astype(np.float32)
    count = int(np.prod(program.shape))
    int_out, float_out = np.full(2 * count + 2, 77, np.int32), np.full(2 * count, 77, np.float32)
    module.kernel[(1,)](ints, floats, int_out, float_out, program.a, program.b, num_warps=program.warps)
    names = Interpreter(program, ints, floats).names
    wanted = np.concatenate([names["i0"].reshape(-1), names["i1"].reshape(-1), [names["s0"], names["s1"]]])
    assert np.array_equal(int_out, wanted), path.read_text()
    reals = np.concatenate([names["f0"].reshape(-1), names["f1"].reshape(-1)]).astype(np.float64)
    assert np.allclose(float_out, reals, rtol=1e-4, atol=1e-4 * max(1, np.abs(reals).max())), path.read_text()
