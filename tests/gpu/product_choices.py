# SPDX-License-Identifier: Apache-2.0
"""What the daemon's planner chooses among for a product, beside its first choice, which is the library's own."""

import dataclasses

from kiln.library import spaces


def _open(program):
    """The program without its sizes."""
    return dataclasses.replace(program, arguments=tuple(pair for pair in program.arguments if pair[0] not in (*spaces.NAMES, "copied")))


def with_sizes(plan, sizes):
    """The same call with other sizes of its program."""
    return dataclasses.replace(plan, program=_open(plan.program).sized(tuple(sizes.items())))


def ranked(plan, shape, target, board, count, client):
    """``choices``: the planner's first; ``expected``: microseconds of them; ``candidates``: how many there are."""
    m, n, k = shape
    arguments = dict(plan.program.arguments)
    if spaces.NAMES[0] not in arguments:  # one row has no tile
        return {"choices": [], "expected": [], "candidates": 0}
    space = spaces.product(arguments["M"], n, k, arguments["in_dtype"], arguments["out_dtype"], arguments["trans_a"], arguments["trans_b"], target,
                           copies=True)
    program = _open(plan.program)
    order = client.rank([program.sized(sizes).trace for sizes in space], target, options=dict(plan.options), board=board, symbols={"M": m})
    best = [one for one in order[:count] if not one.problem]
    return {"choices": [dict(space[one.index]) for one in best], "expected": [round(one.microseconds, 2) for one in best], "candidates": len(space)}
