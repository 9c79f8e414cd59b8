# SPDX-License-Identifier: Apache-2.0
"""PrimFunc → kiln.v1.Module. Tables are filled in the order in which the program uses things, so equal programs give equal bytes."""

from __future__ import annotations

from .. import _proto
from . import program as ir
from .buffer import Buffer, Region
from .expr import Expr, Var, as_expr

FORMAT_VERSION = 1


class EncodeError(RuntimeError):
    pass


class _Encoder:
    def __init__(self, func: ir.PrimFunc):
        self.func, self.pb = func, _proto.messages()
        self.module = self.pb.Module(version=FORMAT_VERSION)
        self.ops = self.pb.Stmt.DESCRIPTOR.fields_by_name
        self.vars: dict[Var, int] = {}
        self.buffers: dict[Buffer, int] = {}
        self.exprs: dict[Expr, int] = {}
        self.files: dict[str, int] = {}
        self.visible: set[Var] = set()
        self.location = ir.Location()

    def enum(self, name: str, value: str) -> int:
        return self.pb.enums[name].values_by_name[value].number

    def dtype(self, dtype) -> int:
        if not dtype.wire:
            raise EncodeError(f"{self.func.name}: dtype {dtype} is not supported by this version of Kiln")
        return self.enum("DType", dtype.wire)

    def var(self, var: Var) -> int:
        index = self.vars.get(var)
        if index is None:
            index = self.vars[var] = len(self.vars)
            self.module.vars.add(kind=self.enum("VarKind", var.kind), dtype=self.dtype(var.dtype), axis=var.axis)
            self.module.debug.var_names.append(var.name)
        return index

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

    def _node(self, node: Expr) -> None:
        message = self.pb.Expr(op=self.enum("ExprOp", node.op), dtype=self.dtype(node.dtype), args=[self.exprs[a] for a in node.args])
        if node.op == "CONST_INT":
            message.int_value = node.value if node.value < 1 << 63 else node.value - (1 << 64)
        elif node.op == "CONST_FLOAT":
            message.float_value = node.value
        elif node.op == "VAR":
            message.ref = self.var(node.value)
        elif node.op == "LOAD":
            message.ref = self.buffer(node.value)
        self.exprs[node] = len(self.exprs)
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
                self.fail(f"{node.value.name} is used outside the loop or block that defines it; keep the value in a T.alloc_var")
            stack.extend(node.args)
        return index

    def fail(self, message: str):
        at = self.location
        raise EncodeError(f"{at.file}:{at.line}: {message}" if at.line else message)

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
        name = _FIELDS[type(stmt)]
        op = getattr(message, name)
        op.SetInParent()
        self.module.op_names[self.ops[name].number] = name
        getattr(self, "_" + name)(stmt, op)

    def _alloc(self, s, op):
        op.buffer = self.buffer(s.buffer)

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
        op.var = self.var(s.var)
        self.visible.add(s.var)

    def _store(self, s, op):
        op.buffer = self.buffer(s.buffer)
        op.indices.extend(self.use(i) for i in s.indices)
        op.value = self.use(s.value)

    def _assume(self, s, op):
        op.cond = self.use(s.cond)

    def _copy(self, s, op):
        op.src.CopyFrom(self.region(s.src))
        op.dst.CopyFrom(self.region(s.dst))
        op.coalesced_width = s.coalesced_width

    def _gemm(self, s, op):
        op.a.CopyFrom(self.region(s.a))
        op.b.CopyFrom(self.region(s.b))
        op.c.CopyFrom(self.region(s.c))
        op.transpose_a, op.transpose_b, op.policy, op.clear_accum = s.transpose_a, s.transpose_b, s.policy, s.clear_accum

    def _fill(self, s, op):
        op.dst.CopyFrom(self.region(s.dst))
        op.value = self.use(s.value)

    def _reduce(self, s, op):
        op.kind = self.enum("ReduceKind", s.kind)
        op.src.CopyFrom(self.region(s.src))
        op.dst.CopyFrom(self.region(s.dst))
        op.dim, op.clear = s.dim, s.clear

    def _atomic(self, s, op):
        op.kind = self.enum("AtomicKind", s.kind)
        op.buffer = self.buffer(s.buffer)
        op.indices.extend(self.use(i) for i in s.indices)
        op.value = self.use(s.value)

    def _nothing(self, s, op):
        pass

    _barrier = _break_loop = _continue_loop = _nothing

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


_FIELDS = {ir.Alloc: "alloc", ir.For: "for_loop", ir.If: "if_then", ir.While: "while_loop", ir.Let: "let", ir.Store: "store",
           ir.Assume: "assume", ir.Copy: "copy", ir.Gemm: "gemm", ir.Fill: "fill", ir.Reduce: "reduce", ir.Atomic: "atomic",
           ir.Barrier: "barrier", ir.Break: "break_loop", ir.Continue: "continue_loop"}


def encode(func: ir.PrimFunc):
    """The message; raises EncodeError naming the line of the offending statement."""
    if not func.kernels:
        raise EncodeError(f"{func.name} launches no kernel; put its statements under `with T.Kernel(…)`")
    return _Encoder(func).encode()
