# SPDX-License-Identifier: Apache-2.0
"""Tile operations: copy, fill, gemm, reductions."""

from __future__ import annotations

import enum
import math

from .. import notices
from . import dtypes
from . import nan_reductions
from . import program as ir
from . import scales
from .agreed import agree, each, may_differ
from .buffer import Buffer, LocalVar, Region, RunTimeExtent, element
from .dtypes import as_dtype
from .expr import as_expr, binary, cast, constant_value
from .loops import Parallel, grid, serial
from .products import check_product, check_tf32, clear_before
from .regions import closed, describe, operand, pair, shifted, tile_extents
from .trace import allocate, converted, current, emit, error, here, store


class GemmWarpPolicy(enum.IntEnum):
    """How T.gemm divides its result among the warps of a block: ``Square`` gives each warp a part as square as possible, ``FullRow`` puts
    all warps along the rows, ``FullCol`` along the columns. It is a wish: the compiler may choose otherwise where the instruction demands
    it.
    Shapes: none; it is an enumeration. Dtypes: none. Targets: all. Errors: none."""

    Square = 0
    FullRow = 1
    FullCol = 2


_ANNOTATIONS = ((None, {}), "what annotations say is inferred; leave them out")
_CHOSEN = "the compiler chooses the instruction of each copy; "


def _annotated(name: str, annotations) -> None:
    notices.unused(name, annotations=(annotations, *_ANNOTATIONS))


def copy(src, dst, *, coalesced_width=None, disable_tma=False, eviction_policy=None, prefer_instruction=None, annotations=None,
         loop_layout=None):
    """dst = src, element by element, with a conversion where the dtypes differ. What lies outside of a tensor reads as zero (or as
    T.annotate_safe_value says) and is not written. The compiler chooses the instruction, and whether the copy is asynchronous. The next
    statement sees the copied elements. ``coalesced_width``: at most so many neighbours go in one access. The other keywords: no effect,
    with a warning.
    Shapes: equal extents, apart from extents of 1. A buffer stands for all of it, a slice for its box, and an element ``A[i, j]`` for a box
    that starts there and is as large as the other operand. A source that lacks leading dimensions is repeated along them. Dtypes: any two.
    The conversion is that of T.cast. Targets: all. cp.async needs sm_80, tensor copies (TMA) need sm_90; elsewhere threads load and store.
    Errors: TraceError where the extents differ, or where both operands leave their size open. CompileError for a copy that only some
    threads reach, unless those are a range by number; where it begins at an index that differs between threads, unless one side is a
    T.alloc_local or it is of one element, which each thread copies then; and where all threads copy a T.alloc_local, which may differ
    between them, to one place."""
    notices.unused(
        "T.copy", annotations=(annotations, *_ANNOTATIONS), loop_layout=(loop_layout, (None,), "layouts are inferred; leave it out"),
        disable_tma=(disable_tma, (False, None),
                     _CHOSEN + "pass_configs={\"tl.disable_tma_lower\": True} does without tensor copies in the whole function"),
        eviction_policy=(eviction_policy, (None, "evict_normal"), "what caches keep is inferred; leave it out"),
        prefer_instruction=(prefer_instruction, (None,),
                            _CHOSEN + "the pass_configs tl.disable_tma_lower and tl.enable_async_copy rule some out"))
    if _scalar_copy(src, dst):
        return
    a, b = pair(src, dst, "T.copy")
    if _is_of_each_thread(a, b):
        store(b.buffer, b.offsets, a.buffer[a.offsets])
    elif tile_extents(a) == tile_extents(b) and (a.dtype == b.dtype or scales.NAME not in (a.dtype, b.dtype)):
        emit(ir.Copy(a, b, coalesced_width or 0))
    elif _broadcasts(a, b):
        _copy_each(a, b)
    else:
        raise error(f"T.copy from {describe(a)} to {describe(b)}: the extents differ in more than dimensions of size 1; "
                    "slice the larger one, or index both with a start so that one gives the size")


def _scalar_copy(src, dst) -> bool:
    """Both operands written as elements: one store."""
    if isinstance(src, (Buffer, Region, LocalVar)) or isinstance(dst, (Buffer, Region)):
        return False
    target = element(dst)
    if target is None:
        return False
    store(*target, src)
    return True


