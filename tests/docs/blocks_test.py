# SPDX-License-Identifier: Apache-2.0
"""README's Python blocks, pasted one after the other into a script, on a machine where no GPU is found and no daemon runs yet."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KILN_BUILD", ROOT / "build" / "release")).resolve()


def python_blocks():
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def newcomer(tmp_path, sockets):
    """A user's environment with a home of its own, without GPU and daemon; the daemon that is started is ended."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KILN_", "XDG_"))}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(BUILD / "python"), "KILN_ADDRESS": f"unix:{sockets}/kiln.sock",
                    "KILN_KILND": str(BUILD / "bin" / "kilnd"), "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    yield environment
    for holder in tmp_path.rglob("lock"):
        os.kill(int(holder.read_text()), signal.SIGTERM)


def pasted(tmp_path, environment, blocks):
    script = tmp_path / "pasted.py"  # the source of a tile function is read from its file
    script.write_text("\n".join(blocks), encoding="utf-8")
    return subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)


def test_the_first_block_ends_with_a_visible_result(tmp_path, newcomer):
    ran = pasted(tmp_path, newcomer, python_blocks()[:1])
    assert ran.returncode == 0 and ran.stdout.strip(), ran.stderr
    assert len(ran.stderr.splitlines()) == 1 and "emulator" in ran.stderr, ran.stderr


def test_all_blocks_run_in_their_order(tmp_path, newcomer):
    ran = pasted(tmp_path, newcomer, python_blocks())
    assert ran.returncode == 0 and not re.search(r"Warning|Error", ran.stderr), ran.stderr
