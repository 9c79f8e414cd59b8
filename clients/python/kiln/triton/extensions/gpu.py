# SPDX-License-Identifier: Apache-2.0
"""``tle.gpu``: buffers in shared memory, copies, barriers and groups of warps."""

from __future__ import annotations

from ..builtin import Absent, no_effect as _no_effect
from ..errors import Refusal as _Refusal
from ..language import range  # noqa: F401
from ..language import range as pipeline  # noqa: F401
from .barriers import PENDING, READY, alloc_barrier, alloc_barriers, barrier_arrive, barrier_wait  # noqa: F401
from .buffers import alloc, buffered_tensor, gpu as _gpu, local_ptr, smem, tmem  # noqa: F401
from .buffers import load as local_load, store as local_store  # noqa: F401
from .copies import copy, wgmma, wgmma_wait  # noqa: F401
from .roles import warp_specialize  # noqa: F401

_LAYOUTS = "how blocks and buffers lie in registers and in memory is inferred; leave it out"
ABSENT = {
    "set_layout": _LAYOUTS, "BlockEncoding": _LAYOUTS, "MmaEncoding": _LAYOUTS, "DotOperandEncoding": _LAYOUTS, "SlicedEncoding": _LAYOUTS,
    "swizzled_shared_layout": _LAYOUTS, "nv_mma_shared_layout": _LAYOUTS, "shared_layout": _LAYOUTS, "tensor_memory_layout": _LAYOUTS,
    "async_commit_group": "copies are complete where the next statement needs them; leave it out",
    "async_wait_group": "copies are complete where the next statement needs them; leave it out",
    "tensor_map_table_entry": "give kernels a TensorDescriptor, or make one by tl.make_tensor_descriptor",
    "tensor_map_fenceproxy_acquire": "give kernels a TensorDescriptor, or make one by tl.make_tensor_descriptor",
    "reinterpret_tensor_map": "give kernels a TensorDescriptor, or make one by tl.make_tensor_descriptor",
}
_ABSENT = {name: Absent(name, instead, "tle.gpu") for name, instead in ABSENT.items()}


@_gpu
def memory_space(b, input, space):
    """The block itself: where it is kept is inferred."""
    if space not in ("shared_memory", "tensor_memory", "register"):
        raise _Refusal(f"tle.gpu.memory_space(…, {space!r}); known are \"shared_memory\", \"tensor_memory\" and \"register\"")
    _no_effect(b, "tle.gpu.memory_space", "where a block is kept is inferred from what takes it; leave it out, or store the block to a buffer of "
               "tle.gpu.alloc")
    return input


def __getattr__(name):
    if name in _ABSENT:
        return _ABSENT[name]
    raise AttributeError(f"triton.experimental.tle.language.gpu.{name} is not part of Kiln's Triton front end")
