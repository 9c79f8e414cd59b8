# SPDX-License-Identifier: Apache-2.0
"""Random kernels against numpy. KILN_TRITON_SEEDS=FIRST:COUNT chooses others; the name of a test has its seed."""

import importlib.util
import os

import numpy as np
import pytest
import random_types
from numbers_of import argument, stored, values
from random_kernels import N, Interpreter, Program, source

_FIRST, _COUNT = map(int, os.environ.get("KILN_TRITON_SEEDS", "1:60").split(":"))
SEEDS = pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))


def written(text: str, path):
    """The module of a program's text."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@SEEDS
def test_random_kernels_agree_with_numpy(seed, tmp_path):
    program = Program(seed)
    path = tmp_path / f"kernel_{seed}.py"
    module = written(source(program), path)
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


def of_type(array, name: str):
    return stored(array, "bool" if name == "int1" else name)


@SEEDS
def test_values_of_all_types_have_the_types_and_the_bits_that_triton_gives_them(seed, tmp_path):
    program = random_types.Program(seed)
    path = tmp_path / f"typed_{seed}.py"
    module = written(random_types.source(program), path)
    wanted = random_types.expected(program)
    outputs = {name: of_type(np.zeros(len(array) + 1), name) for name, (array, _) in wanted.items()}
    arguments = {f"in_{name}": argument(of_type(array, name), name) for name, array in program.inputs.items()}
    arguments |= {f"out_{name}": argument(array, name) for name, array in outputs.items()}
    module.kernel[(1,)](**arguments, a=program.a, b=program.b, c=program.c, num_warps=seed % 4 // 2 + 1)
    for name, (array, error) in wanted.items():
        found = outputs[name][:-1] if name != "bfloat16" else values(outputs[name], name)[:-1]
        if name in random_types.FLOATS:
            wrong = ~(np.abs(found.astype(np.float64) - array.astype(np.float64)) <= error)
        else:
            wrong = found != array
        assert not wrong.any(), f"{name}[{np.flatnonzero(wrong)}]: {found[wrong]} for {array[wrong]}\n{path.read_text()}"
