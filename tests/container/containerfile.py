# SPDX-License-Identifier: Apache-2.0
"""deploy/container/Containerfile, read."""

import re
import shlex

from daemon import ROOT


def steps():
    """(instruction, its text) of each step, with ARG filled in."""
    text = (ROOT / "deploy/container/Containerfile").read_text()
    found = re.findall(r"^([A-Z]+) (.*)$", re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", text)), re.M)
    arguments = dict(value.split("=", 1) for name, value in found if name == "ARG")
    return [(name, re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], value)) for name, value in found]


def only(steps, name):
    values = [value for step, value in steps if step == name]
    assert len(values) == 1, f"{name}: {values}"
    return values[0]


def commands(steps):
    return [shlex.split(command) for command in only(steps, "RUN").split("&&")]