def _is_of_each_thread(a: Region, b: Region) -> bool:
    """One element, at an index that may differ between threads, as ``A[tx : tx + 1]``: each of them copies its own."""
    if any(e != 1 for r in (a, b) for e in r.extents) or any(r.buffer.space not in ("GLOBAL", "SHARED") for r in (a, b)):
        return False
    return any(may_differ(o) for r in (a, b) for o in r.offsets)


def _broadcasts(a: Region, b: Region) -> bool:
    small, large = tile_extents(a), tile_extents(b)
    return len(small) <= len(large) and large[len(large) - len(small):] == small


def _copy_each(a: Region, b: Region):
    """A loop over the elements of ``b``; the last dimensions of ``a`` go with its last."""
    dims = [d for d, e in enumerate(b.extents) if e != 1]
    if "LOCAL" in (a.buffer.space, b.buffer.space):
        repeated = dims[: len(dims) - len(tile_extents(a))]
        for values in grid(*[b.extents[d] for d in repeated]):
            extents = [1 if d in repeated else e for d, e in enumerate(b.extents)]
            emit(ir.Copy(a, Region(b.buffer, shifted(b, dict(zip(repeated, values))), extents, b.dims)))
        return
    agree(a, b)
    loop = Parallel(*[b.extents[d] for d in dims] or [1])
    for values in loop:
        values = values if isinstance(values, tuple) else (values,)
        to = shifted(b, dict(zip(dims, values)))
        source_dims = [d for d, e in enumerate(a.extents) if e != 1]
        source = shifted(a, dict(zip(source_dims, values[len(values) - len(source_dims):])))
        store(b.buffer, to, a.buffer[source])


def fill(dst, value):
    """Every element of a buffer or of a slice becomes ``value``.
    Shapes: ``dst`` is any buffer, slice, element or T.alloc_var. ``value`` is a scalar. Dtypes: any; ``value`` is converted to the dtype of
    ``dst``, with a warning for a constant of more bits. Targets: all. Errors: CompileError for a tile that only some threads reach, unless
    those are a range by number; and for a value that differs between threads, unless ``dst`` is a T.alloc_local."""
    if isinstance(dst, LocalVar) or _element_of_tile(dst):
        store(*element(dst), value)
        return
    region = operand(dst, "the destination of T.fill", of_any_size=True)
    if any(isinstance(e, RunTimeExtent) for e in region.extents):
        return _fill_each(region, value)
    region = closed(region)
    region.buffer.filled()
    emit(ir.Fill(region, converted(value, region.buffer)))


def _fill_each(region: Region, value):
    """Of a slice whose size is known at run time only."""
    extents = [e.extent if isinstance(e, RunTimeExtent) else e for e in region.extents]
    dims = [d for d, e in enumerate(extents) if not isinstance(e, int) or e != 1]
    for index in each([extents[d] for d in dims], region, values=[value]):
        store(region.buffer, shifted(region, dict(zip(dims, index))), value)


def _element_of_tile(value) -> bool:
    return not isinstance(value, (Buffer, Region)) and element(value) is not None


def clear(dst):
    """Every element of a buffer or of a slice becomes 0: ``T.fill(dst, 0)``.
    Shapes: as T.fill. Dtypes: any. Targets: all. Errors: as T.fill."""
    fill(dst, 0)


