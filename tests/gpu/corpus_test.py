# SPDX-License-Identifier: Apache-2.0
"""What can be checked of the run of TileLang's own tests without a GPU and without TileLang: a small checkout that has every fate."""

import json
import os
import pathlib
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import corpus  # noqa: E402
import corpus_report  # noqa: E402

FILES = {
    "testing/python/test_fates.py": '''
import os, time, pytest, tilelang
def test_first(): assert tilelang.OURS
def test_wrong(): raise ValueError("no 17 things")
def test_wrong_too(): raise ValueError("no 4 things")
def test_dies(): os._exit(9)
@pytest.mark.parametrize("x", [1, 2])
def test_after(x): pass
@pytest.mark.skip(reason="other hardware")
def test_elsewhere(): pass
def test_text(): os._exit(9)
def test_hangs(): time.sleep(60)
def test_last(): pass
''',
    "testing/python/test_import.py": "import nothing_of_the_kind\ndef test_never(): pass\nclass TestMore:\n    def test_neither(self): pass\n",
    "testing/conftest.py": "import os, sys\nsys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))\n",
    "tilelang/__init__.py": "OURS = False\n",
    "examples/a/good.py": "if __name__ == '__main__': import tilelang, sys; sys.exit(0 if tilelang.OURS else 1)\n",
    "examples/a/bad.py": "if __name__ == '__main__': raise TypeError('not like that')\n",
    "examples/a/library.py": "x = 1\n",
    "examples/b/foreign.py": "if __name__ == '__main__': raise SystemExit(1)\n",
}
EXPECTED = {"commit": "x", "passed": {"testing/python/test_fates.py": ["test_first"], "examples/a/good.py": [""]}, "not_applicable": [
    {"reason": "text", "cases": {"testing/python/test_fates.py": ["test_te*"]}}, {"reason": "foreign", "cases": {"examples/b/*": [""]}}]}


@pytest.fixture
def checkout(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "ours" / "tilelang").mkdir(parents=True)
    (tmp_path / "ours" / "tilelang" / "__init__.py").write_text("OURS = True\n")
    (tmp_path / "expected.json").write_text(json.dumps(EXPECTED))

    def run(**options):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "ours"), "PYTHONDONTWRITEBYTECODE": "1"}
        found = corpus.Corpus(tmp_path / "checkout", environment, tmp_path / "scratch", corpus.Expected(tmp_path / "expected.json"),
                              **{"parallel": 4, "limit": 6, "deadline": time.monotonic() + corpus.KEPT + 60, **options})
        found.run()
        return found

    run.expected = tmp_path / "expected.json"
    return run


def test_each_fate(checkout):
    found = checkout()
    outcomes = {case.split("/")[-1]: row["outcome"] for case, row in found.rows.items()}
    fates = "test_fates.py::test_"
    assert outcomes == {
        **{fates + name: "passed" for name in ("first", "after[1]", "after[2]", "last")},
        **{fates + name: "failed" for name in ("wrong", "wrong_too", "dies", "hangs")},
        fates + "elsewhere": "skipped", fates + "text": "not_applicable", "test_import.py::test_never": "failed",
        "test_import.py::TestMore::test_neither": "failed", "good.py": "passed", "bad.py": "failed", "foreign.py": "not_applicable"}
    errors = {case.split("::test_")[-1]: row["error"] for case, row in found.rows.items()}
    assert errors["dies"].startswith("the process ended with status 9") and errors["hangs"].startswith("not done after 6 s")
    assert "nothing_of_the_kind" in errors["never"] and errors["elsewhere"] == "Skipped: other hardware"
    assert errors["examples/a/bad.py"] == "TypeError: not like that"
    report = found.report()
    assert ["ValueError: no N things", 2] in [[group["error"], len(group["cases"])] for group in report["errors"]]
    assert report["regressions"] == [] and "testing/python/test_fates.py::test_last" in report["new"]
    assert report["totals"]["scripts"] == {"passed": 1, "failed": 1, "not_applicable": 1}
    assert "2  ValueError: no N things" in corpus.table(report)


def test_what_passed_and_does_not_is_a_regression(checkout, tmp_path):
    (tmp_path / "checkout/examples/a/good.py").write_text("if __name__ == '__main__': raise SystemExit('worse')\n")
    (tmp_path / "checkout/testing/python/test_fates.py").write_text("def test_other(): pass\n")
    report = checkout().report()
    assert report["regressions"] == ["examples/a/good.py", "testing/python/test_fates.py::test_first"]
    assert "FAIL examples/a/good.py passed before: worse" in corpus.table(report)


def test_only_some_are_run(checkout):
    assert set(checkout(only="examples/a/*").rows) == {"examples/a/good.py", "examples/a/bad.py"}
    assert checkout(only="examples/a/*").report()["regressions"] == []


def test_when_the_time_is_over_nothing_is_run(checkout):
    found = checkout(deadline=time.monotonic())
    assert {row["outcome"] for row in found.rows.values()} == {"not_run", "not_applicable"}


