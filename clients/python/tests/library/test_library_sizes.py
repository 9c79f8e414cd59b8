# SPDX-License-Identifier: Apache-2.0
"""Sizes of the library's programs: tiles of products fit whatever the planner chooses, it is asked once, and other sizes follow from the shape as
measurements say they should."""

import pathlib
import re

import pytest

from kiln import library
from kiln.errors import CompileError, KilnError
from kiln.library import plans, sizes, spaces
from kiln.library.programs.gemm import gemm
from kiln.ranking import Ranked

HOPPER = "cuda:sm_90a"
TARGET = pathlib.Path(__file__).resolve().parents[4] / "compiler" / "target"
SHAPES = [(8192, 8192, 8192), (8, 8192, 8192), (16, 512, 4096), (64, 8192, 8192), (144, 80, 48), (384, 4096, 4096), (5000, 3000, 2000), (8, 16, 16)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype, out, trans_b", [("bfloat16", "bfloat16", True), ("float16", "float32", False), ("float8_e4m3fn", "bfloat16", True)])
def test_every_tile_fits_a_block(shape, dtype, out, trans_b):
    m, n, k = shape
    element = 1 if "8" in dtype else 2
    space = [dict(tile) for tile in spaces.product(m, n, k, dtype, out, False, trans_b, HOPPER)]
    assert 1 <= len(space) <= 32 and len({tuple(tile.items()) for tile in space}) == len(space)
    for tile in space:
        assert tile["stages"] * (tile["block_m"] + tile["block_n"]) * tile["block_k"] * element <= spaces.SHARED - spaces.BARRIERS
        assert tile["stages"] >= 2 and tile["block_m"] % 8 == 0 and tile["block_n"] % 64 == 0 and tile["block_k"] * element % 128 == 0
        assert tile["block_m"] * tile["block_n"] <= 192 * tile["threads"], "the sums leave registers"
        assert tile["block_m"] < m + 64 and tile["block_n"] < n + 64, "no row of blocks lies outside"


@pytest.mark.parametrize("shape, trans_b", [((777, 1111, 2222), False), ((16, 8191, 8191), True), ((8, 77, 99), False)])
def test_operands_whose_rows_begin_anywhere_are_loaded_directly_or_laid_out_anew(shape, trans_b):
    given = (*shape, "bfloat16", "bfloat16", False, trans_b, HOPPER)
    direct, every = spaces.product(*given), spaces.product(*given, copies=True)
    assert every[: len(direct)] == direct and dict(direct[0])["stages"] == 1
    copied = [dict(tile) for tile in every[len(direct) :]]
    assert copied and all(tile.pop("copied") for tile in copied)
    assert all(tile["block_m"] * tile["block_n"] <= 192 * tile["threads"] for tile in copied)


def test_few_rows_need_not_be_padded_to_whole_instructions():
    for m in (8, 16, 32, 64, 72, 96, 136, 192):
        assert m in {dict(tile)["block_m"] for tile in spaces.product(m, 8192, 8192, "bfloat16", "bfloat16", False, True, HOPPER)}


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942", "emu:sm_90"])
def test_other_targets_have_what_serves_everywhere(target):
    assert spaces.product(8192, 8192, 8192, "float16", "float16", False, True, target) == spaces.one(sizes.PLAIN)


def test_the_target_has_the_same_limit():
    row = re.search(r'^KILN_TARGET\("cuda:sm_90a", (.*)\)$', (TARGET / "targets.def").read_text(), re.MULTILINE).group(1).split(", ")
    assert int(row[5]) == spaces.SHARED


class Planner:
    """A client that expects most of what comes last, by a microsecond for each, or says what a daemon does that cannot."""

    def __init__(self, problem="", failure=None, most=100.0):
        self.asked, self.problem, self.failure, self.most = [], problem, failure, most

    def rank(self, candidates, target, **how):
        if self.failure:
            raise self.failure
        self.asked.append((len(candidates), target, how))
        return [Ranked(index, self.most - index, self.problem) for index in reversed(range(len(candidates)))]


@pytest.fixture
def planner(monkeypatch):
    def make(**how):
        made = Planner(**how)
        monkeypatch.setattr(plans, "default_client", lambda: made)
        monkeypatch.setattr(plans, "_choices", {})
        return made

    return make


def planned(m=4096, n=4096, k=4096, dtype="bfloat16", trans_a=False, trans_b=True, target=HOPPER, activation=None):
    a, b = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
    arguments = [library.Spec(a, dtype), library.Spec(b, dtype), None, None, None, activation, trans_a, trans_b, None, False, False]
    return library.plan("matmul", *arguments, target=target)


def test_the_planner_is_asked_once_for_a_program(planner):
    client = planner()
    plan = planned()
    (count, target, how), = client.asked
    space = spaces.product(4096, 4096, 4096, "bfloat16", "bfloat16", False, True, HOPPER)
    assert (count, target, how["symbols"]) == (len(space), HOPPER, {"M": 4096}) and how["space"]
    assert dict(space[-1]).items() <= dict(plan.program.arguments).items(), "what comes first is taken"
    assert planned() == plan and planned(4095).program == plan.program and len(client.asked) == 1, "one program serves a range of rows"
    planned(activation="relu")
    assert len(client.asked) == 2
    planned(trans_a=True, k=1000)
    assert client.asked[-1][2]["symbols"] == {"K": plans.bucket(1000)}


def test_rows_of_any_length_at_launch_are_not_laid_out_anew(planner):
    """The program is made for a rounded K, which says nothing of where rows begin."""
    planner()
    for trans_b, k, stages in ((True, 4095, 1), (True, 4096, None), (False, 4095, None)):
        arguments = dict(planned(trans_a=True, trans_b=trans_b, k=k).program.arguments)
        assert not arguments.get("copied") and (stages is None or arguments["stages"] == stages), (trans_b, k)
    assert dict(planned(trans_b=False, n=1111).program.arguments)["copied"]


def test_of_what_is_expected_to_be_alike_the_first_is_taken(planner):
    planner(most=1e6)
    space = spaces.product(4096, 4096, 4096, "bfloat16", "bfloat16", False, True, HOPPER)
    assert dict(space[0]).items() <= dict(planned().program.arguments).items()


def test_promoted_sums_leave_registers_for_narrower_tiles():
    given = (8192, 8192, 8192, "float8_e4m3fn", "bfloat16", False, True, HOPPER)
    widths = [dict(spaces.product(*given, promoted=promoted)[0])["block_n"] for promoted in (True, False)]
    assert widths == [192, 256]


def test_nobody_is_asked_where_there_is_no_choice(planner):
    client = planner()
    for arguments in ({"target": "cuda:sm_80"}, {"dtype": "float32"}, {"m": 1}, {"target": "cuda:sm_80", "m": 100, "k": 1111}):
        planned(**arguments).program.trace()
    assert not client.asked


def test_a_daemon_that_cannot_choose_says_what_to_do(planner):
    planner(failure=CompileError("UNIMPLEMENTED", "unknown method Rank"))
    with pytest.raises(KilnError, match="too old to have one: update it"):
        planned()
    planner(problem="no such thing")
    with pytest.raises(KilnError, match="refuses all .* tiles .*no such thing"):
        planned()


def test_without_a_daemon_the_address_is_named(monkeypatch, tmp_path):
    from kiln.client import Client
    from kiln.errors import ServiceUnavailable

    monkeypatch.setenv("KILN_AUTOSTART", "0")
    monkeypatch.setattr(plans, "_choices", {})
    with Client(f"unix:{tmp_path}/none.sock", timeout=0.2) as client:
        monkeypatch.setattr(plans, "default_client", lambda: client)
        with pytest.raises((ServiceUnavailable, KilnError), match="none.sock"):
            planned()


@pytest.mark.parametrize("k", [8, 100, 1000, 4096, 5120, 7680, 8192, 11008, 14336, 28672])
def test_steps_of_one_row(k):
    tile = sizes.one_row(k)
    outside = -k % tile["columns"]
    assert outside * 12 <= k or tile["columns"] == 512
    assert tile["columns"] // tile["threads"] in (8, 16) and tile["threads"] % 32 == 0 and tile["threads"] <= 1024


def test_one_row_is_computed_without_tiles():
    arguments = {"in_dtype": "bfloat16", "trans_b": True, "target": HOPPER}
    assert "gemv" in gemm(1, 8192, 8192, **arguments).name
    for m, n, k, changed in ((2, 512, 512, {}), (1, 512, 516, {}), (1, 512, None, {}), (1, 512, 512, {"trans_b": False}),
                             (1, 512, 512, {"in_dtype": "float8_e4m3fn"}), (1, 512, 512, {"block_m": 16, "block_n": 64})):
        assert "gemv" not in gemm(m, n, k, **{**arguments, **changed}).name


@pytest.mark.parametrize("target, changed", [(HOPPER, {}), ("hip:gfx1100", {"block_n": 64})])
@pytest.mark.parametrize("shape", [(None, 512, 512), (512, 512, None)])
def test_what_is_not_known_gets_more_threads_for_its_addresses(shape, target, changed):
    given = {**sizes.PLAIN, **changed, "threads": 256}
    assert gemm(*shape, target=target).serialized == gemm(*shape, **given).serialized


def test_sizes_that_are_given_stay():
    given = gemm(8192, 8192, 8192, block_m=64, target=HOPPER).serialized
    assert given == gemm(8192, 8192, 8192, **{**sizes.PLAIN, "block_m": 64}).serialized


@pytest.mark.parametrize("dim", range(16, 257, 16))
def test_tiles_of_attention_fit_a_block(dim):
    space = [dict(tile) for tile in spaces.attention(dim, HOPPER)]
    assert len({tuple(tile.items()) for tile in space}) == len(space) and space[0]["threads"] == 256
    for tile in space:
        assert tile["block_m"] * 2 == tile["threads"] and tile["block_n"] % 16 == 0, "each group of four warps has 64 rows"
        assert (tile["block_m"] + 2 * tile["stages"] * tile["block_n"]) * 2 * dim <= spaces.SHARED - spaces.BARRIERS
    assert [dict(tile) for tile in spaces.attention(dim, "hip:gfx942")] == [sizes.attention(dim, "hip:gfx942")]


def test_attention_has_as_many_groups_as_the_planner_expects_most_of(monkeypatch):
    asked = []

    def ask(program, space, options, target, board, symbols):
        asked.append(symbols)
        return space[-1]

    monkeypatch.setattr(plans, "_ask", ask)
    monkeypatch.setattr(plans, "_choices", {})
    for tokens in (1000, 1024, 8192):
        plan = library.plan("attention", *[library.Spec((2, tokens, 4, 64), "float16")] * 3, False, None, target=HOPPER)
        assert dict(plan.program.arguments)["threads"] == 384
    assert [symbols["seq_len"] for symbols in asked] == [1024, 8192], "it is not asked for each number of tokens"


def test_multiprocessors_are_those_of_each_first_board():
    boards = re.findall(r'^KILN_BOARD\("[^"]*", "(\w+)", (\d+),', (TARGET / "boards.def").read_text(), re.MULTILINE)
    assert sizes.MULTIPROCESSORS == {name: int(count) for name, count in reversed(boards)}


def test_blocks_share_keys_where_there_are_few():
    assert sizes.splits(8, 1024, HOPPER) == 32, "8 · 32 of 264 at once"
    assert sizes.splits(1024, 16, HOPPER) == 1 and sizes.splits(1, 1, HOPPER) == 1
    assert sizes.splits(8, 1024, "hip:gfx942") > 32 > sizes.splits(8, 1024, "cuda:sm_86")
    assert all(sizes.splits(blocks, steps, HOPPER) <= steps for blocks in (1, 7, 300) for steps in (1, 2, 5, 1000))


def test_parts_of_long_rows_lie_in_a_block():
    for n in range(16384 + 8, 131072 + 1, 8):
        part = sizes.row_part(n)
        assert part == 0 or (n % part == 0 and part % 8 == 0 and 5461 < part <= 16384 and (n - part) * 2 <= 7 * 32768)
    assert [sizes.row_part(n) for n in (16400, 35376, 131072, 28312)] == [8200, 11792, 16384, 0]


def test_short_rows_share_a_block():
    for n in range(1, 2049):
        count = sizes.short_rows(n)
        assert count & (count - 1) == 0 and (count == 64 or 12 * 128 < count * n <= 32 * 128)
    assert all(sizes.short_rows(n) * n % (8 * 128) == 0 for n in (64, 128, 256, 384, 512, 768, 1024, 1536)), "each thread has whole loads of 16 bytes"
    assert sizes.short_rows(2049) == 1
    for program in ("rms_norm_short", "layer_norm_short", "cross_entropy_short", "quantize_rows", "softmax"):
        assert sizes.rows(program, 256) == {"threads": 128, "rows": 8}
