# SPDX-License-Identifier: Apache-2.0
"""Rewrites a function so that calling it traces it: statements that Python would decide (if, for, while, and, or, not, assignment) become
calls of ``scope.Scope``. Lines stay those of the source file, so tracebacks and diagnostics point there."""

from __future__ import annotations

import __future__

import ast
import inspect
import sys
import types

from .scope import Scope
from .trace import TraceError, register_code

_KILN = "__kiln__"
_AUGMENTED = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "pow",
              ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.LShift: "lshift", ast.RShift: "rshift", ast.MatMult: "matmul"}


def _name(identifier: str):
    return ast.Name(identifier, ast.Load())


def _call(method: str, *args):
    return ast.Call(ast.Attribute(_name(_KILN), method, ast.Load()), list(args), [])


def _delay(expression):
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), expression)


def _names_in(target) -> tuple:
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, (ast.Tuple, ast.List)):
        return tuple(name for element in target.elts for name in _names_in(element))
    return ()


class _Rewriter(ast.NodeTransformer):
    def __init__(self, stored_often: set, nested: bool = False):
        self.stored_often, self.nested, self.counter = stored_often, nested, 0

    def _fresh(self) -> str:
        self.counter += 1
        return f"__kiln_{self.counter}__"

    def _old(self, name: str):
        """The value a name holds before it is assigned, where it may hold one."""
        missing = ast.Attribute(_name(_KILN), "MISSING", ast.Load())
        if name not in self.stored_often:
            return missing
        return ast.Call(ast.Attribute(ast.Call(_name("locals"), [], []), "get", ast.Load()), [ast.Constant(name), missing], [])

    def visit_FunctionDef(self, node):
        traced_itself = any(_last_name(d) in ("macro", "prim_func", "jit", "inline", "meta_class") for d in node.decorator_list)
        if traced_itself:
            return node
        inner = _Rewriter(_stored_often(node), nested=True)
        node.body = inner._block(node.body)
        return node

    def visit_Lambda(self, node):
        return self.generic_visit(node)

    def visit_ClassDef(self, node):
        return node

    def _block(self, statements):
        result = []
        for statement in statements:
            new = self.visit(statement)
            for item in new if isinstance(new, list) else [new]:
                if item is not None:
                    result.append(_locate(item, statement))
        return result

    def visit_If(self, node):
        name = self._fresh()
        test = ast.Assign([ast.Name(name, ast.Store())], _call("branch", self.visit(node.test)))
        _locate(test, node.test)
        parts = [test, self._side(name, "then", node.body, node)]
        if node.orelse:
            parts.append(self._side(name, "else", node.orelse, node))
        return parts

    def _side(self, name, which, body, node):
        attribute = lambda suffix: ast.Call(ast.Attribute(_name(name), which + suffix, ast.Load()), [], [])  # noqa: E731
        block = ast.With([ast.withitem(attribute("_block"))], self._block(body))
        return ast.If(attribute("_"), [_locate(block, node)], [])

    def visit_For(self, node):
        if node.orelse:
            raise TraceError(f"line {node.lineno}: for … else is not part of the language")
        names = ast.Tuple([ast.Constant(n) for n in _names_in(node.target)], ast.Load())
        return ast.For(node.target, _call("loop", self.visit(node.iter), names), self._block(node.body), [])

    def visit_While(self, node):
        if node.orelse:
            raise TraceError(f"line {node.lineno}: while … else is not part of the language")
        target = ast.Name(self._fresh(), ast.Store())
        none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return ast.For(target, _call("while_", ast.Lambda(none, self.visit(node.test))), self._block(node.body), [])

    def visit_Break(self, node):
        return ast.If(_call("break_"), [_locate(ast.Break(), node)], [])

    def visit_Continue(self, node):
        return ast.If(_call("continue_"), [_locate(ast.Continue(), node)], [])

    def visit_With(self, node):
        node.items = [ast.withitem(self.visit(i.context_expr), i.optional_vars) for i in node.items]
        node.body = self._block(node.body)
        return node

    def visit_Assign(self, node):
        by_name = isinstance(node.value, ast.Name)
        value = self.visit(node.value)
        if len(node.targets) == 1:
            return self._assign(node.targets[0], value, by_name)
        name = self._fresh()
        parts = [ast.Assign([ast.Name(name, ast.Store())], value)]
        for target in node.targets:
            parts += self._assign(target, _name(name), by_name)
        return parts

    def _assign(self, target, value, by_name=False):
        if isinstance(target, ast.Name):
            args = [ast.Constant(target.id), value, self._old(target.id)]
            if by_name:
                args.append(ast.Constant(True))
            return [ast.Assign([target], _call("bind", *args))]
        if isinstance(target, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in target.elts):
            names = [self._fresh() for _ in target.elts]
            unpacked = ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())
            if isinstance(value, (ast.Tuple, ast.List)):  # `a, b = b, a`: values, not other names of the same T.alloc_var
                value.elts = [_call("read", e) if isinstance(e, ast.Name) else e for e in value.elts]
            parts = [ast.Assign([unpacked], _call("read_all" if len(names) > 1 else "opened", value))]
            for element, name in zip(target.elts, names):
                parts += self._assign(element, _name(name))
            return parts
        return [ast.Assign([self.visit(target)], value)]

    def visit_AugAssign(self, node):
        value = self.visit(node.value)
        if not isinstance(node.target, ast.Name):
            return ast.AugAssign(self.visit(node.target), node.op, value)
        operator = ast.Attribute(ast.Attribute(_name(_KILN), "operator", ast.Load()), _AUGMENTED[type(node.op)], ast.Load())
        args = [ast.Constant(node.target.id), _name(node.target.id), operator, value]
        return ast.Assign([node.target], _call("augmented", *args))

    def visit_AnnAssign(self, node):
        if not isinstance(node.target, ast.Name):
            return node if node.value is None else self._assign(node.target, self.visit(node.value))
        annotation = self.visit(node.annotation)
        if node.value is None:
            arguments = (ast.Constant(node.target.id), annotation, self._old(node.target.id))
            return ast.Assign([node.target], _call("declare", *arguments))
        return self._assign(node.target, _call("typed", annotation, self.visit(node.value)))

    def visit_Return(self, node):
        value = self.visit(node.value if node.value is not None else ast.Constant(None))
        # A helper defined inside is called by the tracing Python: where it returns to is Python's business.
        return ast.Return(value if self.nested else _call("returned", value))

    def visit_Assert(self, node):
        message = ast.Constant(None) if node.msg is None else _delay(self.visit(node.msg))
        return ast.Expr(_call("assert_", self.visit(node.test), message))

    def visit_Expr(self, node):
        value = self.visit(node.value)
        if isinstance(value, ast.Call):
            value = _call("expression", value)
        return ast.Expr(value)

    def visit_IfExp(self, node):
        return _call("if_expression", self.visit(node.test), _delay(self.visit(node.body)), _delay(self.visit(node.orelse)))

    def visit_BoolOp(self, node):
        first, *rest = [self.visit(v) for v in node.values]
        op = "AND" if isinstance(node.op, ast.And) else "OR"
        return _call("boolean", ast.Constant(op), first, *[_delay(v) for v in rest])

    def visit_UnaryOp(self, node):
        operand = self.visit(node.operand)
        return _call("not_", operand) if isinstance(node.op, ast.Not) else ast.UnaryOp(node.op, operand)

    def visit_Compare(self, node):
        """a < b < c is (a < b) and (b < c), with b evaluated once."""
        node = self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        parts, left = [], node.left
        for position, (op, right) in enumerate(zip(node.ops, node.comparators)):
            name = self._fresh()
            kept = right if position == len(node.ops) - 1 else ast.NamedExpr(ast.Name(name, ast.Store()), right)
            parts.append(ast.Compare(left, [op], [kept]))
            left = _name(name)
        return _call("chain", *parts)  # not lazily: a name bound inside a lambda would not be seen outside it

    def visit_Call(self, node):
        node = self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "range":
            return ast.Call(ast.Attribute(_name(_KILN), "range", ast.Load()), [node.func] + node.args, node.keywords)
        return node


