# SPDX-License-Identifier: Apache-2.0
"""Abstract interpretation of a kernel: its statements, run once, make the graph. Both sides of a branch whose condition is known only when
the kernel runs are read, and so is the body of a loop; names that they assign become results."""

from __future__ import annotations

import ast
import contextlib
import functools

from . import language as tl
from .build import Builder, describe, is_number, meet_integers
from .builtin import constexpr
from .errors import CompilationError, FailedAssertion, Refusal
from .expressions import Expressions, Frame, Poison, known_number, static
from .graph import Block, Function, Op, Value

_DEEPEST_CALL = 48
_MISMATCHES = {"the conditional expression": "Ternary expression with dynamic condition has inconsistent types",
               "what the function returns": "Return type mismatch"}
_INSTEAD = {"Break": "break; make the bound of the loop the smaller one, or write a while loop", "Continue": "continue; put the rest under an if",
            "With": "with", "Try": "try", "FunctionDef": "a function inside of a kernel; define it outside, with @triton.jit", "ClassDef": "a class",
            "Global": "global", "Import": "import; do it at the head of the file", "Delete": "del",
            "Raise": "raise; tl.static_assert says what must hold"}


class Returned:
    def __init__(self, value):
        self.value = value


def _has_return(*nodes) -> bool:
    return any(isinstance(child, ast.Return) for node in nodes for child in ast.walk(node))


def assigned(statements) -> list:
    """The names that statements assign, in order."""
    names = {}
    for statement in statements:
        for child in ast.walk(statement):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                names[child.id] = None
    return list(names)


def flatten(x) -> list:
    """The parts of nested tuples."""
    return [leaf for part in x for leaf in flatten(part)] if isinstance(x, (tuple, list)) else [x]


def rebuilt(x, leaves):
    """Nested tuples as ``x`` with the next parts of an iterator."""
    return remade(x, [rebuilt(part, leaves) for part in x]) if isinstance(x, (tuple, list)) else next(leaves)


def remade(x, parts):
    """A tuple or list of the type of ``x``."""
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)


