# SPDX-License-Identifier: Apache-2.0
"""PrimFunc → kiln.v1.Module. Tables are filled in the order in which the program uses things, so equal programs give equal bytes."""

from __future__ import annotations

import dataclasses
import functools

from .. import _proto
from ..errors import CompileError
from . import program as ir
from . import scales
from .buffer import Buffer, Region
from .expr import Expr, Var, as_expr, make

FORMAT_VERSION = 1

# What is the same of the bytes of scales as of scales: expressions, and statements beside copies.
_OF_BYTES = ("VAR", "LOAD", "SELECT", "MASKED", "REINTERPRET")
_STATEMENTS_OF_BYTES = (ir.Alloc, ir.Fill, ir.Store)


class EncodeError(RuntimeError):
    pass


def _write_region(encoder, op, name, value):
    if value is not None:
        getattr(op, name).CopyFrom(encoder.region(value))


def _write_list(encoder, op, name, value):
    getattr(op, name).extend(encoder.use(e) for e in value)


def _write_kind(encoder, op, name, value):
    setattr(op, name, op.DESCRIPTOR.fields_by_name[name].enum_type.values_by_name[value].number)


def _write_optional(encoder, op, name, value):
    if value is not None:
        setattr(op, name, encoder.use(value))


def _write_element(encoder, op, name, value):
    if value is not None:
        getattr(op, name).CopyFrom(encoder.pb.Element(buffer=encoder.buffer(value.buffer), indices=[encoder.use(i) for i in value.indices]))


_WRITERS = {
    "Region": _write_region,
    "Region | None": _write_region,
    "Element | None": _write_element,
    "Expr | None": _write_optional,
    "Expr": lambda encoder, op, name, value: setattr(op, name, encoder.use(value)),
    "list[Expr]": _write_list,
    "Buffer": lambda encoder, op, name, value: setattr(op, name, encoder.buffer(value)),
    "str": _write_kind,
    "int": lambda encoder, op, name, value: setattr(op, name, value),
    "bool": lambda encoder, op, name, value: setattr(op, name, value),
}


@functools.cache
def _parts(kind: type) -> list:
    """(name, writer) of each part of such a statement, in order. KeyError for one that is written in a way of its own."""
    return [(part.name, _WRITERS[part.type]) for part in dataclasses.fields(kind) if part.name != "location"]


