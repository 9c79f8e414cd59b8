# SPDX-License-Identifier: Apache-2.0
"""The help of the programs, as pages show it."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

from parts import ROOT

BIN = pathlib.Path(os.environ.get("KILN_BUILD", ROOT / "build" / "release")).resolve() / "bin"


def _help(program: str, *words: str) -> str:
    """As somebody at /home/you sees it who has installed Kiln in /opt/kiln. What depends on this machine's processors is left out."""
    environment = {"HOME": "/home/you", "XDG_RUNTIME_DIR": "/run/user/1000", "PATH": "/usr/bin:/bin"}
    ran = subprocess.run([str(BIN / program), *words, "--help"], env=environment, capture_output=True, text=True, check=True, timeout=60)
    text = ran.stdout.replace(str(BIN), "/opt/kiln/bin").rstrip() + "\n"
    return re.sub(r"(--workers [^=\n]*)=\d+", r"\1", text)


def _block(text: str) -> str:
    return f"```\n{text}```\n"


def _subcommands(text: str) -> list[str]:
    return re.findall(r"^  (\w[\w-]*) ", text.split("Subcommands:")[1], re.MULTILINE) if "Subcommands:" in text else []


def kiln() -> str:
    """Of the command and each of its commands. `kiln serve` has kilnd's options."""
    whole = _help("kiln")
    sections = [_block(whole)]
    for name in _subcommands(whole):
        if name == "serve":
            continue
        text = _help("kiln", name)
        sections.append(f"### kiln {name}\n\n" + _block(text))
        sections += [f"#### kiln {name} {inner}\n\n" + _block(_help("kiln", name, inner)) for inner in _subcommands(text)]
    return "\n".join(sections)


def kilnd() -> str:
    return _block(_help("kilnd"))
