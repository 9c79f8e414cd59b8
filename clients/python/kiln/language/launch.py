# SPDX-License-Identifier: Apache-2.0
"""Kernel frames, allocations and annotations."""

from __future__ import annotations

import math

from .. import notices
from . import placement
from . import privates
from . import program as ir
from . import reducers
from . import signals
from . import trace as tr
from .barriers import Barrier
from .buffer import Buffer, LocalVar
from .dtypes import as_dtype, int32
from .expr import Var, as_expr, constant_value, representable
from .lanes import VectorVar
from .math import max_value, min_value


class Kernel:
    """``with T.Kernel(gx, gy, threads=128) as (bx, by):`` is one launch. Several launches in one function run in order. ``threads``: how
    many a block has, or their numbers along x, y and z, as ``(32, 4)``; neighbours along x are neighbours in their warp. ``cluster_dims``:
    blocks of a cluster.
    Shapes: one to three grid extents of 0 or more, known at compile time or at run time; without one, a single block. 1 to 1024 threads
    in a block. Matrix instructions and exchanges within a warp need whole warps; other numbers of threads compute products one by one, and
    exchange through memory. Dtypes: integers; the block's indices are int32. Targets: all. Clusters need sm_90. Errors: TraceError inside
    another T.Kernel, for other extents or threads, for ``prelude`` (CUDA source), and for ``is_cpu``. A grid extent of 0 is a warning."""

    def __init__(self, *blocks, threads=None, prelude=None, cluster_dims=None, is_cpu=False):
        if prelude:
            raise tr.error("T.Kernel(prelude=…) is CUDA source, which Kiln does not compile; write the function in the tile language")
        if is_cpu:
            raise tr.error("T.Kernel(is_cpu=True) is a kernel for the host's processor, which Kiln does not compile: leave it out, "
                           "and run the kernel on the emulator where there is no GPU (target=\"emu:sm_90a\", or `with kiln.emulation():`)")
        if len(blocks) > 3:
            raise tr.error(f"T.Kernel takes up to 3 grid extents, not {len(blocks)}")
        self.blocks = [self._extent(b) for b in blocks or (1,)]
        self.block = self._block(threads)
        self.cluster = [] if cluster_dims is None else self._cluster(cluster_dims)
        self._context = None

    @staticmethod
    def _extent(value):
        e = as_expr(value)
        number = constant_value(e)
        if not e.dtype.is_int or (number is not None and number < 0):
            raise tr.error(f"a grid extent must be an integer from 0 on, not {value!r}; with 0, no block runs")
        if number == 0:
            notices.warn("a grid extent of T.Kernel is 0: no block runs, and what the kernel would write stays as it is")
        return e

    @staticmethod
    def _block(threads) -> tuple[int, int, int]:
        sizes = [128] if threads is None else list(threads) if isinstance(threads, (list, tuple)) else [threads]
        if not 1 <= len(sizes) <= 3:
            raise tr.error(f"threads of T.Kernel are one number, or up to three along x, y and z, not {len(sizes)}")
        numbers = [constant_value(as_expr(size)) for size in sizes]
        for size, number in zip(sizes, numbers):
            if not isinstance(number, int) or number <= 0:
                raise tr.error(f"threads of T.Kernel must be a positive compile-time integer, not {size!r}")
        return tuple([*numbers, 1, 1][:3])

    def _cluster(self, dims):
        dims = [dims] if isinstance(dims, int) else list(dims)
        return (dims + [1, 1, 1])[: len(self.blocks)]

    def __enter__(self):
        trace = tr.current("T.Kernel")
        if trace.declare_only:
            raise tr.DeclarationsDone
        if trace.kernel is not None:
            raise tr.error("T.Kernel inside T.Kernel; launches of one function stand one after the other")
        if trace.func.stray is not None:
            raise trace.func.stray
        block_vars = [Var("BLOCK", int32, f"b{'xyz'[axis]}", axis) for axis in range(len(self.blocks))]
        count = len(trace.func.kernels)
        name = trace.func.name if count == 0 else f"{trace.func.name}_{count}"
        kernel = ir.Kernel(self.blocks, self.block, block_vars, name, self.cluster, body=list(trace.assumed))
        trace.func.kernels.append(kernel)
        trace.kernel = kernel
        self._context = trace.inside(kernel.body)
        self._context.__enter__()
        values = tuple(v.expr for v in block_vars)
        return values[0] if len(values) == 1 else values

    def __exit__(self, *exc):
        trace = tr.current("T.Kernel")
        self._context.__exit__(*exc)
        if exc[0] is None:
            reducers.check(trace)
        kernel, trace.kernel = trace.kernel, None
        if exc[0] is None:
            privates.settle(kernel)
            signals.settle(kernel)
            placement.apply(kernel, trace.views)
            if isinstance(kernel.in_order, ir.Kernel):
                placement.apply(kernel.in_order, trace.views)


