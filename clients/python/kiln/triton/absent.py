# SPDX-License-Identifier: Apache-2.0
"""Names of ``triton.language`` that Kiln does not have, and what to use."""

_POINTERS = "add offsets to the pointer and give tl.load and tl.store a mask"
_ATOMICS = "tl.atomic_cas in a `while` loop"
_RANDOM = "make the random numbers on the host and pass them as a tensor"
_SCANS = "reduce with tl.sum over a masked square block, or scan in a tile program (kiln.language)"
_INDEX = "store the block and load it with the other index, in a second kernel or through a tensor of your own"
_DEVICE = "write what it computes in the language"

NAMES = {
    "make_block_ptr": _POINTERS, "advance": _POINTERS, "make_tensor_descriptor": _POINTERS, "load_tensor_descriptor": _POINTERS,
    "store_tensor_descriptor": _POINTERS, "tensor_descriptor": _POINTERS,
    "atomic_poll": _ATOMICS,
    **{name: _RANDOM for name in ("rand", "randn", "randint", "rand4x", "randn4x", "randint4x", "philox", "philox_impl",
                                  "pair_uniform_to_normal", "uint_to_uniform_float")},
    **{name: _SCANS for name in ("associative_scan", "cumsum", "cumprod")},
    "histogram": "compare the block with each bin and sum: tl.sum((x[:, None] == bins[None, :]).to(tl.int32), 0)",
    "sort": "sort on the host", "topk": "take tl.max and tl.argmax in turn", "bitonic_merge": "sort on the host",
    **{name: _INDEX for name in ("gather", "flip", "swizzle2d", "cat", "join", "split", "interleave")},
    "dot_scaled": "scale the operands and use tl.dot", "umulhi": "multiply as tl.int64 and shift by 32",
    "inline_asm_elementwise": _DEVICE, "map_elementwise": _DEVICE, "extra": _DEVICE, "target_info": "pass what it says as a tl.constexpr",
    "tuple": "write (a, b)", "condition": "write `while cond:`",
}
