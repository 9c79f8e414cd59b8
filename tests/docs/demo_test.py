# SPDX-License-Identifier: Apache-2.0
"""What deploy/demo says at its end can be done: each command works, each page is there."""

import importlib.util
import subprocess

import pytest
from blocks_test import BUILD, ROOT, newcomer  # noqa: F401


@pytest.fixture
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "deploy" / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_demo_ends_with_what_to_try_next(demo, monkeypatch, capsys):
    monkeypatch.setattr(demo, "compile_all", lambda: 0)
    monkeypatch.setattr(demo, "run_all", lambda *_: 0)
    assert demo.main() == 0
    shown = capsys.readouterr().out
    for command, _ in demo.NEXT:
        assert command in shown
    for page, _ in demo.READ:
        assert page in shown and (ROOT / page).exists()
    monkeypatch.setattr(demo, "compile_all", lambda: 1)
    assert demo.main() == 1 and "Next" not in capsys.readouterr().out


def test_its_commands_work(demo, tmp_path, newcomer):  # noqa: F811
    wait = "for _ in $(seq 1200); do [[ ! -S ${KILN_ADDRESS#unix:} ]] || break; sleep 0.05; done"
    lines = [line for command, _ in demo.NEXT for line in (command, wait if command.endswith("&") else "")]
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "release").symlink_to(BUILD)
    with open(tmp_path / "said", "w+", encoding="utf-8") as said:  # no pipe: the daemon stays, and would keep it open
        ran = subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join(lines)], env=newcomer, cwd=tmp_path, stdout=said, stderr=said, timeout=300)
        said.seek(0)
        assert ran.returncode == 0, said.read()[-3000:]