def ClusterKernel(*blocks, cluster_dims, threads=None, prelude=None):
    """T.Kernel with its blocks in clusters of ``cluster_dims`` (a number, or one for each grid dimension).
    Shapes: as T.Kernel. Dtypes: as T.Kernel. Targets: sm_90 and later. Errors: as T.Kernel."""
    return Kernel(*blocks, threads=threads, prelude=prelude, cluster_dims=cluster_dims)


def _kernel(what: str) -> ir.Kernel:
    kernel = tr.current(what).kernel
    if kernel is None:
        raise tr.error(f"{what} is used outside T.Kernel")
    return kernel


def get_thread_binding(dim: int = 0):
    """The index of the thread in its block along dimension ``dim``: 0 is x, 1 is y, 2 is z. It goes from 0 to T.get_thread_extent(dim) - 1.
    Shapes: a scalar. Dtypes: int32. Targets: all. Errors: ValueError for another dimension. TraceError outside of T.Kernel."""
    kernel = _kernel("T.get_thread_binding")
    extent = _thread_extent(kernel, dim, "T.get_thread_binding")
    if extent == 1:
        return as_expr(0)
    if kernel.thread_var is None:
        kernel.thread_var = Var("THREAD", int32, "tx")
    inner = math.prod(kernel.block[:dim])
    index = kernel.thread_var.expr
    if inner > 1:
        index = index // inner
    return index % extent if math.prod(kernel.block[dim + 1 :]) > 1 else index


def _thread_extent(kernel, dim: int, what: str) -> int:
    if dim not in (0, 1, 2):
        raise ValueError(f"{what}({dim!r}): a block has the dimensions 0 (x), 1 (y) and 2 (z)")
    return kernel.block[dim]


def get_thread_bindings():
    """The indices of the thread along x, y and z, as a list.
    Shapes: three scalars. Dtypes: int32. Targets: all. Errors: TraceError outside of T.Kernel."""
    return [get_thread_binding(d) for d in range(3)]


def get_thread_extent(dim: int = 0):
    """How many threads a block has along dimension ``dim``: 0 is x, 1 is y, 2 is z.
    Shapes: a Python int. Dtypes: none. Targets: all. Errors: ValueError for another dimension. TraceError outside of T.Kernel."""
    return _thread_extent(_kernel("T.get_thread_extent"), dim, "T.get_thread_extent")


def get_thread_extents():
    """How many threads a block has along x, y and z, as a list of Python ints.
    Shapes: three Python ints. Dtypes: none. Targets: all. Errors: TraceError outside of T.Kernel."""
    return [get_thread_extent(d) for d in range(3)]


def get_block_binding(dim: int = 0):
    """The index of the block along dimension ``dim`` of the grid.
    Shapes: a scalar. Dtypes: int32. Targets: all. Errors: IndexError where the grid has fewer dimensions. TraceError outside of
    T.Kernel."""
    return _kernel("T.get_block_binding").block_vars[dim].expr


def get_block_bindings():
    """The indices of the block along the grid's dimensions, as a list.
    Shapes: one scalar for each dimension of the grid. Dtypes: int32. Targets: all. Errors: TraceError outside of T.Kernel."""
    return [v.expr for v in _kernel("T.get_block_bindings").block_vars]


def get_block_extent(dim: int = 0):
    """How many blocks the grid has along dimension ``dim``.
    Shapes: a scalar. Dtypes: an integer. Targets: all. Errors: IndexError where the grid has fewer dimensions. TraceError outside of
    T.Kernel."""
    return _kernel("T.get_block_extent").grid[dim]


def get_block_extents():
    """How many blocks the grid has along each dimension, as a list.
    Shapes: one scalar for each dimension of the grid. Dtypes: integers. Targets: all. Errors: TraceError outside of T.Kernel."""
    return list(_kernel("T.get_block_extents").grid)


_NO_SCOPES = {
    "shared.tmem": "tensor memory is not part of the language in this version: T.gemm accumulates into a T.alloc_fragment",
    "shared.barrier": "use T.alloc_barrier",
    "shared.cluster_barrier": "use T.alloc_cluster_barrier",
    "local.reducer": "use T.alloc_reducer",
}


