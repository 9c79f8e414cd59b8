# SPDX-License-Identifier: Apache-2.0
"""Random programs in several processes: none is lost, whatever ends one of them. The processes here are scripts that run no program."""

import pytest
from emulated import Emulator, Stopped
from random_jobs import in_parts

SCRIPT = """
import argparse, os, sys
sys.path[:0] = {path!r}
from random_jobs import tell
from random_tally import Tally

parser = argparse.ArgumentParser()
for name in ("seed", "step", "count", "origin"):
    parser.add_argument("--" + name, type=int)
parser.add_argument("--seconds", type=float)
parser.add_argument("--tell", action="store_true")
options = parser.parse_args()
{begin}
for seed in range(options.seed, options.origin + options.count, options.step):
    tell(begin=["tiles", seed])
    {body}
    tally = Tally()
    tally.add("tiles", "emu:sm_80", "right", None, [])
    tell(counts=tally.pairs())
tell(done=True)
"""


def tally_of(tmp_path, body="pass", begin="pass", count=20, jobs=3):
    import random_jobs

    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(path=[str(random_jobs.__file__).rsplit("/", 1)[0]], body=body, begin=begin))
    return in_parts([str(script)], 100, count, jobs)


def test_each_seed_has_its_turn(tmp_path):
    total = tally_of(tmp_path)
    assert total.total == 20 and not list(total.problems())


def test_a_process_that_ends_costs_one_program(tmp_path, capfd):
    total = tally_of(tmp_path, "os._exit(3) if seed in (104, 113) else None")
    assert total.total == 20 and list(total.problems()) == ["tiles: 2 stopped"]
    assert "tiles 104: the process ended with 3" in capfd.readouterr().out


def test_a_process_that_never_begins_is_told(tmp_path):
    total = tally_of(tmp_path, begin="sys.exit(1)", jobs=2)
    assert list(total.problems()) == ["none: 2 stopped"]


def test_an_emulator_without_an_answer_is_ended(tmp_path):
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nread line\nexec sleep 60\n")
    silent.chmod(0o755)
    emulator = Emulator(silent, tmp_path, seconds=0.5)
    with pytest.raises(Stopped, match="-9"):
        emulator.job("a b")
