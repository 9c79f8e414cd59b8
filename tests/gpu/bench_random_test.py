# SPDX-License-Identifier: Apache-2.0
"""What can be checked of the random products without a GPU: which there are, and what a run says of them."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import bench_main  # noqa: E402
import bench_random  # noqa: E402


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
    for arguments in (["--choices", "2"], ["--random-products", "5", "--only", "gemm"]):
        with pytest.raises(SystemExit):
            bench_main.parse(arguments)
