# SPDX-License-Identifier: Apache-2.0
"""The blocks of README and of the pages, pasted one after the other into a script, on a machine where no GPU is found and no daemon runs yet."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KILN_BUILD", ROOT / "build" / "release")).resolve()
TUTORIAL = sorted(ROOT.glob("clients/python/tutorial/[0-9]*.md"))
LESSONS = [*TUTORIAL, ROOT / "clients/python/LANGUAGE.md", ROOT / "clients/python/TRITON.md"]


def blocks(page: pathlib.Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def newcomer(tmp_path, sockets):
    """A user's environment with a home of its own, without GPU and daemon; the daemon that is started is ended."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KILN_", "XDG_"))}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(BUILD / "python"), "KILN_ADDRESS": f"unix:{sockets}/kiln.sock",
                    "KILN_KILND": str(BUILD / "bin" / "kilnd"), "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "",
                    "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}"}
    yield environment
    end_daemons(tmp_path)


def end_daemons(home: pathlib.Path):
    """Of those that hold a state folder here. A daemon writes and ends while this looks: what is gone by then needs no ending."""
    for folder, _, files in os.walk(home):
        if "lock" in files:
            try:
                os.kill(int((pathlib.Path(folder) / "lock").read_text()), signal.SIGTERM)
            except (FileNotFoundError, ProcessLookupError, ValueError):
                pass


def pasted(tmp_path, environment, texts):
    script = tmp_path / "pasted.py"  # the source of a tile function is read from its file
    script.write_text("\n".join(texts), encoding="utf-8")
    return subprocess.run([sys.executable, str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)


def test_the_first_block_ends_with_a_visible_result(tmp_path, newcomer):
    ran = pasted(tmp_path, newcomer, blocks(ROOT / "README.md", "python")[:1])
    assert ran.returncode == 0 and ran.stdout.strip(), ran.stderr
    assert len(ran.stderr.splitlines()) == 1 and "emulator" in ran.stderr, ran.stderr


def test_all_blocks_of_readme_run_in_their_order(tmp_path, newcomer):
    ran = pasted(tmp_path, newcomer, blocks(ROOT / "README.md", "python"))
    assert ran.returncode == 0 and not re.search(r"Warning|Error", ran.stderr), ran.stderr


def test_there_is_a_tutorial():
    assert len(TUTORIAL) == 5 and all(blocks(page, "python") and blocks(page, "text") for page in TUTORIAL)


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.stem)
def test_a_lesson_prints_what_it_says(page, tmp_path, newcomer):
    """Its Python, then its commands. Its blocks of text are what the Python prints, in that order; what commands print has the lines of its
    console blocks."""
    ran = pasted(tmp_path, newcomer, blocks(page, "python"))
    assert ran.returncode == 0 and not re.search(r"Warning|Error", ran.stderr), ran.stderr
    said = "".join(blocks(page, "text"))
    if page in TUTORIAL:
        assert [line.rstrip() for line in ran.stdout.splitlines()] == said.splitlines()
    printed = set()
    for command in blocks(page, "sh"):
        shell = subprocess.run(["bash", "-euo", "pipefail", "-c", command], env=newcomer, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert shell.returncode == 0 and shell.stdout.strip(), command + shell.stderr
        printed |= {" ".join(line.split()) for line in shell.stdout.splitlines()}
    shown = {" ".join(line.split()) for block in blocks(page, "console") for line in block.splitlines()}
    assert shown <= printed, shown - printed


@pytest.mark.parametrize("program", blocks(ROOT / "ir/IR.md", "kiln"), ids=lambda text: re.search(r"@(\w+)", text)[1])
def test_a_program_of_the_ir_page_compiles(program, tmp_path):
    file = tmp_path / "program.kiln"
    file.write_text(program, encoding="utf-8")
    ran = subprocess.run([str(BUILD / "bin" / "kiln"), "compile", "--local", str(file), "-t", "cuda:sm_80"], capture_output=True, text=True,
                         timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_operations_access_file_and_token_commands_are_taken(tmp_path, newcomer):
    page = ROOT / "deploy/OPERATIONS.md"
    (access,) = blocks(page, "toml")
    (tmp_path / "access.toml").write_text(access, encoding="utf-8")
    (tokens,) = [text for text in blocks(page, "sh") if "kilnd token" in text]
    check = f"kilnd --check-config --access={tmp_path}/access.toml"
    ran = subprocess.run(["bash", "-euo", "pipefail", "-c", tokens + check], env=newcomer, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "kiln_" in ran.stdout, ran.stdout + ran.stderr
