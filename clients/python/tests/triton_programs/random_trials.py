# SPDX-License-Identifier: Apache-2.0
"""Random kernels in Triton's language: what a seed makes is launched and compared with numpy. Each trial raises AssertionError with the text of
the kernel where they differ."""

import importlib.util

import numpy as np
import random_types
from numbers_of import argument, error, stored, values
from random_kernels import N, Interpreter, Program, source
from random_products import RandomProduct


def written(text: str, path):
    """The module of a program's text."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def statements(seed: int, folder):
    """Loops, branches, masks and reductions of blocks of integers and floats."""
    program = Program(seed)
    module = written(source(program), folder / f"kernel_{seed}.py")
    generator = np.random.default_rng(seed)
    ints, floats = generator.integers(-50, 100, N, np.int32), generator.standard_normal(N).astype(np.float32)
    count = int(np.prod(program.shape))
    int_out, float_out = np.full(2 * count + 2, 77, np.int32), np.full(2 * count, 77, np.float32)
    module.kernel[(1,)](ints, floats, int_out, float_out, program.a, program.b, num_warps=program.warps)
    names = Interpreter(program, ints, floats).names
    wanted = np.concatenate([names["i0"].reshape(-1), names["i1"].reshape(-1), [names["s0"], names["s1"]]])
    assert np.array_equal(int_out, wanted), source(program)
    reals = np.concatenate([names["f0"].reshape(-1), names["f1"].reshape(-1)]).astype(np.float64)
    assert np.allclose(float_out, reals, rtol=1e-4, atol=1e-4 * max(1, np.abs(reals).max())), source(program)


def _of_type(array, name: str):
    return stored(array, "bool" if name == "int1" else name)


def types(seed: int, folder):
    """Values of all types, in the types that Triton gives them, bit by bit."""
    program = random_types.Program(seed)
    text = random_types.source(program)
    module = written(text, folder / f"typed_{seed}.py")
    wanted = random_types.expected(program)
    outputs = {name: _of_type(np.zeros(len(array) + 1), name) for name, (array, _) in wanted.items()}
    arguments = {f"in_{name}": argument(_of_type(array, name), name) for name, array in program.inputs.items()}
    arguments |= {f"out_{name}": argument(array, name) for name, array in outputs.items()}
    module.kernel[(1,)](**arguments, a=program.a, b=program.b, c=program.c, num_warps=seed % 4 // 2 + 1)
    for name, (array, far) in wanted.items():
        found = outputs[name][:-1] if name != "bfloat16" else values(outputs[name], name)[:-1]
        if name in random_types.FLOATS:
            wrong = ~(np.abs(found.astype(np.float64) - array.astype(np.float64)) <= far)
        else:
            wrong = found != array
        assert not wrong.any(), f"{name}[{np.flatnonzero(wrong)}]: {found[wrong]} for {array[wrong]}\n{text}"


def products(seed: int, folder):
    """Products of matrices; what the launch gives."""
    program = RandomProduct(seed)
    module = written(program.text, folder / f"product_{seed}.py")
    launched = program.launch(module.kernel, argument)
    assert error(program.result(), program.expected()) < program.bound, program.text
    assert (program.around() == 77).all(), program.text
    return launched


TRIALS = {"statements": statements, "types": types, "products": products}
