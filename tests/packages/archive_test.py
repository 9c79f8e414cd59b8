# SPDX-License-Identifier: Apache-2.0
"""The archive of deploy/bundle: which one is checked."""

import re
import subprocess

from conftest import ROOT


def test_the_archive_of_this_version_is_checked_and_no_other_beside_it(tmp_path):
    version = re.search(r"project\(kiln VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    name = subprocess.run([ROOT / "deploy/bundle", "--name"], capture_output=True, text=True, check=True).stdout.strip()
    assert name == f"dist/kiln-{version}-linux-x86_64.tar.xz"
    old, new = tmp_path / "kiln-0.1-linux-x86_64.tar.xz", tmp_path / "kiln-0.2-linux-x86_64.tar.xz"
    old.touch(), new.touch()
    checked = subprocess.run([ROOT / "deploy/bundle-check", old, new], capture_output=True, text=True, check=False)
    assert checked.returncode == 2 and "one archive at a time" in checked.stderr