def _locate(node, source):
    ast.copy_location(node, source)
    return ast.fix_missing_locations(node)


def _last_name(decorator) -> str:
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    return decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")


def _stored_often(function) -> set:
    """Names that may hold a value when they are assigned: assigned more than once, in a loop, or parameters."""
    counts: dict[str, int] = {}

    def count(node, weight):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                counts[child.id] = counts.get(child.id, 0) + weight
            if isinstance(child, ast.Nonlocal):
                counts.update(dict.fromkeys(child.names, 2))
            count(child, 2 if isinstance(child, (ast.For, ast.While)) else weight)

    count(function, 1)
    args = function.args
    for arg in args.posonlyargs + args.args + args.kwonlyargs:
        counts[arg.arg] = 2
    return {name for name, n in counts.items() if n > 1}


def parse(function) -> ast.FunctionDef:
    """The syntax tree of a function, with the line numbers of its file."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as cause:
        raise TraceError(
            f"the source of {function.__qualname__} is not available, and tracing needs it; define the function in a file (not with exec "
            "or at an interactive prompt)"
        ) from cause
    indented = lines[0][:1].isspace()  # a nested function: dedenting would change what its multi-line strings hold
    tree = ast.parse(("if True:\n" if indented else "") + "".join(lines))
    ast.increment_lineno(tree, first - 1 - indented)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            return node
    raise TraceError(f"{function.__qualname__} is not a `def`; lambdas cannot be traced")


def _strip(node: ast.FunctionDef) -> None:
    node.decorator_list, node.returns = [], None
    args = node.args
    for arg in args.posonlyargs + args.args + args.kwonlyargs + [a for a in (args.vararg, args.kwarg) if a]:
        arg.annotation = None
    args.defaults = [_locate(ast.Constant(None), d) for d in args.defaults]
    args.kw_defaults = [d and _locate(ast.Constant(None), d) for d in args.kw_defaults]


_codes: dict = {}


def enclosing_names(function) -> dict:
    """What the annotations of a function can see of the functions around it. With ``from __future__ import annotations`` they are text,
    and Python puts no name that only they use into the closure; so the frames are asked, while they are there."""
    if not function.__code__.co_flags & __future__.annotations.compiler_flag:
        return {}
    frame = sys._getframe(1)
    while frame is not None:
        if function.__code__ in frame.f_code.co_consts:
            return dict(frame.f_locals) if frame.f_locals is not frame.f_globals else {}
        frame = frame.f_back
    return {}


def _rewritten_code(function, enclosing):
    """The code of the traced form; made once for each function in the source, whatever its closure holds."""
    key = (function.__code__.co_filename, function.__code__, tuple(enclosing))
    if key not in _codes:
        _codes[key] = _compile(function, enclosing)
    return _codes[key]


def _free_names(function, node, enclosing) -> list:
    """Names of the functions around this one that its traced form may use."""
    names = list(function.__code__.co_freevars)
    own = set(function.__code__.co_varnames) | set(function.__code__.co_cellvars) | set(names)
    texts = [child.annotation for child in ast.walk(node) if isinstance(child, ast.AnnAssign)]
    used = {child.id for text in texts for child in ast.walk(text) if isinstance(child, ast.Name)}
    return names + sorted(used & set(enclosing) - own)


def _compile(function, enclosing):
    code, node = function.__code__, parse(function)
    _strip(node)
    free = _free_names(function, node, enclosing)
    rewriter = _Rewriter(_stored_often(node))
    node.body = rewriter._block(node.body)
    outer_args = ast.arguments([], [ast.arg(n) for n in (*free, _KILN)], None, [], [], None, [])
    outer = ast.FunctionDef("__kiln_outer__", outer_args, [node, ast.Return(_name(node.name))], [])
    module = ast.Module([_locate(outer, node)], [])
    ast.fix_missing_locations(module)
    compiled = compile(module, code.co_filename, "exec")
    outer_code = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    inner = next(c for c in outer_code.co_consts if isinstance(c, types.CodeType) and c.co_name == node.name)
    register_code(inner)
    return inner


def rewrite(function, enclosing=None):
    """A function of the same signature, globals, defaults and closure that traces when it is called under ``trace.tracing``.
    ``enclosing``: what ``enclosing_names`` gave when the function was defined."""
    code = _rewritten_code(function, enclosing or {})
    cells = {name: types.CellType(value) for name, value in (enclosing or {}).items()}
    cells.update(zip(function.__code__.co_freevars, function.__closure__ or ()))
    cells[_KILN] = types.CellType(Scope)
    closure = tuple(cells[name] for name in code.co_freevars)
    result = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = function.__kwdefaults__
    return result