class Interpreter(Expressions):
    """``Interpreter(builder).kernel(jit, arguments)``."""

    def run(self, jit, scope: dict):
        """What the function returns."""
        if len(self.frames) > _DEEPEST_CALL:
            raise Refusal(f"calls of {jit.__name__} go deeper than {_DEEPEST_CALL}; functions are written out where they are called, so none may "
                          "call itself")
        place = (self.b.file, self.b.line)
        self.frames.append(Frame(jit, scope))
        self.b.file = jit.file
        try:
            result = self.block(jit.tree().body)
        except FailedAssertion as problem:
            raise self.failed(problem) from None
        except Refusal as problem:
            raise self.failed(problem) from problem
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
            raise self.failed(Refusal(f"{type(problem).__name__}: {problem}")) from problem
        self.frames.pop()
        self.b.file, self.b.line = place
        return result.value if result is not None else None

    def inline(self, jit, args, kwargs):
        return self.run(jit, jit.bound(args, kwargs))

    @contextlib.contextmanager
    def within(self, block: Block | None = None):
        """Operations go to a block inside of the present one; names that are assigned there are not seen outside."""
        outer, scope = self.b.block, self.frame.scope
        self.b.block, self.frame.scope = block or Block(None, outer), dict(scope)
        try:
            yield self.b.block
        finally:
            self.b.block, self.frame.scope = outer, scope

    # Statements.

    def block(self, statements):
        """Runs statements. What they return, where all that follows a return is not run."""
        for position, node in enumerate(statements):
            if isinstance(node, ast.If) and _has_return(node):
                return self._if_that_returns(node, statements[position + 1 :])
            result = self.statement(node)
            if result is not None:
                return result
        return None

    def statement(self, node):
        self.b.line = node.lineno
        method = getattr(self, "do_" + type(node).__name__, None)
        if method is None:
            raise Refusal(f"not part of Triton's language: {_INSTEAD.get(type(node).__name__, type(node).__name__)}")
        return method(node)

    def do_Pass(self, node):
        return None

    def do_Expr(self, node):
        self.visit(node.value)

    def do_Return(self, node):
        return Returned(None if node.value is None else self.visit(node.value))

    def do_Assert(self, node):
        condition = self.test(node.test)
        tl.static_assert.run(self.b, condition, "" if node.msg is None else self.visit(node.msg)) if static(condition) else \
            tl.device_assert.run(self.b, condition)

    def do_Assign(self, node):
        value = self.visit(node.value)
        for target in node.targets:
            self.assign(target, value, kept=True)

    def _kept(self, x):
        """What a name holds: a number becomes a value, which later assignments may change."""
        if is_number(x):
            return self.b.constant(x)
        if isinstance(x, tuple) and not hasattr(x, "_fields"):
            return tuple(self._kept(part) for part in x)
        return x

    def assign(self, target, value, kept: bool = False):
        """``kept``: by a statement that gives names values which may change. What a name that is annotated tl.constexpr gets may be known only when
        the kernel runs, as for parameters; what needs a constant then refuses it."""
        if isinstance(target, ast.Name):
            if target.id in self.frame.constants:
                self.frame.constants.discard(target.id)
                value = known_number(value)
            elif kept:
                value = self._kept(value)
            self.frame.scope[target.id] = value
            if isinstance(value, Value) and not value.name:
                value.name = target.id
            elif hasattr(type(value), "named"):
                value.named(target.id)
            return
        if not isinstance(target, (ast.Tuple, ast.List)):
            raise Refusal(f"an assignment to `{ast.unparse(target)}`; names and tuples of names are assigned, and memory is written by tl.store")
        if not isinstance(value, (tuple, list)) or len(value) != len(target.elts):
            raise Refusal(f"{describe(value)} is assigned to {len(target.elts)} names")
        for part, one in zip(target.elts, value):
            self.assign(part, one, kept)

    def do_AugAssign(self, node):
        if not isinstance(node.target, ast.Name):
            raise Refusal(f"an assignment to `{ast.unparse(node.target)}`; memory is written by tl.store")
        old = self.expr_Name(node.target)
        self.frame.scope[node.target.id] = self._kept(self._operator(type(node.op), old, self.visit(node.value)))

    def do_AnnAssign(self, node):
        annotation = self.visit(node.annotation)
        if node.value is None:  # it speaks of the first assignment
            if annotation is constexpr and isinstance(node.target, ast.Name):
                self.frame.constants.add(node.target.id)
            return
        value = self.visit(node.value)
        if annotation is constexpr:
            self.assign(node.target, known_number(value))
        else:
            self.assign(node.target, value, kept=True)

    # Branches.

    def do_If(self, node):
        condition = self.test(node.test)
        if static(condition):
            return self.block(node.body if condition else node.orelse)
        blocks, scopes = [], []
        for part in (node.body, node.orelse):
            with self.within() as block:
                self.block(part)
                scopes.append(self.frame.scope)
            blocks.append(block)
        self.b.line = node.lineno
        self._join(self.scalar(condition), blocks, scopes, assigned([*node.body, *node.orelse]))

    def _join(self, condition, blocks, scopes, names):
        """The names behind an if."""
        here, joined = self.frame.scope, []
        for name in names:
            if all(name in scope for scope in scopes):
                joined.append(name)
            elif any(name in scope for scope in scopes):
                here[name] = Poison(f"is assigned on one side of the if in line {self.b.line} only; assign it before the if as well")
        one, other = ([scope[name] for name in joined] for scope in scopes)
        for name, value in zip(joined, self.merged(condition, blocks, one, other, joined)):
            here[name] = value

    def merged(self, condition, blocks, one: list, other: list, names: list) -> list:
        """The operation scf.if of two blocks, and what it makes of pairs of things."""
        ends, plans = ([], []), []
        for name, a, b in zip(names, one, other):
            plans.append(self._merge(name, blocks, a, b, ends))
        results = [(value.element, value.shape) for value in ends[0]]
        op = self.b.emit("scf.if", [condition], results)
        for block, values in zip(blocks, ends):
            block.op = op
            block.finish(values)
        op.regions = list(blocks)
        return [plan(op) for plan in plans]

    def _merge(self, name, blocks, a, b, ends):
        """How a thing is made of the operation's results."""
        if a is b or static(a) and static(b) and type(a) is type(b) and a == b:
            return lambda op: a
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            parts = [self._merge(name, blocks, x, y, ends) for x, y in zip(a, b)]
            return lambda op: remade(a, [part(op) for part in parts])
        if any(not isinstance(x, Value) and not is_number(x) for x in (a, b)):
            poison = next((x for x in (a, b) if isinstance(x, Poison)), None)
            poison = poison or Poison(f"is {describe(a)} on one side of the if in line {self.b.line} and {describe(b)} on the other")
            return lambda op: poison
        a, b = self._alike(name, blocks, a, b)
        for end, value in zip(ends, (a, b)):
            end.append(value)
        index = len(ends[0]) - 1
        return lambda op: op.results[index]

    def _alike(self, name, blocks, a, b):
        """Both as values of one type, each made in its own block."""
        sides = []
        for block, x, y in zip(blocks, (a, b), (b, a)):
            with self.within(block):
                if is_number(x):
                    known = y.element if isinstance(y, Value) and not y.element.is_ptr() and y.element.kind >= self.b._element(x).kind else None
                    x = self.b.constant(x, known)
            sides.append(x)
        a, b = sides
        if a.element != b.element or a.shape != b.shape:
            raise Refusal(f"{_MISMATCHES.get(name, f'Mismatched type for {name}')}: {describe(a)} on one side of the if and {describe(b)} on the "
                          "other; make them one type")
        return a, b

    def _if_that_returns(self, node, rest):
        """What stands behind it is read on both sides, for a side may have returned."""
        self.b.line = node.lineno
        condition = self.test(node.test)
        if static(condition):
            return self.block([*(node.body if condition else node.orelse), *rest])
        blocks, results = [], []
        for part in (node.body, node.orelse):
            with self.within() as block:
                result = self.block([*part, *rest])
                results.append(result.value if result is not None else None)
            blocks.append(block)
        self.b.line = node.lineno
        (value,) = self.merged(self.scalar(condition), blocks, [results[0]], [results[1]], ["what the function returns"])
        if isinstance(value, Poison):
            raise Refusal(f"what the function returns {value.why}")
        return Returned(value)

    # Loops.

    def do_For(self, node):
        if node.orelse:
            raise Refusal("for … else")
        if _has_return(node):
            raise Refusal("return inside a loop; keep the result in a name and return it behind the loop")
        source = self.visit(node.iter)
        if isinstance(source, tl.static_range) or isinstance(source, (tuple, list)) and static(source):
            return self._unrolled(node, source.values if isinstance(source, tl.static_range) else source)
        if isinstance(source, tl.range):
            return self._loop(node, source)
        raise Refusal(f"a loop over {describe(source)}; loops go over range, tl.range, tl.static_range and tuples")

    def _unrolled(self, node, values):
        for value in values:
            self.assign(node.target, value)
            self.block(node.body)

    def _carried(self, statements) -> list:
        """(name, the thing it holds) of names that hold something before a loop and are assigned in it."""
        scope = self.frame.scope
        return [(name, scope[name]) for name in assigned(statements) if name in scope and not isinstance(scope[name], Poison)]

    def _loop(self, node, source):
        if not isinstance(node.target, ast.Name):
            raise Refusal("the variable of a range is one name")
        for hint, value in source.hints.items():
            if value not in (None, False):
                tl._no_effect(self.b, f"tl.range({hint}={value!r})", "how a loop is scheduled is inferred; leave it out")
        (lower, upper, step), counted = self._bounds(source)
        carried = [(name, value) for name, value in self._carried(node.body) if name != node.target.id]
        block = Block(None, self.b.block)
        index = block.argument(lower.element)
        inits = [leaf for _, value in carried for leaf in flatten(value) if isinstance(leaf, Value)]
        with self.within(block):
            self._enter(block, carried)
            index.name = node.target.id
            self.frame.scope[node.target.id] = self.b.cast(index, counted)
            self.block(node.body)
            ends = self._leave(carried, node.lineno)
        self.b.line = node.lineno
        block.finish(ends)
        op = self.b.emit("scf.for", [lower, upper, step, *inits], [(v.element, v.shape) for v in inits], num_stages=source.num_stages)
        op.regions, block.op = [block], op
        self._behind(node, carried, op, [node.target.id])

    def _bounds(self, source):
        """(the bounds and the step in a type that has them all, the type of the loop's variable: that in which the three meet)"""
        values = [self.b.value(x, "a bound of a loop") for x in (*source.bounds, source.step)]
        for value in values:
            if value.shape or not value.element.is_int():
                raise Refusal(f"a bound of a loop is {describe(value)}; a scalar integer is needed")
        wide = any(value.element.primitive_bitwidth > 32 for value in values) or any(value.element.is_uint32() for value in values)
        element = tl.int64 if wide else tl.int32
        if known_number(source.step) == 0:
            raise Refusal("the step of a loop is 0")
        counted = functools.reduce(meet_integers, (value.element for value in values))
        return [self.b.cast(value, element) for value in values], counted

    def _enter(self, block: Block, carried):
        """The names hold the arguments of the block."""
        for name, value in carried:
            leaves = [block.argument(leaf.element, leaf.shape) if isinstance(leaf, Value) else leaf for leaf in flatten(value)]
            for leaf in leaves:
                if isinstance(leaf, Value):
                    leaf.name = name
            self.frame.scope[name] = rebuilt(value, iter(leaves))

    def _leave(self, carried, line: int) -> list:
        """The values of the names at the end of a loop's body."""
        ends, self.b.line = [], line
        for name, before in carried:
            after = self.frame.scope[name]
            old, new = flatten(before), flatten(after)
            if isinstance(after, Poison) or len(old) != len(new):
                raise Refusal(f"{name} is {describe(before)} before the loop in line {line} and another thing at its end")
            ends += [value for value in (self._end(name, x, y, line) for x, y in zip(old, new)) if value is not None]
        return ends

    def _end(self, name, old, new, line: int):
        if not isinstance(old, Value):
            if old is new or static(new) and type(old) is type(new) and old == new:
                return None
            raise Refusal(f"{name} is {describe(old)}, known when the kernel is compiled, and the loop in line {line} changes it; assign it before "
                          "the loop without tl.constexpr")
        if is_number(new) and not old.element.is_ptr():
            new = self.b.constant(new, old.element)
        if isinstance(new, Value) and new.element == old.element and new.shape == old.shape:
            return new
        raise Refusal(f"{name} is {describe(old)} before the loop in line {line} and {describe(new)} at the end of its body; cast it with "
                      ".to(…), or make it that type before the loop")

    def _behind(self, node, carried, op: Op, inner_names):
        """The names after a loop."""
        results = iter(op.results)
        for name, value in carried:
            leaves = (next(results) if isinstance(leaf, Value) else leaf for leaf in flatten(value))
            self.frame.scope[name] = rebuilt(value, leaves)
        for name in [*assigned(node.body), *inner_names]:
            if name not in dict(carried):
                self.frame.scope[name] = Poison(f"is assigned in the loop in line {node.lineno} only; assign it before the loop as well")

    def do_While(self, node):
        if node.orelse:
            raise Refusal("while … else")
        if _has_return(node):
            raise Refusal("return inside a loop; keep the result in a name and return it behind the loop")
        carried = self._carried(node.body)
        inits = [leaf for _, value in carried for leaf in flatten(value) if isinstance(leaf, Value)]
        before, body = Block(None, self.b.block), Block(None, self.b.block)
        with self.within(before):
            self._enter(before, carried)
            condition = self.visit(node.test)
            if static(condition):
                raise Refusal(f"a while loop whose condition is always {bool(condition)}")
            before.finish([self.scalar(condition)])
        with self.within(body):
            self._enter(body, carried)
            self.block(node.body)
            body.finish(self._leave(carried, node.lineno))
        self.b.line = node.lineno
        op = self.b.emit("scf.while", inits, [(v.element, v.shape) for v in inits])
        op.regions, before.op, body.op = [before, body], op, op
        self._behind(node, carried, op, [])


