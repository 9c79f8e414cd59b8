# SPDX-License-Identifier: Apache-2.0
"""What pages for operators show of the server's sources: events, reasons, metrics; and sources as pages show them."""

from __future__ import annotations

import re

from parts import ROOT, table


def sources(folder: str = "server"):
    """The texts of the folder's own code, without its tests."""
    for path in sorted((ROOT / folder).rglob("*.cc")):
        if not re.search(r"_(test|fuzz)\.cc$|/testing/|/tests/", path.as_posix()):
            yield path.read_text(encoding="utf-8")


def events() -> set[str]:
    """The words behind "event=" in kilnd's log."""
    found = set()
    for text in sources():
        found |= set(re.findall(r'Log(?:Unflushed)?\((?:[^;{"]|"[a-z]+" *\|\||== "[a-z]+")*"([a-z-]+)",', text))
        found |= set(re.findall(r'NoteReload\("([a-z-]+)"', text))
    return found


def reasons() -> set[str]:
    """Why a request may be refused, as logs and metrics call it."""
    text = next(t for t in sources() if "std::string_view ReasonOf(Kind kind)" in t)
    return set(re.findall(r'return "([a-z-]+)";', text[text.index("ReasonOf(Kind kind)"):].split("\n}")[0]))


def metric_rows() -> list[tuple[str, str]]:
    """(name, help) of each metric, in the order of the sources."""
    rows = []
    for text in sources():
        rows += re.findall(r'"(kiln_\w+|process_\w+)",\s*"([^"]* [^"]*)"', text)
        rows += re.findall(r'Name\("(kiln_\w+)"\)\s*\.Help\("([^"]+)"\)', text)
    return sorted(set(rows))


def metrics() -> str:
    kinds = {True: "counter", False: "gauge"}
    of = lambda name: "histogram" if name.endswith("_seconds") else kinds[name.endswith("_total")]  # noqa: E731
    return table(("metric", "kind", "what"), [(f"`{name}`", of(name), text) for name, text in metric_rows()])


def source(path: str, function: str = "") -> str:
    """A file without its licence, or one function of it, as a block of C++."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if function:
        start = text.index(function)
        text = text[start:text.index("\n}\n", start) + 3]
    else:
        text = re.sub(r"\A// SPDX.*\n(//\n)?", "", text)
    return f"```cpp\n{text.strip()}\n```\n"
