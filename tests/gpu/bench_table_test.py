# SPDX-License-Identifier: Apache-2.0
"""What can be checked of the benchmark without a GPU: its rows can be built, made data for, and told apart."""

import ast
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bench_cold  # noqa: E402
import bench_main  # noqa: E402
import bench_programs  # noqa: E402
import bench_table  # noqa: E402
from kiln.library import plans  # noqa: E402
from kiln.ranking import Ranked  # noqa: E402

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


class First:
    """In the daemon's place: it expects most of what comes first."""

    def rank(self, candidates, target, **how):
        return [Ranked(index, float(index)) for index in range(len(candidates))]


@pytest.mark.parametrize("row", bench_table.rows(), ids=lambda row: row["name"])
def test_the_library_serves_each_row(row, monkeypatch):
    monkeypatch.setattr(plans, "default_client", First)
    function, options = bench_programs.program(row, "cuda:sm_90a")
    assert function.serialized and set(options) <= {"fast_math", "fast_accumulation"}


# What a program is divided into. A benchmark that chose any of these itself would measure what no user gets.
SIZES = {"block_m", "block_n", "block_k", "stages", "num_stages", "threads", "columns", "min_blocks", "swizzle", "staged_scales",
         "interleaved"}
OURS = sorted(path.name for path in HERE.glob("bench*.py") if "triton" not in path.name and path.name != pathlib.Path(__file__).name)


def words(tree):
    """Keywords, keys of dicts, names of variables and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("name", OURS)
def test_no_sizes_of_its_own(name):
    tree = ast.parse((HERE / name).read_text())
    assert not SIZES & set(words(tree)), "sizes of programs belong to kiln.library, where users get them"
    assert not [i for i in imports(tree) if i.startswith(("kiln.library.s", "kiln.examples", "kiln.language")) or i == "kiln.library.programs"]


def test_sizes_of_its_own_would_be_found():
    table = ast.parse("def tile(m):\n    return {'block_m': 8 if m <= 8 else 16}")
    assert SIZES & set(words(table)) and list(imports(ast.parse("from kiln.library import sizes"))) == ["kiln.library.sizes"]


def test_a_group_holds_only_with_all_of_its_rows():
    row = {"group": "gemm int8", "ok": True, "ratio": 1.2}
    assert bench_main.summarize([row], [row])[0]["holds"]
    assert not bench_main.summarize([row, {"group": "gemm int8", "ok": False}], [row, row])[0]["holds"]
    assert not bench_main.summarize([row, {**row, "ratio": 0.9}], [row, row])[0]["holds"]
    assert not bench_main.summarize([row], [row, row])[0]["holds"], "a row was not begun"
    assert not bench_main.summarize([{**row, "ratio": None}], [row])[0]["holds"], "nothing was measured"


def test_fused_rows_have_their_peer():
    assert bench_table.PLAIN in {row["name"] for row in bench_table.rows()}


def test_cold_jobs_have_their_rows_and_kernels():
    assert set(bench_cold.JOBS) <= {row["name"] for row in bench_table.rows()}
    tree = ast.parse((HERE / "bench_triton_cold.py").read_text())
    kernels = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "_KERNELS")
    assert {key.value for key in kernels.keys} == set(bench_cold.JOBS.values())


def test_cold_compiles_alternate_and_their_medians_decide(monkeypatch):
    order, clock = [], [0.0]

    def taking(name, seconds):
        taken = iter(seconds)

        def call():
            order.append(name)
            clock[0] += next(taken)

        return call

    monkeypatch.setattr(bench_cold.time, "perf_counter", lambda: clock[0])
    result = bench_cold.measure(taking("kiln", [9, 0.1, 0.2, 0.9, 0.1, 0.1]), taking("peer", [9, 0.4, 0.4, 0.3, 0.4, 9]))
    assert order == ["kiln", "peer", "kiln", "peer", "peer", "kiln", "kiln", "peer", "peer", "kiln", "kiln", "peer"]
    assert result == {"cubin_ms": 100.0, "peer_ms": 400.0, "ratio": 0.25, "bar": 0.5, "holds": True}
    assert not bench_cold.measure(taking("kiln", [0.3] * 6), taking("peer", [0.4] * 6))["holds"]


def test_without_a_cubin_nothing_is_timed():
    class Client:
        def compile(self, *_, refresh, **__):
            assert refresh
            return type("Reply", (), {"artifact": type("Artifact", (), {"cubin": b""})})

    with pytest.raises(RuntimeError, match="ptxas"):
        bench_cold.assemble(Client(), None, "cuda:sm_90a", None)


def test_a_report_shows_what_missed_and_what_failed():
    import bench_report

    report = {"card": "900 MHz", "place": {"devices": [{"name": "Card", "driver_version": "13.0"}], "copy_bytes_per_second": 4e12},
              "groups": [{"group": "gemm", "peer": "cublas", "geomean": 0.98, "least": 0.9, "bar": 1.01, "each": 0.97, "holds": False}],
              "rows": [{"name": "a", "burst_ms": 1.5, "tflops": 700.2, "ratio": 0.98, "bar": None}, {"name": "b", "note": "no memory", "bar": 3.0}]}
    text = bench_report.markdown(report)
    assert "copy 4000 GB/s" in text and "| gemm | cublas | 0.980 | 0.900 | ≥ 1.01, each ≥ 0.97 | **missed** |" in text
    assert "| a | 1.5000 ms | 700 TFLOP/s | 0.980 |  |  |" in text and "FAILED: no memory" in text and "| 3.0 |" in text
