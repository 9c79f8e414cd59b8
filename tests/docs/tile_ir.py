# SPDX-License-Identifier: Apache-2.0
"""The reference of the tile IR, made of ops.def, exprs.def, dtypes.def and the structs' comments."""

from __future__ import annotations

import re

from parts import ROOT, table

FOLDER = ROOT / "ir"


def rows(name: str, macro: str) -> list[list[str]]:
    text = (FOLDER / name).read_text(encoding="utf-8")
    return [[cell.strip().strip('"') for cell in line.split(",")] for line in re.findall(rf"^{macro}\((.*)\)$", text, re.MULTILINE)]


def _comment_above(lines: list[str], at: int) -> tuple[str, int]:
    """The comment that ends above a line, and where it begins."""
    start = at
    while start > 0 and lines[start - 1].startswith("//"):
        start -= 1
    return " ".join(line.removeprefix("//").strip() for line in lines[start:at]), start


def _end(lines: list[str], at: int) -> int:
    """The last line of a declaration that begins at `at`."""
    while not lines[at].split("//")[0].rstrip().endswith(";") or lines[at].startswith(" "):
        at += 1
    return at


def _fields(body: str) -> list[tuple[str, str]]:
    """Declarations with the comments before or behind them."""
    fields, pending = [], []
    for line in body.splitlines():
        code, _, comment = line.strip().partition("//")
        if not code:
            pending += [comment.strip()] if comment else []
            continue
        if "(" in code.partition("=")[0]:
            continue  # a function
        for declaration in filter(None, (d.strip() for d in code.split(";"))):
            fields.append((declaration, " ".join([*pending, comment.strip()]).strip()))
        pending = []
    return fields


class Structs:
    """What the headers of the IR say about each op: its comment, with those of the enums and structs that only it uses, and its fields."""

    def __init__(self):
        self.meaning: dict[str, str] = {}
        self.fields: dict[str, list[tuple[str, str]]] = {}
        self.helpers: dict[str, list[tuple[str, str]]] = {}  # op → (declaration, comment)
        for header in sorted(FOLDER.rglob("*.h")):
            self._read(header.read_text(encoding="utf-8").splitlines())

    def _read(self, lines: list[str]):
        ops = {row[1] for row in rows("ops.def", "KILN_OP")}
        helpers, last_comment, last_end = [], "", -2
        for at, line in enumerate(lines):
            kind = re.match(r"(struct|enum class) (\w+)[^;]*\{", line)
            if not kind:
                continue
            comment, start = _comment_above(lines, at)
            comment = comment or (last_comment if start == last_end + 1 else "")
            end = _end(lines, at)
            last_comment, last_end = comment, end
            text = "\n".join(lines[at:end + 1])
            body = re.sub(r"\n[^\n;]*\) const \{[^\n]*\}(?=\n)", "", text[text.index("{") + 1:text.rindex("}")])  # without what is derived
            if kind[1] == "struct" and kind[2] in ops and kind[2] not in self.meaning:
                self.meaning[kind[2]], self.fields[kind[2]], self.helpers[kind[2]] = comment, _fields(body), helpers
                helpers = []
            elif kind[1] == "enum class":
                values = ", ".join(re.findall(r"\bk\w+", body.split("//")[0]))
                helpers.append((f"{kind[2]}: {values}", comment))
            else:
                helpers.append((f"{kind[2]}: {'; '.join(f for f, _ in _fields(body))}", comment))


def _needed(helpers, fields: list[str]):
    """Of the helpers, in their order, those that a field names, and those that these name."""
    needed, texts = [], list(fields)
    for declaration, comment in reversed(helpers):  # each is declared before it is named
        if any(re.search(rf"\b{declaration.split(':')[0]}\b", text) for text in texts):
            needed.append((declaration, comment))
            texts.append(declaration)
    return reversed(needed)


def _op(row, structs: Structs) -> str:
    number, name, text, family, since = row
    travels = f"wire number {number}, since version {since}" if number != "0" else "made by passes, never on the wire"
    lines = [f"#### {text}\n", f"`{name}`, family {family}, {travels}.\n", structs.meaning[name] + "\n"]
    plain, explained = ([f for f in structs.fields[name] if bool(f[1]) is wanted] for wanted in (False, True))
    if plain:
        lines.append("Fields: " + ", ".join(f"`{declaration}`" for declaration, _ in plain) + ".\n")
    if explained:
        lines.append(table(("further field" if plain else "field", "what"), [(f"`{f}`", c) for f, c in explained]))
    told = structs.meaning[name]
    for declaration, comment in _needed(structs.helpers[name], [field for field, _ in structs.fields[name]]):
        lines.append(f"`{declaration}`" + (f": {comment}" if comment and comment != told else "") + "\n")
        told = comment or told
    return "\n".join(lines)


def ops() -> str:
    """Every row of ops.def with what its struct says. ValueError for an op without a comment."""
    structs, known = Structs(), rows("ops.def", "KILN_OP")
    silent = [row[1] for row in known if not structs.meaning.get(row[1])]
    if silent:
        raise ValueError(f"no comment above struct {', '.join(silent)}")
    return "\n".join(_op(row, structs) for row in known)


def expressions() -> str:
    text = (FOLDER / "expr/exprs.def").read_text(encoding="utf-8")
    rules = " ".join(re.findall(r"^// (.*)$", text.split("KILN_EXPR(1,")[0].split("enumerator", 1)[1], re.MULTILINE)[0:])
    shown = [(f"`{name}`", "any number" if count == "-1" else count, rule, number, since)
             for number, _, name, count, since, rule in rows("expr/exprs.def", "KILN_EXPR")]
    return rules + "\n\n" + table(("expression", "arguments", "rule", "wire number", "since version"), shown)


def types() -> str:
    kinds = {"kBool": "bool", "kSigned": "signed integer", "kUnsigned": "unsigned integer", "kFloat": "float"}
    shown = [(f"`{name}`", bits, kinds[kind], number) for number, _, name, bits, kind in rows("dtypes.def", "KILN_DTYPE")]
    return table(("type", "bits stored", "kind", "wire number"), shown)
