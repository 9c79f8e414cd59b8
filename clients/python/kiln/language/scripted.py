# SPDX-License-Identifier: Apache-2.0
"""Names of the script that TileLang grew out of, in which threads and memory are written out."""

from __future__ import annotations

from . import launch
from . import trace as tr
from .expr import as_expr, constant_value

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
             "local.fragment": launch.alloc_fragment}


def alloc_buffer(shape, dtype="float32", data=None, strides=None, elem_offset=None, scope="global", align=-1, offset_factor=0,
                 buffer_type="default", axis_separators=None):
    """Memory by the name of its ``scope``: "global", "shared", "shared.dyn", "local" or "local.fragment", as T.alloc_global, T.alloc_shared,
    T.alloc_local and T.alloc_fragment give it.
    Shapes: as that function. Dtypes: as that function. Targets: all. Errors: TraceError for another ``scope``, and for arguments behind it or
    between; otherwise as that function."""
    asked = dict(data=data, strides=strides, elem_offset=elem_offset, axis_separators=axis_separators)
    odd = [name for name, value in asked.items() if value is not None]
    numbers = (("align", align, (-1, 0)), ("offset_factor", offset_factor, (0,)), ("buffer_type", buffer_type, ("default", "")))
    odd += [name for name, value, usual in numbers if value not in usual]
    if odd:
        raise tr.error(f"T.alloc_buffer({odd[0]}=…): memory is laid out by the compiler; leave it out")
    if scope not in _ALLOCATE:
        raise tr.error(f"T.alloc_buffer(scope={scope!r}): one of {', '.join(map(repr, _ALLOCATE))}")
    return _ALLOCATE[scope](shape, dtype)


__all__ = ["alloc_buffer", "thread_binding"]
