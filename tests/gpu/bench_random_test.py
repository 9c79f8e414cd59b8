# SPDX-License-Identifier: Apache-2.0
"""What can be checked of the random products without a GPU: which there are, and what a run says of them."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bench_main  # noqa: E402
import bench_random  # noqa: E402
import bench_random_rows  # noqa: E402


def test_a_seed_chooses_products_of_all_kinds():
    made = bench_random.products(7, 300)
    assert made == bench_random.products(7, 300) != bench_random.products(8, 300)
    assert made[:20] == bench_random.products(7, 20), "a shorter run has the first ones"
    for _, (m, n, k), layout in made:
        assert 1 <= m <= 16384 and 8 <= n <= 16384 and 8 <= k <= 16384 and layout in ("nt", "nn")
    for kind in (bench_random.is_aligned(shape, layout) and layout for _, shape, layout in made), (m < 128 for _, (m, _n, _k), _ in made):
        assert 60 < sum(map(bool, kind)) < 240
    assert any(m == 1 or n % 2 or k % 2 for _, (m, n, k), _ in made)


def row(number, ratio, ok=True):
    return {"number": number, "shape": (64 * number + 1, 64, 64), "layout": "nt", "aligned": True, "ok": ok, "sizes": {},
            **({"ratio": {"kiln": ratio}, "us": {"kiln": 1.0, "cublas": ratio}} if ok else {"note": "error"})}


@pytest.mark.parametrize("rows, wanted, holds", [
    ([row(0, 1.0), row(1, 1.1)], 2, True), ([row(0, 1.0), row(1, 0.84)], 2, False), ([row(0, 0.97), row(1, 0.96)], 2, False),
    ([row(0, 1.1)], 2, False), ([row(0, 1.1), row(1, 0, ok=False)], 2, False)])
def test_the_bars_are_of_all_products(rows, wanted, holds, capsys):
    assert bench_random.summarize(rows, wanted) == holds
    assert ("DOES NOT HOLD" in capsys.readouterr().out) != holds


def test_options_that_go_together():
    assert bench_main.parse(["--random-products", "5", "--choices", "2"]).choices == 2
    for arguments in (["--choices", "2"], ["--random-products", "5", "--only", "gemm"], ["--random-rows", "5", "--only", "gemm"],
                      ["--random-rows", "5", "--random-products", "5"]):
        with pytest.raises(SystemExit):
            bench_main.parse(arguments)


def test_a_seed_chooses_sizes_of_all_functions():
    made = bench_random_rows.sizes(7, 60)
    assert made == bench_random_rows.sizes(7, 60) != bench_random_rows.sizes(8, 60)
    assert {kind for _, kind, _ in made} == set(bench_random_rows.KINDS) and [n for _, _, (_, n) in made[:5]] == list(bench_random_rows.USUAL)
    low, high = bench_random_rows.BYTES
    for _, kind, (m, n) in made:
        assert 1 <= n <= bench_random_rows.LONGEST and low / 2 <= 2 * m * n <= high
        assert bench_random_rows.row_of(kind, (m, n))["arguments"][0] == ((m, n), "bfloat16")
    assert any(n % 8 for _, _, (_, n) in made) and any(n > 16384 for _, _, (_, n) in made)


def size(number, ratio, **more):
    return {"number": number, "kind": "softmax", "shape": (number + 1, 64), "ok": True, "ratio": ratio, **more}


@pytest.mark.parametrize("rows, wanted, holds", [
    ([size(0, 0.9), size(1, 1.1)], 2, True), ([size(0, 1.2), size(1, 0.89)], 2, False), ([size(0, 1.0)], 2, False),
    ([size(0, 1.0, spill_bytes=8)], 1, False), ([{**size(0, 1.0), "ok": False}], 1, False)])
def test_the_bar_is_of_each_size(rows, wanted, holds, capsys):
    assert bench_random_rows.summarize(rows, wanted) == holds
    assert ("DOES NOT HOLD" in capsys.readouterr().out) != holds
