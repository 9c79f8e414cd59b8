# SPDX-License-Identifier: Apache-2.0
"""``triton.experimental.tle`` and its ``language``, which have the same names here: the extensions of Triton's language by tiles of blocks, by
buffers in shared memory and by groups of warps."""

from __future__ import annotations

import sys as _sys

from .builtin import Absent as _Absent
from .extensions import gpu, raw  # noqa: F401
from .extensions.buffers import buffered_tensor  # noqa: F401
from .extensions.pipes import pipe  # noqa: F401
from .extensions.raw import called_from_tle as call  # noqa: F401
from .extensions.tiles import cumsum, extract_tile, insert_tile, load  # noqa: F401
from .language import range  # noqa: F401

_BLOCKS = "kernels of Triton see one block; T.copy_cluster and T.Cluster… of Kiln's tile language exchange data between the blocks of a cluster"
_VIEWS = "add offsets to pointers, or use tl.make_tensor_descriptor"
ABSENT = {
    **dict.fromkeys(("device_mesh", "sharding", "shard_id", "distributed_barrier", "remote", "reshard", "distributed_dot"), _BLOCKS),
    **dict.fromkeys(("make_tensor_view", "make_partition_view", "make_view", "load_view_tko", "store_view_tko", "dim"), _VIEWS),
    "create_mem_token": "statements are seen in their order; leave it out", "join_mem_tokens": "statements are seen in their order; leave it out",
    "pipeline_group": "loop over tl.range(n, num_stages=…)", "dsa": "it is of other devices; tle.gpu has buffers in shared memory",
    "local_load": "use tle.gpu.local_load, or tl.load(tle.gpu.local_ptr(buffer))",
    "local_store": "use tle.gpu.local_store, or tl.store(tle.gpu.local_ptr(buffer), value)",
}
_ABSENT = {name: _Absent(name, instead, "tle") for name, instead in ABSENT.items()}
language = _sys.modules[__name__]


def __getattr__(name):
    if name in _ABSENT:
        return _ABSENT[name]
    raise AttributeError(f"triton.experimental.tle.{name} is not part of Kiln's Triton front end")
