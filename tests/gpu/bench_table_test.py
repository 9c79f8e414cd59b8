# SPDX-License-Identifier: Apache-2.0
"""What can be checked of the benchmark without a GPU: its rows can be built, made data for, and told apart."""

import ast
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bench_main  # noqa: E402
import bench_programs  # noqa: E402
import bench_table  # noqa: E402

HERE = pathlib.Path(__file__).parent


def kinds_with_data():
    """Keys of bench_data.MAKERS, without importing torch."""
    tree = ast.parse((HERE / "bench_data.py").read_text())
    makers = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "MAKERS")
    return {key.value for key in makers.keys}


def test_rows_are_whole():
    rows = bench_table.rows()
    assert len({row["name"] for row in rows}) == len(rows)
    assert {row["data"]["kind"] for row in rows} <= kinds_with_data()
    assert {row["group"] for row in rows} == set(bench_table.GROUPS)


@pytest.mark.parametrize("row", bench_table.rows(), ids=lambda row: row["name"])
def test_program_can_be_built(row):
    assert bench_programs.build(row["builder"], row["arguments"]).serialized


def test_small_tiles_where_large_ones_leave_multiprocessors_idle():
    assert bench_table.tile_for(8192, 8192, 8192, 2)["block_n"] == 256
    wide = bench_table.tile_for(128, 7168, 2048, 1)
    assert 7168 // wide["block_n"] > bench_table.MULTIPROCESSORS // 2


def test_a_group_holds_only_with_all_of_its_rows():
    row = {"group": "gemm int8", "ok": True, "ratio": 1.2}
    assert bench_main.summarize([row], [row])[0]["holds"]
    assert not bench_main.summarize([row, {"group": "gemm int8", "ok": False}], [row, row])[0]["holds"]
    assert not bench_main.summarize([row, {**row, "ratio": 0.9}], [row, row])[0]["holds"]
    assert not bench_main.summarize([row], [row, row])[0]["holds"], "a row was not begun"
    assert not bench_main.summarize([{**row, "ratio": None}], [row])[0]["holds"], "nothing was measured"


def test_fused_rows_have_their_peer():
    assert bench_table.PLAIN in {row["name"] for row in bench_table.rows()}
