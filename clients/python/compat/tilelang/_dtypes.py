# SPDX-License-Identifier: Apache-2.0
"""What TileLang's module of element types has beside the types."""

from kiln.language.dtypes import NAMES, DType, as_dtype, dtype  # noqa: F401

_all_dtypes = list(NAMES)


class _TorchNames(dict):
    """torch's types to names. Worked out where one is looked up, so that importing needs no torch."""

    def __missing__(self, key):
        name = str(key).removeprefix("torch.")
        if name not in NAMES:
            raise KeyError(key)
        return name


_TORCH_DTYPE_TO_STR = _TorchNames()


def is_float4(value) -> bool:
    return as_dtype(value).is_float4()


def is_float4_e2m1fn(value) -> bool:
    return as_dtype(value).is_float4_e2m1fn()


def is_float4_e2m1_unpacked(value) -> bool:
    return as_dtype(value).is_float4_e2m1_unpacked()


def resolve_torch_storage_dtype(value) -> DType:
    """The type of the elements of a torch tensor that holds this type."""
    return as_dtype(str(as_dtype(value).as_torch()).removeprefix("torch."))