def graph_of(jit, values: dict, runtime: dict, options: dict, target: str) -> tuple:
    """(the graph, the globals it used). ``values``: what is known of the parameters; ``runtime``: parameter → nested tuples of types
    where some part is not known. ``options``: of the launch."""
    function = Function(jit.__name__, jit.file)
    builder = Builder(jit.file, function.body, options["num_warps"], target, bool(options["debug"]))
    scope = dict(values)
    for name, parts in runtime.items():
        scope[name] = _argument(function, name, parts)
    interpreter = Interpreter(builder)
    result = interpreter.run(jit, scope)
    if result is not None:
        raise CompilationError(f"{jit.file}:{jit.first_line}: the kernel {jit.__name__} returns {describe(result)}; kernels return nothing, "
                               "and write their results with tl.store")
    function.views = [(function.params.index((root.name, root)), element) for root, element in builder.views]
    function.params += [(view.name, view) for view in builder.views.values()]
    return function, interpreter.used + builder.sources


def _argument(function: Function, name: str, parts):
    if isinstance(parts, tuple):
        return remade(parts, [_argument(function, f"{name}_{i}", part) for i, part in enumerate(parts)])
    if not isinstance(parts, Parameter):
        return parts
    if parts.is_one:
        return Builder(function.file, function.body).constant(1, parts.element)
    value = function.body.argument(parts.element)
    value.name = name
    function.params.append((name, value))
    if parts.divisor > 1:
        function.assumed.append((value, parts.divisor))
    if parts.is_inside:
        place = function.body.argument(tl.int64)
        place.name = f"{name}_place"
        function.params.append((place.name, place))
        return Builder(function.file, function.body).binary("+", value, place)
    return value


class Parameter:
    """A parameter that is known at launch only. ``divisor``: of all its values, or of the number of elements that a pointer leads to.
    ``is_one``: it is compiled in as a 1 of its type. ``is_inside``: it points into the middle of its memory, and the launch gives the place."""

    __slots__ = ("divisor", "element", "is_inside", "is_one")

    def __init__(self, element, divisor: int = 1, is_one: bool = False, is_inside: bool = False):
        self.element, self.divisor, self.is_one, self.is_inside = element, divisor, is_one, is_inside
