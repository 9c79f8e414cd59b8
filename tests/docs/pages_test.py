# SPDX-License-Identifier: Apache-2.0
"""Pages agree with the code: the parts that are made from it are as it makes them, the tables written by hand name all there is, and links lead
somewhere."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import commands  # noqa: E402
import language  # noqa: E402
import operations  # noqa: E402
import parts  # noqa: E402
import tile_ir  # noqa: E402
from pages import PARTS, page  # noqa: E402
from parts import ROOT  # noqa: E402

TEXTS = [ROOT / name for name in subprocess.run(["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                                                 capture_output=True, text=True).stdout.split()] or sorted(ROOT.glob("*.md"))


@pytest.mark.parametrize("name, part, make", PARTS, ids=[f"{name}-{part}" for name, part, _ in PARTS])
def test_what_is_made_from_the_code_is_as_the_code_makes_it(name, part, make):
    assert parts.part(page(name), part) == make(), "run tests/docs/write"


def test_readme_is_short_and_has_no_figures():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert not any("µs" in line or "TFLOP" in line for line in lines)


@pytest.mark.parametrize("name", sorted(language.documented()))
def test_a_public_name_says_its_shapes_dtypes_targets_and_errors(name):
    assert set(language.described(name)) == {"", *language.PARTS}


def test_a_docstring_without_one_of_its_parts_is_refused(monkeypatch):
    monkeypatch.setattr(language.T.exp, "__doc__", "e to the x.\nShapes: a scalar.\nDtypes: floats.\nTargets: all.")
    with pytest.raises(ValueError, match="T.exp lacks Errors"):
        language.described("exp")
    monkeypatch.setattr(language.T, "brand_new", object(), raising=False)
    with pytest.raises(ValueError, match="no section has brand_new"):
        language.reference()


def test_an_op_without_a_comment_is_refused(monkeypatch):
    monkeypatch.setattr(tile_ir, "rows", lambda name, macro: [["21", "Absent", "absent", "memory", "2"]])
    with pytest.raises(ValueError, match="struct Absent"):
        tile_ir.ops()


def named(page_name: str) -> str:
    return (ROOT / page_name).read_text(encoding="utf-8")


def test_every_pass_has_a_paragraph_in_the_order_of_the_table():
    table = re.findall(r'^    \{"(\w+)", ', (ROOT / "compiler/passes.cc").read_text(encoding="utf-8"), re.MULTILINE)
    paragraphs = re.findall(r"^\*\*(\w+)\*\* ", named("compiler/PASSES.md"), re.MULTILINE)
    assert len(table) > 20 and paragraphs == table


def test_every_setting_is_explained():
    options = set(re.findall(r"^  (--[a-z-]+)", commands.kilnd(), re.MULTILINE))
    assert len(options) > 40
    by_hand = "".join([named("server/SETTINGS.md").split("## Every option")[0],
                       *(named(page) for page in ("deploy/OPERATIONS.md", "server/LOG.md", "server/METRICS.md"))])
    unexplained = {o for o in options if not re.search(rf"{o}(?![a-z-])", by_hand)}
    assert unexplained <= {"--help", "--version"}, unexplained


FIXED_LIMITS = (  # file, what the code says, what the page says
    ("cache/entry.h", "kMaxSize = std::size_t{256} << 20",
     "a sealed result in any store; the program that is kept beside it for `kiln precompile --hot` | 256 MiB; 1 MiB"),
    ("server/flow/two_layers.cc", "kMost = std::size_t{1} << 20", "256 MiB; 1 MiB"),
    ("server/flow/maintenance.cc", "kMaxHot = 10'000, kMaxHotBytes = std::size_t{64} << 20", "10,000 programs of 64 MiB together"),
    ("server/flow/maintenance.cc", "kMaxListed = 100'000", "100,000 results"),
    ("server/upstream/via.h", "kMostHops = 4", "kilnds that pass one request on by `--upstream` | 4 |"),
    ("server/access/tokens.cc", "kMaxTokens = 100'000", "tokens of a file; a file of tokens, keys or certificates | 100,000; 64 MiB"),
    ("server/system/guarded_file.cc", "kMaxBytes = std::size_t{64} << 20", "100,000; 64 MiB"),
)


@pytest.mark.parametrize("file, code, page", FIXED_LIMITS, ids=[f"{f}: {c.split(' =')[0]}" for f, c, _ in FIXED_LIMITS])
def test_a_limit_that_no_setting_changes_is_told_as_it_is(file, code, page):
    assert code in (ROOT / file).read_text(encoding="utf-8"), "the limit is another now: tell it in server/SETTINGS.md and here"
    assert page in named("server/SETTINGS.md")


def test_every_event_of_the_log_is_explained():
    explained = set(re.findall(r"^\| `event=([a-z-]+)` \|", named("server/LOG.md"), re.MULTILINE))
    assert len(operations.events()) > 15 and operations.events() <= explained


def test_every_reason_of_a_refusal_is_explained():
    explained = set(re.findall(r"^\| ([a-z-]+) \| [A-Z_]+ \|", named("server/LOG.md"), re.MULTILINE))
    assert explained == operations.reasons()


def test_every_metric_is_listed_and_no_other_is_spoken_of():
    known = {name for name, _ in operations.metric_rows()}
    literal = {m for text in operations.sources() for m in re.findall(r'"((?:kiln|process)_[a-z_]+)"', text)}
    spoken = set(re.findall(r"\b((?:kiln|process)_[a-z_]+)", named("server/METRICS.md").split("## Every metric")[0]))
    assert len(known) > 30 and spoken <= known
    assert {m for m in literal if m.endswith(("_total", "_seconds", "_bytes"))} <= known


def test_every_fault_of_the_emulator_is_explained():
    text = (ROOT / "compiler/emulator/program.cc").read_text(encoding="utf-8")
    faults = set(re.findall(r'case FindingKind::k\w+: return "([^"]+)";', text))
    assert len(faults) > 10 and faults <= set(re.findall(r"^\| ([a-z ]+) \|", named("compiler/emulator/README.md"), re.MULTILINE))


def anchors(text: str) -> set[str]:
    """As the usual viewers make them of headings."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"`", "", t).lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(text):
    links = re.findall(r"\]\(([^)\s]+)\)", text.read_text(encoding="utf-8"))
    for link in links:
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = (text.parent / path).resolve() if path else text
        assert target.exists(), f"{text.name} links to {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{text.name} links to {link}"


def test_every_page_can_be_reached_from_readme():
    reached, open_pages = set(), [ROOT / "README.md"]
    while open_pages:
        here = open_pages.pop()
        if here in reached:
            continue
        reached.add(here)
        for link in re.findall(r"\]\(([^)\s#]+)", here.read_text(encoding="utf-8")):
            target = (here.parent / link).resolve()
            if target.suffix == ".md" and target.exists():
                open_pages.append(target)
    assert set(TEXTS) <= reached, sorted(str(p.relative_to(ROOT)) for p in set(TEXTS) - reached)


def copy_of(tmp_path, folder: str) -> pathlib.Path:
    """A tree with one folder's writers and page, for them to write into."""
    for name in (folder, "docs"):
        (tmp_path / "tests" / name).mkdir(parents=True, exist_ok=True)
        for file in (ROOT / "tests" / name).iterdir():
            if file.is_file() and file.suffix in ("", ".py", ".md"):
                (tmp_path / "tests" / name / file.name).write_bytes(file.read_bytes())
    return tmp_path / "tests" / folder


def test_benchmarks_of_the_service_write_their_table(tmp_path):
    folder = copy_of(tmp_path, "bench")
    lines = '{"name": "hit", "value": 1.25, "unit": "×", "bar": 1.5, "bar_is": "at most", "holds": true, "note": ""}\n' \
            '{"name": "miss", "value": null, "unit": "ms", "bar": 30, "bar_is": "at most", "holds": false, "note": "no worker"}\n'
    subprocess.run([sys.executable, str(folder / "write"), "run"], input=lines, text=True, check=True, timeout=60)
    written = parts.part(folder / "FIGURES.md", "run")
    assert "| hit | 1.25 × | ≤ 1.5 |" in written and "| miss | not measured (no worker) | ≤ 30: missed |" in written
    assert parts.part(folder / "FIGURES.md", "load") == parts.part(ROOT / "tests/bench/FIGURES.md", "load")


def test_the_benchmark_of_kernels_writes_its_tables(tmp_path):
    folder = copy_of(tmp_path, "gpu")
    report = {"place": {"devices": [{"name": "a GPU", "driver_version": "13.0"}], "copy_bytes_per_second": 4e12}, "card": "cool",
              "groups": [{"group": "gemm", "peer": "cublas", "geomean": 1.02, "least": 0.99, "bar": 1.01, "holds": True}],
              "rows": [{"name": "gemm 1x1x1", "burst_ms": 0.5, "tflops": 3.0, "ratio": 1.02}]}
    (tmp_path / "report.json").write_text(json.dumps(report), encoding="utf-8")
    subprocess.run([sys.executable, str(folder / "bench_report.py"), str(tmp_path / "report.json"), "--write"], check=True, timeout=60)
    written = parts.part(folder / "FIGURES.md", "bench")
    assert "a GPU" in written and "| gemm 1x1x1 | 0.5000 ms | 3 TFLOP/s | 1.020 |" in written