def test_blessing_takes_in_what_passed(checkout, tmp_path):
    report = tmp_path / "report.json"
    report.write_text(json.dumps(checkout(only="test_fates").report()))
    assert corpus.bless(report, checkout.expected) == 5
    again = corpus.Expected(checkout.expected)
    assert "testing/python/test_fates.py::test_after[2]" in again.passed and "examples/a/good.py" in again.passed
    assert again.not_applicable("testing/python/test_fates.py::test_text[3]") == "text" and again.not_applicable("examples/a/good.py") is None


def test_the_patterns_that_ship_are_read():
    expected = corpus.Expected()
    assert expected.not_applicable("testing/python/amd/test_mfma_dtype_str_bug.py::test_any[x]") == "for another back end of TileLang"
    assert expected.not_applicable("examples/gemm/example_gemm.py") is None


TRITON = {
    "python/triton/_internal_testing.py": "import triton\nSHARED = triton.OURS\n",
    "python/test/unit/language/test_all.py": '''
import os, pytest
from triton._internal_testing import SHARED
@pytest.mark.parametrize("x", range(50))
def test_many(x): assert SHARED
def test_dies(): os._exit(9)
def test_text(): raise ValueError
@pytest.mark.parametrize("x", range(3))
def test_one_of_three(x): assert x != 1
''',
    "python/tutorials/01-good.py": "import triton, sys\nsys.exit(0 if triton.OURS else 1)\n",
    "python/tutorials/02-foreign.py": "raise SystemExit(1)\n",
}
TRITON_EXPECTED = {"commit": "x", "passed": {"python/tutorials/01-good.py": [""]}, "not_applicable": [
    {"reason": "text", "cases": {"python/test/unit/language/test_all.py": ["test_te*"], "python/tutorials/02-*": [""]}}]}


def test_triton_by_function(tmp_path):
    import corpus_triton

    for name, text in {**TRITON, "ours/triton/__init__.py": "OURS = True\n"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "expected.json").write_text(json.dumps(TRITON_EXPECTED))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "ours"), "PYTHONDONTWRITEBYTECODE": "1"}
    found = corpus_triton.TritonCorpus(tmp_path, environment, tmp_path / "scratch", corpus.Expected(tmp_path / "expected.json"), most=7, seed=3,
                                       parallel=4, limit=20, deadline=time.monotonic() + corpus.KEPT + 60)
    found.run()
    report = found.report()
    assert report["functions"] == {"passed": 1, "failed": 2, "not applicable": 1} and report["regressions"] == []
    outcomes = [row["outcome"] for row in report["rows"]]
    assert sorted(outcomes) == sorted(["passed"] * (7 + 2 + 1) + ["failed"] * 2 + ["not_applicable"] * 2)
    assert "# test functions: 2 failed, 1 not applicable, 1 passed" in corpus.table(report)


def test_the_patterns_for_triton_are_read():
    import corpus_triton

    expected = corpus.Expected(corpus_triton.EXPECTED)
    assert expected.not_applicable("python/tutorials/03-matrix-multiplication.py") is None
    assert expected.not_applicable("python/test/unit/language/test_core.py::test_smid[1]").startswith("reads the text")
    assert expected.not_applicable("python/test/unit/language/test_core.py::test_inline_asm_packed[1]") is None


def test_what_reads_the_code_of_a_gpu_is_not_applicable(tmp_path):
    import corpus_triton

    for together in (True, False):
        found = corpus_triton.TritonCorpus(tmp_path, {}, tmp_path, corpus.Expected(corpus_triton.EXPECTED), together=together)
        found._outcome("a.py::test_x[1]", "failed", "KeyError: \"asm['ptx']: Kiln has 'llir'", 1.0)
        found._outcome("a.py::test_y", "failed", "KeyError: 'ptx'", 1.0)
        found._outcome("a.py::test_z", "failed", "AssertionError: assert 'ld.global.v4' in '//\\n// Generated by LLVM NVPTX Back-End…'", 1.0)
        found._outcome("a.py::test_w", "failed", "AssertionError: Not equal to tolerance rtol=1e-07", 1.0)
        found._outcome("a.py::test_v", "failed", "KeyError: \"asm['ttgir']: Kiln has 'ptx'", 1.0)
        outcomes = [row["outcome"] for row in found.rows.values()]
        assert outcomes == ["not_applicable" if together else "failed", "failed", "not_applicable", "failed", "not_applicable"]
        assert len(found.report()["regressions"]) == (0 if together else len(found.expected.passed))


def test_emulated_runs_see_the_callers_packages_behind_ours():
    import corpus_triton

    found = corpus_triton.emulated({"PYTHONPATH": "ours", "KILN_ADDRESS": "unix:x"}, "torch")
    assert found == {"PYTHONPATH": f"ours{os.pathsep}torch", "KILN_ADDRESS": "unix:x", "KILN_TARGET": "emu:sm_90a", "KILN_CORPUS_DEVICE": "cpu"}
    assert corpus_triton.emulated({"PYTHONPATH": "ours"}, "")["PYTHONPATH"] == "ours"


