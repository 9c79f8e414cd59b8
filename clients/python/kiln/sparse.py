# SPDX-License-Identifier: Apache-2.0
"""Matrices of which at most two of four neighbours in a row are not zero (of 32-bit elements one of two), as T.gemm_sp takes them."""

from __future__ import annotations

from .language.dtypes import as_dtype
from .language.sparse import elements_of, group_of


def compress(dense, meta_dtype="int16"):
    """(what is kept, metadata) of a numpy array or torch tensor of m × k, on the device that it is on. The first is m × k/2, of the same dtype;
    the second m × k/e, with e the elements that one of ``meta_dtype`` is for: 4 for four of its bits, of 32-bit elements 2.
    ValueError where a group has more elements that are not zero, or where k is no multiple of e."""
    import numpy as np

    meta = as_dtype(meta_dtype)
    if meta not in ("int8", "int16", "int32", "uint8", "uint16", "uint32"):
        raise ValueError(f"metadata of {meta}: an integer type of 8, 16 or 32 bits")
    if isinstance(dense, np.ndarray):
        values, places = _compressed(dense, dense.dtype.kind == "f", meta)
        return values.view(dense.dtype), places
    import torch

    by_size = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    if dense.element_size() not in by_size:
        raise ValueError(f"a sparse matrix of {dense.dtype}: elements of 8, 16 or 32 bits")
    bits = dense.detach().contiguous().view(by_size[dense.element_size()]).cpu().numpy()
    values, places = _compressed(bits, dense.is_floating_point() and not str(dense.dtype).endswith("fnuz"), meta)
    signed = torch.from_numpy(places.view(f"int{meta.bits}")).to(dense.device)
    return torch.from_numpy(values).to(dense.device).view(dense.dtype), signed if meta.kind == "i" else signed.view(getattr(torch, str(meta)))


def _compressed(matrix, floats: bool, meta):
    """As integers of the elements' size, and as ``meta``."""
    import numpy as np

    if matrix.ndim != 2 or matrix.itemsize not in (1, 2, 4):
        raise ValueError(f"a sparse matrix of shape {matrix.shape} and {matrix.dtype}: it has two dimensions, and elements of 8, 16 or 32 bits")
    bits = np.ascontiguousarray(matrix).view(f"int{8 * matrix.itemsize}")
    dtype = as_dtype(f"int{8 * matrix.itemsize}")
    (keeps, group), each, (m, k) = group_of(dtype), elements_of(dtype, meta), matrix.shape
    if k % each:
        raise ValueError(f"rows of {k} elements: an element of {meta} is for {each}, so {each * -(-k // each)} are needed")
    groups = bits.reshape(m, k // group, group)
    there = (groups << 1 if floats else groups) != 0  # of floats, −0 is zero, but in the types that have NaN there
    if (crowded := np.argwhere(there.sum(-1) > keeps)).size:
        row, at = crowded[0]
        raise ValueError(f"row {row} has more than {keeps} of {group} elements that are not zero from column {at * group} on")
    order = np.sort(np.argsort(~there, axis=-1, kind="stable")[..., :keeps], axis=-1)
    values = np.take_along_axis(groups, order, -1).reshape(m, k // group * keeps)
    chunks = order[..., 0] | order[..., 1] << 2 if keeps == 2 else np.where(order[..., 0] == 0, 0b0100, 0b1110)
    chunks = chunks.astype(np.uint32).reshape(m, k // each, each // group)
    places = (chunks << (4 * np.arange(each // group, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    return values, places.astype(f"uint{meta.bits}").view(str(meta))