def gemm(A, B, C, transpose_A=False, transpose_B=False, policy=GemmWarpPolicy.Square, clear_accum=False, k_pack=1, mbar=None, *,
         wg_wait=0, annotations=None, allow_tf32=False):
    """C += op(A) · op(B), the product of two matrices. ``transpose_A`` says that A holds k × m, ``transpose_B`` that B holds n × k.
    ``clear_accum`` starts from zero (True, False or a condition known at run time). ``policy`` is a GemmWarpPolicy. The compiler chooses
    the instruction. ``k_pack``, ``wg_wait`` and ``annotations``: no effect, with a warning.
    Shapes: op(A) is m × k, op(B) is k × n, C is m × n: the last two dimensions; those before are of extent 1. A and B are in shared memory
    or fragments, C is a fragment. Dtypes: A and B of one float type, or both of 8-bit floats, with C of a float type at least as wide and
    of 16 bits or more; or A and B of 8-bit or 4-bit integers with C of int32. Targets: all. Where the target has no matrix instruction for
    the dtypes, the product is computed by fused multiply-adds; `kiln explain` shows the choice. NVIDIA GPUs have none for float32: its
    products are exact and slow. With ``allow_tf32`` the matrix units may leave out the low 13 bits of float32 operands; tilelang.jit and
    tilelang.compile allow it, as TileLang does. Errors: TraceError where shapes do not fit, for ``mbar``, or for ``allow_tf32`` of other dtypes.
    CompileError where dtypes or memory spaces do not fit, or where only some threads reach it, unless those are a range by number."""
    notices.unused("T.gemm", annotations=(annotations, *_ANNOTATIONS),
                   k_pack=(k_pack, (1, None), "how operands lie in registers is inferred; leave it out"),
                   wg_wait=(wg_wait, (0, None), "products are waited for where their result is used; leave it out"))
    if mbar is not None:
        raise error("T.gemm(mbar=…) signals completion by hand, which Kiln infers: drop the argument and the wait that goes with it")
    a, b, c = (closed(operand(x, f"operand {name} of T.gemm")) for x, name in ((A, "A"), (B, "B"), (C, "C")))
    check_product("T.gemm", a, b, c, transpose_A, transpose_B)
    if allow_tf32:
        check_tf32("T.gemm", a, b)
    cleared = clear_before("T.gemm", c, clear_accum)
    emit(ir.Gemm(a, b, c, bool(transpose_A), bool(transpose_B), int(policy), cleared, bool(allow_tf32)))


def _reduce(kind: str, buffer, out, dim: int, clear: bool, nan: bool = False):
    src, dst = closed(operand(buffer, "the source of a reduction")), closed(operand(out, "the result of a reduction"))
    rank = len(src.extents)
    if not -rank <= dim < rank:
        raise error(f"a reduction over dimension {dim} of {describe(src)}, which has {rank} dimensions")
    dim %= rank
    expected = [e for d, e in enumerate(src.extents) if d != dim]
    kept = [e if d != dim else 1 for d, e in enumerate(src.extents)]
    if list(dst.extents) not in (expected, kept) and not (expected == [] and list(dst.extents) == [1]):
        raise error(f"a reduction of {describe(src)} over dimension {dim} gives {expected}, and the result is {describe(dst)}")
    nan = nan and kind in nan_reductions.KINDS and src.dtype.is_float and dst.dtype.is_float
    if src.buffer.space == "LOCAL" and dst.buffer.space == "LOCAL":
        return _reduce_private(kind, src, dst, dim, clear, nan)
    if nan:
        agree(src, dst)
        return nan_reductions.reduce(kind, src, dst, dim, clear, lambda region, index: shifted(region, dict(enumerate(index))))
    if "ABS" in kind and "u" in (src.dtype.kind, dst.dtype.kind):  # the compiler's are of signed numbers in the type of the result
        src, kind = _magnitudes(src, dst.dtype), kind.replace("ABS_", "")
    emit(ir.Reduce(kind, _converted(src, dst.dtype), dst, dim, clear))


def _magnitude(value, dtype):
    """|value| in a type: of signed numbers before they become unsigned, in the unsigned type of their width, which has that of the lowest."""
    if value.dtype.kind in "ub":
        return cast(value, dtype)
    if dtype.kind != "u":
        return abs(cast(value, dtype))
    return cast(cast(abs(value), f"uint{value.dtype.bits}") if value.dtype.kind == "i" else abs(value), dtype)


def _magnitudes(src: Region, dtype) -> Region:
    """A tile of them."""
    if src.dtype.kind in "ub":
        return src
    tile = allocate("FRAGMENT", src.extents, dtype, f"{src.name}_abs")
    agree(src)
    for values in Parallel(*src.extents):
        values = values if isinstance(values, tuple) else (values,)
        store(tile, values, _magnitude(as_expr(src.buffer[shifted(src, dict(enumerate(values)))]), dtype))
    return tile.whole()


