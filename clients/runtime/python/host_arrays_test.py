# SPDX-License-Identifier: Apache-2.0
"""Arrays of the host that share memory, or whose elements share bytes, over the fake driver."""

import sys

import numpy as np
import pytest
from runtime_test import TorchLike, copy_artifact, fake, last_launch, runtime, without_inputs


def test_numpy_arrays_that_may_overlap_share_their_memory():
    fake.kiln_fake_reset()
    artifact = copy_artifact(output=False)
    for may_alias, apart in ((False, None), (True, 64)):
        for param in artifact.launch.params:
            param.may_alias = may_alias
        memory = np.arange(64, dtype=np.float32)
        runtime.load(artifact.SerializeToString())(memory[:32], memory[16:48])
        x, y = last_launch().params[:2]
        assert memory.tolist() == [*range(16), *range(32), *range(48, 64)] and (apart is None or y - x == apart)
    memory = np.arange(64, dtype=np.float32)
    runtime.load(artifact.SerializeToString())(memory[:32], memory[32:])
    assert memory.tolist() == [*range(32), *range(32)]


@pytest.mark.parametrize("dtype", ["U4", "F4E2M1"])
def test_a_byte_of_numpy_holds_two_elements_of_four_bits(dtype):
    kernel = runtime.load(copy_artifact(dtype, output=False).SerializeToString())
    assert kernel.symbols(np.zeros(8, np.uint8), np.zeros(8, np.uint8)) == {"n": 16}


@pytest.mark.parametrize("names", [("int8",), ("int8", "float4_e2m1fn_x2")])
def test_outputs_of_four_bit_floats_are_of_torchs_pairs(monkeypatch, names):
    made = []

    def empty(shape, dtype, device):
        made.append((shape, dtype))
        return TorchLike(runtime.Array(shape, "uint8"))

    members = {"cuda": type("cuda", (), {"is_available": staticmethod(lambda: True)}), "empty": staticmethod(empty), **{name: name for name in names}}
    monkeypatch.setitem(sys.modules, "torch", type("FakeTorch", (), members))
    without_inputs("F4E2M1")(None, stream=0)
    assert made == [((8,), names[-1])]
