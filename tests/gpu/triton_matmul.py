#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A product as Triton's tutorial 03 writes it, compiled by Kiln, beside Kiln's own program with the same tiles and, where it is installed,
Triton. Needs torch, a GPU and a daemon:

    PYTHONPATH=build/release/python tests/gpu/triton_matmul.py [--sizes 4096x4096x4096,…] [--tiles 128x256x64x3x8,…]

Tiles: BM x BN x BK x stages x warps. For each shape and layout of the second matrix a line: milliseconds of each, how many times as fast the
Triton program is as the others, the views and tensor maps that it has, and its registers and spills. It ends with 1 where a ratio to Kiln's
program is below 0.97, or to Triton below 1.2."""

import argparse
import importlib.util
import pathlib
import sys
import tempfile

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from bench_timing import Timer  # noqa: E402

TEXT = """
import {package} as triton
import {package}.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, BLOCK_SIZE_M: tl.constexpr,
                  BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr):
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    c = accumulator.to(tl.float16)
    offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, c, mask=c_mask)
"""


def kernel_of(package: str, folder: str):
    """The kernel by a package that has Triton's language."""
    path = pathlib.Path(folder) / f"matmul_{package.replace('.', '_')}.py"
    path.write_text(TEXT.format(package=package))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.matmul_kernel


def launcher(kernel, a, b, c, tile):
    m, k = a.shape
    n = b.shape[1]
    bm, bn, bk, stages, warps = tile
    grid = (-(-m // bm) * -(-n // bn),)
    return lambda: kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), BLOCK_SIZE_M=bm, BLOCK_SIZE_N=bn, BLOCK_SIZE_K=bk,
                                GROUP_SIZE_M=8, num_stages=stages, num_warps=warps)


def own(a, b, c, tile, turned):
    """Kiln's program with these tiles."""
    import kiln
    from kiln.library.programs.gemm import gemm

    bm, bn, bk, stages, warps = tile
    (m, k), n = a.shape, b.shape[1]
    kernel = kiln.compile(gemm(m, n, k, "float16", trans_b=turned, block_m=bm, block_n=bn, block_k=bk, stages=stages, threads=32 * warps))
    right = b.t() if turned else b
    return lambda: kernel(a, right, c)


def compare(timer, kernels, size, tile, turned) -> list:
    """Prints a line; returns what misses its bar."""
    m, n, k = size
    a = torch.randn(m, k, device="cuda", dtype=torch.float16)
    b = torch.randn(n, k, device="cuda", dtype=torch.float16).t() if turned else torch.randn(k, n, device="cuda", dtype=torch.float16)
    wanted, calls, found = a.double() @ b.double(), {}, None
    for name, kernel in kernels.items():
        c = torch.empty(m, n, device="cuda", dtype=torch.float16)
        calls[name] = launcher(kernel, a, b, c, tile)
        result = calls[name]()
        found = result if name == "kiln.triton" else found
        if ((c.double() - wanted).abs().max() / wanted.abs().max()).item() > 2e-3:
            raise SystemExit(f"{name} is wrong for {size}, {tile}")
    c = torch.empty(m, n, device="cuda", dtype=torch.float16)
    calls["kiln"] = own(a, b, c, tile, turned)
    times = timer.burst(calls)
    ratios = {name: times[name] / times["kiln.triton"] for name in times if name != "kiln.triton"}
    launch = found.artifact.launch
    print(f"{m}x{n}x{k} {'nt' if turned else 'nn'} {tile}: " + ", ".join(f"{name} {ms:.4f} ms" for name, ms in times.items()) + "; "
          + ", ".join(f"{ratio:.3f} x {name}" for name, ratio in ratios.items())
          + f"; {len(launch.views)} views, {len(launch.tensor_maps)} maps, {found.n_regs} registers, {found.n_spills} bytes spilled", flush=True)
    return [name for name, ratio in ratios.items() if ratio < (0.97 if name == "kiln" else 1.2)]


def numbers(text: str) -> list:
    return [tuple(int(x) for x in part.split("x")) for part in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=numbers, default="4096x4096x4096,8192x8192x8192,2048x2048x4096,4000x4000x4000")
    parser.add_argument("--tiles", type=numbers, default="128x256x64x3x8,128x128x64x4x4")
    options = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        kernels = {"kiln.triton": kernel_of("kiln.triton", folder)}
        if importlib.util.find_spec("triton") is not None:
            kernels["triton"] = kernel_of("triton", folder)
        timer = Timer()
        for size in options.sizes:
            for tile in options.tiles:
                for turned in (False, True):
                    missed += compare(timer, kernels, size, tile, turned)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
