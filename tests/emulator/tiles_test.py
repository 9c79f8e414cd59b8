# SPDX-License-Identifier: Apache-2.0
"""Products in tiles of every kind on the emulator's sm_90a, with edges, checked against float64 references: results that leave in pieces,
products of the transposes, several turns of a persistent block, pairs of blocks that load for each other."""

import os
import secrets

import numpy as np
import pytest
from data import STORED, decode, random_array, relative_error
from kiln.library.programs.gemm import gemm

SEED = int(os.environ.get("KILN_SEED", secrets.randbelow(1 << 31)))  # a failure prints it
BARS = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-4, "int32": 0.0}

# shape, tile (m, n, k, stages, threads), operands, result, whether B is N×K
CASES = {
    "pieces of columns": ((300, 520, 200), (128, 256, 64, 4, 256), "bfloat16", "bfloat16", True),
    "a smaller last piece": ((136, 360, 136), (128, 320, 64, 3, 256), "float16", "float16", True),
    "columns that no box holds": ((136, 360, 136), (128, 176, 64, 5, 256), "float16", "float16", True),
    "several turns": ((520, 2072, 72), (64, 128, 64, 4, 256), "float16", "float16", True),
    "several turns of few rows": ((104, 2824, 72), (24, 128, 64, 4, 256), "float16", "float16", False),
    "pieces of wide elements": ((130, 264, 72), (128, 128, 64, 5, 256), "float16", "float32", False),
    "large tiles in pieces": ((300, 200, 72), (256, 192, 64, 3, 256), "bfloat16", "bfloat16", False),
    "pairs of blocks": ((256, 384, 2056), (64, 64, 64, 4, 128), "float16", "float16", True),
    "pairs of blocks, several turns": ((770, 1536, 136), (64, 128, 64, 4, 256), "float16", "float16", True),
    "pairs of blocks, columns of B together": ((770, 1536, 136), (128, 64, 64, 3, 256), "bfloat16", "bfloat16", False),
    "pairs of blocks down the grid": ((1024, 1160, 72), (64, 128, 64, 3, 256), "float16", "float16", True),
    "columns of B together, three halves for two groups": ((130, 384, 72), (64, 192, 32, 3, 256), "float16", "float32", False),
    "columns of B together, five for one group": ((64, 320, 72), (64, 320, 16, 3, 128), "bfloat16", "bfloat16", False),
    "few rows": ((16, 264, 200), (16, 128, 64, 6, 256), "bfloat16", "bfloat16", True),
    "one row": ((1, 200, 264), (8, 64, 128, 4, 128), "float16", "float16", True),
    "few rows, columns of B together": ((24, 264, 72), (24, 128, 64, 3, 128), "bfloat16", "bfloat16", False),
    "some rows": ((75, 200, 264), (80, 64, 128, 3, 128), "bfloat16", "bfloat16", True),
    "some rows, columns of B together": ((96, 264, 200), (96, 128, 128, 3, 128), "float16", "float16", False),
    "some rows, halves of the columns": ((100, 264, 136), (104, 128, 64, 6, 256), "bfloat16", "bfloat16", True),
    "some rows, quarters of the columns": ((112, 520, 136), (112, 256, 64, 4, 256), "bfloat16", "bfloat16", True),
    "some rows by few columns": ((133, 136, 264), (136, 64, 64, 8, 128), "bfloat16", "bfloat16", True),
    "halves of the rows": ((150, 264, 136), (80, 128, 64, 8, 256), "float16", "float16", True),
    "few rows of bytes": ((16, 144, 160), (16, 64, 128, 3, 128), "int8", "int32", True),
    "halves of k, then of the tile's columns, beyond the edges": ((40, 136, 2040), (64, 64, 64, 3, 128), "bfloat16", "bfloat16", True),
    "halves of k, then of the tile's columns": ((100, 200, 2048), (128, 128, 64, 3, 256), "bfloat16", "bfloat16", True),
    "halves of k, then of the tile's rows": ((16, 136, 2048), (16, 64, 64, 3, 128), "bfloat16", "float32", True),
    "halves of k, one block stores": ((24, 136, 2048), (24, 64, 64, 3, 128), "bfloat16", "bfloat16", True),
    "halves of k in groups' parts": ((16, 120, 4096), (16, 64, 128, 3, 256), "float16", "float16", True),
    "pieces across an instruction's columns": ((200, 328, 136), (192, 320, 64, 3, 384), "bfloat16", "bfloat16", True),
    "panels, the last one outside": ((16, 136, 448), (16, 64, 256, 3, 128), "bfloat16", "bfloat16", True),
    "panels across columns of B": ((72, 320, 136), (64, 256, 32, 4, 128), "float16", "float16", False),
    "rows in pieces": ((310, 520, 136), (152, 256, 64, 4, 256), "bfloat16", "bfloat16", True),
    "rows in pieces, columns of B together": ((160, 264, 136), (152, 256, 64, 4, 256), "bfloat16", "bfloat16", False),
    "rows in pieces of a wide result": ((88, 264, 72), (88, 128, 64, 6, 256), "float16", "float32", True),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_its_reference(emulator, name):
    (m, n, k), (block_m, block_n, block_k, stages, threads), dtype, out, trans_b = CASES[name]
    rng = np.random.default_rng(SEED)
    a, b = random_array(rng, (m, k), dtype), random_array(rng, (n, k) if trans_b else (k, n), dtype)
    right = decode(b, dtype)
    program = gemm(m, n, k, in_dtype=dtype, out_dtype=out, trans_b=trans_b, block_m=block_m, block_n=block_n, block_k=block_k, stages=stages,
                   threads=threads)
    result = np.full((m, n), -1, np.int64).astype(STORED[out])
    result.view(np.uint8)[...] = 0xFF
    after, answer = emulator.call(emulator.module(program.serialized), "emu:sm_90a", [(a, dtype), (b, dtype), (result, out)], seed=SEED % 1000,
                                  check=1, seeds=2,
                                  stream_k=1 if name.startswith(("halves", "pairs")) else 0)  # never, where blocks would rather share tiles
    where = f"{name}, KILN_SEED={SEED}"
    assert "error" not in answer, f"{where}: {answer['error']}"
    assert answer["finished"] and not answer["findings"], f"{where}: {[f['message'] for f in answer['findings']]}"
    assert answer["wgmma"] > 0, f"{where}: another instruction was chosen"
    assert (answer["remote_arrivals"] > 0) == ("pairs" in name), where
    summed = [decision for decision in answer["decisions"] if "take half of k each" in decision]
    assert len(summed) == name.startswith("halves of k"), f"{where}: {answer['decisions']}"
    assert not summed or ("each other's" in summed[0]) == ("then of the tile's" in name), f"{where}: {summed}"
    error = relative_error(decode(after[2], out), decode(a, dtype) @ (right.T if trans_b else right))
    assert error <= BARS[out], f"{where}: error {error:.2e}"


@pytest.mark.parametrize("shape, trans_a, trans_b, bias", [((100, 131, 77), False, False, False), ((70, 66, 133), False, True, True),
                                                          ((65, 77, 99), True, False, False), ((9, 200, 71), False, True, False)])
def test_operands_are_laid_out_anew(emulator, shape, trans_a, trans_b, bias):
    """Rows that begin anywhere: what lies behind them in a copy counts as nothing."""
    m, n, k = shape
    rng = np.random.default_rng(SEED)
    a, b = random_array(rng, (k, m) if trans_a else (m, k), "float16"), random_array(rng, (n, k) if trans_b else (k, n), "float16")
    added = [random_array(rng, (n,), "float16")] if bias else []
    func = gemm(m, n, k, "float16", trans_a=trans_a, trans_b=trans_b, bias=bias, copied=True, block_m=64, block_n=64, block_k=64, stages=3,
                threads=128)
    assert len(func.kernels) == 1 + sum(extent % 8 != 0 for extent in (m if trans_a else k, k if trans_b else n))
    result = np.full((m, n), -1, np.float16)
    arguments = [(a, "float16"), (b, "float16"), *((array, "float16") for array in added), (result, "float16")]
    after, answer = emulator.call(emulator.module(func.serialized), "emu:sm_90a", arguments, seed=SEED % 1000, check=1, seeds=2)
    assert "error" not in answer and answer["finished"] and not answer["findings"], f"KILN_SEED={SEED}: {answer}"
    left, right = decode(a, "float16"), decode(b, "float16")
    expected = (left.T if trans_a else left) @ (right.T if trans_b else right) + (decode(added[0], "float16") if bias else 0)
    assert relative_error(decode(after[-1], "float16"), expected) <= BARS["float16"], f"KILN_SEED={SEED}"
