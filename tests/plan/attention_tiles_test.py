# SPDX-License-Identifier: Apache-2.0
"""Which of kiln.library's tiles the planner takes for attention: the ones that were the fastest on an H200. Under a causal mask, four groups of warps
skip most of the steps of which their rows see no key, which are a good part of all where tokens are few."""

import pytest
from daemon import planned_by

FASTEST = {(16, 1024, True): 256, (8, 2048, True): 256, (2, 8192, True): 192, (1, 16384, True): 192, (8, 2048, False): 192, (1, 16384, False): 192}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    from daemon import Daemon, socket_folder

    with socket_folder() as sockets:
        daemon = Daemon(tmp_path_factory.mktemp("plan"), sockets)
        daemon.start()
        try:
            yield daemon.client()
        finally:
            daemon.end()


def planned(client, shape, causal):
    """The arguments of the planner's program."""
    from kiln import library
    from kiln.library.operation import OPERATIONS

    tensor = library.Spec(shape, "bfloat16")
    with planned_by(client):
        return dict(OPERATIONS["attention"].planned([tensor, tensor, tensor, causal, None], "cuda:sm_90a").program.arguments)


@pytest.mark.parametrize("batch, tokens, causal", FASTEST)
def test_heads_of_64_elements_take_the_fastest_tiles(client, batch, tokens, causal):
    assert planned(client, (batch, tokens, 32, 64), causal)["block_m"] == FASTEST[batch, tokens, causal]


def test_few_tokens_of_heads_of_128_elements_have_registers_for_three_groups_at_most(client):
    from kiln.library import spaces

    offered = [dict(tile)["threads"] for tile in spaces.attention(128, "cuda:sm_90a")]
    assert offered == [256, 384] and planned(client, (2, 1024, 32, 128), True)["threads"] in offered
