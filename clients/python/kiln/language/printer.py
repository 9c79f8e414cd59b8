# SPDX-License-Identifier: Apache-2.0
"""A traced function as text, for people. (The text form that can be parsed again is the compiler's: ``kiln explain``.)"""

from __future__ import annotations

from dataclasses import fields

from . import program as ir
from .buffer import show_shape
from .expr import Expr, constant_value


def script(func: ir.PrimFunc) -> str:
    lines = [f"def {func.name}("]
    for index, param in enumerate(func.params):
        note = "  # output" if index in func.outputs else ""
        if param.buffer is None:
            lines.append(f"    {param.name}: {param.var.dtype},{note}")
        else:
            strides = f" strides {show_shape(param.buffer.strides)}" if param.buffer.strides else ""
            lines.append(f"    {param.name}: {param.buffer.dtype}{show_shape(param.buffer.shape)}{strides},{note}")
    lines.append("):")
    for kernel in func.kernels:
        names = ", ".join(v.name for v in kernel.block_vars)
        panel = f", panel={kernel.raster_panel}" if kernel.raster_panel else ""
        blocks = f", min_blocks={kernel.min_blocks}" if kernel.min_blocks else ""
        lines.append(f"    kernel {kernel.name}{show_shape(kernel.grid)} threads={kernel.threads}{panel}{blocks} as {names}:")
        lines += _block(kernel.body, 2)
    return "\n".join(lines) + "\n"


def _block(stmts, depth: int) -> list[str]:
    lines = []
    for stmt in stmts:
        lines += ["    " * depth + line for line in _STATEMENT.get(type(stmt), _plainly)(stmt, depth)]
        for opening, body in _bodies(stmt):
            if opening:
                lines.append("    " * depth + opening)
            lines += _block(body, depth + 1)
    return lines or ["    " * depth + "pass"]


def _bodies(stmt):
    if isinstance(stmt, (ir.For, ir.While)):
        return [("", stmt.body)]
    if isinstance(stmt, ir.If):
        return [("", stmt.then_body)] + ([("else:", stmt.else_body)] if stmt.else_body else [])
    return []


def _indices(indices) -> str:
    return ", ".join(_plain(i) for i in indices)


def _plain(e: Expr) -> str:
    text = repr(e)
    return text[1:-1] if isinstance(e, Expr) and text.startswith("(") and text.endswith(")") else text


def _plainly(s, _):
    """A statement without a form of its own: its name and its operands."""
    values = [getattr(s, field.name) for field in fields(s) if field.name != "location"]
    return [f"{type(s).__name__.lower()} " + ", ".join(_plain(v) if isinstance(v, Expr) else repr(v) for v in values)]


def _for(s: ir.For, _):
    stages = f", stages={s.num_stages}" if s.num_stages else ""
    extents = ", ".join(_plain(e) for e in s.extents)
    return [f"for {', '.join(v.name for v in s.vars)} in {s.kind.lower()}({extents}{stages}):"]


def _gemm(s: ir.Gemm, _):
    flags = [name for name in ("transpose_a", "transpose_b", "clear_accum", "allow_tf32", "transpose_metadata") if getattr(s, name)]
    flags += [f"metadata={s.metadata!r}"] if s.metadata is not None else []
    flags += [f"policy={('square', 'full_row', 'full_col')[s.policy]}"] if s.policy else []
    return [f"gemm {s.a!r}, {s.b!r} -> {s.c!r}" + "".join(f" {f}" for f in flags)]


def _reduce(s: ir.Reduce, _):
    return [f"{s.kind.lower()} {s.src!r} -> {s.dst!r} dim={s.dim}" + ("" if s.clear else " accumulate")]


def _argument(a) -> str:
    return _plain(a.value) if a.buffer is None else f"&{a.buffer.name}[{_plain(a.value)}]"


def _at_block(s) -> str:
    return f" block {_plain(s.block)}" if s.block is not None else ""


def _atomic(s, _):
    text = f"{s.kind.lower()} {s.buffer.name}[{_indices(s.indices)}]"
    text += f", {_plain(s.value)}" if s.value is not None else ""
    text += f" where {_plain(s.compare)}" if s.compare is not None else ""
    text += f" -> {s.old.buffer.name}[{_indices(s.old.indices)}]" if s.old is not None else ""
    text += _at_block(s)
    text += f" {s.order.removeprefix('MEMORY_ORDER_').lower()}" if s.order != "MEMORY_ORDER_RELAXED" else ""
    return [text + " each_thread" * s.each_thread]


_STATEMENT = {
    ir.Alloc: lambda s, _: [f"alloc {s.buffer!r}"],
    ir.For: _for,
    ir.If: lambda s, _: [f"if {_plain(s.cond)}:"],
    ir.While: lambda s, _: [f"while {_plain(s.cond)}:"],
    ir.Let: lambda s, _: [f"let {s.var.name}: {s.var.dtype} = {_plain(s.value)}"],
    ir.Store: lambda s, _: [f"{s.buffer.name}[{_indices(s.indices)}] = {_plain(s.value)}"],
    ir.Assume: lambda s, _: [f"assume {_plain(s.cond)}"],
    ir.Copy: lambda s, _: [f"copy {s.src!r} -> {s.dst!r}" + (f" -> {s.signals.buffer.name}[{_indices(s.signals.indices)}]" if s.signals else "")],
    ir.Gemm: _gemm,
    ir.Mma: lambda s, _: [f"mma {s.a!r}, {s.b!r} -> {s.c!r} m {s.m} n {s.n} k {s.k}"],
    ir.Call: lambda s, _: [f"call {s.function.symbol}({', '.join(map(_argument, s.arguments))})"],
    ir.Fill: lambda s, _: [f"fill {s.dst!r} = {_plain(s.value)}"],
    ir.Reduce: _reduce,
    ir.Atomic: _atomic,
    ir.Barrier: lambda s, _: ["barrier" + " grid" * s.grid + " cluster" * s.cluster],
    ir.Break: lambda s, _: ["break"],
    ir.Continue: lambda s, _: ["continue"],
    ir.Arrive: lambda s, _: [f"arrive {s.buffer.name}[{_indices(s.indices)}]{_at_block(s)}"],
    ir.Await: lambda s, _: [f"await {s.buffer.name}[{_indices(s.indices)}] parity {_plain(s.parity)}"],
    ir.Registers: lambda s, _: [f"registers {s.count}" + (" more" if s.more else "")],
}


_INFIX = {"ADD": "+", "SUB": "-", "MUL": "*", "DIV": "/", "FLOOR_DIV": "//", "FLOOR_MOD": "%", "EQ": "==", "NE": "!=", "LT": "<",
          "LE": "<=", "GT": ">", "GE": ">=", "AND": "and", "OR": "or", "BIT_AND": "&", "BIT_OR": "|", "BIT_XOR": "^",
          "SHL": "<<", "SHR": ">>"}


def show(e: Expr, depth: int = 12) -> str:
    """An expression; what lies deeper is left out."""
    if e.op in ("CONST_INT", "CONST_FLOAT"):
        return str(constant_value(e))
    if e.op == "VAR":
        return e.value.name
    if depth == 0:
        return "…"
    args = [show(a, depth - 1) for a in e.args]
    if e.op == "LOAD":
        return f"{e.value.name}[{', '.join(args)}]"
    if e.op in _INFIX:
        return f"({args[0]} {_INFIX[e.op]} {args[1]})"
    if e.op == "CAST":
        return f"{e.dtype}({args[0]})"
    return f"{e.op.lower()}({', '.join(args)})"
