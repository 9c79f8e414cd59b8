# SPDX-License-Identifier: Apache-2.0
"""Names of the script that TileLang grew out of, in which threads and memory are written out."""

from __future__ import annotations

from . import launch
from . import program as ir
from . import trace as tr
from .affine import difference, evaluated
from .buffer import Buffer, LocalVar, as_shape
from .dtypes import as_dtype
from .expr import Expr, as_expr, cast, constant_value
from .views import fills, view

_AXES = {f"{kind}Idx.{axis}": (kind, dim) for kind in ("thread", "block") for dim, axis in enumerate("xyz")}


def thread_binding(begin, end=None, thread="threadIdx.x", *, annotations=None):
    """The index of the thread in its block, or of the block in the grid, by its name in CUDA, as "threadIdx.x" or "blockIdx.y":
    ``tx = T.thread_binding(0, 128, thread="threadIdx.x")``. T.Kernel has opened the launch, and so many threads or blocks it has there.
    Shapes: a scalar. Dtypes: int32. Targets: all. Errors: TraceError for another name, for a range that is not T.Kernel's, for annotations,
    and outside of T.Kernel."""
    if thread not in _AXES:
        raise tr.error(f"T.thread_binding(thread={thread!r}): one of {', '.join(_AXES)}")
    if annotations:
        raise tr.error(f"T.thread_binding(annotations={annotations!r}): T.Kernel says all of a launch; leave them out")
    if tr.current("T.thread_binding").kernel is None:
        raise tr.error("T.thread_binding outside of T.Kernel would open a launch of its own: write `with T.Kernel(blocks, threads=…):`")
    begin, end = (0, begin) if end is None else (begin, end)
    kind, dim = _AXES[thread]
    extents = launch.get_thread_extents() if kind == "thread" else [constant_value(e) for e in launch.get_block_extents()]
    there = extents[dim] if dim < len(extents) else 1
    first, last = constant_value(as_expr(begin)), constant_value(as_expr(end))
    if first != 0 or (last if there is not None else None) != there:
        raise tr.error(f"T.thread_binding({begin}, {end}, {thread!r}): T.Kernel has opened a launch with {there or 'a run-time number'} there; the "
                       "range must be that")
    if kind == "block":
        return launch.get_block_binding(dim) if dim < len(extents) else as_expr(0)
    return launch.get_thread_binding(dim)


_ALLOCATE = {"global": launch.alloc_global, "shared": launch.alloc_shared, "shared.dyn": launch.alloc_shared, "local": launch.alloc_local,
             "local.var": launch.alloc_local, "local.fragment": launch.alloc_fragment}


def alloc_buffer(shape, dtype="float32", data=None, strides=None, elem_offset=None, scope="global", align=-1, offset_factor=0,
                 buffer_type="default", axis_separators=None):
    """Memory by the name of its ``scope``: "global", "shared", "shared.dyn", "local", "local.var" or "local.fragment", as T.alloc_global,
    T.alloc_shared, T.alloc_local and T.alloc_fragment give it.
    Shapes: as that function. Dtypes: as that function. Targets: all. Errors: TraceError for another ``scope``, and for arguments behind it or
    between that ask for more than rows of ``shape`` without gaps, with an ``align`` of -1, 0 or 64. Otherwise as that
    function."""
    _check_usual("alloc_buffer", shape, align, offset_factor, buffer_type, strides, elem_offset, axis_separators)
    if data is not None:
        raise tr.error("T.alloc_buffer(data=…): it allocates memory; T.decl_buffer names that of another buffer")
    return _allocated("alloc_buffer", shape, dtype, scope)


def _check_usual(name: str, shape, align, offset_factor, buffer_type, strides, elem_offset, axis_separators) -> None:
    """Arguments that say how memory is laid out may say what it is."""
    usual = (("strides", not strides or _is_dense(strides, shape)), ("elem_offset", elem_offset is None or _is(elem_offset, 0)),
             ("axis_separators", not axis_separators), ("align", align in (-1, 0, 64)), ("offset_factor", offset_factor in (0, 1)),
             ("buffer_type", buffer_type in ("default", "")))
    for argument, holds in usual:
        if not holds:
            raise tr.error(f"T.{name}({argument}=…): memory is laid out by the compiler; leave it out")


