# SPDX-License-Identifier: Apache-2.0
"""Arrays of the host that share memory, over the fake driver."""

import numpy as np
from runtime_test import copy_artifact, fake, last_launch, runtime


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
