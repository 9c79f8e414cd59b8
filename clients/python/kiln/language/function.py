# SPDX-License-Identifier: Apache-2.0
"""Tile functions: parameter annotations, T.prim_func, T.macro, and the trace of both."""

from __future__ import annotations

import functools
import inspect
import re

from .. import notices
from . import kinds
from . import program as ir
from . import trace as tr
from .buffer import Buffer, LocalVar, Region, as_shape
from .dtypes import DType, as_dtype, int32, int64
from .expr import Expr, Var
from .pointers import Pointer, ptr
from .rewrite import enclosing_names, rewrite
from .views import view


class TensorAnnotation:
    """``T.Tensor((M, N), "float16")`` as the type of a parameter."""

    def __init__(self, shape, dtype="float32", strides=None, space="GLOBAL"):
        self.shape, self.dtype, self.strides, self.space = as_shape(shape), as_dtype(dtype), strides, space
        if strides is not None:
            self.strides = as_shape(strides)

    def buffer(self, name: str) -> Buffer:
        return Buffer(self.space, self.shape, self.dtype, name, self.strides)


_SCOPES = {"GLOBAL": ("global",), "SHARED": ("shared", "shared.dyn"), "FRAGMENT": ("local.fragment",), "LOCAL": ("local", "local.var")}


class _TensorType:
    """T.Tensor: called or subscripted."""

    def __init__(self, space="GLOBAL"):
        self.space = space

    def __call__(self, shape, dtype="float32", data=None, strides=None, elem_offset=None, scope=None):
        if data is not None and (strides is not None or elem_offset):
            raise tr.error("T.Tensor(data=…) views all of a buffer's memory, row by row: leave strides and elem_offset out")
        if data is not None:
            return view(data, shape, dtype)
        if elem_offset:
            raise tr.error("T.Tensor(elem_offset=…): a tensor begins where the caller's does; pass a slice of it")
        known = _SCOPES[self.space]
        if scope is not None and scope not in known:
            raise tr.error(f"a tensor of scope={scope!r}: here it is {known[0]!r}; T.SharedBuffer, T.FragmentBuffer and T.LocalBuffer "
                           "annotate tiles that a macro takes")
        return TensorAnnotation(shape, dtype, strides, self.space)

    def __getitem__(self, key):
        shape, dtype = key if isinstance(key, tuple) and len(key) == 2 and not isinstance(key[1], int) else (key, "float32")
        return TensorAnnotation(shape, dtype, None, self.space)


class _StridedTensorType(_TensorType):
    def __call__(self, shape, strides, dtype="float32"):
        return TensorAnnotation(shape, dtype, strides)

    def __getitem__(self, key):
        return self(*key)


class Ref:
    """The annotation of a T.macro parameter that is passed by reference: a T.alloc_var or an element.
    Shapes: a scalar. Dtypes: any. Targets: all. Errors: ValueError for a Python number."""

    def __class_getitem__(cls, _):
        return cls


Tensor = _TensorType()
Tensor.__doc__ = """The type of a tensor parameter: ``T.Tensor((M, N), T.float16)`` or ``T.Tensor[[M, N], T.float16]``. Its elements lie
row by row without gaps. Without a dtype it is float32. ``scope`` is "global". With ``data``, the memory of a buffer (``buffer.data``), it
is T.view of that.
Shapes: any number of dimensions; each is an integer, a T.const, a T.dynamic or an expression of those.
Dtypes: any that the IR has.
Targets: all.
Errors: TypeError for a dimension that is no integer, and for no dtype. TraceError for ``elem_offset`` and another ``scope``."""
StridedTensor = _StridedTensorType()
StridedTensor.__doc__ = """The type of a tensor parameter with strides: ``T.StridedTensor((M, N), (stride, 1), T.float16)``, in elements.
Shapes: any number of dimensions, and as many strides; each is an integer, a T.const, a T.dynamic or an expression of those.
Dtypes: any that the IR has.
Targets: all.
Errors: ValueError for another number of strides. TypeError as for T.Tensor."""
SharedBuffer, FragmentBuffer, LocalBuffer = _TensorType("SHARED"), _TensorType("FRAGMENT"), _TensorType("LOCAL")
for _type, _what in ((SharedBuffer, "a tile of T.alloc_shared"), (FragmentBuffer, "a tile of T.alloc_fragment"),
                     (LocalBuffer, "an array of T.alloc_local")):
    _type.__doc__ = (f"The type of a T.macro parameter that is {_what}.\nShapes: any; what is passed keeps its own.\nDtypes: any.\n"
                     "Targets: all.\nErrors: TraceError where a buffer of other memory is passed.")


def _split_names(names) -> list[str]:
    return [n for n in re.split(r"[,\s]+", names) if n] if isinstance(names, str) else list(names)


