# SPDX-License-Identifier: Apache-2.0
"""Groups of warps that run functions of their own at the same time. The kernel goes on in the first of them: what stands behind the call is done by
the kernel's own warps."""

from __future__ import annotations

from ..build import describe
from ..errors import Refusal
from ..graph import Block
from ..interpret import flatten
from ..shapes import integer_of
from .buffers import gpu

MOST_THREADS = 1024
REGISTERS = 65536  # of a multiprocessor, for the threads of a block that has it alone
GROUP = 4  # warps that registers are given to, and that a wgmma takes


@gpu
def warp_specialize(b, functions_and_args, worker_num_warps, worker_num_regs=None):
    """``[(function, arguments), …]``: the first is run by the kernel's own warps, and its result is returned; each other by as many warps beside them
    as ``worker_num_warps`` says, with as many registers for each thread as ``worker_num_regs`` says. What one group does another sees behind the
    barriers of tle.gpu.alloc_barriers, or by a tle.pipe. What stands before the call all of them have done."""
    parts = [_part(part) for part in functions_and_args] if isinstance(functions_and_args, (tuple, list)) else []
    warps, registers = _numbers(worker_num_warps, "worker_num_warps"), _numbers(worker_num_regs or (), "worker_num_regs")
    if not parts or len(warps) != len(parts) - 1 or registers and len(registers) != len(warps):
        raise Refusal(f"tle.gpu.warp_specialize of {len(parts)} functions with worker_num_warps={describe(worker_num_warps)} and worker_num_regs="
                      f"{describe(worker_num_regs)}; the first function has the kernel's warps, and each other needs its numbers")
    if b.block is not b.body or any(op.name == "tle.warp_specialize" for op in b.body.ops):
        raise Refusal("tle.gpu.warp_specialize inside of a loop, a branch or another warp_specialize; call it once in a kernel, and write the loops "
                      "in its functions")
    if 32 * (b.num_warps + sum(warps)) > MOST_THREADS:
        raise Refusal(f"tle.gpu.warp_specialize of {b.num_warps} and {' and '.join(map(str, warps))} warps; a block has at most {MOST_THREADS // 32}")
    if any(count % 8 or not 24 <= count <= 256 for count in registers):
        raise Refusal(f"worker_num_regs={describe(worker_num_regs)} of tle.gpu.warp_specialize: a number is a multiple of 8 from 24 to 256")
    if sum(32 * n * count for n, count in zip((b.num_warps, *warps), (24, *registers))) > REGISTERS:
        raise Refusal(f"worker_num_regs={describe(worker_num_regs)} of tle.gpu.warp_specialize leaves the kernel's {b.num_warps} warps less than 24 "
                      f"registers for each thread; a block has {REGISTERS}")
    op = b.emit("tle.warp_specialize", (), warps=(b.num_warps, *warps), registers=registers)
    op.regions = [Block(op, b.block) for _ in parts]
    own = b.num_warps
    for region, (function, args), count in list(zip(op.regions, parts, (own, *warps)))[1:]:
        b.num_warps = count
        with b.within(region):
            if b.call(function, args, {}) is not None:
                raise Refusal("a worker of tle.gpu.warp_specialize returns something; it writes its results to buffers, and the first function alone "
                              "returns")
    b.num_warps, b.block = own, op.regions[0]
    return b.call(*parts[0], {})


def _part(part) -> tuple:
    if not isinstance(part, (tuple, list)) or len(part) != 2 or not isinstance(part[1], (tuple, list)):
        raise Refusal(f"tle.gpu.warp_specialize takes pairs of a function and a tuple of its arguments, not {describe(part)}")
    return part[0], list(part[1])


def _numbers(x, what: str) -> tuple:
    return tuple(integer_of(n, f"a number of {what}") for n in flatten(x if isinstance(x, (tuple, list)) else [x]))
