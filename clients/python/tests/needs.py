# SPDX-License-Identifier: Apache-2.0
"""What tests need that a source tree alone does not have."""

import os
import pathlib

import pytest

BIN = pathlib.Path(os.environ.get("KILN_BUILD", "build/release")).resolve() / "bin"
MISSING = [name for name in ("kilnd", "kiln-worker", "kiln") if not os.access(BIN / name, os.X_OK)]
needs_kilnd = pytest.mark.skipif(bool(MISSING), reason=f"SKIPPED, NOTHING WAS RUN: {', '.join(MISSING)} not in {BIN}; set KILN_BUILD")
