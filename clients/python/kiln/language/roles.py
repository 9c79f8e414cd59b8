# SPDX-License-Identifier: Apache-2.0
"""Warp groups with roles: T.ws."""

from __future__ import annotations

import contextlib

from . import trace as tr
from .expr import Expr, as_expr, binary, constant_value, logical
from .launch import get_thread_binding
from .signals import Role

GROUP = 128  # threads of a warp group


def _linear_thread(kernel) -> Expr:
    x, y, z = (as_expr(get_thread_binding(d)) for d in range(3))
    return x + y * kernel.block[0] + z * (kernel.block[0] * kernel.block[1])


@contextlib.contextmanager
def ws(*warp_group_idx):
    """``with T.ws(0):`` says which warp groups, of 128 threads each, do what stands in it. With barriers (T.alloc_barrier) between them, the
    groups run at the same time, each at its own pace: what one has done before T.barrier_arrive, another sees after T.barrier_wait, and the compiler
    puts no barrier between them. Within a group each statement sees the effects of those before it, as everywhere. kiln.emulation(check=True)
    finds where the barriers are not enough, and groups that wait for each other. Without barriers, what depends on threads is done by these
    groups, and tile operations by whichever threads the compiler chooses, with the same result. The same is done for groups that a program tells
    apart by the thread's number, ``if tx < 128: …``. Targets without mbarriers run the groups' statements in one order that the barriers allow:
    that in which they stand, or, where each group has a loop of its own, one loop in which the groups go on in turns, each to where it waits
    for another; the compiler specialises warps as it sees fit.
    Shapes: one Python int from 0 on, or several. Dtypes: none. Targets: groups at the same time from sm_90 on, elsewhere in turns. Errors:
    TraceError without a number, for a group that the block does not have, inside of T.Parallel, and, when compiled for a target without
    mbarriers, where no order is found in which each wait is over where it stands."""
    trace = tr.current("T.ws")
    kernel = trace.kernel
    if kernel is None:
        raise tr.error("T.ws is used outside T.Kernel")
    groups = sorted({constant_value(as_expr(g)) for g in warp_group_idx}, key=lambda g: (g is None, g))
    if not groups or not all(isinstance(g, int) and 0 <= g and g * GROUP < kernel.threads for g in groups):
        raise tr.error(f"T.ws{warp_group_idx!r}: it takes numbers of warp groups, and the block of {kernel.threads} threads has "
                       f"{-(-kernel.threads // GROUP)} of {GROUP}")
    if "parallel" in trace.loops:
        raise tr.error("T.ws in a T.Parallel loop, whose iterations are spread over all threads of the block; write the loop in T.ws")
    thread, cond = _linear_thread(kernel), None
    for group in groups:
        here = logical("AND", binary("GE", thread, group * GROUP), binary("LT", thread, (group + 1) * GROUP))
        cond = here if cond is None else logical("OR", cond, here)
    role = trace.emit(Role(cond))
    with trace.inside(role.then_body, "branch"):
        yield


WarpSpecialize = ws


__all__ = ["WarpSpecialize", "ws"]
