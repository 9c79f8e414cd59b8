# SPDX-License-Identifier: Apache-2.0
"""Questions about expressions: linear forms of index arithmetic, enough to see that ``(bx + 1) * 128 - bx * 128`` is 128; what kinds of
nodes an expression holds; what it is for given values of its variables."""

from __future__ import annotations

from .expr import COMPARISONS, Expr, as_expr, binary, cast, constant_value, logical, logical_not, make, select


def linear(e) -> tuple[dict, int]:
    """``e`` as Σ coefficient · term + constant; terms are expressions that are not sums, differences or multiples."""
    terms: dict[Expr, int] = {}
    return terms, _add(as_expr(e), 1, terms)


def _add(e: Expr, scale: int, terms: dict) -> int:
    number = constant_value(e)
    if isinstance(number, int):
        return scale * number
    if e.op in ("ADD", "SUB"):
        sign = 1 if e.op == "ADD" else -1
        return _add(e.args[0], scale, terms) + _add(e.args[1], scale * sign, terms)
    if e.op == "NEG":
        return _add(e.args[0], -scale, terms)
    if e.op == "MUL":
        for factor, rest in ((e.args[0], e.args[1]), (e.args[1], e.args[0])):
            number = constant_value(factor)
            if isinstance(number, int):
                return _add(rest, scale * number, terms)
        distributed = _distribute(e)
        if distributed is not None:
            return _add(distributed, scale, terms)
    for known in terms:
        if known is e:
            terms[known] += scale
            if terms[known] == 0:
                del terms[known]
            return 0
    if scale:
        terms[e] = scale
    return 0


def _distribute(e: Expr):
    """(a ± b) · c as a · c ± b · c, so that products of symbols cancel too."""
    for sum_, other in ((e.args[0], e.args[1]), (e.args[1], e.args[0])):
        if sum_.op in ("ADD", "SUB"):
            return binary(sum_.op, binary("MUL", sum_.args[0], other), binary("MUL", sum_.args[1], other))
    return None


def difference(a, b):
    """a - b as an int where it is one for all values of the variables, else None."""
    terms, constant = linear(binary("SUB", as_expr(a), as_expr(b)))
    return constant if not terms else None


def contains(e: Expr, ops: frozenset) -> bool:
    """Whether a node of these kinds is in the expression."""
    return finds(e, lambda node: node.op in ops)


def finds(e: Expr, wanted) -> bool:
    """Whether ``wanted(node)`` holds of a node of the expression."""
    stack, seen = [e], set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if wanted(node):
            return True
        stack.extend(node.args)
    return False


_FOLDED = frozenset(("ADD SUB MUL DIV MOD FLOOR_DIV FLOOR_MOD MIN MAX BIT_AND BIT_OR BIT_XOR SHL SHR").split()) | COMPARISONS


def _made(node: Expr, args: tuple) -> Expr:
    """The node with other operands, folded where it can be."""
    if node.op in _FOLDED:
        return binary(node.op, *args)
    if node.op in ("AND", "OR"):
        return logical(node.op, *args)
    if node.op == "NOT":
        return logical_not(args[0])
    if node.op == "CAST":
        return cast(args[0], node.dtype)
    return select(*args) if node.op == "SELECT" else make(node.op, node.dtype, args, node.value)


def evaluated(root: Expr, values: dict, buffers: dict | None = None) -> Expr:
    """The expression with others for some of its nodes, and loads from other buffers. Not recursive, as the encoder's walk."""
    done: dict[Expr, Expr] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        missing = [] if node in values else [a for a in node.args if a not in done]
        if node in done or missing:
            stack.pop() if node in done else stack.extend(missing)
            continue
        stack.pop()
        if node in values:
            done[node] = values[node]
            continue
        args = tuple(done[a] for a in node.args)
        if node.op == "LOAD" and buffers and node.value in buffers:
            done[node] = make("LOAD", node.dtype, args, buffers[node.value])
        else:
            done[node] = node if all(a is b for a, b in zip(args, node.args)) else _made(node, args)
    return done[root]


def _never_negative(e: Expr) -> bool:
    """Whether it is made of loop variables, which count from 0, and of numbers that are not negative, by what keeps it so."""
    number = constant_value(e)
    if number is not None:
        return isinstance(number, int) and number >= 0
    if e.op == "VAR":
        return e.value.kind == "LOOP"
    keeps = e.op in ("ADD", "MUL", "DIV", "MOD", "FLOOR_DIV", "FLOOR_MOD") or e.op == "CAST" and e.dtype.is_int and e.dtype.bits >= 32
    return keeps and all(map(_never_negative, e.args))


def advance(e: Expr, var: Expr, by: int):
    """How much ``e`` grows where ``var`` grows by so much, if it is the same for all values; else None."""
    if e is var:
        return by
    if not finds(e, lambda node: node is var):
        return 0
    steps = [advance(a, var, by) for a in e.args]
    if None in steps:
        return None
    if e.op in ("ADD", "SUB"):
        return steps[0] + steps[1] if e.op == "ADD" else steps[0] - steps[1]
    if e.op == "NEG":
        return -steps[0]
    if e.op == "CAST" and e.dtype.is_int and e.dtype.bits >= 32:
        return steps[0]
    number = constant_value(e.args[1]) if len(e.args) == 2 else None
    if e.op == "MUL":
        other = constant_value(e.args[0])
        return steps[0] * number if isinstance(number, int) else steps[1] * other if isinstance(other, int) else None
    if isinstance(number, int) and number > 0:
        op = f"FLOOR_{e.op}" if e.op in ("DIV", "MOD") and _never_negative(e.args[0]) else e.op
        width = {"FLOOR_DIV": number, "FLOOR_MOD": number, "SHR": 1 << min(number, 64), "BIT_AND": 1 << number.bit_length()}.get(op)
        if width is not None and steps[0] % width == 0:
            return steps[0] // width if op in ("FLOOR_DIV", "SHR") else 0
    return 0 if not any(steps) else None
