# SPDX-License-Identifier: Apache-2.0
"""TileLang's largest scripts that time themselves, one after another with the GPU to themselves: what each prints of its kernel and of the
reference beside it, and the ratio of the two times. PYTHONPATH has the references: a small stand-in says nothing of speed."""

import re

import corpus

TIMES = re.compile(r"do_bench|latency|elapsed|time\.time", re.I)
OURS = re.compile(r"tile-?lang|\btl\b|kernel|sparse", re.I)
PEER = re.compile(r"\bref\b|\bref[_ ]|reference|torch|triton|\bfla\b|\bfla[_ ]|\bfa[23]?\b|flash_?attn|flash ?attention|baseline|dense|naive|"
                  r"cublas", re.I)
NUMBER = r"(?P<value>\d+(\.\d+)?(e[+-]?\d+)?)(?![\d,])"
UNITS = {"ms": 1.0, "us": 1e-3, "µs": 1e-3, "s": 1e3, "seconds": 1e3}  # in milliseconds
FIGURE = re.compile(rf"^(?P<label>[^:=/]*[A-Za-z][^:=/]*?)\s*[:=]\s*{NUMBER}\s*(?P<unit>ms|us|µs|seconds|s|TFLOPS?|GFLOPS?|GB/s)?\b", re.I)
A_TIME = re.compile(r"time|latency", re.I)
NO_TIME = re.compile(r"diff|err|tol|max|mean|shape|size", re.I)
SPEEDUP = re.compile(rf"speed-?up[^:=]*[:=]\s*{NUMBER}", re.I)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def figures(log: str) -> list[dict]:
    """The lines that name a time or a rate: ``label``, ``value``, ``unit`` ("" where none is printed) and whether it is a rate."""
    found = []
    for line in ANSI.sub("", log).splitlines():
        match = FIGURE.match(line.strip())
        if match is None or SPEEDUP.search(line):
            continue
        label, unit = match["label"].strip(), (match["unit"] or "").lower()
        rate = "flop" in unit or unit == "gb/s" or (not unit and "flop" in label.lower())
        if (unit or rate or A_TIME.search(label)) and not NO_TIME.search(label):
            found.append({"label": label, "value": float(match["value"]), "unit": unit, "rate": rate})
    return found


def ratios(log: str) -> list[float]:
    """How many times as fast as the reference the script calls its kernel: each speedup that it prints, else of each two times in a row of
    which one is of the kernel and the other of the reference."""
    printed = [float(match["value"]) for line in ANSI.sub("", log).splitlines() if (match := SPEEDUP.search(line))]
    if printed:
        return printed
    found, waiting = [], None
    for figure in figures(log):
        side = "peer" if PEER.search(figure["label"]) else "ours" if OURS.search(figure["label"]) else None
        if figure["rate"] or figure["value"] <= 0 or side is None:
            continue
        time = figure["value"] * UNITS.get(figure["unit"], 1.0)
        if waiting and waiting[0] != side and waiting[2] == bool(figure["unit"]):
            found.append(time / waiting[1] if side == "peer" else waiting[1] / time)
            waiting = None
        else:
            waiting = (side, time, bool(figure["unit"]))
    return found


class Figures(corpus.Corpus):
    """The ``most`` largest scripts that apply, import tilelang and time something."""

    def __init__(self, *arguments, most, **options):
        super().__init__(*arguments, parallel=1, **options)
        self.most = most
        self.printed = {}

    def files(self) -> list:
        found = []
        for path in self.root.glob("examples/**/*.py"):
            text = path.read_text(encoding="utf-8", errors="replace")
            if (corpus.is_program(path) and re.search(r"^\s*(import|from) tilelang\b", text, re.M) and TIMES.search(text)
                    and self._selected(str(path.relative_to(self.root)))
                    and not self.expected.not_applicable(str(path.relative_to(self.root)))):
                found.append((-len(text.splitlines()), path))
        return [path for _, path in sorted(found)[:self.most]]

    def _finished(self, job, late, over) -> list:
        self.printed[job.name] = job.log.read_text(errors="replace")
        return super()._finished(job, late, over)

    def report(self) -> dict:
        report = super().report()
        report["regressions"] = [case for case in report["regressions"] if case in self.printed]
        for row in report["rows"]:
            log = self.printed.get(row["case"], "")
            row["figures"], row["ratios"] = figures(log), ratios(log)
            row["log"] = log[-4000:]
        return report


def table(report: dict) -> str:
    lines = []
    for row in report["rows"]:
        ratios_of = row["ratios"]
        said = f"{min(ratios_of):.2f}" + (f" to {max(ratios_of):.2f}" if len(ratios_of) > 1 else "") if ratios_of else "no reference"
        lines.append(f"{row['case']:<80} {row['outcome']:<8} {said:<16} " + "; ".join(
            f"{f['label'][:24]} {f['value']:g} {f['unit']}" for f in row["figures"][:4]))
    return "\n".join(lines)
