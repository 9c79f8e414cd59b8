# SPDX-License-Identifier: Apache-2.0
"""Scans and reductions by a function of the kernel. A reduction combines neighbours, so that a quarter of the elements is left each time, or half of
them. A scan goes through groups of eight neighbours, and combines what ends before a group with all that are in it. A short or a large one combines
each element with those 1, 2 and 3 places before it, then 4, 8 and 12, then 16, 32 and 48. All keep the order of the elements, as functions that do
not commute need it."""

from __future__ import annotations

from . import types as ty
from .build import describe, is_number
from .builtin import Builtin, builtin
from .errors import Refusal
from .graph import Value


def together(b, input, what: str) -> list:
    """The blocks that are combined at once."""
    parts = [b.value(x, f"the argument of {what}") for x in (input if isinstance(input, (tuple, list)) else (input,))]
    for part in parts:
        if not part.shape or part.shape != parts[0].shape:
            raise Refusal(f"{what} of {' and '.join(map(describe, parts))}; blocks of one shape are needed")
    return parts


def place_of(axis, rank: int, what: str) -> int:
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
        raise Refusal(f"{what} along axis {describe(axis)} of a block of {rank} dimensions")
    return axis % rank


def _combined(b, function, before: list, after: list, what: str) -> list:
    """What the function makes of elements and of those that come after them."""
    result = b.call(function, [*before, *after], {})
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(parts) != len(before):
        raise Refusal(f"{what}: the combining function returns {len(parts)} values, and {len(before)} are combined")
    for i, (part, old) in enumerate(zip(parts, before)):
        if not isinstance(part, Value) and not is_number(part):
            raise Refusal(f"{what}: the combining function returns {describe(part)}")
        part = b.constant(part, old.element) if is_number(part) else part
        if part.element != old.element:
            raise Refusal(f"{what}: the combining function makes {part.element} of {old.element}; cast the block before, or the result with .to(…)")
        parts[i] = b.broadcast_to(part, old.shape)
    return parts


def _readers(b, parts: list) -> list:
    """For each block what reads it at other places. Threads wait for each other once for all that is read of it; bool goes as int8."""
    def reader(x):
        if not x.element.is_bool():
            shared = b.exchanged(x)
            return lambda *where: b.along(shared, *where)
        bytes_ = b.exchanged(b.cast(x, ty.int8))
        return lambda *where: b.binary("!=", b.along(bytes_, *where), 0)

    return [reader(x) for x in parts]


def _in_groups(b, parts: list, axis: int, together: int, function, what: str) -> list:
    """Of each ``together`` neighbours one. Threads wait for each other once for all of them."""
    extent, readers = parts[0].shape[axis] // together, _readers(b, parts)
    taken = [[read(axis, extent, lambda i, k=k: b.binary("+", b.binary("*", i, together), k)) for read in readers] for k in range(together)]
    while len(taken) > 1:
        taken = [_combined(b, function, left, right, what) for left, right in zip(taken[::2], taken[1::2])]
    return taken[0]


def _in_pairs(b, parts: list, axis: int, function, what: str) -> list:
    """Of an odd number: the last one has no neighbour."""
    count = parts[0].shape[axis]
    half, readers = (count + 1) // 2, _readers(b, parts)
    left = [read(axis, half, lambda i: b.binary("*", i, 2)) for read in readers]
    right = [read(axis, half, lambda i: b.apply("MIN", *b.pair(b.binary("+", b.binary("*", i, 2), 1), count - 1))) for read in readers]
    made = _combined(b, function, left, right, what)
    pair = b.binary("<", b.arange(half, axis, parts[0].rank), half - 1)
    return [b.select(pair, x, alone) for x, alone in zip(made, left)]


def reduced(b, parts: list, axis: int, function, keep_dims: bool, what: str) -> list:
    while parts[0].shape[axis] > 1:
        count = parts[0].shape[axis]
        together = next((n for n in (4, 2) if count % n == 0), 1)
        parts = _in_groups(b, parts, axis, together, function, what) if together > 1 else _in_pairs(b, parts, axis, function, what)
    if keep_dims:
        return parts
    return [b.reshape(x, x.shape[:axis] + x.shape[axis + 1 :]) for x in parts]


# Elements that one step of a scan combines. Two steps of two move as much through shared memory and wait twice as often; they call the function
# twice, and a step of four three times.
WAYS = 4
GROUP = 8  # neighbours that a thread scans one after the other, in a longer scan
MOST_BYTES = 16384  # of a block that is scanned in groups: in a loop, the tile in which they are laid together shares its bytes with no other


