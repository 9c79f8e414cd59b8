# SPDX-License-Identifier: Apache-2.0
"""Loops and branches of the graph as statements. What a loop carries has a slot, a fragment or a variable that the end of the body writes;
a pointer or an integer that each iteration advances by one and the same step has none, for it is a function of the iteration's number."""

from __future__ import annotations

from ..language import program as ir
from ..language.buffer import Buffer, load
from ..language.expr import Expr, Var, as_expr, binary, cast, const, constant_value, floordiv, select
from .graph import PURE, Block, Op, Value, block_of
from .symbolic import Advanced, Alias, Held, Known
from .types import kiln_of

_COMPARED = 64  # pairs of values that are looked at for one that a loop carries
_ELEMENTWISE = frozenset(("arith.binary", "arith.unary", "arith.select", "arith.cast", "arith.bitcast", "arith.cmp", "math.fma"))


def lower_for(lowering, op: Op) -> None:
    lower, upper, step, *inits = op.operands
    begin, end, by = (lowering.at(value) for value in (lower, upper, step))
    trips = _trips(begin, end, by)
    region = op.regions[0]
    index, *arguments = region.args
    var = Var("LOOP", trips.dtype, index.name or "k")
    lowering.symbols.put(index, Known(begin + var.expr * by))
    carried = list(zip(arguments, inits, region.ends, op.results))
    slots = []
    total = _positive(trips)
    for argument, init, last, result in carried:
        steps = _steps(argument, last, region)
        if last is argument or _same(lowering, last, init, {}):
            _both(lowering, argument, result, Alias(init), Alias(init), init in lowering.data)
        elif steps is not None:
            _fix(lowering, steps, region)
            known = init in lowering.data or any(value in lowering.data for _, value in steps)
            _both(lowering, argument, result, Advanced(init, steps, var.expr), Advanced(init, steps, total), known)
        else:
            buffer = _slot(lowering, argument, init)
            _both(lowering, argument, result, Held(buffer), Held(buffer), True)
            _bases(lowering, argument, result, init)
            slots.append((buffer, last))
    stages = _stages(lowering, op, region)
    loop = ir.For("PIPELINED" if stages > 1 else "SERIAL", [var], [trips], [], stages if stages > 1 else 0, location=lowering.here)
    with lowering.within(loop.body):
        lowering.block(region)
        _check_bases(lowering, [(argument, last) for argument, _, last, _ in carried])
        _move(lowering, slots)
    lowering.stmts.append(loop)


def _trips(begin: Expr, end: Expr, by: Expr) -> Expr:
    """How often a range is run; 0 or less: never. A step that is known at launch only goes upwards, as in Triton."""
    known, first = constant_value(by), constant_value(begin)
    if known is not None and known < 0:
        begin, end, by = end, begin, as_expr(-known)
    if known == 1 and first is not None and first >= 0:
        return end - begin
    span = cast(end, "int64") - cast(begin, "int64")  # which may have more bits than its ends
    trips = span if known in (1, -1) else floordiv(span + (cast(by, "int64") - 1), cast(by, "int64"))
    if known is None:
        trips = select(binary("GT", by, 0), trips, const(0, trips.dtype))
    return cast(binary("MIN", trips, (1 << 31) - 1), begin.dtype)


def _positive(trips: Expr) -> Expr:
    return select(binary("GT", trips, 0), trips, const(0, trips.dtype))


def _both(lowering, argument: Value, result: Value, inside, behind, is_data: bool) -> None:
    lowering.symbols.put(argument, inside)
    lowering.symbols.put(result, behind)
    if is_data:
        lowering.data.update((argument, result))


def _bases(lowering, argument: Value, result: Value, init: Value) -> None:
    if argument.element.is_ptr():
        lowering.symbols.bases[argument] = lowering.symbols.bases[result] = lowering.symbols.base(init)


def _check_bases(lowering, pairs) -> None:
    for argument, last in pairs:
        if argument.element.is_ptr():
            lowering.symbols.common([lowering.symbols.base(argument), lowering.symbols.base(last)])


def _stages(lowering, op: Op, region: Block) -> int:
    """A loop says it itself; else those that load for products have the kernel's. One with loads that are to be asynchronous has two at least."""
    stages = op.attrs["num_stages"]
    if stages is None:
        feeds = any(o.name == "tt.dot" for o in region.ops) and any(o.name == "tt.load" or _copies_whole(o) for o in region.ops)
        stages = lowering.num_stages if feeds and not lowering.roles else 0
    return max(stages, 2) if not lowering.roles and _is_async(region) else stages