_COMBINE = {
    "REDUCE_SUM": lambda a, b: a + b,
    "REDUCE_MAX": lambda a, b: binary("MAX", a, b),
    "REDUCE_MIN": lambda a, b: binary("MIN", a, b),
    "REDUCE_ABS_MAX": lambda a, b: binary("MAX", a, b),
    "REDUCE_ABS_SUM": lambda a, b: a + b,
    "REDUCE_BIT_AND": lambda a, b: a & b,
    "REDUCE_BIT_OR": lambda a, b: a | b,
    "REDUCE_BIT_XOR": lambda a, b: a ^ b,
}


def _reduce_private(kind: str, src: Region, dst: Region, dim: int, clear: bool, nan: bool):
    """Arrays of one thread are reduced by that thread: from the first element on, or from what the result holds."""
    entered = _magnitude if "ABS" in kind else cast
    combine = nan_reductions.with_nan(_COMBINE[kind]) if nan else _COMBINE[kind]
    dropped = len(dst.extents) < len(src.extents)
    outer = [d for d in range(len(src.extents)) if d != dim]
    for values in grid(*[src.extents[d] for d in outer] or [1]):
        at = dict(zip(outer, values))
        to = {(d - (d > dim) if dropped else d): v for d, v in at.items()}
        target = shifted(dst, to)
        if clear:
            store(dst.buffer, target, entered(as_expr(src.buffer[shifted(src, {**at, dim: 0})]), dst.dtype))
        for step in serial(1 if clear else 0, src.extents[dim]):
            value = entered(as_expr(src.buffer[shifted(src, {**at, dim: step})]), dst.dtype)
            store(dst.buffer, target, combine(as_expr(dst.buffer[target]), value))


def _scan(kind: str, name: str, what: str):
    def function(src, dst=None, dim=0, reverse=False):
        source = closed(operand(src, f"the source of T.{name}"))
        target = source if dst is None else closed(operand(dst, f"the result of T.{name}"))
        if tile_extents(source) != tile_extents(target) or not -len(source.extents) <= dim < len(source.extents):
            raise error(f"T.{name} along dimension {dim} from {describe(source)} to {describe(target)}: the shapes must be equal")
        _scan_tile(_COMBINE[kind], source, target, dim % len(source.extents), reverse)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{what} of the elements up to each, that one included, along ``dim``; from the end where ``reverse``. In place without ``dst``.\n"
        "Shapes: tiles of equal shape, in shared memory or fragments.\n"
        "Dtypes: numbers; the scan is computed in the dtype of ``dst``. Targets: all.\n"
        "Errors: TraceError where the shapes differ, or for a dimension that the tile lacks.")
    return function


def _scan_tile(combine, source: Region, target: Region, dim: int, reverse: bool):
    """Through shared memory, a thread for each line: a fragment's line is spread over threads in ways that are not known here."""
    extents = source.extents
    tile = allocate("SHARED", extents, target.dtype, f"{source.name}_scan")
    emit(ir.Copy(source, tile.whole()))
    outer = [d for d in range(len(extents)) if d != dim]
    for values in Parallel(*[extents[d] for d in outer] or [1]):
        at = dict(zip(outer, values if isinstance(values, tuple) else (values,)))
        for step in serial(1, extents[dim]):
            here, before = (extents[dim] - 1 - step, extents[dim] - step) if reverse else (step, step - 1)
            place, last = (tuple({**at, dim: i}[d] for d in range(len(extents))) for i in (here, before))
            store(tile, place, combine(as_expr(tile[last]), as_expr(tile[place])))
    emit(ir.Copy(tile.whole(), target))


cumsum = _scan("REDUCE_SUM", "cumsum", "The sum")
cummax = _scan("REDUCE_MAX", "cummax", "The maximum")


def _converted(src: Region, dtype) -> Region:
    """The tile in the type in which it is combined."""
    if src.dtype == dtype:
        return src
    tile = allocate("FRAGMENT", src.extents, dtype, f"{src.name}_{dtype}").whole()
    emit(ir.Copy(src, tile))
    return tile


def _unused_by_reductions(name: str, batch, annotations) -> None:
    notices.unused(name, batch=(batch, (1, None), "how results are gathered from threads is inferred; leave it out"),
                   annotations=(annotations, *_ANNOTATIONS))


