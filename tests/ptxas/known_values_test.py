# SPDX-License-Identifier: Apache-2.0
"""ptxas folds what branches tell it of integers as it should, but for complements, which Kiln's PTX has none of."""

import subprocess

import known_values
import pytest

PTXAS = known_values.find_ptxas()
pytestmark = pytest.mark.skipif(PTXAS is None, reason="SKIPPED, NO MACHINE CODE WAS LOOKED AT: there is no ptxas")


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_120a"])
def test_constants_are_right(arch):
    counts, wrong = known_values.check(PTXAS, arch, range(800))
    assert not wrong, "\n".join(kernel.text for kernel, _ in wrong)
    assert counts["right"] > 300, counts


def test_the_check_finds_complements():
    if "release 13.0" not in subprocess.run([PTXAS, "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("another ptxas, of which the fault is not known")
    assert known_values.check(PTXAS, "sm_90a", range(800), complements=True)[0]["wrong"] > 0
