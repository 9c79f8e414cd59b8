#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A report of tests/gpu/bench as Markdown: the groups with their bars, then every row.

  tests/gpu/bench_report.py REPORT.json            prints it
  tests/gpu/bench_report.py REPORT.json --write    puts it into FIGURES.md"""

import json
import pathlib
import sys


def _holds(line):
    return "holds" if line["holds"] else "**missed**"


def _bar(line):
    bars = [f"≥ {line['bar']}" if line.get("bar") else "", f"each ≥ {line['each']}" if line.get("each") else ""]
    return ", ".join(filter(None, bars)) or "each row's own"


def _figure(row):
    if row.get("tflops"):
        return f"{row['tflops']:.0f} TFLOP/s"
    return f"{row['gbps']:.0f} GB/s" if row.get("gbps") else ""


def _ratio(row, key):
    return f"{row[key]:.3f}" if row.get(key) else ""


def groups(report):
    yield "| group | against | geometric mean | least | bar | |"
    yield "|---|---|---|---|---|---|"
    for line in report["groups"]:
        mean, least = (f"{line[key]:.3f}" if line.get(key) else "not measured" for key in ("geomean", "least"))
        yield f"| {line['group']} | {line['peer']} | {mean} | {least} | {_bar(line)} | {_holds(line)} |"


def rows(report):
    yield "| row | burst | | ratio | sustained | bar |"
    yield "|---|---|---|---|---|---|"
    for row in report["rows"]:
        time = f"{row['burst_ms']:.4f} ms" if row.get("burst_ms") else f"FAILED: {row.get('note', '')}"
        yield (f"| {row['name']} | {time} | {_figure(row)} | {_ratio(row, 'ratio')} | {_ratio(row, 'sustained_ratio')} | "
               f"{row['bar'] if row.get('bar') else ''} |")


CARD = ("", "driver", "multiprocessors at", "memory at", "multiprocessors at most", "power", "power at most", "temperature")  # bench_main.clocks


def card(text):
    """What nvidia-smi said, with what each value is."""
    return ", ".join(f"{what} {value}".strip() for what, value in zip(CARD, text.split(", "))) + (" °C" if text else "")


def markdown(report):
    device = report["place"]["devices"][0]
    copy = report["place"]["copy_bytes_per_second"] * 1e-9
    head = f"{device['name']}, driver CUDA {device['driver_version']}, copy {copy:.0f} GB/s; at the end of the run: {card(report['card'])}"
    return "\n".join([head, "", *groups(report), "", "<details><summary>Every row</summary>", "", *rows(report), "", "</details>"])


def main(arguments):
    if not arguments or arguments[1:] not in ([], ["--write"]):
        return __doc__
    text = markdown(json.loads(pathlib.Path(arguments[0]).read_text()))
    if not arguments[1:]:
        print(text)
        return 0
    here = pathlib.Path(__file__).resolve().parent
    sys.path.insert(0, str(here.parent / "docs"))
    from parts import write

    write(here / "FIGURES.md", "bench", text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
