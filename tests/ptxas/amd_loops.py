# SPDX-License-Identifier: Apache-2.0
"""What the loop of a kernel's products does, read from the assembly of its code object."""

import re
from dataclasses import dataclass, field

MATRIX = re.compile(r"v_s?w?m(?:fma|ma|fmac|mac)_")
LOAD = re.compile(r"(?:global|buffer|flat)_load_")
# Bits that one thread reads from LDS with an instruction.
LDS = re.compile(r"ds_(?:read|load)(2(?:st64)?|_2addr(?:_stride64)?|)_(?:[ui](8|16)|b(\d+))|ds_(?:read|load)_(?:b64_tr|tr)")


@dataclass
class Loop:
    matrix: int = 0  # matrix instructions
    loads: int = 0  # from global memory
    covered: list = field(default_factory=list)  # for each load, the matrix instructions that are issued before the wait for it
    copies: int = 0  # between AGPRs and VGPRs
    lds_bits: dict = field(default_factory=dict)  # by width: how many reads
    halves: int = 0  # instructions that put 16-bit halves together


def blocks_of(text):
    """The kernel's code as blocks: label → (instructions, labels that may follow)."""
    blocks, order, name = {"entry": []}, ["entry"], "entry"
    for line in text.splitlines():
        line = line.split(";")[0].strip()
        label = re.match(r"(\.LBB\w+):", line)
        if label:
            name = label[1]
            blocks[name] = []
            order.append(name)
        elif line and not line.startswith(".") and not line.endswith(":"):
            blocks[name].append(line)
            if line.startswith(("s_cbranch", "s_branch")):  # what stands behind a branch is a block of its own
                name = f"{name}+"
                blocks[name] = []
                order.append(name)
    graph = {}
    for name, after in zip(order, [*order[1:], None]):
        last = blocks[name][-1] if blocks[name] else ""
        jump = re.match(r"s_c?branch\w*\s+(\S+)", last)
        falls = after is not None and not last.startswith(("s_branch", "s_endpgm"))
        graph[name] = (blocks[name], ([jump[1]] if jump else []) + ([after] if falls else []))
    return graph


def components(graph, inside):
    """The sets of blocks that reach each other within `inside`."""
    def reached(start):
        seen, left = set(), [start]
        while left:
            for after in graph[left.pop()][1]:
                if after in inside and after not in seen:
                    seen.add(after)
                    left.append(after)
        return seen
    reach = {name: reached(name) for name in inside}
    loops = {frozenset(other for other in reach[name] if name in reach[other]) for name in inside if name in reach[name]}
    return sorted(loops, key=sorted)


def matrix_instructions(graph, blocks):
    return sum(bool(MATRIX.match(line)) for name in blocks for line in graph[name][0])


def loop_of(text):
    """The instructions of one iteration of the innermost loop with the most matrix instructions, all branches taken: its loads and stores may
    stand under conditions."""
    graph = blocks_of(text)
    inside, body, header = set(graph), None, None
    while True:
        loops = components(graph, inside)
        most = max(loops, key=lambda loop: matrix_instructions(graph, loop), default=None)
        if most is None or 2 * matrix_instructions(graph, most) < (matrix_instructions(graph, body) if body else 1):
            break
        body = most
        # In the order of the text, the header is the first block that is entered from outside.
        header = next(name for name in graph if name in body and any(name in graph[other][1] for other in graph if other not in body))
        inside = set(body) - {header}
    assert body, "the kernel has no loop with matrix instructions"
    order, seen = [], set()

    def visit(name):
        seen.add(name)
        for after in reversed(graph[name][1]):
            if after in body and after not in seen and after != header:
                visit(after)
        order.append(name)
    visit(header)
    return [line for name in reversed(order) for line in graph[name][0]]


def in_flight_after(line):
    """How many loads may still be under way behind a wait; None: it waits for no load."""
    found = re.search(r"vmcnt\((\d+)\)", line) if line.startswith("s_waitcnt") else re.match(r"s_wait_loadcnt(?:_dscnt)?\s+(0x[0-9a-f]+|\d+)", line)
    if not found:
        return None
    count = int(found[1], 0)
    return count >> 8 if "loadcnt_dscnt" in line else count


def read(text):
    body = loop_of(text)
    loop = Loop()
    for line in body:
        name = line.split()[0]
        loop.matrix += bool(MATRIX.match(name))
        loop.loads += bool(LOAD.match(name))
        loop.copies += name.startswith("v_accvgpr")
        loop.halves += name.startswith(("v_perm_b32", "v_pack_b32", "v_and_or_b32", "v_lshl_or_b32", "v_bfi_b32"))
        found = LDS.match(name)
        if found:
            width = int(found[2] or found[3] or 64) * (2 if found[1] else 1)
            loop.lds_bits[width] = loop.lds_bits.get(width, 0) + 1
    # Two iterations: a load may be waited for in the next.
    issued, under_way, loads = 0, [], []
    for line in body * 2:
        name = line.split()[0]
        issued += bool(MATRIX.match(name))
        if LOAD.match(name):
            under_way.append((issued, len(loads)))
            loads.append(None)
        left = in_flight_after(line)
        while left is not None and len(under_way) > left:
            since, load = under_way.pop(0)
            loads[load] = issued - since
    loop.covered = [min(x, loop.matrix) for x in loads[:loop.loads] if x is not None]
    return loop
