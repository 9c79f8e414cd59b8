# SPDX-License-Identifier: Apache-2.0
"""Tiles that the cost model chooses: they fit, and they follow from the shape as measurements say they should."""

import dataclasses
import pathlib
import re

import pytest
from kiln import tiles
from kiln.library.programs.gemm import gemm

HOPPER = "cuda:sm_90a"
TARGET = pathlib.Path(__file__).resolve().parents[3] / "compiler" / "target"
SHAPES = [(8192, 8192, 8192), (1, 8192, 8192), (16, 512, 4096), (64, 8192, 8192), (130, 72, 40), (5000, 3000, 2000), (7, 9, 11)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype, trans_b", [("bfloat16", True), ("float16", False), ("float8_e4m3fn", True)])
def test_stages_fit_in_shared_memory(shape, dtype, trans_b):
    tile = tiles.matrix_product(*shape, dtype, "bfloat16", trans_b=trans_b, target=HOPPER)
    element = 1 if "8" in dtype else 2
    assert tile["stages"] >= 3
    assert tile["stages"] * (tile["block_m"] + tile["block_n"]) * tile["block_k"] * element <= tiles.Hopper().shared
    assert tile["block_m"] % 8 == 0 and tile["block_n"] % 64 == 0 and tile["block_k"] * element % 128 == 0


def test_large_products_take_the_largest_tiles_that_stay_busy():
    tile = tiles.matrix_product(8192, 8192, 8192, "bfloat16", trans_b=True, target=HOPPER)
    assert (tile["block_m"], tile["block_n"]) == (128, 256)


@pytest.mark.parametrize("m", [1, 8, 16, 30, 64])
def test_few_rows_are_not_padded_to_whole_instructions(m):
    tile = tiles.matrix_product(m, 8192, 8192, "bfloat16", trans_b=True, target=HOPPER)
    assert tile["block_m"] == -(-m // 8) * 8
    assert 8192 // tile["block_n"] > tiles.Hopper().multiprocessors // 2, "multiprocessors idle"


@pytest.mark.parametrize("n", [1024, 4096, 8192, 10240, 28672, 128256])
@pytest.mark.parametrize("m", [1, 16, 33, 64, 72, 96, 136, 192])
@pytest.mark.parametrize("dtype, trans_b", [("bfloat16", True), ("float16", False)])
def test_few_rows_are_not_padded_however_many_columns_there_are(m, n, dtype, trans_b):
    tile = tiles.matrix_product(m, n, 8192, dtype, "bfloat16", trans_b=trans_b, target=HOPPER)
    rows = -(-m // 8) * 8
    assert tile["block_m"] in (rows, max(rows, 64)) + ((-(-m // 16) * 8,) if m > 128 else ())


@pytest.mark.parametrize("m", [1, 16, 64])
def test_few_rows_of_bytes_are_not_padded_however_many_columns_there_are(m):
    tile = tiles.matrix_product(m, 28672, 8192, "float8_e4m3fn", "bfloat16", trans_b=True, target=HOPPER)
    assert tile["block_m"] in (-(-m // 8) * 8, 64)


@pytest.mark.parametrize("m, widths", [(16, (64, 128, 64, 64)), (64, (64, 128, 256, 128)), (96, (64, 128, 192, 128)),
                                       (128, (128, 128, 192, 256)), (192, (128, 128, 256, 256))])
def test_blocks_of_few_rows_are_wider_where_few_would_be_left_for_the_last_wave(m, widths):
    chosen = tuple(tiles.matrix_product(m, n, 8192, "bfloat16", trans_b=True, target=HOPPER)["block_n"] for n in (8192, 10240, 18432, 28672))
    assert chosen == widths


@pytest.mark.parametrize("n, k, block", [(4096, 4096, (192, 128)), (1024, 8192, (128, 64)), (1536, 1536, (128, 64)), (28672, 4096, (192, 256))])
def test_some_hundred_rows_are_halved_unless_few_blocks_or_short_steps_are_left(n, k, block):
    tile = tiles.matrix_product(384, n, k, "bfloat16", trans_b=True, target=HOPPER)
    assert (tile["block_m"], tile["block_n"]) == block


@pytest.mark.parametrize("k", [8, 100, 1000, 4096, 5120, 7680, 8192, 11008, 14336, 28672])
def test_steps_of_one_row(k):
    tile = tiles.one_row(k)
    outside = -k % tile["columns"]
    assert outside * 12 <= k or tile["columns"] == 512
    assert tile["columns"] // tile["threads"] in (8, 16) and tile["threads"] % 32 == 0 and tile["threads"] <= 1024


def test_the_example_computes_one_row_without_tiles():
    arguments = {"in_dtype": "bfloat16", "trans_b": True, "target": HOPPER}
    assert "gemv" in gemm(1, 8192, 8192, **arguments).name
    for m, n, k, changed in ((2, 512, 512, {}), (1, 512, 516, {}), (1, 512, None, {}), (1, 512, 512, {"trans_b": False}),
                             (1, 512, 512, {"in_dtype": "float8_e4m3fn"}), (1, 512, 512, {"block_m": 16, "block_n": 64})):
        assert "gemv" not in gemm(m, n, k, **{**arguments, **changed}).name


def test_one_row_takes_the_longest_steps_that_leave_enough_of_them():
    steps = {k: tiles.matrix_product(1, 8192, k, "bfloat16", trans_b=True, target=HOPPER)["block_k"] for k in (4096, 8192)}
    assert steps == {4096: 256, 8192: 512}


def test_small_tiles_where_large_ones_leave_multiprocessors_idle():
    tile = tiles.matrix_product(128, 7168, 2048, "float8_e4m3fn", "bfloat16", trans_b=True, target=HOPPER)
    assert 7168 // tile["block_n"] > tiles.Hopper().multiprocessors // 2


def test_promoted_sums_leave_registers_for_narrower_tiles():
    shape = (8192, 8192, 8192, "float8_e4m3fn", "bfloat16")
    assert tiles.matrix_product(*shape, trans_b=True, target=HOPPER)["block_n"] == 192
    assert tiles.matrix_product(*shape, trans_b=True, target=HOPPER, fast_accumulation=True)["block_n"] == 256


def test_a_wave_less_beats_a_larger_tile():
    machine = tiles.Hopper()
    tile = tiles.matrix_product(2048, 7168, 7168, "bfloat16", target=HOPPER)
    chosen = tiles.Tile(**tile)
    problem = tiles._Problem(2048, 7168, 7168, 2, 2, False, False)
    assert tiles.cost(machine, problem, chosen) < tiles.cost(machine, problem, tiles.Tile(128, 256, 64, 4, 256))


@pytest.mark.parametrize("arguments", [(None, 512, 512), (512, 512, None)])
def test_what_is_not_known_gets_more_threads_for_its_addresses(arguments):
    assert tiles.matrix_product(*arguments, target=HOPPER) == {**tiles.PLAIN, "threads": 256}
    assert tiles.matrix_product(*arguments, target="hip:gfx1100") == {**tiles.PLAIN, "block_n": 64, "threads": 256}


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942", "emu:sm_90"])
def test_other_targets_get_what_serves_everywhere(target):
    assert tiles.matrix_product(8192, 8192, 8192, target=target) == tiles.PLAIN



def test_the_example_asks_the_model(monkeypatch):
    monkeypatch.setenv("KILN_TARGET", HOPPER)
    assert gemm(8192, 8192, 8192).serialized == gemm(8192, 8192, 8192, **tiles.matrix_product(8192, 8192, 8192, target=HOPPER)).serialized
    assert gemm(8192, 8192, 8192).serialized != gemm(8192, 8192, 8192, target="cuda:sm_80").serialized


def test_sizes_that_are_given_stay():
    given = gemm(8192, 8192, 8192, block_m=64, target=HOPPER).serialized
    assert given == gemm(8192, 8192, 8192, **{**tiles.PLAIN, "block_m": 64}).serialized


def test_the_compiler_counts_with_the_same_figures():
    machine = dataclasses.asdict(tiles.Hopper())
    theirs = {name: float(value) for name, value in re.findall(r"^  \w+ (\w+) = ([\d.]+);", (TARGET / "costs.h").read_text(), re.MULTILINE)}
    both = machine.keys() & theirs.keys()
    assert both == {"line", "line_cycles", "hidden", "few_steps", "step", "tile"}
    assert {name: machine[name] for name in both} == {name: theirs[name] for name in both}
    assert theirs["line"] / theirs["memory_line_cycles"] == pytest.approx(machine["memory"], rel=0.04), "as both say"


def test_the_target_has_the_same_limits():
    row = re.search(r'^KILN_TARGET\("cuda:sm_90a", (.*)\)$', (TARGET / "targets.def").read_text(), re.MULTILINE).group(1).split(", ")
    assert (int(row[5]), int(row[7])) == (tiles.Hopper().shared, tiles.Hopper().multiprocessors)


@pytest.mark.parametrize("tokens, causal, groups", [(64, False, 2), (128, True, 2), (192, False, 3), (1024, False, 3), (1024, True, 2),
                                                    (2048, True, 3), (16384, True, 3)])
def test_attention_has_a_third_group_where_its_rows_are_needed(tokens, causal, groups):
    assert tiles.attention(64, HOPPER, tokens, tokens, causal)["threads"] == 128 * groups
    assert tiles.attention(128, HOPPER, tokens, tokens, causal)["threads"] == 256, "the registers hold two groups"


def test_multiprocessors_are_those_of_each_first_board():
    boards = re.findall(r'^KILN_BOARD\("[^"]*", "(\w+)", (\d+),', (TARGET / "boards.def").read_text(), re.MULTILINE)
    assert tiles.MULTIPROCESSORS == {name: int(count) for name, count in reversed(boards)}


def test_blocks_share_keys_where_there_are_few():
    assert tiles.splits(8, 1024, HOPPER) == 32, "8 · 32 of 264 at once"
    assert tiles.splits(1024, 16, HOPPER) == 1 and tiles.splits(1, 1, HOPPER) == 1
    assert tiles.splits(8, 1024, "hip:gfx942") > 32 > tiles.splits(8, 1024, "cuda:sm_86")
    assert all(tiles.splits(blocks, steps, HOPPER) <= steps for blocks in (1, 7, 300) for steps in (1, 2, 5, 1000))