def _scope(what: str, scope: str, *known: str):
    if scope in known:
        return
    use = {"shared": "T.alloc_shared", "local": "T.alloc_local", "local.fragment": "T.alloc_fragment", "local.var": "T.alloc_var",
           "global": "T.alloc_global"}
    hint = _NO_SCOPES.get(scope) or f"use {use.get(scope.removesuffix('.dyn'), 'the function for the memory that is meant')}"
    raise tr.error(f"{what}(scope={scope!r}): this memory is {' or '.join(map(repr, known))}; {hint}")


def alloc_shared(shape, dtype, scope="shared.dyn"):
    """A tile in the shared memory of a block. Its elements start unspecified. ``scope``: "shared" and "shared.dyn" mean the same.
    Shapes: any, of dimensions known at compile time. Dtypes: any that the IR has: see T.DType. Targets: all. What all tiles of a kernel
    take together is limited: 64 KiB on sm_75, gfx90a, gfx942 and RDNA, 160 KiB on gfx950, 99 to 227 KiB on other CUDA targets. Errors:
    TraceError for a dimension known at run time only, a negative one, and another ``scope``. CompileError where shared memory does not
    suffice."""
    _scope("T.alloc_shared", scope, "shared.dyn", "shared")
    return tr.allocate("SHARED", shape, dtype, "shared")


def alloc_fragment(shape, dtype, scope="local.fragment"):
    """A tile in the registers of a block. The compiler decides which thread holds which element. Its elements start unspecified. Where no
    tile operation, no T.Parallel loop and no other threads use it, each thread that writes an element has its own; with ``scope="local"`` it is
    T.alloc_local.
    Shapes: any, of dimensions known at compile time. Dtypes: any that the IR has: see T.DType. Targets: all. Errors: as T.alloc_shared.
    CompileError where fragments take more than ``kiln.max_fragment_registers`` (of pass_configs; 640 by default) registers of a thread at a time."""
    if scope == "local":
        return alloc_local(shape, dtype)
    _scope("T.alloc_fragment", scope, "local.fragment")
    return tr.allocate("FRAGMENT", shape, dtype, "fragment")


def alloc_local(shape, dtype, scope="local"):
    """An array of which each thread has its own. Its elements start unspecified.
    Shapes: any, of dimensions known at compile time. Dtypes: any that the IR has, of 8 bits or more. Targets: all. Errors: as
    T.alloc_shared. CompileError for an index that is certainly outside."""
    _scope("T.alloc_local", scope, "local")
    return tr.allocate("LOCAL", shape, dtype, "local")


def alloc_var(dtype, *args, scope="local.var", init=None):
    """A mutable scalar of which each thread has its own. Its name is its value; assigning to the name stores. ``init`` is its first value,
    also as ``alloc_var(dtype, init)``; without one it starts unspecified.
    Shapes: a scalar. Dtypes: any that the IR has, of 8 bits or more, and vectors of them, as T.bfloat16x2. Targets: all. Errors: TypeError for no
    dtype, and for two initial values. TraceError for a number that the dtype does not have, and for another ``scope``."""
    for arg in args:
        if isinstance(arg, str):
            scope = arg
        elif init is not None:
            raise TypeError("T.alloc_var is given two initial values")
        else:
            init = arg
    _scope("T.alloc_var", scope, "local.var")
    if as_dtype(dtype).lanes > 1:
        return _vector(as_dtype(dtype), init)
    number = None if init is None else constant_value(init)
    if number is not None and not representable(number, as_dtype(dtype)):
        low, high = constant_value(min_value(dtype)), constant_value(max_value(dtype))
        side = "exceeds maximum of" if number > high else "is below the minimum of" if number < low else "is not of"
        raise tr.value_error(f"T.alloc_var({as_dtype(dtype)}, init={number!r}): it {side} {as_dtype(dtype)}: the type has no such number; use a "
                             "wider one, or T.cast(…) for what a cast makes of it")
    return tr.variable(dtype, "var", init)


def _vector(dtype, init) -> VectorVar:
    handle = VectorVar(tr.allocate("LOCAL", (dtype.lanes,), dtype.element, "var"), dtype)
    if init is not None:
        handle.store(init)
    return handle


def alloc_global(shape, dtype, scope="global"):
    """A temporary tensor in device memory, allocated for the time of the launch and not cleared. All kernels of the function see it.
    Shapes: any; dimensions may be symbolic. Dtypes: any that the IR has. Targets: all. Errors: TraceError outside of a traced function, and
    for another ``scope``."""
    _scope("T.alloc_global", scope, "global")
    trace = tr.current("T.alloc_global")
    buffer = Buffer("GLOBAL", shape, as_dtype(dtype), "workspace", workspace=True)
    trace.func.workspaces.append(buffer)
    return buffer