def test_the_page_says_what_passes_and_what_does_not():
    rows = [("testing/python/language/test_a.py::test_x[1]", "passed", ""), ("testing/python/language/test_a.py::test_x[2]", "failed", "E | no"),
            ("testing/python/language/test_a.py::test_y", "passed", ""), ("testing/python/language/test_a.py::test_z", "skipped", ""),
            ("testing/python/ir/test_b.py::test_t", "not_applicable", "compare text"), ("examples/gemm/a.py", "passed", ""),
            ("examples/gemm/b.py", "failed", "E | no"), ("examples/c.py", "passed", "")]
    report = {"rows": [{"case": case, "outcome": outcome, "error": error, "seconds": 0.1} for case, outcome, error in rows], "seconds": 12.3,
              "errors": [{"error": "E | no at /tmp/place/of/a.py", "cases": ["examples/gemm/b.py", "testing/python/language/test_a.py::test_x[2]"]}],
              "place": {"devices": [{"name": "GPU", "driver_version": "13.0"}]}}
    lines = corpus_report.markdown(report).splitlines()
    assert lines[0] == "GPU, driver CUDA 13.0, 12 s"
    assert "| test functions | 1 | 1 | 0 | 1 | 1 | 50.0 % |" in lines
    assert "| their cases | 2 | 1 | 0 | 1 | 1 | 66.7 % |" in lines
    assert "| scripts | 2 | 1 | 0 | 0 | 0 | 66.7 % |" in lines
    assert "| `E \\| no at a.py` | examples/gemm/b.py, testing/python/language/test_a.py::test_x[2] |" in lines
    assert "| compare text | 1 |  |" in lines
    assert "| examples/gemm | 1 | 1 | 0 | 0 | 0 | 50.0 % |" in lines and "| examples | 1 | 0 | 0 | 0 | 0 | 100.0 % |" in lines
    assert not any(line.startswith("| testing/python/ir") for line in lines)


def test_figures():
    """What scripts print, of their kernel and of the reference beside it."""
    import corpus_figures

    log = "torch: 12.00 ms\ntorch: 1.00 TFlops\n\x1b[91mtilelang: 6.00 ms\x1b[0m\ntilelang: 2.00 TFlops\n/a/b.py:17: time 3 ms\n"
    assert [(f["label"], f["value"], f["unit"], f["rate"]) for f in corpus_figures.figures(log)] == [
        ("torch", 12.0, "ms", False), ("torch", 1.0, "tflops", True), ("tilelang", 6.0, "ms", False), ("tilelang", 2.0, "tflops", True)]
    assert corpus_figures.ratios(log) == [2.0]
    assert corpus_figures.ratios("fla_time: 1.0\ntilelang_time: 4.0\nTorch Latency: 3.0 ms\nTileLang Latency: 1.5 ms") == [0.25, 2.0]
    assert corpus_figures.ratios("Kernel execution time: 1 ms\nFA kernel execution time: 3 ms\nSpeedup: 3.01x") == [3.01]
    assert corpus_figures.ratios("kernel: 200 us\nReference time: 0.3 ms") == [pytest.approx(1.5)]
    assert corpus_figures.ratios("Latency: 3.0 ms") == [], "no reference"
    assert corpus_figures.figures("torch max diff: 0.01\ntilelang error: 0.02\nM=128, latency: 5 ms\nAverage latency: 1,234 us") == []


def test_the_largest_scripts_that_time_themselves(checkout, tmp_path):
    import corpus_figures

    examples = tmp_path / "checkout" / "examples"
    (examples / "a/timed.py").write_text("if __name__ == '__main__':\n    import tilelang\n    latency = 1\n"
                                         "    print('ref: 3.0 ms')\n    print('tilelang: 2.0 ms')\n")
    (examples / "a/longer.py").write_text("# latency\n\n\n\n\n\nif __name__ == '__main__':\n    import tilelang\n    raise ValueError('no')\n")
    (examples / "b/foreign.py").write_text("if __name__ == '__main__':\n    import tilelang\n" + "    latency = 1\n" * 9)
    found = corpus_figures.Figures(tmp_path / "checkout", {**os.environ, "PYTHONPATH": str(tmp_path / "ours")}, tmp_path / "scratch",
                                   corpus.Expected(checkout.expected), most=2, limit=60, deadline=time.monotonic() + corpus.KEPT + 60)
    assert [path.name for path in found.files()] == ["longer.py", "timed.py"]
    found.run()
    report = found.report()
    assert [(row["case"], row["outcome"], row["ratios"]) for row in report["rows"]] == [
        ("examples/a/longer.py", "failed", []), ("examples/a/timed.py", "passed", [1.5])]
    assert not report["regressions"]
    assert "examples/a/timed.py" in corpus_figures.table(report) and "1.50" in corpus_figures.table(report)