def _reduction(kind: str, name: str, what: str):
    def function(buffer, out, dim=-1, clear=True, batch=1, nan_propagate=False, annotations=None):
        _unused_by_reductions(f"T.{name}", batch, annotations)
        _reduce(kind, buffer, out, dim, bool(clear), bool(nan_propagate))

    function.__name__ = function.__qualname__ = name
    leaves = " NaN is left out; with ``nan_propagate`` it is the result." if kind in nan_reductions.KINDS else ""
    taken = "integers or bool" if "BIT" in kind else "numbers"
    function.__doc__ = (
        f"The {what} over dimension ``dim`` (negative: from the end). ``clear=False`` combines it with what ``out`` holds.{leaves} "
        "``batch`` and ``annotations``: no effect, with a warning.\n"
        "Shapes: ``buffer`` is a tile; ``out`` has its shape without ``dim``, or with 1 there. Both are in shared memory or fragments, "
        f"or both in arrays of T.alloc_local.\nDtypes: {taken}. The result is computed in the dtype of ``out``. Targets: all.\n"
        "Errors: TraceError where the shapes do not fit. CompileError where only some threads reach it.")
    return function


reduce_sum = _reduction("REDUCE_SUM", "reduce_sum", "sum")
reduce_max = _reduction("REDUCE_MAX", "reduce_max", "maximum")
reduce_min = _reduction("REDUCE_MIN", "reduce_min", "minimum")
reduce_absmax = _reduction("REDUCE_ABS_MAX", "reduce_absmax", "largest magnitude")
reduce_bitand = _reduction("REDUCE_BIT_AND", "reduce_bitand", "bitwise and")
reduce_bitor = _reduction("REDUCE_BIT_OR", "reduce_bitor", "bitwise or")
reduce_bitxor = _reduction("REDUCE_BIT_XOR", "reduce_bitxor", "bitwise exclusive or")


def reduce_abssum(buffer, out, dim=-1, batch=1, annotations=None):
    """The sum of magnitudes over dimension ``dim`` (negative: from the end). ``out`` is always overwritten.
    Shapes: as T.reduce_sum. Dtypes: numbers. The result is computed in the dtype of ``out``. Targets: all. Errors: as T.reduce_sum."""
    _unused_by_reductions("T.reduce_abssum", batch, annotations)
    _reduce("REDUCE_ABS_SUM", buffer, out, dim, True)


_BY_NAME = {"sum": "REDUCE_SUM", "max": "REDUCE_MAX", "min": "REDUCE_MIN", "absmax": "REDUCE_ABS_MAX", "abssum": "REDUCE_ABS_SUM",
            "bitand": "REDUCE_BIT_AND", "bitor": "REDUCE_BIT_OR", "bitxor": "REDUCE_BIT_XOR"}


def reduce(buffer, out, reduce_type, dim, clear=True, batch=1, nan_propagate=False, annotations=None):
    """The reduction that ``reduce_type`` names: sum, max, min, absmax, abssum, bitand, bitor or bitxor.
    Shapes: as the function of that name. Dtypes: as the function of that name. Targets: all. Errors: TraceError for another
    ``reduce_type``; otherwise as the function of that name."""
    _unused_by_reductions("T.reduce", batch, annotations)
    if reduce_type not in _BY_NAME:
        raise error(f"T.reduce of type {reduce_type!r}; known: {', '.join(_BY_NAME)}")
    _reduce(_BY_NAME[reduce_type], buffer, out, dim, bool(clear), bool(nan_propagate))


def sync_threads(barrier_id=None, arrive_count=None):
    """A barrier of the threads that come to it. No program needs it: the compiler places the barriers that the statements need.
    ``arrive_count``: how many threads those are, the whole block by default where ``barrier_id`` is given; the compiler chooses the hardware's
    barrier, so a ``barrier_id`` says no more.
    Shapes: none. Dtypes: none. Targets: all. Errors: TraceError where another number of threads comes to it than ``arrive_count``, or values
    known at run time only decide how many. CompileError where only some threads reach it, unless those are a range by number."""
    if barrier_id is not None or arrive_count is not None:
        from .branches import threads_here

        coming, kernel = len(threads_here("sync_threads")), current("T.sync_threads").kernel
        wanted = math.prod(kernel.block) if arrive_count is None else constant_value(arrive_count)
        if coming != wanted:
            raise error(f"T.sync_threads(barrier_id={barrier_id!r}, arrive_count={arrive_count!r}): {coming} threads come to it. Threads that wait "
                        "for others which come by another way are not part of this version: write T.sync_threads() where all of them come, or leave "
                        "it out, for the compiler places each barrier that the program needs")
    emit(ir.Barrier())