def use_swizzle(panel_size, order="row", enable=True):
    """Blocks are walked in panels of ``panel_size`` rows, so that neighbours share what they read from the L2. ``order``: no effect, with a
    warning.
    Shapes: a Python int. Dtypes: none. Targets: all. Errors: TraceError outside of T.Kernel."""
    notices.unused("T.use_swizzle", order=(order, ("row",), "panels are made of rows; their width alone counts"))
    if enable:
        _kernel("T.use_swizzle").raster_panel = int(panel_size)


def annotate_min_blocks_per_sm(blocks):
    """A multiprocessor shall hold at least ``blocks`` blocks at a time: a thread gets no more registers than that leaves.
    Shapes: a Python int. Dtypes: none. Targets: all. Errors: TraceError outside of T.Kernel."""
    _kernel("T.annotate_min_blocks_per_sm").min_blocks = int(blocks)


def annotate_safe_value(values: dict):
    """What a load outside of a tensor gives, instead of zero: ``{tensor: constant}``.
    Shapes: a dictionary of tensors and scalars. Dtypes: a constant number, converted to the tensor's dtype. Targets: all. Errors:
    TraceError for a value that is no constant, and for an integer of 64 bits that no float64 holds."""
    for buffer, value in values.items():
        number = _number(tr.converted(value, buffer))
        if number is None:
            raise tr.error(f"the safe value of {buffer.name} must be a constant, not {value!r}")
        if float(number) != number == number:
            raise tr.error(f"the safe value {number} of {buffer.name} is kept as a float64, which has no such number; use one of 53 bits")
        buffer.pad_value = float(number)


def _number(e):
    """That of a constant, also of T.infinity of an 8-bit float, which is made of its bits."""
    if e.op == "REINTERPRET" and e.dtype == "float8_e5m2" and constant_value(e.args[0]) in (0x7C, 0xFC):
        return math.inf if e.args[0].value == 0x7C else -math.inf
    return constant_value(e)


def annotate_restrict_buffers(*buffers):
    """These tensor parameters may overlap each other in memory. Tensors that are not named here are taken as distinct where the kernel
    writes one of them. Loads and stores of the named ones keep their order, so tensor copies and pipelines do without them.
    Shapes: any number of tensor parameters. Dtypes: any. Targets: all. Errors: TypeError for what is no tensor parameter of the
    function."""
    parameters = {param.buffer for param in tr.current("T.annotate_restrict_buffers").func.params}
    for buffer in buffers:
        if not isinstance(buffer, Buffer) or buffer not in parameters:
            raise TypeError(f"T.annotate_restrict_buffers takes tensor parameters of the function, not {buffer!r}")
        buffer.may_alias = True


def annotate_pass_configs(configs: dict):
    """``pass_configs`` of this function. They override those of kiln.jit and kiln.compile.
    Shapes: a dictionary. Dtypes: none. Targets: all. Errors: ValueError for an unknown key."""
    tr.current("T.annotate_pass_configs").func.pass_configs.update(configs)


def annotate_compile_flags(flags):
    """compile_flags of this function, beside those of jit and compile: a list, or words in a string. Kiln calls no nvcc. It does what it
    can of what they ask (``kiln.options.from_compile_flags``) and warns of the rest.
    Shapes: a list of strings, or a string. Dtypes: none. Targets: all. Errors: TraceError outside of a traced function. ValueError for a
    flag that asks for what Kiln refuses."""
    tr.current("T.annotate_compile_flags").func.compile_flags.extend(flags.split() if isinstance(flags, str) else flags)


def _accepted(name: str, why: str):
    def function(*args, **kwargs):
        tr.current(f"T.{name}")
        notices.no_effect(f"T.{name}", why)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (f"Accepted and without effect, with a warning: {why}.\nShapes: any arguments.\nDtypes: any.\nTargets: all.\n"
                        "Errors: TraceError outside of a traced function.")
    return function


def _left_out(name: str, why: str):
    def function(*args, **kwargs):
        tr.current(f"T.{name}")
        notices.warn(f"T.{name} is left out: {why}")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (f"Accepted and left out, with a warning: {why}.\nShapes: any arguments.\nDtypes: any.\nTargets: all.\n"
                        "Errors: TraceError outside of a traced function.")
    return function