def const(names, dtype=int32):
    """Dimensions that the compiler knows: ``M, N = T.const("M, N")``. Their values come from the tensors of the call, or from keywords of
    the same name. Each set of values is compiled once.
    Shapes: scalars; one for each name. Dtypes: int32, or another integer ``dtype``. Targets: all. Errors: TraceError for a name that has no
    value. TraceError outside of a kiln.jit function."""
    trace = tr.current("T.const")
    values = []
    for name in _split_names(names):
        if name in trace.consts:
            values.append(trace.consts[name])
            continue
        if not trace.declare_only:
            raise tr.error(f"T.const {name} has no value; pass {name}=… or a tensor whose shape holds it")
        var = trace.const_vars.setdefault(name, Var("SYMBOL", dtype, name))
        values.append(var.expr)
    return values[0] if len(values) == 1 else tuple(values)


def dynamic(names, dtype=int32):
    """Dimensions that are known at launch only: one compile serves all their values.
    Shapes: scalars; one for each name. Dtypes: int32, or another integer ``dtype``. Targets: all. Errors: TypeError for no dtype."""
    values = [Var("SYMBOL", as_dtype(dtype), name).expr for name in _split_names(names)]
    return values[0] if len(values) == 1 else tuple(values)


symbolic = dynamic


def empty(*shape, dtype=None):
    """A tensor that the launcher allocates and the function returns: ``B = T.empty((M, N), T.float16)``. Without a dtype it is float32.
    Shapes: any; dimensions may be symbolic. Dtypes: any that the IR has. Targets: all. Errors: TraceError where the function does not
    return it."""
    trace = tr.current("T.empty")
    shape = list(shape)
    if dtype is None:
        if shape and (isinstance(shape[-1], (str, type)) or "dtype" in type(shape[-1]).__name__):
            dtype = shape.pop()
        else:
            dtype = "float32"
    if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
        shape = shape[0]
    buffer = Buffer("GLOBAL", shape, as_dtype(dtype), "tensor")
    trace.empties.append(buffer)
    return buffer


def declare(name: str, annotation, old):
    """``name: annotation`` inside a function: a parameter gets its type."""
    trace = tr.current("a parameter annotation")
    annotation = resolve(annotation)
    if isinstance(annotation, TensorAnnotation):
        if isinstance(old, Buffer):
            raise tr.error(f"{name} already has a type")
        buffer = annotation.buffer(name)
        trace.func.params.append(ir.Param(name, buffer=buffer))
        trace.arguments[name] = buffer
        return buffer
    if isinstance(annotation, DType):
        var = Var("SCALAR", annotation, name)
        trace.func.params.append(ir.Param(name, var=var))
        trace.arguments[name] = var.expr
        return var.expr
    if annotation is ptr:
        trace.arguments[name] = _argument(trace, name, annotation)
        return trace.arguments[name]
    return old


def resolve(annotation):
    if isinstance(annotation, (_TensorType, type(None))):
        return annotation
    if isinstance(annotation, (TensorAnnotation, DType)) or annotation is Ref:
        return annotation
    return annotation() if inspect.isroutine(annotation) or isinstance(annotation, functools.partial) else annotation


def annotations_of(function, enclosing=None) -> dict:
    """The annotations of a function as values; strings are evaluated where the function can see."""
    scope = dict(enclosing or {})
    scope.update(zip(function.__code__.co_freevars, (_cell(c) for c in function.__closure__ or ())))
    result = {}
    for name, value in function.__annotations__.items():
        result[name] = eval(value, function.__globals__, scope) if isinstance(value, str) and not isinstance(value, DType) else value
    return result