def _is(value, number) -> bool:
    """Whether both are the same for all values of variables."""
    return difference(value, number) == 0


def _is_dense(strides, shape) -> bool:
    """Whether these are the strides of rows without gaps."""
    strides, shape = as_shape(strides), as_shape(shape)
    step, wanted = as_expr(1), []
    for extent in reversed(shape):
        wanted.insert(0, step)
        step = step * extent
    return len(strides) == len(shape) and all(_is(mine, theirs) for mine, theirs in zip(strides, wanted))


def _allocated(name: str, shape, dtype, scope: str) -> Buffer:
    if scope not in _ALLOCATE:
        raise tr.error(f"T.{name}(scope={scope!r}): one of {', '.join(map(repr, _ALLOCATE))}")
    return _ALLOCATE[scope](shape, dtype)


def decl_buffer(shape, dtype="float32", data=None, strides=None, elem_offset=None, scope="global", align=0, offset_factor=0, buffer_type="",
                axis_separators=None):
    """A buffer by its parts. With ``data``, the memory of another buffer (``A.data``, or what T.alloc_var gives, itself), it is that memory under
    this shape and dtype, as T.view gives it, and ``scope`` is that buffer's. Without, it is T.alloc_buffer.
    Shapes: as T.view with ``data``, as T.alloc_buffer without. Dtypes: as T.view with ``data``, as T.alloc_buffer without. Targets: all. Errors:
    ValueError for a shape that does not fill ``data``. TraceError for ``data`` in another ``scope``, and for the other arguments where they ask for
    another place than the compiler gives, as those of T.alloc_buffer. Otherwise as T.view with ``data``, and as T.alloc_buffer without."""
    _check_usual("decl_buffer", shape, align, offset_factor, buffer_type, strides, elem_offset, axis_separators)
    if data is None:
        return _allocated("decl_buffer", shape, dtype, scope)
    buffer = data.buffer if isinstance(data, LocalVar) else data
    if not isinstance(buffer, Buffer):
        raise tr.error(f"T.decl_buffer(data={data!r}): it takes the memory of a buffer, as A.data, or a T.alloc_var itself")
    if _ALLOCATE.get(scope) is not _ALLOCATE[buffer.scope()]:
        raise tr.error(f"T.decl_buffer(scope={scope!r}, data=…) of {buffer!r}: its scope is {buffer.scope()!r}")
    if not fills(shape, dtype, buffer):
        raise tr.value_error(f"T.decl_buffer({shape!r}, {str(as_dtype(dtype))!r}, data=…) of {buffer!r}: it has another number of bits; declare all "
                             "of it, and index or slice that")
    return view(buffer, shape, dtype)


def let(v, value, body=None):
    """Gives the variable ``v``, which a dtype called without a value makes (``v = T.int32()``), the value that ``value`` has here, for the rest of
    the block: ``T.let(v, value)``, or ``with T.let(v, value):``, after which ``v`` may get another one. With ``body``, an expression, it is a value:
    that of ``body`` with ``value`` in the place of ``v``.
    Shapes: scalars. Dtypes: any; ``value`` is converted to that of ``v``. Targets: all. Errors: TraceError for what is no such variable, and for one
    that has a value here. CompileError for a variable that is used where it has none."""
    trace = tr.current("T.let")
    if not (isinstance(v, Expr) and v.op == "VAR" and v.value.for_let):
        raise tr.error(f"T.let({v!r}, …): it takes a variable, as T.int32() makes it; to change a value use T.alloc_var")
    if tr.has_value(v):
        raise tr.error(f"T.let of {v!r}, which has a value; to change a value use T.alloc_var")
    value = cast(value, v.dtype)
    if body is not None:
        return evaluated(as_expr(body), {v: value})
    trace.emit(ir.Let(v.value, value))
    trace.bound[v] = trace.blocks[-1] if trace.blocks else None
    return _Given(v)


class _Given:
    """What T.let gives, for `with`."""

    def __init__(self, v: Expr):
        self.v = v

    def __enter__(self):
        return self.v

    def __exit__(self, *exc):
        tr.current("T.let").bound.pop(self.v, None)


__all__ = ["alloc_buffer", "decl_buffer", "let", "thread_binding"]