def annotate_layout(layouts: dict):
    """Layouts by buffer. Of a tensor parameter, a ``T.Layout(shape, function)`` says where its elements lie in memory: element ``index`` at
    place ``function(*index)`` of a row-major box. Of tiles layouts are inferred: what is said of them has no effect, with a warning.
    Shapes: a dictionary of buffers and layouts. Dtypes: any. Targets: all. Errors: TraceError for what is no buffer, and for a layout that
    Kiln cannot follow."""
    tr.current("T.annotate_layout")
    for buffer, layout in layouts.items():
        if not isinstance(buffer, Buffer):
            raise tr.error(f"T.annotate_layout takes buffers, not {buffer!r}")
        if buffer.space == "GLOBAL":
            placement.place(buffer, layout)
    tiles = [buffer.name for buffer in layouts if buffer.space != "GLOBAL"]
    if tiles:
        notices.no_effect(f"T.annotate_layout of {', '.join(tiles)}",
                          "the layouts of tiles are inferred, without bank conflicts where that is possible; "
                          "leave them out")


_REGISTERS = "how registers are divided among warps is inferred; leave it out, or set T.annotate_min_blocks_per_sm"
_LAUNCHES = "launches of one stream run one after the other; leave it out"
annotate_l2_hit_ratio = _accepted("annotate_l2_hit_ratio", "what the L2 keeps is inferred; leave it out")
annotate_producer_reg_dealloc = _accepted("annotate_producer_reg_dealloc", _REGISTERS)
annotate_consumer_reg_alloc = _accepted("annotate_consumer_reg_alloc", _REGISTERS)
no_set_max_nreg = _accepted("no_set_max_nreg", _REGISTERS)
disable_warp_group_reg_alloc = _accepted("disable_warp_group_reg_alloc", _REGISTERS)


def set_max_nreg(reg_count, is_inc):
    """The warp groups that come to it have ``reg_count`` registers for each thread from here on. ``is_inc``: they wait until the others have
    given up as many as they lack; else they give up what they have beyond. It goes with barriers of warp groups (T.ws); in other kernels the
    compiler gives out the registers, and it has no effect, with a warning. Nor has it where the groups ask for more than there are.
    Shapes: two Python ints. Dtypes: none. Targets: sm_90a; no effect elsewhere. Errors: TraceError for another number than a multiple of 8 from
    24 to 256."""
    _ask_for_registers("set_max_nreg", reg_count, is_inc)


def _ask_for_registers(name: str, reg_count, is_inc) -> None:
    count, more = constant_value(as_expr(reg_count)), constant_value(as_expr(is_inc))
    if not isinstance(count, int) or not 24 <= count <= 256 or count % 8:
        raise tr.error(f"T.{name}({reg_count!r}): the number is a multiple of 8 from 24 to 256")
    if more is None:
        raise tr.error(f"T.{name}(…, is_inc={is_inc!r}): it is known while the program is traced")
    _kernel(f"T.{name}")
    tr.current(f"T.{name}").emit(signals.Wish(count, bool(more), name))


def inc_max_nreg(reg_count):
    """T.set_max_nreg(reg_count, True).
    Shapes: as of that. Dtypes: as of that. Targets: as of that. Errors: as of T.set_max_nreg."""
    _ask_for_registers("inc_max_nreg", reg_count, True)


def dec_max_nreg(reg_count):
    """T.set_max_nreg(reg_count, False).
    Shapes: as of that. Dtypes: as of that. Targets: as of that. Errors: as of T.set_max_nreg."""
    _ask_for_registers("dec_max_nreg", reg_count, False)


pdl_trigger = _accepted("pdl_trigger", _LAUNCHES)
pdl_sync = _accepted("pdl_sync", _LAUNCHES)
device_assert = _left_out("device_assert", "assertions are not checked on the device in this version")
print = _left_out("print", "device output is not available in this version")


def rename(value, name: str) -> None:
    """Gives an object of the program the name of the variable it is assigned to, for messages and dumps."""
    if isinstance(value, LocalVar):
        value = value.buffer
    if isinstance(value, Barrier):
        value = value.barriers.buffer
    if isinstance(value, Buffer) and value.name in ("shared", "fragment", "local", "var", "workspace", "tensor", "barriers"):
        value.name = name


_HELPERS = {"annotations", "Barrier", "ir", "reducers", "signals", "privates", "math", "notices", "placement", "tr", "Buffer", "LocalVar",
            "VectorVar", "as_dtype", "int32", "Var", "as_expr", "constant_value",
            "representable", "rename"}
__all__ = [name for name in dir() if not name.startswith("_") and name not in _HELPERS]
