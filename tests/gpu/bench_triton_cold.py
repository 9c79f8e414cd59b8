# SPDX-License-Identifier: Apache-2.0
"""Triton's kernels whose cold compiles are timed: what its users write for these jobs, one configuration each."""

import os
import shutil
import tempfile

import torch
import triton
import triton.language as tl

from bench_triton import _grouped


@triton.jit
def _gemm(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr):
    tile = tl.program_id(0)
    rows_of_tiles, columns_of_tiles = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    panel = tile // (GROUP * columns_of_tiles)
    height = min(rows_of_tiles - panel * GROUP, GROUP)
    row = panel * GROUP + tile % (GROUP * columns_of_tiles) % height
    column = tile % (GROUP * columns_of_tiles) // height
    rows = (row * BLOCK_M + tl.arange(0, BLOCK_M)) % m
    columns = (column * BLOCK_N + tl.arange(0, BLOCK_N)) % n
    depth = tl.arange(0, BLOCK_K)
    left = a + rows[:, None] * k + depth[None, :]
    right = b + columns[None, :] * k + depth[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, tl.cdiv(k, BLOCK_K)):
        inside = depth < k - start * BLOCK_K
        total = tl.dot(tl.load(left, mask=inside[None, :], other=0.0), tl.load(right, mask=inside[:, None], other=0.0), total)
        left += BLOCK_K
        right += BLOCK_K
    out_rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    out_columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (out_rows[:, None] < m) & (out_columns[None, :] < n)
    tl.store(c + out_rows[:, None] * n + out_columns[None, :], total.to(c.dtype.element_ty), mask=mask)


@triton.jit
def _softmax(x, y, n, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + columns, mask=columns < n, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * n + columns, (powers / tl.sum(powers, axis=0)).to(y.dtype.element_ty), mask=columns < n)


@triton.jit
def _rms_norm(x, w, y, n, eps, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + columns, mask=columns < n, other=0.0).to(tl.float32)
    weights = tl.load(w + columns, mask=columns < n, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / n + eps)
    tl.store(y + row * n + columns, (values * scale * weights).to(y.dtype.element_ty), mask=columns < n)


_T = torch.bfloat16
_I = torch.int32
# Arguments by type or value, constants, warps and stages.
_KERNELS = {
    "gemm": (_gemm, (_T, _T, _T, 8192, 8192, 8192), {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP": 8}, 8, 3),
    "grouped": (_grouped.fn, (_T, _T, _I, _T, 4096, 7168), {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}, 8, 3),
    "softmax": (_softmax, (_T, _T, 8192), {"BLOCK": 8192}, 8, 2),
    "rms_norm": (_rms_norm, (_T, _T, _T, 8192, 1e-6), {"BLOCK": 8192}, 8, 2),
}


def compiler(name):
    """A call that compiles the kernel to a cubin as a process does that never saw it: no cache of Triton's, in memory or on disk, is
    asked. The first call also pays for what Triton sets up once a process."""
    kernel, arguments, constants, warps, stages = _KERNELS[name]

    def compile_cold():
        folder = tempfile.mkdtemp(prefix="triton-cold-")
        before = {key: os.environ.get(key) for key in ("TRITON_CACHE_DIR", "TRITON_ALWAYS_COMPILE")}
        os.environ.update(TRITON_CACHE_DIR=folder, TRITON_ALWAYS_COMPILE="1")
        try:
            compiled = triton.jit(kernel.fn).warmup(*arguments, **constants, num_warps=warps, num_stages=stages, grid=(1,))
            assert compiled.asm["cubin"]
        finally:
            for key, value in before.items():
                os.environ.pop(key, None) if value is None else os.environ.update({key: value})
            shutil.rmtree(folder, ignore_errors=True)

    return compile_cold