def _is_async(region: Block) -> bool:
    """Whether the loop's iterations themselves load something asynchronously."""
    return any("is_async" in o.attrs or o.name == "scf.if" and any(map(_is_async, o.regions)) for o in region.ops)


def _copies_whole(op: Op) -> bool:
    """Whether a copy writes all of a buffer; of one with slots the program takes turns itself."""
    return op.name == "tle.copy" and op.attrs["into"] and not op.attrs["view"].steps


# Values that advance by a step.


def _same(lowering, value: Value, other: Value, known: dict) -> bool:
    """Whether both are one computation of the same values, as where a body gives a name what it had before. ``known``: by pairs of values."""
    place = lowering.symbols.place.get(value)
    if isinstance(place, Alias):
        value = place.value
    if value is other:
        return True
    pair = value, other
    if pair not in known:
        if len(known) >= _COMPARED:
            return False
        known[pair] = False  # until it is found
        a, b = value.op, other.op
        known[pair] = (a is not None and b is not None and a.name in PURE and (a.name, repr(a.attrs)) == (b.name, repr(b.attrs))
                       and (value.shape, value.element) == (other.shape, other.element) and len(a.operands) == len(b.operands)
                       and all(_same(lowering, x, y, known) for x, y in zip(a.operands, b.operands)))
    return known[pair]


def _invariant(value: Value, region: Block) -> bool:
    """Whether it is the same in each iteration."""
    if value.home is None or not value.home.inside(region):
        return True
    return value.op is not None and value.op.name in PURE and all(_invariant(operand, region) for operand in value.op.operands)


def _steps(argument: Value, last: Value, region: Block):
    """[(sign, step)] where ``last`` is the argument with steps added that do not change in the loop; else None."""
    if not (argument.element.is_ptr() or argument.element.is_int() and not argument.element.is_bool()):
        return None
    steps, value = [], last
    while value is not argument:
        op = value.op
        if op is None or value.home is not region:
            return None
        if op.name == "tt.addptr":
            before, step, sign = op.operands[0], op.operands[1], 1
        elif op.name == "arith.binary" and op.attrs["fn"] in ("ADD", "SUB"):
            before, step = op.operands
            sign = 1 if op.attrs["fn"] == "ADD" else -1
            if sign > 0 and _invariant(before, region):
                before, step = step, before
        else:
            return None
        if not _invariant(step, region):
            return None
        steps.append((sign, step))
        value = before
    return steps


def _fix(lowering, steps, region: Block) -> None:
    """What the steps are computed from is seen behind the loop too, so it is bound to no variable inside."""
    stack = [value for _, value in steps]
    while stack:
        value = stack.pop()
        if value.home is not None and value.home.inside(region) and value.op is not None and value.op not in lowering.fixed:
            lowering.fixed.add(value.op)
            stack.extend(value.op.operands)


# Slots.


def _slot(lowering, argument: Value, init: Value | None) -> Buffer:
    """Where a carried value lives, with its first value in it."""
    space = "FRAGMENT" if argument.shape else "LOCAL"
    buffer = lowering.allocate(space, argument.shape, kiln_of(argument.element), lowering.name(argument, "carried"))
    if init is not None:
        lowering.write(buffer, init)
    return buffer


def _reads(lowering, value: Value, slots: set) -> dict:
    """The slots whose old content a value needs, and whether each element needs the same element alone."""
    found: dict = {}
    stack, seen = [(value, True)], set()
    while stack:
        value, same = stack.pop()
        if (value, same) in seen:
            continue
        seen.add((value, same))
        place = lowering.symbols.place.get(value)
        if isinstance(place, Held):
            if place.buffer in slots:
                found[place.buffer] = found.get(place.buffer, True) and same
        elif isinstance(place, Alias):
            stack.append((place.value, same))
        elif isinstance(place, Advanced):
            stack += [(v, same) for v in (place.start, *(step for _, step in place.steps))]
        elif isinstance(place, Known):
            for buffer in buffers_of(place.expr) & slots:
                found[buffer] = False
        elif value.op is not None:
            stack += [(operand, same and value.op.name in _ELEMENTWISE) for operand in value.op.operands]
    return found


def buffers_of(expr: Expr) -> set:
    """What it loads from."""
    found, stack, seen = set(), [expr], set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "LOAD":
            found.add(node.value)
        stack.extend(node.args)
    return found


