# SPDX-License-Identifier: Apache-2.0
"""The peer for grouped products: one Triton kernel over all groups, its tiles tuned at the first call."""

import torch
import triton
import triton.language as tl

_CONFIGS = [triton.Config({"BLOCK_N": n, "BLOCK_K": k}, num_warps=w, num_stages=s)
            for n, k, w, s in ((128, 64, 4, 4), (128, 64, 8, 4), (256, 64, 8, 3), (256, 64, 8, 4), (128, 128, 8, 3))]


@triton.autotune(configs=_CONFIGS, key=["n", "k"])
@triton.jit
def _grouped(a, b, expert, c, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    column, tile = tl.program_id(0), tl.program_id(1)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    weights = b + tl.load(expert + tile).to(tl.int64) * n * k
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        left = tl.load(a + rows[:, None].to(tl.int64) * k + depth[None, :])
        right = tl.load(weights + columns[None, :] * k + depth[:, None])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None].to(tl.int64) * n + columns[None, :], total.to(c.dtype.element_ty))


def grouped_gemm(a, b, expert, out, block_m):
    """Rows of `a` in whole tiles of `block_m`, each with the number of its matrix in `expert`."""
    n, k = b.shape[1], b.shape[2]
    assert n % 256 == 0 and k % 128 == 0 and torch.is_tensor(expert)
    _grouped[lambda meta: (n // meta["BLOCK_N"], expert.numel())](a, b, expert, out, n, k, BLOCK_M=block_m)
    return out
