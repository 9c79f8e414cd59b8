# SPDX-License-Identifier: Apache-2.0
"""`kiln explain --html`: the data in the page is whole and right, a program cannot break out of it, and a browser draws every panel.

CHROMIUM names the browser; else the one on PATH is used. Without one nothing is drawn, and said so."""

import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from kiln.examples.programs import PROGRAMS

BIN = pathlib.Path(os.environ["KILN_BUILD"]) / "bin"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
PANELS = ("program", "layouts", "pipeline", "memory", "resources", "roofline")

# (program, target): a ring, cp.async, attention, norms, AMD, the emulator, sizes that are known at launch only.
CASES = [("gemm_f16", "cuda:sm_90a"), ("gemm_f16", "cuda:sm_80"), ("attention_f16_causal", "cuda:sm_90a"), ("attention_f16", "hip:gfx942"),
         ("rms_norm_f16", "cuda:sm_80"), ("softmax_online", "hip:gfx1201"), ("gemm_s8", "cuda:sm_75"), ("gemm_f16_bias_relu", "emu:sm_80"),
         ("gemm_bf16_symbolic_bias_relu", "emu:sm_90a"), ("add_symbolic", "cuda:sm_90a")]

HOSTILE = """kiln 1
# </script><img id="injected" src="x"> <!-- <script> {{script}} {{data}} " ' & \\ </SCRIPT >
func @copy(%A: global f32[128], %B: global f32[128]) outputs(1) {
  kernel @copy grid(1) threads 128 blocks(%bx) {
    copy %A[0; 128] -> %B[0; 128]  # </script><b id="injected">
  }
}
"""


def page_of(tmp_path, program, target):
    """The page of a program: text, or a serialized module."""
    source, page = tmp_path / "program", tmp_path / "page.html"
    source.write_bytes(program.encode() if isinstance(program, str) else program)
    subprocess.run([BIN / "kiln", "explain", source, "-t", target, "--local", "--text", "--html", page], check=True, timeout=300, capture_output=True)
    return page