class _Encoder:
    def __init__(self, func: ir.PrimFunc):
        self.func, self.pb = func, _proto.messages()
        self.module = self.pb.Module(version=FORMAT_VERSION)
        self.ops = {field.message_type.name: field for field in self.pb.Stmt.DESCRIPTOR.fields}
        self.vars: dict[Var, int] = {}
        self.buffers: dict[Buffer, int] = {}
        self.exprs: dict[Expr, int] = {}
        self.functions: dict[ir.Function, int] = {}
        self.files: dict[str, int] = {}
        self.visible: set[Var] = set()
        self.location = ir.Location()

    def enum(self, name: str, value: str) -> int:
        return self.pb.enums[name].values_by_name[value].number

    def dtype(self, dtype) -> int:
        if dtype.lanes > 1:
            raise EncodeError(f"{self.func.name}: {dtype} is a vector type; buffers have elements of one number, and the compiler makes vectors of "
                              "neighbours: write the type without its x")
        if not dtype.stored.wire:
            raise EncodeError(f"{self.func.name}: dtype {dtype} is not supported by this version of Kiln")
        return self.enum("DType", dtype.stored.wire)

    def var(self, var: Var) -> int:
        index = self.vars.get(var)
        if index is None:
            index = self.vars[var] = len(self.module.vars)
            self.module.vars.add(kind=self.enum("VarKind", var.kind), dtype=self.dtype(var.dtype), axis=var.axis)
            self.module.debug.var_names.append(var.name)
        return index

    def renew(self, var: Var) -> None:
        """To the compiler it is another variable from here on."""
        del self.vars[var]
        old: set[Expr] = set()
        for e in self.exprs:
            if e is var.expr or any(a in old for a in e.args):
                old.add(e)
        self.exprs = {e: index for e, index in self.exprs.items() if e not in old}

    def buffer(self, buffer: Buffer) -> int:
        index = self.buffers.get(buffer)
        if index is not None:
            return index
        shape = [self.expr(d) for d in buffer.shape]
        strides = [self.expr(s) for s in buffer.strides or ()]
        index = self.buffers[buffer] = len(self.buffers)
        message = self.module.buffers.add(space=self.enum("Space", buffer.space), dtype=self.dtype(buffer.dtype), shape=shape,
                                          strides=strides, workspace=buffer.workspace)
        if buffer.pad_value is not None:
            message.pad_value = buffer.pad_value
        message.may_alias = buffer.may_alias
        message.arrivals.extend(buffer.arrivals)
        self.module.debug.buffer_names.append(buffer.name)
        return index

    def expr(self, value) -> int:
        """Index of an expression, its operands before it. Not recursive: an unrolled sum may be thousands of nodes deep."""
        root = as_expr(value)
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.exprs:
                stack.pop()
                continue
            missing = [a for a in node.args if a not in self.exprs]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self._node(node)
        return self.exprs[root]

    def _scale(self, node: Expr) -> Expr:
        """The node as bytes have it, where it or an operand is of that type."""
        if node.op == "CONST_FLOAT":
            return make("CONST_INT", node.dtype, (), scales.code_of(node.value))
        if node.op not in _OF_BYTES:
            self.fail(f"{node.op.lower()} of {scales.NAME}, which has no arithmetic: cast it to float32 first")
        return node

    def _node(self, node: Expr) -> None:
        place = node
        if scales.NAME in (node.dtype, *(a.dtype for a in node.args)):
            node = self._scale(node)
        message = self.pb.Expr(op=self.enum("ExprOp", node.op), dtype=self.dtype(node.dtype), args=[self.exprs[a] for a in node.args])
        if node.op == "CONST_INT":
            message.int_value = node.value if node.value < 1 << 63 else node.value - (1 << 64)
        elif node.op == "CONST_FLOAT":
            message.float_value = node.value
        elif node.op == "VAR":
            message.ref = self.var(node.value)
        elif node.op == "LOAD":
            message.ref = self.buffer(node.value)
        self.exprs[place] = len(self.module.exprs)
        self.module.exprs.append(message)

    def use(self, value) -> int:
        """An operand of a statement: its variables must be in scope."""
        index = self.expr(value)
        stack, seen = [as_expr(value)], set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op == "VAR" and node.value.kind in ("LOOP", "LET", "BLOCK", "THREAD") and node.value not in self.visible:
                if node.value.for_let:
                    self.refuse(f"a variable that T.{node.dtype}() makes has no value here: T.let gives it one for the rest of the block. "
                                f"T.{node.dtype}() makes a variable for T.let; write T.{node.dtype}(0) for a zero")
                self.fail(f"{node.value.name} is used outside the loop or block that defines it; keep the value in a T.alloc_var")
            stack.extend(node.args)
        return index

    def located(self, message: str) -> str:
        at = self.location
        return f"{at.file}:{at.line}: {message}" if at.line else message

    def fail(self, message: str):
        raise EncodeError(self.located(message))

    def refuse(self, message: str):
        raise CompileError("INVALID_ARGUMENT", self.located(message))

    def region(self, region: Region):
        return self.pb.Region(buffer=self.buffer(region.buffer), offsets=[self.use(o) for o in region.offsets], extents=region.extents)

    def block(self, stmts, message, bound=()) -> None:
        before = set(self.visible)
        self.visible.update(bound)
        for stmt in stmts:
            self.stmt(stmt, message.stmts.add())
        self.visible = before

    def stmt(self, stmt, message) -> None:
        self.location = stmt.location
        file = self.files.setdefault(stmt.location.file, len(self.files))
        self.module.debug.locations.add(file=file, line=stmt.location.line)
        self._check_scales(stmt)
        field = self.ops[type(stmt).__name__]
        op = getattr(message, field.name)
        op.SetInParent()
        self.module.op_names[field.number] = field.name
        getattr(self, "_" + field.name, self._fields)(stmt, op)

    def _check_scales(self, stmt) -> None:
        """Statements compute with what bytes hold."""
        parts = [getattr(stmt, part.name) for part in dataclasses.fields(stmt)]
        types = [getattr(p, "buffer", p).dtype for p in parts if isinstance(p, (Buffer, Region, ir.Element))]
        if scales.NAME not in types or isinstance(stmt, _STATEMENTS_OF_BYTES) or (isinstance(stmt, ir.Copy) and len(set(types)) == 1):
            return
        self.fail(f"{type(stmt).__name__.lower()} of a tile of {scales.NAME}, which has no arithmetic: copy it to a tile of float32 first")

    def _fields(self, s, op) -> None:
        """Each part of the statement into the field of its name, as the class says what it is."""
        for name, write in _parts(type(s)):
            write(self, op, name, getattr(s, name))

    def _gemm(self, s, op):
        self._fields(s, op)
        op.allow_tf32 |= self.func.allow_tf32 and s.a.dtype == s.b.dtype == "float32"

    def function(self, function: ir.Function) -> int:
        index = self.functions.get(function)
        if index is None:
            index = self.functions[function] = len(self.functions)
            self.module.functions.add(language=self.enum("Language", function.language), symbol=function.symbol, text=function.text.encode())
        return index

    def _call(self, s, op):
        op.function = self.function(s.function)
        for argument in s.arguments:
            message = op.arguments.add(value=self.use(argument.value))
            if argument.buffer is not None:
                message.buffer = self.buffer(argument.buffer)

    # Statements that bind variables, or have others within them.

    def _for_loop(self, s, op):
        op.kind = self.enum("LoopKind", s.kind)
        op.extents.extend(self.use(e) for e in s.extents)
        op.vars.extend(self.var(v) for v in s.vars)
        op.num_stages, op.coalesced_width = s.num_stages, s.coalesced_width
        op.body.SetInParent()
        self.block(s.body, op.body, s.vars)

    def _if_then(self, s, op):
        op.cond = self.use(s.cond)
        op.then_body.SetInParent()
        self.block(s.then_body, op.then_body)
        if s.else_body:
            self.block(s.else_body, op.else_body)

    def _while_loop(self, s, op):
        op.cond = self.use(s.cond)
        op.body.SetInParent()
        self.block(s.body, op.body)

    def _let(self, s, op):
        op.value = self.use(s.value)
        if s.var.for_let and s.var in self.vars:  # it had another value in a block that is over
            self.renew(s.var)
        op.var = self.var(s.var)
        self.visible.add(s.var)

    def kernel(self, kernel: ir.Kernel) -> None:
        message = self.module.kernels.add(threads=kernel.threads, raster_panel=kernel.raster_panel, min_blocks=kernel.min_blocks)
        message.grid.extend(self.use(g) for g in kernel.grid)
        message.cluster.extend(kernel.cluster)
        message.block_vars.extend(self.var(v) for v in kernel.block_vars)
        bound = list(kernel.block_vars)
        if kernel.thread_var is not None:
            self.var(kernel.thread_var)
            bound.append(kernel.thread_var)
        message.body.SetInParent()
        self.block(kernel.body, message.body, bound)
        self.module.debug.kernel_names.append(kernel.name)

    def encode(self):
        for param in self.func.params:
            if param.buffer is not None:
                self.module.params.add(tensor=self.buffer(param.buffer))
            else:
                self.module.params.add(scalar=self.var(param.var))
        for kernel in self.func.kernels:
            self.kernel(kernel)
        self.module.outputs.extend(self.func.outputs)
        self.module.debug.module_name = self.func.name
        self.module.debug.files.extend(self.files)
        return self.module


def encode(func: ir.PrimFunc):
    """The message; raises EncodeError naming the line of the offending statement."""
    if func.refused is not None or func.stray is not None:
        raise func.refused or func.stray
    if not func.kernels:
        raise EncodeError(f"{func.name} launches no kernel; put its statements under `with T.Kernel(…)`")
    return _Encoder(func).encode()