def _cell(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return None


class _Untyped:
    """A parameter of a T.prim_func until the body says of what type it is."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute):
        raise _without_type(self.__dict__["_name"], None)


def _without_type(name: str, annotation) -> tr.TraceError:
    return tr.TraceError(f"parameter {name} needs a type: T.Tensor(shape, dtype) or a scalar dtype such as T.int32, not {annotation!r}")


def _in_order(trace, names) -> None:
    """The parameters as the signature has them; the body may have typed them in another order."""
    typed = {param.name: param for param in trace.func.params}
    for name in names:
        if name not in typed:
            raise _without_type(name, None)
    trace.func.params[:] = [typed[name] for name in names]


def _argument(trace, name: str, annotation):
    annotation = resolve(annotation)
    if isinstance(annotation, TensorAnnotation):
        buffer = annotation.buffer(name)
        trace.func.params.append(ir.Param(name, buffer=buffer))
        return buffer
    if annotation is ptr:
        trace.func.params.append(ir.Param(name, var=Var("SCALAR", int64, name), address=ir.AtAddress()))
        return Pointer(trace.func.params[-1])
    if annotation in (int, float, bool) or isinstance(annotation, DType):
        var = Var("SCALAR", as_dtype(annotation), name)
        trace.func.params.append(ir.Param(name, var=var))
        return var.expr
    if isinstance(annotation, Expr) and annotation.op == "VAR":
        trace.func.params.append(ir.Param(name, var=annotation.value))
        annotation.value.kind = "SCALAR"
        return annotation
    raise _without_type(name, annotation)


def _finish(trace, returned) -> ir.PrimFunc:
    """Appends the T.empty tensors, in the order in which they are returned."""
    func = trace.func
    if trace.empties:
        _return(trace, returned)
    for memory in func.memories.values():  # they are the others' memory, too
        func.params.append(ir.Param(memory.name, buffer=memory))
    if func.memories:
        for buffer in func.buffer_map.values():
            buffer.may_alias = True
    return func


def _return(trace, returned) -> None:
    func = trace.func
    results = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    for buffer in trace.empties:
        if not any(r is buffer for r in results):
            raise tr.TraceError(f"{func.name}: {buffer.name}, made by T.empty, is not returned; every T.empty tensor must be")
    for buffer in results:
        if not any(buffer is e for e in trace.empties):
            raise tr.TraceError(f"{func.name} returns {buffer!r}, which is not made by T.empty")
        func.outputs.append(len(func.params))
        func.params.append(ir.Param(buffer.name, buffer=buffer))


def prim_func(function=None, *, private=False, check_well_formed=True):
    """The decorator of a tile function whose parameters are typed in its signature, or at the head of its body as ``A: T.Tensor(…)``. It is
    traced at once, and the result is a T.PrimFunc
    for kiln.compile. ``private`` and ``check_well_formed=False``: no effect, with a warning.
    Shapes: parameters are T.Tensor annotations or scalar dtypes. Dtypes: any that the IR has. Targets: all. Errors: TraceError, with the
    line, for what the language does not allow, and for a parameter without a type."""
    notices.unused("T.prim_func", private=(private, (False,), "functions have names for messages alone; leave it out"),
                   check_well_formed=(check_well_formed, (True,), "every program is checked; leave it out"))
    if function is None:
        return prim_func
    enclosing = enclosing_names(function)
    traced = rewrite(function, enclosing)
    types = annotations_of(function, enclosing)
    trace = tr.Trace(function.__name__)
    with tr.tracing(trace):
        names = list(inspect.signature(function).parameters)
        arguments = [_argument(trace, name, types[name]) if name in types else _Untyped(name) for name in names]
        returned = traced(*arguments)
    _in_order(trace, names)
    return _finish(trace, returned)


def macro(function=None, *, hygienic=True):
    """The decorator of a function that is traced into its caller. Scalars are passed by value (T.Ref: by reference), buffers as they are.
    It may return values.
    Shapes: any arguments; an annotation T.SharedBuffer, T.FragmentBuffer or T.LocalBuffer asks for that memory. Dtypes: any. Targets: all.
    Errors: TypeError for ``hygienic=False``. TraceError outside of a traced function, and for a buffer in other memory than annotated.
    NotImplementedError for ``return`` under a run-time condition or in a loop."""
    if not hygienic:
        raise TypeError("T.macro(hygienic=False) would give the caller the macro's names; return what the caller needs")
    if function is None:
        return macro
    enclosing = enclosing_names(function)
    types = annotations_of(function, enclosing)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        trace = tr.current(f"macro {function.__name__}")
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            bound.arguments[name] = _by_value(name, value, types.get(name))
        entry, trace.entry_depth = trace.entry_depth, len(trace.loops)
        try:
            return rewrite(function, enclosing)(*bound.args, **bound.kwargs)
        finally:
            trace.entry_depth = entry

    return call


def _by_value(name, value, annotation):
    if annotation is Ref or annotation is kinds.Var:
        if isinstance(value, (bool, int, float)):
            raise ValueError(f"argument {name} is taken by reference: pass a T.alloc_var or an element of a buffer, not {value!r}")
        return value
    if isinstance(value, LocalVar):
        value = value.as_scalar()
    if isinstance(annotation, _TensorType) and isinstance(value, (Buffer, Region)):
        buffer = value.buffer if isinstance(value, Region) else value
        if annotation.space != "GLOBAL" and buffer.space != annotation.space:
            raise tr.error(f"argument {name} must be a {annotation.space.lower()} buffer, not {buffer!r}")
    return tr.let(name, value) if isinstance(value, Expr) and value.op != "LOAD" else value


def trace_eager(function, arguments: dict, consts=None, enclosing=None) -> tr.Trace:
    """Traces a function whose tensors are declared in its body. Without ``consts``: only up to the first kernel, to learn the
    parameters; returns the trace, whose ``func`` is complete with ``consts``."""
    trace = tr.Trace(function.__name__, consts, declare_only=consts is None)
    trace.arguments = dict(arguments)
    types = annotations_of(function, enclosing)
    with tr.tracing(trace):
        try:
            for name in inspect.signature(function).parameters:
                annotation = resolve(types.get(name))
                if isinstance(annotation, TensorAnnotation) or annotation is ptr:
                    arguments = {**arguments, name: _argument(trace, name, annotation)}
            returned = rewrite(function, enclosing)(**arguments)
        except tr.DeclarationsDone:
            return trace
    _finish(trace, returned)
    return trace