def sync_grid():
    """A barrier of all threads of all blocks of the launch: what any of them wrote to a tensor before it, all of them read after it. The launch asks
    for all blocks to be on the device at one time (a cooperative launch). No loop loads ahead over it, and a kernel with one has no threads that
    only load.
    Shapes: none. Dtypes: none. Targets: NVIDIA GPUs. Errors: CompileError where only some threads reach it, and on AMD GPUs. A launch of more
    blocks than the device holds at one time fails with the driver's error; the emulator holds as many as it has memory for. A program of
    which some blocks come to it less often than others hangs; the emulator says which."""
    emit(ir.Barrier(grid=True))


def sync_warp(mask=None):
    """Accepted, and does nothing, with a warning: the compiler makes each statement's effect visible to the next.
    Shapes: none. Dtypes: none. Targets: all. Errors: TraceError outside of a traced function."""
    current("T.sync_warp")
    notices.no_effect("T.sync_warp", "the compiler places each barrier that the program needs; leave it out")


def assume(cond):
    """A promise that the condition holds. The compiler may rely on it. What it says of scalar parameters and of dimensions known at launch,
    outside of any loop and branch, each launch checks.
    Shapes: a scalar condition. Dtypes: bool; a number counts as true where it is not 0. Targets: all. Errors: TraceError for what is known
    to be false. ValueError of a launch where it does not hold."""
    e = as_expr(cond)
    trace, known = current("T.assume"), constant_value(e)
    if known is not None:
        if not known:
            raise error("T.assume of what is false: no call of this program can be right")
    elif trace.kernel is None:
        trace.assumed.append(ir.Assume(e, location=here()))
    else:
        emit(ir.Assume(e))


def loop_break():
    """``break``: leaves the innermost loop.
    Shapes: none. Dtypes: none. Targets: all. Errors: CompileError outside of a loop, and in T.Parallel or T.vectorized, whose iterations
    have no order."""
    emit(ir.Break())


def dp4a(a, b, c):
    """c += a · b over four neighbouring elements, which start at ``a`` and at ``b``. The sum is computed in int32.
    Shapes: buffers, slices or elements; each names its first element. Dtypes: int8 for ``a`` and ``b``, int32 for ``c``. Targets: all.
    Whether one instruction does it is up to the compiler. Errors: ValueError for other dtypes. TraceError for what names no element."""
    (x, i), (y, j), (z, k) = _start(a), _start(b), _start(c)
    for name, buffer, wanted in (("A", x, dtypes.int8), ("B", y, dtypes.int8), ("C", z, dtypes.int32)):
        if buffer.dtype != wanted:
            use = "an int32 accumulator" if name == "C" else "int8 inputs"
            raise ValueError(f"dp4a requires {use}, got {name}.dtype='{buffer.dtype}'; for other types write a loop of products, or T.gemm")
    total = as_expr(z[tuple(k)])
    for lane in range(4):
        left = cast(x[tuple(i[:-1] + [i[-1] + lane])], dtypes.int32)
        total = total + left * cast(y[tuple(j[:-1] + [j[-1] + lane])], dtypes.int32)
    store(z, k, total)


def _start(value):
    """(buffer, index) of the first element of a buffer or region, or of the element itself."""
    if isinstance(value, (Buffer, Region)):
        region = value.whole() if isinstance(value, Buffer) else value
        return region.buffer, [as_expr(o) for o in region.offsets]
    start = element(value)
    if start is None:
        raise error(f"T.dp4a takes buffers or their elements, not {value!r}")
    return start


def Cast(dtype, value):
    """``value`` as the dtype: ``T.cast(value, dtype)`` with its arguments in the other order.
    Shapes: a scalar. Dtypes: any to any. Targets: all. Errors: as T.cast."""
    return cast(value, as_dtype(dtype))


__all__ = [name for name, value in list(globals().items()) if not name.startswith("_") and getattr(value, "__module__", "") == __name__]