def _move(lowering, slots) -> None:
    """All slots get their new values at once: one that others still need waits, and where they wait for each other a copy is made."""
    everything = {buffer for buffer, _ in slots}
    pending = [(buffer, value) for buffer, value in slots if not _in(lowering, value, buffer)]
    while pending:
        needs = [_reads(lowering, value, everything) for _, value in pending]
        ready = next((i for i, (buffer, _) in enumerate(pending)
                      if needs[i].get(buffer, True) and not any(buffer in need for j, need in enumerate(needs) if j != i)), None)
        if ready is None:
            _, value = pending[0]
            if value.shape:
                lowering.symbols.put(value, Held(lowering.materialize(value)))
            else:
                lowering.bind(value, lowering.at(value))
            lowering.symbols.forget()
            continue
        buffer, value = pending.pop(ready)
        lowering.write(buffer, value)
    lowering.symbols.forget()


def _in(lowering, value: Value, buffer: Buffer) -> bool:
    place = lowering.symbols.place.get(value)
    return isinstance(place, Held) and place.buffer is buffer


# Branches and while.


def lower_if(lowering, op: Op) -> None:
    condition = lowering.at(op.operands[0])
    if buffers_of(condition):
        condition = _let(lowering, condition, "condition")
    results = [(result, region_ends) for result, *region_ends in zip(op.results, *(region.ends for region in op.regions)) if result.uses]
    slots: list = []
    for result, ends in results:
        kept = _slot_of_an_end(lowering, op, result, ends, slots)
        slots.append(_slot(lowering, result, None) if kept is None else kept)
    branch = ir.If(condition, location=lowering.here)
    for number, (region, body) in enumerate(zip(op.regions, (branch.then_body, branch.else_body))):
        with lowering.within(body):
            lowering.block(region)
            _move(lowering, [(slot, ends[number]) for slot, (_, ends) in zip(slots, results)])
    if branch.then_body or branch.else_body:
        lowering.stmts.append(branch)
    for slot, (result, ends) in zip(slots, results):
        if result.element.is_ptr():
            lowering.symbols.bases[result] = lowering.symbols.common([lowering.symbols.base(end) for end in ends])
        lowering.symbols.put(result, Held(slot))
        lowering.data.add(result)


def _slot_of_an_end(lowering, op: Op, result: Value, ends: list, taken: list):
    """The buffer of a value that one side of an if gives unchanged, as a sum that is added to under a condition, where only the branches need the
    value. Then each branch may overwrite it, too. None where there is no such value."""
    for end in ends if not result.element.is_ptr() else ():
        place = lowering.symbols.place.get(end)
        if not isinstance(place, Held) or place.buffer in taken or end.home is not op.block or place.buffer.dtype != kiln_of(result.element):
            continue
        if place.buffer.space == ("FRAGMENT" if result.shape else "LOCAL") and all(
                any(block_of(user).inside(region) for region in op.regions) for user in end.uses):
            lowering.ending[end] = op.regions
            return place.buffer
    return None


def _let(lowering, expr: Expr, name: str) -> Expr:
    var = Var("LET", expr.dtype, name)
    lowering.emit(ir.Let(var, expr))
    return var.expr


def lower_while(lowering, op: Op) -> None:
    before, body = op.regions
    slots = []
    for first, second, init, last, result in zip(before.args, body.args, op.operands, body.ends, op.results):
        buffer = _slot(lowering, result, init)
        for value in (first, second, result):
            lowering.symbols.put(value, Held(buffer))
            lowering.data.add(value)
            if value.element.is_ptr():
                lowering.symbols.bases[value] = lowering.symbols.base(init)
        slots.append((buffer, last))
    going = lowering.allocate("LOCAL", (1,), "bool", "going")
    _ask(lowering, before, going)
    loop = ir.While(cast(load(going, (as_expr(0),)), "bool"), location=lowering.here)
    with lowering.within(loop.body):
        lowering.block(body)
        _check_bases(lowering, list(zip(body.args, body.ends)))
        _move(lowering, slots)
        _ask(lowering, before, going)
    lowering.stmts.append(loop)


def _ask(lowering, before: Block, going: Buffer) -> None:
    """Whether the loop goes on."""
    lowering.symbols.forget()
    lowering.block(before)
    lowering.emit(ir.Store(going, [as_expr(0)], lowering.at(before.ends[0])))
    lowering.symbols.forget()
