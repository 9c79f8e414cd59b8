# SPDX-License-Identifier: Apache-2.0
"""The call that ranks, from Python and by the command."""

import json
import math
import os
import re
import subprocess

import pytest
from daemon import BUILD
from measured_programs import product

TARGET = "cuda:sm_90a"
TEXT = """kiln 1
func @scale(%x: global f32[4096, 4096], %y: global f32[4096, 4096]) outputs(1) {
  kernel @scale grid(4096) threads ${threads} blocks(%b) {
    for parallel %i in 4096 {
      store %y[%b, %i] = %x[%b, %i] * 2.0
    }
  }
}
"""


def matmul(block_m, block_n, k=1024):
    return product(1024, 1024, k, "bfloat16", "float32", "bfloat16", False, True, block_m, block_n, 64, 3, 128)


def test_the_fastest_comes_first_and_what_is_refused_last(daemon):
    client = daemon.start().client()
    ranked = client.rank([matmul(64, 64, 8192), "kiln 1\nnonsense", matmul(64, 64)], TARGET)
    assert [one.index for one in ranked] == [2, 0, 1]
    assert 0 < ranked[0].microseconds < ranked[1].microseconds < math.inf == ranked[2].microseconds
    assert ranked[2].problem and not ranked[2].kernels
    assert ranked[0].terms["matrix"] > 0 and ranked[0].limit in ranked[0].terms and "wait for copies" in ranked[0].terms
    assert ranked[0].kernels[0].grid == 256 and ranked[0].kernels[0].shared_bytes > 0
    assert client.stats().compiles >= 0 and not list(client.cache_list()), "nothing is kept"


def test_boards_and_dimensions_count(daemon):
    client = daemon.start().client()
    text = TEXT.replace("${threads}", "512")
    h200, h100 = (client.rank([text], TARGET, board=board)[0].microseconds for board in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"))
    assert 1.2 < h100 / h200 < 1.6
    dynamic = text.replace("@scale(", "@scale[%M](").replace("f32[4096, 4096]", "f32[%M, 4096]").replace("grid(4096)", "grid(%M)")
    assert client.rank([dynamic], TARGET, symbols={"M": 64})[0].kernels[0].grid == 64


@pytest.mark.parametrize("symbols, problem", [({"zz": 1}, "the program has no size zz"), ({"M": -5}, "size M is -5; a size is at least 0"),
                                              ({"M": 2**62}, "at most 2\\^40")])
def test_sizes_that_are_none_are_refused(daemon, symbols, problem):
    text = TEXT.replace("${threads}", "512").replace("@scale(", "@scale[%M](").replace("f32[4096, 4096]", "f32[%M, 4096]")
    (one,) = daemon.start().client().rank([text], TARGET, symbols=symbols)
    assert re.search(problem, one.problem) and one.microseconds == math.inf


def test_a_space_is_ranked_once_and_then_takes_one_program(daemon):
    client = daemon.start().client()
    tiles, made = [(64, 64), (128, 128), (64, 128)], []

    def candidate(tile):
        def make():
            made.append(tile)
            return matmul(*tile)

        return make

    def rank(client, space=b"tiles", **how):
        made.clear()
        return [(one.index, one.microseconds) for one in client.rank([candidate(tile) for tile in tiles], TARGET, space=space, **how)]

    first = rank(client)
    assert len(first) == 3 and made == [tiles[0], *tiles]
    assert rank(client) == first and made == [tiles[0]]
    assert rank(client, b"") == first and made == tiles
    assert daemon.stop() == 0
    client = daemon.start().client()
    assert rank(client) == first and made == [tiles[0]], "it is in the store"
    for how in ({"space": b"others"}, {"board": "NVIDIA H100 PCIe"}, {"options": {"fast_math": True}}):
        rank(client, **how)
        assert made == [tiles[0], *tiles], how
    tiles[1:1] = [(128, 64)]
    assert len(rank(client)) == 4, "a ranking of fewer candidates is none of these"


def test_every_target_ranks(daemon):
    client = daemon.start().client()
    for target in client.capabilities().targets:
        assert client.rank([matmul(64, 64)], target)[0].microseconds < math.inf, target


@pytest.fixture
def command(daemon):
    daemon.start()

    def run(*arguments):
        environment = {**os.environ, "KILN_ADDRESS": f"unix:{daemon.socket}"}
        return subprocess.run([str(BUILD / "bin" / "kiln"), *arguments], capture_output=True, text=True, env=environment, timeout=60)

    return run


def test_the_command_ranks_a_space(command, tmp_path):
    program = tmp_path / "scale.kiln"
    program.write_text(TEXT)
    done = command("plan", str(program), "-t", TARGET, "--space", "threads=32,256,1024", "--json")
    assert done.returncode == 0, done.stderr
    ranked = json.loads(done.stdout)
    assert sorted(one["candidate"] for one in ranked) == ["threads=1024", "threads=256", "threads=32"]
    assert [one["microseconds"] for one in ranked] == sorted(one["microseconds"] for one in ranked)
    assert {"matrix", "memory", "shared"} <= {term["name"] for term in ranked[0]["kernels"][0]["units"]}
    table = command("plan", str(program), "-t", TARGET, "--space", "threads=256,512", "--text").stdout
    assert "threads=256" in table and "memory" in table and "wait: copies" in table


def test_the_command_says_what_is_wrong(command, tmp_path):
    program = tmp_path / "scale.kiln"
    program.write_text(TEXT)
    for arguments, said in (((), "--target"), (("-t", TARGET, "--space", "threads"), "NAME=VALUE"), (("-t", TARGET, "--space", "rows=1"), "${rows}"),
                            (("-t", TARGET, "--space", "threads=1,,2"), "empty")):
        done = command("plan", str(program), *arguments, "--text")
        assert done.returncode != 0 and said in done.stderr, (arguments, done.stderr)
