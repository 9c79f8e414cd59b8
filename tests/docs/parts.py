# SPDX-License-Identifier: Apache-2.0
"""The parts of pages that programs write, each between two comments that name it. All else on a page is written by hand."""

from __future__ import annotations

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _bounds(name: str) -> re.Pattern:
    name = re.escape(name)
    return re.compile(rf"(?<=<!-- begin {name} -->\n).*?(?=<!-- end {name} -->)", re.DOTALL)


def part(page: pathlib.Path, name: str) -> str:
    """What the page has there. ValueError where it has no such part, or two."""
    found = _bounds(name).findall(page.read_text(encoding="utf-8"))
    if len(found) != 1:
        raise ValueError(f"{page} has {len(found)} parts <!-- begin {name} --> … <!-- end {name} -->")
    return found[0]


def write(page: pathlib.Path, name: str, text: str) -> bool:
    """Puts the text there; whether that changed the page."""
    if part(page, name) == text:
        return False
    page.write_text(_bounds(name).sub(lambda _: text, page.read_text(encoding="utf-8")), encoding="utf-8")
    return True


def table(header, rows) -> str:
    """A Markdown table. Bars within cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)