def scanned(b, parts: list, axis: int, function, reverse: bool, what: str) -> list:
    extent = parts[0].shape[axis]
    size = sum(x.numel * max(8, x.element.primitive_bitwidth) // 8 for x in parts)
    grouped = extent % GROUP == 0 and extent >= WAYS * GROUP and size <= MOST_BYTES
    return (_scanned_in_groups if grouped else _scanned_in_steps)(b, parts, axis, function, reverse, what)


def _scanned_in_steps(b, parts: list, axis: int, function, reverse: bool, what: str) -> list:
    """Hillis and Steele's scan: after a step each element stands for ``WAYS`` times as many elements that end with it as before."""
    extent, reach = parts[0].shape[axis], 1  # reach: how many elements one stands for
    while reach < extent:
        readers = _readers(b, parts)
        for distance in range(reach, min(WAYS * reach, extent), reach):
            parts = _behind(b, readers, parts, axis, distance, function, reverse, what)
        reach *= WAYS
    return parts


def _behind(b, readers: list, parts: list, axis: int, distance: int, function, reverse: bool, what: str) -> list:
    """Each element combined with what is read ``distance`` places before it, or behind it; as it is where there is nothing."""
    before = _before(b, readers, axis, parts[0].shape[axis], distance, reverse)
    return _after(b, before, parts, axis, distance, function, reverse, what)


def _before(b, readers: list, axis: int, extent: int, distance: int, reverse: bool) -> list:
    """For each element the one ``distance`` places before it, or behind it; the first, or last, where there is none."""
    def place(i):
        if reverse:
            return b.apply("MIN", *b.pair(b.binary("+", i, distance), extent - 1))
        return b.apply("MAX", *b.pair(b.binary("-", i, distance), 0))

    return [read(axis, extent, place) for read in readers]


def _after(b, before: list, parts: list, axis: int, first: int, function, reverse: bool, what: str) -> list:
    """Each element from the ``first`` on combined with what came before it; the others as they are."""
    extent = parts[0].shape[axis]
    index = b.arange(extent, axis, parts[0].rank)
    has = b.binary("<", index, extent - first) if reverse else b.binary(">=", index, first)
    return [b.select(has, new, old) for new, old in zip(_combined(b, function, before, parts, what), parts)]


def _scanned_in_groups(b, parts: list, axis: int, function, reverse: bool, what: str) -> list:
    """Each group of neighbours for itself, then the groups' ends; then what ends before a group is combined with all that are in it."""
    count, readers = parts[0].shape[axis] // GROUP, _readers(b, parts)
    places = range(GROUP)[::-1] if reverse else range(GROUP)
    taken = {k: [read(axis, count, lambda i, k=k: b.binary("+", b.binary("*", i, GROUP), k)) for read in readers] for k in places}
    for before, k in zip(places, places[1:]):
        taken[k] = _combined(b, function, taken[before], taken[k], what)
    before = _ended_before(b, taken[places[-1]], axis, function, reverse, what)
    for k in places:
        taken[k] = _after(b, before, taken[k], axis, 1, function, reverse, what)
    return [b.alternate(list(blocks), axis) for blocks in zip(*(taken[k] for k in range(GROUP)))]


def _ended_before(b, parts: list, axis: int, function, reverse: bool, what: str) -> list:
    """All elements before each one, combined. Of few, each thread combines all that come before its own: threads wait for each other once."""
    count = parts[0].shape[axis]
    if count > 2 * GROUP:
        return _before(b, _readers(b, scanned(b, parts, axis, function, reverse, what)), axis, count, 1, reverse)
    readers, index = _readers(b, parts), b.arange(count, axis, parts[0].rank)
    found = None
    for place in range(count - 1, 0, -1) if reverse else range(count - 1):
        # The same place for all: 0 · i has their shape.
        here = [read(axis, count, lambda i, place=place: b.binary("+", b.binary("*", i, 0), place)) for read in readers]
        if found is None:
            found = here
            continue
        is_before = b.binary("<", index, place) if reverse else b.binary(">", index, place)
        found = [b.select(is_before, new, old) for new, old in zip(_combined(b, function, found, here, what), found)]
    return found


@builtin
def associative_scan(b, input, axis, combine_fn, reverse=False):
    parts = together(b, input, "tl.associative_scan")
    found = scanned(b, parts, place_of(axis, parts[0].rank, "tl.associative_scan"), combine_fn, bool(reverse), "tl.associative_scan")
    return tuple(found) if isinstance(input, (tuple, list)) else found[0]


def _running(b, x, op: str, axis, reverse, what: str):
    combine = Builtin(lambda b, x, y: b.binary(op, x, y), what)
    return scanned(b, [x], place_of(axis, x.rank, what), combine, bool(reverse), what)[0]


def _block(b, x, what: str):
    """bfloat16 runs in float32."""
    (x,) = together(b, x, what)
    return b.cast(x, ty.float32) if x.element.is_bf16() else x


@builtin
def cumsum(b, input, axis=0, reverse=False, dtype=None):
    """Integers of less than 32 bits run in 32."""
    x = _block(b, input, "tl.cumsum")
    if dtype is None and x.element.is_int() and x.element.primitive_bitwidth < 32:
        dtype = ty.int32 if x.element.is_int_signed() else ty.uint32
    return _running(b, x if dtype is None else b.cast(x, dtype), "+", axis, reverse, "tl.cumsum")


@builtin
def cumprod(b, input, axis=0, reverse=False):
    return _running(b, _block(b, input, "tl.cumprod"), "*", axis, reverse, "tl.cumprod")


@builtin
def gather(b, src, index, axis):
    (source,), (index,) = together(b, src, "tl.gather"), together(b, index, "tl.gather")
    axis = place_of(axis, source.rank, "tl.gather")
    if not index.element.is_int() or index.rank != source.rank or any(
            x != y for d, (x, y) in enumerate(zip(source.shape, index.shape)) if d != axis):
        raise Refusal(f"tl.gather of {describe(source)} by {describe(index)}: an index is integers, whose shape differs along the axis alone")
    return b.gather(source, index, axis)


@builtin
def flip(b, x, dim=None):
    """Along the last dimension where none is named."""
    (x,) = together(b, x, "tl.flip")
    axis = place_of(x.rank - 1 if dim is None else dim, x.rank, "tl.flip")
    return b.along(x, axis, x.shape[axis], lambda i: b.binary("-", x.shape[axis] - 1, i))


@builtin
def join(b, a, b_):
    a, other = b.together(*b.pair(a, b_)) if not all(isinstance(x, Value) and x.element == a.element for x in (a, b_)) else b.together(a, b_)
    if a is other:
        return b.broadcast_to(b.expand(a, a.rank), (*a.shape, 2))
    first = b.binary("==", b.arange(2, a.rank, a.rank + 1), 0)
    return b.select(first, b.expand(a, a.rank), b.expand(other, a.rank))


@builtin
def split(b, a):
    (a,) = together(b, a, "tl.split")
    if a.shape[-1] != 2:
        raise Refusal(f"tl.split of {describe(a)}; its last dimension must be 2")
    return tuple(b.part(a, a.rank - 1, i) for i in range(2))


@builtin
def interleave(b, a, b_):
    joined = join.run(b, a, b_)
    return b.reshape(joined, (*joined.shape[:-2], 2 * joined.shape[-2]) if joined.rank > 1 else (2,))


@builtin
def cat(b, input, other, can_reorder=False, dim=0):
    """Elements keep their order, which Triton promises for ``can_reorder=False`` alone."""
    x, y = together(b, [input], "tl.cat")[0], together(b, [other], "tl.cat")[0]
    axis = place_of(dim, x.rank, "tl.cat")
    if x.element != y.element or x.shape != y.shape:
        raise Refusal(f"tl.cat requires tensors of the same shape and type, and these are {describe(x)} and {describe(y)}")
    count, extent = x.shape[axis], x.shape[axis] + y.shape[axis]
    left = b.along(x, axis, extent, lambda i: b.apply("MIN", *b.pair(i, count - 1)))
    right = b.along(y, axis, extent, lambda i: b.apply("MAX", *b.pair(b.binary("-", i, count), 0)))
    return b.select(b.binary("<", b.arange(extent, axis, x.rank), count), left, right)


@builtin
def histogram(b, input, num_bins, mask=None):
    (x,) = together(b, input, "tl.histogram")
    if x.rank != 1 or not x.element.is_int() or isinstance(num_bins, bool) or not isinstance(num_bins, int) or num_bins < 1:
        raise Refusal(f"tl.histogram of {describe(x)} with {describe(num_bins)} bins; a block of integers of one dimension, and a number, are needed")
    operands = [x] if mask is None else [x, b.broadcast_to(b.condition(mask), x.shape)]
    return b.emit("tt.histogram", operands, [(ty.int32, (num_bins,))]).result