def data_of(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(found[1])


def digits(text):
    """'[8t4 2r2][2r1]' as [[(8, 't', 4), (2, 'r', 2)], [(2, 'r', 1)]]."""
    dims = re.findall(r"\[([^]]*)\]", text.split(" rep[")[0])
    return [[(int(n), place, int(stride)) for n, place, stride in re.findall(r"(\d+)([tra])(\d+)", dim)] for dim in dims]


def term(dim, value, place):
    total = 0
    for size, where, stride in dim:
        total += (value % size) * stride if where == place else 0
        value //= size
    return total


@pytest.mark.parametrize("name,target", CASES)
def test_the_data_is_whole(tmp_path, name, target):
    data = data_of(page_of(tmp_path, PROGRAMS[name]().serialized, target))
    assert data["target"] == target and data["decisions"]
    lines = {row["line"] for row in data["program"]["rows"]} - {0}
    assert lines
    for decision in data["decisions"]:
        assert decision["pass"] and decision["subject"]
        assert decision["line"] == 0 or decision["line"] in lines, decision
    for layout in data["layouts"]:
        dims = digits(layout["text"])
        assert len(layout["terms"]) == len(layout["shape"]) == len(dims), layout["text"]
        for dim, terms, extent in zip(dims, layout["terms"], layout["shape"]):
            for place, key in {"t": "thread", "r": "register", "a": "address"}.items():
                if key in terms:
                    assert terms[key] == [term(dim, value, place) for value in range(extent)], (layout["text"], key)
    for loop in data["schedule"]:
        last = loop["steps"] * loop["width"]
        for bar in loop["bars"]:
            assert bar["from"] < bar["to"] <= last and bar["statement"] < len(loop["statements"]), bar
    for kernel in data["memory"]["kernels"]:
        for buffer in kernel["buffers"]:
            assert buffer["offset"] + buffer["bytes"] <= kernel["bytes"]
            assert all(use["statement"] < len(kernel["statements"]) for use in buffer["uses"])
    assert len(data["resources"]["kernels"]) == len(data["work"]["kernels"]) >= 1


def named(data, kind):
    return [layout for layout in data["layouts"] if layout["kind"] == kind]


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80"])
def test_copies_of_a_loop_run_ahead(tmp_path, target):
    """A stage is filled again only when what it held has been multiplied."""
    (loop,) = data_of(page_of(tmp_path, PROGRAMS["gemm_f16"]().serialized, target))["schedule"]
    kind = [statement["kind"] for statement in loop["statements"]]
    copies = [bar for bar in loop["bars"] if kind[bar["statement"]] == "copy"]
    products = {bar["step"]: bar for bar in loop["bars"] if kind[bar["statement"]] == "product"}
    assert len(products) == loop["steps"] and all(bar["beside"] for bar in copies)
    stages, last = {bar["stage"] for bar in copies}, loop["steps"] * loop["width"]
    assert stages == set(range(len(stages))) and len(stages) > 1
    for stage in stages:
        starts = {}  # of the copies that are waited for together
        for bar in (bar for bar in copies if bar["stage"] == stage):
            starts[bar["to"]] = min(bar["from"], starts.get(bar["to"], last))
        for (landed, _), (_, next_start) in itertools.pairwise(sorted(starts.items())):
            assert any(landed <= product["from"] < next_start for product in products.values()), (stage, starts)


def test_shared_memory_and_roofs_follow_from_the_report(tmp_path):
    data = data_of(page_of(tmp_path, PROGRAMS["gemm_f16"]().serialized, "cuda:sm_90a"))
    assert {buffer["name"] for buffer in data["memory"]["kernels"][0]["buffers"]} >= {layout["name"] for layout in named(data, "shared")}
    assert named(data, "fragment") and all(layout["swizzle"]["bits"] >= 0 for layout in named(data, "shared"))
    work = data["work"]
    assert work["kernels"][0]["blocks"] and sum(product["operations"] for product in work["kernels"][0]["products"]) > 0
    assert all(instruction["rate"] > 0 for instruction in work["instructions"]) and work["bandwidth"]["memory"] > 0


def test_what_is_not_known_is_null(tmp_path):
    data = data_of(page_of(tmp_path, PROGRAMS["add_symbolic"]().serialized, "cuda:sm_80"))
    assert data["work"]["bandwidth"] is None and data["work"]["tensors"] is None and data["work"]["kernels"][0]["blocks"] is None
    if not data["resources"]["cubin"]:
        assert data["resources"]["kernels"][0]["registers"] is None


def hostile_module():
    module = type(PROGRAMS["gemm_f16"]().module)()
    module.CopyFrom(PROGRAMS["gemm_f16"]().module)
    bad = "</script><img id='injected' src='x'>"
    module.debug.module_name = bad
    for names in (module.debug.files, module.debug.kernel_names, module.debug.var_names, module.debug.buffer_names):
        for i in range(len(names)):
            names[i] = bad
    return module.SerializeToString(deterministic=True)


@pytest.mark.parametrize("program", [HOSTILE, hostile_module()], ids=["text", "module"])
def test_a_program_stays_text(tmp_path, program):
    page = page_of(tmp_path, program, "cuda:sm_80")
    text = page.read_text()
    assert len(re.findall(r"</script", text, re.IGNORECASE)) == 2 and "<img" not in text and "<!-- <script" not in text
    assert "default-src 'none'" in text and not re.search(r"""(?:src|href)=["']?(?!#)\w""", re.sub(r'(?s)id="data">.*?</script>', "", text))
    if isinstance(program, str):
        assert "\n".join(row["text"] for row in data_of(page)["program"]["rows"]) + "\n" == program


def test_it_stands_alone_among_the_options():
    arguments = ["explain", "x.kiln", "-t", "cuda:sm_80", "--html", "x.html", "--llvm"]
    ran = subprocess.run([BIN / "kiln", *arguments], capture_output=True, text=True, timeout=60)
    assert ran.returncode != 0 and "--html" in ran.stderr + ran.stdout


# What a visitor does, put into a copy of the page; the frame around it, which is as wide as asked for, writes down what it tells.
VISITOR = """<script>addEventListener("load", () => setTimeout(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const filled = all("section").map((section) => [section.id, section.children.length > 1 && section.innerText.length > 40]);
  const press = (on, key) => on.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const words = {};
  const canvas = document.querySelector("canvas");
  if (canvas !== null) {
    canvas.focus();
    press(canvas, "ArrowRight");
    words.layout = document.querySelector("#layouts .readout").textContent;
  }
  for (const panel of ["pipeline", "memory"]) {
    const mark = document.querySelector(`#${panel} .mark`);
    if (mark === null) continue;
    mark.dispatchEvent(new Event("focus"));
    press(mark, "Enter");
    words[panel] = document.querySelector(`#${panel} .readout`).textContent;
    words[`${panel}Chosen`] = all(".row.chosen").length;
  }
  parent.postMessage({ filled, words, wide: document.documentElement.scrollWidth - innerWidth, injected: all("#injected").length,
                       stops: all("[tabindex='0'], a, select").length }, "*");
}, 500));</script>"""
FRAME = """<!doctype html><body style="margin: 0"><iframe src="visited.html" style="border: 0; width: {width}px; height: 3600px"></iframe>
<script>addEventListener("message", (event) => {{
  const out = document.createElement("pre");
  out.id = "told";
  out.textContent = JSON.stringify(event.data);
  document.body.append(out);
}});</script>"""


def browse(tmp_path, page, width, *arguments):
    (tmp_path / "visited.html").write_text(page.read_text().replace("</body>", VISITOR + "</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width))
    return subprocess.run([CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path}/profile",
                           f"--window-size={max(width, 600)},3600", "--virtual-time-budget=6000", *arguments, frame.as_uri()],
                          capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: NOTHING checks here that a browser draws the page; set CHROMIUM")
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name,target", [CASES[0], CASES[2], CASES[5], CASES[8], (None, "cuda:sm_80")])
def test_a_browser_draws_it(tmp_path, name, target, width):
    page = page_of(tmp_path, HOSTILE if name is None else PROGRAMS[name]().serialized, target)
    dom = browse(tmp_path, page, width, "--dump-dom")
    told = json.loads(re.search(r'<pre id="told">(.*?)</pre>', dom, re.DOTALL)[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert told["filled"] == [[panel, True] for panel in PANELS], told
    assert told["wide"] <= 0, "the page is wider than its window"
    assert told["injected"] == 0 and told["stops"] > 6
    if name is not None and name.startswith("gemm"):
        assert re.match(r"\w+\[0, 1\]: thread \d+ \(warp 0, lane \d+\), register \d+\.", told["words"]["layout"]), told
        assert "iteration 0" in told["words"]["pipeline"] or "ahead of the loop" in told["words"]["pipeline"], told
        assert told["words"]["pipelineChosen"] == 1 and "bytes" in told["words"]["memory"]
    for scheme, setting in {"light": 1, "dark": 0}.items():
        picture = tmp_path / f"{scheme}.png"
        browse(tmp_path, page, width, f"--blink-settings=preferredColorScheme={setting}", f"--screenshot={picture}")
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000
    assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()
