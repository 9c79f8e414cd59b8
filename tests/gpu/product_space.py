# SPDX-License-Identifier: Apache-2.0
"""Sizes of a product's program that the daemon's planner chooses among, and its choice."""

import dataclasses
import itertools

SHARED = 232448  # bytes of a block
NAMES = ("block_m", "block_n", "block_k", "stages", "threads")


def with_sizes(plan, sizes):
    """The same call with other sizes of its program."""
    program = plan.program
    given = {**dict(program.arguments), **sizes}
    return dataclasses.replace(plan, program=dataclasses.replace(program, arguments=tuple(sorted(given.items()))))


def _up(extent, unit):
    return -(-extent // unit) * unit


def _rows(m):
    """Of blocks: the whole of few rows, half of them, and what instructions come in."""
    few = {_up(m, 8), _up(_up(m, 8) // 2, 8)} if m <= 256 else set()
    more = {64, 128, 192, 256} if m > 64 else {64}
    rest = set(range(136, 184, 8)) if m > 256 else set()
    return sorted(rows for rows in few | more | rest if rows <= max(64, _up(m, 64)))


def aligned(m, n, k):
    """Steps of whole lines, with as many stages as fit shared memory."""
    for block_m, block_n, deep, threads in itertools.product(_rows(m), (64, 128, 192, 256), (64, 128, 256, 512), (128, 256)):
        sums = block_m * block_n / threads
        if sums > 192 or (sums < 8 and block_m >= 64) or (block_n > max(64, _up(n, 64))) or deep > max(64, _up(k, 64)):
            continue
        if deep > 64 and block_m * block_n > 128 * 128 or deep > 128 and block_m > 64:
            continue
        if block_m % 64 and block_m > 128 and block_n != 256:
            continue
        left = min(32, block_m) * block_n * 2 if block_m % 64 else block_m * min(block_n * 2, 128)
        stages = min(8, (SHARED - 1024 - left) // ((block_m + block_n) * deep * 2))
        for number in sorted({stages, min(stages, 4)}):
            if number >= 2:
                yield block_m, block_n, deep, number, threads


def unaligned(m, n, k):
    """Elements are loaded one by one."""
    for block_m, block_n, deep, stages, threads in itertools.product((16, 32, 64, 128), (32, 64, 128), (32, 64), (1, 2, 3), (128, 256)):
        if block_m > max(16, _up(m, 16)) or block_n > max(32, _up(n, 32)):
            continue
        if 4 <= block_m * block_n / threads <= 64:
            yield block_m, block_n, deep, stages, threads


def space(shape, aligned_rows):
    m, n, k = shape
    return [dict(zip(NAMES, values)) for values in (aligned if aligned_rows else unaligned)(m, n, k)]


def ranked(plan, shape, target, board, count, client):
    """``choices``: the planner's first; ``expected``: microseconds of them, and of the plan as it is."""
    arguments = dict(plan.program.arguments)
    own = {name: arguments[name] for name in NAMES if name in arguments}
    if len(own) < len(NAMES):
        return {"choices": [], "expected": []}
    m, n, k = shape
    trans_b = arguments["trans_b"]
    candidates = [own, *(sizes for sizes in space(shape, k % 8 == 0 and (trans_b or n % 8 == 0)) if sizes != own)]
    programs = [with_sizes(plan, sizes).program.trace() for sizes in candidates]
    order = client.rank(programs, target, options=dict(plan.options), board=board, symbols={"M": m})
    at = {one.index: one.microseconds for one in order}
    best = [candidates[one.index] for one in order[:count] if not one.problem]
    return {"choices": best, "expected": [round(one.microseconds, 2) for one in order[:count]], "expected_own": round(at[0], 2),
            "candidates": len(candidates)}
