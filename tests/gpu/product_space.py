# SPDX-License-Identifier: Apache-2.0
"""Sizes of a product's program that the daemon's planner chooses among, and its choice."""

import dataclasses
import itertools

SHARED = 232448  # bytes of a block
LINE = 128
NAMES = ("block_m", "block_n", "block_k", "stages", "threads")


def with_sizes(plan, sizes):
    """The same call with other sizes of its program."""
    program = plan.program
    given = {**dict(program.arguments), **sizes}
    return dataclasses.replace(plan, program=dataclasses.replace(program, arguments=tuple(sorted(given.items()))))


def _up(extent, unit):
    return -(-extent // unit) * unit


def aligned(m, n, k):
    """Steps of whole lines. Few rows: all of them or half of them in a block, since columns of a product of the transposes come by eights, with long
    steps. More: whole instructions, and for large blocks the rows between, which may leave a turn of blocks less."""
    deep = LINE // 2
    shapes = [(128, 256, deep, 256)]
    if m > 128:
        shapes += [(256, 128, deep, 256), *((rows, 256, deep, 256) for rows in (192, *range(136, 184, 8)))]
    shapes += [(128, columns, deep, 256) for columns in (192, 128, 64)]
    shapes += [(64, columns, 2 * deep, 128) for columns in (64, 128)] + [(64, 128, deep, 256)]
    if m <= 384:
        shapes = list(_few_rows(m, deep)) + shapes
    for block_m, block_n, block_k, threads in dict.fromkeys(shapes):
        if block_n > max(64, _up(n, 64)) or block_m > max(64, _up(m, 64)) or block_k > max(deep, _up(k, deep)):
            continue
        piece = min(block_m, 32) * block_n * 2 if block_m % 64 else block_m * min(block_n * 2, LINE)
        stages = min(16, (SHARED - 1024 - piece) // ((block_m + block_n) * block_k * 2))
        if stages >= 2:
            yield block_m, block_n, block_k, stages, threads


def _few_rows(m, deep):
    for rows in dict.fromkeys((_up(m, 8), _up(-(-m // 2), 8)) if m > 64 else (_up(m, 8),)):
        if rows <= 192:
            yield from ((rows, 64, steps * deep, 128) for steps in (8, 4, 2, 1) if rows <= 64 or steps <= 2)
            yield from ((rows, columns, deep, 256) for columns in (128, 256))
        if rows <= 112:
            yield rows, 128, 2 * deep, 128


def unaligned(m, n, k):
    """Elements are loaded one by one, and each has an address to keep."""
    for block_m, block_n, deep, stages, threads in itertools.product((16, 32, 64, 128), (32, 64, 128), (32, 64), (1, 2), (128, 256)):
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
