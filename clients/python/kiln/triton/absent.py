# SPDX-License-Identifier: Apache-2.0
"""Names of ``triton.language`` that Kiln does not have, and what to use."""

_POINTERS = "add offsets to the pointer and give tl.load and tl.store a mask"
_ATOMICS = "tl.atomic_cas in a `while` loop"
_DEVICE = "write what it computes in the language"

NAMES = {
    "make_block_ptr": _POINTERS, "advance": _POINTERS, "make_tensor_descriptor": _POINTERS, "load_tensor_descriptor": _POINTERS,
    "store_tensor_descriptor": _POINTERS, "tensor_descriptor": _POINTERS,
    "atomic_poll": _ATOMICS,
    "dot_scaled": "scale the operands and use tl.dot",
    "inline_asm_elementwise": _DEVICE, "map_elementwise": _DEVICE, "extra": _DEVICE, "target_info": "pass what it says as a tl.constexpr",
}
