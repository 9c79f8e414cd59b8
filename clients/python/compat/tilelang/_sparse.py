# SPDX-License-Identifier: Apache-2.0
"""How 2:4 sparse matrices are laid out, by TileLang's names."""

from kiln.language.dtypes import as_dtype
from kiln.language.sparse import elements_of, group_of

GROUP_CONFIG = {as_dtype(name): group_of(as_dtype(name)) for name in (
    "float32", "float16", "bfloat16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")}


def get_e_factor(a_dtype, meta_dtype) -> int:
    """How many elements one of metadata is for."""
    return elements_of(as_dtype(a_dtype), as_dtype(meta_dtype))


def get_e_replicate_factor(a_dtype) -> int:
    """How many neighbouring threads have the same metadata in an mma.sp instruction."""
    return 1 if as_dtype(a_dtype).bits <= 8 else 2
