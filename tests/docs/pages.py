# SPDX-License-Identifier: Apache-2.0
"""Which parts of which pages are made from the code, and by what. A part that needs the build is made with the programs of KILN_BUILD."""

from __future__ import annotations

import commands
import language
import library
import operations
import tile_ir
from parts import ROOT

# (page, part, what makes it)
PARTS = (
    ("clients/python/LANGUAGE.md", "names", language.reference),
    ("clients/python/LANGUAGE.md", "refused", language.refused),
    ("clients/python/LANGUAGE.md", "package", language.package),
    ("clients/python/LIBRARY.md", "library", library.reference),
    ("ir/IR.md", "ops", tile_ir.ops),
    ("ir/IR.md", "expressions", tile_ir.expressions),
    ("ir/IR.md", "types", tile_ir.types),
    ("clients/cpp/README.md", "example.cc", lambda: operations.source("clients/cpp/example.cc")),
    ("clients/cpp/README.md", "examples/gemm.cc", lambda: operations.source("clients/cpp/examples/gemm.cc", "kiln::Builder GemmBiasRelu() {")),
    ("clients/cli/README.md", "kiln --help", commands.kiln),
    ("server/SETTINGS.md", "kilnd --help", commands.kilnd),
    ("server/METRICS.md", "metrics", operations.metrics),
)


def page(name: str):
    return ROOT / name
