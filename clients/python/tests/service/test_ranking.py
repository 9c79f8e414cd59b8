# SPDX-License-Identifier: Apache-2.0
"""What a ranking says, and how many candidates go in one call."""

import math
import warnings

import pytest
from kiln import _proto, ranking


class Request:
    def __init__(self, size):
        self.size = size

    def ByteSize(self):
        return self.size


def test_parts_keep_the_limits_and_every_candidate():
    assert list(ranking.parts([])) == []
    assert [len(part) for part in ranking.parts([Request(1)] * 5000)] == [4096, 904]
    assert list(ranking.parts([Request(3 << 20), Request(2 << 20), Request(1), Request(9 << 20)])) == [[0], [1, 2], [3]]


def test_terms_of_all_kernels_add_up():
    pb = _proto.messages()
    matrix, copies = {"name": "matrix", "microseconds": 1.5}, {"name": "copies", "microseconds": 0.5}
    kernel = {"microseconds": 2.0, "units": [matrix], "waits": [copies], "launch": 1.0}
    message = pb.RankedCandidate(candidate=3, estimate=pb.Estimate(microseconds=4.0, kernels=[pb.KernelEstimate(**kernel)] * 2))
    ranked = ranking.Ranked.of(7, message)
    assert (ranked.index, ranked.microseconds, ranked.limit) == (7, 4.0, "matrix")
    assert ranked.terms == {"matrix": 3.0, "wait for copies": 1.0, "launch": 2.0}


def test_what_was_refused_comes_last():
    pb = _proto.messages()
    refused = ranking.Ranked.of(0, pb.RankedCandidate(code=3, message="no such tile"))
    assert refused.microseconds == math.inf and refused.problem == "no such tile" and refused.limit == ""
    assert sorted([refused, ranking.Ranked(2, 5.0), ranking.Ranked(1, 5.0)])[-1] is refused
    assert [one.index for one in sorted([ranking.Ranked(2, 5.0), ranking.Ranked(1, 5.0)])] == [1, 2]


def test_a_board_that_the_planner_does_not_know_is_told():
    pb = _proto.messages()
    ranked = [ranking.Ranked.of(0, pb.RankedCandidate(estimate=pb.Estimate(microseconds=1.0, board="NVIDIA H200"))), ranking.Ranked(1)]
    with pytest.warns(UserWarning, match="does not know the GPU 'NVIDIA B300'; it counts with 'NVIDIA H200'"):
        ranking.warn_of_another("NVIDIA B300", ranked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranking.warn_of_another("NVIDIA H200", ranked)
        ranking.warn_of_another("", ranked)
