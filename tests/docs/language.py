# SPDX-License-Identifier: Apache-2.0
"""The reference of the tile language, made of the docstrings of kiln.language."""

from __future__ import annotations

import inspect
import re
import sys

from parts import ROOT, table

sys.path.insert(0, str(ROOT / "clients" / "python"))
import kiln  # noqa: E402
import kiln.language as T  # noqa: E402
from kiln.language import dtypes, elsewhere  # noqa: E402

PARTS = ("Shapes", "Dtypes", "Targets", "Errors")

OLD = ("Buffer", "symbolic")  # names that another one has replaced

# Sections, in the page's order: heading, the modules of kiln.language whose names it has.
SECTIONS = (
    ("Functions and tensors", ("function", "pointers", "program", "trace")),
    ("Launches, memory and annotations", ("launch", "buffer", "layout", "views", "scripted")),
    ("Loops", ("loops", "lanes")),
    ("Tile operations", ("tile_ops", "sparse", "warp_products", "gathers", "reducers", "awaited", "roles")),
    ("Atomic operations", ("atomics",)),
    ("Warps and blocks", ("votes", "thread_reductions", "clusters")),
    ("Scalars", ("math", "bits", "rounding", "expr", "kinds")),
    ("Functions in other languages", ("functions",)),
    ("Random numbers", ("rng",)),
    ("Element types", ("dtypes", "fp8")),
)


def public_names() -> list[str]:
    """Whatever `T.` offers but modules and element types; also T.__exp and its kin."""
    fast = [n for n in vars(T) if n.startswith("__") and callable(getattr(T, n)) and not n.endswith("__")]
    names = [n for n in dir(T) if not n.startswith("_")] + fast
    return [n for n in names if not inspect.ismodule(getattr(T, n)) and not isinstance(getattr(T, n), dtypes.DType)]


def documented() -> dict[str, list[str]]:
    """Each object's first name → all its names."""
    by_object: dict[int, list[str]] = {}
    for name in public_names():
        by_object.setdefault(id(getattr(T, name)), []).append(name)
    result = {}
    for names in by_object.values():
        own = getattr(getattr(T, names[0]), "__name__", None)
        names.sort(key=lambda n: (n != own, n.startswith("_"), n in OLD, n))
        result[names[0]] = names
    return result


def described(name: str) -> dict[str, str]:
    """The docstring's parts; the meaning is "". ValueError where one is missing or empty."""
    text = inspect.cleandoc(getattr(T, name).__doc__ or "")
    pieces = re.split(rf"(?:^|(?<=[.!?]) )({'|'.join(PARTS)}):\s", text, flags=re.MULTILINE)
    found = {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2]))}
    missing = [p or "its meaning" for p in ("", *PARTS) if not found.get(p, "").strip()]
    if missing:
        raise ValueError(f"the docstring of T.{name} lacks {', '.join(missing)}")
    return {p: _markdown(t) for p, t in found.items()}


def _markdown(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def _signature(name: str) -> str:
    thing = getattr(T, name)
    if isinstance(thing, type) and "__init__" not in vars(thing):  # programs get its objects from elsewhere
        return f"T.{name}"
    if type(thing).__module__ in ("kiln.language.function", "kiln.language.pointers"):  # an instance that stands for a type
        return f"T.{name}{inspect.signature(type(thing).__call__).replace(parameters=_rest(type(thing).__call__))}"
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return f"T.{name}"
    return f"T.{name}{signature.replace(return_annotation=signature.empty, parameters=[_bare(p) for p in signature.parameters.values()])}"


def _rest(function):
    return [_bare(p) for p in list(inspect.signature(function).parameters.values())[1:]]


def _bare(parameter):
    return parameter.replace(annotation=parameter.empty)


def _module(name: str) -> str:
    thing = getattr(T, name)
    return getattr(thing, "__module__", None).rsplit(".", 1)[-1] if hasattr(thing, "__name__") else type(thing).__module__.rsplit(".", 1)[-1]


def _entry(name: str, names: list[str]) -> str:
    parts = described(name)
    lines = [f"#### T.{name}\n", f"`{_signature(name)}`\n"]
    lines += ["Also " + ", ".join(f"`T.{n}`" for n in names[1:]) + ".\n"] if names[1:] else []
    lines += [parts[""] + "\n", "".join(f"- {p}: {parts[p]}\n" for p in PARTS)]
    return "\n".join(lines)


def _in_the_ir(name: str, wire: str) -> str:
    stored = dtypes.DType(name).stored
    return wire.lower() or ("none: only the name is known" if stored == name else f"{stored.wire.lower()}, its bytes")


def _types() -> str:
    aliases: dict[str, list[str]] = {}
    for alias, name in dtypes._ALIASES.items():
        aliases.setdefault(name, []).append(f"`T.{alias}`")
    kinds = {"b": "bool", "i": "signed integer", "u": "unsigned integer", "f": "float"}
    rows = [(f"`T.{name}`", ", ".join(aliases.get(name, [])), bits, kinds[kind], _in_the_ir(name, wire))
            for name, wire, bits, kind in dtypes._ROWS]
    return table(("type", "also", "bits", "kind", "in the IR"), rows)


def reference() -> str:
    """Everything below the page's introduction."""
    known = documented()
    sections = {heading: sorted((n for n in known if _module(n) in modules), key=str.lower) for heading, modules in SECTIONS}
    lost = set(known) - {n for names in sections.values() for n in names}
    if lost:
        raise ValueError(f"no section has {', '.join(sorted(lost))}")
    text = ""
    for heading, names in sections.items():
        links = ", ".join(f"[{n}](#t{n.lower().replace('.', '')})" for n in names)
        text += f"\n### {heading}\n\n{links}\n\n" + (_types() + "\n" if heading == "Element types" else "")
        text += "\n".join(_entry(n, known[n]) for n in names)
    return text


def refused() -> str:
    """What TileLang has and Kiln does not."""
    rows: dict[str, list[str]] = {}
    for name, hint in elsewhere.INSTEAD.items():
        rows.setdefault(hint, []).append(f"`T.{name}`")
    whole = table(("TileLang", "use instead"), [(", ".join(names), hint) for hint, names in rows.items()])
    return whole + "\n" + table(("argument that is refused", "use instead"), [(f"`{call}`", hint) for call, hint in elsewhere.ARGUMENTS])


def package() -> str:
    """The names of the package, each with the first sentence of its docstring."""
    first = {name: re.split(r"(?<=\.)\s", _markdown(getattr(kiln, name).__doc__ or ""))[0] for name in kiln.__all__}
    silent = [name for name, text in first.items() if not text]
    if silent:
        raise ValueError(f"no docstring: kiln.{', kiln.'.join(silent)}")
    return table(("name", "what"), [(f"`kiln.{name}`", text) for name, text in sorted(first.items(), key=lambda row: row[0].lower())])
